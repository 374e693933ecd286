"""Exact k-means: greedy k-means++ and Lloyd's algorithm (Eq. 1 to 3), batched over restarts.

Rows are ``(N, D)``, shared by all restarts, or ``(R, N, D)``, one set a restart; centres are
``(R, K, D)``. Rows are read in chunks, so that no ``(R, K, chunk)`` block outgrows
``max_chunk_bytes``; distances of a chunk lie as ``(R, K, B)``, which makes one matrix product serve
all restarts and lets the minimum over clusters run along contiguous memory.

Many processes (:func:`processes.together`) share the rows: each reads a block of them, and sums
over rows are sums over all processes. Centres are the same in all of them.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from types import ModuleType
from typing import NamedTuple, Protocol, Self, TypeAlias, TypeVar

import numpy as np
import torch
from torch import Tensor

from concrete_kmeans import fused, processes, products
from concrete_kmeans.memory import Parts
from concrete_kmeans.modes import plain
from concrete_kmeans.reading import WORTH, read_ahead
from concrete_kmeans.validation import check_positive_int

__all__ = [
    "LloydResult",
    "RowSource",
    "assign",
    "first_centers",
    "kmeans_plusplus",
    "label_rows",
    "lloyd",
    "nearest_labels",
    "own_rows",
]

logger = logging.getLogger(__name__)

#: Size of the largest block of distances: 2 MiB cost more in calls, 8 MiB in memory traffic.
MAX_CHUNK_BYTES = 4 * 2**20
#: The same on a CPU of Intel's: calls weigh more there, and 8 MiB take 0.92 of the time of 4.
MAX_CHUNK_BYTES_INTEL = 8 * 2**20
#: On CUDA a chunk must be large enough to fill the device.
MAX_CHUNK_BYTES_CUDA = 256 * 2**20
#: Restarts share a product as long as a chunk keeps so many rows: with fewer, many restarts would
#: cost by the square of their number.
FEWEST_ROWS = 1024
#: Largest memory for the distances of all rows to the candidates of a step of k-means++.
MAX_KEPT_BYTES = 64 * 2**20
#: Of a stream so much is read at a time, and cut into chunks.
READ_BYTES = 4 * 2**20
#: Rows of one of the many products that a long one is cut into on a GPU.
RUN = 1024
#: Rows that say where the middle of all is, at most, and in how many runs of neighbours.
SAMPLE, SAMPLE_RUNS = 1024, 16
#: Starts that :func:`first_centers` tries, at most, and clusters of them together; how many times
#: the candidates of k-means++; on how many rows, at least and for each cluster. Beside a start on
#: all rows Lloyd ends 0.03 % lower on MNIST, 0.6 % lower with 100 clusters on 1,000,000 x 32
#: rows (means of 10 seeds), 2 % lower with 1,000 on 200,000 x 128 (of 3 and of 10). Candidates
#: alone do nothing for MNIST, starts alone nothing for 1,000 clusters.
STARTS, STARTED_CLUSTERS, MORE_TRIALS = 4, 400, 3
START_ROWS, START_ROWS_PER_CLUSTER = 16384, 64
#: The inertia is taken from the clusters' sums where it is at least this part of the rows' squared
#: lengths, of which it is the difference; below, digits would be lost.
KEEPS_DIGITS = 0.1
#: Weights keep their digits in fixed point where the least is more than this part of the largest.
UNEVEN = 2.0**-16


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
T = TypeVar("T")


class Block:
    """Neighbouring rows of another source.

    Examples
    --------
    >>> Block(torch.tensor([[1.0], [3.0], [5.0]]), slice(1, 3))[torch.tensor([1])]
    tensor([[5.]])
    """

    def __init__(self, rows: Rows, block: slice) -> None:
        self.rows, self.first = rows, block.start
        self.shape: Sequence[int] = (block.stop - block.start, int(rows.shape[1]))
        self.dtype, self.device = rows.dtype, rows.device
        self.index_device: torch.device = getattr(rows, "index_device", rows.device)
        self.stream = getattr(rows, "stream", None)
        if self.stream is not None:
            bounds = np.clip(self.stream.bounds - block.start, 0, self.shape[0])
            self.stream = self.stream._replace(bounds=np.unique(bounds))

    def __getitem__(self, rows: slice | Tensor, /) -> Tensor:
        """Dense rows on the device."""
        if isinstance(rows, Tensor):
            return self.rows[rows + self.first]
        start, stop, _ = rows.indices(self.shape[0])
        return self.rows[self.first + start : self.first + stop]


def own_rows(rows: Rows) -> Rows:
    """The block of rows (N, D) or (R, N, D) that this process reads; one process reads all."""
    if not processes.many():
        return rows
    block = processes.own(int(rows.shape[-2]))
    return rows[..., block, :] if isinstance(rows, Tensor) else Block(rows, block)


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


class _Threads:
    """Work on parts of the rows side by side, one thread of torch's number a part.

    On the CPU torch splits every operation over its threads, which wait for each other after each
    one. Here each thread runs whole chunks and they meet once a pass. While it lasts, torch's own
    number of threads is one, as scikit-learn's BLAS threads are in its k-means.
    """

    #: Bytes of a block that is freed unused: over any block of distances, below glibc's 32 MiB.
    freed = 16 * 2**20

    def __init__(self, device: torch.device) -> None:
        self.count = torch.get_num_threads() if device.type == "cpu" else 1

    def __enter__(self) -> Self:
        # oneDNN's products take a new block a chunk. glibc gives those back to the system at once,
        # at a page fault for each page of the next, until a larger one was freed: 250,000 faults, a
        # fourth of the first fit of a process with 1,000,000 x 32 rows
        torch.empty(self.freed, dtype=torch.uint8)
        if self.count > 1:
            torch.set_num_threads(1)
            # the number is a thread's own: a product in one that never asked would use all cores
            self.pool = ThreadPoolExecutor(self.count, initializer=torch.get_num_threads)
        return self

    def __exit__(self, *_: object) -> None:
        if self.count > 1:
            self.pool.shutdown()
            torch.set_num_threads(self.count)

    def run(self, n: int, least: int, work: Callable[[int, int], T]) -> list[T]:
        """``work(start, stop)`` on even parts of ``n`` rows of at least so many, in their order."""
        parts = max(1, min(self.count, n // max(least, 1)))
        ends = [n * i // parts for i in range(parts + 1)]
        if parts == 1:
            return [work(0, n)]
        return list(self.pool.map(work, ends[:-1], ends[1:]))


class _Chunk(NamedTuple):
    start: int
    stop: int
    rows: Tensor  # (B, D) or (R, B, D), moved by the shift
    weight: Tensor | None  # (B,)

    def part(self, start: int, stop: int) -> _Chunk:
        """Some of its rows."""
        weight = None if self.weight is None else self.weight[start:stop]
        return _Chunk(self.start + start, self.start + stop, self.rows[..., start:stop, :], weight)


class _Chunks:
    """Passes over the rows, moved so that their mean is near the origin.

    Distances come from ``|x|^2 - 2 x.c + |c|^2``, which loses digits far from the origin. The rows
    are moved chunk by chunk, never as a whole copy, and only where the mean is large beside the
    spread.
    """

    #: Up to so many clusters, the arg min compares all of them with the least.
    one_line = 32

    def __init__(self, X: Rows, weight: Tensor | None, width: int, max_bytes: int | None) -> None:
        self.every, self.n_every = X, int(X.shape[-2])  # of all processes
        self.block = processes.own(self.n_every)
        X = own_rows(X)
        self.X, self.weight = X, None if weight is None else weight[self.block]
        self.n, self.d = int(X.shape[-2]), int(X.shape[-1])
        self.batched = isinstance(X, Tensor) and X.ndim == 3
        self.device, self.dtype = X.device, X.dtype
        max_bytes = _block_bytes(X, max_bytes)
        # rows are read once or twice, distances written and read again: they get half the room
        widest = max(width, self.d * (int(X.shape[0]) if self.batched else 1) // 2, 1)
        self.size = max(1, min(self.n, max_bytes // (widest * X.dtype.itemsize)))
        self.shift: Tensor | None = None
        self._scratch = threading.local()
        self._codes: dict[int, Tensor] = {}
        self.norms = torch.empty(0, dtype=self.dtype, device=self.device)
        self.streamed = getattr(X, "stream", None) is not None
        # to look for rows of a stream is dear: what one call has found, the stream remembers
        known: dict[str, tuple[Tensor, Tensor]] = getattr(X, "known", {})
        if "middle" not in known:
            known["middle"] = self._middle()
        mean, variance = known["middle"]
        if bool((mean.square().sum(-1) > 4.0 * variance).any()):
            self.shift = mean.to(self.dtype).unsqueeze(-2)  # (1, D) or (R, 1, D)

    def _middle(self) -> tuple[Tensor, Tensor]:
        """About the mean of each feature and the sum of their variances: of a sample, in float64.

        A point near the mean serves as well as the mean itself, which would take a pass.
        """
        runs = min(SAMPLE_RUNS, self.size)
        length = min(SAMPLE, self.size) // runs
        starts = [self.n * i // runs for i in range(runs + 1)]
        ends = [(start, min(start + length, end)) for start, end in pairwise(starts)]
        if self.streamed:  # all at once: places that are left open would hold memory
            index = torch.cat([torch.arange(start, end) for start, end in ends])
            rows = self.X[index].double()
        else:
            rows = torch.cat([self._read(start, end) for start, end in ends], dim=-2).double()
        variance, mean = torch.var_mean(rows, -2, correction=0)
        variance = variance.sum(-1)
        processes.copy_from_first([mean, variance])  # rows are moved alike in all processes
        return mean, variance

    def measure(self, threads: _Threads, with_variance: bool) -> tuple[Tensor, Tensor]:
        """Fill ``norms``, the squared lengths of all rows, (N,) or (R, N); not those of a stream.

        Returns the weighted sum of those, and the mean variance of the features, or zero if that is
        not asked for; both () or (R,), in float64.
        """
        shape = tuple(self.X.shape)[:-1]
        if not self.streamed:
            self.norms = torch.empty(shape, dtype=self.dtype, device=self.device)

        def part(first: int, last: int) -> tuple[Tensor, Tensor, Tensor]:
            total = torch.zeros(*shape[:-1], self.d, dtype=torch.float64, device=self.device)
            energy, square = total.new_zeros(shape[:-1]), total.new_zeros(shape[:-1])
            for c in self.between(first, last):
                norms = squared_lengths(c.rows)
                if not self.streamed:
                    self.norms[..., c.start : c.stop] = norms
                square += _to_float64_sum(norms)
                energy += _to_float64_sum(norms if c.weight is None else norms * c.weight)
                if with_variance:
                    total += c.rows.sum(-2).double()
            return energy, square, total

        parts = threads.run(self.n, self.size, part)
        energy, square, total = (
            sum(numbers[1:], numbers[0]) for numbers in zip(*parts, strict=True)
        )
        processes.sum_in_place([energy, square, total])
        if not with_variance:
            return energy, torch.zeros_like(square)
        variance = square / self.n_every - (total / self.n_every).square().sum(-1)
        return energy, variance.clamp_min(0.0) / self.d

    def __iter__(self) -> Iterator[_Chunk]:
        return self.between(0, self.n)

    def between(self, first: int, last: int) -> Iterator[_Chunk]:
        """Chunks of some of the rows."""
        for start, stop, rows in self._reads(first, last):
            if self.shift is not None:
                rows = torch.sub(rows, self.shift, out=self.scratch("moved", rows.shape))
            weight = None if self.weight is None else self.weight[start:stop]
            yield _Chunk(start, stop, rows, weight)

    def _reads(self, first: int, last: int) -> Iterator[tuple[int, int, Tensor]]:
        """Rows as they are, those of a stream read ahead."""
        if self.streamed:
            yield from self._stream(first, last)
            return
        for start in range(first, last, self.size):
            stop = min(start + self.size, last)
            yield start, stop, self._read(start, stop)

    def _stream(self, first: int, last: int) -> Iterator[tuple[int, int, Tensor]]:
        """A chunk may be too small to be worth a read."""
        size = self.size * max(1, READ_BYTES // (self.size * self.d * self.dtype.itemsize))
        begins = range(first, last, size)
        parts = ((start, self._read(start, min(start + size, last))) for start in begins)
        busy = self.X.device.type == "cpu"  # a thread a core, each with a part of the rows
        for begin, part in read_ahead(parts, worth=WORTH, busy=busy):
            for start in range(0, len(part), self.size):
                rows = part[start : start + self.size]
                yield begin + start, begin + start + len(rows), rows

    def squared(self, c: _Chunk) -> Tensor:
        """Squared lengths of the rows of a chunk, as they were measured."""
        if self.streamed:
            return squared_lengths(c.rows)
        return self.norms[..., c.start : c.stop]

    def _read(self, start: int, stop: int) -> Tensor:
        return self.X[:, start:stop] if self.batched else self.X[start:stop]  # type: ignore[index]

    def scratch(self, name: str, shape: Sequence[int], dtype: torch.dtype | None = None) -> Tensor:
        """Memory to write to, the same for a name in every chunk of a thread.

        A new block a chunk would cost more in page faults than the matrix product it holds.
        """
        size = math.prod(shape)
        blocks: dict[str, Tensor] = self._scratch.__dict__
        if name not in blocks or len(blocks[name]) < size:
            blocks[name] = torch.empty(size, dtype=dtype or self.dtype, device=self.device)
        return blocks[name][:size].view(*shape)

    def partial_distances(self, rows: Tensor, centers: Tensor, norms: Tensor) -> Tensor:
        """``|c|^2 - 2 x.c`` as (R, K, B): squared distances less ``|x|^2``, which no arg min needs.

        The next call may write over the result.
        """
        (R, K, D), B = centers.shape, rows.shape[-2]
        if rows.ndim == 3:
            out = self.scratch("distances", (R, K, B))
            return torch.baddbmm(norms.unsqueeze(-1), centers, rows.mT, alpha=-2.0, out=out)
        flat, norms = centers.reshape(R * K, D), norms.reshape(-1)
        table = _fast_distances(rows, flat, norms)
        if table is None:
            table = self._distances(rows, flat, norms.unsqueeze(-1))
        return table.view(R, K, B)

    def _distances(self, rows: Tensor, centers: Tensor, norms: Tensor) -> Tensor:
        """The same from centres (K, D) and norms (K, 1), as (K, B), by torch's own products."""
        (K, D), B = centers.shape, len(rows)
        out = self.scratch("distances", (K, B))
        if rows.device.type == "cpu" and D >= 64 and (8 if D <= 256 else 5) >= K:
            # of few centres, rows times centres takes half the time
            product = torch.mm(rows, centers.mT, out=self.scratch("product", (B, K)))
            return torch.add(norms, product.mT, alpha=-2.0, out=out)
        return torch.addmm(norms, centers, rows.mT, alpha=-2.0, out=out)

    def _code(self, K: int) -> Tensor:
        """Rows ``0, 1, ..., K - 1`` and ``1, 1, ..., 1``."""
        if K not in self._codes:
            numbers = torch.arange(K, dtype=self.dtype)
            self._codes[K] = torch.stack([numbers, torch.ones_like(numbers)])
        return self._codes[K]

    def nearest(self, partial: Tensor) -> Tensor:
        """Arg min over clusters of (..., K, B), the first of equals, as (..., B) int64."""
        if partial.device.type != "cpu":
            return partial.argmin(-2)
        # torch's arg min does not vectorise; to compare with the minimum does. Of many clusters, in
        # P lines of Q and a shorter one, the least of each line and of each column say as much.
        K = partial.shape[-2]
        P = 1 if self.one_line >= K else math.isqrt(K)
        Q = K // P
        if P == 1:
            which, count = self._place(partial, partial.amin(-2, keepdim=True))
        else:
            table, rest = partial[..., : P * Q, :], partial[..., P * Q :, :]
            table = table.view(*table.shape[:-2], P, Q, -1)
            lines, columns = table.amin(-2), table.amin(-3)  # (..., P, B), (..., Q, B)
            if P * Q < K:
                lines = torch.cat([lines, rest.amin(-2, keepdim=True)], -2)
                ahead = columns[..., : K - P * Q, :]
                torch.minimum(ahead, rest, out=ahead)
            least = lines.amin(-2, keepdim=True)
            which, count = self._place(columns, least)
            line, sharing = self._place(lines, least)
            which, count = which.add_(line, alpha=Q), count.mul_(sharing)
        labels = which.long()
        shared = count != 1.0
        if bool(shared.any()):
            labels[shared] = partial.mT[shared].argmin(-1)
        return labels

    def _place(self, blocks: Tensor, least: Tensor) -> tuple[Tensor, Tensor]:
        """Where in (..., P, B) the least is, by a product, and how often: there it is the sum."""
        is_least = self.scratch("is least", blocks.shape)
        torch.eq(blocks, least, out=is_least)
        which, count = (self._code(blocks.shape[-2]) @ is_least).unbind(-2)
        return which, count

    def rows(self, r: int, index: Tensor, X: Rows | None = None) -> Tensor:
        """Rows (M, D) by number, of restart ``r`` where each has its own; or those of ``every``."""
        X = self.X if X is None else X
        if isinstance(X, Tensor):
            own = X[r] if self.batched else X
            rows = self.scratch("picked", (len(index), self.d))
            torch.index_select(own, 0, index, out=rows)
        else:
            rows = X[index]
        if self.shift is not None:
            rows -= self.shift[r] if self.batched else self.shift
        return rows

    def moved(self, centers: Tensor) -> Tensor:
        return centers if self.shift is None else centers - self.shift

    def moved_back(self, centers: Tensor) -> Tensor:
        return centers if self.shift is None else centers + self.shift


