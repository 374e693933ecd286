from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare
from torch.autograd import gradcheck, gradgradcheck

from concrete_kmeans import functional as F

FORMS = ["distance", "reconstruction"]
# torch compiles with parts of its own that it has deprecated
inductor = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def normal(*shape, seed=0, dtype=torch.float64, requires_grad=False):
    drawn = torch.randn(*shape, generator=generator(seed), dtype=torch.float64).to(dtype)
    return drawn.requires_grad_(requires_grad)


def explicit_distances(z, centers):
    """In float64, by differences: no cancellation."""
    z, centers = z.detach().double(), centers.detach().double()
    return (z.unsqueeze(-2) - centers.unsqueeze(-3)).square().sum(-1)


def softmax(a):
    e = np.exp(a - a.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def chain(z, centers, sigma, temperature, noise, gradient="distance", reduction="sum"):
    log_probs = F.assignment_log_probs(z, centers, sigma)
    assignment = F.concrete_assignment(log_probs, temperature, noise=noise)
    return F.kmeans_loss(z, centers, assignment, gradient=gradient, reduction=reduction)


class TestSquaredDistances:
    @settings(deadline=None, max_examples=60)
    @given(
        B=st.integers(1, 6),
        K=st.integers(1, 5),
        D=st.integers(1, 7),
        leading=st.sampled_from(
            [((), ()), ((3,), (3,)), ((), (2,)), ((4,), ()), ((2, 1), (3,)), ((2, 3), (2, 3))]
        ),
        seed=st.integers(0, 10**6),
        scale=st.sampled_from([1e-6, 1.0, 1e6]),
    )
    def test_equals_explicit_differences(self, B, K, D, leading, seed, scale):
        z = scale * normal(*leading[0], B, D, seed=seed)
        centers = scale * normal(*leading[1], K, D, seed=seed + 1)
        found, expected = F.squared_distances(z, centers), explicit_distances(z, centers)
        assert found.shape == expected.shape
        assert (found >= 0.0).all()
        # the error of the expanded form is relative to the norms, not to the distance itself
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-13 * scale**2 * D)

    @pytest.mark.parametrize(
        ("dtype", "offset", "rtol"), [(torch.float32, 1e4, 1e-4), (torch.float64, 1e8, 1e-12)]
    )
    def test_keeps_its_digits_far_from_the_origin(self, dtype, offset, rtol):
        z, centers = normal(50, 8, dtype=dtype), normal(5, 8, seed=1, dtype=dtype)
        z, centers = z + offset, centers + offset  # what rounding this costs, the oracle sees too
        found = F.squared_distances(z, centers).double()
        torch.testing.assert_close(found, explicit_distances(z, centers), rtol=rtol, atol=0.0)

    @pytest.mark.parametrize("offset", [0.0, 1.0, 1e3, 1e5])
    def test_never_negative_for_rows_on_centres(self, offset):
        centers = normal(40, 16, dtype=torch.float32) + offset
        distances = F.squared_distances(centers.repeat(3, 1), centers)
        assert (distances >= 0.0).all()

    @pytest.mark.parametrize("leading", [(), (2,)])
    def test_first_and_second_derivatives(self, leading):
        z = normal(*leading, 4, 3, requires_grad=True)
        centers = normal(*leading, 2, 3, seed=1, requires_grad=True)
        assert gradcheck(F.squared_distances, (z, centers))
        assert gradgradcheck(F.squared_distances, (z, centers))

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
    def test_half_precision_is_computed_in_float32(self, dtype):
        z, centers = normal(9, 4, dtype=dtype), normal(3, 4, seed=1, dtype=dtype)
        found = F.squared_distances(z, centers)
        assert found.dtype == torch.float32
        expected = explicit_distances(z, centers)
        torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)
        far = F.squared_distances(200.0 * z, 200.0 * centers)  # most lie beyond float16
        assert far.max() > torch.finfo(torch.float16).max
        expected = explicit_distances(200.0 * z, 200.0 * centers)
        torch.testing.assert_close(far.double(), expected, rtol=1e-5, atol=0.1)

    def test_autocast_changes_nothing(self):
        z, centers = normal(9, 4, dtype=torch.float32), normal(3, 4, seed=1, dtype=torch.float32)
        expected = F.squared_distances(z, centers)
        with torch.autocast("cpu", torch.bfloat16):
            assert torch.equal(F.squared_distances(z, centers), expected)

    @pytest.mark.parametrize(
        ("z", "centers", "error", "message"),
        [
            (torch.zeros(3, 2), torch.zeros(4, 3), ValueError, r"\(3, 2\) and \(4, 3\)"),
            (torch.zeros(2), torch.zeros(4, 2), ValueError, r"z must be .* got \(2,\)"),
            (torch.zeros(3, 2), torch.zeros(2), ValueError, r"and \(2,\)"),
            (torch.zeros(3, 2), torch.zeros(0, 2), ValueError, "at least one centre"),
            (torch.zeros(3, 2).int(), torch.zeros(4, 2), TypeError, "z must be .* torch.int32"),
            (torch.zeros(3, 2), torch.zeros(4, 2).long(), TypeError, "centers must .* torch.int64"),
            (torch.zeros(3, 2), torch.zeros(4, 2, device="meta"), ValueError, "cpu .* meta"),
        ],
    )
    def test_errors(self, z, centers, error, message):
        with pytest.raises(error, match=message):
            F.squared_distances(z, centers)
        with pytest.raises(error, match=message):
            F.kmeans_loss(z, centers, torch.zeros(3, 4), gradient="reconstruction")


