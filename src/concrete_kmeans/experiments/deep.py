"""Deep clustering: the methods compared, and all seeds of one of them as one stack."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from sklearn.cluster import KMeans
from torch import Tensor

from concrete_kmeans import metrics
from concrete_kmeans.data import Scaled, open_rows
from concrete_kmeans.estimators import (
    DCN,
    DEC,
    DKM,
    IDEC,
    AutoencoderKMeans,
    ConcreteKMeans,
    DeepClusterer,
    DeepConcreteKMeans,
)
from concrete_kmeans.estimators.deep import PRETRAIN_EPOCHS
from concrete_kmeans.estimators.methods import AUTO_BALANCE, AUTO_SIGMA2
from concrete_kmeans.experiments.results import Record

__all__ = [
    "METHODS",
    "SCORES",
    "TITLES",
    "autos_of",
    "fit",
    "fit_kmeans",
    "fit_lloyd",
    "lloyd",
    "make",
    "parameters_of",
    "predictions",
    "record_of",
    "record_of_one",
    "resolved",
    "timed_fit",
]

#: What every run is scored by.
SCORES = ("nmi", "ari", "acc", "purity")
#: Starts of k-means, of which the one of lowest inertia counts.
KMEANS_STARTS = 10

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
    "ckm-consensus": (DeepConcreteKMeans, {"choose": "consensus"}),
    "ckm-conv": (DeepConcreteKMeans, {"encoder": "conv", "augment": "image"}),
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
    "ckm-consensus": "CKM, consensus",
    "ckm-conv": "CKM, convolutions, augmented",
}
#: Parameters that say nothing about a method.
OF_THE_RUN = {"n_clusters", "random_state", "verbose", "device", "callbacks", "pretrained"}


def fit_kmeans(X: Any, y: Any, n_clusters: int, n_seeds: int) -> Record:
    """scikit-learn's k-means on the features as they are, the best of 10 starts by inertia."""
    X = X.cpu().numpy() if isinstance(X, Tensor) else X
    runs, start = [], time.perf_counter()
    for seed in range(n_seeds):
        fitted = KMeans(n_clusters, n_init=KMEANS_STARTS, random_state=seed).fit(X)
        runs.append(
            {
                "seed": seed,
                **metrics.scores(y, fitted.labels_),
                "inertia": float(fitted.inertia_),
            }
        )
    parameters = {"class": "sklearn.KMeans", "n_init": KMEANS_STARTS}
    return _record(parameters, runs, time.perf_counter() - start)


def fit_lloyd(X: Any, y: Any, n_clusters: int, n_seeds: int, *, scored: Any = None) -> Record:
    """Exact k-means where the rows are, the best of 10 starts by inertia.

    ``y`` are the classes of the rows ``scored``, by default of those of ``X``.
    """
    runs, start = [], time.perf_counter()
    for seed in range(n_seeds):
        fitted = lloyd(n_clusters, seed).fit(X)
        labels = fitted.labels_ if scored is None else fitted.predict(scored)
        runs.append({"seed": seed, **metrics.scores(y, labels), "inertia": float(fitted.inertia_)})
    return _record(parameters_of(lloyd(n_clusters, 0)), runs, time.perf_counter() - start)


def lloyd(n_clusters: int, seed: int) -> ConcreteKMeans:
    """Exact k-means from 10 starts, not fitted yet."""
    # starts are seeded by consecutive numbers: neighbouring seeds would share nine of ten
    first = seed * KMEANS_STARTS
    return ConcreteKMeans(n_clusters, algorithm="lloyd", n_init=KMEANS_STARTS, random_state=first)


def make(method: str, n_clusters: int, n_seeds: int, **parameters: Any) -> DeepClusterer:
    """Seeds 0 to ``n_seeds - 1`` of a method as one estimator, not fitted yet."""
    kind, own = METHODS[method]
    return kind(n_clusters, n_init=n_seeds, random_state=0, **own | parameters)


