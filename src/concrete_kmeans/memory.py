"""When the device has no memory left."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import TypeVar

import torch

__all__ = ["DeviceMemoryWarning", "Parts"]

T = TypeVar("T")


class DeviceMemoryWarning(UserWarning):
    """A computation did not fit in the device's memory and goes on with fewer rows at a time."""


class Parts:
    """Computes rows a part at a time, with parts half as large once the device's memory is out.

    Examples
    --------
    >>> list(Parts()(5, lambda start, stop: (start, stop)))
    [(0, 5)]
    """

    def __init__(self) -> None:
        self.most: int | None = None
        """Rows of a part; None for as many as there are."""

    def __call__(self, n: int, compute: Callable[[int, int], T]) -> Iterator[T]:
        """``compute(start, stop)`` for parts of n rows, in their order."""
        start = 0
        while start < n:
            stop = n if self.most is None else min(n, start + self.most)
            try:
                found = compute(start, stop)
            except torch.OutOfMemoryError:
                if stop - start == 1:
                    raise
            else:
                yield found
                start = stop
                continue
            self._halve(stop - start)  # the error is gone, and with it what its frames held

    def _halve(self, rows: int) -> None:
        self.most = rows // 2
        warnings.warn(
            f"the device has no memory for {rows} rows at a time: {self.most} are tried",
            DeviceMemoryWarning,
            stacklevel=4,
        )
        torch.cuda.empty_cache()  # does nothing where CUDA is not in use
