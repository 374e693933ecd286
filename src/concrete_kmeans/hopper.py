"""Adam's step of a layer in Gluon, for Hopper's GPUs: as fast as memory lets it.

The same as the kernel of :mod:`kernels`, which remains elsewhere and is the oracle of the tests.
There the compiler decides what waits for what, and a program that multiplies does not read Adam's
state meanwhile. Here one program a multiprocessor goes from tile to tile: while it moves one, the
copy engine fetches the next, and it leaves room for the products on the way back to the rows.
"""

from __future__ import annotations

import torch
import triton
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

__all__ = ["can_move", "move_layer", "try_out"]

#: A tile of the weights, and the warps that move it.
ROWS, COLUMNS, WARPS = 64, 64, 4
#: Batches that are fetched at once: a tile must not reach into the next restart's.
BATCHES = (64, 128, 256)


@gluon.jit
def _moved(g, p, m, v, rate, root, BETA1: gl.constexpr, BETA2: gl.constexpr, EPS: gl.constexpr):
    """Adam's step (Kingma, Ba 2015): parameter and moments after it."""
    m += (1.0 - BETA1) * (g - m)
    v = BETA2 * v + (1.0 - BETA2) * g * g
    return p - rate * m / (gl.sqrt(v) / root + EPS), m, v


@gluon.jit
def _place(tile, n_in, n_out, ROWS: gl.constexpr, COLUMNS: gl.constexpr):
    """Restart, first row and first column; neighbours in memory follow each other."""
    n_columns = gl.cdiv(n_out, COLUMNS)
    of_restart = gl.cdiv(n_in, ROWS) * n_columns
    within = tile % of_restart
    return tile // of_restart, (within // n_columns) * ROWS, (within % n_columns) * COLUMNS


@gluon.jit
def _fetch_factors(rows, gradient, into_rows, into_gradient, ready, place, n_rows, there):
    restart, row, column = place
    mbarrier.expect(ready, rows.block_type.nbytes + gradient.block_type.nbytes, pred=there)
    tma.async_copy_global_to_shared(rows, [restart * n_rows, row], ready, into_rows, pred=there)
    tma.async_copy_global_to_shared(
        gradient, [restart * n_rows, column], ready, into_gradient, pred=there
    )


@gluon.jit
def _fetch_state(weight, first, second, into, ready, place, n_in, there):
    # the last rows of a restart may be followed by those of the next, which are not written
    restart, row, column = place
    at = [restart * n_in + row, column]
    mbarrier.expect(ready, 3 * weight.block_type.nbytes, pred=there)
    tma.async_copy_global_to_shared(weight, at, ready, into.index(0), pred=there)
    tma.async_copy_global_to_shared(first, at, ready, into.index(1), pred=there)
    tma.async_copy_global_to_shared(second, at, ready, into.index(2), pred=there)


