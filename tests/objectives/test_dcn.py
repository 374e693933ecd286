"""DCN against rewrites of its equations."""

from __future__ import annotations

import pytest
import torch

from concrete_kmeans.networks import build_autoencoder
from concrete_kmeans.objectives.dcn import FIRST_COUNT, AlternatingClustering
from concrete_kmeans.training import Settings, train

WEIGHT = 0.6
LABELS = torch.randint(4, (2, 11), generator=torch.Generator().manual_seed(1))


@pytest.fixture
def objective(problem):
    return AlternatingClustering(problem.network, problem.centers, LABELS, weight=WEIGHT)


def one_after_another(codes, centers, counts):
    """(DCN, 6) for all rows, then (DCN, 8) row by row: c_j counts the row, then the step is 1/c_j.

    The authors' code numbers a row before it moves its centre, so that with a count of zero the
    first row would become the centre: a running mean.
    """
    centers, counts = [list(m) for m in centers.tolist()], counts.tolist()
    labels = []
    for z in codes.tolist():
        far = [sum((a - b) ** 2 for a, b in zip(z, m, strict=True)) for m in centers]
        labels.append(far.index(min(far)))
    for z, j in zip(codes.tolist(), labels, strict=True):
        counts[j] += 1.0
        centers[j] = [m - (m - a) / counts[j] for m, a in zip(centers[j], z, strict=True)]
    as_tensor = lambda values: torch.tensor(values, dtype=torch.float64)  # noqa: E731
    return torch.tensor(labels), as_tensor(centers), as_tensor(counts)


def test_loss_equals_a_rewrite_with_the_assignment_fixed(problem, objective):
    def expected(plain, r):
        rows, terms = problem.batch.rows[r], []
        for x, i in zip(rows, problem.batch.index[r].tolist(), strict=True):
            own = plain.centers[int(LABELS[r, i])].detach()  # not the nearest: the stored one
            terms.append(sum((a - b) ** 2 for a, b in zip(plain.encode(x), own, strict=True)))
        value = plain.reconstruction(rows) + WEIGHT / 2.0 * sum(terms) / len(terms)
        return value, value

    problem.check(objective, expected)
    assert not objective.centers.requires_grad


@pytest.mark.parametrize("first_count", [FIRST_COUNT, 1.0, 0.5])
def test_closed_form_of_the_centres_is_the_sequential_update(problem, objective, first_count):
    objective.counts.fill_(first_count)
    for index in ([[4, 0, 9, 2, 7], [1, 10, 3, 8, 5]], [[1, 2, 3, 4, 5], [0, 1, 2, 3, 4]]):
        batch = problem.batch_of(torch.tensor(index))
        before, counts = objective.centers.clone(), objective.counts.clone()
        stored = objective.labels.clone()
        objective.after_step(batch)
        for r, plain in enumerate(problem.alone(objective)):
            codes = torch.stack([plain.encode(x) for x in batch.rows[r]]).detach()
            labels, centers, counted = one_after_another(codes, before[r], counts[r])
            torch.testing.assert_close(objective.centers[r], centers, rtol=1e-12, atol=1e-13)
            assert torch.equal(objective.counts[r], counted)
            stored[r, batch.index[r]] = labels
        assert torch.equal(objective.labels, stored)  # of the batch's rows, and of no other


def test_a_cluster_without_rows_in_the_batch_stays(problem, objective):
    with torch.no_grad():
        objective.centers[:, 2] = 1e6
    objective.after_step(problem.batch)
    assert (objective.centers[:, 2] == 1e6).all()
    assert (objective.counts[:, 2] == FIRST_COUNT).all()


def test_one_step_of_the_loop_is_gradient_then_assignment_then_centres(problem, objective):
    """The codes that move the centres are those of the moved network."""
    alone, before = problem.alone(objective), objective.centers.clone()
    settings = Settings(1, lambda _: 0.1, optimizer="sgd")
    train(objective, [problem.batch], settings, problem.generators())
    for r, plain in enumerate(alone):
        rows, terms = problem.batch.rows[r], []
        for x, i in zip(rows, problem.batch.index[r].tolist(), strict=True):
            own = plain.centers[int(LABELS[r, i])].detach()
            terms.append(((plain.encode(x) - own) ** 2).sum())
        loss = plain.reconstruction(rows) + WEIGHT / 2.0 * sum(terms) / len(terms)
        gradients = torch.autograd.grad(loss, plain.weights)
        with torch.no_grad():
            for p, g in zip(plain.weights, gradients, strict=True):
                p -= 0.1 * g
        codes = torch.stack([plain.encode(x) for x in rows]).detach()
        counts = torch.full((4,), FIRST_COUNT, dtype=torch.float64)
        labels, centers, _ = one_after_another(codes, before[r], counts)
        torch.testing.assert_close(objective.centers[r], centers, rtol=1e-10, atol=1e-12)
        assert torch.equal(objective.labels[r, problem.batch.index[r]], labels)


def test_rows_are_assigned_as_predict_would_assign_them(problem):
    """Dropout acts on the gradient step, not on assignments and centres."""
    network = build_autoencoder(
        torch.nn.Sequential(torch.nn.Linear(6, 3), torch.nn.Dropout(0.9)),
        torch.nn.Linear(3, 6),
        (6,),
        seeds=[0, 1],
        dtype=torch.float64,
        stacking="loop",
    ).train()
    objective = AlternatingClustering(network, problem.centers, LABELS, weight=WEIGHT)
    codes = network.eval().encode(problem.batch.rows).detach()
    network.train()
    objective.after_step(problem.batch)
    assert network.training
    assert all(module.training for module in network.modules())
    for r in range(2):
        counts = torch.full((4,), FIRST_COUNT, dtype=torch.float64)
        labels, centers, _ = one_after_another(codes[r], problem.centers[r], counts)
        assert torch.equal(objective.labels[r, problem.batch.index[r]], labels)
        torch.testing.assert_close(objective.centers[r], centers, rtol=1e-12, atol=1e-12)


def test_the_callers_labels_are_not_written_to(problem, objective):
    objective.after_step(problem.batch)
    assert not torch.equal(objective.labels, LABELS)
    fresh = torch.randint(4, (2, 11), generator=torch.Generator().manual_seed(1))
    assert torch.equal(LABELS, fresh)


def test_state_holds_all_that_a_step_changes(problem, objective):
    saved = [part.clone() for part in objective.state()]
    settings = Settings(3, lambda _: 0.1)
    train(objective, [problem.batch] * 3, settings, problem.generators())
    with torch.no_grad():
        for part, old in zip(objective.state(), saved, strict=True):
            part.copy_(old)
    for r, plain in enumerate(problem.alone(objective)):
        assert torch.equal(plain.centers, problem.centers[r])
    assert torch.equal(objective.labels, LABELS)
    assert (objective.counts == FIRST_COUNT).all()
