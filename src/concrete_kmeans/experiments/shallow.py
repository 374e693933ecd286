"""k-means on features as they are: the methods compared, and one run of one of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import KMeans, kmeans_plusplus

from concrete_kmeans import metrics
from concrete_kmeans.estimators import ConcreteKMeans

__all__ = ["METHODS", "TITLES", "first_centers", "parameters", "run"]

Matrix: TypeAlias = NDArray[np.float64]
#: Makes an estimator of (n_clusters, first centres, seed, device).
Method: TypeAlias = Callable[[int, Any, int, str], Any]

METHODS: dict[str, Method] = {
    "km": lambda k, centers, seed, _device: KMeans(k, init=centers, n_init=1, random_state=seed),
    "lloyd": lambda k, centers, seed, device: ConcreteKMeans(
        k, init=centers, random_state=seed, device=device, algorithm="lloyd"
    ),
    "ckm": lambda k, centers, seed, device: ConcreteKMeans(
        k, init=centers, random_state=seed, device=device
    ),
}
TITLES = {"km": "k-means++", "lloyd": "exact Lloyd", "ckm": "CKM"}


def first_centers(X: Matrix, n_clusters: int, seed: int) -> Matrix:
    """Centres (K, D) by k-means++; every method starts a seed from the same."""
    centers, _ = kmeans_plusplus(X, n_clusters, random_state=seed)
    return np.asarray(centers)


def parameters(method: str, device: str) -> dict[str, Any]:
    """Parameters of a method that neither the data nor the seed decide, as JSON has them."""
    estimator = METHODS[method](1, None, 0, device)
    decided = {"n_clusters", "init", "random_state", "copy_x", "verbose"}
    given: Mapping[str, Any] = estimator.get_params()
    kept = {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in sorted(given.items())
        if name not in decided
    }
    kind = type(estimator)
    return {"class": f"{kind.__module__.partition('.')[0]}.{kind.__name__}", **kept}


def run(
    method: str, X: Matrix, y: NDArray[np.int64], n_clusters: int, seed: int, device: str
) -> dict[str, float]:
    """Scores, inertia, iterations and seconds of one seed."""
    centers = first_centers(X, n_clusters, seed)
    estimator = METHODS[method](n_clusters, centers, seed, device)
    start = time.perf_counter()
    estimator.fit(X)
    seconds = time.perf_counter() - start
    # Not inertia_: one sum for all methods, so that equal centres give an equal figure.
    residual = X - estimator.cluster_centers_[estimator.labels_]
    return {
        "seed": seed,
        **metrics.scores(y, estimator.labels_),
        "inertia": float(np.einsum("nd,nd->", residual, residual)),
        "n_iter": int(estimator.n_iter_),
        "seconds": round(seconds, 4),
    }
