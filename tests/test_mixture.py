"""Gaussian mixtures against scikit-learn, the written objective and themselves."""

import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import multivariate_normal
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import adjusted_rand_score
from sklearn.mixture import GaussianMixture

import concrete_kmeans.mixture as module
from concrete_kmeans.mixture import (
    gaussian_mixture,
    mixture_labels,
    mixture_log_prob,
    mixture_start,
)

KINDS = ["full", "tied"]
PLAIN = {"ridge": 0.0, "prior_rows": 0.0, "min_weight": 0.0}
NUMBERS = ["weights", "means", "covariances", "log_likelihood"]


def generators(*seeds):
    return [torch.Generator().manual_seed(seed) for seed in seeds]


def rows(n=500, d=3, k=4, seed=0, spread=2.0):
    """Overlapping Gaussians of random shapes, and the component each row came from."""
    rng = np.random.default_rng(seed)
    label = rng.integers(k, size=n)
    shape = rng.normal(size=(k, d, d))
    noise = np.einsum("nij,nj->ni", shape[label], rng.normal(size=(n, d)))
    centers = spread * rng.normal(size=(k, d))
    return torch.from_numpy(centers[label] + noise), torch.from_numpy(label)


def random_labels(R, n, k, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).integers(k, size=(R, n)))


def bars(n=900, seed=0):
    """Three long parallel bars: k-means cuts them across."""
    rng = np.random.default_rng(seed)
    label = rng.integers(3, size=n)
    Z = np.stack([rng.normal(0, 2, n), 3.0 * label + rng.normal(0, 0.3, n)], 1)
    return torch.from_numpy(Z), label


def close(actual, expected, tolerance=1e-10, at=slice(None)):
    for name in NUMBERS:
        a, b = getattr(actual, name), getattr(expected, name)[at]
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)
    for name in ("labels", "n_iter", "converged"):
        assert torch.equal(getattr(actual, name), getattr(expected, name)[at]), name


class FromLabels(GaussianMixture):
    """scikit-learn's mixture, from given responsibilities."""

    def fit_from(self, X, labels):
        self.start = np.eye(self.n_components)[labels]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            return self.fit(X)

    def _initialize_parameters(self, X, *args, **kwargs):
        self._initialize(X, self.start)


# ---------------------------------------------------------------------------------- scikit-learn


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("iterations", [1, 2, 25])
@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_same_as_scikit_learn(kind, iterations, offset):
    Z, _ = rows()
    X, labels = Z.numpy() + offset, random_labels(2, 500, 4)
    result = gaussian_mixture(
        Z + offset, labels, 4, covariance=kind, max_iter=iterations, tol=0.0, **PLAIN
    )
    for r in range(2):
        sk = FromLabels(4, covariance_type=kind, reg_covar=0.0, tol=0.0, max_iter=iterations)
        sk.fit_from(X, labels[r].numpy())
        covariances = np.broadcast_to(sk.covariances_, (4, 3, 3))
        close = {"rtol": 1e-6, "atol": 1e-7}
        np.testing.assert_allclose(result.weights[r], sk.weights_, **close)
        np.testing.assert_allclose(result.means[r], sk.means_, **close)
        np.testing.assert_allclose(result.covariances[r], covariances, **close)
        assert result.log_likelihood[r].item() == pytest.approx(sk.score(X), abs=1e-8)
        np.testing.assert_array_equal(result.labels[r], sk.predict(X))


@pytest.mark.parametrize("kind", KINDS)
def test_stops_where_scikit_learn_does(kind):
    Z, label = rows(seed=3)
    sk = FromLabels(4, covariance_type=kind, reg_covar=0.0).fit_from(Z.numpy(), label.numpy())
    result = gaussian_mixture(Z, label[None], 4, covariance=kind, **PLAIN)
    assert result.n_iter.item() == sk.n_iter_
    assert bool(result.converged) is sk.converged_ is True
    short = gaussian_mixture(Z, label[None], 4, covariance=kind, max_iter=1, **PLAIN)
    assert (short.n_iter.item(), short.converged.item()) == (1, False)