def timed_fit(estimator: DeepClusterer, X: Any) -> float:
    """Fit, and return the seconds it took."""
    start = time.perf_counter()
    estimator.fit(X)
    return time.perf_counter() - start


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
    callbacks = None if advance is None else [lambda _event: advance()]
    estimator = make(method, n_clusters, n_seeds, callbacks=callbacks, **parameters)
    return estimator, timed_fit(estimator, X)


def record_of(
    estimator: DeepClusterer, y: Any, seconds: float, *, scored: Tensor | None = None
) -> Record:
    """Scores and label-free measures of every seed, and which was kept without labels.

    ``y`` are the classes of the rows ``scored``, by default of those of the fit.
    """
    found = [restart.labels for restart in estimator.restarts_]
    labels = found if scored is None else predictions(estimator, scored)
    runs = [
        {
            "seed": restart.seed,
            **metrics.scores(y, own),
            "inertia": restart.inertia,
            "reconstruction": restart.reconstruction,
            "agreement": None if math.isnan(restart.agreement) else restart.agreement,
            "n_iter": restart.n_iter,
            "status": restart.status,
        }
        for restart, own in zip(estimator.restarts_, labels, strict=True)
    ]
    record = _record(parameters_of(estimator), runs, seconds)
    return record | {"kept": int(estimator.best_restart_)}


def record_of_one(
    estimator: DeepClusterer, y: Any, seconds: float, *, scored: Tensor | None = None
) -> Record:
    """Scores of the one result that an estimator made of all seeds; as :func:`record_of`."""
    labels = estimator.labels_ if scored is None else estimator.predict(scored)
    run = {"seeds": [restart.seed for restart in estimator.restarts_], **metrics.scores(y, labels)}
    return _record(parameters_of(estimator), [run], seconds)


def predictions(estimator: DeepClusterer, X: Tensor) -> Tensor:
    """Clusters of rows by each restart, (R, N); ``predict`` asks only the one that was kept."""
    model = estimator.model_
    rows = open_rows(X, device=X.device, dtype=model.centers.dtype).rows
    return model.assign(Scaled(rows, model.scaling))[0]


def parameters_of(estimator: Any) -> Record:
    """Class and parameters that neither the data nor the seeds decide, ready for JSON."""
    kept = {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in sorted(estimator.get_params(deep=False).items())
        if isinstance(value, str | int | float | tuple | list | type(None))
        and name not in OF_THE_RUN
    }
    return {"class": type(estimator).__name__, **kept}


def autos_of(estimator: DeepClusterer) -> Record:
    """What each ``"auto"`` of an estimator stands for, where the data do not decide."""
    stands_for = asdict(estimator._method_defaults()) | {"pretrain_epochs": PRETRAIN_EPOCHS}  # noqa: SLF001
    if isinstance(estimator, DeepConcreteKMeans):
        stands_for["balance"] = AUTO_BALANCE[estimator.objective]
        stands_for["sigma"] = AUTO_SIGMA2[estimator.objective] ** 0.5
    told = estimator.get_params(deep=False)
    return {
        name: value
        for name, value in sorted(stands_for.items())
        if isinstance(told.get(name, "auto"), str) and told.get(name, "auto") == "auto"
    }


def resolved(estimator: DeepClusterer) -> Record:
    """What a fit decided by the data: network, scaling, and the steps of its phases at most."""
    return {
        "encoder": estimator.model_.network.description()["encoder"],
        "scale": estimator.model_.scaling.kind,
        "steps": {event.phase: event.n_steps for event in estimator.history_},
    }


def _record(parameters: Record, runs: list[Record], seconds: float) -> Record:
    scores = [{key: run[key] for key in SCORES} for run in runs]
    summary = {key: value._asdict() for key, value in metrics.summarize(scores).items()}
    return {
        "parameters": parameters,
        "summary": summary,
        "seconds": round(seconds, 2),
        "runs": runs,
    }
