"""k-means from nothing to centres: k-means++ to convergence, and ``ConcreteKMeans`` by gradients.

``python benchmarks/shallow.py`` writes ``results/shallow.json``. Both exact solvers stop by the
same rule (``tol=1e-4``, scikit-learn's default); all else is at its default.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from cases import CASES, store
from measure import ask, merged, parser, progress, serve, timed


def _fit(make: Any, rows: str, k: int, seed: int) -> dict[str, Any]:
    X = np.load(rows)
    make(k, seed).fit(X[: 20 * k])

    def run() -> dict[str, Any]:
        fit = make(k, seed).fit(X)
        return {"iterations": int(fit.n_iter_), "inertia": float(fit.inertia_)}

    return timed(run)


def concrete_kmeans(rows: str, centers: str, k: int, seed: int) -> dict[str, Any]:  # noqa: ARG001
    from concrete_kmeans import ConcreteKMeans

    return _fit(lambda k, seed: ConcreteKMeans(k, random_state=seed), rows, k, seed)


def exact(rows: str, centers: str, k: int, seed: int) -> dict[str, Any]:  # noqa: ARG001
    from concrete_kmeans import ConcreteKMeans

    def make(k: int, seed: int) -> ConcreteKMeans:
        return ConcreteKMeans(k, algorithm="lloyd", max_iter=300, tol=1e-4, random_state=seed)

    return _fit(make, rows, k, seed)


def scikit_learn(rows: str, centers: str, k: int, seed: int) -> dict[str, Any]:  # noqa: ARG001
    from sklearn.cluster import KMeans

    warnings.simplefilter("ignore")
    return _fit(lambda k, seed: KMeans(k, n_init=1, random_state=seed), rows, k, seed)


def mini_batch(rows: str, centers: str, k: int, seed: int) -> dict[str, Any]:  # noqa: ARG001
    from sklearn.cluster import MiniBatchKMeans

    warnings.simplefilter("ignore")
    return _fit(lambda k, seed: MiniBatchKMeans(k, n_init=1, random_state=seed), rows, k, seed)


CONTENDERS = {
    "ConcreteKMeans": concrete_kmeans,
    "ConcreteKMeans (lloyd)": exact,
    "KMeans": scikit_learn,
    "MiniBatchKMeans": mini_batch,
}
#: Seeds of a case (with 1,000 clusters KMeans takes a minute a seed), and of the slowest contender.
SEEDS = {"mnist": 10, "million": 10, "wide": 10}
FEWER = {"MiniBatchKMeans": 3}
#: Not asked there: a gradient method with 1,000 clusters is not what this case is about.
NOT_ASKED = {"wide": ("ConcreteKMeans", "MiniBatchKMeans")}
#: Not in a quick run: they take a minute or more.
NOT_QUICK = ("wide", "MiniBatchKMeans")


def summarised(runs: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Means over the seeds, beside those of KMeans with the same seeds."""
    rows: dict[str, Any] = {}
    for contender, done in runs.items():
        if "error" in done[-1]:
            rows[contender] = done[-1]
            continue
        same = runs["KMeans"][: len(done)]
        mean = {
            key: statistics.mean(run[key] for run in done)
            / statistics.mean(run[key] for run in same)
            for key in ("seconds", "inertia")
        }
        ratios = [run["inertia"] / other["inertia"] for run, other in zip(done, same, strict=True)]
        rows[contender] = {
            "seconds": statistics.mean(run["seconds"] for run in done),
            "seconds_all": [round(run["seconds"], 3) for run in done],
            "extra_mb": round(max(run["extra_mb"] for run in done), 1),
            "iterations_all": [run["iterations"] for run in done],
            "time_ratio": mean["seconds"],
            "inertia_ratio": mean["inertia"],
            "worst_inertia_ratio": max(ratios),
            "inertia_all": [run["inertia"] for run in done],
        }
        print(
            f"  {contender:24} {rows[contender]['seconds']:7.2f} s, "
            f"{mean['seconds']:5.2f} x KMeans; inertia {mean['inertia']:.4f} x KMeans "
            f"(worst seed {max(ratios):.4f}); {rows[contender]['extra_mb']:.0f} MB more"
        )
    return rows


def main() -> None:
    chosen = parser(__doc__).parse_args()
    if chosen.device != "cpu":
        sys.exit(
            "shallow: the peers run on the CPU only; on a GPU, lloyd compares with a plain loop"
        )
    print("k-means++ to convergence")
    left_out = NOT_QUICK if chosen.quick else ()
    cases = chosen.cases.split(",") if chosen.cases else [c for c in CASES if c not in left_out]
    for name in cases:
        seeds = chosen.rounds or (1 if chosen.quick else SEEDS[name])
        asked = [c for c in CONTENDERS if c not in (*left_out, *NOT_ASKED.get(name, ()))]
        runs: dict[str, list[dict[str, Any]]] = {contender: [] for contender in asked}
        with tempfile.TemporaryDirectory() as folder:
            arguments, about_rows = store(name, Path(folder))
            for seed in range(seeds):
                for contender, done in runs.items():
                    if seed < FEWER.get(contender, seeds):
                        progress(f"{name}, seed {seed}: {contender}")
                        done.append(ask(__file__, contender, arguments | {"seed": seed}, 600))
        print(f"{CASES[name]['title']}: {seeds} seeds")
        case = {"title": CASES[name]["title"], "seeds": seeds, "contenders": summarised(runs)}
        case |= about_rows
        result = {"command": "python benchmarks/shallow.py", "cases": {name: case}}
        merged("shallow", "cases", result, quick=chosen.quick, device="cpu")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--contender"]:
        serve(CONTENDERS)
    else:
        main()