def _fast_distances(rows: Tensor, centers: Tensor, norms: Tensor) -> Tensor | None:
    """``|c|^2 - 2 x.c`` of (B, D), (K, D) and (K,) as (K, B), or None where torch's own is faster.

    oneDNN packs the rows as it would weights, which few features or few centres do not pay for.
    """
    K, D = centers.shape
    if D < 16 or (K <= 4 and D >= 64):
        return None
    if 6 <= K <= 64 and D >= 512:  # to turn the result costs less than to pack such rows
        table = products.linear(rows, centers * -2.0, norms)
        return None if table is None else table.mT.contiguous()
    table = products.linear(centers * -2.0, rows)
    return None if table is None else table.add_(norms.unsqueeze(-1))


def _block_bytes(X: Rows, asked: int | None) -> int:
    """Size of the largest block of distances."""
    if asked is not None:
        return asked
    if X.device.type == "cuda":
        return MAX_CHUNK_BYTES_CUDA
    return MAX_CHUNK_BYTES_INTEL if products.mkl_is_whole() else MAX_CHUNK_BYTES


def squared_lengths(rows: Tensor) -> Tensor:
    """``|x|^2`` of rows (..., D)."""
    # half the time of linalg.vecdot, which writes the squares to memory first
    norms: Tensor = torch.linalg.vector_norm(rows, dim=-1)
    return norms.square_()


