"""Deep clustering: the methods compared, and all seeds of one of them as one stack."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.cluster import KMeans
from torch import Tensor

from concrete_kmeans import metrics
from concrete_kmeans.estimators import (
    DCN,
    DEC,
    DKM,
    IDEC,
    AutoencoderKMeans,
    DeepClusterer,
    DeepConcreteKMeans,
)
from concrete_kmeans.experiments.results import Record

__all__ = ["METHODS", "TITLES", "fit", "fit_kmeans", "record_of"]

#: Class and parameters of each method.
METHODS: dict[str, tuple[type[DeepClusterer], dict[str, Any]]] = {
    "ae+km": (AutoencoderKMeans, {}),
    "ae+mixture": (AutoencoderKMeans, {"init": "mixture"}),
    "ae+consensus": (AutoencoderKMeans, {"init": "consensus"}),
    "dec": (DEC, {}),
    "idec": (IDEC, {}),
    "dcn": (DCN, {}),
    "dkm": (DKM, {}),
    "ckm-paper": (DeepConcreteKMeans, {"objective": "paper"}),
    "ckm-k-means++": (DeepConcreteKMeans, {"init": "k-means++"}),
    "ckm-mixture": (DeepConcreteKMeans, {"init": "mixture"}),
    "ckm": (DeepConcreteKMeans, {}),
}
TITLES = {
    "km": "KM, scikit-learn",
    "ae+km": "AE+KM",
    "ae+mixture": "AE+mixture",
    "ae+consensus": "AE+consensus",
    "dec": "DEC",
    "idec": "IDEC",
    "dcn": "DCN",
    "dkm": "DKM",
    "ckm-paper": "CKM, as printed",
    "ckm-k-means++": "CKM, k-means++ start",
    "ckm-mixture": "CKM, mixture start",
    "ckm": "CKM",
}


def fit_kmeans(X: Any, y: Any, n_clusters: int, n_seeds: int) -> Record:
    """scikit-learn's k-means on the features as they are, the best of 10 starts by inertia."""
    X = X.cpu().numpy() if isinstance(X, Tensor) else X
    runs, start = [], time.perf_counter()
    for seed in range(n_seeds):
        fitted = KMeans(n_clusters, n_init=10, random_state=seed).fit(X)
        runs.append(
            {
                "seed": seed,
                **metrics.scores(y, fitted.labels_),
                "inertia": float(fitted.inertia_),
            }
        )
    return _record({"class": "sklearn.KMeans", "n_init": 10}, runs, time.perf_counter() - start)


def fit(
    method: str,
    X: Any,
    n_clusters: int,
    n_seeds: int,
    *,
    advance: Callable[[], None] | None = None,
    **parameters: Any,
) -> tuple[DeepClusterer, float]:
    """Seeds 0 to ``n_seeds - 1`` of a method, trained together; and the seconds they took."""
    kind, own = METHODS[method]
    callbacks = None if advance is None else [lambda _event: advance()]
    estimator = kind(
        n_clusters, n_init=n_seeds, random_state=0, callbacks=callbacks, **own | parameters
    )
    start = time.perf_counter()
    estimator.fit(X)
    return estimator, time.perf_counter() - start


def record_of(estimator: DeepClusterer, y: Any, seconds: float) -> Record:
    """Scores and label-free measures of every seed, and of the one kept without labels."""
    runs = []
    for restart in estimator.restarts_:
        labels = np.asarray(
            restart.labels.cpu() if isinstance(restart.labels, Tensor) else restart.labels
        )
        runs.append(
            {
                "seed": restart.seed,
                **metrics.scores(y, labels),
                "inertia": restart.inertia,
                "reconstruction": restart.reconstruction,
                "agreement": None if math.isnan(restart.agreement) else restart.agreement,
                "n_iter": restart.n_iter,
                "status": restart.status,
            }
        )
    told = estimator.get_params(deep=False)
    kept = {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in sorted(told.items())
        if isinstance(value, str | int | float | tuple | type(None))
        and name not in {"n_clusters", "random_state", "verbose", "device"}
    }
    record = _record({"class": type(estimator).__name__, **kept}, runs, seconds)
    return record | {"kept": int(estimator.best_restart_)}


def _record(parameters: Record, runs: list[Record], seconds: float) -> Record:
    scores = [{key: run[key] for key in ("nmi", "ari", "acc", "purity")} for run in runs]
    summary = {key: value._asdict() for key, value in metrics.summarize(scores).items()}
    return {
        "parameters": parameters,
        "summary": summary,
        "seconds": round(seconds, 2),
        "runs": runs,
    }
