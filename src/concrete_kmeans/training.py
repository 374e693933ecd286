"""The only training loop."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

import torch
from torch import Tensor

from concrete_kmeans import functional as F
from concrete_kmeans.objectives.concrete import ShallowObjective

__all__ = ["Annealed", "Interrupted", "InverseTime", "Outcome", "Settings", "train"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Annealed:
    """A value that falls exponentially from ``start`` to ``end`` in ``n_steps``, then stays."""

    start: float
    end: float
    n_steps: float

    def __call__(self, step: int) -> float:
        """Value at a step."""
        return float(self.start * (self.end / self.start) ** min(step / self.n_steps, 1.0))


@dataclass(frozen=True)
class InverseTime:
    """A value that falls from ``start`` as one over the steps until it is ``end``."""

    start: float
    end: float
    taken: int
    """Steps before this run."""
    slow: float = 10.0
    """Steps until the value has halved."""

    def __call__(self, step: int) -> float:
        """Value at a step of this run."""
        return max(self.end, self.start / (1.0 + (self.taken + step) / self.slow))


@dataclass(frozen=True)
class Settings:
    """Of one call of :func:`train`."""

    n_steps: int
    learning_rate: Callable[[int], float]
    temperature: Callable[[int], float]
    tol: float = 0.0
    revive_until: int = 0
    """Empty clusters are moved in steps before this one."""
    check_every: int = 100
    """Steps between looks at empty clusters and at movement: the only waits for the device."""
    share_decay: float = 0.9
    """Of the running mean of the cluster shares."""
    verbose: bool = False


class Outcome(NamedTuple):
    """What training leaves besides the objective's parameters."""

    n_steps: Tensor
    """(R,), steps taken by each restart."""
    shares: Tensor
    """(R, K), running share of the batch weight in each cluster."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C during training; ``outcome`` is the state it was left in."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__("training was interrupted; the state of the last step is kept")
        self.outcome = outcome


class CurvatureSGD:
    """Gradient descent in which every centre takes its own Newton step, times the learning rate.

    The mean loss has curvature ``2 * share`` in a centre, its cluster's share of the batch. Divided
    by it, a rate of one moves a centre to the mean of its rows; the rate needs no tuning to the
    scale of the data, the number of clusters or their sizes.
    """

    def __init__(self, centers: Tensor) -> None:
        self.centers = centers

    @torch.no_grad()
    def step(self, rate: float, shares: Tensor, floor: float, running: Tensor) -> None:
        """Move the centres of running restarts (R,); shares (R, K) count as ``floor`` at least."""
        gradient = cast("Tensor", self.centers.grad)
        step = gradient / (2.0 * shares.clamp_min(floor)).unsqueeze(-1)
        self.centers -= step * (rate * running).view(-1, 1, 1)


def train(
    objective: ShallowObjective,
    batches: Iterable[tuple[Tensor, Tensor | None]],
    settings: Settings,
    generators: Sequence[torch.Generator],
    shares: Tensor | None = None,
) -> Outcome:
    """Run the loop; the objective's parameters are changed in place.

    Raises
    ------
    Interrupted
        On Ctrl-C, with the state of the last whole step.
    """
    centers = objective.centers
    R, K, _ = centers.shape
    optimizer = CurvatureSGD(centers)
    taken = torch.zeros(R, dtype=torch.int64, device=centers.device)
    running = torch.ones(R, dtype=torch.bool, device=centers.device)
    hits = torch.zeros(R, K, dtype=centers.dtype, device=centers.device)
    before = centers.detach().clone()
    try:
        for step, (rows, weight) in zip(range(settings.n_steps), batches, strict=False):
            centers.grad = None
            losses, share = objective.loss(rows, weight, settings.temperature(step), generators)
            losses.sum().backward()  # type: ignore[no-untyped-call]  # restarts share no parameter: the sum keeps them apart
            decay = settings.share_decay
            shares = share if shares is None else decay * shares + (1.0 - decay) * share
            optimizer.step(settings.learning_rate(step), shares, 1.0 / rows.shape[-2], running)
            hits += share
            taken += running
            if (step + 1) % settings.check_every == 0:
                if step < settings.revive_until:
                    empty = (hits == 0) & running.unsqueeze(-1)
                    _revive(objective, rows, empty, shares, generators)
                moved = (shares * (centers.detach() - before).square().sum(-1)).sum(-1)
                running &= moved > settings.tol * losses.detach()
                hits.zero_()
                before = centers.detach().clone()
                if settings.verbose:
                    logger.info(
                        "step %d of %d: loss %s", step + 1, settings.n_steps, losses.tolist()
                    )
                if not bool(running.any()):
                    break
    except KeyboardInterrupt as stop:
        raise Interrupted(Outcome(taken, _or_even(shares, hits))) from stop
    return Outcome(taken, _or_even(shares, hits))


def _or_even(shares: Tensor | None, like: Tensor) -> Tensor:
    return torch.full_like(like, 1.0 / like.shape[1]) if shares is None else shares


@torch.no_grad()
def _revive(
    objective: ShallowObjective,
    rows: Tensor,
    empty: Tensor,
    shares: Tensor,
    generators: Sequence[torch.Generator],
) -> None:
    """Move a centre that no row was assigned to onto a row, as k-means++ would draw it."""
    centers = objective.centers
    for r, j in empty.nonzero().tolist():
        nearest = F.squared_distances(rows[r], centers[r]).amin(-1)
        u = torch.rand((), generator=generators[r], device=generators[r].device).to(nearest)
        ends = nearest.double().cumsum(0)
        row = int(torch.searchsorted(ends, u.double() * ends[-1], right=True))
        centers[r, j] = rows[r, min(row, rows.shape[1] - 1)]
        shares[r, j] = 1.0 / shares.shape[1]