def _to_float64_sum(blocks: Tensor) -> Tensor:
    """Sum the last axis; short float32 runs are exact enough, what follows them is not."""
    return blocks.sum(-1).double()


def _long_product(left: Tensor, rows: Tensor) -> Tensor:
    """``left @ rows`` in float64, from (R, K, B) and (R, B, D) or (B, D) where B is large.

    As many small products, whose sum is taken after them: one product has too few entries to keep a
    GPU busy (k = 10 in 10 dimensions: 25 times slower).
    """
    R, K, B = left.shape
    if rows.ndim == 2:
        left, rows = left.reshape(1, R * K, B), rows.unsqueeze(0)
    whole = B - B % RUN
    a, b = left[..., :whole], rows[:, :whole]
    runs = a.reshape(*a.shape[:2], -1, RUN).transpose(1, 2)  # (R, P, K, RUN)
    total: Tensor = (runs @ b.reshape(len(b), -1, RUN, b.shape[-1])).double().sum(1)
    total += (left[..., whole:] @ rows[:, whole:]).double()
    return total.view(R, K, -1)


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

    def __init__(self, R: int, n: int, like: Rows, first: int = 0) -> None:
        self.n, self.n_blocks, self.first = n, math.ceil(n / self.block), first
        shape = (R, self.n_blocks * self.block)
        self.mass = torch.zeros(shape, dtype=like.dtype, device=like.device)

    def draw(self, uniform: Tensor) -> tuple[Tensor, Tensor]:
        """Row numbers ``(R, T)`` for numbers in [0, 1) of that shape; and the total mass (R, 1).

        The process whose rows a number falls on looks it up.
        """
        R, T = uniform.shape
        blocks = self.mass.view(R, self.n_blocks, self.block)
        ends = _to_float64_sum(blocks).cumsum(-1)  # (R, n_blocks)
        masses = processes.gather(ends[:, -1:], processes.size(), dim=1)  # (R, processes)
        bounds, rank = masses.cumsum(-1), processes.rank()
        target = uniform * bounds[:, -1:]
        holder = torch.searchsorted(bounds, target, right=True).clamp_(max=processes.size() - 1)
        target = target - (bounds - masses)[:, rank : rank + 1]
        block = torch.searchsorted(ends, target, right=True).clamp_(max=self.n_blocks - 1)
        start = torch.where(block > 0, ends.gather(1, (block - 1).clamp_(min=0)), 0.0)
        inside = blocks.gather(1, block.unsqueeze(-1).expand(R, T, self.block))
        inside = inside.double().cumsum(-1)  # (R, T, block)
        # rounding between the two sums must not carry the target past the last row with mass
        rest = torch.minimum((target - start).clamp_(min=0.0), inside[..., -1] * (1.0 - 2.0**-40))
        row = torch.searchsorted(inside, rest.unsqueeze(-1), right=True).squeeze(-1)
        number = self.first + (block * self.block + row).clamp_(max=self.n - 1)
        return processes.sum_all(number.where(holder == rank, 0)), bounds[:, -1:]


