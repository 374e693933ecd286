"""Kernels of a training step in Triton, for CUDA: few launches and few passes over memory.

Each does what a handful of torch's operations do, which remain where there is no Triton (on
Windows, say) and are the oracle of the tests. Import it after :func:`fused.usable` said so.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Concatenate, NamedTuple, ParamSpec, TypeVar

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = [
    "Clustering",
    "add_bias",
    "assign",
    "move",
    "relu_backward",
    "squared_error",
    "take",
]

#: Where a variance or a share of rows counts as zero.
TINY = tl.constexpr(1e-12)


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


@triton.jit
def _add_bias(out, bias, n_all, n_rows, n_out, RELU: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n_all
    restart = at // (n_rows * n_out)
    value = tl.load(out + at, inside).to(tl.float32)
    value += tl.load(bias + restart * n_out + at % n_out, inside)
    if RELU:
        value = tl.maximum(value, 0.0)
    tl.store(out + at, value.to(out.dtype.element_ty), inside)


@_there
def add_bias(out: Tensor, bias: Tensor, *, relu: bool) -> None:
    """Add a bias (R, 1, n) to a product (R, B, n) in place, and cut it at zero if asked for."""
    n_rows, n_out = out.shape[1:]
    grid = (triton.cdiv(out.numel(), 1024),)
    _add_bias[grid](out, bias, out.numel(), n_rows, n_out, RELU=relu, BLOCK=1024)


@triton.jit
def _relu_backward(
    gradient, out, cut, to_bias, n_rows, n_out,
    RELU: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    restart = tl.program_id(1).to(tl.int64)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((COLUMNS,), tl.float32)
    for first in range(0, n_rows, ROWS):
        row = first + tl.arange(0, ROWS)
        inside = (row < n_rows)[:, None] & (column < n_out)[None, :]
        at = (restart * n_rows + row[:, None]) * n_out + column[None, :]
        value = tl.load(gradient + at, inside, 0.0)
        if RELU:
            value = tl.where(tl.load(out + at, inside, 0.0) > 0.0, value, 0.0)
            tl.store(cut + at, value, inside)
        total += tl.sum(value.to(tl.float32), 0)
    tl.store(to_bias + restart * n_out + column, total, column < n_out)


@_there
def relu_backward(gradient: Tensor, out: Tensor | None) -> tuple[Tensor, Tensor]:
    """Gradient (R, B, n) through a ReLU that gave ``out``, if any; and its sum over rows."""
    gradient = gradient.contiguous()
    cut = gradient if out is None else torch.empty_like(gradient)
    R, n_rows, n_out = gradient.shape
    to_bias = torch.empty((R, 1, n_out), dtype=torch.float32, device=gradient.device)
    columns = 32 if R < 8 else 64
    _relu_backward[(triton.cdiv(n_out, columns), R)](
        gradient, gradient if out is None else out, cut, to_bias, n_rows, n_out,
        RELU=out is not None, ROWS=min(256, triton.next_power_of_2(n_rows)), COLUMNS=columns,
        num_warps=8,
    )  # fmt: skip
    return cut, to_bias


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


@triton.jit
def _move(
    parameter, gradient, first, second, copy, rate, step, n,
    BETA1: tl.constexpr, BETA2: tl.constexpr, EPS: tl.constexpr, LOG1: tl.constexpr,
    LOG2: tl.constexpr, COPY: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    t = tl.load(step)
    g = tl.load(gradient + at, inside)
    m = tl.load(first + at, inside)
    v = tl.load(second + at, inside)
    p = tl.load(parameter + at, inside)
    m += (1.0 - BETA1) * (g - m)
    v = BETA2 * v + (1.0 - BETA2) * g * g
    size = tl.load(rate) / (1.0 - tl.exp2(t * LOG1))
    root = tl.sqrt(v) / tl.sqrt(1.0 - tl.exp2(t * LOG2)) + EPS
    p -= size * m / root
    tl.store(first + at, m, inside)
    tl.store(second + at, v, inside)
    tl.store(parameter + at, p, inside)
    if COPY:
        tl.store(copy + at, p.to(copy.dtype.element_ty), inside)


@_there
def move(
    parameter: Tensor,
    gradient: Tensor,
    first: Tensor,
    second: Tensor,
    *,
    rate: Tensor,
    step: Tensor,
    copy: Tensor | None,
    betas: tuple[float, float],
    eps: float,
) -> None:
    """Adam's step (Kingma, Ba 2015), in place; ``step`` counts it already.

    All float32 and contiguous; rate and step are scalars on the device. ``copy`` is given the
    parameter in a dtype of its own.
    """
    n = parameter.numel()
    logs = [float(torch.tensor(beta, dtype=torch.float64).log2()) for beta in betas]
    _move[(triton.cdiv(n, 1024),)](
        parameter, gradient, first, second, parameter if copy is None else copy, rate, step, n,
        BETA1=betas[0], BETA2=betas[1], EPS=eps, LOG1=logs[0], LOG2=logs[1],
        COPY=copy is not None, BLOCK=1024,
    )  # fmt: skip


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


@triton.jit
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
