"""A report's contents from a fitted estimator and its rows."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy import sparse
from scipy.stats import entropy
from sklearn.metrics import silhouette_score
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from concrete_kmeans import functional as F
from concrete_kmeans import metrics
from concrete_kmeans.data import as_rows
from concrete_kmeans.lloyd import assign
from concrete_kmeans.report import projection
from concrete_kmeans.report.contents import (
    Images,
    Items,
    KCurve,
    ReportData,
    Table,
    Texts,
    check_lengths,
    value_limits,
)
from concrete_kmeans.report.describing import scores_of_known

__all__ = ["collect", "embed", "label_free", "silhouette"]

#: Rows whose silhouette is computed.
SILHOUETTE_ROWS = 2000
#: Features without a name that are still shown as a table.
MAX_UNNAMED = 100
#: What is shown of a restart, of what an estimator keeps; in this order.
RESTART_COLUMNS = ("seed", "inertia", "reconstruction", "agreement", "n_iter", "status")


def collect(
    estimator: Any,
    X: Any = None,
    *,
    classes: Any = None,
    items: Items | Sequence[str] | None = None,
    ids: Sequence[str] | None = None,
    image_shape: Sequence[int] | None = None,
    title: str | None = None,
    k_curve: KCurve | None = None,
) -> ReportData:
    """Everything that a report shows of a fit.

    Parameters
    ----------
    estimator : fitted estimator of this package
    X : as in its ``fit``, optional
        The rows to show, those of the fit or others. Without them there is no map, and no telling
        which rows are typical: sizes, centres and training are shown.
    classes : sequence, optional
        Known class of each row; it scores the clusters and has no other part.
    items : Images, Texts, Table or sequence of str, optional
        What to show of a row. By default pictures, if a row of X is one, or the columns of X.
    ids : sequence of str, optional
        Names of the rows; their numbers by default.
    image_shape : (h, w), (1, h, w) or (3, h, w), optional
        Rows of X are pictures of this shape.
    title : str, optional
    k_curve : KCurve, optional

    Returns
    -------
    ReportData

    Examples
    --------
    >>> from concrete_kmeans import ConcreteKMeans
    >>> X = np.array([[1, 2], [1, 4], [1, 0], [10, 2], [10, 4], [10, 0]])
    >>> data = collect(ConcreteKMeans(2, random_state=0).fit(X), X)
    >>> data.map.shape, data.figures["Effective clusters"]
    ((6, 2), 2.0)
    """
    check_is_fitted(estimator)
    if image_shape is not None:
        _check_image_shape(image_shape, estimator.n_features_in_)
    K = len(estimator.cluster_centers_)
    labels = _host(estimator.labels_ if X is None else estimator.predict(X)).astype(np.int64)
    if isinstance(items, Sequence):
        items = Texts(items)
    check_lengths(len(labels), classes=classes, items=items, ids=ids)
    shape = tuple(image_shape or _image_shape(estimator, items))
    if items is None and X is not None:
        items = _items_of(estimator, X, shape)
    seen: dict[str, Any] = {}
    figures: dict[str, float] = {}
    trained_on = X is None or np.array_equal(labels, _host(estimator.labels_))
    inertia = float(estimator.inertia_)
    if X is not None:
        codes, distances = embed(estimator, X)
        seen = {
            "map": projection.project(codes),
            "map_caption": projection.caption(*codes.shape, coded=hasattr(estimator, "model_")),
            **_distance_and_doubt(distances, labels),
        }
        figures |= silhouette(codes, labels)
        if not trained_on:
            inertia = float(np.square(seen["distance"], dtype=np.float64).sum())
    figures |= label_free(estimator, labels, inertia)
    return ReportData(
        title=title or f"{_counted(len(labels), 'row')} in {_counted(K, 'cluster')}",
        subtitle=_subtitle(estimator),
        labels=labels,
        n_clusters=K,
        figures={name.replace("_", " ").capitalize(): value for name, value in figures.items()},
        classes=None if classes is None else _host(classes),
        items=items,
        ids=ids,
        centers=_center_pictures(estimator, shape, X) if shape else None,
        history=[dataclasses.asdict(event) for event in getattr(estimator, "history_", [])],
        **_restarts(estimator, X, classes if trained_on else None),
        k_curve=k_curve,
        **seen,
    )


def embed(estimator: Any, X: Any) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Codes (n, d) that a map is made of, and distances (n, K) to the centres."""
    if hasattr(estimator, "model_"):
        codes = torch.as_tensor(estimator.transform(X))
        centers = torch.as_tensor(estimator.cluster_centers_).to(codes)
        distances = F.squared_distances(codes, centers).sqrt_()
        return projection.reduced(_host(codes)), _host(distances)
    rows = X if sparse.issparse(X) else _floats(X)
    return projection.reduced(rows), _host(estimator.transform(X))


def _distance_and_doubt(
    distances: npt.NDArray[Any], labels: npt.NDArray[np.int64]
) -> dict[str, npt.NDArray[Any]]:
    """Of each row: how far its centre is, alone and over how far the next one is, if any."""
    own = np.take_along_axis(distances, labels[:, None], 1)[:, 0]
    if distances.shape[1] == 1:
        return {"distance": own}
    others = distances.copy()
    np.put_along_axis(others, labels[:, None], np.inf, 1)
    second = others.min(1)
    ratio = np.divide(own, second, out=np.ones_like(own), where=second > 0)
    return {"distance": own, "doubt": ratio.clip(0, 1)}


