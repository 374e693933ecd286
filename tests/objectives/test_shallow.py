"""The shallow objective: steps recorded on CUDA against steps taken one by one."""

import pytest
import torch

from concrete_kmeans.data import Batches
from concrete_kmeans.objectives.base import Verdict
from concrete_kmeans.objectives.shallow import SHARE_DECAY, CurvatureSGD, ShallowObjective
from concrete_kmeans.training import Settings, train

R, N, D, K = 3, 4_000, 6, 5


def rows(device="cpu"):
    generator = torch.Generator().manual_seed(0)
    means = 4.0 * torch.randn(K, D, generator=generator, dtype=torch.float64)
    noise = torch.randn(N, D, generator=generator, dtype=torch.float64)
    return (means.repeat(N // K, 1) + noise).to(device)


def shares_of(labels):
    return torch.bincount(labels, minlength=K) / len(labels)


def test_shares_are_a_running_mean_that_starts_with_the_first_batch():
    X = rows()
    centers = X[:K].clone()
    objective = ShallowObjective(centers[None], torch.tensor([1e-6]).double(), "detached")
    generators = [torch.Generator().manual_seed(0)]
    batches = iter(Batches(X, None, 100, generators))
    expected = None
    for _ in range(4):  # a tiny sigma: every row goes to its nearest centre
        batch = next(batches)
        objective.loss(batch, 1.0, generators)
        share = shares_of(torch.cdist(batch.rows[0], centers).argmin(-1))
        if expected is None:
            expected = share
        else:
            expected = SHARE_DECAY * expected + (1.0 - SHARE_DECAY) * share
        torch.testing.assert_close(objective.shares[0], expected.double())
    again = ShallowObjective(
        centers[None], torch.tensor([1e-6]).double(), "detached", objective.shares
    )
    again.loss(batch, 1.0, generators)
    expected = SHARE_DECAY * expected + (1.0 - SHARE_DECAY) * share
    torch.testing.assert_close(again.shares[0], expected.double())


class Watching:
    """Remembers the batch that the objective had last."""

    def __init__(self, objective):
        self.objective, self.seen = objective, []

    def check(self, _step, running):
        batch, none = self.objective.batch, torch.zeros_like(running)
        self.seen.append((batch.index.cpu().clone(), batch.rows.cpu().clone()))
        return Verdict(none, none)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("batch_size", [64, 2048, N])  # an embedding's gradient has two ways
@pytest.mark.parametrize("gradient", ["detached", "distance", "reconstruction"])
def test_recorded_steps_are_the_same_steps(gradient, batch_size, weighted):
    """In float64, with numbers that float32 holds: all bits but those of sums in another order."""
    X = rows("cuda")
    weight = torch.linspace(0.5, 2.0, N, device="cuda").double() if weighted else None
    centers = torch.stack([X[r * K : (r + 1) * K] for r in range(R)]) + 0.5
    found = []
    for record in (True, False):
        generators = [torch.Generator("cuda").manual_seed(r) for r in range(R)]
        objective = ShallowObjective(centers, torch.ones(R, device="cuda").double(), gradient)
        watching = Watching(objective)
        settings = Settings(
            60,
            lambda step: 0.5 if step < 40 else 0.125,
            lambda step: 1.0 if step < 30 else 0.25,
            CurvatureSGD,
            check_every=13,
            record=record,
        )
        batches = Batches(X, weight, batch_size, generators)
        outcome = train(objective, batches, settings, generators, monitor=watching)
        state = objective.centers, objective.shares, objective.hits, objective.last_loss
        found.append((state, watching.seen, outcome, [g.get_state() for g in generators]))
    (ours, seen, outcome, drawn), (theirs, expected, other, untroubled) = found
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)
    for (index, read), (wanted, plain) in zip(seen, expected, strict=True):
        assert torch.equal(index, wanted)
        assert torch.equal(read, plain)
        assert torch.equal(read[0], X.cpu()[index[0]])
    assert all(torch.equal(a, b) for a, b in zip(drawn, untroubled, strict=True))
    for a, b in zip(outcome.history, other.history, strict=True):
        assert a.losses["loss"] == pytest.approx(b.losses["loss"], rel=1e-10)