class TestAssignmentLogProbs:
    @settings(deadline=None, max_examples=40)
    @given(
        B=st.integers(1, 6),
        K=st.integers(1, 6),
        sigma=st.floats(0.05, 20.0),
        seed=st.integers(0, 10**6),
    )
    def test_equals_a_rewrite_of_the_equation(self, B, K, sigma, seed):
        z, centers = normal(B, 3, seed=seed), normal(K, 3, seed=seed + 1)
        found = F.assignment_log_probs(z, centers, sigma)
        logits = np.array(
            [[-(((x - m) ** 2).sum()) / sigma**2 for m in centers.numpy()] for x in z.numpy()]
        )
        expected = logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(found.exp().sum(-1), 1.0, rtol=1e-12)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    @pytest.mark.parametrize(("sigma", "scale"), [(1e-12, 1.0), (1.0, 1e15), (1e-12, 1e12)])
    def test_a_tiny_sigma_or_a_huge_distance_leaves_the_nearest(self, dtype, sigma, scale):
        z, centers = normal(20, 3, dtype=dtype), normal(4, 3, seed=1, dtype=dtype)
        z, centers = (scale * z).requires_grad_(), (scale * centers).requires_grad_()
        log_probs = F.assignment_log_probs(z, centers, sigma)
        assert not log_probs.isnan().any()
        assert (log_probs.amax(-1) == 0.0).all()
        nearest = explicit_distances(z, centers).argmin(-1)
        assert torch.equal(log_probs.argmax(-1), nearest)
        chain(z, centers, sigma, 1.0, torch.zeros(20, 4)).backward()
        assert z.grad.isfinite().all()
        assert centers.grad.isfinite().all()

    def test_one_sigma_a_problem(self):
        z, centers = normal(3, 5, 2), normal(3, 4, 2, seed=1)
        sigma = torch.tensor([0.3, 1.0, 4.0], dtype=torch.float64)
        found = F.assignment_log_probs(z, centers, sigma)
        for r, own in enumerate(sigma.tolist()):
            expected = F.assignment_log_probs(z[r], centers[r], own)
            torch.testing.assert_close(found[r], expected, rtol=0, atol=1e-12)

    def test_derivatives(self):
        z, centers = normal(4, 3, requires_grad=True), normal(3, 3, seed=1, requires_grad=True)
        sigma = torch.tensor(0.8, dtype=torch.float64, requires_grad=True)
        assert gradcheck(F.assignment_log_probs, (z, centers, sigma))
        assert gradgradcheck(F.assignment_log_probs, (z, centers, sigma))

    @pytest.mark.parametrize("sigma", [0, 0.0, -1.0, math.nan, math.inf, True, "auto", None])
    def test_a_bad_sigma_is_named(self, sigma):
        with pytest.raises(ValueError, match=f"sigma must be a positive finite .* got {sigma!r}"):
            F.assignment_log_probs(torch.zeros(2, 2), torch.zeros(2, 2), sigma)