@plain()
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
    R, T = len(generators), n_local_trials or _default_trials(n_clusters)
    chunks = _Chunks(X, sample_weight, R * T, max_chunk_bytes)
    uniform = torch.stack(
        [
            torch.rand(
                n_clusters, T, generator=g, dtype=torch.float64, device=g.device if g else None
            ).to(X.device)
            for g in generators
        ]
    )  # (R, K, T), in [0, 1)
    sampler = _Sampler(R, chunks.n, X, chunks.block.start)
    sampler.mass[:, : chunks.n] = 1.0 if chunks.weight is None else chunks.weight
    indices = torch.empty(R, n_clusters, dtype=torch.int64, device=X.device)
    restart = torch.arange(R, device=X.device)
    with _Threads(X.device) as threads:
        chunks.measure(threads, with_variance=False)
        nearest = _NearestOfTrials(chunks, R, T, threads)
        for k in range(n_clusters):
            candidates, _ = sampler.draw(uniform[:, k, : 1 if k == 0 else T])  # (R, T)
            rows = chunks.moved(_gather_rows(X, candidates))
            potential = processes.sum_all(nearest.look(rows))  # (R, T)
            best = potential.argmin(-1)
            indices[:, k] = candidates[restart, best]
            nearest.take(rows, best, sampler.mass)
    return _gather_rows(X, indices), indices


