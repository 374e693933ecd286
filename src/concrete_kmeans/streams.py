"""Kernels side by side on a CUDA device.

With few restarts the kernels of a step are too small to fill the device one after the other. What
a step can do at the same time, it launches aside: on a second stream, in the forward pass; autograd
takes the backward pass of it there as well. Elsewhere than on CUDA nothing changes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

__all__ = ["Side", "aside", "join"]


class Side:
    """A second stream of a CUDA device; of any other device, nothing."""

    #: That of the step which is being taken.
    of_step: Side | None = None

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._stream: Any = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._ahead = False

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        """Let :func:`aside` use it while it lasts, and wait for it at the end."""
        if self._stream is None:
            yield
            return
        before, Side.of_step = Side.of_step, self
        try:
            yield
        finally:
            Side.of_step = before
            self.join()

    @contextlib.contextmanager
    def aside(self, *reads: Tensor) -> Iterator[None]:
        """Launch there what needs no more than what has been launched so far."""
        self._stream.wait_stream(torch.cuda.current_stream(self.device))
        for tensor in reads:
            tensor.record_stream(self._stream)
        self._ahead = True
        with torch.cuda.stream(self._stream):
            yield

    def join(self) -> None:
        """Let the current stream wait for what was launched there."""
        if self._ahead:
            torch.cuda.current_stream(self.device).wait_stream(self._stream)
        self._ahead = False


def aside(*reads: Tensor) -> contextlib.AbstractContextManager[None]:
    """Launch beside the step's chain, if it has a second stream, until :func:`join`.

    Tensors that were made here and are read there are named: their memory must not be used again
    before.
    """
    return contextlib.nullcontext() if Side.of_step is None else Side.of_step.aside(*reads)


def join() -> None:
    """Wait for what was launched aside: from here on its results may be used."""
    if Side.of_step is not None:
        Side.of_step.join()
