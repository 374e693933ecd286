"""k-means from nothing to centres: ``ConcreteKMeans`` against scikit-learn, defaults throughout.

``python benchmarks/shallow.py`` writes ``results/shallow.json``.
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
from measure import ask, parser, serve, timed, write


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
        return ConcreteKMeans(k, algorithm="lloyd", max_iter=300, random_state=seed)

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


def main() -> None:
    chosen = parser(__doc__).parse_args()
    result: dict[str, Any] = {"command": "python benchmarks/shallow.py", "cases": {}}
    for name in chosen.cases.split(",") if chosen.cases else ("mnist", "million"):
        runs: dict[str, list[dict[str, Any]]] = {contender: [] for contender in CONTENDERS}
        with tempfile.TemporaryDirectory() as folder:
            arguments = store(name, Path(folder))
            for seed in range(chosen.rounds):
                for contender, done in runs.items():
                    done.append(ask(__file__, contender, arguments | {"seed": seed}, 600))
        print(f"{CASES[name]['title']}: {chosen.rounds} seeds")
        rows: dict[str, Any] = {}
        base = {
            key: statistics.mean(run[key] for run in runs["KMeans"])
            for key in ("seconds", "inertia")
        }
        for contender, done in runs.items():
            mean = {key: statistics.mean(run[key] for run in done) for key in base}
            ratios = [
                run["inertia"] / other["inertia"]
                for run, other in zip(done, runs["KMeans"], strict=True)
            ]
            rows[contender] = {
                "seconds": mean["seconds"],
                "seconds_all": [round(run["seconds"], 3) for run in done],
                "extra_mb": round(max(run["extra_mb"] for run in done), 1),
                "time_ratio": mean["seconds"] / base["seconds"],
                "inertia_ratio": mean["inertia"] / base["inertia"],
                "worst_inertia_ratio": max(ratios),
                "inertia_all": [run["inertia"] for run in done],
            }
            print(
                f"  {contender:24} {mean['seconds']:7.2f} s, "
                f"{rows[contender]['time_ratio']:5.2f} x "
                f"KMeans; inertia {rows[contender]['inertia_ratio']:.4f} x KMeans (worst seed "
                f"{max(ratios):.4f}); {rows[contender]['extra_mb']:.0f} MB more"
            )
        result["cases"][name] = {
            "title": CASES[name]["title"],
            "seeds": chosen.rounds,
            "contenders": rows,
        }
    if not chosen.cases:
        print(f"written to {write('shallow', result).name}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--contender"]:
        serve(CONTENDERS)
    else:
        main()
