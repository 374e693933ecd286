"""Labels of new rows by a trained model of the paper's network: the rate against the product's.

``python benchmarks/predict.py`` writes ``results/predict.json``. On the CPU rows come from memory;
with ``--device cuda`` ten million rows pass in calls of a million that lie on the device. On both,
ten million rows are also streamed from a file of 8 GB, in one call.
"""

from __future__ import annotations

import itertools
import sys
import tempfile
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from cases import mnist
from limits import limit_of, product_rate
from measure import (
    Peak,
    best_seconds,
    compare,
    parser,
    progress,
    serve,
    synchronize,
    timed,
    write,
)

WIDTHS, K = (784, 500, 500, 2000, 10), 10
#: What a contender's name has that is not for a device.
ON = {"cpu": "tf32", "cuda": "torch.mm"}
#: What takes as long as another and says little more, or takes minutes.
NOT_QUICK = ("transform", "streamed")
#: Rows of one call, and how many calls make a measurement, by device.
ROWS, CALLS = {"cpu": 70_000, "cuda": 1_000_000}, {"cpu": 1, "cuda": 10}
#: Rows of the file that is streamed, a byte a pixel.
STREAMED = 10_000_000


def arithmetic(n_rows: int) -> float:
    """Floating-point operations of the encoder's products and of the distances to the centres."""
    weights = sum(a * b for a, b in itertools.pairwise(WIDTHS)) + WIDTHS[-1] * K
    return 2.0 * n_rows * weights


# ------------------------------------------------------------------ inside a contender's process


def product(
    rows: str,  # noqa: ARG001
    device: str,
    n: int,
    precision: str = "float32",
    only_torch: bool = False,
    quick: bool = False,
) -> dict[str, Any]:
    rate = product_rate(precision, device, only_torch=only_torch, quick=quick)
    n *= CALLS[device]
    return {"seconds": arithmetic(n) / rate, "extra_mb": 0.0, "rows": n, "flops_per_s": rate}


def fitted(rows: np.ndarray, device: str, precision: str = "float32") -> Any:
    """A model of the paper's network; bfloat16 by its precision, as a user would ask for it."""
    import torch

    from concrete_kmeans import DeepConcreteKMeans

    warnings.simplefilter("ignore")  # two epochs make no good clusters: only the time counts
    short = {"pretrain_epochs": 1, "epochs": 1, "init": "k-means++", "random_state": 0}
    if precision == "bfloat16":
        short["precision"] = precision
    X = torch.from_numpy(np.ascontiguousarray(rows[:2560])).to(device)
    return DeepConcreteKMeans(K, encoder=WIDTHS[1:], device=device, **short).fit(X)


