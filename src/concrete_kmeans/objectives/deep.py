"""What deep methods share: an autoencoder, centres in its code, and a watch over both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from concrete_kmeans import functional as F
from concrete_kmeans import processes
from concrete_kmeans.augment import BUILT_IN, Augment
from concrete_kmeans.data import Batch
from concrete_kmeans.fused import kernels_for
from concrete_kmeans.networks import Autoencoder
from concrete_kmeans.objectives.base import Objective, Verdict
from concrete_kmeans.objectives.shallow import draw_far_row
from concrete_kmeans.streams import is_one

__all__ = ["ClusterWatch", "DeepObjective", "Found", "LabelsLearned", "Reconstruction"]

#: The code has shrunk when its variance is this part of what it was.
SHRUNK = 1e-4
#: Clusters have merged when their effective number, exp(entropy of the sizes), is this part of what
#: it was.
MERGED = 0.5


class DeepObjective(Objective):
    """A loss of codes, reconstructions and centres.

    Parameters
    ----------
    network : Autoencoder
        Of R restarts; trained in place.
    centers : Tensor of shape (R, K, d)
        Where to start; copied.
    augment : callable, optional
        Gives another view of a batch.
    """

    def __init__(
        self, network: Autoencoder, centers: Tensor, *, augment: Augment | None = None
    ) -> None:
        self.network, self.augment = network, augment
        self.centers = centers.detach().clone().requires_grad_()

    def parameters(self) -> list[Tensor]:
        """Weights of both networks, and the centres."""
        return [*self.network.parameters(), self.centers]

    def state(self) -> list[Tensor]:
        """Parameters, and what normalising layers count."""
        return [*self.network.parameters(), *self.network.buffers(), self.centers]

    @property
    def draws(self) -> bool:
        """If it augments."""
        return self.augment is not None

    @property
    def recordable(self) -> bool:
        """Unless something of the user's is part of it."""
        own = self.augment is None or isinstance(self.augment, BUILT_IN)
        return own and self.network.built_in

    def view(self, batch: Batch, generators: Sequence[torch.Generator]) -> Tensor:
        """Rows (R, B, D) as the network is to see them."""
        if self.augment is None:
            return batch.rows
        # it may draw for, and look at, the whole batch
        rows = self.augment(processes.gather(batch.rows, batch.size, dim=1), generators)
        return rows[:, processes.own(batch.size)]

    def reconstruction(self, rows: Tensor, codes: Tensor) -> Tensor:
        """Eq. 4 as a mean over the batch, (R,)."""
        loss = _SquaredError.apply(self.network.decode(codes), rows)  # type: ignore[no-untyped-call]
        return cast("Tensor", loss)


class _SquaredError(torch.autograd.Function):
    """Eq. 4 as a mean over the batch, (R,), of rows (R, B, D); autograd's, in fewer passes."""

    @staticmethod
    def forward(ctx: Any, decoded: Tensor, rows: Tensor) -> Tensor:
        if kernels := kernels_for(decoded, rows):
            loss, slope = kernels.squared_error(decoded.contiguous(), rows.contiguous())
        else:
            error = (decoded - rows).flatten(1)
            loss = (torch.linalg.vector_norm(error, dim=1) ** 2) / rows.shape[1]  # Eq. 4
            slope = error.mul_(2.0 / rows.shape[1]).view_as(rows)
        ctx.save_for_backward(slope.to(decoded.dtype))
        return cast("Tensor", loss)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (slope,) = ctx.saved_tensors
        if is_one(gradient):
            return slope, None
        return slope * gradient.view(-1, 1, 1).to(slope.dtype), None


class Reconstruction(DeepObjective):
    """Eq. 4 alone: pretraining of the autoencoder."""

    def __init__(self, network: Autoencoder, *, augment: Augment | None = None) -> None:
        first = next(network.parameters())
        super().__init__(network, first.new_zeros(len(first), 1, 1), augment=augment)

    def parameters(self) -> list[Tensor]:
        """Weights of both networks."""
        return list(self.network.parameters())

    def loss(
        self,
        batch: Batch,
        temperature: float | Tensor,  # noqa: ARG002
        generators: Sequence[torch.Generator],
    ) -> dict[str, Tensor]:
        """Eq. 4."""
        rows = self.view(batch, generators)
        return {"loss": self.reconstruction(rows, self.network.encode(rows))}


