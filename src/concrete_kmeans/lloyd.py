"""Exact k-means: greedy k-means++ and Lloyd's algorithm (Eq. 1 to 3), batched over restarts.

Rows are ``(N, D)``, shared by all restarts, or ``(R, N, D)``, one set a restart; centres are
``(R, K, D)``. Rows are read in chunks, so that no ``(R, K, chunk)`` block outgrows
``max_chunk_bytes``; distances of a chunk lie as ``(R, K, B)``, which makes one matrix product serve
all restarts and lets the minimum over clusters run along contiguous memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol, TypeAlias

import torch
from torch import Tensor

from concrete_kmeans.validation import check_positive_int

__all__ = ["LloydResult", "RowSource", "assign", "kmeans_plusplus", "lloyd"]

#: Size of the largest block of distances. On 2 cores, 1 to 8 MiB (the level-2 and level-3 caches)
#: measured alike, 32 MiB a fifth slower.
MAX_CHUNK_BYTES = 4 * 2**20
#: On CUDA a chunk must be large enough to fill the device.
MAX_CHUNK_BYTES_CUDA = 256 * 2**20


class RowSource(Protocol):
    """Rows that can be read in pieces: what is not a dense tensor (sparse rows, say)."""

    @property
    def shape(self) -> Sequence[int]:
        """``(N, D)``."""

    @property
    def dtype(self) -> torch.dtype:
        """Of the rows handed out."""

    @property
    def device(self) -> torch.device:
        """Of the rows handed out."""

    def __getitem__(self, rows: slice | Tensor, /) -> Tensor:
        """Dense rows ``(B, D)``."""


Rows: TypeAlias = Tensor | RowSource


class LloydResult(NamedTuple):
    """Outcome of :func:`lloyd`, one entry a restart."""

    centers: Tensor
    """(R, K, D)."""
    labels: Tensor
    """(R, N), the nearest centre of each row."""
    inertia: Tensor
    """(R,), the weighted sum of squared distances to the nearest centre, float64."""
    n_iter: Tensor
    """(R,), iterations run."""


class _Chunk(NamedTuple):
    start: int
    stop: int
    rows: Tensor  # (B, D) or (R, B, D), moved by the shift
    weight: Tensor | None  # (B,)


class _Chunks:
    """Passes over the rows, moved so that their mean is near the origin.

    Distances come from ``|x|^2 - 2 x.c + |c|^2``, which loses digits far from the origin. The rows
    are moved chunk by chunk, never as a whole copy, and only where the mean is large beside the
    spread.
    """

    def __init__(self, X: Rows, weight: Tensor | None, width: int, max_bytes: int | None) -> None:
        self.X, self.weight = X, weight
        self.n, self.d = int(X.shape[-2]), int(X.shape[-1])
        self.batched = isinstance(X, Tensor) and X.ndim == 3
        self.device, self.dtype = X.device, X.dtype
        if max_bytes is None:
            max_bytes = MAX_CHUNK_BYTES_CUDA if X.device.type == "cuda" else MAX_CHUNK_BYTES
        # a chunk's rows and its distances are both in use at a time
        widest = max(width, self.d * (int(X.shape[0]) if self.batched else 1))
        self.size = max(1, min(self.n, max_bytes // (widest * X.dtype.itemsize)))
        self.shift: Tensor | None = None
        mean, variance = self._mean_and_variance()
        self.variance = variance / self.d  # () or (R,)
        if bool((mean.square().sum(-1) > 4.0 * variance).any()):
            self.shift = mean.to(self.dtype).unsqueeze(-2)  # (1, D) or (R, 1, D)

    def _mean_and_variance(self) -> tuple[Tensor, Tensor]:
        """Mean of each feature and the sum of their variances, in float64."""
        pilot = total = square = torch.zeros((), dtype=self.dtype, device=self.device)
        for c in self:
            if c.start == 0:
                pilot = c.rows.mean(-2, keepdim=True)  # squares of far rows would lose digits
            rows = c.rows - pilot
            total = total + rows.sum(-2).double()
            square = square + torch.linalg.vecdot(rows, rows).sum(-1).double()
        mean = total / self.n
        variance = (square / self.n - mean.square().sum(-1)).clamp_min(0.0)
        return mean + pilot.squeeze(-2).double(), variance

    def __iter__(self) -> Iterator[_Chunk]:
        for start in range(0, self.n, self.size):
            stop = min(start + self.size, self.n)
            rows = self.X[:, start:stop] if self.batched else self.X[start:stop]  # type: ignore[index]
            if self.shift is not None:
                rows = rows - self.shift
            weight = None if self.weight is None else self.weight[start:stop]
            yield _Chunk(start, stop, rows, weight)

    def row(self, r: int, index: int) -> Tensor:
        """One row (D,), of restart ``r`` where each has its own."""
        rows = self.X[r, index : index + 1] if self.batched else self.X[index : index + 1]  # type: ignore[index]
        shift = self.shift if self.shift is None or not self.batched else self.shift[r]
        return (rows if shift is None else rows - shift)[0]

    def moved(self, centers: Tensor) -> Tensor:
        return centers if self.shift is None else centers - self.shift

    def moved_back(self, centers: Tensor) -> Tensor:
        return centers if self.shift is None else centers + self.shift


def _partial_distances(rows: Tensor, centers: Tensor, norms: Tensor) -> Tensor:
    """``|c|^2 - 2 x.c`` as (R, K, B): squared distances less ``|x|^2``, which no arg min needs."""
    if rows.ndim == 3:
        return torch.baddbmm(norms.unsqueeze(-1), centers, rows.mT, alpha=-2.0)
    R, K, D = centers.shape
    flat = torch.addmm(norms.view(-1, 1), centers.reshape(R * K, D), rows.mT, alpha=-2.0)
    return flat.view(R, K, -1)


def _to_float64_sum(blocks: Tensor) -> Tensor:
    """Sum the last axis; short float32 runs are exact enough, what follows them is not."""
    return blocks.sum(-1).double()


def _check_rows(X: Rows, n_clusters: int) -> None:
    if len(X.shape) not in ((2, 3) if isinstance(X, Tensor) else (2,)):
        raise ValueError(f"X must be (N, D) or (R, N, D), got {tuple(X.shape)}")
    if X.dtype not in (torch.float32, torch.float64):
        raise TypeError(f"X must be float32 or float64, got {X.dtype}")
    check_positive_int("n_clusters", n_clusters)
    if X.shape[-2] < n_clusters:
        raise ValueError(f"n_clusters={n_clusters} must be at most the {X.shape[-2]} rows of X")


def _check_weight(weight: Tensor | None, X: Rows) -> None:
    if weight is None:
        return
    if tuple(weight.shape) != (X.shape[-2],):
        raise ValueError(
            f"sample_weight must be ({X.shape[-2]},), one for each row, got {tuple(weight.shape)}"
        )
    if weight.device != X.device:
        raise ValueError(f"sample_weight is on {weight.device} but X is on {X.device}")


def _gather_rows(X: Rows, index: Tensor) -> Tensor:
    """Rows ``(R, T, D)`` for row numbers ``(R, T)``."""
    if isinstance(X, Tensor) and X.ndim == 3:
        return X.gather(1, index.unsqueeze(-1).expand(-1, -1, X.shape[-1]))
    return X[index.reshape(-1)].view(*index.shape, X.shape[-1])


# --------------------------------------------------------------------------------------------------
# k-means++


class _Sampler:
    """Draw rows in proportion to a mass ``(R, N)`` that changes, in two steps: block, then row.

    The cumulative sum over all rows would be another float64 array of their number, and
    ``torch.multinomial`` ends at 2**24 of them.
    """

    block = 4096

    def __init__(self, R: int, n: int, like: Rows) -> None:
        self.n, self.n_blocks = n, math.ceil(n / self.block)
        shape = (R, self.n_blocks * self.block)
        self.mass = torch.zeros(shape, dtype=like.dtype, device=like.device)

    def draw(self, uniform: Tensor) -> tuple[Tensor, Tensor]:
        """Row numbers ``(R, T)`` for numbers in [0, 1) of that shape; and the total mass (R, 1)."""
        R, T = uniform.shape
        blocks = self.mass.view(R, self.n_blocks, self.block)
        ends = _to_float64_sum(blocks).cumsum(-1)  # (R, n_blocks)
        target = uniform * ends[:, -1:]
        block = torch.searchsorted(ends, target, right=True).clamp_(max=self.n_blocks - 1)
        start = torch.where(block > 0, ends.gather(1, (block - 1).clamp_(min=0)), 0.0)
        inside = blocks.gather(1, block.unsqueeze(-1).expand(R, T, self.block))
        inside = inside.double().cumsum(-1)  # (R, T, block)
        # rounding between the two sums must not carry the target past the last row with mass
        rest = torch.minimum((target - start).clamp_(min=0.0), inside[..., -1] * (1.0 - 2.0**-40))
        row = torch.searchsorted(inside, rest.unsqueeze(-1), right=True).squeeze(-1)
        return (block * self.block + row).clamp_(max=self.n - 1), ends[:, -1:]


@torch.no_grad()
def kmeans_plusplus(
    X: Rows,
    n_clusters: int,
    *,
    generators: Sequence[torch.Generator | None],
    sample_weight: Tensor | None = None,
    n_local_trials: int | None = None,
    max_chunk_bytes: int | None = None,
) -> tuple[Tensor, Tensor]:
    """First centres by greedy k-means++, one set a generator.

    Each centre is the best of several rows drawn in proportion to their weighted squared distance
    from the centres so far: the one that lowers the sum of those distances most.

    Parameters
    ----------
    X : Tensor of shape (N, D) or (R, N, D), or RowSource
        float32 or float64.
    n_clusters : int
    generators : sequence of R torch.Generator
        One a restart, on any device; None is torch's global generator.
    sample_weight : Tensor of shape (N,), optional
        Not negative.
    n_local_trials : int, optional
        Rows tried for each centre; ``2 + log(n_clusters)`` by default, as in scikit-learn.
    max_chunk_bytes : int, optional
        Size of the largest block of distances.

    Returns
    -------
    centers : Tensor of shape (R, n_clusters, D)
    indices : Tensor of shape (R, n_clusters)
        The rows they are.

    Examples
    --------
    >>> X = torch.tensor([[0.0], [0.0], [5.0], [9.0]])
    >>> centers, indices = kmeans_plusplus(X, 3, generators=[torch.Generator().manual_seed(0)])
    >>> centers.sort(dim=1).values.flatten()
    tensor([0., 5., 9.])
    """
    _check_rows(X, n_clusters)
    _check_weight(sample_weight, X)
    R, T = len(generators), n_local_trials or 2 + int(math.log(n_clusters))
    chunks = _Chunks(X, sample_weight, R * T, max_chunk_bytes)
    uniform = torch.stack(
        [
            torch.rand(
                n_clusters, T, generator=g, dtype=torch.float64, device=g.device if g else None
            ).to(X.device)
            for g in generators
        ]
    )  # (R, K, T), in [0, 1)
    norms = torch.empty(X.shape[:-1], dtype=X.dtype, device=X.device)  # (N,) or (R, N)
    sampler = _Sampler(R, chunks.n, X)
    closest = torch.full_like(sampler.mass, math.inf)[:, : chunks.n]
    for c in chunks:
        norms[..., c.start : c.stop] = torch.linalg.vecdot(c.rows, c.rows)
        sampler.mass[:, c.start : c.stop] = 1.0 if c.weight is None else c.weight

    def distances(c: _Chunk, centers: Tensor) -> Tensor:  # (R, T, B)
        partial = _partial_distances(c.rows, centers, centers.square().sum(-1))
        return partial.add_(norms[..., c.start : c.stop].unsqueeze(-2)).clamp_(min=0.0)

    indices = torch.empty(R, n_clusters, dtype=torch.int64, device=X.device)
    restart = torch.arange(R, device=X.device)
    for k in range(n_clusters):
        trials = 1 if k == 0 else T
        candidates, _ = sampler.draw(uniform[:, k, :trials])  # (R, T)
        rows = chunks.moved(_gather_rows(X, candidates))
        best = torch.zeros_like(restart)
        if trials > 1:
            potential = torch.zeros(R, trials, dtype=torch.float64, device=X.device)
            for c in chunks:
                nearest = distances(c, rows)
                torch.minimum(nearest, closest[:, None, c.start : c.stop], out=nearest)
                potential += _to_float64_sum(nearest if c.weight is None else nearest * c.weight)
            best = potential.argmin(-1)
        indices[:, k] = candidates[restart, best]
        chosen = rows[restart, best].unsqueeze(1)  # (R, 1, D)
        for c in chunks:
            here = closest[:, c.start : c.stop]
            torch.minimum(here, distances(c, chosen).squeeze(1), out=here)
            mass = here if c.weight is None else here * c.weight
            sampler.mass[:, c.start : c.stop] = mass
    return _gather_rows(X, indices), indices


# --------------------------------------------------------------------------------------------------
# Lloyd


@torch.no_grad()
def lloyd(
    X: Rows,
    centers: Tensor,
    *,
    sample_weight: Tensor | None = None,
    max_iter: int = 300,
    tol: float = 1e-4,
    max_chunk_bytes: int | None = None,
) -> LloydResult:
    """Lloyd's algorithm from given centres (Eq. 2 and 3 in turn), all restarts at once.

    A restart stops when no row changes its cluster, or when its centres move by no more than
    ``tol`` times the mean variance of the features. A cluster that lost all its rows is moved to
    the row farthest from its centre.

    Parameters
    ----------
    X : Tensor of shape (N, D) or (R, N, D), or RowSource
        float32 or float64, finite.
    centers : Tensor of shape (K, D) or (R, K, D)
    sample_weight : Tensor of shape (N,), optional
        Not negative.
    max_iter : int, default=300
    tol : float, default=1e-4
    max_chunk_bytes : int, optional
        Size of the largest block of distances.

    Returns
    -------
    LloydResult
        ``(centers, labels, inertia, n_iter)``; labels are those of the centres returned.

    Examples
    --------
    >>> X = torch.tensor([[0.0], [1.0], [8.0], [9.0]])
    >>> result = lloyd(X, torch.tensor([[0.0], [1.0]]))
    >>> result.centers.flatten(), result.inertia
    (tensor([0.5000, 8.5000]), tensor([1.], dtype=torch.float64))
    """
    centers = _batched_centers(X, centers)
    _check_rows(X, centers.shape[1])
    _check_weight(sample_weight, X)
    check_positive_int("max_iter", max_iter)
    R, K, _ = centers.shape
    chunks = _Chunks(X, sample_weight, R * K, max_chunk_bytes)
    threshold = tol * chunks.variance.expand(R)
    centers = chunks.moved(centers).clone()
    state = _Partition(chunks, R, K)
    n_iter = torch.zeros(R, dtype=torch.int64, device=X.device)
    running = torch.arange(R, device=X.device)
    for _ in range(max_iter):
        n_iter[running] += 1
        changed = state.reassign(centers, running)  # Eq. 2
        moved = state.means(centers, running)  # Eq. 3
        shift = (moved - centers[running]).double().square().sum((-2, -1))
        centers[running] = moved
        running = running[(changed > 0) & (shift > threshold[running])]
        if not len(running):
            break
    labels, _ = _nearest(chunks, centers)
    inertia = _inertia(chunks, centers, labels)
    return LloydResult(chunks.moved_back(centers), labels, inertia, n_iter)


@torch.no_grad()
def assign(
    X: Rows, centers: Tensor, *, max_chunk_bytes: int | None = None
) -> tuple[Tensor, Tensor]:
    """Nearest centre of each row.

    Parameters
    ----------
    X : Tensor of shape (N, D) or (R, N, D), or RowSource
    centers : Tensor of shape (K, D) or (R, K, D)
    max_chunk_bytes : int, optional
        Size of the largest block of distances.

    Returns
    -------
    labels : Tensor of shape (R, N), int32
    distances : Tensor of shape (R, N)
        Squared distance to that centre.

    Examples
    --------
    >>> assign(torch.tensor([[0.0], [7.0]]), torch.tensor([[1.0], [9.0]]))
    (tensor([[0, 1]], dtype=torch.int32), tensor([[1., 4.]]))
    """
    centers = _batched_centers(X, centers)
    _check_rows(X, 1)
    chunks = _Chunks(X, None, centers.shape[0] * centers.shape[1], max_chunk_bytes)
    return _nearest(chunks, chunks.moved(centers))


@torch.no_grad()
def inertia(
    X: Rows, centers: Tensor, labels: Tensor, sample_weight: Tensor | None = None
) -> Tensor:
    """Weighted sum of squared distances to the labelled centre (Eq. 1), (R,) in float64.

    Differences are taken before squaring, so that tight clusters keep their digits.

    Examples
    --------
    >>> inertia(torch.tensor([[0.0], [7.0]]), torch.tensor([[1.0]]), torch.tensor([0, 0]))
    tensor([37.], dtype=torch.float64)
    """
    centers = _batched_centers(X, centers)
    chunks = _Chunks(X, sample_weight, 1, None)
    return _inertia(chunks, chunks.moved(centers), labels.view(centers.shape[0], -1))


def _batched_centers(X: Rows, centers: Tensor) -> Tensor:
    if centers.ndim == 2:
        centers = centers.unsqueeze(0)
    batched = isinstance(X, Tensor) and X.ndim == 3
    expected = "(K, D) or (R, K, D)"
    if centers.ndim != 3 or centers.shape[-1] != X.shape[-1] or centers.shape[1] < 1:
        raise ValueError(
            f"centers must be {expected} with D={X.shape[-1]}, got {tuple(centers.shape)}"
        )
    if batched and centers.shape[0] != X.shape[0]:
        raise ValueError(
            f"centers must hold one set for each of the {X.shape[0]} sets of rows, "
            f"got {tuple(centers.shape)}"
        )
    if centers.device != X.device:
        raise ValueError(f"centers are on {centers.device} but X is on {X.device}")
    return centers.to(X.dtype)


class _Partition:
    """Which row is in which cluster, and each cluster's sum of rows and of weights.

    A pass looks up the cluster of a row anew only where its own centre is no longer the nearest,
    and only those rows move between the sums: after the first iterations they are few, and the
    minimum over clusters, which vectorises, is several times faster than the arg min, which does
    not.
    """

    def __init__(self, chunks: _Chunks, R: int, K: int) -> None:
        self.chunks = chunks
        device = chunks.device
        self.labels = torch.full((R, chunks.n), -1, dtype=torch.int32, device=device)
        self.sums = torch.zeros(R, K, chunks.d, dtype=torch.float64, device=device)
        self.weights = torch.zeros(R, K, dtype=torch.float64, device=device)

    def reassign(self, centers: Tensor, running: Tensor) -> Tensor:
        """Move rows to their nearest centres; how many moved, for each running restart."""
        centers = centers[running]
        norms = centers.square().sum(-1)
        changed = torch.zeros(len(running), dtype=torch.int64, device=centers.device)
        for c in self.chunks:
            rows = c.rows if c.rows.ndim == 2 else c.rows[running]
            partial = _partial_distances(rows, centers, norms)  # (R, K, B)
            if centers.device.type == "cpu":
                for i, r in enumerate(running.tolist()):
                    own = rows if rows.ndim == 2 else rows[i]
                    changed[i] += self._move_changed(c, own, r, partial[i])
            else:
                changed += self._move_all(c, rows, running, partial)
        return changed

    def _move_changed(self, c: _Chunk, rows: Tensor, r: int, partial: Tensor) -> int:
        labels = self.labels[r, c.start : c.stop]
        first = int(labels[0]) < 0
        if first:
            after = partial.t().contiguous().argmin(-1)
            labels.copy_(after)
        else:
            own = partial.gather(0, labels.long().unsqueeze(0)).squeeze(0)
            index = (partial.amin(0) < own).nonzero().squeeze(-1)
            if not len(index):
                return 0
            after = partial.index_select(1, index).argmin(0)
            before = labels[index]
            labels[index] = after.int()
            rows = rows.index_select(0, index)
        rows = rows.double()
        if c.weight is None:
            weight = torch.ones(len(after), dtype=torch.float64)
        else:
            weight = (c.weight if first else c.weight[index]).double()
            rows = rows * weight.unsqueeze(-1)  # never in place: these may be the rows of X
        self.sums[r].index_add_(0, after, rows)
        self.weights[r].index_add_(0, after, weight)
        if not first:
            self.sums[r].index_add_(0, before, rows, alpha=-1)
            self.weights[r].index_add_(0, before, weight, alpha=-1)
        return len(after)

    def _move_all(self, c: _Chunk, rows: Tensor, running: Tensor, partial: Tensor) -> Tensor:
        # Atomic adds would make the sums depend on their order; a product with -1, 0, 1 does not.
        before = self.labels[running, c.start : c.stop]
        after = partial.argmin(1).int()
        cluster = torch.arange(self.sums.shape[1], device=rows.device).view(1, -1, 1)
        delta = (after.unsqueeze(1) == cluster).to(rows.dtype)
        delta -= (before.unsqueeze(1) == cluster).to(rows.dtype)
        if c.weight is not None:
            delta *= c.weight
        self.sums[running] += (delta @ rows).double()
        self.weights[running] += _to_float64_sum(delta)
        self.labels[running, c.start : c.stop] = after
        return (after != before).sum(-1)

    def means(self, centers: Tensor, running: Tensor) -> Tensor:
        """Eq. 3: the mean of each cluster, for the running restarts."""
        for r in running[(self.weights[running] <= 0.0).any(-1)].tolist():
            self._refill(centers, r)
        weights = self.weights[running].unsqueeze(-1)
        means = self.sums[running] / weights.clamp_min(torch.finfo(torch.float64).tiny)
        # with fewer rows of positive weight than clusters, a cluster stays empty where it is
        return torch.where(weights > 0.0, means.to(centers.dtype), centers[running])

    def _refill(self, centers: Tensor, r: int) -> None:
        """Give each empty cluster of restart ``r`` the row farthest from its own centre."""
        empty = (self.weights[r] <= 0.0).nonzero().squeeze(-1)
        far = torch.empty(0, dtype=centers.dtype, device=centers.device)
        far_index = torch.empty(0, dtype=torch.int64, device=centers.device)
        for c in self.chunks:
            rows = c.rows if c.rows.ndim == 2 else c.rows[r]
            own = centers[r][self.labels[r, c.start : c.stop].long()]
            distance = (rows - own).square().sum(-1)
            if c.weight is not None:
                distance = torch.where(c.weight > 0, distance, -1.0)
            far, order = torch.cat([far, distance]).topk(min(len(empty), len(far) + len(distance)))
            here = torch.arange(c.start, c.stop, device=centers.device)
            far_index = torch.cat([far_index, here])[order]
        for cluster, index in zip(empty.tolist(), far_index[far > 0.0].tolist(), strict=False):
            donor = int(self.labels[r, index])
            row = self.chunks.row(r, index).double()
            weight = 1.0 if self.chunks.weight is None else float(self.chunks.weight[index])
            self.sums[r, donor] -= weight * row
            self.weights[r, donor] -= weight
            self.sums[r, cluster] = weight * row
            self.weights[r, cluster] = weight
            self.labels[r, index] = cluster


def _nearest(chunks: _Chunks, centers: Tensor) -> tuple[Tensor, Tensor]:
    R = centers.shape[0]
    labels = torch.empty(R, chunks.n, dtype=torch.int32, device=centers.device)
    nearest = torch.empty(R, chunks.n, dtype=centers.dtype, device=centers.device)
    norms = centers.square().sum(-1)
    for c in chunks:
        partial = _partial_distances(c.rows, centers, norms)
        label = partial.mT.contiguous().argmin(-1)  # (R, B); twice as fast as along K
        labels[:, c.start : c.stop] = label
        smallest = partial.gather(1, label.unsqueeze(1)).squeeze(1)
        smallest += torch.linalg.vecdot(c.rows, c.rows)
        nearest[:, c.start : c.stop] = smallest.clamp_(min=0.0)
    return labels, nearest


def _inertia(chunks: _Chunks, centers: Tensor, labels: Tensor) -> Tensor:
    total = torch.zeros(centers.shape[0], dtype=torch.float64, device=centers.device)
    for c in chunks:
        for r in range(len(total)):
            rows = c.rows if c.rows.ndim == 2 else c.rows[r]
            own = centers[r].index_select(0, labels[r, c.start : c.stop])
            distance = own.sub_(rows).square_().sum(-1)
            total[r] += (distance if c.weight is None else distance * c.weight).double().sum()
    return total
