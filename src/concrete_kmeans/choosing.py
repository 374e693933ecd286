"""How many clusters, without labels."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from scipy import sparse
from torch import Tensor
from torch.nn.functional import one_hot

from concrete_kmeans.estimators.deep import restart_agreement
from concrete_kmeans.lloyd import assign, kmeans_plusplus, lloyd
from concrete_kmeans.modes import plain
from concrete_kmeans.report import KCurve
from concrete_kmeans.report.projection import evenly, reduced
from concrete_kmeans.validation import check_positive_int, check_whole

__all__ = ["choose_k"]

#: Rows that are looked at: the cost does not grow with the data.
MAX_ROWS = 3000
#: Halves of the rows that are clustered on their own, and starts of each; the best start counts.
N_HALVES, N_STARTS = 8, 4
#: Disagreement of halves, times k, below which a finer partition is taken over that of the best
#: silhouette. With one of k equal clusters split at random, (k - 1) + 1/4 of its pairs are together
#: in both of two halves, of (k - 1) + 1/2 in each: that costs 0.25 / k. Half of it is allowed.
REPRODUCED = 0.125
#: Silhouettes from which Kaufman and Rousseeuw (1990) call a structure so.
STRUCTURE = (
    (0.7, "a strong structure"),
    (0.5, "a reasonable structure"),
    (0.25, "a weak structure"),
)


@plain()
def choose_k(
    X: Any, k: Sequence[int] = range(2, 21), *, n_init: int = 10, random_state: int = 0
) -> KCurve:
    """Choose the number of clusters of k-means by silhouette, then by stability.

    Every k is judged by its partition of lowest inertia. Its mean silhouette (Rousseeuw 1987) says
    how much nearer rows are to their own cluster than to the next. The k whose silhouettes are
    within one standard error of the highest cannot be told apart by it; of those, the one counts on
    which halves of the rows agree best: the mean adjusted Rand index, over all rows, of eight that
    are clustered each on its own. The silhouette prefers few clusters where some lie close
    together; so a larger k is taken if halves agree on it almost perfectly: a finer partition that
    comes out again from any half of the rows is there, too. (A cluster split at random costs an
    index of 0.25 / k at least; half of that is allowed.) Nothing looks at labels.

    Parameters
    ----------
    X : array, DataFrame, CSR matrix or Tensor of n_samples rows
        For a deep method the code of its autoencoder, ``transform`` of
        :class:`concrete_kmeans.AutoencoderKMeans`; one serves every k. Rows with more than one axis
        are flattened. Of more than 3,000 rows, 3,000 evenly spread ones count; of more than 50
        features, 50 singular vectors.
    k : sequence of int, default=range(2, 21)
        Numbers to choose from, rising, from 2 to n_samples - 1.
    n_init : int, default=10
        Restarts of k-means on all rows, run together.
    random_state : int, default=0

    Returns
    -------
    KCurve
        Numbers, scores, the choice and the reasons in words.

    Notes
    -----
    What it chose of 2 to 20, on 3,000 rows at most and on the codes of three autoencoders of them:

    =====================  =======  =======  ============
    data                   classes  rows     codes
    =====================  =======  =======  ============
    blobs, 3 5 8 or 15     as many  right    all right
    blobs, unequal sizes   4        3        3, 4, 4
    digits                 10       9        11, 9, 9
    pendigits              10       7        9, 10, 12
    USPS                   10       14       16, 8, 14
    MNIST                  10       2        8, 9, 6
    segment                7        6        3, 2, 2
    satimage               6        3        3, 4, 3
    vowel                  11       2        20, 14, 3
    twonorm                2        2        2, 2, 2
    waveform               3        3        3, 3, 3
    =====================  =======  =======  ============

    Clusters that lie apart are counted right; classes that overlap have no number that rows could
    tell, and a choice with a silhouette below 0.25 says so. Nor can it say that there is one
    cluster only: of a single Gaussian it makes 2 to 19, with silhouettes of 0.12 and less.

    Examples
    --------
    >>> from sklearn.datasets import make_blobs
    >>> X, _ = make_blobs(300, centers=4, random_state=2)
    >>> curve = choose_k(X, range(2, 8))
    >>> curve.chosen
    4
    """
    rows = _rows(X)
    n, tried = len(rows), _checked(k, len(rows))
    check_positive_int("n_init", n_init)
    seed = check_whole("random_state", random_state)
    labels = torch.stack([_best(rows, size, n_init, seed) for size in tried])
    silhouettes = _silhouettes(rows, labels, tried)
    means, errors = silhouettes.mean(1), silhouettes.std(1) / n**0.5
    halves = _halves(n, tried[-1], seed)
    stability = [_stability(rows, size, halves, seed) for size in tried]
    # of few different rows some clusters stay empty: of every k from there on, the partition is one
    filled = [i for i, own in enumerate(labels) if len(own.unique()) == tried[i]] or [0]
    best = max(filled, key=lambda i: float(means[i]))
    alike = [i for i in filled if means[i] >= means[best] - errors[best]]
    chosen = max(alike, key=lambda i: stability[i])
    larger = [i for i in filled if i > chosen]
    finer = [i for i in larger if (1.0 - stability[i]) * tried[i] < REPRODUCED]
    scores = {"Silhouette": means.tolist(), "Stability": stability}
    reasons = _reasons(tried, scores, float(errors[best]), n, alike, chosen, finer)
    chosen = max([chosen, *finer])
    if len(filled) < len(tried):
        reasons.append("Of other numbers some clusters are empty: too few rows are different.")
    elif chosen == len(tried) - 1:
        reasons.append("It is the largest that was tried: a wider range may hold a better one.")
    return KCurve(tried, scores, tried[chosen], reasons)


def _checked(k: Sequence[int], n: int) -> list[int]:
    tried = [check_positive_int("k", size) for size in k]
    if not tried or any(a >= b for a, b in pairwise(tried)):
        raise ValueError(f"k must hold whole numbers that rise, got {list(k)}")
    if tried[0] < 2 or tried[-1] >= n:
        raise ValueError(
            f"k must be from 2 to n_samples - 1 = {n - 1}, got {tried[0]} to {tried[-1]}"
        )
    return tried


def _rows(X: Any) -> Tensor:
    """At most :data:`MAX_ROWS` rows of few features, on the host, about their mean."""
    if isinstance(X, Tensor):
        X = X.detach().cpu().numpy()
    rows: Any = X if sparse.issparse(X) else np.asarray(X)
    if rows.ndim < 2 or 0 in rows.shape:
        raise ValueError(f"X must have rows with features, got the shape {tuple(rows.shape)}")
    some = rows[evenly(rows.shape[0], MAX_ROWS)]
    if not sparse.issparse(some):
        some = np.asarray(some, dtype=np.float64).reshape(len(some), -1)
        some = some - some.mean(0)
    few = torch.from_numpy(reduced(some))
    if not bool(few.isfinite().all()):
        raise ValueError("X must be finite; it holds NaN or infinity")
    return few


def _generators(count: int, seed: int) -> list[torch.Generator]:
    return [torch.Generator().manual_seed(seed + r) for r in range(count)]


def _best(rows: Tensor, k: int, n_init: int, seed: int) -> Tensor:
    """Labels (N,) of the partition of lowest inertia."""
    first, _ = kmeans_plusplus(rows, k, generators=_generators(n_init, seed))
    result = lloyd(rows, first)
    return result.labels[result.inertia.argmin()].long()


def _halves(n: int, most: int, seed: int) -> Tensor:
    """Numbers of the rows of each half, (H, M); of few rows, more than half of them."""
    size = min(n, max(n // 2, 2 * most))
    return torch.stack([torch.randperm(n, generator=g)[:size] for g in _generators(N_HALVES, seed)])


def _stability(rows: Tensor, k: int, halves: Tensor, seed: int) -> float:
    """Mean adjusted Rand index, over all rows, of the partitions that halves of them give."""
    stack = rows[halves.repeat_interleave(N_STARTS, 0)]  # (H T, M, D)
    first, _ = kmeans_plusplus(stack, k, generators=_generators(len(stack), seed))
    result = lloyd(stack, first)
    best = result.inertia.view(-1, N_STARTS).argmin(1) + torch.arange(len(halves)) * N_STARTS
    labels, _ = assign(rows, result.centers[best])
    return float(restart_agreement(labels).mean())


def _silhouettes(rows: Tensor, labels: Tensor, sizes: Sequence[int]) -> Tensor:
    """Silhouette of each row, (len(sizes), N), for labels of that shape; 0 of a lone row.

    Distances are computed once, and their sums over the clusters of every k by one product.
    """
    members = torch.cat([one_hot(own, k) for own, k in zip(labels, sizes, strict=True)], 1).to(
        rows
    )  # (N, sum of k)
    exact = "donot_use_mm_for_euclid_dist"  # a product would lose the digits of small distances
    sums = torch.cdist(rows, rows, compute_mode=exact) @ members
    counts = members.sum(0)
    found, start = [], 0
    for own, k in zip(labels, sizes, strict=True):
        part, start = slice(start, start + k), start + k
        total, count = sums[:, part], counts[part]
        own_count = count[own]
        inner = total.gather(1, own[:, None])[:, 0] / (own_count - 1).clamp_min(1)
        means = (total / count).where(count > 0, torch.inf).scatter(1, own[:, None], torch.inf)
        outer = means.min(1).values
        ratio = (outer - inner) / torch.maximum(outer, inner)
        found.append(ratio.where((own_count > 1) & ratio.isfinite(), 0.0))
    return torch.stack(found)


def _reasons(
    tried: Sequence[int],
    scores: dict[str, list[float]],
    error: float,
    n: int,
    alike: Sequence[int],
    by_silhouette: int,
    finer: Sequence[int],
) -> list[str]:
    """Sentences."""
    silhouette, stability = scores["Silhouette"], scores["Stability"]
    chosen = max([by_silhouette, *finer])
    word = next((word for least, word in STRUCTURE if silhouette[chosen] > least), None)
    said = [
        f"k = {tried[chosen]} of {tried[0]} to {tried[-1]}: the mean silhouette of {n:,} rows is "
        f"{silhouette[chosen]:.3f}, {word or 'little structure: clusters overlap'}."
    ]
    agreed = f"(adjusted Rand index {stability[chosen]:.2f})"
    if finer:
        said.append(
            f"The silhouette is best at {tried[by_silhouette]}, {silhouette[by_silhouette]:.3f}, "
            f"but {tried[chosen]} clusters come out again from every half of the rows {agreed}."
        )
    elif len(alike) > 1:
        listed = ", ".join(str(tried[i]) for i in alike)
        said.append(
            f"k = {listed} are within one standard error ({error:.4f}) of the highest silhouette; "
            f"of these, halves of the rows agree best on {tried[chosen]} {agreed}."
        )
    else:
        said.append(
            f"No other is within one standard error ({error:.4f}) of it. How far halves of "
            f"the rows agree on it: {agreed.strip('()')}."
        )
    return said
