"""Eq. 4, and what all deep objectives have in common."""

from __future__ import annotations

import torch

from concrete_kmeans.objectives.deep import Reconstruction


def test_reconstruction_equals_a_rewrite_of_the_equation(problem):
    objective = Reconstruction(problem.network)

    def expected(plain, r):
        value = plain.reconstruction(problem.batch.rows[r])
        return value, value

    problem.check(objective, expected)


def test_no_centres_are_learned(problem):
    objective = Reconstruction(problem.network)
    assert len(objective.parameters()) == len(list(problem.network.parameters()))
    assert all(len(part) == 2 for part in objective.state())


def test_an_augmented_view_is_what_is_reconstructed(problem):
    def half(rows, generators):
        assert len(generators) == 2
        return 0.5 * rows

    objective = Reconstruction(problem.network, augment=half)

    def expected(plain, r):
        value = plain.reconstruction(0.5 * problem.batch.rows[r])
        return value, value

    problem.check(objective, expected)


def test_gradient_by_finite_differences(problem):
    objective = Reconstruction(problem.network)
    loss = lambda: objective.loss(problem.batch, 1.0, problem.generators())["loss"].sum()  # noqa: E731
    loss().backward()
    step = 1e-6
    for p in problem.network.parameters():
        flat, gradient = p.detach().flatten(), p.grad.flatten()
        for i in range(0, len(flat), 7):
            with torch.no_grad():
                flat[i] += step
                above = loss()
                flat[i] -= 2 * step
                below = loss()
                flat[i] += step
            torch.testing.assert_close(
                (above - below) / (2 * step), gradient[i], rtol=1e-6, atol=1e-7
            )
