"""A joint epoch on MNIST, the paper's network: against a plain loop, ClustPy, and the arithmetic.

``python benchmarks/training.py`` writes ``results/training.json``. The limit is the best rate of a
matrix product that the same run measures, in the same number format; the arithmetic of an epoch is
counted from the shapes. ClustPy is measured if it is installed.
"""

from __future__ import annotations

import importlib.util
import itertools
import sys
import tempfile
import time
import types
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from measure import compare, parser, serve, write

WIDTHS, BATCH, K = (784, 500, 500, 2000, 10), 256, 10
#: Epochs that are timed, after one that is not.
EPOCHS = 2


def arithmetic(n_rows: int) -> float:
    """Floating-point operations of the products of an epoch: forward, and back to both factors.

    Nobody asks for the gradient of the rows, so the first layer goes back to its weights only.
    """
    layers = [*itertools.pairwise(WIDTHS), *itertools.pairwise(WIDTHS[::-1])]
    weights = [a * b for a, b in layers]
    return float(n_rows) * (6.0 * sum(weights) - 2.0 * weights[0])


# ------------------------------------------------------------------ inside a contender's process


def _epoch(seconds: list[float], n_rows: int) -> dict[str, Any]:
    return {"seconds": float(np.median(seconds)), "extra_mb": 0.0, "rows": n_rows}


