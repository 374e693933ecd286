"""The data of the k-means benchmarks, kept as files while a benchmark runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

CASES: dict[str, dict[str, Any]] = {
    "mnist": {"title": "MNIST pixels, 70,000 x 784, k = 10", "n": 70_000, "d": 784, "k": 10},
    "million": {"title": "1,000,000 x 32, k = 100", "n": 1_000_000, "d": 32, "k": 100},
    "wide": {"title": "200,000 x 128, k = 1,000", "n": 200_000, "d": 128, "k": 1000},
}


def rows(name: str) -> np.ndarray:
    """Float32 rows: MNIST, or a mixture of k overlapping normal clouds."""
    case = CASES[name]
    if name == "mnist":
        from concrete_kmeans import datasets

        return np.ascontiguousarray(datasets.load("mnist").data, dtype=np.float32)
    rng = np.random.default_rng(0)
    means = rng.normal(size=(case["k"], case["d"])).astype(np.float32)
    noise = rng.normal(size=(case["n"], case["d"])).astype(np.float32)
    return noise + means[rng.integers(case["k"], size=case["n"])]


def store(name: str, folder: Path) -> dict[str, Any]:
    """Write rows and first centres (random rows) to files; the arguments of a contender."""
    X = rows(name)
    k = CASES[name]["k"]
    centers = X[np.random.default_rng(1).choice(len(X), k, replace=False)]
    np.save(folder / "rows.npy", X)
    np.save(folder / "centers.npy", centers)
    return {"rows": str(folder / "rows.npy"), "centers": str(folder / "centers.npy"), "k": k}