class TestGumbelNoise:
    def test_mean_and_variance(self):
        noise = F.gumbel_noise(torch.zeros(1000, 400, dtype=torch.float64), generator())
        n = noise.numel()
        variance = math.pi**2 / 6
        assert abs(noise.mean() - np.euler_gamma) < 5 * math.sqrt(variance / n)
        # the kurtosis of the Gumbel law is 5.4: the variance of its sample variance is 4.4 v^2 / n
        assert abs(noise.var() - variance) < 5 * math.sqrt(4.4 * variance**2 / n)

    def test_an_exponential_draw_of_zero_stays_finite(self, monkeypatch):
        def all_zero(tensor, generator=None):
            return tensor.zero_()

        monkeypatch.setattr(torch.Tensor, "exponential_", all_zero)
        noise = F.gumbel_noise(torch.zeros(3, 2))
        assert noise.isfinite().all()
        rows = F.concrete_assignment(torch.zeros(3, 2), 1e-3)
        assert torch.equal(rows, torch.tensor([[1.0, 0.0]]).expand(3, 2))

    def test_half_precision_draws_float32(self):
        assert F.gumbel_noise(torch.zeros(2, 2, dtype=torch.float16)).dtype == torch.float32

    def test_noise_has_no_gradient(self):
        assert not F.gumbel_noise(torch.zeros(2, 2, requires_grad=True)).requires_grad

    def test_a_generator_leaves_the_global_state_alone(self, untouched_random_state):
        F.gumbel_noise(torch.zeros(5, 3), generator())
        F.concrete_assignment(torch.zeros(2, 5, 3), 1.0, generator=[generator(1), generator(2)])

    def test_a_stack_draws_what_each_draws_alone(self):
        like = torch.zeros(3, 17, 5)
        stack = F.gumbel_noise(like, [generator(s) for s in range(3)])
        for s in range(3):
            assert torch.equal(stack[s], F.gumbel_noise(like[s], generator(s)))
            assert torch.equal(stack[s : s + 1], F.gumbel_noise(like[:1], [generator(s)]))

    @pytest.mark.parametrize("shape", [(2, 3), (3, 4, 5)])
    def test_a_wrong_number_of_generators(self, shape):
        with pytest.raises(ValueError, match=f"generator must hold one .* {shape[0]} .* got 2"):
            F.gumbel_noise(torch.zeros(shape), [generator(), generator(1)])


