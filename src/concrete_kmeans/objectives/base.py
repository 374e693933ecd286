"""What the training loop asks of a method."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from concrete_kmeans.data import Batch

__all__ = ["Objective", "Verdict"]


class Verdict(NamedTuple):
    """What a monitor says of each restart, each (R,) of bool."""

    stop: Tensor
    """Converged: keep the state and go no further."""
    discard: Tensor
    """Collapsed: go back to the state of the check before, and no further."""


class Objective(ABC):
    """A loss over batches for R restarts; a method overrides what it needs.

    Every tensor of :meth:`state` has the restarts on axis 0 and belongs to one of them alone, so
    that the gradient of the summed losses keeps them apart.
    """

    #: Steps between calls of :meth:`refresh`; 0 for never.
    refresh_every: int = 0

    @property
    def recordable(self) -> bool:
        """Whether :meth:`loss` and :meth:`after_step` are kernels on fixed memory and no more.

        They then wait for nothing on the host, replace no tensor of the state, and take the
        temperature as a tensor: :mod:`training` may record them as a CUDA graph.
        """
        return False

    @abstractmethod
    def parameters(self) -> list[Tensor]:
        """What the optimiser moves, each (R, ...)."""

    def state(self) -> list[Tensor]:
        """All that a restart is made of, each (R, ...): parameters and what a step changes."""
        return self.parameters()

    def refresh(self) -> None:  # noqa: B027  # most methods need none
        """Look at all rows, every ``refresh_every`` steps."""

    @abstractmethod
    def loss(
        self, batch: Batch, temperature: float | Tensor, generators: Sequence[torch.Generator]
    ) -> dict[str, Tensor]:
        """Loss under ``"loss"``, and its parts for the history, each (R,)."""

    def after_step(self, batch: Batch) -> None:  # noqa: B027  # most methods need none
        """Update what no gradient moves."""
