"""What the training loop asks of a method."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from concrete_kmeans import functional as F
from concrete_kmeans import processes
from concrete_kmeans.data import Batch

__all__ = ["Objective", "Verdict", "noise_of_batch"]


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

    Where processes share a batch (:attr:`Batch.whole`), the loss is that of the own rows: the loop
    adds up gradients, each times :attr:`Batch.share`. What depends on all rows of a batch but not
    by a mean, is exchanged in :meth:`loss` and :meth:`after_step`, which leave the same state in
    all processes.
    """

    #: Steps between calls of :meth:`refresh`; 0 for never.
    refresh_every: int = 0
    #: Gumbel noise (R, B, K) of the next step, where it is drawn before: by a loop that records.
    noise: Tensor | None = None
    #: The last one, which the loop sets before it asks for its loss.
    batch: Batch

    @property
    def recordable(self) -> bool:
        """Whether :meth:`loss` and :meth:`after_step` are kernels on fixed memory and no more.

        They then wait for nothing on the host, replace no tensor of the state, and take the
        temperature as a tensor: :mod:`training` may record them as a CUDA graph.
        """
        return False

    @property
    def draws(self) -> bool:
        """Whether :meth:`loss` draws random numbers beside :attr:`noise`."""
        return False

    def noise_shape(self, n_rows: int) -> tuple[int, int, int] | None:  # noqa: ARG002
        """Of :attr:`noise` for a batch, if it is needed."""
        return None

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


def noise_of_batch(batch: Batch, like: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
    """Gumbel noise (R, B, K) for the rows of a batch, as one process would draw it for them."""
    if batch.whole is None:
        return F.gumbel_noise(like, generators)
    every = like.new_empty(like.shape[0], batch.size, like.shape[-1])
    return F.gumbel_noise(every, generators)[:, processes.own(batch.size)]