class Found(NamedTuple):
    """What a watch saw; each (R,)."""

    revived: Tensor
    """Centres that had lost all rows and were moved."""
    merged: Tensor
    shrunk: Tensor


class ClusterWatch:
    """Monitor of deep training: revives dead clusters, stops at rest, gives up on a collapse.

    It looks at the nearest centres of a fixed sample of rows, never at labels of the user's.

    Parameters
    ----------
    objective : DeepObjective
    sample : Tensor of shape (S, D)
    tol : float
        A restart is at rest when at most this part of the sample changed its cluster since the
        check before.
    patience : int or None
        Checks at rest before a restart stops; None for a method whose schedule is its own end, and
        which may gather its clusters on the way: it is never stopped.
    generators : sequence of R torch.Generator
    """

    def __init__(
        self,
        objective: DeepObjective,
        sample: Tensor,
        *,
        tol: float,
        patience: int | None,
        generators: Sequence[torch.Generator],
    ) -> None:
        self.objective, self.sample = objective, sample
        self.tol, self.patience, self.generators = tol, patience, generators
        codes, self.labels, sizes = look(self.objective, self.sample)
        self.spread = _spread(codes)
        self.effective = _effective(sizes)
        self.resting = torch.zeros_like(self.spread, dtype=torch.int64)
        none = torch.zeros_like(self.spread, dtype=torch.bool)
        self.found = Found(torch.zeros_like(self.resting), none, none.clone())

    @torch.no_grad()
    def check(self, step: int, running: Tensor) -> Verdict:  # noqa: ARG002
        """Compare the sample's clusters with those of the check before."""
        codes, labels, sizes = look(self.objective, self.sample)
        shrunk = running & (_spread(codes) < SHRUNK * self.spread)
        merged = running & (_effective(sizes) < MERGED * self.effective)
        if self.patience is None:
            merged = torch.zeros_like(merged)
        dead = (sizes == 0) & (running & ~shrunk & ~merged).unsqueeze(-1)
        for r, j in dead.nonzero().tolist():
            row = draw_far_row(codes[r], self.objective.centers[r], self.generators[r])
            self.objective.centers[r, j] = row
        changed = (labels != self.labels).double().mean(-1)
        rests = (changed <= self.tol) & ~dead.any(-1)
        self.resting = torch.where(rests, self.resting + 1, 0)
        self.labels = labels
        was = self.found
        self.found = Found(was.revived + dead.sum(-1), was.merged | merged, was.shrunk | shrunk)
        if self.patience is None:
            return Verdict(torch.zeros_like(running), shrunk)
        return Verdict(self.resting >= self.patience, shrunk | merged)


class LabelsLearned:
    """Monitor of a warm-up: stops a restart once the nearest centre of a row is that of its label.

    Parameters
    ----------
    objective : DeepObjective
    sample : Tensor of shape (S, D)
    labels : Tensor of shape (R, S)
    share : float
        Of the rows that is enough.
    """

    def __init__(
        self, objective: DeepObjective, sample: Tensor, labels: Tensor, share: float
    ) -> None:
        self.objective, self.sample = objective, sample
        self.labels, self.share = labels, share

    def check(self, step: int, running: Tensor) -> Verdict:  # noqa: ARG002
        """Compare the nearest centres with the labels."""
        _, nearest, _ = look(self.objective, self.sample)
        learned = (nearest == self.labels).double().mean(-1)
        return Verdict(learned >= self.share, torch.zeros_like(running))


@torch.no_grad()
def look(objective: DeepObjective, sample: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Codes compared (R, S, d), nearest centres (R, S), cluster shares (R, K) of rows (S, D)."""
    network = objective.network.eval()
    (codes,) = F.at_least_float32(network.points(network.encode(sample)))
    network.train()
    distances = F.squared_distances(codes, objective.centers)
    labels = distances.argmin(-1)  # (R, S)
    sizes = F.nearest_assignment(distances).mean(-2)  # (R, K)
    return codes, labels, sizes


def _spread(codes: Tensor) -> Tensor:
    """Total variance of codes (R, S, d), (R,)."""
    return codes.var(-2, correction=0).sum(-1)


def _effective(sizes: Tensor) -> Tensor:
    """Exponential of the entropy of cluster shares (R, K), (R,)."""
    return (-torch.xlogy(sizes, sizes).sum(-1)).exp()
