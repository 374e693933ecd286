"""Kernels of Lloyd's algorithm in Triton, for CUDA: an iteration is three launches.

:class:`Pass` does what the operations of :mod:`lloyd` do, which remain where there is no Triton and
are the oracle of the tests. Import it by :func:`fused.kernels_for_lloyd`.

Sums over rows are kept in fixed point: whole numbers have one sum, whatever the order of the atomic
adds, and what a row leaves behind in a cluster is exactly nothing. A row is added one by one where
few have moved, and by a product with the matrix of who is where, in pieces of 11 bits that half
precision holds, where many have: both give the same numbers.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["Pass", "Tile", "Tiles", "tiles_for", "try_out"]

#: Adding and taking it away rounds a number below 2**22 to a whole one, halves to even ones.
ROUND = tl.constexpr(12582912.0)
#: Bits of a piece: whole numbers up to so many bits are exact in half precision.
BITS = tl.constexpr(11)
#: A number has four pieces, the first of which is not larger than 2**10.
PIECES, LARGEST = 4, 43
#: Rows whose pieces, added up in float32, still are whole numbers.
LONGEST = 2**13
#: Numbers that are not compiled in, as one or a multiple of 16: a kernel takes up to a second to
#: compile, and none of these says what lies side by side in memory.
ANY = ("n_rows", "n_running", "n_clusters", "units", "row_units", "run", "whole", "means")


# ------------------------------------------------------------------------------------ fixed point


@triton.jit
def _pieces(value, scale):
    """Four whole numbers: of ``value * scale``, and thrice of 2048 times what it is more."""
    value = value * scale
    p3 = (value + ROUND) - ROUND
    value = (value - p3) * 2048.0
    p2 = (value + ROUND) - ROUND
    value = (value - p2) * 2048.0
    p1 = (value + ROUND) - ROUND
    value = (value - p1) * 2048.0
    return p3, p2, p1, (value + ROUND) - ROUND


@triton.jit
def _joined(p3, p2, p1, p0):
    return (
        (p3.to(tl.int64) << (3 * BITS)) + (p2.to(tl.int64) << (2 * BITS))
        + (p1.to(tl.int64) << BITS) + p0.to(tl.int64)
    )  # fmt: skip


@triton.jit
def _whole(value, scale):
    """``value * scale * 2**33``, rounded."""
    p3, p2, p1, p0 = _pieces(value, scale)
    return _joined(p3, p2, p1, p0)


def _scales(largest: Tensor, n_rows: int) -> tuple[Tensor, Tensor]:
    """Scale of the first piece, float32, and the unit of the fixed point, float64: powers of two.

    The sum of so many rows must stay below 2**63: of a number up to ``largest``, 62 bits less those
    of their number are left, of which four pieces hold 43. With a million rows that is 2**-42 of
    the largest, far beyond float32.
    """
    bits = min(LARGEST, 62 - math.ceil(math.log2(max(n_rows, 1))))
    exponent = bits - torch.frexp(largest.double()).exponent.double().clamp(min=-100)
    first = exponent - (PIECES - 1) * BITS.value
    return torch.exp2(first).float(), torch.exp2(-exponent)


# ---------------------------------------------------------------------------------------- nearest


@triton.jit
def _high(value):
    """The nearest number of TF32."""
    bits = value.to(tl.int32, bitcast=True)
    return ((bits + 4096) & -8192).to(tl.float32, bitcast=True)


@triton.jit
def _add_product(total, x, high, low, WAY: tl.constexpr):
    """Add the product with centres, whose rounding to TF32 and rest come apart if ``split``.

    The product of both rests is too small for float32 to see.
    """
    if WAY == "split":
        x_high = _high(x)
        x_low = _high(x - x_high)
        total = tl.dot(x_low, high, total, input_precision="tf32")
        total = tl.dot(x_high, low, total, input_precision="tf32")
        total = tl.dot(x_high, high, total, input_precision="tf32")
    else:
        total = tl.dot(x, high, total, input_precision=WAY)
    return total


@triton.jit
def _settle(
    after, weight, labels, old, listed, counts, weights, restart, begin, n_rows, n_clusters,
    weight_scale, whole, WEIGHT: tl.constexpr, FEW: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Write the labels of a block of rows, what changed, and the weights of the clusters."""
    at = tl.arange(0, ROWS)
    is_row = begin + at < n_rows
    here = restart * n_rows + begin
    before = tl.load(labels + here + at, is_row, 0)
    changed = is_row & (after != before)
    n_changed = tl.sum(changed.to(tl.int32))
    if n_changed > 0:
        slot = tl.atomic_add(counts + restart, n_changed.to(tl.int64), sem="relaxed")
        tl.store(labels + here + at, after, changed)
        tl.store(old + here + at, before, changed | (is_row & (whole != 0)))
        if whole == 0:
            place = slot + tl.cumsum(changed.to(tl.int32), 0) - 1
            tl.store(listed + restart * n_rows + place, begin.to(tl.int32) + at, changed)
        mass = tl.full((ROWS,), 1, tl.int64)
        if WEIGHT:
            mass = _whole(tl.load(weight + begin + at, is_row, 0.0), weight_scale)
        weights += restart * n_clusters
        if FEW:  # all rows of a block would wait for the same few numbers
            cluster = tl.arange(0, 16)[None, :]
            mass = tl.where(changed, mass, 0)[:, None]
            comes = (after[:, None] == cluster).to(tl.int64)
            more = tl.sum(mass * (comes - (before[:, None] == cluster).to(tl.int64)), 0)
            cluster = tl.arange(0, 16)
            tl.atomic_add(weights + cluster, more, cluster < n_clusters, sem="relaxed")
        else:
            tl.atomic_add(weights + after, mass, changed, sem="relaxed")
            tl.atomic_add(weights + before, -mass, changed & (before >= 0), sem="relaxed")
    elif whole != 0:
        tl.store(old + here + at, before, is_row)


