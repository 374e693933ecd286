"""Agreement between a clustering and known classes, for one run or over restarts.

Every function takes the known classes first and the clusters second. Labels may be integers,
strings or anything hashable, in a list, a NumPy array, a pandas Series or a torch tensor on
any device; only which labels are equal matters, never their values.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.optimize import linear_sum_assignment
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score
from sklearn.metrics.cluster import contingency_matrix

__all__ = [
    "clustering_accuracy",
    "purity",
    "nmi",
    "ari",
    "pairwise_ari",
    "scores",
    "Summary",
    "summarize",
    "scores_over_restarts",
]


def clustering_accuracy(y_true: Any, y_pred: Any) -> float:
    """Fraction of points that are right under the best one-to-one matching.

    Each cluster is named after at most one class and each class names at most one cluster,
    in the way that makes most points right (the Hungarian method). With more clusters than
    classes, or fewer, the ones left over count as wrong.

    Parameters
    ----------
    y_true : array-like of shape (n_samples,)
        Known classes.
    y_pred : array-like of shape (n_samples,)
        Clusters.

    Returns
    -------
    float
        Between 0 and 1.

    Examples
    --------
    >>> clustering_accuracy([0, 0, 1, 1], ["b", "b", "a", "a"])
    1.0
    >>> clustering_accuracy([0, 0, 1, 1], [0, 0, 1, 2])
    0.75
    """
    true, pred = _codes_of_pair(y_true, y_pred)
    counts = contingency_matrix(true, pred, sparse=True).toarray()
    classes, clusters = linear_sum_assignment(counts, maximize=True)
    return float(counts[classes, clusters].sum() / len(true))


def purity(y_true: Any, y_pred: Any) -> float:
    """Fraction of points that belong to the most frequent class of their cluster.

    Unlike :func:`clustering_accuracy`, several clusters may be named after one class, so
    purity is never smaller, and it grows with the number of clusters.

    Parameters
    ----------
    y_true : array-like of shape (n_samples,)
        Known classes.
    y_pred : array-like of shape (n_samples,)
        Clusters.

    Returns
    -------
    float
        Between 0 and 1.

    Examples
    --------
    >>> purity([0, 0, 1, 1], [0, 0, 1, 2])
    1.0
    """
    true, pred = _codes_of_pair(y_true, y_pred)
    counts = contingency_matrix(true, pred, sparse=True)
    return float(counts.max(axis=0).sum() / len(true))


def nmi(y_true: Any, y_pred: Any) -> float:
    """Mutual information over the arithmetic mean of the two entropies.

    Parameters
    ----------
    y_true : array-like of shape (n_samples,)
        Known classes.
    y_pred : array-like of shape (n_samples,)
        Clusters.

    Returns
    -------
    float
        Between 0 and 1.

    Examples
    --------
    >>> round(nmi([0, 0, 1, 1], [0, 0, 1, 2]), 4)
    0.8
    """
    true, pred = _codes_of_pair(y_true, y_pred)
    return float(normalized_mutual_info_score(true, pred, average_method="arithmetic"))


def ari(y_true: Any, y_pred: Any) -> float:
    """Rand index adjusted for chance: 0 in expectation for random labels, 1 when equal.

    Parameters
    ----------
    y_true : array-like of shape (n_samples,)
        Known classes.
    y_pred : array-like of shape (n_samples,)
        Clusters.

    Returns
    -------
    float
        Between -0.5 and 1.

    Examples
    --------
    >>> ari([0, 0, 1, 1], [1, 1, 0, 0])
    1.0
    """
    true, pred = _codes_of_pair(y_true, y_pred)
    return float(adjusted_rand_score(true, pred))


def pairwise_ari(labels: Any) -> NDArray[np.float64]:
    """Adjusted Rand index of every two of R partitions of the same rows.

    Parameters
    ----------
    labels : array of shape (R, n_samples)
        Clusters as whole numbers from 0.

    Returns
    -------
    array of shape (R, R)

    Examples
    --------
    >>> pairwise_ari(np.array([[0, 0, 1, 1], [1, 1, 0, 0], [0, 1, 1, 1]]))[0]
    array([1., 1., 0.])
    """
    labels = np.asarray(labels)
    R, n = labels.shape
    K = int(labels.max()) + 1
    place = (labels + K * np.arange(R)[:, None]).T.ravel()  # column of each row and partition
    ones = np.ones(R * n, dtype=np.int64)
    hard = sparse.csr_array((ones, place, np.arange(0, R * n + 1, R)), shape=(n, R * K))
    counts = sparse.coo_array(hard.T @ hard)  # rows that two clusters share
    block = counts.row // K * R + counts.col // K
    pairs = counts.data * (counts.data - 1.0) / 2.0
    same = np.bincount(block, pairs, minlength=R * R).reshape(R, R)  # pairs that both put together
    own = same.diagonal()
    expected = np.outer(own, own) / max(n * (n - 1.0) / 2.0, 1.0)
    most = (own[:, None] + own) / 2.0
    room = most - expected
    room[room == 0.0] = np.inf  # in both all rows in one cluster, or each in its own: equal
    return np.where(np.isinf(room), 1.0, (same - expected) / room)


def scores(y_true: Any, y_pred: Any) -> dict[str, float]:
    """All four measures of one run.

    Parameters
    ----------
    y_true : array-like of shape (n_samples,)
        Known classes.
    y_pred : array-like of shape (n_samples,)
        Clusters.

    Returns
    -------
    dict of str to float
        Under the keys ``"nmi"``, ``"ari"``, ``"acc"`` and ``"purity"``.

    Examples
    --------
    >>> scores([0, 0, 1, 1], [1, 1, 0, 0])
    {'nmi': 1.0, 'ari': 1.0, 'acc': 1.0, 'purity': 1.0}
    """
    true, pred = _codes_of_pair(y_true, y_pred)
    return {
        "nmi": nmi(true, pred),
        "ari": ari(true, pred),
        "acc": clustering_accuracy(true, pred),
        "purity": purity(true, pred),
    }


class Summary(NamedTuple):
    """Mean, sample standard deviation and number of runs.

    Examples
    --------
    >>> print(Summary(mean=0.5, std=0.1, n=10))
    0.5000 ± 0.1000 (n=10)
    """

    mean: float
    std: float
    n: int

    def __str__(self) -> str:
        return f"{self.mean:.4f} ± {self.std:.4f} (n={self.n})"


def summarize(runs: Sequence[Mapping[str, float]]) -> dict[str, Summary]:
    """Mean and spread of every measure over restarts or seeds.

    Parameters
    ----------
    runs : sequence of mappings from str to float
        One mapping a run, all with the same keys, such as :func:`scores` returns.

    Returns
    -------
    dict of str to Summary
        In the key order of the first run. The standard deviation is that of a sample
        (divided by n - 1), and 0.0 for a single run.

    Examples
    --------
    >>> summarize([{"acc": 0.5}, {"acc": 0.75}, {"acc": 1.0}])
    {'acc': Summary(mean=0.75, std=0.25, n=3)}
    """
    runs = list(runs)
    if not runs:
        raise ValueError("runs is empty; it needs at least one mapping of scores")
    for i, run in enumerate(runs):
        if run.keys() != runs[0].keys():
            raise ValueError(
                f"runs[{i}] has the keys {sorted(run)}; "
                f"every run must have those of runs[0], {sorted(runs[0])}"
            )
        for key, value in run.items():
            if not math.isfinite(value):
                raise ValueError(f"runs[{i}][{key!r}] is {value}; scores must be finite")
    return {key: _summary([float(run[key]) for run in runs]) for key in runs[0]}


def scores_over_restarts(y_true: Any, labelings: Iterable[Any]) -> dict[str, Summary]:
    """All four measures with mean and spread over several clusterings of the same points.

    Parameters
    ----------
    y_true : array-like of shape (n_samples,)
        Known classes.
    labelings : iterable of array-likes of shape (n_samples,)
        One clustering a restart; an array or tensor of shape (n_restarts, n_samples) will do.

    Returns
    -------
    dict of str to Summary
        Under the keys of :func:`scores`; see :func:`summarize`.

    Examples
    --------
    >>> result = scores_over_restarts([0, 0, 1, 1], [[0, 0, 1, 1], [0, 0, 1, 2]])
    >>> result["acc"].mean, result["acc"].n
    (0.875, 2)
    """
    true = _codes(y_true, "y_true")
    runs = [scores(true, pred) for pred in labelings]
    if not runs:
        raise ValueError("labelings is empty; it needs at least one clustering")
    return summarize(runs)


def _summary(values: list[float]) -> Summary:
    std = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
    return Summary(float(np.mean(values)), std, len(values))


def _codes_of_pair(y_true: Any, y_pred: Any) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    true, pred = _codes(y_true, "y_true"), _codes(y_pred, "y_pred")
    if len(true) != len(pred):
        raise ValueError(
            f"y_true has {len(true)} labels and y_pred has {len(pred)}; "
            "they must label the same points"
        )
    return true, pred


def _codes(labels: Any, argument: str) -> NDArray[np.intp]:
    """Replace labels by 0, 1, ... for the distinct ones; (n_samples,) in and out."""
    if hasattr(labels, "detach") and hasattr(labels, "cpu"):  # a tensor, without importing torch
        labels = labels.detach().cpu()
    try:
        array = np.asarray(labels)
    except ValueError as error:
        raise ValueError(f"{argument} is ragged; it must be a 1-D sequence of labels") from error
    if array.ndim != 1:
        raise ValueError(f"{argument} has shape {array.shape}; it must be 1-D, one label a point")
    if array.size == 0:
        raise ValueError(f"{argument} is empty; it needs at least one label")
    if array.dtype.kind == "O":
        return _codes_of_objects(array, argument)
    distinct, codes = np.unique(array, return_inverse=True)
    if distinct.dtype.kind in "fcmM" and not bool((distinct == distinct).all()):
        raise ValueError(f"{argument} contains NaN; every point must have a label")
    return codes.astype(np.intp, copy=False)


def _codes_of_objects(array: NDArray[np.object_], argument: str) -> NDArray[np.intp]:
    # Labels of mixed types cannot be sorted, so np.unique will not do.
    numbers: dict[Any, int] = {}
    codes = np.empty(len(array), dtype=np.intp)
    for i, label in enumerate(array):
        if _is_missing(label):
            raise ValueError(f"{argument}[{i}] is {label!r}; every point must have a label")
        codes[i] = numbers.setdefault(label, len(numbers))
    return codes


def _is_missing(label: Any) -> bool:
    """None, NaN, or a value such as pandas.NA that will not say whether it equals itself."""
    try:
        return label is None or not bool(label == label)
    except TypeError:
        return True