def test_log_prob_is_that_of_scipy():
    Z, label = rows()
    result = gaussian_mixture(Z, label[None], 4)
    log_prob = mixture_log_prob(Z, result.weights, result.means, result.covariances)
    expected = [
        math.log(w) + multivariate_normal(m, c).logpdf(Z.numpy())
        for w, m, c in zip(
            result.weights[0].tolist(), result.means[0], result.covariances[0], strict=True
        )
    ]
    np.testing.assert_allclose(log_prob[0], np.stack(expected, 1), rtol=1e-10, atol=1e-10)
    assert log_prob.logsumexp(-1).mean().item() == pytest.approx(result.log_likelihood.item())
    assert torch.equal(log_prob.argmax(-1), result.labels)
    assert torch.equal(mixture_labels(Z, result, max_chunk_bytes=1000), result.labels)


# ------------------------------------------------------------------------------------- objective


def objective(Z, labels, result, kind, *, ridge, prior_rows, min_weight):
    """The objective at the top of the module, written out for one restart."""
    n, d = Z.shape
    K = result.weights.shape[1]
    noise = max(ridge, 16 * np.finfo(float).eps * n * d) * Z.var(0, correction=0).mean().item()
    W = torch.zeros(d, d, dtype=Z.dtype)
    for k in range(K):
        own = Z[labels == k]
        if len(own):
            W += (own - own.mean(0)).T @ (own - own.mean(0)) / n
    weights, covariances = result.weights[0], result.covariances[0]
    precision = torch.linalg.inv(covariances)
    trace = precision.diagonal(dim1=1, dim2=2).sum(-1)
    joint = mixture_log_prob(Z, *result[:3])[0] - noise * trace / 2
    blurred = W + noise * torch.eye(d, dtype=Z.dtype)
    prior = torch.logdet(covariances) + (precision @ blurred).diagonal(dim1=1, dim2=2).sum(-1)
    total = joint.logsumexp(-1).sum() - prior_rows / 2 * prior[: 1 if kind == "tied" else K].sum()
    if min_weight:
        total += min_weight * n * weights.log().sum()
    return total.item() / n


@settings(max_examples=40, deadline=None)
@given(
    n=st.integers(3, 40),
    d=st.integers(1, 4),
    k=st.integers(1, 4),
    seed=st.integers(0, 999),
    kind=st.sampled_from(KINDS),
    ridge=st.sampled_from([1e-3, 0.1, 1.0]),
    prior=st.sampled_from([0.0, 1.0, 5.0]),
    weight=st.sampled_from([0.0, 1e-8, 0.1]),
)
def test_no_iteration_lowers_the_objective(n, d, k, seed, kind, ridge, prior, weight):
    rng = np.random.default_rng(seed)
    Z = torch.from_numpy(rng.normal(size=(n, d)).round(1))  # some rows equal
    if len(Z.unique(dim=0)) == 1:
        return
    labels = torch.from_numpy(rng.integers(k, size=n))
    penalty = {"ridge": ridge, "prior_rows": prior, "min_weight": weight}
    if not weight and len(labels.unique()) < k:
        penalty["min_weight"] = 1e-8
    previous = -math.inf
    for iterations in range(1, 9):
        result = gaussian_mixture(
            Z, labels[None], k, covariance=kind, max_iter=iterations, tol=0.0, **penalty
        )
        now = objective(Z, labels, result, kind, **penalty)
        assert now >= previous - 1e-9
        previous = now


def test_few_rows_take_the_pooled_covariance():
    Z, label = rows(k=2)
    label[:] = label.clamp(max=1)
    label[0] = 2  # a cluster of one row
    result = gaussian_mixture(Z, label[None], 4, max_iter=1, prior_rows=1e9, ridge=0.5)
    noise = 0.5 * Z.var(0, correction=0).mean()
    pooled = sum(
        (own - own.mean(0)).T @ (own - own.mean(0)) for own in (Z[label == k] for k in (0, 1))
    ) / len(Z) + noise * torch.eye(3)
    for k in range(4):
        torch.testing.assert_close(result.covariances[0, k], pooled, rtol=1e-5, atol=1e-5)