@triton.jit(do_not_specialize=ANY)
def _nearest(
    rows, shift, high, low, norms, weight, which, labels, old, listed, counts, weights,
    n_rows, n_running, n_clusters, units, row_units, rows_apart, apart, weight_scale, whole,
    UNIT: tl.constexpr, ROW_UNIT: tl.constexpr, SHIFT: tl.constexpr, WEIGHT: tl.constexpr,
    WAY: tl.constexpr, ONE: tl.constexpr, FEW: tl.constexpr,
    ROWS: tl.constexpr, CLUSTERS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    # programs that read the same rows follow each other
    restart = tl.load(which + tl.program_id(0) % n_running)
    begin = (tl.program_id(0) // n_running).to(tl.int64) * ROWS
    n_features, width = units * UNIT, row_units * ROW_UNIT
    at, k = tl.arange(0, ROWS), tl.arange(0, DEPTH)
    is_row = begin + at < n_rows
    rows = rows + restart * rows_apart + begin * width + (at[:, None] * width + k[None, :])
    shift += restart * apart
    high += restart * n_clusters * n_features
    low += restart * n_clusters * n_features
    x = tl.zeros((ROWS, DEPTH), tl.float32)
    if ONE:  # all features at once: the rows stay
        x = tl.load(rows, is_row[:, None] & (k < n_features)[None, :], 0.0)
        if SHIFT:
            x -= tl.load(shift + k, k < n_features, 0.0)[None, :]
    best = tl.full((ROWS,), float("inf"), tl.float32)
    after = tl.zeros((ROWS,), tl.int32)
    for first in range(0, n_clusters, CLUSTERS):
        cluster = first + tl.arange(0, CLUSTERS)
        is_cluster = (cluster < n_clusters)[None, :]
        there = cluster[None, :] * n_features + k[:, None]
        total = tl.zeros((ROWS, CLUSTERS), tl.float32)
        if ONE:
            inside = (k < n_features)[:, None] & is_cluster
            c = tl.load(high + there, inside, 0.0)
            c_low = c
            if WAY == "split":
                c_low = tl.load(low + there, inside, 0.0)
            total = _add_product(total, x, c, c_low, WAY)
        else:
            for start in range(0, n_features, DEPTH):
                is_k = start + k < n_features
                x = tl.load(rows + start, is_row[:, None] & is_k[None, :], 0.0)
                if SHIFT:
                    x -= tl.load(shift + start + k, is_k, 0.0)[None, :]
                c = tl.load(high + start + there, is_k[:, None] & is_cluster, 0.0)
                c_low = c
                if WAY == "split":
                    c_low = tl.load(low + start + there, is_k[:, None] & is_cluster, 0.0)
                total = _add_product(total, x, c, c_low, WAY)
        norm = tl.load(norms + restart * n_clusters + cluster, cluster < n_clusters, float("inf"))
        least, place = tl.min(norm[None, :] - 2.0 * total, 1, return_indices=True)
        after = tl.where(least < best, first + place, after)
        best = tl.minimum(least, best)

    _settle(
        after, weight, labels, old, listed, counts, weights, restart, begin, n_rows, n_clusters,
        weight_scale, whole, WEIGHT, FEW, ROWS,
    )  # fmt: skip


# ------------------------------------------------------------------------------------------- sums


# Were the widths known as multiples of something, a thread would take neighbours, and the atomic
# adds of a warp would lie apart.
@triton.jit(do_not_specialize=("n_features", "width", *ANY))
def _move_listed(
    rows, shift, weight, which, labels, old, listed, counts, sums, scales,
    n_rows, n_clusters, n_features, width, rows_apart, apart,
    SHIFT: tl.constexpr, WEIGHT: tl.constexpr, ROWS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    restart = tl.load(which + tl.program_id(1))
    rows += restart * rows_apart
    shift += restart * apart
    scales += restart * apart
    labels += restart * n_rows
    old += restart * n_rows
    listed += restart * n_rows
    sums += restart * n_clusters * n_features
    count = tl.load(counts + restart).to(tl.int32)
    for begin in range(tl.program_id(0) * ROWS, count, tl.num_programs(0) * ROWS):
        at = begin + tl.arange(0, ROWS)
        inside = at < count
        row = tl.load(listed + at, inside, 0).to(tl.int64)
        after = tl.load(labels + row, inside, 0).to(tl.int64) * n_features
        before = tl.load(old + row, inside, -1).to(tl.int64)
        leaves = before >= 0
        before *= n_features
        for first in range(0, n_features, DEPTH):
            k = first + tl.arange(0, DEPTH)
            is_k = (k < n_features)[None, :]
            x = tl.load(rows + row[:, None] * width + k[None, :], inside[:, None] & is_k, 0.0)
            if SHIFT:
                x -= tl.load(shift + k, k < n_features, 0.0)[None, :]
            if WEIGHT:
                x *= tl.load(weight + row, inside, 0.0)[:, None]
            x = _whole(x, tl.load(scales + k, k < n_features, 0.0)[None, :])
            there = sums + k[None, :]
            tl.atomic_add(there + after[:, None], x, inside[:, None] & is_k, sem="relaxed")
            tl.atomic_add(there + before[:, None], -x, leaves[:, None] & is_k, sem="relaxed")


@triton.jit(do_not_specialize=ANY)
def _move_all(
    rows, shift, weight, which, labels, old, sums, scales,
    n_rows, n_clusters, units, row_units, rows_apart, apart, run,
    UNIT: tl.constexpr, ROW_UNIT: tl.constexpr, SHIFT: tl.constexpr, WEIGHT: tl.constexpr,
    ROWS: tl.constexpr, CLUSTERS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    restart = tl.load(which + tl.program_id(1))
    n_features, width = units * UNIT, row_units * ROW_UNIT
    n_slices = tl.cdiv(n_features, DEPTH)
    n_tiles = n_slices * tl.cdiv(n_clusters, CLUSTERS)  # of a run of rows, one after the other
    tile = tl.program_id(0) % n_tiles
    begin = (tl.program_id(0) // n_tiles).to(tl.int64) * run
    k = (tile % n_slices) * DEPTH + tl.arange(0, DEPTH)
    cluster = (tile // n_slices) * CLUSTERS + tl.arange(0, CLUSTERS)
    at, is_k = tl.arange(0, ROWS), (k < n_features)[None, :]
    rows = rows + restart * rows_apart + begin * width + (at[:, None] * width + k[None, :])
    weight += begin
    labels += restart * n_rows + begin
    old += restart * n_rows + begin
    move = tl.zeros((1, DEPTH), tl.float32)
    if SHIFT:
        move = tl.load(shift + restart * apart + k, k < n_features, 0.0)[None, :]
    scale = tl.load(scales + restart * apart + k, k < n_features, 0.0)[None, :]
    t3 = tl.zeros((CLUSTERS, DEPTH), tl.float32)
    t2 = tl.zeros((CLUSTERS, DEPTH), tl.float32)
    t1 = tl.zeros((CLUSTERS, DEPTH), tl.float32)
    t0 = tl.zeros((CLUSTERS, DEPTH), tl.float32)
    left = tl.minimum(n_rows - begin, run).to(tl.int32)
    for first in range(0, left, ROWS):
        is_row = first + at < left
        after = tl.load(labels + first + at, is_row, -1)[None, :]
        before = tl.load(old + first + at, is_row, -1)[None, :]
        comes = (after == cluster[:, None]).to(tl.float16)
        sign = comes - (before == cluster[:, None]).to(tl.float16)
        x = tl.load(rows, is_row[:, None] & is_k, 0.0)
        rows += ROWS * width
        if SHIFT:
            x -= move
        if WEIGHT:
            x *= tl.load(weight + first + at, is_row, 0.0)[:, None]
        p3, p2, p1, p0 = _pieces(x, scale)
        t3 = tl.dot(sign, p3.to(tl.float16), t3)
        t2 = tl.dot(sign, p2.to(tl.float16), t2)
        t1 = tl.dot(sign, p1.to(tl.float16), t1)
        t0 = tl.dot(sign, p0.to(tl.float16), t0)
    more = _joined(t3, t2, t1, t0)
    there = restart * n_clusters * n_features + cluster[:, None] * n_features + k[None, :]
    inside = (cluster < n_clusters)[:, None] & is_k
    tl.atomic_add(sums + there, more, inside & (more != 0), sem="relaxed")


# ------------------------------------------------------------------------------------------ means


@triton.jit(do_not_specialize=ANY)
def _means(
    centers, previous, high, low, norms, which, sums, units, weights, counts, told,
    n_clusters, n_features, apart, weight_unit, empty_weight, means,
    SPLIT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    cluster = tl.program_id(0)
    restart = tl.load(which + tl.program_id(1))
    place = restart * n_clusters + cluster
    begin = place * n_features
    weight = tl.load(weights + place).to(tl.float64) * weight_unit
    empty = weight <= empty_weight
    divisor = tl.where(empty, 1.0, weight)
    norm = tl.zeros((BLOCK,), tl.float32)
    moved = tl.zeros((BLOCK,), tl.float64)
    for first in range(0, n_features, BLOCK):
        k = first + tl.arange(0, BLOCK)
        inside = k < n_features
        c = tl.load(centers + begin + k, inside, 0.0)
        if means != 0:
            tl.store(previous + begin + k, c, inside)
            unit = tl.load(units + restart * apart + k, inside, 0.0)
            mean = tl.load(sums + begin + k, inside, 0).to(tl.float64) * unit / divisor
            mean = tl.where(empty, c, mean.to(tl.float32))
            step = (mean - c).to(tl.float64)
            moved += step * step
            c = mean
            tl.store(centers + begin + k, c, inside)
        norm += c * c
        if SPLIT:
            c_high = _high(c)
            tl.store(low + begin + k, _high(c - c_high), inside)
            c = c_high
        tl.store(high + begin + k, c, inside)
    tl.store(norms + place, tl.sum(norm))
    if means != 0:
        told += tl.program_id(1) * (n_clusters + 1)
        tl.store(told + cluster, tl.where(empty, -1.0, tl.sum(moved)))
        if cluster == 0:
            tl.store(told + n_clusters, tl.load(counts + restart).to(tl.float64))
            tl.store(counts + restart, 0)  # for the next pass


# ------------------------------------------------------------------------------------------- pass


class Tile(NamedTuple):
    """What one program works on at a time, and how."""

    rows: int
    clusters: int
    depth: int
    warps: int
    stages: int


class Tiles(NamedTuple):
    """How the kernels of a pass run."""

    nearest: Tile
    way: str
    """Of the product: ``split``, ``tf32x3`` or ``ieee``."""
    move_all: Tile
    run: int
    """Rows that a program of it adds up, at most 2**13 and a multiple of its tile's."""
    move_listed: Tile
    programs: int


def _power(size: int) -> int:
    return max(16, int(triton.next_power_of_2(size)))


def _unit(size: int) -> int:
    return math.gcd(size, 4)


def tiles_for(n_rows: int, n_clusters: int, n_features: int) -> Tiles:
    """The tiles for a number of clusters and of features; measured on an H200."""
    clusters, depth = _power(n_clusters), _power(n_features)
    if depth <= 64:
        nearest = Tile(128, min(clusters, 64), depth, 4, 2)
    elif clusters <= 16:
        nearest = Tile(64, clusters, 64, 4, 3)
    elif clusters <= 128:
        nearest = Tile(128, clusters, 32, 4 if clusters < 64 else 8, 3)
    else:
        nearest = Tile(128, 256, 32, 8, 2)
    slice_, few = min(depth, 64), min(clusters, 128)
    move_all = Tile(64, few, slice_ if few <= 64 else min(slice_, 32), 4, 2)
    n_tiles = triton.cdiv(n_clusters, few) * triton.cdiv(n_features, move_all.depth)
    run = triton.cdiv(n_rows * n_tiles, PROGRAMS * move_all.rows) * move_all.rows
    short = min(depth, 128)
    return Tiles(
        nearest,
        "split",
        move_all,
        min(max(run, 4 * move_all.rows), LONGEST),
        Tile(512 // short, 0, short, 4, 1),
        PROGRAMS,
    )


#: Programs that fill a device: eight for each multiprocessor of an H200.
PROGRAMS = 8 * 132
#: Rows are added up by products where more of them moved in the pass before than this part, and
#: this part for each cluster. With ten clusters all of MNIST's take 0.08 ms by products and 0.32
#: one by one, with a thousand 200,000 take 0.85 and 0.10.
MANY, MANY_A_CLUSTER = 0.2, 0.0025


class Pass:
    """Which row is in which cluster, and the sums of the clusters, in fixed point.

    An iteration is :meth:`look`, :meth:`move` and :meth:`means`, for some of the restarts, as
    numbers on the device.

    Parameters
    ----------
    rows : Tensor of shape (N, D) or (R, N, D)
        float32.
    shift : Tensor of shape (1, D) or (R, 1, D), or None
        What is taken from each row.
    weight : Tensor of shape (N,) or None
        Not negative.
    labels : Tensor of shape (R, N), int32
        Changed in place; -1 is no cluster.
    n_clusters : int
    empty_weight : float
        A cluster of no larger weight is empty.
    tiles : Tiles, optional
    """

    def __init__(
        self,
        rows: Tensor,
        shift: Tensor | None,
        weight: Tensor | None,
        labels: Tensor,
        n_clusters: int,
        empty_weight: float = 0.0,
        tiles: Tiles | None = None,
    ) -> None:
        self.rows = rows if rows.stride(-1) == 1 else rows.contiguous()
        self.shift = None if shift is None else shift.contiguous()
        self.weight = None if weight is None else weight.float().contiguous()
        self.labels, self.empty_weight = labels, empty_weight
        (R, self.n_rows), K, D = labels.shape, n_clusters, int(rows.shape[-1])
        self.n_clusters, self.n_features = K, D
        self.tiles = tiles or tiles_for(self.n_rows, K, D)
        self._choose_scales()

        def new(*shape: int, dtype: torch.dtype) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=rows.device)

        self.sums, self.weights = (new(*n, dtype=torch.int64) for n in ((R, K, D), (R, K)))
        self.counts = new(R, dtype=torch.int64)  # rows that changed; zero before a pass
        self.old, self.listed = torch.empty_like(labels), torch.empty_like(labels)
        self.previous, self.high, self.low = (new(R, K, D, dtype=torch.float32) for _ in range(3))
        self.norms, self.told = new(R, K, dtype=torch.float32), new(R, K + 1, dtype=torch.float64)

    def _choose_scales(self) -> None:
        least, largest = torch.aminmax(self.rows, dim=-2)  # (D,) or (R, D)
        if self.shift is not None:
            move = self.shift.squeeze(-2)
            least, largest = least - move, largest - move
        largest = torch.maximum(least.abs(), largest.abs()).double()
        self.weight_scale, self.weight_unit = 2.0**-33, 1.0
        if self.weight is not None:
            heaviest = self.weight.max().double()
            largest = largest * heaviest
            scale, unit = _scales(heaviest, self.n_rows)
            self.weight_scale, self.weight_unit = float(scale), float(unit)
        scales, units = _scales(largest, self.n_rows)
        self.scales, self.units = scales.view(-1, self.n_features), units.view(-1, self.n_features)

    def _of_rows(self) -> tuple[Tensor, Tensor, Tensor]:
        """Rows, shift and weight; what is not there is not read."""
        rows = self.rows
        return (
            rows,
            rows if self.shift is None else self.shift,
            rows if self.weight is None else self.weight,
        )

    def _apart(self) -> tuple[int, int]:
        """From one restart to the next: of rows, and of what has a number for each feature."""
        batched = self.rows.ndim == 3
        return (self.rows.stride(0), self.n_features) if batched else (0, 0)

    def _known(self) -> dict[str, int | bool]:
        D, width = self.n_features, self.rows.stride(-2)
        return {
            "units": D // _unit(D),
            "row_units": width // _unit(width),
            "UNIT": _unit(D),
            "ROW_UNIT": _unit(width),
            "SHIFT": self.shift is not None,
            "WEIGHT": self.weight is not None,
        }

    def prepare(self, centers: Tensor, which: Tensor) -> None:
        """Look at given centres (R, K, D) in the next pass; :meth:`means` does it for its own."""
        self._launch_means(centers, which, means=False)

    def look(self, which: Tensor, *, whole: bool) -> None:
        """Move rows to their nearest centres; the clusters' weights follow.

        With ``whole`` they are to be moved between the sums by products, else one by one.
        """
        tile, K, D = self.tiles.nearest, self.n_clusters, self.n_features
        rows, shift, weight = self._of_rows()
        with torch.cuda.device_of(rows):
            _nearest[(triton.cdiv(self.n_rows, tile.rows) * len(which),)](
                rows, shift, self.high, self.low, self.norms, weight, which, self.labels, self.old,
                self.listed, self.counts, self.weights, self.n_rows, len(which), K,
                rows_apart=self._apart()[0], apart=self._apart()[1],
                weight_scale=self.weight_scale, whole=int(whole), **self._known(),
                WAY=self.tiles.way, ONE=tile.depth >= D, FEW=K <= 16,
                ROWS=tile.rows, CLUSTERS=tile.clusters, DEPTH=tile.depth,
                num_warps=tile.warps, num_stages=tile.stages,
            )  # fmt: skip

    def move(self, which: Tensor, *, whole: bool) -> None:
        """Take the rows that changed out of the sums of their old clusters, into the new ones'."""
        (rows, shift, weight), K, D = self._of_rows(), self.n_clusters, self.n_features
        apart, known = self._apart(), self._known()
        with torch.cuda.device_of(rows):
            if whole:
                tile, run = self.tiles.move_all, self.tiles.run
                n_tiles = triton.cdiv(K, tile.clusters) * triton.cdiv(D, tile.depth)
                _move_all[(triton.cdiv(self.n_rows, run) * n_tiles, len(which))](
                    rows, shift, weight, which, self.labels, self.old, self.sums, self.scales,
                    self.n_rows, K, rows_apart=apart[0], apart=apart[1], run=run, **known,
                    ROWS=tile.rows, CLUSTERS=tile.clusters, DEPTH=tile.depth,
                    num_warps=tile.warps, num_stages=tile.stages,
                )  # fmt: skip
            else:
                tile = self.tiles.move_listed
                _move_listed[(self.tiles.programs, len(which))](
                    rows, shift, weight, which, self.labels, self.old, self.listed, self.counts,
                    self.sums, self.scales, self.n_rows, K, D, rows.stride(-2), *apart,
                    SHIFT=known["SHIFT"], WEIGHT=known["WEIGHT"], ROWS=tile.rows,
                    DEPTH=tile.depth, num_warps=tile.warps,
                )  # fmt: skip

    def means(self, centers: Tensor, which: Tensor) -> Tensor:
        """Write the means of the clusters over the centres (R, K, D), which ``previous`` keeps.

        Returns, on the host, how far each centre went, squared, or -1 for one of an empty cluster,
        and last how many rows changed, (len(which), K + 1).
        """
        self._launch_means(centers, which, means=True)
        return self.told[: len(which)].cpu()

    def _launch_means(self, centers: Tensor, which: Tensor, *, means: bool) -> None:
        with torch.cuda.device_of(centers):
            _means[(self.n_clusters, len(which))](
                centers, self.previous, self.high, self.low, self.norms, which, self.sums,
                self.units, self.weights, self.counts, self.told, self.n_clusters, self.n_features,
                self._apart()[1], self.weight_unit, self.empty_weight, int(means),
                SPLIT=self.tiles.way == "split", BLOCK=min(1024, _power(self.n_features)),
                num_warps=1 if self.n_features <= 256 else 4,
            )  # fmt: skip

    def many(self, changed: int, of: int) -> bool:
        """Whether to move rows by products where so many of some changed in the pass before."""
        return changed > of * (MANY + MANY_A_CLUSTER * _power(self.n_clusters))

    def take_changed(self, which: Tensor) -> list[int]:
        """How many rows changed since the last call, or :meth:`means`."""
        changed: list[int] = self.counts[which].tolist()
        self.counts.zero_()
        return changed

    def floats(self, which: Tensor) -> tuple[Tensor, Tensor]:
        """Sums (R, K, D) and weights (R, K) of some restarts in float64."""
        units = self.units if len(self.units) == 1 else self.units[which]
        sums = self.sums[which].double() * units.unsqueeze(1)
        return sums, self.weights[which].double() * self.weight_unit

    def put(self, r: int, index: Tensor, before: Tensor, rows: Tensor) -> None:
        """Move rows (M, D), already shifted, whose labels were changed by hand."""
        after, before = self.labels[r, index].long(), before.long()
        mass = torch.ones(len(index), dtype=torch.int64, device=rows.device)
        if self.weight is not None:
            rows = rows * self.weight[index].unsqueeze(-1)
            mass = (self.weight[index].double() / self.weight_unit).round().long()
        whole = (rows.double() / self.units[r if len(self.units) > 1 else 0]).round().long()
        for clusters, sign in ((after, 1), (before, -1)):
            self.sums[r].index_add_(0, clusters, whole, alpha=sign)
            self.weights[r].index_add_(0, clusters, mass, alpha=sign)


def try_out(n_clusters: int, n_features: int, device: torch.device) -> None:
    """Run a pass with the tiles for such a size; an error says what is in the way.

    Without shift and weights, as most fits are: what is compiled here serves them.
    """
    rows = torch.zeros(2, n_features, device=device)
    labels = torch.full((1, 2), -1, dtype=torch.int32, device=device)
    one, which = Pass(rows, None, None, labels, n_clusters), labels.new_zeros(1).long()
    centers = rows.new_zeros(1, n_clusters, n_features)
    one.prepare(centers, which)
    for whole in (True, False):
        one.look(which, whole=whole)
        one.move(which, whole=whole)
        one.means(centers, which)
