"""Which kernels run: on CUDA those of :mod:`kernels` and its like, else torch's own."""

from __future__ import annotations

import functools
import importlib
import logging
from types import ModuleType
from typing import cast

import torch
from torch import Tensor

__all__ = ["hopper_for", "kernels_for", "kernels_for_lloyd", "kernels_for_products"]

logger = logging.getLogger(__name__)

#: Bytes that a program of the products needs, at most.
SHARED_MEMORY = 2**17 + 2**12
#: What they read and write.
DTYPES = (torch.float32, torch.bfloat16)
#: Weights of all restarts from which on :mod:`hopper` is faster: tiles for every multiprocessor.
MANY_WEIGHTS = 2**20
#: Products of a restart's iteration from which on Lloyd's kernels run: below, a fit takes some
#: hundredths of a second either way, and they take seconds to compile where no fit has been yet.
LARGE = 2**26


def kernels_for(*tensors: Tensor) -> ModuleType | None:
    """:mod:`kernels`, if it can work on the tensors; None for torch's own operations.

    Examples
    --------
    >>> kernels_for(torch.zeros(3)) is None
    True
    """
    if not all(tensor.is_cuda and tensor.dtype in DTYPES for tensor in tensors):
        return None
    return _kernels()


def kernels_for_products(*tensors: Tensor) -> ModuleType | None:
    """:mod:`kernels`, if it can multiply the tensors: in bfloat16, or in TF32 where that is on."""
    if not tensors[0].is_cuda:
        return None
    low = tensors[0].dtype == torch.bfloat16 or torch.backends.cuda.matmul.allow_tf32
    small = all(tensor.numel() < 2**31 for tensor in tensors)  # what it counts by
    kernels = kernels_for(*tensors) if low and small else None
    return kernels if kernels is not None and _has_room(tensors[0].device) else None


@functools.cache
def _has_room(device: torch.device) -> bool:
    """Whether the tiles of the products fit in a multiprocessor: on an A100 or later they do."""
    room = cast("ModuleType", _kernels()).shared_memory(device)
    if room < SHARED_MEMORY:
        logger.warning(
            "training on %s multiplies by torch's own kernels: Triton's need %d bytes of shared "
            "memory, and there are %d",
            device,
            SHARED_MEMORY,
            room,
        )
    return bool(room >= SHARED_MEMORY)


def hopper_for(rows: Tensor, gradient: Tensor) -> ModuleType | None:
    """:mod:`hopper`, if it can move a layer with such rows (R, B, in) and gradient (R, B, out).

    Examples
    --------
    >>> hopper_for(torch.zeros(2, 64, 8), torch.zeros(2, 64, 16)) is None
    True
    """
    n_weights = len(rows) * rows.shape[2] * gradient.shape[2]
    if not (rows.is_cuda and rows.dtype == torch.bfloat16 and n_weights >= MANY_WEIGHTS):
        return None
    hopper = _hopper(rows.device)
    return hopper if hopper is not None and hopper.can_move(rows, gradient) else None


@functools.cache
def _hopper(device: torch.device) -> ModuleType | None:
    if torch.cuda.get_device_capability(device) != (9, 0):
        return None
    try:
        hopper = importlib.import_module("concrete_kmeans.hopper")
        hopper.try_out(device)
    except Exception as error:  # noqa: BLE001  # Gluon is an experiment of Triton's, and may change
        logger.warning(
            "Adam on %s runs kernels for any GPU, which take longer: those for Hopper's do not run "
            "here (%s: %s)",
            device,
            type(error).__name__,
            error,
        )
        return None
    return hopper


def kernels_for_lloyd(rows: object, n_clusters: int) -> ModuleType | None:
    """:mod:`lloyd_kernels`, if it can work on the rows; None for torch's own operations.

    Those also for small problems, whatever the number of restarts: a restart takes the same way
    in a stack and alone.

    Examples
    --------
    >>> kernels_for_lloyd(torch.zeros(3, 2), 2) is None
    True
    """
    if not (isinstance(rows, Tensor) and rows.is_cuda and rows.dtype == torch.float32):
        return None
    n_rows, n_features = rows.shape[-2:]
    if n_rows * n_features * n_clusters < LARGE or n_rows >= 2**31:  # what it counts by
        return None
    return _lloyd_kernels(n_clusters, n_features, rows.device)


@functools.cache
def _lloyd_kernels(n_clusters: int, n_features: int, device: torch.device) -> ModuleType | None:
    try:
        kernels = importlib.import_module("concrete_kmeans.lloyd_kernels")
        kernels.try_out(n_clusters, n_features, device)
    except Exception as error:  # noqa: BLE001  # as below
        logger.warning(
            "Lloyd's algorithm with %d clusters of %d features on %s runs torch's own kernels, "
            "which take longer: Triton's do not run here (%s: %s)",
            n_clusters,
            n_features,
            device,
            type(error).__name__,
            error,
        )
        return None
    return kernels


@functools.cache
def _kernels() -> ModuleType | None:
    """Those that are there and run: Triton needs a compiler for its launches."""
    try:
        kernels = importlib.import_module("concrete_kmeans.kernels")
        one = torch.zeros((1, 1, 1), device="cuda")
        kernels.squared_error(one, one.clone())
    except Exception as error:  # noqa: BLE001  # whatever a compiler, a driver or Triton says
        logger.warning(
            "training on CUDA runs torch's own kernels, more of them a step: Triton's do not run "
            "here (%s: %s)",
            type(error).__name__,
            error,
        )
        return None
    return kernels
