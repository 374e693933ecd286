"""Modes of torch that a caller may have set for the code around a call."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

__all__ = ["plain"]


@contextlib.contextmanager
def plain() -> Iterator[None]:
    """As if no mode were set: gradients on, no autocast, new tensors on the CPU; then as before.

    A fit trains and says where and in which precision. Under ``no_grad`` or ``inference_mode`` it
    would have no gradients, under autocast other results, and a default device would get the
    tensors that are to be on the host.

    Examples
    --------
    >>> with torch.no_grad():
    ...     with plain():
    ...         torch.is_grad_enabled()
    True
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        for kind in ("cpu", "cuda"):
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        # the context costs time in every operation; get_default_device does not know of another's
        # context in torch 2.6
        if torch.empty(0).device.type != "cpu":
            stack.enter_context(torch.device("cpu"))
        yield