# --------------------------------------------------------------------------------------- batches


@pytest.mark.parametrize("kind", KINDS)
def test_stack_equals_singles_with_shared_rows(kind):
    Z, label = rows()
    labels = torch.cat([random_labels(3, 500, 4), label[None]])
    stack = gaussian_mixture(Z, labels, 4, covariance=kind, max_iter=40)
    assert len(set(stack.n_iter.tolist())) > 1, "some must freeze while others run"
    for r in range(4):
        close(
            gaussian_mixture(Z, labels[r : r + 1], 4, covariance=kind, max_iter=40), stack, at=[r]
        )
    close(gaussian_mixture(Z.expand(4, 500, 3), labels, 4, covariance=kind, max_iter=40), stack)
    copied = Z.repeat(4, 1, 1)
    close(gaussian_mixture(copied, labels, 4, covariance=kind, max_iter=40), stack)


@pytest.mark.parametrize("kind", KINDS)
def test_stack_equals_singles_with_own_rows(kind):
    Z = torch.stack([rows(seed=seed)[0] + 10 * seed for seed in range(3)])
    labels = random_labels(3, 500, 4)
    stack = gaussian_mixture(Z, labels, 4, covariance=kind, tol=1e-2)
    assert len(set(stack.n_iter.tolist())) > 1
    for r in range(3):
        close(
            gaussian_mixture(Z[r], labels[r : r + 1], 4, covariance=kind, tol=1e-2), stack, at=[r]
        )
    assert torch.equal(mixture_labels(Z, stack), stack.labels)
    assert mixture_log_prob(Z, *stack[:3]).shape == (3, 500, 4)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [1, 3_000, 10**9])
def test_chunks_change_nothing(kind, size):
    Z, _ = rows(n=200)
    labels = random_labels(2, 200, 4)
    expected = gaussian_mixture(Z, labels, 4, covariance=kind, max_iter=15)
    result = gaussian_mixture(Z, labels, 4, covariance=kind, max_iter=15, max_chunk_bytes=size)
    close(result, expected)


def test_float32_rows_are_computed_in_float64():
    Z, _ = rows()
    single, labels = Z.float(), random_labels(2, 500, 4)
    close(gaussian_mixture(single, labels, 4), gaussian_mixture(single.double(), labels, 4), 1e-12)
    result, expected = gaussian_mixture(single, labels, 4), gaussian_mixture(Z, labels, 4)
    assert result.means.dtype is torch.float64
    torch.testing.assert_close(result.means, expected.means, rtol=1e-4, atol=1e-4)


def test_far_from_the_origin():
    Z, _ = rows()
    Z, labels = (Z * 2**20).round() / 2**20, random_labels(1, 500, 4)  # moved without rounding
    near, far = gaussian_mixture(Z, labels, 4), gaussian_mixture(Z + 2.0**24, labels, 4)
    close(far._replace(means=far.means - 2.0**24), near, 1e-7)


@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_scale_of_the_rows_does_not_matter(scale):
    Z, _ = rows()
    labels = random_labels(1, 500, 4)
    one, other = gaussian_mixture(Z, labels, 4), gaussian_mixture(Z * scale, labels, 4)
    assert torch.equal(one.labels, other.labels)
    torch.testing.assert_close(one.means * scale, other.means, rtol=1e-8, atol=1e-10 * scale)


# ------------------------------------------------------------------------------------ degenerate