class TestConcreteAssignment:
    @pytest.mark.parametrize("temperature", [0.3, 1.0, 5.0])
    def test_relaxed_sample_equals_a_rewrite_and_finite_differences(self, temperature):
        log_probs = normal(4, 3).log_softmax(-1).requires_grad_()
        noise = F.gumbel_noise(log_probs, generator())
        tau = torch.tensor(temperature, dtype=torch.float64, requires_grad=True)

        def relaxed(log_probs, tau):
            return F.concrete_assignment(log_probs, tau, hard=False, noise=noise)

        expected = softmax((log_probs.detach().numpy() + noise.numpy()) / temperature)
        np.testing.assert_allclose(relaxed(log_probs, tau).detach(), expected, rtol=1e-12)
        assert gradcheck(relaxed, (log_probs, tau))
        assert gradgradcheck(relaxed, (log_probs, tau))

    @settings(deadline=None, max_examples=30)
    @given(
        seed=st.integers(0, 10**6), temperature=st.floats(1e-3, 100.0), K=st.sampled_from([1, 2, 9])
    )
    def test_relaxed_rows_are_on_the_simplex(self, seed, temperature, K):
        log_probs = (3 * normal(8, K, seed=seed)).log_softmax(-1)
        rows = F.concrete_assignment(log_probs, temperature, hard=False, generator=generator(seed))
        assert (rows >= 0.0).all()
        torch.testing.assert_close(rows.sum(-1), torch.ones(8, dtype=torch.float64))

    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
    @pytest.mark.parametrize("temperature", [1e-3, 0.1, 1.0, 3.0, 100.0])
    def test_hard_rows_are_exactly_one_hot(self, dtype, temperature):
        for K in (1, 2, 3, 10, 101):
            log_probs = normal(3000, K, seed=K).log_softmax(-1).to(dtype)
            rows = F.concrete_assignment(log_probs, temperature, generator=generator(K))
            assert rows.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
            one_hot = torch.nn.functional.one_hot(rows.argmax(-1), K).to(rows.dtype)
            assert torch.equal(rows, one_hot)

    @pytest.mark.parametrize("temperature", [1e-3, 1.0, 100.0])
    def test_hard_rows_follow_the_probabilities_at_any_temperature(self, temperature):
        log_probs = torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=torch.float64).log()
        n = 100_000
        rows = F.concrete_assignment(log_probs.expand(n, 4), temperature, generator=generator())
        assert chisquare(rows.sum(0).numpy(), n * log_probs.exp().numpy()).pvalue > 1e-6

    def test_the_temperature_does_not_change_the_hard_sample(self):
        log_probs = normal(500, 6).log_softmax(-1)
        draws = [
            F.concrete_assignment(log_probs, t, generator=generator()) for t in (0.1, 1.0, 10.0)
        ]
        assert torch.equal(draws[0], draws[1])
        assert torch.equal(draws[1], draws[2])

    @pytest.mark.parametrize("temperature", [0.2, 1.0, 10.0])
    def test_hard_gradient_is_the_relaxed_gradient(self, temperature):
        upstream = normal(7, 4, seed=2)
        gradients = []
        for hard in (True, False):
            log_probs = normal(7, 4).log_softmax(-1).requires_grad_()
            rows = F.concrete_assignment(log_probs, temperature, hard=hard, generator=generator(3))
            gradients += torch.autograd.grad(rows, log_probs, upstream)
        assert gradients[0].abs().max() > 0.0
        assert torch.equal(*gradients)

    def test_one_temperature_a_problem(self):
        log_probs = normal(3, 5, 4).log_softmax(-1)
        noise = F.gumbel_noise(log_probs, generator())
        tau = torch.tensor([0.1, 1.0, 4.0], dtype=torch.float64)
        found = F.concrete_assignment(log_probs, tau, hard=False, noise=noise)
        for r in range(3):
            expected = F.concrete_assignment(
                log_probs[r], float(tau[r]), hard=False, noise=noise[r]
            )
            torch.testing.assert_close(found[r], expected, rtol=0, atol=1e-12)

    def test_the_same_generator_the_same_sample(self):
        log_probs = torch.zeros(50, 7)
        first = F.concrete_assignment(log_probs, 1.0, generator=generator(1))
        assert torch.equal(first, F.concrete_assignment(log_probs, 1.0, generator=generator(1)))
        assert not torch.equal(first, F.concrete_assignment(log_probs, 1.0, generator=generator(2)))

    def test_generator_and_noise_exclude_each_other(self):
        with pytest.raises(ValueError, match="generator or noise, not both"):
            F.concrete_assignment(
                torch.zeros(2, 2), 1.0, generator=generator(), noise=torch.zeros(2, 2)
            )

    @pytest.mark.parametrize("shape", [(3,), (4, 1), (1, 3), (5, 3)])
    def test_noise_of_another_shape(self, shape):
        with pytest.raises(ValueError, match=r"noise must be .*\(4, 3\), got \(" + str(shape[0])):
            F.concrete_assignment(torch.zeros(4, 3), 1.0, noise=torch.zeros(shape))

    @pytest.mark.parametrize("temperature", [0, -0.5, math.nan, math.inf, False])
    def test_a_bad_temperature_is_named(self, temperature):
        with pytest.raises(ValueError, match=f"temperature must be .* got {temperature!r}"):
            F.concrete_assignment(torch.zeros(2, 2), temperature)


def test_nearest_assignment_is_the_most_probable_cluster():
    z, centers = normal(50, 3), normal(6, 3, seed=1)
    rows = F.nearest_assignment(F.squared_distances(z, centers))
    most_probable = F.assignment_log_probs(z, centers, 0.7).argmax(-1)
    assert torch.equal(rows, torch.nn.functional.one_hot(most_probable, 6).double())


