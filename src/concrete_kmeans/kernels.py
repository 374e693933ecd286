"""Kernels of a training step in Triton, for CUDA: few launches and few passes over memory.

Each does what a handful of torch's operations do, which remain where there is no Triton (on
Windows, say) and are the oracle of the tests. Import it by :func:`fused.kernels_for`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Concatenate, NamedTuple, ParamSpec, TypeVar

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = [
    "Adam",
    "Clustering",
    "Pace",
    "affine",
    "assign",
    "count",
    "move",
    "move_layer",
    "shared_memory",
    "squared_error",
    "take",
    "to_layer",
    "to_rows",
]

#: Where a variance or a share of rows counts as zero.
TINY = tl.constexpr(1e-12)
#: Numbers that are not compiled in, as one or a multiple of 16: a kernel takes up to a second to
#: compile, and units say already what lies side by side in memory.
ANY = ("n_rows", "in_units", "out_units", "fours")


def shared_memory(device: torch.device) -> int:
    """Bytes that a program can have."""
    known = triton.runtime.driver.active.utils.get_device_properties(device.index or 0)
    return int(known["max_shared_mem"])


P = ParamSpec("P")
T = TypeVar("T")


def _there(launch: Callable[Concatenate[Tensor, P], T]) -> Callable[Concatenate[Tensor, P], T]:
    """Launch on the device of the first tensor, as torch does: Triton takes the current one."""

    @functools.wraps(launch)
    def launched(first: Tensor, /, *args: P.args, **kwargs: P.kwargs) -> T:
        with torch.cuda.device_of(first):
            return launch(first, *args, **kwargs)

    return launched


# ------------------------------------------------------------------------------------------- rows


@triton.jit
def _take(rows, index, high, low, factor, out, n_features, BLOCK: tl.constexpr):
    here = tl.program_id(0).to(tl.int64)
    there = tl.load(index + here)
    for first in range(0, n_features, BLOCK):
        at = first + tl.arange(0, BLOCK)
        inside = at < n_features
        value = tl.load(rows + there * n_features + at, inside)
        value = value - tl.load(high + at, inside) - tl.load(low + at, inside)
        value *= tl.load(factor + at, inside)
        tl.store(out + here * n_features + at, value, inside)


@_there
def take(rows: Tensor, index: Tensor, high: Tensor, low: Tensor, factor: Tensor) -> Tensor:
    """``(rows[index] - high - low) * factor`` of rows (N, D); the others (D,)."""
    out = rows.new_empty(len(index), rows.shape[1])
    block = min(1024, triton.next_power_of_2(rows.shape[1]))
    _take[(len(index),)](rows, index, high, low, factor, out, rows.shape[1], BLOCK=block)
    return out


# ------------------------------------------------------------------------- layers of the networks
#
# Sizes come as a number of units and the size of a unit, which the compiler knows: it then knows
# that as many numbers lie side by side, and reads them at once.


def _unit(size: int) -> int:
    return math.gcd(size, 8)


class Tile(NamedTuple):
    """What one program computes of a product, and how."""

    rows: int
    columns: int
    depth: int
    """Of a slice of both factors."""
    warps: int
    stages: int


@triton.jit(do_not_specialize=ANY)
def _affine(
    rows, weight, bias, out, n_rows, in_units, out_units, rows_apart,
    IN: tl.constexpr, OUT: tl.constexpr, RELU: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    restart = tl.program_id(1).to(tl.int64)
    n_in, n_out = in_units * IN, out_units * OUT
    n_tiles = tl.cdiv(n_rows, ROWS)  # those that read the same weights follow each other
    row = (tl.program_id(0) % n_tiles) * ROWS + tl.arange(0, ROWS)
    column = (tl.program_id(0) // n_tiles) * COLUMNS + tl.arange(0, COLUMNS)
    k = tl.arange(0, DEPTH)
    is_row, is_column = (row < n_rows)[:, None], (column < n_out)[None, :]
    rows = rows + restart * rows_apart + (row[:, None] * n_in + k[None, :])
    weight = weight + restart * n_in * n_out + (k[:, None] * n_out + column[None, :])
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for first in range(0, n_in, DEPTH):
        x = tl.load(rows + first, is_row & (first + k < n_in)[None, :], 0.0)
        w = tl.load(weight + first * n_out, (first + k < n_in)[:, None] & is_column, 0.0)
        total = tl.dot(x, w, total)
    total += tl.load(bias + restart * n_out + column, column < n_out, 0.0)[None, :]
    if RELU:
        total = tl.maximum(total, 0.0)
    out = out + restart * n_rows * n_out + (row[:, None] * n_out + column[None, :])
    tl.store(out, total.to(out.dtype.element_ty), is_row & is_column)


@triton.jit
def _add_bias(out, bias, n_all, n_rows, n_out, RELU: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n_all
    restart = at // (n_rows * n_out)
    value = tl.load(out + at, inside) + tl.load(bias + restart * n_out + at % n_out, inside)
    if RELU:
        value = tl.maximum(value, 0.0)
    tl.store(out + at, value, inside)


#: Results of a product in TF32 from which cuBLAS and another pass over them are faster: with
#: weights that lie along their columns Triton cannot use Hopper's instructions as they are.
MANY = 2**20


@_there
def affine(rows: Tensor, weight: Tensor, bias: Tensor, *, relu: bool) -> Tensor:
    """``rows @ weight + bias``, cut at zero if asked for, (R, B, out).

    Rows (R, B, in) and weight (R, in, out) are of one dtype; the bias (R, 1, out) is float32.
    """
    R, n_rows, n_in = rows.shape
    n_out = weight.shape[2]
    if rows.dtype == torch.float32 and R * n_rows * n_out >= MANY:
        out = torch.bmm(rows, weight)
        _add_bias[(triton.cdiv(out.numel(), 1024),)](
            out, bias, out.numel(), n_rows, n_out, RELU=relu, BLOCK=1024
        )
        return out
    out = rows.new_empty(R, n_rows, n_out)
    tile = _tile(AFFINE[rows.dtype], R, n_rows, n_out, n_in)
    _affine[(triton.cdiv(n_rows, tile.rows) * triton.cdiv(n_out, tile.columns), R)](
        rows, weight, bias, out, n_rows, n_in // _unit(n_in), n_out // _unit(n_out),
        rows.stride(0), IN=_unit(n_in), OUT=_unit(n_out), RELU=relu,
        ROWS=tile.rows, COLUMNS=tile.columns, DEPTH=tile.depth,
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    return out


@triton.jit(do_not_specialize=ANY)
def _to_rows(
    gradient, weight, after, out, n_rows, in_units, out_units,
    IN: tl.constexpr, OUT: tl.constexpr, CUT: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    restart = tl.program_id(1).to(tl.int64)
    n_in, n_out = in_units * IN, out_units * OUT
    n_tiles = tl.cdiv(n_rows, ROWS)
    row = (tl.program_id(0) % n_tiles) * ROWS + tl.arange(0, ROWS)
    column = (tl.program_id(0) // n_tiles) * COLUMNS + tl.arange(0, COLUMNS)
    k = tl.arange(0, DEPTH)
    is_row, is_column = (row < n_rows)[:, None], (column < n_in)[None, :]
    gradient = gradient + restart * n_rows * n_out + (row[:, None] * n_out + k[None, :])
    weight = weight + restart * n_in * n_out + (column[None, :] * n_out + k[:, None])
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for first in range(0, n_out, DEPTH):
        g = tl.load(gradient + first, is_row & (first + k < n_out)[None, :], 0.0)
        w = tl.load(weight + first, (first + k < n_out)[:, None] & is_column, 0.0)
        total = tl.dot(g, w, total)
    at, begin = row[:, None] * n_in + column[None, :], restart * n_rows * n_in
    if CUT:
        kept = tl.load(after + begin + at, is_row & is_column, 0.0) > 0.0
        total = tl.where(kept, total, 0.0)
    tl.store(out + begin + at, total.to(out.dtype.element_ty), is_row & is_column)


@_there
def to_rows(gradient: Tensor, weight: Tensor, after: Tensor | None) -> Tensor:
    """Gradient for the rows (R, B, in) of :func:`affine`, from that for its result (R, B, out).

    If the rows are what a ReLU gave (``after``), the gradient for what it was given.
    """
    R, n_rows, n_out = gradient.shape
    n_in = weight.shape[1]
    out = gradient.new_empty(R, n_rows, n_in)
    tile = _tile(TO_ROWS[gradient.dtype], R, n_rows, n_in, n_out)
    _to_rows[(triton.cdiv(n_rows, tile.rows) * triton.cdiv(n_in, tile.columns), R)](
        gradient, weight, gradient if after is None else after, out, n_rows,
        n_in // _unit(n_in), n_out // _unit(n_out), IN=_unit(n_in), OUT=_unit(n_out),
        CUT=after is not None, ROWS=tile.rows, COLUMNS=tile.columns, DEPTH=tile.depth,
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    return out


class _Tiles(NamedTuple):
    """Tiles of a kernel for products in one number format."""

    large: Tile
    medium: Tile
    small: Tile


#: Measured on an H200 for the paper's network, one restart and fifteen.
AFFINE = {
    torch.bfloat16: _Tiles(
        Tile(128, 128, 64, 8, 3), Tile(64, 64, 64, 4, 4), Tile(64, 32, 64, 4, 5)
    ),
    torch.float32: _Tiles(
        Tile(128, 128, 32, 8, 4), Tile(32, 64, 64, 4, 4), Tile(32, 32, 128, 4, 4)
    ),
}
TO_ROWS = {
    torch.bfloat16: _Tiles(
        Tile(128, 128, 64, 8, 3), Tile(64, 64, 64, 4, 4), Tile(32, 32, 128, 4, 4)
    ),
    torch.float32: _Tiles(Tile(128, 128, 32, 8, 4), Tile(64, 64, 64, 4, 4), Tile(64, 32, 64, 4, 5)),
}


def _tile(tiles: _Tiles, n_restarts: int, n_rows: int, n_columns: int, depth: int) -> Tile:
    """The largest of which there are enough to fill a device."""
    chosen = tiles.small
    for tile in tiles[:2]:
        n_tiles = triton.cdiv(n_rows, tile.rows) * triton.cdiv(n_columns, tile.columns)
        if n_restarts * n_tiles >= ENOUGH:
            chosen = tile
            break
    deep = depth >= 1024 and chosen.warps == 8
    return chosen._replace(
        columns=min(chosen.columns, _power(n_columns)),
        depth=min(chosen.depth, _power(depth)),
        stages=4 if deep else chosen.stages,
    )


def _power(size: int) -> int:
    return max(16, int(triton.next_power_of_2(size)))


#: Programs that fill a device: multiprocessors of an H200, less a quarter.
ENOUGH = 96


@triton.jit
def _squared_error(decoded, rows, slope, partial, n, scale, BLOCK: tl.constexpr):
    restart = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    at += restart * n
    error = tl.load(decoded + at, inside, 0.0).to(tl.float32) - tl.load(rows + at, inside, 0.0)
    tl.store(slope + at, (2.0 * scale * error).to(slope.dtype.element_ty), inside)
    place = partial + restart * tl.num_programs(0) + tl.program_id(0)
    tl.store(place, scale * tl.sum(error * error))


@_there
def squared_error(decoded: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Eq. 4 as a mean over rows (R, B, D), (R,), and its gradient for what was decoded."""
    R, n_rows, n_features = decoded.shape
    n = n_rows * n_features
    slope = torch.empty_like(decoded)
    n_blocks = triton.cdiv(n, 4096)
    partial = rows.new_empty(R, n_blocks)
    _squared_error[(n_blocks, R)](
        decoded, rows, slope, partial, n, 1.0 / n_rows, BLOCK=4096, num_warps=8
    )
    return partial.sum(1), slope


