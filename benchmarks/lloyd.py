"""Lloyd's algorithm from the same centres: seconds an iteration, against every peer.

``python benchmarks/lloyd.py`` writes ``results/lloyd.json``. With ``--device cuda`` the peers are
flash-kmeans and a plain loop of torch's operations, chunked so that it fits.
"""

from __future__ import annotations

import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from cases import CASES, store
from measure import compare, merged, parser, serve, synchronize, timed

ITERATIONS = 20
SLOW_ITERATIONS = 2  # of peers that take minutes; kmeans-pytorch has no cap but after the first


def _inertia(X: np.ndarray, centers: np.ndarray, labels: np.ndarray) -> float:
    return float(
        sum(
            np.square(X[i : i + 4096] - centers[labels[i : i + 4096]], dtype=np.float64).sum()
            for i in range(0, len(X), 4096)
        )
    )


def _tensors(rows: str, centers: str, device: str) -> tuple[Any, Any]:
    import torch

    X, C = torch.from_numpy(np.load(rows)), torch.from_numpy(np.load(centers))
    return X.to(device), C.to(device)


def concrete_kmeans(rows: str, centers: str, k: int, device: str = "cpu") -> dict[str, Any]:
    from concrete_kmeans.lloyd import lloyd

    X, C = _tensors(rows, centers, device)
    if device == "cpu":
        lloyd(X[: 20 * k], C, max_iter=2)
    else:  # once, so that every kernel that is needed is compiled
        lloyd(X, C, max_iter=ITERATIONS, tol=0.0)
        synchronize(device)

    def run() -> dict[str, Any]:
        result = lloyd(X, C, max_iter=ITERATIONS, tol=0.0)
        return {"iterations": int(result.n_iter), "inertia": float(result.inertia)}

    return timed(run)


def plain_torch(rows: str, centers: str, k: int, device: str = "cpu") -> dict[str, Any]:
    """Distances, arg min, sums by index: as one would write it."""
    import torch

    X, C = _tensors(rows, centers, device)
    size = max(1, 2**28 // (4 * k))

    def labels_of(centers: torch.Tensor) -> torch.Tensor:
        return torch.cat([torch.cdist(part, centers).argmin(1) for part in X.split(size)])

    def iterate(steps: int) -> torch.Tensor:
        found = C
        for _ in range(steps):
            labels = labels_of(found)
            sums = torch.zeros_like(found).index_add_(0, labels, X)
            counts = torch.bincount(labels, minlength=k).unsqueeze(1)
            found = torch.where(counts > 0, sums / counts.clamp_min(1), found)
        return found

    iterate(1)
    synchronize(device)

    def run() -> dict[str, Any]:
        found = iterate(ITERATIONS)
        distance = sum(
            (part - found[label]).square().sum(dtype=torch.float64)
            for part, label in zip(X.split(size), labels_of(found).split(size), strict=True)
        )
        return {"iterations": ITERATIONS, "inertia": float(distance)}

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


def flash_kmeans(rows: str, centers: str, k: int, device: str = "cuda") -> dict[str, Any]:
    """In TF32, as it multiplies float32; the inertia is that of the centres, labelled anew."""
    import flash_kmeans as library
    import torch

    X, C = _tensors(rows, centers, device)

    def iterate(steps: int) -> tuple[Any, Any]:
        # no shift of centres is below a tolerance of zero: all steps are taken
        _, found, taken = library.batch_kmeans_Euclid(
            X[None], k, max_iters=steps, tol=0.0, init_centroids=C[None].clone()
        )
        return found[0], taken

    def labels_of(centers: torch.Tensor) -> torch.Tensor:
        from flash_kmeans.assign_euclid_triton import euclid_assign_triton

        squared = X.square().sum(-1)[None]
        return euclid_assign_triton(X[None], centers[None], squared)[0].long()

    labels_of(iterate(2)[0])
    synchronize(device)

    def run() -> dict[str, Any]:
        found, taken = iterate(ITERATIONS)
        distance = (X - found[labels_of(found)]).square().sum(dtype=torch.float64)
        return {"iterations": int(taken), "inertia": float(distance)}

    return timed(run)


CONTENDERS = {
    "concrete-kmeans": concrete_kmeans,
    "scikit-learn": scikit_learn,
    "scikit-learn (elkan)": scikit_learn_elkan,
    "faiss": faiss,
    "fast-pytorch-kmeans": fast_pytorch_kmeans,
    "kmeans-pytorch": kmeans_pytorch,
    "torch-kmeans": torch_kmeans,
    "flash-kmeans": flash_kmeans,
    "plain torch": plain_torch,
}
#: Who runs on a GPU.
ON_CUDA = ("concrete-kmeans", "flash-kmeans", "plain torch")
#: Those that are far behind: not asked in a quick run.
SLOW = ("kmeans-pytorch", "torch-kmeans")
#: Nor these, with a thousand clusters: the longest of all, and behind its twin.
NOT_QUICK = {"wide": ("scikit-learn (elkan)",)}


def chosen_contenders(only: str | None, device: str, quick: bool, case: str = "") -> list[str]:
    """Who runs on the data of a case."""
    if only:
        return only.split(",")
    if device != "cpu":
        return list(ON_CUDA)
    left_out = {"flash-kmeans", "plain torch"}
    if quick:
        left_out |= {*SLOW, *NOT_QUICK.get(case, ())}
    return [name for name in CONTENDERS if name not in left_out]


def compared(name: str, summary: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Seconds an iteration, as a ratio to scikit-learn, or to the plain loop where that is not."""
    base = summary.get("scikit-learn") or summary.get("plain torch") or {}
    for row in summary.values():
        if "seconds" in row:
            row["seconds_per_iteration"] = row["seconds"] / row["iterations"]
    print(CASES[name]["title"])
    for contender, row in summary.items():
        if "error" in row:
            print(f"  {contender:22} {row['error']}")
            continue
        line = f"  {contender:22} {1e3 * row['seconds_per_iteration']:9.2f} ms an iteration, "
        if "seconds" in base:
            key = "ratio_to_scikit_learn" if "scikit-learn" in summary else "ratio_to_plain_torch"
            row[key] = row["seconds_per_iteration"] / base["seconds_per_iteration"]
            line += f"{row[key]:6.2f} x {key[9:].replace('_', '-')}, "
        print(f"{line}{row['extra_mb']:8.1f} MB more, inertia {row['inertia']:.8g}")
    return {"title": CASES[name]["title"], "contenders": summary}


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--only", help="only these contenders, separated by commas; not written")
    chosen = options.parse_args()
    result: dict[str, Any] = {"command": "python benchmarks/lloyd.py", "cases": {}}
    print(f"Lloyd from given centres, {ITERATIONS} iterations, {chosen.device}")
    for name in chosen.cases.split(",") if chosen.cases else CASES:
        rounds = chosen.rounds or (1 if chosen.quick else 5)
        contenders = chosen_contenders(chosen.only, chosen.device, chosen.quick, name)
        with tempfile.TemporaryDirectory() as folder:
            arguments, about_rows = store(name, Path(folder))
            if chosen.device != "cpu":
                arguments["device"] = chosen.device
            summary = {}
            for slow in (False, True):  # those that take minutes run once
                asked = [contender for contender in contenders if (contender in SLOW) == slow]
                most = 1 if slow else rounds
                summary |= compare(__file__, asked, arguments, rounds=most, timeout=300)
        result["cases"][name] = compared(name, summary) | about_rows
    if not chosen.only:
        merged("lloyd", "cases", result, quick=chosen.quick, device=chosen.device)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--contender"]:
        serve(CONTENDERS)
    else:
        main()
