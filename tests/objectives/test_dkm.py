"""DKM against rewrites of its equations."""

from __future__ import annotations

import math

import pytest

from concrete_kmeans.objectives.dkm import InverseTemperatures, SoftClustering


@pytest.mark.parametrize("alpha", [0.1, 1.0, 30.0])
def test_loss_equals_a_rewrite(problem, alpha):
    """The package shifts the softmax by each row's least distance; the rewrite does not."""
    objective = SoftClustering(problem.network, problem.centers, weight=0.8)

    def expected(plain, r):
        rows, terms = problem.batch.rows[r], []
        for x in rows:
            distances = plain.distances(plain.encode(x))
            weights = [(-alpha * d).exp() for d in distances]
            terms.append(sum(w / sum(weights) * d for w, d in zip(weights, distances, strict=True)))
        value = plain.reconstruction(rows) + 0.8 * sum(terms) / len(terms)
        return value, value

    problem.check(objective, expected, temperature=1.0 / alpha)


def test_a_large_alpha_is_k_means(problem):
    """Where the softmax without the shift would be 0 / 0."""
    objective = SoftClustering(problem.network, problem.centers, weight=1.0)
    found = objective.loss(problem.batch, 1e-6, problem.generators())
    for r, plain in enumerate(problem.alone(objective)):
        nearest = [min(plain.distances(plain.encode(x))).item() for x in problem.batch.rows[r]]
        assert found["clustering"][r].item() == pytest.approx(sum(nearest) / len(nearest))
    found["loss"].sum().backward()
    assert all(p.grad.isfinite().all() for p in objective.parameters())


def test_annealing_is_that_of_the_paper():
    """alpha_1 = 0.1, alpha_{n+1} = 2^(1 / ln(n)^2) alpha_n, 40 values in equal parts."""
    alphas, alpha = [], 0.1
    for n in range(2, 42):
        alphas.append(alpha)
        alpha *= 2.0 ** (1.0 / math.log(n) ** 2)
    schedule = InverseTemperatures(n_steps=400)
    found = [1.0 / schedule(step) for step in range(400)]
    assert found == pytest.approx([a for a in alphas for _ in range(10)], rel=1e-12)
    assert found == sorted(found)
    assert schedule(400) == schedule(10**6) == schedule(399)


def test_fewer_steps_than_values_still_end_near_the_last():
    schedule = InverseTemperatures(n_steps=7)
    values = [schedule(step) for step in range(7)]
    assert values[0] == 10.0
    assert values == sorted(values, reverse=True)
    assert len(set(values)) == 7