def concrete(
    rows: str, device: str, n: int, method: str = "predict", precision: str = "float32"
) -> dict[str, Any]:
    """tf32 by torch's switch, as a user would ask for it."""
    import torch

    X = np.load(rows)
    model = fitted(X, device, precision)
    X = torch.from_numpy(X).to(device).repeat(-(-n // len(X)), 1)[:n]
    call = getattr(model, method)
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"

    def run() -> dict[str, Any]:
        for _ in range(CALLS[device]):
            last = call(X)
        synchronize(device)
        return {"rows": n * CALLS[device], "results": list(last.shape)}

    call(X[:4096])

    found = timed(run)
    return found | {"seconds": min(found["seconds"], best_seconds(run, device, 2))}


def streamed(rows: str, device: str, n: int) -> dict[str, Any]:  # noqa: ARG001
    """All rows of the file beside ``rows``, in one call that reads them as it goes."""
    X = np.load(Path(rows).with_name("streamed.npy"), mmap_mode="r")
    model = fitted(np.load(rows), device)
    model.predict(X[:4096])
    with Peak(every=0.2) as peak:  # thousands of chunks, all of one size
        found = timed(lambda: {"rows": len(X), "results": list(model.predict(X).shape)})
    return found | {"extra_mb": peak.extra}


def plain(rows: str, device: str, n: int) -> dict[str, Any]:
    """The same network as modules, all rows in one call."""
    import torch
    from torch import nn

    X = torch.from_numpy(np.load(rows)).to(device).repeat(-(-n // ROWS["cpu"]), 1)[:n]
    layers: list[nn.Module] = []
    for a, b in itertools.pairwise(WIDTHS):
        layers += [nn.Linear(a, b), nn.ReLU()]
    encoder, centers = nn.Sequential(*layers[:-1]).to(device), torch.randn(K, 10, device=device)

    @torch.inference_mode()
    def run() -> dict[str, Any]:
        for _ in range(CALLS[device]):
            torch.cdist(encoder(X), centers).argmin(1)
        synchronize(device)
        return {"rows": n * CALLS[device]}

    run()
    found = timed(run)
    return found | {"seconds": min(found["seconds"], best_seconds(run, device, 2))}


CONTENDERS = {
    "product": partial(product),
    "product, torch.mm": partial(product, only_torch=True),
    "product, tf32": partial(product, precision="tf32"),
    "product, bfloat16": partial(product, precision="bfloat16"),
    "concrete-kmeans": partial(concrete),
    "concrete-kmeans, transform": partial(concrete, method="transform"),
    "concrete-kmeans, tf32": partial(concrete, precision="tf32"),
    "concrete-kmeans, bfloat16": partial(concrete, precision="bfloat16"),
    "concrete-kmeans, streamed": partial(streamed),
    "plain module, one call": partial(plain),
}


# ----------------------------------------------------------------------------- in the main process


def write_rows(path: Path, X: np.ndarray, n: int) -> None:
    """Those of X, again and again, a byte a pixel."""
    X = np.round(X * 255.0).astype(np.uint8)
    rows = np.lib.format.open_memmap(path, "w+", np.uint8, (n, X.shape[1]))
    for start in range(0, n, len(X)):
        rows[start : start + len(X)] = X[: n - start]
    rows.flush()


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--rows", type=int, help="of one call")
    chosen = options.parse_args()
    X, about_rows = mnist()
    n = chosen.rows or (20_000 if chosen.quick and chosen.device == "cpu" else ROWS[chosen.device])
    total = n * CALLS[chosen.device]
    print(f"Labels of {total:,} rows, {'-'.join(map(str, WIDTHS))}, {chosen.device}")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.npy"
        np.save(path, X)
        rounds = chosen.rounds or (1 if chosen.quick else 3)
        arguments = {"rows": str(path), "device": chosen.device, "n": n}
        left_out = {ON[chosen.device], *(NOT_QUICK if chosen.quick else ())}
        asked = [name for name in CONTENDERS if not any(word in name for word in left_out)]
        product_too = {"quick": chosen.quick}
        if any("streamed" in name for name in asked):
            progress(f"a file of {STREAMED:,} rows")
            write_rows(path.with_name("streamed.npy"), X, STREAMED)
        found = compare(__file__, asked, arguments, rounds=rounds, timeout=600, product=product_too)
    for name, row in found.items():
        if "error" in row:
            print(f"  {name:28} {row['error']}")
            continue
        row["rows_per_s"] = row["rows"] / row["seconds"]
        line = f"  {name:28} {row['rows_per_s']:12,.0f} rows/s, {row['extra_mb']:7.1f} MB more"
        if limit := limit_of(name, found):
            row["fraction_of_limit"] = arithmetic(row["rows"]) / row["seconds"] / limit
            line += f", {100 * row['fraction_of_limit']:5.1f} % of the product's rate"
        print(line)
    about = {"command": "python benchmarks/predict.py", "rows": total, "widths": WIDTHS}
    about |= {"flops": arithmetic(total), "contenders": found} | about_rows
    write("predict", about, quick=chosen.quick, device=chosen.device)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--contender"]:
        serve(CONTENDERS)
    else:
        main()
