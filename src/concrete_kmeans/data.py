"""What users bring, as rows the engine reads: tensors as they are, arrays without a copy."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, cast

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from concrete_kmeans.lloyd import Rows

__all__ = ["Batches", "SparseRows", "as_rows", "check_tensor", "merge_equal_rows", "resolve_device"]


class SparseRows:
    """CSR rows that become dense only in the pieces that are read."""

    def __init__(self, X: sparse.csr_array | sparse.csr_matrix, device: torch.device) -> None:
        self.X, self.device = X, device
        self.shape = X.shape
        self.dtype = torch.from_numpy(np.empty(0, dtype=X.dtype)).dtype

    def __getitem__(self, rows: slice | Tensor, /) -> Tensor:
        """Dense rows on the device."""
        index = rows if isinstance(rows, slice) else rows.cpu().numpy()
        return torch.from_numpy(self.X[index].toarray()).to(self.device)


def resolve_device(device: str | torch.device, X: object) -> torch.device:
    """Where to compute: a tensor's own device; for anything else CUDA if there, or the CPU."""
    if isinstance(X, Tensor):
        if device != "auto" and not _same_device(torch.device(device), X.device):
            raise ValueError(
                f"device={str(device)!r} but X is on {X.device}: a tensor is never moved; "
                "move it yourself or leave device='auto'"
            )
        return X.device
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        resolved = torch.device(device)
        torch.empty(0, device=resolved)
    except (RuntimeError, AssertionError, TypeError) as error:
        raise ValueError(
            f"device must be 'auto' or a device torch can use here, got {device!r}"
        ) from error
    return resolved


def _same_device(wanted: torch.device, have: torch.device) -> bool:
    return wanted.type == have.type and wanted.index in (None, have.index)


def check_tensor(X: Tensor) -> Tensor:
    """Check for (N, D), not empty and finite; return it as float32 or float64."""
    if X.ndim != 2:
        raise ValueError(f"X must be a 2D tensor (n_samples, n_features), got {tuple(X.shape)}")
    if X.layout != torch.strided:
        raise TypeError(f"X must be a dense tensor (or a scipy CSR matrix), got {X.layout}")
    if X.is_complex():
        raise ValueError(f"Complex data not supported: X must be real numbers, got {X.dtype}")
    for size, what in zip(X.shape, ("sample", "feature"), strict=True):
        if size < 1:
            raise ValueError(
                f"X has 0 {what}(s) (shape={tuple(X.shape)}) while a minimum of 1 is required"
            )
    X = X.detach()
    if X.dtype not in (torch.float32, torch.float64):
        X = X.to(torch.float32)
    # a sum is finite only if its terms are: one pass, no copy, unless the sum overflows
    if not bool(X.sum().isfinite()) and not bool(X.isfinite().all()):
        what = "NaN" if bool(X.isnan().any()) else "infinity"
        raise ValueError(f"X must be finite; it contains {what}")
    return X


def as_rows(X: Any, device: torch.device) -> Rows:
    """Rows on the device from a checked array, CSR matrix or tensor; no copy on the CPU."""
    if isinstance(X, Tensor):
        return X
    if sparse.issparse(X):
        return SparseRows(cast("sparse.csr_array", X), device)
    with warnings.catch_warnings():
        # torch warns that writing to a read-only array is undefined; rows are never written to
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(np.ascontiguousarray(X)).to(device)


def merge_equal_rows(X: Rows, weight: Tensor | None) -> tuple[Tensor, Tensor]:
    """Distinct rows in a fixed order, with the weights of equal ones added; zero weights left out.

    The outcome of a fit on them depends neither on the order of the rows nor on whether a row is
    repeated or weighted.
    """
    rows = X[0 : X.shape[0]]
    if weight is None:
        weight = torch.ones(len(rows), dtype=rows.dtype, device=rows.device)
    rows, weight = rows[weight > 0], weight[weight > 0]
    distinct, group = torch.unique(rows, dim=0, return_inverse=True)
    total = torch.zeros(len(distinct), dtype=weight.dtype, device=weight.device)
    return distinct, total.index_add_(0, group, weight)


class Batches:
    """Batches ``(R, B, D)`` without end, each restart shuffled by its own generator.

    Rows are drawn without replacement, pass after pass, up to ``max_shuffled`` rows; beyond, where
    a permutation costs more than the training, with replacement. If all rows fit in one batch,
    every batch is all of them.
    """

    max_shuffled = 2**24

    def __init__(
        self,
        X: Rows,
        weight: Tensor | None,
        batch_size: int,
        generators: Sequence[torch.Generator],
    ) -> None:
        self.X, self.generators = X, generators
        self.n, self.size = int(X.shape[0]), min(batch_size, int(X.shape[0]))
        # a mean of one keeps the loss and the learning rate those of unweighted rows
        self.weight = None if weight is None else weight / weight.mean()

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor | None]]:
        if self.size == self.n:
            rows = self.X[0 : self.n].expand(len(self.generators), -1, -1)
            weight = self.weight
            while True:
                yield rows, None if weight is None else weight.expand(len(rows), -1)
        for index in self._indices():
            rows = self.X[index.reshape(-1)].view(*index.shape, -1)
            yield rows, None if self.weight is None else self.weight[index]

    def _indices(self) -> Iterator[Tensor]:
        device = self.X.device
        while True:
            if self.n > self.max_shuffled:
                draws = [torch.randint(self.n, (self.size,), **_on(g)) for g in self.generators]
                yield torch.stack(draws).to(device)
                continue
            order = torch.stack([torch.randperm(self.n, **_on(g)) for g in self.generators])
            order = order.to(device)
            # the remainder of a pass would be a batch of another size: it waits for another shuffle
            for i in range(math.floor(self.n / self.size)):
                yield order[:, i * self.size : (i + 1) * self.size]


def _on(generator: torch.Generator) -> dict[str, Any]:
    return {"generator": generator, "device": generator.device}