class TestKMeansLoss:
    @pytest.mark.parametrize("gradient", FORMS)
    def test_value_equals_explicit_loops(self, gradient):
        z, centers = normal(11, 3), normal(4, 3, seed=1)
        labels = torch.randint(4, (11,), generator=generator())
        h = torch.nn.functional.one_hot(labels, 4).double()
        rows = []
        for i in range(11):
            error = [
                float(z[i, d]) - sum(float(h[i, j]) * float(centers[j, d]) for j in range(4))
                for d in range(3)
            ]
            rows.append(sum(e * e for e in error))
        for reduction, expected in (("sum", sum(rows)), ("mean", sum(rows) / 11), ("none", rows)):
            found = F.kmeans_loss(z, centers, h, gradient=gradient, reduction=reduction)
            np.testing.assert_allclose(found, expected, rtol=1e-12)

    @pytest.mark.parametrize("gradient", FORMS)
    @pytest.mark.parametrize(("sigma", "temperature"), [(0.9, 0.5), (1.5, 2.0), (0.6, 1.0)])
    def test_straight_through_gradients_equal_a_derivation_by_hand(
        self, gradient, sigma, temperature
    ):
        z, centers = normal(12, 3, requires_grad=True), normal(4, 3, seed=1, requires_grad=True)
        noise = F.gumbel_noise(torch.zeros(12, 4, dtype=torch.float64), generator(2))
        chain(z, centers, sigma, temperature, noise, gradient).backward()

        x, m, G = z.detach().numpy(), centers.detach().numpy(), noise.numpy()
        difference = x[:, None] - m  # (B, K, D)
        D = (difference**2).sum(-1)
        # log p differs from -D / sigma^2 by a constant of the row, which no softmax sees
        s = softmax((-D / sigma**2 + G) / temperature)
        h = np.eye(4)[s.argmax(-1)]
        if gradient == "distance":  # L = sum_c h_c D_c
            to_h, to_D, to_z, to_m = D, h, 0.0, 0.0
        else:  # L = |r|^2 with r = z - h M
            r = x - h @ m
            to_h, to_D, to_z, to_m = -2.0 * r @ m.T, 0.0, 2.0 * r, -2.0 * h.T @ r
        # dL/du_c = s_c (to_h_c - sum_j s_j to_h_j) for u = (log p + G) / tau, and du/dD is
        # -1 / (tau sigma^2): the normaliser of log p drops out, as the dL/du_c add up to zero
        to_u = s * (to_h - (s * to_h).sum(-1, keepdims=True))
        to_D = to_D - to_u / (temperature * sigma**2)
        pull = 2.0 * to_D[..., None] * difference
        np.testing.assert_allclose(z.grad, to_z + pull.sum(1), rtol=1e-9, atol=1e-11)
        np.testing.assert_allclose(centers.grad, to_m - pull.sum(0), rtol=1e-9, atol=1e-11)

    def test_the_two_forms_agree_in_value_and_differ_in_gradient(self):
        noise = F.gumbel_noise(torch.zeros(12, 4, dtype=torch.float64), generator(2))
        losses, gradients = [], []
        for form in FORMS:
            z, centers = normal(12, 3, requires_grad=True), normal(4, 3, seed=1, requires_grad=True)
            loss = chain(z, centers, 1.0, 1.0, noise, form)
            losses.append(loss.detach())
            gradients.append(torch.cat(torch.autograd.grad(loss, (z, centers))))
        torch.testing.assert_close(*losses, rtol=1e-12, atol=0)
        assert (gradients[0] - gradients[1]).norm() > 0.1 * gradients[0].norm()

    @pytest.mark.parametrize("gradient", FORMS)
    def test_derivatives_of_the_relaxed_loss(self, gradient):
        noise = F.gumbel_noise(torch.zeros(4, 3, dtype=torch.float64), generator(2))

        def relaxed(z, centers):
            log_probs = F.assignment_log_probs(z, centers, 0.9)
            soft = F.concrete_assignment(log_probs, 0.7, hard=False, noise=noise)
            return F.kmeans_loss(z, centers, soft, gradient=gradient)

        inputs = (normal(4, 2, requires_grad=True), normal(3, 2, seed=1, requires_grad=True))
        assert gradcheck(relaxed, inputs)
        assert gradgradcheck(relaxed, inputs)

    @pytest.mark.parametrize("gradient", FORMS)
    def test_leading_axes_equal_a_loop(self, gradient):
        z = normal(2, 3, 9, 4, requires_grad=True)
        centers = normal(3, 5, 4, seed=1, requires_grad=True)  # shared by the first axis
        sigma = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)
        noise = F.gumbel_noise(torch.zeros(2, 3, 9, 5, dtype=torch.float64), generator(2))
        found = chain(z, centers, sigma, 0.7, noise, gradient)
        assert found.shape == (2, 3)
        batched = torch.autograd.grad(found.sum(), (z, centers))
        total = torch.zeros((), dtype=torch.float64)
        for a in range(2):
            for b in range(3):
                one = chain(z[a, b], centers[b], float(sigma[b]), 0.7, noise[a, b], gradient)
                torch.testing.assert_close(found[a, b], one, rtol=0, atol=1e-12)
                total = total + one
        for together, alone in zip(batched, torch.autograd.grad(total, (z, centers)), strict=True):
            torch.testing.assert_close(together, alone, rtol=1e-12, atol=1e-12)

    @pytest.mark.parametrize("gradient", FORMS)
    def test_autocast_and_half_precision_give_float32(self, gradient):
        z, centers = normal(9, 4, dtype=torch.float32), normal(3, 4, seed=1, dtype=torch.float32)
        z, centers = z.bfloat16(), centers.bfloat16()
        h = F.nearest_assignment(F.squared_distances(z, centers))
        expected = F.kmeans_loss(z.double(), centers.double(), h.double(), gradient=gradient)
        with torch.autocast("cpu", torch.bfloat16):
            found = F.kmeans_loss(z, centers, h, gradient=gradient)
        assert found.dtype == torch.float32
        torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=0)

    @pytest.mark.parametrize("gradient", FORMS)
    @pytest.mark.parametrize("shape", [(3,), (5, 1), (1, 3), (5, 4), (4, 3)])
    def test_an_assignment_of_another_shape(self, gradient, shape):
        with pytest.raises(ValueError, match=r"assignment must be \(\.\.\., 5, 3\).* got \("):
            F.kmeans_loss(
                torch.zeros(5, 2), torch.zeros(3, 2), torch.ones(shape), gradient=gradient
            )

    @pytest.mark.parametrize("name", ["gradient", "reduction"])
    @pytest.mark.parametrize("value", ["max", "", None, 1])
    def test_a_bad_choice_is_named(self, name, value):
        with pytest.raises(ValueError, match=f"{name} must be one of .* got {value!r}"):
            F.kmeans_loss(torch.zeros(2, 2), torch.zeros(1, 2), torch.ones(2, 1), **{name: value})