# ------------------------------------------------------------------------------------------- Adam


class Adam(NamedTuple):
    """A parameter and what Adam knows of it; all float32 and contiguous."""

    parameter: Tensor
    first: Tensor
    second: Tensor
    copy: Tensor | None
    """The parameter once more, in a dtype of its own."""


class Pace(NamedTuple):
    """How Adam moves."""

    scales: Tensor
    """(2,) on the device, of :func:`count`."""
    betas: tuple[float, float]
    eps: float

    def constants(self) -> dict[str, float]:
        """What the kernels are compiled for."""
        return {"BETA1": self.betas[0], "BETA2": self.betas[1], "EPS": self.eps}


@triton.jit
def _count(steps, rate, scales, n, LOG1: tl.constexpr, LOG2: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    taken = tl.load(steps + at, at < n, 0.0) + 1.0
    tl.store(steps + at, taken, at < n)
    t = tl.max(taken).to(tl.float64)  # in float32, 1 - 0.999 has three digits less
    tl.store(scales, tl.load(rate) / (1.0 - tl.exp2(t * LOG1)).to(tl.float32))
    tl.store(scales + 1, tl.sqrt((1.0 - tl.exp2(t * LOG2)).to(tl.float32)))


@_there
def count(steps: Tensor, rate: Tensor, pace: Pace) -> None:
    """Count a step, for all parameters (n,), and find its scales.

    They are the rate over what the first moments have seen of their weights, and the square root
    of what the second ones have.
    """
    logs = [math.log2(beta) for beta in pace.betas]
    n = len(steps)
    _count[(1,)](
        steps, rate, pace.scales, n, LOG1=logs[0], LOG2=logs[1], BLOCK=triton.next_power_of_2(n)
    )


@triton.jit
def _moved(
    g, p, m, v, scales, BETA1: tl.constexpr, BETA2: tl.constexpr, EPS: tl.constexpr
):  # fmt: skip
    """Adam's step (Kingma, Ba 2015): parameter and moments after it."""
    m += (1.0 - BETA1) * (g - m)
    v = BETA2 * v + (1.0 - BETA2) * g * g
    return p - tl.load(scales) * m / (tl.sqrt(v) / tl.load(scales + 1) + EPS), m, v


@triton.jit
def _move(
    gradient, parameter, first, second, copy, scales, n,
    BETA1: tl.constexpr, BETA2: tl.constexpr, EPS: tl.constexpr,
    COPY: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    p, m, v = _moved(
        tl.load(gradient + at, inside), tl.load(parameter + at, inside),
        tl.load(first + at, inside), tl.load(second + at, inside), scales, BETA1, BETA2, EPS,
    )  # fmt: skip
    tl.store(first + at, m, inside)
    tl.store(second + at, v, inside)
    tl.store(parameter + at, p, inside)
    if COPY:
        tl.store(copy + at, p.to(copy.dtype.element_ty), inside)


@_there
def move(gradient: Tensor, adam: Adam, pace: Pace) -> None:
    """Adam's step, in place."""
    p, first, second, copy = adam
    n = p.numel()
    _move[(triton.cdiv(n, 1024),)](
        gradient, p, first, second, p if copy is None else copy, pace.scales, n,
        **pace.constants(), COPY=copy is not None, BLOCK=1024,
    )  # fmt: skip


@triton.jit
def _prefetch(pointers):
    tl.inline_asm_elementwise(
        "{ prefetch.global.L2 [$1]; mov.u32 $0, 0; }", "=r,l", [pointers], dtype=tl.int32,
        is_pure=False, pack=1,
    )  # fmt: skip


@triton.jit(do_not_specialize=ANY)
def _layer(
    rows, gradient, weight, first, second, copy, bias, bias_first, bias_second, scales,
    n_rows, in_units, out_units, fours, rows_apart, IN: tl.constexpr, OUT: tl.constexpr,
    FOUR: tl.constexpr, BETA1: tl.constexpr, BETA2: tl.constexpr, EPS: tl.constexpr,
    COPY: tl.constexpr, MOVE: tl.constexpr, AHEAD: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    restart = tl.program_id(1).to(tl.int64)
    n_in, n_out = in_units * IN, out_units * OUT
    n_tiles = tl.cdiv(n_out, COLUMNS)  # neighbours in memory follow each other
    row = (tl.program_id(0) // n_tiles) * ROWS + tl.arange(0, ROWS)
    column = (tl.program_id(0) % n_tiles) * COLUMNS + tl.arange(0, COLUMNS)
    k = tl.arange(0, DEPTH)
    # Known as a multiple of four, and no more, so that all of these are read and written by fours:
    # the copy by eights would have the others laid out anew before they are stored.
    width = fours * FOUR
    at = row[:, None] * width + column[None, :]
    inside = (row < n_in)[:, None] & (column < width)[None, :]
    rows = rows + restart * rows_apart + (k[:, None] * n_in + row[None, :])
    gradient = gradient + restart * n_rows * n_out + (k[None, :] * n_out + column[:, None])
    weight += restart * n_in * n_out
    first += restart * n_in * n_out
    second += restart * n_in * n_out
    copy += restart * n_in * n_out
    if MOVE and AHEAD:  # into the cache while the product is computed
        LINE: tl.constexpr = min(COLUMNS, 32)  # numbers of 128 bytes
        i = tl.minimum(row, n_in - 1)[:, None] * width
        lines = (tl.program_id(0) % n_tiles) * COLUMNS + tl.arange(0, COLUMNS // LINE) * LINE
        ahead = i + tl.minimum(lines, width - 1)[None, :]
        _prefetch(weight + ahead)
        _prefetch(first + ahead)
        _prefetch(second + ahead)
    turned = tl.zeros((COLUMNS, ROWS), tl.float32)
    for begin in range(0, n_rows, DEPTH):
        is_k = begin + k < n_rows
        x = tl.load(rows + begin * n_in, is_k[:, None] & (row < n_in)[None, :], 0.0)
        g = tl.load(gradient + begin * n_out, is_k[None, :] & (column < n_out)[:, None], 0.0)
        turned = tl.dot(g, x, turned)
    # The compiler lays what follows out as it does what it read from memory. Of a product that is
    # not turned it takes the layout, and turns seven others through shared memory instead of one.
    total = tl.trans(turned)
    if MOVE:
        p = tl.load(weight + at, inside, 0.0)
        m = tl.load(first + at, inside, 0.0)
        v = tl.load(second + at, inside, 0.0)
        p, m, v = _moved(total, p, m, v, scales, BETA1, BETA2, EPS)
        tl.store(first + at, m, inside)
        tl.store(second + at, v, inside)
        tl.store(weight + at, p, inside)
        if COPY:
            tl.store(copy + at, p.to(copy.dtype.element_ty), inside)
    else:
        tl.store(weight + at, total, inside)
    if tl.program_id(0) < n_tiles:
        here, within = restart * n_out + column, column < n_out
        y = tl.zeros((COLUMNS, DEPTH), tl.float32)
        for begin in range(0, n_rows, DEPTH):
            is_k = begin + k < n_rows
            y += tl.load(gradient + begin * n_out, is_k[None, :] & (column < n_out)[:, None], 0.0)
        sums = tl.sum(y, 1)
        if MOVE:
            sums, m_bias, v_bias = _moved(
                sums, tl.load(bias + here, within, 0.0), tl.load(bias_first + here, within, 0.0),
                tl.load(bias_second + here, within, 0.0), scales, BETA1, BETA2, EPS,
            )  # fmt: skip
            tl.store(bias_first + here, m_bias, within)
            tl.store(bias_second + here, v_bias, within)
        tl.store(bias + here, sums, within)


@_there
def move_layer(rows: Tensor, gradient: Tensor, weight: Adam, bias: Adam, pace: Pace) -> None:
    """Adam's step for weight and bias of :func:`affine`, from its rows and its result's gradient.

    The gradient of the weight is nowhere written: that would be a quarter of the traffic.
    """
    _launch_layer(rows, gradient, weight, bias, pace)


@_there
def to_layer(rows: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients for weight (R, in, out) and bias (R, 1, out) of :func:`affine`, float32."""
    R, (n_in, n_out) = len(gradient), (rows.shape[2], gradient.shape[2])
    weight = torch.empty((R, n_in, n_out), dtype=torch.float32, device=rows.device)
    bias = torch.empty((R, 1, n_out), dtype=torch.float32, device=rows.device)
    of_weight, of_bias = (Adam(found, bias, bias, None) for found in (weight, bias))
    _launch_layer(rows, gradient, of_weight, of_bias, None)
    return weight, bias


def _launch_layer(
    rows: Tensor, gradient: Tensor, weight: Adam, bias: Adam, pace: Pace | None
) -> None:
    R, n_rows, n_out = gradient.shape
    n_in, four = rows.shape[2], math.gcd(n_out, 4)
    tile = LAYER[rows.dtype]
    tile = tile._replace(
        rows=min(tile.rows, _power(n_in)), columns=min(tile.columns, _power(n_out))
    )
    moves = pace is not None
    # in bfloat16 the product is short: what is fetched ahead of it is in the way of its own factors
    ahead = rows.is_cuda and rows.dtype == torch.float32 and weight.parameter.numel() >= NO_CACHE
    pace = pace or Pace(bias.parameter, (0.0, 0.0), 0.0)
    _layer[(triton.cdiv(n_in, tile.rows) * triton.cdiv(n_out, tile.columns), R)](
        rows, gradient, *weight[:3], weight.parameter if weight.copy is None else weight.copy,
        *bias[:3], pace.scales, n_rows, n_in // _unit(n_in), n_out // _unit(n_out), n_out // four,
        rows.stride(0), IN=_unit(n_in), OUT=_unit(n_out), FOUR=four, **pace.constants(),
        COPY=weight.copy is not None, MOVE=moves, AHEAD=ahead,
        ROWS=tile.rows, COLUMNS=tile.columns, DEPTH=tile.depth,
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip


#: Weights from which on Adam's memory does not fit in a device's cache.
NO_CACHE = 2**22
#: Measured as those above.
LAYER = {torch.bfloat16: Tile(64, 64, 64, 8, 3), torch.float32: Tile(64, 32, 32, 4, 3)}


# ------------------------------------------------------------------------------------- assignment


class Clustering(NamedTuple):
    """The clustering part of the scaled objective, and its gradient."""

    weighted: Tensor
    """(R,), the sum of both, each times its weight."""
    clustering: Tensor
    """(R,), Eq. 7 as a mean over the batch."""
    balance: Tensor
    """(R,), divergence of the mean assignment from the sizes; of no value if it has no weight."""
    to_codes: Tensor
    """(R, B, d), of the sum."""
    to_centers: Tensor
    """(R, K, d)."""


@triton.jit(do_not_specialize=("n_rows", "n_clusters", "n_features"))
def _assign(
    codes, centers, noise, temperature, sigma, spread, weight, balance_weight, sizes,
    to_codes, to_centers, weighted, clustering, balance, n_rows, n_clusters, n_features,
    BALANCE: tl.constexpr, ROWS: tl.constexpr, CLUSTERS: tl.constexpr,
):  # fmt: skip
    restart = tl.program_id(0)
    row, cluster = tl.arange(0, ROWS), tl.arange(0, CLUSTERS)
    is_row, is_cluster = row < n_rows, cluster < n_clusters
    inside = is_row[:, None] & is_cluster[None, :]
    codes += restart * n_rows * n_features
    to_codes += restart * n_rows * n_features
    centers += restart * n_clusters * n_features
    to_centers += restart * n_clusters * n_features

    squares = tl.zeros((ROWS, CLUSTERS), tl.float32)
    variance = 0.0
    for j in range(n_features):
        z = tl.load(codes + row * n_features + j, is_row, 0.0).to(tl.float32)
        mu = tl.load(centers + cluster * n_features + j, is_cluster, 0.0)
        apart = tl.where(is_row, z - tl.sum(z) / n_rows, 0.0)
        variance += tl.sum(apart * apart) / n_rows
        difference = z[:, None] - mu[None, :]
        squares += difference * difference
    scale = tl.load(spread + restart) / tl.maximum(variance, TINY)
    distances = squares * scale

    # Eq. 5
    width = tl.load(sigma + restart)
    inverse = 1.0 / (width * width)
    logits = tl.where(is_cluster[None, :], -distances * inverse, float("-inf"))
    logits -= tl.max(logits, 1)[:, None]
    probs = tl.exp(logits)
    total = tl.sum(probs, 1)[:, None]
    probs /= total
    # Eq. 6
    place = (restart * n_rows + row[:, None]) * n_clusters + cluster[None, :]
    tau = tl.load(temperature)
    drawn = logits - tl.log(total) + tl.load(noise + place, inside, 0.0)
    drawn = tl.where(is_cluster[None, :], drawn / tau, float("-inf"))
    drawn -= tl.max(drawn, 1)[:, None]
    soft = tl.exp(drawn)
    soft /= tl.sum(soft, 1)[:, None]
    hard = (cluster[None, :] == tl.argmax(drawn, 1)[:, None]).to(tl.float32)
    hard = tl.where(inside, hard, 0.0)
    # Eq. 7, and back: to the distances as they are, and through the soft sample
    one = tl.load(weight + restart) / n_rows
    loss = tl.sum(hard * distances)
    tl.store(clustering + restart, loss / n_rows)
    loss *= one
    mean = tl.sum(tl.where(is_cluster[None, :], soft * distances, 0.0), 1)[:, None]
    to_logits = one / tau * soft * (distances - mean)
    if BALANCE:
        share = tl.sum(tl.where(inside, probs, 0.0), 0) / n_rows
        bounded = tl.maximum(share, TINY)
        size = tl.load(sizes + restart * n_clusters + cluster, is_cluster, 1.0)
        ratio = tl.log(bounded) - tl.log(tl.maximum(size, 1e-3 / n_clusters))
        divergence = tl.sum(tl.where(is_cluster, bounded * ratio, 0.0))
        tl.store(balance + restart, divergence)
        slope = tl.where(is_cluster & (share >= TINY), ratio + 1.0, 0.0)[None, :]
        other = tl.load(balance_weight + restart) / n_rows
        loss += other * n_rows * divergence
        to_logits += other * probs * (slope - tl.sum(probs * slope, 1)[:, None])
    tl.store(weighted + restart, loss)
    to_distances = tl.where(inside, one * hard - to_logits * inverse, 0.0)
    to_squares = 2.0 * scale * to_distances
    to_variance = -tl.sum(to_distances * distances) / variance * 2.0 / n_rows
    to_variance = tl.where(variance > TINY, to_variance, 0.0)

    for j in range(n_features):
        z = tl.load(codes + row * n_features + j, is_row, 0.0).to(tl.float32)
        mu = tl.load(centers + cluster * n_features + j, is_cluster, 0.0)
        each = to_squares * (z[:, None] - mu[None, :])
        own = tl.sum(each, 1) + to_variance * (z - tl.sum(z) / n_rows)
        tl.store(to_codes + row * n_features + j, own.to(to_codes.dtype.element_ty), is_row)
        tl.store(to_centers + cluster * n_features + j, -tl.sum(each, 0), is_cluster)


@_there
def assign(
    codes: Tensor,
    centers: Tensor,
    noise: Tensor,
    temperature: Tensor,
    *,
    sigma: Tensor,
    spread: Tensor,
    weight: Tensor,
    balance_weight: Tensor | None,
    sizes: Tensor,
) -> Clustering:
    """Eqs. 5 to 7 with relative distances, for codes (R, B, d) and noise (R, B, K).

    One program a restart, with all its rows at hand: for small batches.
    """
    R, n_rows, n_features = codes.shape
    n_clusters = centers.shape[1]
    weighted, clustering, balance = (torch.empty_like(weight) for _ in range(3))
    found = Clustering(
        weighted, clustering, balance, torch.empty_like(codes), torch.empty_like(centers)
    )
    _assign[(R,)](
        codes, centers, noise, temperature, sigma, spread, weight,
        weight if balance_weight is None else balance_weight, sizes,
        found.to_codes, found.to_centers, found.weighted, found.clustering, found.balance,
        n_rows, n_clusters, n_features,
        BALANCE=balance_weight is not None,
        ROWS=triton.next_power_of_2(n_rows),
        CLUSTERS=max(2, triton.next_power_of_2(n_clusters)),
        num_warps=8,
    )  # fmt: skip
    return found