def product(rows: str, dtype: str = "float32") -> dict[str, Any]:
    """The best rate of a matrix product, and of copying memory."""
    import torch

    def best(run: Callable[[], object], rounds: int = 7) -> float:
        run()
        seconds = []
        for _ in range(rounds):
            start = time.perf_counter()
            run()
            seconds.append(time.perf_counter() - start)
        return min(seconds)

    rates = []
    for size in (1024, 2048, 4096):
        a, b = (torch.randn(size, size).to(getattr(torch, dtype)) for _ in range(2))
        out = torch.empty_like(a)
        rates.append(2.0 * size**3 / best(lambda a=a, b=b, out=out: torch.mm(a, b, out=out)))
    source = torch.ones(2**27 // 4)
    target = torch.empty_like(source)
    seconds = best(lambda: target.copy_(source))
    n_rows = len(np.load(rows, mmap_mode="r"))
    return {
        "seconds": arithmetic(n_rows) / max(rates),
        "extra_mb": 0.0,
        "flops_per_s": max(rates),
        "copy_bytes_per_s": 2.0 * source.nbytes / seconds,
    }


def product_bfloat16(rows: str) -> dict[str, Any]:
    return product(rows, "bfloat16")


def concrete(rows: str, method: str = "ckm", precision: str = "float32") -> dict[str, Any]:
    import torch

    from concrete_kmeans.experiments.runtime import measure

    X = torch.from_numpy(np.load(rows))
    found = measure(
        method, X, K, 1, EPOCHS + 1, encoder=WIDTHS[1:], batch_size=BATCH, precision=precision
    )
    return _epoch([found["seconds"]], len(X))


def concrete_bfloat16(rows: str) -> dict[str, Any]:
    return concrete(rows, precision="bfloat16")


def concrete_dcn(rows: str) -> dict[str, Any]:
    return concrete(rows, "dcn")


def plain(rows: str, fused: bool = False) -> dict[str, Any]:
    """The same model as one would write it: modules, torch's Gumbel-Softmax, Adam."""
    import torch
    from torch import nn

    X = torch.from_numpy(np.load(rows))
    torch.manual_seed(0)

    def mlp(widths: tuple[int, ...]) -> nn.Sequential:
        layers: list[nn.Module] = []
        for a, b in itertools.pairwise(widths):
            layers += [nn.Linear(a, b), nn.ReLU()]
        return nn.Sequential(*layers[:-1])

    encoder, decoder = mlp(WIDTHS), mlp(WIDTHS[::-1])
    with torch.no_grad():
        first = encoder(X[:4096])
        spread0 = first.var(0).sum()
        sigma2 = 0.15 * torch.cdist(first, first[:K]).square().amin(-1).mean()
    centers = nn.Parameter(first[:K].clone())
    parameters = [*encoder.parameters(), *decoder.parameters(), centers]
    optimizer = torch.optim.Adam(parameters, lr=3e-4, fused=fused or None)

    def epoch() -> None:
        order = torch.randperm(len(X))
        for begin in range(0, len(X) - BATCH + 1, BATCH):
            batch = X[order[begin : begin + BATCH]]
            z = encoder(batch)
            distances = torch.cdist(z, centers).square() * (spread0 / z.var(0).sum())
            assignment = nn.functional.gumbel_softmax(-distances / sigma2, tau=0.5, hard=True)
            loss = (decoder(z) - batch).square().sum(-1).mean()
            loss = loss + (assignment * distances).sum(-1).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    seconds = []
    for _ in range(EPOCHS + 1):
        start = time.perf_counter()
        epoch()
        seconds.append(time.perf_counter() - start)
    return _epoch(seconds[1:], len(X))


def plain_fused(rows: str) -> dict[str, Any]:
    return plain(rows, fused=True)


def clustpy(rows: str, name: str) -> dict[str, Any]:
    """What one more epoch of clustering costs; the network is the same by its defaults."""
    for module in ("torchvision", "torchvision.transforms", "torchvision.datasets"):
        if importlib.util.find_spec(module.split(".")[0]) is None:
            sys.modules.setdefault(module, types.ModuleType(module))
    import clustpy.deep

    X = np.load(rows)
    warnings.simplefilter("ignore")

    def run(epochs: int) -> float:
        made = getattr(clustpy.deep, name)(
            K, batch_size=BATCH, pretrain_epochs=1, clustering_epochs=epochs, embedding_size=10
        )
        start = time.perf_counter()
        made.fit(X)
        return time.perf_counter() - start

    return _epoch([(run(1 + EPOCHS) - run(1)) / EPOCHS], len(X))


def clustpy_dcn(rows: str) -> dict[str, Any]:
    return clustpy(rows, "DCN")


def clustpy_idec(rows: str) -> dict[str, Any]:
    return clustpy(rows, "IDEC")


def clustpy_dkm(rows: str) -> dict[str, Any]:
    return clustpy(rows, "DKM")


CONTENDERS = {
    "product": product,
    "product, bfloat16": product_bfloat16,
    "concrete-kmeans": concrete,
    "concrete-kmeans, bfloat16": concrete_bfloat16,
    "concrete-kmeans, DCN": concrete_dcn,
    "plain loop": plain,
    "plain loop, fused Adam": plain_fused,
    "ClustPy DCN": clustpy_dcn,
    "ClustPy IDEC": clustpy_idec,
    "ClustPy DKM": clustpy_dkm,
}


# ----------------------------------------------------------------------------- in the main process


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--rows", type=int, default=70_000, help="of MNIST, the first so many")
    options.add_argument("--only", help="only these contenders, separated by semicolons")
    chosen = options.parse_args()
    contenders = chosen.only.split(";") if chosen.only else list(CONTENDERS)
    if importlib.util.find_spec("clustpy") is None:
        contenders = [name for name in contenders if not name.startswith("ClustPy")]
    from concrete_kmeans import datasets

    X = np.ascontiguousarray(datasets.load("mnist").data[: chosen.rows], dtype=np.float32)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.npy"
        np.save(path, X)
        arguments = {"rows": str(path)}
        found = compare(__file__, contenders, arguments, rounds=chosen.rounds, timeout=1800)
    flops = arithmetic(len(X))
    for name, row in found.items():
        if "error" in row:
            print(f"  {name:28} {row['error']}")
            continue
        limit = found.get("product, bfloat16" if "bfloat16" in name else "product", {})
        if "flops_per_s" in limit:
            row["fraction_of_limit"] = flops / row["seconds"] / limit["flops_per_s"]
        if "seconds" in found.get("plain loop", {}):
            row["times_as_fast_as_plain"] = found["plain loop"]["seconds"] / row["seconds"]
        print(
            f"  {name:28} {row['seconds']:7.2f} s an epoch, "
            f"{100 * row.get('fraction_of_limit', float('nan')):5.1f} % of the product's rate, "
            f"{row.get('times_as_fast_as_plain', float('nan')):5.2f} x the plain loop"
        )
    if not chosen.only:
        about = {"command": "python benchmarks/training.py", "rows": len(X), "flops": flops}
        print(f"written to {write('training', about | {'contenders': found}).name}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--contender"]:
        serve(CONTENDERS)
    else:
        main()