def silhouette(codes: npt.NDArray[np.float32], labels: npt.NDArray[np.int64]) -> dict[str, float]:
    """Of some of the rows, evenly spread; nothing where it is not defined."""
    some = projection.evenly(len(codes), SILHOUETTE_ROWS)
    if not 2 <= len(np.unique(labels[some])) < len(some):
        return {}
    return {"silhouette": float(silhouette_score(codes[some], labels[some]))}


def label_free(estimator: Any, labels: npt.NDArray[np.int64], inertia: float) -> dict[str, float]:
    """Figures of a fit that need no classes; those that are not numbers are left out."""
    sizes = np.bincount(labels, minlength=len(estimator.cluster_centers_))
    figures = {"effective_clusters": float(np.exp(entropy(sizes)))}
    if hasattr(estimator, "best_restart_"):
        best = estimator.restarts_[estimator.best_restart_]
        figures |= {"agreement": best.agreement, "reconstruction": best.reconstruction}
    figures["inertia"] = inertia
    return {name: value for name, value in figures.items() if math.isfinite(value)}


def _restarts(estimator: Any, X: Any, classes: Any) -> dict[str, Any]:
    """The restarts as rows of a table, their agreement, and which was kept."""
    restarts = getattr(estimator, "restarts_", [])
    labelings = _labelings(estimator, X)
    rows: list[Mapping[str, float | str]] = []
    for r, restart in enumerate(restarts):
        known = {name: getattr(restart, name, None) for name in RESTART_COLUMNS}
        row = {name: value for name, value in known.items() if value is not None}
        if classes is not None and labelings:
            row |= scores_of_known(classes, labelings[r])
        rows.append(row)
    best = getattr(estimator, "best_restart_", None)
    if best is None:  # after partial_fit alone there is none
        totals = [restart.inertia for restart in restarts]
        best = int(np.argmin(totals)) if totals else 0
    agreement = None
    if len(labelings) > 1:
        agreement = metrics.pairwise_ari(np.stack(labelings))
    return {"restarts": rows, "best_restart": best, "agreement": agreement}


def _labelings(estimator: Any, X: Any) -> list[npt.NDArray[Any]]:
    """Labels of every restart: of the rows of the fit, or for shallow k-means of X."""
    restarts = getattr(estimator, "restarts_", [])
    if hasattr(estimator, "model_"):
        return [_host(restart.labels) for restart in restarts]
    if X is None or not restarts:
        return []
    centers = torch.stack([torch.as_tensor(r.cluster_centers).cpu() for r in restarts])
    host = X.tocsr() if hasattr(X, "tocsr") else _floats(X)
    rows = as_rows(host, torch.device("cpu"))
    labels, _ = assign(rows, centers.to(rows.dtype))
    return list(_host(labels))


def _items_of(estimator: Any, X: Any, shape: tuple[int, ...]) -> Items | None:
    rows = _dense(X)
    if rows is None:
        return None
    if shape:
        return Images.from_rows(rows, shape)
    names = getattr(estimator, "feature_names_in_", None)
    unnamed = names is None or _only_count(names)
    if rows.ndim != 2 or (unnamed and rows.shape[1] > MAX_UNNAMED):
        return None
    if names is None:
        names = [f"feature {i}" for i in range(rows.shape[1])]
    return Table(rows, [str(name) for name in names])


def _only_count(names: Sequence[str]) -> bool:
    """Whether names are numbers after one and the same text, as those of an embedding's parts."""
    stem = str(names[0]).removesuffix("0")
    return all(name == f"{stem}{i}" for i, name in enumerate(names))


def _center_pictures(estimator: Any, shape: tuple[int, ...], X: Any) -> Images:
    """Centres as pictures; black and white are those of the rows, where these are known."""
    deep = hasattr(estimator, "decode_centers")
    centers = _host(estimator.decode_centers() if deep else estimator.cluster_centers_)
    rows = None if X is None else _dense(X)
    whole = rows is not None and rows.dtype == np.uint8
    limits = (0.0, 255.0) if whole else value_limits(centers if rows is None else rows)
    return Images.from_rows(centers, shape, limits)


def _image_shape(estimator: Any, items: Any) -> tuple[int, ...]:
    """Shape of a row that is a picture, by the fit or by what is shown of it, else ()."""
    shape: tuple[int, ...] = getattr(estimator, "feature_shape_", ())
    if len(shape) == 2 or (len(shape) == 3 and shape[0] in (1, 3)):
        return shape
    if isinstance(items, Images):
        _, h, w, *colors = items.pixels.shape
        shape = (*colors, h, w)
        return shape if math.prod(shape) == estimator.n_features_in_ else ()
    return ()


def _check_image_shape(shape: Sequence[int], n_features: int) -> None:
    three = len(shape) == 3 and shape[0] in (1, 3)
    if not (len(shape) == 2 or three) or math.prod(shape) != n_features:
        raise ValueError(
            f"image_shape must be (h, w), (1, h, w) or (3, h, w) with {n_features} values in all, "
            f"got {tuple(shape)}"
        )


def _subtitle(estimator: Any) -> str:
    n = len(getattr(estimator, "restarts_", []))
    return type(estimator).__name__ + (f", the best of {n} restarts" if n > 1 else "")


def _dense(X: Any) -> npt.NDArray[Any] | None:
    """X as an array on the host if it is one, a frame or a tensor."""
    if sparse.issparse(X) or not hasattr(X, "shape"):
        return np.asarray(X) if isinstance(X, list) else None
    return _host(X)


def _floats(X: Any) -> npt.NDArray[np.float32]:
    return np.ascontiguousarray(_host(X), dtype=np.float32)


def _counted(number: int, noun: str) -> str:
    """A number with its noun.

    >>> _counted(1, "row"), _counted(1797, "row")
    ('1 row', '1,797 rows')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _host(values: Any) -> npt.NDArray[Any]:
    return values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