@gluon.jit
def _layer(
    rows, gradient, weight, first, second,
    to_weight, to_first, to_second, copy, bias, bias_first, bias_second, scales,
    n_restarts, n_rows, in_units, out_units, UNIT: gl.constexpr,
    BETA1: gl.constexpr, BETA2: gl.constexpr, EPS: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    DEPTH: gl.constexpr = rows.block_type.shape[0]
    ROWS: gl.constexpr = rows.block_type.shape[1]
    COLUMNS: gl.constexpr = gradient.block_type.shape[1]
    product: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, num_warps // 4],
        instr_shape=[16, 4 * COLUMNS // num_warps, 16],
    )  # fmt: skip
    # As memory likes it: whole lines of 256 bytes. In the product's own layout, of 32, the writes
    # alone take as long as all the rest.
    lines: gl.constexpr = gl.BlockedLayout([1, 4], [2, 16], [num_warps, 1], [1, 0])
    # each warp adds up columns of its own
    sums: gl.constexpr = gl.BlockedLayout(
        [1, 8], [4 * num_warps, 8 // num_warps], [1, num_warps], [1, 0]
    )
    n_in, n_out = in_units * UNIT, out_units * UNIT
    n_tiles = gl.cdiv(n_in, ROWS) * gl.cdiv(n_out, COLUMNS) * n_restarts

    rows_here = gl.allocate_shared_memory(rows.dtype, [DEPTH, ROWS], rows.layout)
    gradient_here = gl.allocate_shared_memory(gradient.dtype, [DEPTH, COLUMNS], gradient.layout)
    state_here = gl.allocate_shared_memory(weight.dtype, [3, ROWS, COLUMNS], weight.layout)
    factors_ready = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    state_ready = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(factors_ready, count=1)
    mbarrier.init(state_ready, count=1)
    rate, root = gl.load(scales), gl.load(scales + 1)

    place = _place(gl.program_id(0), n_in, n_out, ROWS, COLUMNS)
    _fetch_factors(rows, gradient, rows_here, gradient_here, factors_ready, place, n_rows, True)
    _fetch_state(weight, first, second, state_here, state_ready, place, n_in, True)
    phase = 0
    for tile in range(gl.program_id(0), n_tiles, gl.num_programs(0)):
        restart, row0, column0 = _place(tile, n_in, n_out, ROWS, COLUMNS)
        next_tile = tile + gl.num_programs(0)
        next_place = _place(next_tile, n_in, n_out, ROWS, COLUMNS)
        there = next_tile < n_tiles

        mbarrier.wait(factors_ready, phase)
        total = gl.zeros((ROWS, COLUMNS), gl.float32, layout=product)
        total = warpgroup_mma(
            rows_here.permute((1, 0)), gradient_here, total, use_acc=False, is_async=True
        )
        total = warpgroup_mma_wait(0, deps=(total,))
        if row0 == 0:
            slope = gl.sum(gradient_here.load(sums).to(gl.float32), 0)
            column = column0 + gl.arange(0, COLUMNS, layout=gl.SliceLayout(0, sums))
            at, inside = restart * n_out + column, column < n_out
            p, m, v = _moved(
                slope, gl.load(bias + at, inside, 0.0), gl.load(bias_first + at, inside, 0.0),
                gl.load(bias_second + at, inside, 0.0), rate, root, BETA1, BETA2, EPS,
            )  # fmt: skip
            gl.store(bias + at, p, inside)
            gl.store(bias_first + at, m, inside)
            gl.store(bias_second + at, v, inside)
        gl.thread_barrier()  # all warps have read what is fetched over
        _fetch_factors(
            rows, gradient, rows_here, gradient_here, factors_ready, next_place, n_rows, there
        )

        total = gl.convert_layout(total, lines)
        mbarrier.wait(state_ready, phase)
        p = state_here.index(0).load(lines)
        m = state_here.index(1).load(lines)
        v = state_here.index(2).load(lines)
        gl.thread_barrier()
        _fetch_state(weight, first, second, state_here, state_ready, next_place, n_in, there)

        p, m, v = _moved(total, p, m, v, rate, root, BETA1, BETA2, EPS)
        row = row0 + gl.arange(0, ROWS, layout=gl.SliceLayout(1, lines))
        column = column0 + gl.arange(0, COLUMNS, layout=gl.SliceLayout(0, lines))
        inside = (row < n_in)[:, None] & (column < n_out)[None, :]
        at = row[:, None] * n_out + column[None, :]
        begin = restart.to(gl.int64) * n_in * n_out
        gl.store(to_first + begin + at, m, inside)
        gl.store(to_second + begin + at, v, inside)
        gl.store(to_weight + begin + at, p, inside)
        gl.store(copy + begin + at, p.to(copy.dtype.element_ty), inside)
        phase ^= 1
    mbarrier.invalidate(factors_ready)
    mbarrier.invalidate(state_ready)


def can_move(rows: Tensor, gradient: Tensor) -> bool:
    """Whether :func:`move_layer` takes such a layer."""
    return (
        rows.dtype == gradient.dtype == torch.bfloat16
        and rows.is_contiguous()
        and gradient.is_contiguous()
        and rows.shape[1] in BATCHES
        and rows.shape[2] % 8 == gradient.shape[2] % 8 == 0  # the copy engine's steps
    )


def move_layer(
    rows: Tensor,
    gradient: Tensor,
    weight: tuple[Tensor, Tensor, Tensor, Tensor],
    bias: tuple[Tensor, Tensor, Tensor],
    scales: Tensor,
    betas: tuple[float, float],
    eps: float,
) -> None:
    """Adam's step for a layer, as :func:`kernels.move_layer`.

    Rows (R, B, in) and gradient (R, B, out) are bfloat16. The weight (R, in, out) comes with its
    moments and a copy in bfloat16, the bias (R, 1, out) with its moments.
    """
    R, n_rows, n_in = rows.shape
    n_out = gradient.shape[2]
    of = gl.NVMMASharedLayout.get_default_for
    device = torch.cuda.get_device_properties(rows.device)
    blocks = [
        (rows.view(-1, n_in), [n_rows, ROWS], gl.bfloat16),
        (gradient.view(-1, n_out), [n_rows, COLUMNS], gl.bfloat16),
        *((part.view(-1, n_out), [ROWS, COLUMNS], gl.float32) for part in weight[:3]),
    ]
    described = [
        TensorDescriptor.from_tensor(whole, block, of(block, dtype))
        for whole, block, dtype in blocks
    ]
    n_tiles = R * triton.cdiv(n_in, ROWS) * triton.cdiv(n_out, COLUMNS)
    with torch.cuda.device_of(rows):
        _layer[(min(n_tiles, device.multi_processor_count),)](
            *described, *weight, *bias, scales, R, n_rows, n_in // 8, n_out // 8, UNIT=8,
            BETA1=betas[0], BETA2=betas[1], EPS=eps, num_warps=WARPS,
        )  # fmt: skip


def try_out(device: torch.device) -> None:
    """Move a layer; an error says what is in the way."""
    rows = torch.zeros((1, BATCHES[-1], 8), dtype=torch.bfloat16, device=device)
    weight, bias = (torch.zeros((1, n, 8), device=device) for n in (8, 1))
    parts = weight, weight.clone(), weight.clone(), weight.bfloat16()
    scales = torch.ones(2, device=device)
    move_layer(rows, rows, parts, (bias, bias.clone(), bias.clone()), scales, (0.9, 0.999), 1e-8)
    torch.cuda.synchronize(device)