@plain()
@torch.no_grad()
def first_centers(
    X: Rows,
    n_clusters: int,
    *,
    generators: Sequence[torch.Generator | None],
    sample_weight: Tensor | None = None,
) -> Tensor:
    """Centres from which Lloyd's algorithm ends lower than from k-means++, one set a generator.

    Of many rows a sample is drawn, one row of each of so many even runs. On it Lloyd's algorithm
    runs from four starts of k-means++ with three times the usual candidates, and the centres with
    the least inertia are kept; from fewer starts with more than 100 clusters, from one with more
    than 200. Few rows (up to 32,768, or 128 a cluster), rows with weights and rows that are no
    dense tensor (N, D) get the centres of :func:`kmeans_plusplus`.

    Parameters
    ----------
    X : Tensor of shape (N, D) or (R, N, D), or RowSource
        float32 or float64.
    n_clusters : int
    generators : sequence of R torch.Generator
        One a restart, on any device; None is torch's global generator.
    sample_weight : Tensor of shape (N,), optional
        Not negative.

    Returns
    -------
    Tensor of shape (R, n_clusters, D)

    Examples
    --------
    >>> X = torch.tensor([[0.0], [0.0], [5.0], [9.0]])
    >>> first_centers(X, 3, generators=[torch.Generator().manual_seed(0)]).sort(dim=1).values
    tensor([[[0.],
             [5.],
             [9.]]])
    """
    _check_rows(X, n_clusters)
    size = max(START_ROWS, START_ROWS_PER_CLUSTER * n_clusters)
    few = X.shape[-2] <= 2 * size
    if few or sample_weight is not None or not isinstance(X, Tensor) or X.ndim == 3:
        centers, _ = kmeans_plusplus(
            X, n_clusters, generators=generators, sample_weight=sample_weight
        )
        return centers
    trials = MORE_TRIALS * _default_trials(n_clusters)
    starts = max(1, min(STARTS, STARTED_CLUSTERS // n_clusters))
    best = []
    for generator in generators:
        device = generator.device if generator else None
        draws = torch.rand(size, generator=generator, dtype=torch.float64, device=device)
        seeds = torch.randint(2**62, (starts,), generator=generator, device=device).tolist()
        place = torch.arange(size, dtype=torch.float64, device=device) + draws
        index = (place * (len(X) / size)).long().clamp_(max=len(X) - 1)
        rows = X[index.to(X.device)]
        own = [torch.Generator(device or "cpu").manual_seed(seed) for seed in seeds]
        first, _ = kmeans_plusplus(rows, n_clusters, generators=own, n_local_trials=trials)
        found = lloyd(rows, first)
        best.append(found.centers[int(found.inertia.argmin())])
    return torch.stack(best)


def _default_trials(n_clusters: int) -> int:
    """Candidates for each centre, as in scikit-learn."""
    return 2 + int(math.log(n_clusters))


class _NearestOfTrials:
    """Squared distance of each row to the nearest centre so far, and to each of some more."""

    def __init__(self, chunks: _Chunks, R: int, T: int, threads: _Threads) -> None:
        self.chunks, self.threads = chunks, threads
        empty = torch.empty(0, dtype=chunks.dtype, device=chunks.device)
        self.closest = empty.new_full((R, chunks.n), math.inf)
        # kept, the distances to the candidates save a second pass for the one that is taken
        fits = R * T * chunks.n * chunks.dtype.itemsize <= MAX_KEPT_BYTES
        self.kept = empty.new_empty(T if fits else 0, R, chunks.n)

    def look(self, candidates: Tensor) -> Tensor:
        """Weighted sum of those distances (R, T) with each of the candidates (R, T, D)."""
        R, T, _ = candidates.shape

        def part(first: int, last: int) -> Tensor:
            potential = torch.zeros(R, T, dtype=torch.float64, device=self.chunks.device)
            for c, nearest in self._distances(candidates, first, last, self.kept):
                potential += _to_float64_sum(nearest if c.weight is None else nearest * c.weight)
            return potential

        first, *others = self.threads.run(self.chunks.n, self.chunks.size, part)
        return sum(others, first)

    def take(self, candidates: Tensor, best: Tensor, mass: Tensor) -> None:
        """Add the best (R,) of the candidates; write the weighted distances to ``mass`` (R, N)."""
        restart = torch.arange(len(best), device=best.device)
        chosen = candidates[restart, best].unsqueeze(1)  # (R, 1, D)

        def part(first: int, last: int) -> None:
            rows = slice(first, last)
            if len(self.kept):
                for r, t in enumerate(best.tolist()):
                    self.closest[r, rows] = self.kept[t, r, rows]
            else:
                for c, nearest in self._distances(chosen, first, last):
                    self.closest[:, c.start : c.stop] = nearest[:, 0]
            mass[:, rows] = self.closest[:, rows]
            if self.chunks.weight is not None:
                mass[:, rows] *= self.chunks.weight[rows]

        self.threads.run(self.chunks.n, self.chunks.size, part)

    def _distances(
        self, centers: Tensor, first: int, last: int, kept: Tensor | None = None
    ) -> Iterator[tuple[_Chunk, Tensor]]:
        """Of each chunk, to the nearest so far or one of (R, T, D), as (R, T, B)."""
        norms, T = centers.square().sum(-1), centers.shape[1]
        for c in self.chunks.between(first, last):
            rows = slice(c.start, c.stop)
            partial = self.chunks.partial_distances(c.rows, centers, norms)
            partial.add_(self.chunks.squared(c).unsqueeze(-2)).clamp_(min=0.0)
            out = partial if kept is None or not len(kept) else kept[:T, :, rows].transpose(0, 1)
            yield c, torch.minimum(partial, self.closest[:, None, rows], out=out)


# --------------------------------------------------------------------------------------------------
# Lloyd


@plain()
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
    block = _block_bytes(X, max_chunk_bytes)
    together = max(1, min(R, block // (FEWEST_ROWS * K * X.dtype.itemsize)))
    chunks = _Chunks(X, sample_weight, together * K, max_chunk_bytes)
    centers = chunks.moved(centers).clone()
    n_iter = torch.full((R,), max_iter, device=X.device)
    running = torch.arange(R, device=X.device)
    with _Threads(X.device) as threads:
        energy, variance = chunks.measure(threads, with_variance=tol > 0.0)
        threshold = tol * variance.expand(R)
        state = _partition(chunks, R, K, threads, together)
        for i in range(1, max_iter + 1):
            before, running = running, state.iterate(centers, running, threshold)
            if len(running) < len(before):
                n_iter[before] = i
                n_iter[running] = max_iter
            if not len(running):
                break
        state.reassign(centers, torch.arange(R, device=X.device))
        total = energy + state.inertia_less_energy(centers)
        if bool((total < KEEPS_DIGITS * energy).any()):
            total = _inertia(chunks, centers, state.labels, threads)
    labels = processes.gather(state.labels, chunks.n_every, dim=1)
    return LloydResult(chunks.moved_back(centers), labels, total, n_iter)


@plain()
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
    with _Threads(X.device) as threads:
        return _nearest(chunks, chunks.moved(centers), threads)


@plain()
@torch.no_grad()
def nearest_labels(X: Rows, centers: Tensor) -> Tensor:
    """Nearest centre of each row, (R, N) int32, as :func:`assign` and without the distances.

    Examples
    --------
    >>> nearest_labels(torch.tensor([[0.0], [7.0]]), torch.tensor([[1.0], [9.0]]))
    tensor([[0, 1]], dtype=torch.int32)
    """
    centers = _batched_centers(X, centers)
    _check_rows(X, 1)
    chunks = _Chunks(X, None, centers.shape[0] * centers.shape[1], None)
    labels = torch.empty(len(centers), chunks.n, dtype=torch.int32, device=centers.device)
    moved = chunks.moved(centers)

    def part(first: int, last: int) -> None:
        for c, label, _ in _labelled(chunks, moved, first, last):
            labels[:, c.start : c.stop] = label

    with _Threads(X.device) as threads:
        threads.run(chunks.n, chunks.size, part)
    return processes.gather(labels, chunks.n_every, dim=1)


@plain()
@torch.no_grad()
def label_rows(
    X: Rows, centers: Tensor, *, sample_weight: Tensor | None = None, keep: bool = True
) -> tuple[Tensor, Tensor]:
    """Nearest centre of each row, and :func:`inertia`, in one pass.

    Parameters
    ----------
    X : Tensor of shape (N, D) or RowSource
    centers : Tensor of shape (K, D) or (R, K, D)
    sample_weight : Tensor of shape (N,), optional
    keep : bool, default=True
        Whether the labels are wanted: (R, 0) of them if not.

    Returns
    -------
    labels : Tensor of shape (R, N), int32
    inertia : Tensor of shape (R,), float64

    Examples
    --------
    >>> label_rows(torch.tensor([[0.0], [7.0]]), torch.tensor([[1.0], [9.0]]))
    (tensor([[0, 1]], dtype=torch.int32), tensor([5.], dtype=torch.float64))
    """
    centers = _batched_centers(X, centers)
    _check_rows(X, 1)
    _check_weight(sample_weight, X)
    R, K, _ = centers.shape
    chunks = _Chunks(X, sample_weight, R * K, None)
    centers = chunks.moved(centers)
    labels = torch.empty(R, chunks.n if keep else 0, dtype=torch.int32, device=X.device)

    def part(first: int, last: int) -> Tensor:
        total = torch.zeros(R, dtype=torch.float64, device=X.device)
        for c, label, _ in _labelled(chunks, centers, first, last):
            if keep:
                labels[:, c.start : c.stop] = label
            _add_inertia(total, chunks, c, centers, label)
        return total

    with _Threads(X.device) as threads:
        own, *others = threads.run(chunks.n, chunks.size, part)
    if keep:
        labels = processes.gather(labels, chunks.n_every, dim=1)
    return labels, processes.sum_all(sum(others, own))


@plain()
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
    labels = labels.view(centers.shape[0], -1)[:, chunks.block]
    with _Threads(X.device) as threads:
        return _inertia(chunks, chunks.moved(centers), labels, threads)


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


class _Moves:
    """What a thread found in its part of the rows: changes of the sums of some restarts."""

    def __init__(self, R: int, K: int, D: int, device: torch.device) -> None:
        self.sums = torch.zeros(R, K, D, dtype=torch.float64, device=device)
        self.weights = torch.zeros(R, K, dtype=torch.float64, device=device)
        self.changed = [0] * R  # rows


class _Partition:
    """Which row is in which cluster, and each cluster's sum of rows and of weights.

    Both of the rows of this process; :meth:`means` adds those of the others.

    On the CPU a pass saves three ways, none of which changes the outcome:

    - Once most rows stay where they are, a pass only asks of each whether another centre is nearer
      than its own: the minimum over clusters is cheaper than the arg min. Those with one are looked
      up after the pass, all together.
    - Only those rows move between the sums.
    - Once few rows change, each keeps a gap: by how much its second nearest centre is farther than
      its own, at least. Moving centres use it up; until it is gone the row need not be looked at
      (the bounds of Hamerly 2010, folded into one number).
    """

    #: Most rows stay, and few change: so large a part of them changed in the pass before, at most.
    most_stay, few = 0.25, 0.1
    #: Up to so many clusters, a product with all rows of a chunk beats adding some of them.
    narrow = 32
    #: Gaps are measured again when they would last for so many passes like the last one.
    lasting = 1.0

    def __init__(self, chunks: _Chunks, R: int, K: int, threads: _Threads, together: int) -> None:
        self.chunks, self.threads, self.together = chunks, threads, together
        dtype, device = chunks.dtype, chunks.device
        self.labels = torch.full((R, chunks.n), -1, dtype=torch.int32, device=device)
        self.sums = torch.zeros(R, K, chunks.d, dtype=torch.float64, device=device)
        self.weights = self.sums.new_zeros(R, K)
        self.moved = [chunks.n] * R  # rows of a restart that changed in the last pass
        # what rows leave behind in a sum of weights is zero to rounding only
        weight = torch.zeros((), dtype=torch.float64, device=device)
        if chunks.weight is not None:
            weight += chunks.weight.double().sum()
        self.empty_weight = 1e-12 * float(processes.sum_all(weight))
        self.before = [chunks.n] * R  # and in the pass before
        self.seen = torch.full((R, K, chunks.d), torch.inf, dtype=dtype, device=device)
        self.longest = torch.zeros(R, dtype=dtype, device=device)  # squared, of the centres
        self.gaps: dict[int, Tensor] = {}  # (N,) of a restart
        self.typical_gap: dict[int, float] = {}

    def iterate(self, centers: Tensor, running: Tensor, threshold: Tensor) -> Tensor:
        """Move rows, then centres (R, K, D); returns the restarts that have not converged."""
        self.reassign(centers, running)  # Eq. 2
        moved = self.means(centers, running)  # Eq. 3
        shift = (moved - centers[running]).double().square().sum((-2, -1))
        centers[running] = moved
        return running[(self.changed(running) > 0) & (shift > threshold[running])]

    def changed(self, running: Tensor) -> Tensor:
        """How many rows changed their cluster in the last iteration, for each running restart."""
        counts = [self.moved[r] for r in running.tolist()]
        return processes.sum_all(torch.tensor(counts, device=running.device))

    def reassign(self, centers: Tensor, running: Tensor) -> None:
        """Move rows to their nearest centres."""
        for r in running.tolist():
            self.before[r], self.moved[r] = self.moved[r], 0
        if centers.device.type != "cpu":
            for i in range(0, len(running), self.together):
                self._look_at_all_on_device(running[i : i + self.together], centers)
            return
        used_up = _largest_loss(self.seen, centers)  # (R, K)
        self.seen[running] = centers[running]
        self.longest = self.seen.square().sum(-1).amax(-1)
        whole = []
        for r in running.tolist():
            index = self._in_doubt(r, used_up[r])
            if index is None:
                whole.append(r)
            else:
                self._look_at(r, index, centers[r], strays=False)
        for i in range(0, len(whole), self.together):
            self._look_at_all(whole[i : i + self.together], centers, used_up)

    def _in_doubt(self, r: int, used_up: Tensor) -> Tensor | None:
        """Rows whose gap is gone, or None if they are too many to be picked out."""
        if r not in self.gaps:
            return None

        def part(start: int, stop: int) -> Tensor:
            gaps = self.gaps[r][start:stop]
            gaps -= used_up.index_select(0, self.labels[r, start:stop])
            return (gaps < 0.0).nonzero().squeeze(-1).add_(start)

        index = torch.cat(self.threads.run(self.chunks.n, self.chunks.size, part))
        # to look at all rows costs so much a row, of what picking one out costs: 150 ns of 200 for
        # 10 clusters in 784 dimensions, 35 of 40 for 100 in 32, 650 of 180 for 1,000 in 128
        looking = 0.7 + self.sums.shape[1] / 350.0
        most = looking / (looking + 1.0)
        return None if len(index) > most * self.chunks.n else index

    def _run(self, n: int, some: list[int], work: Callable[[_Moves, int, int], None]) -> None:
        """``work`` in threads, each with sums of its own, which are added in a fixed order."""

        def part(start: int, stop: int) -> _Moves:
            _, K, D = self.sums.shape
            moves = _Moves(len(some), K, D, self.chunks.device)
            work(moves, start, stop)
            return moves

        for moves in self.threads.run(n, self.chunks.size, part):
            self.sums[some] += moves.sums
            self.weights[some] += moves.weights
            for r, changed in zip(some, moves.changed, strict=True):
                self.moved[r] += changed

    def _look_at(self, r: int, index: Tensor, centers: Tensor, *, strays: bool) -> None:
        """Give some rows (M,) of a restart their nearest of its centres.

        Strays are known to have a nearer one than their own; of others, most stay where they are.
        """
        norms = centers.square().sum(-1)
        size = self.chunks.size

        def work(moves: _Moves, first: int, last: int) -> None:
            for start in range(first, last, size):
                own = index[start : min(start + size, last)]
                rows = self.chunks.rows(r, own)
                partial = self.chunks.partial_distances(rows, centers[None], norms[None])[0]
                if not strays:
                    which, partial = self._strays(r, partial, own)
                    own, rows = own.index_select(0, which), rows.index_select(0, which)
                if not len(own):
                    continue
                weight = None if self.chunks.weight is None else self.chunks.weight[own]
                self._settle(moves, 0, r, rows, weight, partial, own)
                if r in self.gaps:
                    self._own_and_other(r, partial, own)

        self._run(len(index), [r], work)

    def _strays(self, r: int, partial: Tensor, where: Tensor) -> tuple[Tensor, Tensor]:
        """Which of the rows (M,) have another centre as near as their own, and their distances.

        Of (K, M), which is written over. The gaps of the others are measured.
        """
        labels = self.labels[r, where]
        own, other = self._own_and_other(r, partial, where)
        which = (own >= other).nonzero().squeeze(-1)
        labels, own = labels.index_select(0, which).long(), own.index_select(0, which)
        partial = partial.index_select(1, which)
        return which, partial.scatter_(0, labels.unsqueeze(0), own.unsqueeze(0))

    def _look_at_all(self, some: list[int], centers: Tensor, used_up: Tensor) -> None:
        """Give all rows of some restarts their nearest centre."""
        n = self.chunks.n
        strays: dict[int, Tensor] = {}
        for r in some:
            lasts = self.typical_gap.get(r, torch.inf) > self.lasting * float(used_up[r].max())
            self.gaps.pop(r, None)
            # rows of a stream cannot be picked out: they are settled as they come
            if self.before[r] < self.most_stay * n and not self.chunks.streamed:
                strays[r] = torch.empty(n, dtype=torch.bool)
                if self.before[r] < self.few * n and lasts:
                    self.gaps[r] = torch.empty(n, dtype=centers.dtype)
        own_centers = centers[some]
        norms = own_centers.square().sum(-1)

        def work(moves: _Moves, first: int, last: int) -> None:
            for c in self.chunks.between(first, last):
                rows = c.rows if c.rows.ndim == 2 else c.rows[some]
                partial = self.chunks.partial_distances(rows, own_centers, norms)  # (R, K, B)
                where = slice(c.start, c.stop)
                for i, r in enumerate(some):
                    if r in strays:
                        torch.gt(*self._own_and_other(r, partial[i], where), out=strays[r][where])
                    else:
                        own = rows if rows.ndim == 2 else rows[i]
                        self._settle(moves, i, r, own, c.weight, partial[i], where)

        self._run(n, some, work)
        for r, stray in strays.items():
            self._look_at(r, stray.nonzero().squeeze(-1), centers[r], strays=True)
            if r in self.gaps:
                self.typical_gap[r] = float(self.gaps[r][:: max(1, n // SAMPLE)].median())

    def _own_and_other(
        self, r: int, partial: Tensor, where: slice | Tensor
    ) -> tuple[Tensor, Tensor]:
        """Of (K, M), those of the rows' own clusters and the least of all, or of all others.

        If the restart has gaps they are measured, and (K, M) is written over.
        """
        labels = self.labels[r, where].long().unsqueeze(0)
        own = partial.gather(0, labels).squeeze(0)
        if r not in self.gaps:
            return own, partial.amin(0)
        other = partial.scatter_(0, labels, torch.inf).amin(0)
        norms = (self.chunks.norms[r] if self.chunks.batched else self.chunks.norms)[where]
        # the expanded form is off by some units in the last place of its largest term, and the more
        # the longer the sums: oneDNN's of 600 features by 9, MKL's by 4
        units = 8.0 + math.sqrt(self.chunks.d)
        slack = (norms + self.longest[r]).mul_(units * torch.finfo(norms.dtype).eps)
        gap = (other + norms).sub_(slack).clamp_(min=0.0).sqrt_()
        self.gaps[r][where] = gap.sub_((own + norms).add_(slack).clamp_(min=0.0).sqrt_())
        return own, other

    def _settle(
        self,
        moves: _Moves,
        i: int,
        r: int,
        rows: Tensor,
        weight: Tensor | None,
        partial: Tensor,
        where: slice | Tensor,
    ) -> None:
        """Give the rows (M, D) at some places their nearest centre by (K, M)."""
        after, labels = self.chunks.nearest(partial), self.labels[r, where]
        changed = before = None
        if int(labels[0]) >= 0:
            changed = (after != labels).nonzero().squeeze(-1)
            before = labels.index_select(0, changed).long()
        self.labels[r, where] = after.int()
        if changed is not None:
            after = after.index_select(0, changed)
            weight = None if weight is None else weight.index_select(0, changed)
        moves.changed[i] += len(after)
        weights, K = moves.weights[i], len(partial)
        exact = None if weight is None else weight.double()
        weights += torch.bincount(after, exact, minlength=K)
        if before is not None:
            weights -= torch.bincount(before, exact, minlength=K)
        if self.narrow >= K and 8 * len(after) > len(rows):
            moves.sums[i] += self._by_product(rows, weight, K, changed, after, before)
        else:
            self._by_index(moves.sums[i], rows, weight, changed, after, before)

    def _by_product(
        self,
        rows: Tensor,
        weight: Tensor | None,
        K: int,
        changed: Tensor | None,
        after: Tensor,
        before: Tensor | None,
    ) -> Tensor:
        """Change of the sums (K, D) as a product of signs and all rows: none need be picked out."""
        signs = self.chunks.scratch("signs", (K, len(rows))).zero_()
        column = torch.arange(len(rows)) if changed is None else changed
        value = torch.ones(len(after), dtype=rows.dtype) if weight is None else weight
        signs[after, column] = value
        if before is not None:
            signs[before, column] = -value
        product = products.linear(signs, rows.mT)
        return (signs @ rows if product is None else product).double()

    def _by_index(
        self,
        sums: Tensor,
        rows: Tensor,
        weight: Tensor | None,
        changed: Tensor | None,
        after: Tensor,
        before: Tensor | None,
    ) -> None:
        """Change the sums (K, D) row by row, in float64."""
        rows = rows if changed is None else rows.index_select(0, changed)
        rows = self.chunks.scratch("float64", rows.shape, torch.float64).copy_(rows)
        if weight is not None:
            rows *= weight.double().unsqueeze(-1)
        sums.index_add_(0, after, rows)  # an int64 index: four times as fast as int32
        if before is not None:
            sums.index_add_(0, before, rows, alpha=-1)

    def _look_at_all_on_device(self, running: Tensor, centers: Tensor) -> None:
        norms = centers[running].square().sum(-1)
        changed = torch.zeros(len(running), dtype=torch.int64, device=centers.device)
        cluster = torch.arange(centers.shape[1], device=centers.device).view(1, -1, 1)
        for c in self.chunks:
            rows = c.rows if c.rows.ndim == 2 else c.rows[running]
            partial = self.chunks.partial_distances(rows, centers[running], norms)
            before = self.labels[running, c.start : c.stop]
            after = partial.argmin(1).int()
            # Atomic adds would make the sums depend on their order; a product of -1, 0, 1 does not.
            delta = (after.unsqueeze(1) == cluster).to(rows.dtype)
            delta -= (before.unsqueeze(1) == cluster).to(rows.dtype)
            if c.weight is not None:
                delta *= c.weight
            self.sums[running] += _long_product(delta, rows)
            self.weights[running] += _to_float64_sum(delta)
            self.labels[running, c.start : c.stop] = after
            changed += (after != before).sum(-1)
        for r, rows_changed in zip(running.tolist(), changed.tolist(), strict=True):
            self.moved[r] = rows_changed

    def means(self, centers: Tensor, running: Tensor) -> Tensor:
        """Eq. 3: the mean of each cluster, for the running restarts."""
        sums, weights = self._of_all(running)
        empty = weights <= self.empty_weight  # (running, K)
        if bool(empty.any()):
            for r, own in zip(running.tolist(), empty, strict=True):
                self._refill(centers, r, own.nonzero().squeeze(-1).tolist())
            sums, weights = self._of_all(running)
        weights = weights.unsqueeze(-1)
        means = sums / weights.clamp_min(torch.finfo(torch.float64).tiny)
        # with fewer rows of positive weight than clusters, a cluster stays empty where it is
        return torch.where(weights > self.empty_weight, means.to(centers.dtype), centers[running])

    def inertia_less_energy(self, centers: Tensor) -> Tensor:
        """Eq. 1 of the rows in their clusters less their weighted squared lengths, (R,)."""
        exact = centers.double()
        own = self.weights.unsqueeze(-1) * exact - 2.0 * self.sums
        return processes.sum_all((own * exact).sum((-2, -1)))

    def _of_all(self, running: Tensor) -> tuple[Tensor, Tensor]:
        """Sums and weights of the running restarts, over all processes."""
        sums, weights = self.sums[running], self.weights[running]
        processes.sum_in_place([sums, weights])
        return sums, weights

    def _refill(self, centers: Tensor, r: int, empty: list[int]) -> None:
        """Give each empty cluster of restart ``r`` a row of its own, far from its centre."""
        if not empty:
            return
        block = self.chunks.block
        for cluster, number in zip(empty, self._far_rows(centers[r], r, len(empty)), strict=False):
            self.sums[r, cluster] = self.weights[r, cluster] = 0.0
            if not block.start <= number < block.stop:  # another process has that row
                continue
            index = number - block.start
            donor = int(self.labels[r, index])
            row = self.chunks.rows(r, torch.tensor([index], device=centers.device))[0].double()
            weight = 1.0 if self.chunks.weight is None else float(self.chunks.weight[index])
            self.sums[r, donor] -= weight * row
            self.weights[r, donor] -= weight
            self.sums[r, cluster] = weight * row
            self.weights[r, cluster] = weight
            self.labels[r, index] = cluster
            self.moved[r] += 1
            if r in self.gaps:
                self.gaps[r][index] = -torch.inf

    def _far_rows(self, centers: Tensor, r: int, count: int) -> list[int]:
        """Numbers of up to so many distinct rows, the farthest from their own centres.

        Equal rows would make equal centres, of which one would be left without a row again.
        """
        enough = 4 * count + 16
        far = torch.empty(0, dtype=centers.dtype, device=centers.device)
        index = torch.empty(0, dtype=torch.int64, device=centers.device)
        for c in self.chunks:
            rows = c.rows if c.rows.ndim == 2 else c.rows[r]
            own = centers[self.labels[r, c.start : c.stop].long()]
            distance = (rows - own).square().sum(-1)
            if c.weight is not None:
                distance = torch.where(c.weight > 0, distance, 0.0)
            far, order = torch.cat([far, distance]).topk(min(enough, len(far) + len(distance)))
            here = torch.arange(c.start, c.stop, device=centers.device)
            index = torch.cat([index, here])[order]
        far, index = _farthest_of_all(far, index + self.chunks.block.start, enough)
        index = index[far > 0.0]
        rows = self.chunks.rows(r, index, self.chunks.every)
        seen: set[tuple[float, ...]] = set()
        distinct: list[int] = []
        for place, row in zip(index.tolist(), rows.tolist(), strict=True):
            if tuple(row) not in seen and len(distinct) < count:
                seen.add(tuple(row))
                distinct.append(place)
        return distinct


class _FusedPartition(_Partition):
    """The same on CUDA, by the kernels of :mod:`lloyd_kernels`: all rows at once.

    The host waits for the device once an iteration, to learn which restarts go on.
    """

    def __init__(
        self,
        kernels: ModuleType,
        chunks: _Chunks,
        R: int,
        K: int,
        threads: _Threads,
        together: int,
    ) -> None:
        super().__init__(chunks, R, K, threads, together)
        self.fixed = kernels.Pass(
            chunks.X, chunks.shift, chunks.weight, self.labels, K, self.empty_weight
        )
        self.running = torch.empty(0)
        self.numbers: list[int] = []  # of those restarts
        self.thresholds: list[float] = []

    def iterate(self, centers: Tensor, running: Tensor, threshold: Tensor) -> Tensor:
        """As that of other devices."""
        if processes.many():
            return super().iterate(centers, running, threshold)
        if running is not self.running:  # else the last call has done this
            self.running, self.numbers = running, running.tolist()
            self.thresholds = threshold[running].tolist()
            self.fixed.prepare(centers, running)
        self._look(self.numbers, running)  # Eq. 2
        told = self.fixed.means(centers, running)  # Eq. 3
        for r, changed in zip(self.numbers, told[:, -1].tolist(), strict=True):
            self.moved[r] = int(changed)
        if bool((told < 0.0).any()):
            told = self._means_of_refilled(centers, running, told[:, :-1] < 0.0)
        shifts = told[:, :-1].clamp_(min=0.0).sum(-1).tolist()
        goes_on = [
            self.moved[r] > 0 and shift > least
            for r, shift, least in zip(self.numbers, shifts, self.thresholds, strict=True)
        ]
        return running if all(goes_on) else running[torch.tensor(goes_on, device=running.device)]

    def _means_of_refilled(self, centers: Tensor, running: Tensor, empty: Tensor) -> Tensor:
        centers[running] = self.fixed.previous[running]
        self.sums[running], self.weights[running] = self.fixed.floats(running)
        for r, own in zip(self.numbers, empty, strict=True):
            self._refill(centers, r, own.nonzero().squeeze(-1).tolist())
        told: Tensor = self.fixed.means(centers, running)
        return told

    def reassign(self, centers: Tensor, running: Tensor) -> None:
        """Move rows to their nearest centres."""
        numbers = running.tolist()
        self.fixed.prepare(centers, running)
        self._look(numbers, running)
        for r, changed in zip(numbers, self.fixed.take_changed(running), strict=True):
            self.moved[r] = changed
        self.sums[running], self.weights[running] = self.fixed.floats(running)

    def _look(self, numbers: list[int], running: Tensor) -> None:
        whole = self.fixed.many(sum(self.moved[r] for r in numbers), len(numbers) * self.chunks.n)
        self.fixed.look(running, whole=whole)
        self.fixed.move(running, whole=whole)

    def _refill(self, centers: Tensor, r: int, empty: list[int]) -> None:
        before = self.labels[r].clone()
        super()._refill(centers, r, empty)
        index = (self.labels[r] != before).nonzero().squeeze(-1)
        self.fixed.put(r, index, before[index], self.chunks.rows(r, index))
        one = torch.tensor([r], device=centers.device)
        self.sums[one], self.weights[one] = self.fixed.floats(one)


def _partition(chunks: _Chunks, R: int, K: int, threads: _Threads, together: int) -> _Partition:
    kernels = fused.kernels_for_lloyd(chunks.X, K)
    if kernels is not None and not _even(chunks.weight):
        logger.info("sample_weight is too uneven for fixed point: torch's own kernels run")
        kernels = None
    if kernels is None:
        return _Partition(chunks, R, K, threads, together)
    return _FusedPartition(kernels, chunks, R, K, threads, together)


def _even(weight: Tensor | None) -> bool:
    """Whether fixed point, with one unit for all, keeps the digits of the smallest of them."""
    if weight is None:
        return True
    positive = weight[weight > 0.0]
    return bool(len(positive)) and bool(positive.min() > UNEVEN * positive.max())


def _farthest_of_all(far: Tensor, numbers: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The largest distances of all processes, at most so many, and the numbers of their rows."""
    if not processes.many():
        return far, numbers
    missing = count - len(far)
    far = torch.cat([far, far.new_zeros(missing)])
    numbers = torch.cat([numbers, numbers.new_zeros(missing)])
    every = count * processes.size()
    far, order = processes.gather(far, every).topk(count)
    return far, processes.gather(numbers, every)[order]


def _largest_loss(old: Tensor, new: Tensor) -> Tensor:
    """By how much a row of each cluster can lose of its gap when centres (R, K, D) move, (R, K).

    Its own centre may have gone away from it, and any other come nearer.
    """
    moved: Tensor = torch.linalg.vector_norm(new - old, dim=-1)  # (R, K)
    if moved.shape[1] == 1:
        return torch.zeros_like(moved)
    top, _ = moved.topk(2, dim=-1)
    others = torch.where(moved < top[:, :1], top[:, :1], top[:, 1:])
    return (moved + others) * (1.0 + 16.0 * torch.finfo(moved.dtype).eps)


def _labelled(
    chunks: _Chunks, centers: Tensor, first: int, last: int
) -> Iterator[tuple[_Chunk, Tensor, Tensor]]:
    """Chunks with their nearest centres (R, B), and ``|c|^2 - 2 x.c`` of all (R, K, B)."""
    norms = centers.square().sum(-1)
    parts = Parts()
    for c in chunks.between(first, last):

        def compute(start: int, stop: int, c: _Chunk = c) -> tuple[_Chunk, Tensor, Tensor]:
            part = c.part(start, stop)
            partial = chunks.partial_distances(part.rows, centers, norms)
            return part, chunks.nearest(partial), partial

        yield from parts(c.stop - c.start, compute)


def _nearest(chunks: _Chunks, centers: Tensor, threads: _Threads) -> tuple[Tensor, Tensor]:
    R = centers.shape[0]
    labels = torch.empty(R, chunks.n, dtype=torch.int32, device=centers.device)
    nearest = torch.empty(R, chunks.n, dtype=centers.dtype, device=centers.device)

    def part(first: int, last: int) -> None:
        for c, label, partial in _labelled(chunks, centers, first, last):
            labels[:, c.start : c.stop] = label
            smallest = partial.gather(1, label.unsqueeze(1)).squeeze(1)
            smallest += squared_lengths(c.rows)
            nearest[:, c.start : c.stop] = smallest.clamp_(min=0.0)

    threads.run(chunks.n, chunks.size, part)
    n = chunks.n_every
    return processes.gather(labels, n, dim=1), processes.gather(nearest, n, dim=1)


def _inertia(chunks: _Chunks, centers: Tensor, labels: Tensor, threads: _Threads) -> Tensor:
    def part(first: int, last: int) -> Tensor:
        total = torch.zeros(centers.shape[0], dtype=torch.float64, device=centers.device)
        for c in chunks.between(first, last):
            _add_inertia(total, chunks, c, centers, labels[:, c.start : c.stop])
        return total

    first, *others = threads.run(chunks.n, chunks.size, part)
    return processes.sum_all(sum(others, first))


def _add_inertia(
    total: Tensor, chunks: _Chunks, c: _Chunk, centers: Tensor, labels: Tensor
) -> None:
    """Add what a chunk with labels (R, B) contributes."""
    for r in range(len(total)):
        rows = c.rows if c.rows.ndim == 2 else c.rows[r]
        own = chunks.scratch("own", rows.shape)
        torch.index_select(centers[r], 0, labels[r], out=own)
        own -= rows
        distance = squared_lengths(own)
        total[r] += (distance if c.weight is None else distance * c.weight).double().sum()
