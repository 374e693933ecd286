"""What sets a cluster apart: members, words, features, classes; and the course of training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import sparse
from scipy.optimize import linear_sum_assignment
from sklearn.feature_extraction.text import TfidfVectorizer

from concrete_kmeans import metrics
from concrete_kmeans.metrics import _is_missing
from concrete_kmeans.report.projection import evenly

__all__ = [
    "Classes",
    "Curve",
    "Feature",
    "Matched",
    "curves",
    "extremes",
    "features_apart",
    "matched",
    "most_frequent",
    "most_telling",
    "named_classes",
    "scores_of_known",
    "words_apart",
]

#: Texts, and characters of each, that words are counted in.
MAX_TEXTS, MAX_CHARACTERS = 20_000, 2_000
#: Words of at least two letters; numbers tell little.
WORD = r"(?u)\b[^\W\d_]{2,}\b"
#: Names of the class of rows that have none, and of those too many to be shown.
UNKNOWN, OTHERS = "unknown", "all others"


class Feature(NamedTuple):
    """Of a cluster, against all other rows."""

    name: str
    difference: float
    """Mean inside less mean outside, in standard deviations of all rows."""
    inside: float
    outside: float


class Curve(NamedTuple):
    """A part of the loss over all phases of the training."""

    name: str
    steps: list[int]
    """Counted through all phases."""
    phases: list[str]
    values: list[list[float]]
    """At each of ``steps``, one for each restart."""


def curves(history: Sequence[Mapping[str, Any]]) -> list[Curve]:
    """Parts of the loss, in the order in which they appear."""
    found: dict[str, Curve] = {}
    offset, last, phase = 0, 0, None
    for event in history:
        if event["phase"] != phase:
            offset, phase = offset + last, event["phase"]
        last = event["step"]
        for name, values in event["losses"].items():
            curve = found.setdefault(name, Curve(name, [], [], []))
            curve.steps.append(offset + last)
            curve.phases.append(event["phase"])
            curve.values.append([float(value) for value in values])
    return list(found.values())


class Classes(NamedTuple):
    """Known classes, by number."""

    names: list[str]
    codes: npt.NDArray[np.int64]
    """Of each row (n,)."""
    n_known: int
    """The name after so many, if there is one, is that of the rows without a class."""


class Matched(NamedTuple):
    """Classes and clusters matched one to one, so that most rows are right."""

    counts: npt.NDArray[np.int64]
    """Rows of each class in each cluster (C, K)."""
    cluster_of: list[int | None]
    """Of each class."""
    order: npt.NDArray[np.int64]
    """Clusters (K,) in the order of their classes; what is left over comes last, fullest first."""


def named_classes(classes: Any) -> Classes:
    """Classes in their order; rows without one, None or NaN, come last.

    >>> named_classes(["b", None, "a", "b"])
    Classes(names=['a', 'b', 'unknown'], codes=array([1, 2, 0, 1]), n_known=2)
    """
    listed = classes.tolist() if hasattr(classes, "tolist") else list(classes)
    missing = [_is_missing(value) for value in listed]
    distinct = {value for value, gone in zip(listed, missing, strict=True) if not gone}
    try:
        order = sorted(distinct)
    except TypeError:  # of mixed kinds
        order = sorted(distinct, key=str)
    number = {value: i for i, value in enumerate(order)}
    codes = [
        len(order) if gone else number[value] for value, gone in zip(listed, missing, strict=True)
    ]
    names = [str(value) for value in order] + [UNKNOWN] * any(missing)
    return Classes(names, np.array(codes, np.int64), len(order))


def scores_of_known(classes: Any, labels: npt.NDArray[Any]) -> dict[str, float]:
    """:func:`concrete_kmeans.metrics.scores` of the rows that have a class; {} if none has."""
    codes, n_known = named_classes(classes)[1:]
    known = codes < n_known
    return metrics.scores(codes[known], labels[known]) if known.any() else {}


def matched(classes: Classes, labels: npt.NDArray[np.int64], n_clusters: int) -> Matched:
    """Classes matched with clusters; rows without a class have no part in it."""
    counts = np.zeros((len(classes.names), n_clusters), np.int64)
    np.add.at(counts, (classes.codes, labels), 1)
    own_class, own = linear_sum_assignment(counts[: classes.n_known], maximize=True)
    cluster_of: list[int | None] = [None] * len(classes.names)
    for c, k in zip(own_class.tolist(), own.tolist(), strict=True):
        cluster_of[c] = k
    rest = np.setdiff1d(np.arange(n_clusters), own)
    rest = rest[np.argsort(-counts[:, rest].sum(0), kind="stable")]
    return Matched(counts, cluster_of, np.concatenate([own, rest]))


def most_frequent(classes: Classes, most: int) -> Classes:
    """The same with at most ``most`` names: the rarest are one, which is like having none.

    >>> most_frequent(named_classes(["a", "b", "b", "c", "c"]), 3).names
    ['a', 'b', 'c']
    >>> most_frequent(named_classes(["a", "b", "b", "c", "d"]), 3)
    Classes(names=['a', 'b', 'all others'], codes=array([0, 1, 1, 2, 2]), n_known=2)
    """
    names, codes, n_known = classes
    if len(names) <= most:
        return classes
    sizes = np.bincount(codes, minlength=len(names))[:n_known]
    kept = np.sort(np.argsort(-sizes, kind="stable")[: most - 1])
    renumbered = np.full(len(names), len(kept), np.int64)
    renumbered[kept] = np.arange(len(kept))
    return Classes([*(names[c] for c in kept), OTHERS], renumbered[codes], len(kept))


def extremes(
    values: npt.NDArray[Any], labels: npt.NDArray[np.int64], n_clusters: int, most: int
) -> list[list[int]]:
    """Numbers of the rows of smallest value in each cluster, smallest first."""
    order = np.lexsort((values, labels))
    ends = np.cumsum(np.bincount(labels, minlength=n_clusters))
    starts = ends - np.bincount(labels, minlength=n_clusters)
    return [order[a : min(a + most, b)].tolist() for a, b in zip(starts, ends, strict=True)]


def words_apart(
    texts: Sequence[str], labels: npt.NDArray[np.int64], n_clusters: int, most: int
) -> list[list[str]]:
    """Words whose mean tf-idf inside a cluster exceeds that outside most, for each cluster.

    None for a cluster of all rows, which nothing sets apart.
    """
    chosen = evenly(len(texts), MAX_TEXTS)
    vectorizer = TfidfVectorizer(
        token_pattern=WORD,
        stop_words="english",
        min_df=2 if len(chosen) >= 100 else 1,
        max_df=0.5 if len(chosen) >= 100 else 1.0,
        max_features=MAX_TEXTS,
        sublinear_tf=True,
        dtype=np.float32,
    )
    try:
        weights = vectorizer.fit_transform([texts[i][:MAX_CHARACTERS] for i in chosen])
    except ValueError:  # no words at all
        return [[] for _ in range(n_clusters)]
    words = vectorizer.get_feature_names_out()
    total = np.asarray(weights.sum(0)).ravel()
    found = []
    for k in range(n_clusters):
        inside = labels[chosen] == k
        own = np.asarray(weights[inside].sum(0)).ravel()
        gain = own / max(inside.sum(), 1) - (total - own) / max((~inside).sum(), 1)
        best = np.argsort(-gain, kind="stable")[:most]
        found.append([str(words[i]) for i in best if gain[i] > 0 and not inside.all()])
    return found


def features_apart(
    values: npt.NDArray[Any],
    names: Sequence[str],
    labels: npt.NDArray[np.int64],
    n_clusters: int,
    most: int,
) -> list[list[Feature]]:
    """Features whose mean inside a cluster differs most from that outside, for each cluster.

    None for a cluster of all rows, which nothing sets apart.
    """
    values = _filled(values)
    sizes, sums = _sums(values, labels, n_clusters)
    inside = sums / np.maximum(sizes, 1)[:, None]
    outside = (sums.sum(0) - sums) / np.maximum(sizes.sum() - sizes, 1)[:, None]
    spread = values.std(0)
    difference = np.divide(inside - outside, spread, out=np.zeros_like(inside), where=spread > 0)
    found = []
    for k in range(n_clusters):
        best = np.argsort(-np.abs(difference[k]), kind="stable")[:most]
        found.append(
            [
                Feature(
                    names[f], float(difference[k, f]), float(inside[k, f]), float(outside[k, f])
                )
                for f in best
                if 0 < sizes[k] < len(labels) and spread[f] > 0
            ]
        )
    return found


def most_telling(
    values: npt.NDArray[Any], labels: npt.NDArray[np.int64], n_clusters: int
) -> npt.NDArray[np.intp]:
    """Features in falling order of the part of their variance that lies between clusters."""
    values = _filled(values)
    sizes, sums = _sums(values, labels, n_clusters)
    means = sums / np.maximum(sizes, 1)[:, None]
    between = (sizes[:, None] * (means - values.mean(0)) ** 2).sum(0) / len(values)
    variance = values.var(0)
    part = np.divide(between, variance, out=np.zeros_like(between), where=variance > 0)
    return np.argsort(-part, kind="stable")


def _filled(values: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Values with the mean of their feature for NaN, which then tells nothing."""
    values = np.asarray(values, dtype=np.float64)
    missing = np.isnan(values)
    if not missing.any():
        return values
    there = np.maximum((~missing).sum(0), 1)
    return np.where(missing, np.where(missing, 0.0, values).sum(0) / there, values)


def _sums(
    values: npt.NDArray[np.float64], labels: npt.NDArray[np.int64], n_clusters: int
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.float64]]:
    """Sizes (K,) and sums (K, n_features) of the clusters."""
    n = len(labels)
    one_hot = sparse.csr_array((np.ones(n), (labels, np.arange(n))), shape=(n_clusters, n))
    return np.bincount(labels, minlength=n_clusters), np.asarray(one_hot @ values)
