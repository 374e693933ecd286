"""Lloyd's algorithm from the same centres: seconds an iteration, against every peer.

``python benchmarks/lloyd.py`` writes ``results/lloyd.json``.
"""

from __future__ import annotations

import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from cases import CASES, store
from measure import compare, parser, serve, timed, write

ITERATIONS = 20
SLOW_ITERATIONS = 2  # of peers that take minutes; kmeans-pytorch has no cap but after the first


def _inertia(X: np.ndarray, centers: np.ndarray, labels: np.ndarray) -> float:
    return float(
        sum(
            np.square(X[i : i + 4096] - centers[labels[i : i + 4096]], dtype=np.float64).sum()
            for i in range(0, len(X), 4096)
        )
    )


def concrete_kmeans(rows: str, centers: str, k: int) -> dict[str, Any]:
    import torch

    from concrete_kmeans.lloyd import lloyd

    X, C = torch.from_numpy(np.load(rows)), torch.from_numpy(np.load(centers))
    lloyd(X[: 20 * k], C, max_iter=2)

    def run() -> dict[str, Any]:
        result = lloyd(X, C, max_iter=ITERATIONS, tol=0.0)
        return {"iterations": int(result.n_iter), "inertia": float(result.inertia)}

    return timed(run)


def scikit_learn(rows: str, centers: str, k: int, algorithm: str = "lloyd") -> dict[str, Any]:
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    X, C = np.load(rows), np.load(centers)
    warnings.simplefilter("ignore", ConvergenceWarning)
    KMeans(k, init=C, n_init=1, max_iter=2, algorithm=algorithm).fit(X[: 20 * k])

    def run() -> dict[str, Any]:
        fit = KMeans(k, init=C, n_init=1, max_iter=ITERATIONS, tol=0.0, algorithm=algorithm).fit(X)
        return {"iterations": fit.n_iter_, "inertia": fit.inertia_}

    return timed(run)


def scikit_learn_elkan(rows: str, centers: str, k: int) -> dict[str, Any]:
    return scikit_learn(rows, centers, k, "elkan")


def faiss(rows: str, centers: str, k: int) -> dict[str, Any]:
    import faiss as library

    X, C = np.load(rows), np.load(centers)
    library.IndexFlatL2(X.shape[1]).add(C)

    def run() -> dict[str, Any]:
        kmeans = library.Kmeans(
            X.shape[1],
            k,
            niter=ITERATIONS,
            min_points_per_centroid=1,
            max_points_per_centroid=10**9,
            seed=0,
        )
        kmeans.train(X, init_centroids=C)
        distances, _ = kmeans.index.search(X, 1)
        return {"iterations": ITERATIONS, "inertia": float(distances.sum(dtype=np.float64))}

    return timed(run)


def fast_pytorch_kmeans(rows: str, centers: str, k: int) -> dict[str, Any]:
    import torch
    from fast_pytorch_kmeans import KMeans

    X, C = torch.from_numpy(np.load(rows)), torch.from_numpy(np.load(centers))

    def run() -> dict[str, Any]:
        fit = KMeans(k, max_iter=SLOW_ITERATIONS, tol=0.0)
        labels = fit.fit_predict(X, centroids=C.clone())
        return {
            "iterations": SLOW_ITERATIONS,
            "inertia": _inertia(X.numpy(), fit.centroids.numpy(), labels.numpy()),
        }

    return timed(run)


def kmeans_pytorch(rows: str, centers: str, k: int) -> dict[str, Any]:
    import kmeans_pytorch as library
    import torch

    X, C = torch.from_numpy(np.load(rows)), torch.from_numpy(np.load(centers))
    library.initialize = lambda *_: C.clone()

    def run() -> dict[str, Any]:
        labels, found = library.kmeans(X, k, tol=float("inf"))
        return {"iterations": 1, "inertia": _inertia(X.numpy(), found.numpy(), labels.numpy())}

    return timed(run)


def torch_kmeans(rows: str, centers: str, k: int) -> dict[str, Any]:
    import torch
    from torch_kmeans import KMeans

    X, C = torch.from_numpy(np.load(rows)), torch.from_numpy(np.load(centers))

    def run() -> dict[str, Any]:
        model = KMeans(n_clusters=k, num_init=1, max_iter=SLOW_ITERATIONS, tol=0.0, verbose=False)
        result = model(X[None], centers=C[None])
        return {
            "iterations": SLOW_ITERATIONS,
            "inertia": _inertia(X.numpy(), result.centers[0].numpy(), result.labels[0].numpy()),
        }

    return timed(run)


CONTENDERS = {
    "concrete-kmeans": concrete_kmeans,
    "scikit-learn": scikit_learn,
    "scikit-learn (elkan)": scikit_learn_elkan,
    "faiss": faiss,
    "fast-pytorch-kmeans": fast_pytorch_kmeans,
    "kmeans-pytorch": kmeans_pytorch,
    "torch-kmeans": torch_kmeans,
}


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--only", help="only these contenders, separated by commas")
    chosen = options.parse_args()
    contenders = chosen.only.split(",") if chosen.only else list(CONTENDERS)
    result: dict[str, Any] = {"command": "python benchmarks/lloyd.py", "cases": {}}
    for name in chosen.cases.split(",") if chosen.cases else CASES:
        with tempfile.TemporaryDirectory() as folder:
            arguments = store(name, Path(folder))
            summary = compare(__file__, contenders, arguments, rounds=chosen.rounds, timeout=300)
        for row in summary.values():
            if "seconds" in row:
                row["seconds_per_iteration"] = row["seconds"] / row["iterations"]
        base = summary["scikit-learn"]["seconds_per_iteration"]
        print(CASES[name]["title"])
        for contender, row in summary.items():
            if "error" in row:
                print(f"  {contender:22} {row['error']}")
                continue
            row["ratio_to_scikit_learn"] = row["seconds_per_iteration"] / base
            print(
                f"  {contender:22} {1e3 * row['seconds_per_iteration']:9.1f} ms an iteration, "
                f"{row['ratio_to_scikit_learn']:6.2f} x scikit-learn, "
                f"{row['extra_mb']:8.1f} MB more, inertia {row['inertia']:.8g}"
            )
        result["cases"][name] = {"title": CASES[name]["title"], "contenders": summary}
    if not (chosen.only or chosen.cases):
        print(f"written to {write('lloyd', result).name}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--contender"]:
        serve(CONTENDERS)
    else:
        main()
