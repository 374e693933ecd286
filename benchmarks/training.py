"""A joint epoch on MNIST, the paper's network: against a plain loop, ClustPy, and the arithmetic.

``python benchmarks/training.py`` writes ``results/training.json``; with ``--device cuda``, one seed
and 15 at once. The limit is the best rate of a matrix product that the same run measures, in the
same number format; the arithmetic of an epoch is counted from the shapes.
"""

from __future__ import annotations

import itertools
import sys
import tempfile
import time
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from cases import mnist
from limits import copy_rate, limit_of, product_rate
from measure import compare, parser, serve, synchronize, without_torchvision, write

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


def _epoch(seconds: list[float], n_rows: int, seeds: int = 1) -> dict[str, Any]:
    return {
        "seconds": float(np.median(seconds)),
        "extra_mb": 0.0,
        "rows": n_rows,
        "seeds": seeds,
    }


def product(
    rows: str,
    device: str = "cpu",
    precision: str = "float32",
    only_torch: bool = False,
    quick: bool = False,
) -> dict[str, Any]:
    """The best rate of a matrix product, and of copying memory."""
    n_rows = len(np.load(rows, mmap_mode="r"))
    rate = product_rate(precision, device, only_torch=only_torch, quick=quick)
    about = {"flops_per_s": rate, "copy_bytes_per_s": copy_rate(device)}
    return _epoch([arithmetic(n_rows) / rate], n_rows) | about


def concrete(
    rows: str, device: str = "cpu", method: str = "ckm", precision: str = "float32", seeds: int = 1
) -> dict[str, Any]:
    import torch

    from concrete_kmeans.experiments.runtime import measure

    X = torch.from_numpy(np.load(rows)).to(device)
    epochs = EPOCHS + 1 if device == "cpu" else 10
    given = {"encoder": WIDTHS[1:], "batch_size": BATCH, "precision": precision}
    found = measure(method, X, K, seeds, epochs, **given)
    return _epoch([found["seconds"]], len(X), seeds)


def plain(
    rows: str, device: str = "cpu", fused: bool = False, precision: str = "float32"
) -> dict[str, Any]:
    """The same model as one would write it: modules, torch's Gumbel-Softmax, Adam."""
    import torch
    from torch import nn

    X = torch.from_numpy(np.load(rows)).to(device)
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"

    def mlp(widths: tuple[int, ...]) -> nn.Sequential:
        layers: list[nn.Module] = []
        for a, b in itertools.pairwise(widths):
            layers += [nn.Linear(a, b), nn.ReLU()]
        return nn.Sequential(*layers[:-1])

    encoder, decoder = mlp(WIDTHS).to(device), mlp(WIDTHS[::-1]).to(device)
    with torch.no_grad():
        first = encoder(X[:4096])
        spread0 = first.var(0).sum()
        sigma2 = 0.15 * torch.cdist(first, first[:K]).square().amin(-1).mean()
    centers = nn.Parameter(first[:K].clone())
    parameters = [*encoder.parameters(), *decoder.parameters(), centers]
    optimizer = torch.optim.Adam(parameters, lr=3e-4, fused=fused or None)

    def epoch() -> None:
        order = torch.randperm(len(X), device=device)
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
        synchronize(device)
        start = time.perf_counter()
        epoch()
        synchronize(device)
        seconds.append(time.perf_counter() - start)
    return _epoch(seconds[1:], len(X))


def clustpy(rows: str, device: str, name: str) -> dict[str, Any]:  # noqa: ARG001
    """What one more epoch of clustering costs; the network is the same by its defaults."""
    without_torchvision()
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


ON_CPU = {
    "product": partial(product),
    "product, torch.mm": partial(product, only_torch=True),
    "product, bfloat16": partial(product, precision="bfloat16"),
    "concrete-kmeans": partial(concrete),
    "concrete-kmeans, bfloat16": partial(concrete, precision="bfloat16"),
    "concrete-kmeans, DCN": partial(concrete, method="dcn"),
    "plain loop": partial(plain),
    "plain loop, fused Adam": partial(plain, fused=True),
    "ClustPy DCN": partial(clustpy, name="DCN"),
    "ClustPy IDEC": partial(clustpy, name="IDEC"),
    "ClustPy DKM": partial(clustpy, name="DKM"),
    "ClustPy DEC": partial(clustpy, name="DEC"),
}
ON_CUDA = {
    "product, tf32": partial(product, precision="tf32"),
    "product, bfloat16": partial(product, precision="bfloat16"),
    "concrete-kmeans, tf32": partial(concrete, precision="tf32"),
    "concrete-kmeans, bfloat16": partial(concrete, precision="bfloat16"),
    "concrete-kmeans, tf32, 15 seeds": partial(concrete, precision="tf32", seeds=15),
    "concrete-kmeans, bfloat16, 15 seeds": partial(concrete, precision="bfloat16", seeds=15),
    "plain loop, tf32": partial(plain, precision="tf32"),
    "plain loop, tf32, fused Adam": partial(plain, fused=True, precision="tf32"),
}
#: Not asked in a quick run.
SLOW = ("plain loop, fused Adam", "concrete-kmeans, DCN", "ClustPy DKM", "ClustPy DEC")


# ----------------------------------------------------------------------------- in the main process


def compared(found: dict[str, Any], flops: float) -> None:
    """Add fractions of the limit and ratios to the plain loop, and print."""
    plain_row = found.get("plain loop") or found.get("plain loop, tf32") or {}
    for name, row in found.items():
        if "error" in row:
            print(f"  {name:36} {row['error']}")
            continue
        line = f"  {name:36} {row['seconds']:8.3f} s an epoch"
        if limit := limit_of(name, found):
            row["fraction_of_limit"] = flops * row["seeds"] / row["seconds"] / limit
            line += f", {100 * row['fraction_of_limit']:5.1f} % of the product's rate"
        if "seconds" in plain_row:
            each = row["seconds"] / row["seeds"]
            row["times_as_fast_as_plain"] = plain_row["seconds"] / each
            line += f", {row['times_as_fast_as_plain']:5.2f} x as fast as the plain loop"
        print(line)


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--rows", type=int, help="of MNIST, the first so many; all by default")
    options.add_argument("--only", help="only these contenders, separated by semicolons")
    chosen = options.parse_args()
    on_cpu = chosen.device == "cpu"
    everyone = ON_CPU if on_cpu else ON_CUDA
    contenders = [name for name in everyone if not (chosen.quick and name in SLOW)]
    if chosen.only:
        contenders = chosen.only.split(";")
    n_rows = chosen.rows or (40 * BATCH if chosen.quick and on_cpu else 70_000)
    X, about_rows = mnist(n_rows)
    print(
        f"Joint epoch over {len(X):,} rows of MNIST, {'-'.join(map(str, WIDTHS))}, {chosen.device}"
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.npy"
        np.save(path, X)
        rounds = chosen.rounds or (1 if chosen.quick else 2)
        arguments = {"rows": str(path), "device": chosen.device}
        product_too = {"quick": chosen.quick}
        found = compare(
            __file__, contenders, arguments, rounds=rounds, timeout=1800, product=product_too
        )
    flops = arithmetic(len(X))
    compared(found, flops)
    if not chosen.only:
        about = {"command": "python benchmarks/training.py", "rows": len(X), "flops": flops}
        about |= {"widths": WIDTHS, "batch": BATCH, "contenders": found} | about_rows
        write("training", about, quick=chosen.quick, device=chosen.device)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--contender"]:
        serve(ON_CPU | ON_CUDA)
    else:
        main()