class TestCompile:
    @pytest.fixture(autouse=True)
    def _fresh(self):
        torch.compiler.reset()
        yield
        torch.compiler.reset()

    @pytest.mark.parametrize("gradient", FORMS)
    @pytest.mark.parametrize(
        "backend",
        ["aot_eager", pytest.param("inductor", marks=[pytest.mark.slow, inductor])],
    )
    def test_one_graph_for_any_batch_size(self, backend, gradient):
        compiled = torch.compile(chain, fullgraph=True, dynamic=True, backend=backend)
        for B in (6, 13, 40):
            results = []
            for function in (chain, compiled):
                z = normal(B, 3, dtype=torch.float32, requires_grad=True)
                centers = normal(4, 3, seed=1, dtype=torch.float32, requires_grad=True)
                noise = F.gumbel_noise(torch.zeros(B, 4), generator(B))
                loss = function(z, centers, 0.9, 0.7, noise, gradient)
                results.append((loss, *torch.autograd.grad(loss, (z, centers))))
            for eager, graph in zip(*results, strict=True):
                torch.testing.assert_close(graph, eager, rtol=1e-5, atol=1e-5)

    def test_numbers_may_change_from_call_to_call(self):
        graphs = []

        def count(graph, inputs):
            graphs.append(graph)
            return graph

        compiled = torch.compile(chain, fullgraph=True, backend=count)
        z, centers, noise = normal(6, 3), normal(4, 3, seed=1), normal(6, 4, seed=2)
        for step in range(6):
            sigma, temperature = 1.0 + 0.1 * step, 0.9**step
            expected = chain(z, centers, sigma, temperature, noise)
            torch.testing.assert_close(compiled(z, centers, sigma, temperature, noise), expected)
        assert len(graphs) < 4

    @pytest.mark.parametrize("sigma", [0.0, -1.0, math.nan])
    def test_a_bad_number_is_named(self, sigma):
        compiled = torch.compile(F.assignment_log_probs, backend="eager")
        compiled(normal(6, 3), normal(4, 3, seed=1), 1.0)
        with pytest.raises(ValueError, match=f"sigma must be a positive .* got {sigma!r}"):
            compiled(normal(6, 3), normal(4, 3, seed=1), sigma)

    def test_hard_rows_stay_one_hot_and_the_noise_can_be_drawn_inside(self):
        compiled = torch.compile(F.concrete_assignment, fullgraph=True, backend="aot_eager")
        rows = compiled(normal(64, 5, dtype=torch.float32), 2.0)
        assert torch.equal(rows, torch.nn.functional.one_hot(rows.argmax(-1), 5).float())