DEGENERATE = {
    "one row": (torch.ones(1, 2), 1),
    "one row, many components": (torch.ones(1, 2), 3),
    "one component": (torch.arange(12.0).view(6, 2), 1),
    "as many components as rows": (torch.arange(8.0).view(4, 2) ** 2, 4),
    "all rows equal": (torch.full((7, 3), 0.1), 2),
    "all rows equal and far": (torch.full((7, 3), 1e8, dtype=torch.float64) / 3, 2),
    "equal rows": (torch.tensor([[0.0, 1.0]] * 5 + [[2.0, 0.0]] * 5), 4),
    "a constant feature": (torch.stack([torch.arange(9.0), torch.ones(9)], 1), 2),
    "features that repeat": (torch.arange(9.0)[:, None].repeat(1, 4), 2),
    "one feature": (torch.arange(9.0)[:, None], 2),
    "fewer rows than features": (torch.eye(9)[:3], 2),
    "a far outlier": (torch.cat([torch.arange(50.0), torch.tensor([1e9])])[:, None], 3),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("first", ["spread", "one cluster"])
@pytest.mark.parametrize("name", DEGENERATE)
def test_degenerate_rows(name, first, plain, kind):
    Z, k = DEGENERATE[name]
    labels = (torch.arange(len(Z)) % k)[None] * (first == "spread")
    result = gaussian_mixture(Z, labels, k, covariance=kind, **(PLAIN if plain else {}))
    for number in NUMBERS:
        assert getattr(result, number).isfinite().all(), number
    assert (torch.linalg.eigvalsh(result.covariances) > 0).all()
    torch.testing.assert_close(result.weights.sum(-1), torch.ones(1, dtype=torch.float64))
    if not plain:
        assert (result.weights > 0).all()


@pytest.mark.parametrize("name", DEGENERATE)
def test_degenerate_starts(name):
    Z, k = DEGENERATE[name]
    if k <= len(Z):
        result = mixture_start(Z, k, generators=generators(0, 1), n_starts=2)
        assert result.log_likelihood.isfinite().all()


# ---------------------------------------------------------------------------------------- starts


@pytest.mark.parametrize("kind", KINDS)
def test_finds_long_clusters_that_kmeans_cuts(kind):
    Z, label = bars()
    kmeans = KMeans(3, n_init=10, random_state=0).fit_predict(Z.numpy())
    assert adjusted_rand_score(label, kmeans) < 0.7
    result = mixture_start(Z, 3, generators=generators(0, 1), tol=1e-5, covariance=kind)
    for found in result.labels:
        assert adjusted_rand_score(label, found) > 0.95


@pytest.mark.parametrize("own_rows", [False, True])
def test_restart_equals_alone(own_rows, untouched_random_state):
    Z, _ = rows(n=300, spread=1.0)
    Z = torch.stack([Z, Z.flip(1) + 1, 2 * Z]) if own_rows else Z
    stack = mixture_start(Z, 4, generators=generators(5, 6, 7), n_starts=3)
    for r in range(3):
        alone = mixture_start(Z[r] if own_rows else Z, 4, generators=generators(5 + r), n_starts=3)
        close(alone, stack, at=[r])


def test_keeps_the_likeliest_and_groups_change_nothing(monkeypatch):
    Z, _ = rows(n=300, k=6, spread=1.0)
    one = mixture_start(Z, 6, generators=generators(0, 1), n_starts=1)
    many = mixture_start(Z, 6, generators=generators(0, 1), n_starts=8)
    assert (many.log_likelihood >= one.log_likelihood).all()
    assert (many.log_likelihood > one.log_likelihood).any()
    monkeypatch.setattr(module, "MAX_GROUP_BYTES", 3 * 32 * 300 * 2)
    close(mixture_start(Z, 6, generators=generators(0, 1), n_starts=8), many)
    monkeypatch.setattr(module, "MAX_GROUP_BYTES", 1)
    close(mixture_start(Z, 6, generators=generators(0, 1), n_starts=8), many)


# ---------------------------------------------------------------------------------------- errors

Z6 = torch.arange(12.0).view(6, 2)
L6 = torch.zeros(1, 6, dtype=torch.int64)


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        ({"Z": Z6[0]}, ValueError, r"Z must be .*got \(2,\)"),
        ({"Z": Z6[:0]}, ValueError, r"Z must be .*got \(0, 2\)"),
        ({"Z": Z6.long()}, TypeError, "Z must be float32 or float64, got torch.int64"),
        ({"Z": Z6 / 0}, ValueError, "Z must be finite"),
        ({"labels": L6[0]}, ValueError, r"labels must be \(R, 6\), got \(6,\)"),
        ({"labels": L6[:, :5]}, ValueError, r"labels must be \(R, 6\), got \(1, 5\)"),
        ({"Z": Z6.repeat(2, 1, 1)}, ValueError, r"labels must be \(2, 6\), got \(1, 6\)"),
        ({"labels": L6.double()}, TypeError, "labels must be whole numbers, got torch.float64"),
        ({"labels": L6 - 1}, ValueError, "labels must be between 0 and n_clusters - 1 = 1, got -1"),
        ({"labels": L6 + 2}, ValueError, "labels must be between 0 and n_clusters - 1 = 1, got 2"),
        ({"n_clusters": 0}, ValueError, "n_clusters must be .*got 0"),
        (
            {"covariance": "diag"},
            ValueError,
            "covariance must be one of 'full', 'tied', got 'diag'",
        ),
        ({"max_iter": 0}, ValueError, "max_iter must be .*got 0"),
        ({"tol": -1.0}, ValueError, "tol must be .*got -1.0"),
        ({"ridge": math.nan}, ValueError, "ridge must be .*got nan"),
        ({"prior_rows": -2}, ValueError, "prior_rows must be .*got -2"),
        ({"min_weight": -0.1}, ValueError, "min_weight must be .*got -0.1"),
        ({"max_chunk_bytes": 0}, ValueError, "max_chunk_bytes must be .*got 0"),
    ],
)
def test_bad_arguments(change, error, match):
    with pytest.raises(error, match=match):
        gaussian_mixture(**({"Z": Z6, "labels": L6, "n_clusters": 2} | change))


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"n_clusters": 7}, "n_clusters=7 must be at most the 6 rows of Z"),
        ({"n_starts": 0}, "n_starts must be .*got 0"),
        ({"generators": []}, "generators must hold at least one, got 0"),
        (
            {"Z": Z6.repeat(2, 1, 1)},
            "generators must hold one for each of the 2 sets of rows, got 1",
        ),
    ],
)
def test_bad_starts(change, match):
    with pytest.raises(ValueError, match=match):
        mixture_start(**({"Z": Z6, "n_clusters": 2, "generators": generators(0)} | change))


