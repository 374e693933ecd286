"""Products of matrices on the CPU, by the fastest library that torch brings along.

torch multiplies float32 matrices by MKL, which uses half the width of AVX-512 on CPUs of other
makers than Intel. oneDNN, which torch calls for bfloat16 and for convolutions, uses all of it: on a
Zen 5 it is 2.3 times as fast (``benchmarks/results/limits.json``). On Intel's own CPUs it gains by
bias and ReLU in the pass of the product, and loses where that is short: there MKL keeps the others.
torch has no public name for oneDNN's float32 product: :func:`linear` looks whether it is there;
where it is not, torch's own remains.
"""

from __future__ import annotations

import functools
import platform
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

__all__ = ["linear", "mkl_is_whole", "transposed"]

#: Multiplications from which on it is faster: a call takes 10 us more than one of torch's.
ENOUGH = 2**20
#: In bfloat16, which torch multiplies by oneDNN as well, bias and ReLU cost no pass of their own.
DTYPES = (torch.float32, torch.bfloat16)
#: Columns that are worth a vector of their own.
NARROW = 32
#: Products that are added up for a result, from which on oneDNN is as fast as MKL on Intel's CPUs:
#: of 32 it takes up to four times as long.
DEEP = 256


def linear(
    rows: Tensor, weight: Tensor, bias: Tensor | None = None, *, relu: bool = False
) -> Tensor | None:
    """``rows @ weight.mT + bias``, cut at zero if asked for; None where torch is to compute it.

    Rows are (B, in), weights (out, in), the bias is (out,), all of one dtype. For tensors that
    need no gradient; in float32, with the rounding errors of any other product.

    Examples
    --------
    >>> linear(torch.ones(2, 2), torch.ones(2, 2)) is None  # too small
    True
    """
    if not _fits(rows, weight):
        return None
    after = "relu" if relu else "none"
    out = torch.ops.mkldnn._linear_pointwise(rows, weight, bias, after, [], "")  # noqa: SLF001
    return cast("Tensor", out)


def transposed(left: Tensor, right: Tensor) -> Tensor | None:
    """``left.mT @ right`` of (B, M) and (B, N), contiguous; or None, as :func:`linear`."""
    if left.dtype != torch.float32 or mkl_is_whole() or not _fits(left.mT, right.mT):
        return None
    if right.shape[1] >= NARROW:
        # the copy saves a third of a wide product; of three axes, all threads make it
        return linear(left.unsqueeze(0).mT.contiguous()[0], right.mT)
    # of few columns, their own product takes eight times as long
    turned = linear(right.mT, left.mT)
    return None if turned is None else turned.mT.contiguous()


def _fits(rows: Tensor, weight: Tensor) -> bool:
    return (
        rows.device.type == "cpu"
        and rows.dtype == weight.dtype
        and rows.dtype in DTYPES
        and rows.numel() * len(weight) >= ENOUGH
        and (rows.shape[1] >= DEEP or rows.dtype != torch.float32 or not mkl_is_whole())
        and 1 in rows.stride()
        # weights with gaps between their lines would be multiplied by a plain loop
        and (weight.is_contiguous() or weight.mT.is_contiguous())
        and _is_there()
        and bool(torch.backends.mkldnn.enabled)
    )


@functools.cache
def _is_there() -> bool:
    """Whether torch has that product, and the CPU what it gains by."""
    if torch.backends.cpu.get_cpu_capability() != "AVX512":
        return False
    rows, weight = (torch.ones(n, 3, dtype=torch.float32, device="cpu") for n in (2, 4))
    try:
        out = torch.ops.mkldnn._linear_pointwise(rows, weight, None, "none", [], "")  # noqa: SLF001
    except (AttributeError, RuntimeError, TypeError):  # another torch has another name for it
        return False
    return bool((out == 3.0).all())


@functools.cache
def mkl_is_whole(about: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether MKL uses all of this CPU: that of its maker."""
    return "GenuineIntel" in (about.read_text() if about.exists() else platform.processor())
