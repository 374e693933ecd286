"""DEC and IDEC against rewrites of their equations."""

from __future__ import annotations

import math

import pytest
import torch

from concrete_kmeans.objectives import dec
from concrete_kmeans.objectives.dec import EmbeddedClustering, student_t, target_distribution
from concrete_kmeans.training import Settings, train


def q_of(plain, x):
    """(DEC, 1) of one row."""
    kernel = [1.0 / (1.0 + d) for d in plain.distances(plain.encode(x))]
    return [k / sum(kernel) for k in kernel]


def target_of(plain, rows):
    """(DEC, 3) over all rows, in numbers."""
    q = [[v.item() for v in q_of(plain, x)] for x in rows]
    f = [sum(row[j] for row in q) for j in range(len(q[0]))]
    p = []
    for row in q:
        weight = [v * v / g for v, g in zip(row, f, strict=True)]
        p.append([w / sum(weight) for w in weight])
    return p


def divergence(p, q):
    """KL(p || q) of one row."""
    return sum(a * (math.log(a) - b.log()) for a, b in zip(p, q, strict=True))


def embedded(problem, weight=None, refresh_every=3):
    objective = EmbeddedClustering(
        problem.network, problem.centers, problem.rows, refresh_every=refresh_every, weight=weight
    )
    objective.refresh()
    return objective


def test_soft_assignment_and_target(problem):
    objective = embedded(problem)
    q = student_t(problem.network.encode(problem.rows), objective.centers)
    found = target_distribution(q, q.sum(-2))
    for r, plain in enumerate(problem.alone(objective)):
        rewritten = torch.stack([torch.stack(q_of(plain, x)) for x in problem.rows])
        torch.testing.assert_close(q[r], rewritten, rtol=1e-12, atol=0)
        target = torch.tensor(target_of(plain, problem.rows), dtype=torch.float64)
        torch.testing.assert_close(found[r], target, rtol=1e-12, atol=0)
        torch.testing.assert_close(objective.target[r], target, rtol=1e-12, atol=0)


def test_the_target_is_that_of_all_rows_however_they_are_read(problem, monkeypatch):
    whole = embedded(problem).target
    pieces = dec.pieces
    monkeypatch.setattr(dec, "pieces", lambda rows: pieces(rows, max_bytes=2 * 6 * 8))
    torch.testing.assert_close(embedded(problem).target, whole, rtol=1e-13, atol=0)
    # and another one than that of a batch, which several ports compute
    index = problem.batch.index[0]
    q = student_t(problem.network.encode(problem.rows[index]), problem.centers)
    assert (target_distribution(q, q.sum(-2))[0] - whole[0, index]).abs().max() > 1e-3


@pytest.mark.parametrize("weight", [None, 0.1, 2.0])
def test_loss_equals_a_rewrite(problem, weight):
    objective = embedded(problem, weight)

    def expected(plain, r):
        target = target_of(plain, problem.rows)
        rows, index = problem.batch.rows[r], problem.batch.index[r].tolist()
        terms = [divergence(target[i], q_of(plain, x)) for i, x in zip(index, rows, strict=True)]
        value = sum(terms) / len(terms)  # (DEC, 2)
        if weight is not None:  # (IDEC, 9), the error a mean over features too
            value = plain.reconstruction(rows) / rows.shape[1] + weight * value
        return value, value

    problem.check(objective, expected)


def test_dec_leaves_the_decoder_alone(problem):
    assert len(embedded(problem).parameters()) == 4 + 1
    assert len(embedded(problem, weight=0.1).parameters()) == 8 + 1


def test_the_target_is_held_between_refreshes(problem):
    """Recomputed before steps 0, 3 and 6, with the weights of those steps, and at no other."""
    objective = embedded(problem, refresh_every=3)
    seen = []

    class Spy(EmbeddedClustering):
        def loss(self, batch, temperature, generators):
            now = student_t(self.network.encode(self.rows), self.centers).detach()
            fresh = target_distribution(now, now.sum(-2))
            seen.append((self.target.clone(), fresh))
            return super().loss(batch, temperature, generators)

    objective.__class__ = Spy
    settings = Settings(8, lambda _: 0.05, optimizer="sgd", check_every=8)
    train(objective, [problem.batch] * 8, settings, problem.generators())
    targets, fresh = zip(*seen, strict=True)
    for step in range(8):
        assert torch.equal(targets[step], targets[step - step % 3])
        assert (step % 3 == 0) == torch.allclose(targets[step], fresh[step], rtol=1e-12, atol=0)


@pytest.mark.parametrize("weight", [None, 0.1])
def test_sgd_with_momentum_by_hand(problem, weight):
    """Two steps: v <- 0.9 v + g, theta <- theta - rate v, target of the first state."""
    objective = embedded(problem, weight, refresh_every=100)
    alone = problem.alone(objective)
    second = problem.batch_of(torch.tensor([[3, 5, 6], [0, 4, 6]]))
    rates = [0.2, 0.1]
    settings = Settings(2, rates.__getitem__, optimizer="sgd")
    train(objective, [problem.batch, second], settings, problem.generators())
    for r, plain in enumerate(alone):
        target = target_of(plain, problem.rows)
        leaves = [*plain.weights, plain.centers]
        velocity = [torch.zeros_like(p) for p in leaves]
        for rate, batch in zip(rates, [problem.batch, second], strict=True):
            rows, index = batch.rows[r], batch.index[r].tolist()
            terms = [
                divergence(target[i], q_of(plain, x)) for i, x in zip(index, rows, strict=True)
            ]
            loss = sum(terms) / len(terms)
            if weight is not None:
                loss = plain.reconstruction(rows) / rows.shape[1] + weight * loss
            gradients = torch.autograd.grad(loss, leaves, allow_unused=True)
            with torch.no_grad():
                for p, v, g in zip(leaves, velocity, gradients, strict=True):
                    v.mul_(0.9).add_(torch.zeros_like(p) if g is None else g)
                    p -= rate * v
        for p, leaf in zip([*problem.network.parameters(), objective.centers], leaves, strict=True):
            torch.testing.assert_close(p[r].squeeze(), leaf.squeeze(), rtol=1e-10, atol=1e-12)