@pytest.mark.parametrize("name", ["weights", "means", "covariances"])
def test_bad_mixtures(name):
    result = gaussian_mixture(Z6, L6, 2)
    with pytest.raises(ValueError, match=f"{name} must be"):
        mixture_labels(Z6, result._replace(**{name: getattr(result, name)[..., :1]}))


# ------------------------------------------------------------------------------------------ CUDA


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_cuda_equals_cpu(kind, dtype):
    Z, _ = rows(n=3000, d=6)
    Z, labels = Z.to(dtype), random_labels(3, 3000, 4)
    cpu = gaussian_mixture(Z, labels, 4, covariance=kind, max_iter=20)
    cuda = gaussian_mixture(Z.cuda(), labels.cuda(), 4, covariance=kind, max_iter=20)
    for name in NUMBERS:
        torch.testing.assert_close(
            getattr(cuda, name).cpu(), getattr(cpu, name), rtol=1e-8, atol=1e-8
        )
    assert (cuda.labels.cpu() == cpu.labels).double().mean() > 0.999
    again = gaussian_mixture(Z.cuda(), labels.cuda(), 4, covariance=kind, max_iter=20)
    assert all(torch.equal(a, b) for a, b in zip(again, cuda, strict=True)), "every time the same"
    start = mixture_start(Z.cuda(), 4, generators=generators(0, 1), n_starts=2, covariance=kind)
    assert start.labels.is_cuda
