"""How the cost grows with rows, features, clusters, restarts and batch.

``python benchmarks/growth.py`` writes ``results/growth.json``: seconds at sizes over two orders of
magnitude, and the exponents of power laws fitted to them. One size changes, the others stay; rows
are a mixture of as many normal clouds as there are clusters.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from measure import best_seconds, parser, progress, write

ITERATIONS = 5
STEPS = 20
#: Sizes that stay, and for each that changes its smallest and what else differs meanwhile.
LLOYD = {"rows": 50_000, "features": 32, "clusters": 32, "restarts": 1}
LLOYD_FROM: dict[str, tuple[int, dict[str, int]]] = {
    "rows": (10_000, {}),
    "features": (8, {"rows": 20_000}),
    "clusters": (10, {"rows": 20_000}),
    "restarts": (1, {"rows": 2_000}),
}
EPOCH = {"rows": STEPS * 256, "features": 64, "clusters": 10, "restarts": 1, "batch": 256}
EPOCH_FROM: dict[str, tuple[int, dict[str, int]]] = {
    "rows": (1_024, {}),
    "features": (16, {}),
    "clusters": (10, {}),
    "restarts": (1, {"rows": STEPS * 64, "batch": 64}),
    "batch": (32, {}),
}
HIDDEN = (100, 100, 10)


def clouds(n: int, d: int, k: int) -> Any:
    """Rows (n, d) around k means."""
    import torch

    generator = torch.Generator().manual_seed(0)
    means = 2.0 * torch.randn(k, d, generator=generator)
    which = torch.randint(k, (n,), generator=generator)
    return means[which] + torch.randn(n, d, generator=generator)


def lloyd_seconds(device: str, rounds: int, **size: int) -> float:
    """Of one iteration."""
    import torch

    from concrete_kmeans.lloyd import lloyd

    X = clouds(size["rows"], size["features"], size["clusters"]).to(device)
    centers = X[: size["clusters"]].expand(size["restarts"], -1, -1).clone()
    noise = torch.randn(centers.shape, generator=torch.Generator().manual_seed(1))
    centers += 0.1 * noise.to(device)

    def run() -> None:
        lloyd(X, centers, max_iter=ITERATIONS, tol=0.0)

    return best_seconds(run, device, rounds) / ITERATIONS


def step_seconds(device: str, rounds: int, **size: int) -> float:
    """Of one step of the joint phase; of an epoch where the rows change."""
    from concrete_kmeans.experiments.runtime import measure

    X = clouds(size["rows"], size["features"], size["clusters"]).to(device)
    found = measure(
        "ckm",
        X,
        size["clusters"],
        size["restarts"],
        2 + rounds,
        encoder=HIDDEN,
        batch_size=size["batch"],
        precision="float32" if device == "cpu" else "tf32",
    )
    return float(found["fastest"]) / found["steps_per_epoch"]


def exponent(sizes: list[float], seconds: list[float]) -> float:
    """Slope of log seconds over log size, by least squares.

    >>> round(exponent([1, 10, 100], [3.0, 300.0, 30000.0]), 6)
    2.0
    """
    return float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])


def grown(
    what: str,
    first: int,
    sizes: dict[str, int],
    run: Callable[..., float],
    *,
    points: int,
    device: str,
    rounds: int,
) -> dict[str, Any]:
    """Seconds at sizes from ``first`` to a hundred times that."""
    values = [round(first * 10 ** (2 * i / (points - 1))) for i in range(points)]
    seconds = []
    for value in values:
        progress(f"{run.__name__.split('_')[0]}: {what} = {value:,}")
        own = sizes | {what: value}
        if what == "batch":
            own["rows"] = STEPS * value
        seconds.append(run(device, rounds, **own))
    if what == "rows" and run is step_seconds:  # a step knows nothing of them, an epoch does
        seconds = [s * (n // sizes["batch"]) for s, n in zip(seconds, values, strict=True)]
    half = len(values) // 2
    return {
        "sizes": values,
        "others": {key: value for key, value in sizes.items() if key != what},
        "seconds": seconds,
        "exponent": exponent(values, seconds),
        "exponent_upper_half": exponent(values[half:], seconds[half:]),
    }


def main() -> None:
    options = parser(__doc__)
    chosen = options.parse_args()
    warnings.simplefilter("ignore")  # a short run may collapse: only its time counts
    points, rounds = (3, 1) if chosen.quick else (5, 3)
    given = {"points": points, "device": chosen.device, "rounds": chosen.rounds or rounds}
    result: dict[str, Any] = {"command": "python benchmarks/growth.py", "hidden": HIDDEN}
    print(f"Growth of the cost over two orders of magnitude, {chosen.device}")
    for name, sizes, axes, run in (
        ("lloyd", LLOYD, LLOYD_FROM, lloyd_seconds),
        ("training", EPOCH, EPOCH_FROM, step_seconds),
    ):
        result[name] = {}
        for what, (first, others) in axes.items():
            row = grown(what, first, sizes | others, run, **given)
            result[name][what] = row
            print(
                f"  {name:8} {what:9} {row['sizes'][0]:>7,} to {row['sizes'][-1]:>9,}: "
                f"{1e3 * row['seconds'][0]:9.2f} to {1e3 * row['seconds'][-1]:9.2f} ms, "
                f"exponent {row['exponent']:5.2f}, {row['exponent_upper_half']:5.2f} at the end",
                flush=True,
            )
    if not all(math.isfinite(s) for part in ("lloyd", "training") for s in _all(result[part])):
        raise RuntimeError("a measurement is not finite")
    write("growth", result, quick=chosen.quick, device=chosen.device)


def _all(part: dict[str, Any]) -> list[float]:
    return [second for row in part.values() for second in row["seconds"]]


if __name__ == "__main__":
    main()
