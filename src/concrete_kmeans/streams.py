"""Kernels side by side on a CUDA device.

With few restarts the kernels of a step are too small to fill the device one after the other. What
a step can do at the same time, it launches on other streams: the clustering part of its loss beside
the decoder (:func:`aside`), the gradients of weights and the optimiser's moves beside the way back
through the layers (:func:`behind`). Autograd takes the backward pass of what was launched aside
there as well. Elsewhere than on CUDA nothing changes.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from typing import Any, Literal

import torch
from torch import Tensor

__all__ = ["Side", "aside", "behind", "is_one", "join", "lowered", "moved", "use"]

Name = Literal["loss", "weights"]


class Side:
    """Two more streams of a CUDA device; of any other device, nothing."""

    #: That of the step which is being taken.
    of_step: Side | None = None

    def __init__(self, device: torch.device, ones: Tensor, mover: Any = None) -> None:
        self.device = device
        self.ones = ones
        """The gradient that the losses are given."""
        self.mover = mover
        """An :class:`optimizers.EarlyAdam`: it moves layers as soon as their gradient can be
        computed, and keeps up copies of weights in lower precision."""
        self._streams: dict[Name, Any] = {}
        if device.type == "cuda":
            self._streams = {
                "loss": torch.cuda.Stream(device, priority=-1),  # type: ignore[no-untyped-call]
                "weights": torch.cuda.Stream(device),  # type: ignore[no-untyped-call]
            }
        self._ahead: set[Name] = set()
        self.uses: Counter[int] = Counter()
        """How often the layers of the step used each weight, by its address."""

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        """Let the functions below use it while it lasts, and wait for it at the end."""
        if not self._streams:
            yield
            return
        before, Side.of_step = Side.of_step, self
        self.uses.clear()
        try:
            yield
        finally:
            Side.of_step = before
            self.join("loss")
            self.join("weights")

    @contextlib.contextmanager
    def on(self, name: Name, *reads: Tensor) -> Iterator[None]:
        """Launch there what needs no more than what has been launched so far."""
        stream = self._streams[name]
        stream.wait_stream(torch.cuda.current_stream(self.device))
        for tensor in reads:
            tensor.record_stream(stream)
        self._ahead.add(name)
        with torch.cuda.stream(stream):
            yield

    def join(self, name: Name) -> None:
        """Let the current stream wait for what was launched there."""
        if name in self._ahead:
            torch.cuda.current_stream(self.device).wait_stream(self._streams[name])
            self._ahead.remove(name)


def aside(*reads: Tensor) -> contextlib.AbstractContextManager[None]:
    """Launch beside the step's chain, if it has other streams, until :func:`join`.

    Tensors that were made here and are read there are named: their memory must not be used again
    before.
    """
    return contextlib.nullcontext() if Side.of_step is None else Side.of_step.on("loss", *reads)


def join() -> None:
    """Wait for what was launched aside: from here on its results may be used."""
    if Side.of_step is not None:
        Side.of_step.join("loss")


def use(weight: Tensor) -> int:
    """Tell that a layer uses a weight in this step; return the number it is known by."""
    address = weight.data_ptr()
    if Side.of_step is not None:
        Side.of_step.uses[address] += 1
    return address


def lowered(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """A weight in the dtype of a product: a copy that the optimiser keeps up, if it does."""
    mover = None if Side.of_step is None else Side.of_step.mover
    if mover is None or dtype == weight.dtype:
        return weight.to(dtype)
    copy: Tensor | None = mover.copies.get(weight.data_ptr())
    return weight.to(dtype) if copy is None else copy


def behind(weight: int | None, *reads: Tensor) -> contextlib.AbstractContextManager[None]:
    """Launch what nothing but the end of the step waits for: a weight's gradient, or its move.

    Not for a weight that the step used twice: autograd adds the two gradients, and knows nothing of
    where they come from. ``None`` is for what comes after that sum.
    """
    side = Side.of_step
    if side is None or (weight is not None and side.uses[weight] > 1):
        return contextlib.nullcontext()
    return side.on("weights", *reads)


def moved(weight: int, bias: int, rows: Tensor, gradient: Tensor) -> bool:
    """Whether the step moves a layer, and has done so: by :attr:`Side.mover`.

    Not with a weight that the step used twice.
    """
    side = Side.of_step
    if side is None or side.mover is None or side.uses[weight] > 1:
        return False
    return bool(side.mover.move_layer(weight, bias, rows, gradient))


def is_one(gradient: Tensor) -> bool:
    """Whether it is the gradient that the losses are given: to multiply by it changes nothing."""
    side = Side.of_step
    return side is not None and gradient.data_ptr() == side.ones.data_ptr()
