r"""Gaussian mixtures by expectation-maximisation, batched over restarts.

Rows are ``(N, d)``, shared by all restarts, or ``(R, N, d)``, one set a restart; everything else
has the restarts on axis 0. Rows are read in chunks: neither the ``(R, N, K)`` responsibilities nor
a float64 copy of the rows ever exists. All is computed in float64 about the mean of the rows.

**What is maximised.** With :math:`\epsilon` = ``ridge`` times the mean variance of the features,
:math:`a` = ``prior_rows``, :math:`W` the pooled within-cluster covariance of the first labels and
:math:`w` = ``min_weight``, each iteration raises

.. math::

    \sum_n \log \sum_k \pi_k N(z_n; \mu_k, \Sigma_k)\, e^{-\epsilon\, tr \Sigma_k^{-1} / 2}
    - \frac a2 \sum_k \bigl(\log |\Sigma_k| + tr\, \Sigma_k^{-1} (W + \epsilon I)\bigr)
    + w N \sum_k \log \pi_k ,

where "tied" counts its one covariance once. Its M step is

.. math::

    \Sigma_k = \frac{S_k + a W}{n_k + a} + \epsilon I, \qquad
    \pi_k = \frac{n_k / N + w}{1 + K w} :

:math:`a` more rows of the pooled covariance, a ridge on the diagonal, and no weight of zero. The
factor with the trace blurs each row by noise of variance :math:`\epsilon` (the mean of the log
density): with the ridge in the M step alone, as in scikit-learn, an iteration could lower what it
should raise. With ``ridge``, ``prior_rows`` and ``min_weight`` of 0 this is plain EM.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple, TypeAlias, get_args

import torch
from torch import Tensor

from concrete_kmeans.lloyd import MAX_CHUNK_BYTES, MAX_CHUNK_BYTES_CUDA, kmeans_plusplus, lloyd
from concrete_kmeans.validation import check_choice, check_not_negative, check_positive_int

__all__ = [
    "Covariance",
    "MixtureResult",
    "children",
    "gaussian_mixture",
    "mixture_labels",
    "mixture_log_prob",
    "mixture_start",
]

Covariance: TypeAlias = Literal["full", "tied"]

#: Room for what k-means and EM keep for each row of each start that runs side by side.
MAX_GROUP_BYTES = 2**30
#: Added to the rows of a component, as in scikit-learn, so that none divides by zero.
LEAST_ROWS = 10.0 * torch.finfo(torch.float64).eps


class MixtureResult(NamedTuple):
    """Outcome of :func:`gaussian_mixture`, one entry a restart; numbers are float64."""

    weights: Tensor
    """(R, K), rows sum to one."""
    means: Tensor
    """(R, K, d)."""
    covariances: Tensor
    """(R, K, d, d); for "tied" the same for every component."""
    log_likelihood: Tensor
    """(R,), mean over rows, without the penalties."""
    labels: Tensor
    """(R, N), int64, the most likely component."""
    n_iter: Tensor
    """(R,), iterations run."""
    converged: Tensor
    """(R,), whether the last iteration changed the objective by less than ``tol`` a row."""


@torch.no_grad()
def gaussian_mixture(
    Z: Tensor,
    labels: Tensor,
    n_clusters: int,
    *,
    covariance: Covariance = "full",
    max_iter: int = 100,
    tol: float = 1e-3,
    ridge: float = 1e-3,
    prior_rows: float | None = None,
    min_weight: float = 1e-8,
    max_chunk_bytes: int | None = None,
) -> MixtureResult:
    """Fit Gaussian mixtures by EM from given labels, all restarts at once.

    The first M step is that of the labels; iterations are counted, and end, as in scikit-learn. A
    restart that has converged is left as it is, so it ends where it would have ended alone.

    Parameters
    ----------
    Z : Tensor of shape (N, d) or (R, N, d)
        float32 or float64, finite.
    labels : Tensor of shape (R, N)
        First partition, whole numbers below ``n_clusters``. A cluster may be empty: its component
        starts at the mean of all rows with the pooled covariance and next to no weight.
    n_clusters : int
    covariance : {"full", "tied"}, default="full"
        One matrix a component, or one for all.
    max_iter : int, default=100
    tol : float, default=1e-3
        Change of the objective, a row, under which a restart has converged.
    ridge : float, default=1e-3
        Added to the diagonal of each covariance, in units of the mean variance of the features.
        What rounding needs is added in any case.
    prior_rows : float, optional
        So many rows of the pooled within-cluster covariance of ``labels`` are added to each
        component; ``d + 1`` by default, which only a component of few rows will notice.
    min_weight : float, default=1e-8
        Share of all rows added to each component's weight.
    max_chunk_bytes : int, optional
        Size of the largest block.

    Returns
    -------
    MixtureResult

    Examples
    --------
    >>> Z = torch.tensor([[0.0], [1.0], [2.0], [8.0], [9.0], [10.0]])
    >>> result = gaussian_mixture(Z, torch.tensor([[0, 0, 0, 0, 1, 1]]), 2)
    >>> result.labels
    tensor([[0, 0, 0, 1, 1, 1]])
    >>> result.means.flatten().round()
    tensor([1., 9.], dtype=torch.float64)
    """
    _check_rows(Z)
    K = check_positive_int("n_clusters", n_clusters)
    _check_labels(labels, Z, K)
    check_choice("covariance", covariance, get_args(Covariance))
    check_positive_int("max_iter", max_iter)
    check_not_negative("tol", tol)
    check_not_negative("ridge", ridge)
    check_not_negative("min_weight", min_weight)
    prior = (
        Z.shape[-1] + 1.0 if prior_rows is None else check_not_negative("prior_rows", prior_rows)
    )
    R = len(labels)
    rows = _Rows(Z, R, K, max_chunk_bytes)
    moments = _label_moments(rows, labels, K)
    pooled, noise = _pooled_and_noise(moments, ridge, rows.n)
    penalty = _Penalty(covariance == "tied", prior, min_weight, pooled, noise)
    mixture = _maximise(moments, penalty, rows.n)
    previous = torch.full((R,), -torch.inf, dtype=torch.float64, device=Z.device)
    n_iter = torch.zeros(R, dtype=torch.int64, device=Z.device)
    running = torch.arange(R, device=Z.device)
    for _ in range(max_iter):
        now, own = mixture.at(running), penalty.at(running)
        moments, objective = _expect(rows, running, now, own)
        for kept, new in zip(mixture, _maximise(moments, own, rows.n), strict=True):
            kept[running] = new
        n_iter[running] += 1
        done = (objective - previous[running]).abs() < tol
        previous[running] = objective
        running = running[~done]  # the one wait for the device
        if not len(running):
            break
    converged = torch.ones(R, dtype=torch.bool, device=Z.device)
    converged[running] = False
    found, log_likelihood = _most_likely(rows, mixture)
    means = mixture.means + rows.origin
    return MixtureResult(
        mixture.weights, means, mixture.covariances, log_likelihood, found, n_iter, converged
    )


@torch.no_grad()
def mixture_start(
    Z: Tensor,
    n_clusters: int,
    *,
    generators: Sequence[torch.Generator],
    n_starts: int = 5,
    covariance: Covariance = "full",
    max_iter: int = 100,
    tol: float = 1e-3,
    ridge: float = 1e-3,
    prior_rows: float | None = None,
    min_weight: float = 1e-8,
    max_chunk_bytes: int | None = None,
) -> MixtureResult:
    """Fit Gaussian mixtures from k-means partitions and keep, per restart, the likeliest.

    Each start is greedy k-means++, Lloyd's algorithm and EM. Starts run side by side, as many as
    memory allows; each has a generator of its own, seeded by that of its restart, so that neither
    their grouping nor the other restarts change the outcome.

    Parameters
    ----------
    Z : Tensor of shape (N, d) or (R, N, d)
        float32 or float64, finite.
    n_clusters : int
        At most N.
    generators : sequence of R torch.Generator
        One a restart, on any device.
    n_starts : int, default=5
    covariance, max_iter, tol, ridge, prior_rows, min_weight, max_chunk_bytes
        As in :func:`gaussian_mixture`.

    Returns
    -------
    MixtureResult

    Examples
    --------
    >>> Z = torch.tensor([[0.0], [1.0], [2.0], [8.0], [9.0], [10.0]])
    >>> mixture_start(Z, 2, generators=[torch.Generator().manual_seed(0)]).means.sort(1).values
    tensor([[[1.0000],
             [9.0000]]], dtype=torch.float64)
    """
    _check_rows(Z)
    check_positive_int("n_clusters", n_clusters)
    check_positive_int("n_starts", n_starts)
    n, R = Z.shape[-2], len(generators)
    if n_clusters > n:
        raise ValueError(f"n_clusters={n_clusters} must be at most the {n} rows of Z")
    if R < 1 or (Z.ndim == 3 and len(Z) != R):
        allowed = "at least one" if Z.ndim == 2 else f"one for each of the {len(Z)} sets of rows"
        raise ValueError(f"generators must hold {allowed}, got {R}")
    size = 1 if Z.ndim == 3 else max(1, MAX_GROUP_BYTES // (32 * n * R))

    def fit(starts: Sequence[Sequence[torch.Generator]]) -> MixtureResult:
        own = [generator for start in starts for generator in start]
        centers, _ = kmeans_plusplus(Z, n_clusters, generators=own, max_chunk_bytes=max_chunk_bytes)
        return gaussian_mixture(
            Z,
            lloyd(Z, centers, max_chunk_bytes=max_chunk_bytes).labels,
            n_clusters,
            covariance=covariance,
            max_iter=max_iter,
            tol=tol,
            ridge=ridge,
            prior_rows=prior_rows,
            min_weight=min_weight,
            max_chunk_bytes=max_chunk_bytes,
        )

    starts = list(zip(*(children(own, n_starts) for own in generators), strict=True))
    best = _likeliest(fit(starts[:size]), R)
    for first in range(size, n_starts, size):
        best = _likeliest(_joined(best, fit(starts[first : first + size])), R)
    return best


@torch.no_grad()
def mixture_log_prob(Z: Tensor, weights: Tensor, means: Tensor, covariances: Tensor) -> Tensor:
    """Log of weight times density of every component at every row, (R, N, K) in float64.

    Its logsumexp over components is the log-likelihood of a row, its softmax the responsibilities.
    For many rows see :func:`mixture_labels`, which never holds all of it.

    Parameters
    ----------
    Z : Tensor of shape (N, d) or (R, N, d)
    weights : Tensor of shape (R, K)
    means : Tensor of shape (R, K, d)
    covariances : Tensor of shape (R, K, d, d)

    Returns
    -------
    Tensor of shape (R, N, K)

    Examples
    --------
    >>> one = torch.ones(1, 1)
    >>> mixture_log_prob(torch.zeros(1, 1), one, one.view(1, 1, 1), one.view(1, 1, 1, 1)).exp()
    tensor([[[0.2420]]], dtype=torch.float64)
    """
    rows, mixture = _rows_and_mixture(Z, weights, means, covariances, None)
    factors, constant, _ = _factors(mixture)
    blocks = [_log_joint(chunk, factors, constant) for _, chunk in rows.chunks()]
    return torch.cat(blocks, -1).mT.contiguous()


@torch.no_grad()
def mixture_labels(
    Z: Tensor, result: MixtureResult, *, max_chunk_bytes: int | None = None
) -> Tensor:
    """Most likely component of each row, (R, N) int64, for rows other than those of the fit, say.

    Parameters
    ----------
    Z : Tensor of shape (N, d) or (R, N, d)
    result : MixtureResult
    max_chunk_bytes : int, optional
        Size of the largest block.

    Returns
    -------
    Tensor of shape (R, N)

    Examples
    --------
    >>> Z = torch.tensor([[0.0], [1.0], [8.0], [9.0]])
    >>> result = gaussian_mixture(Z, torch.tensor([[0, 0, 1, 1]]), 2)
    >>> mixture_labels(torch.tensor([[7.0], [2.0]]), result)
    tensor([[1, 0]])
    """
    rows, mixture = _rows_and_mixture(
        Z, result.weights, result.means, result.covariances, max_chunk_bytes
    )
    return _most_likely(rows, mixture)[0]


# --------------------------------------------------------------------------------------------------
# One EM iteration


class _Mixture(NamedTuple):
    weights: Tensor  # (R, K)
    means: Tensor  # (R, K, d), about the origin of the rows
    covariances: Tensor  # (R, K, d, d)

    def at(self, index: Tensor) -> _Mixture:
        return _Mixture(*(part[index] for part in self))


class _Rows:
    """Chunks of rows as (G, d + 1, B) in float64, about their mean, over a row of ones.

    G is 1 where all restarts share the rows, else R. With the ones, one product gives the whitened
    differences ``A z - A m``, and one the three moments of a component: its rows, their sum and the
    sum of their outer products.
    """

    def __init__(self, Z: Tensor, R: int, K: int, max_bytes: int | None) -> None:
        shared = Z.ndim == 2 or Z.stride(0) == 0
        self.Z = (Z if Z.ndim == 2 else Z[0]).unsqueeze(0) if shared else Z
        self.shared = self.Z.shape[0] == 1
        G, self.n, d = self.Z.shape
        if max_bytes is not None:
            check_positive_int("max_chunk_bytes", max_bytes)
        else:
            on_cpu = MAX_CHUNK_BYTES * torch.get_num_threads()
            max_bytes = MAX_CHUNK_BYTES_CUDA if Z.device.type == "cuda" else on_cpu
        self.size = max(1, min(self.n, max_bytes // (8 * max(R * K * d, G * (d + 1) ** 2))))
        total = torch.zeros(G, 1, d, dtype=torch.float64, device=Z.device)
        for start in range(0, self.n, self.size):
            total += self.Z[:, start : start + self.size].double().sum(1, keepdim=True)
        self.origin = total / self.n  # (G, 1, d)

    def chunks(self, running: Tensor | None = None) -> Iterator[tuple[slice, Tensor]]:
        """Places and rows, of some restarts where each has its own."""
        Z, origin = self.Z, self.origin
        some = running is not None and not self.shared and len(running) < len(Z)
        for start in range(0, self.n, self.size):
            at = slice(start, min(start + self.size, self.n))
            part = Z[:, at]
            if some:
                part, origin = part[running], self.origin[running]
            G, B, d = part.shape
            rows = torch.ones(G, d + 1, B, dtype=torch.float64, device=Z.device)
            torch.sub(part.double().mT, origin.mT, out=rows[:, :d])
            yield at, rows


class _Penalty(NamedTuple):
    """What is added to the likelihood: see the top of the module."""

    tied: bool
    rows: float
    weight: float
    pooled: Tensor  # (R, d, d)
    noise: Tensor  # (R,)

    def at(self, index: Tensor) -> _Penalty:
        return self._replace(pooled=self.pooled[index], noise=self.noise[index])

    def value(self, mixture: _Mixture, whiten: Tensor, log_det: Tensor, n: int) -> Tensor:
        """The second and third sum of the objective, (R,)."""
        distance = (whiten @ self.pooled.unsqueeze(1) * whiten).sum((-2, -1))  # (R, K)
        own = log_det + distance + self.noise.unsqueeze(-1) * whiten.square().sum((-2, -1))
        value = -0.5 * self.rows * (own[:, :1] if self.tied else own).sum(-1)
        if self.weight > 0.0:
            value = value + self.weight * n * mixture.weights.log().sum(-1)
        return value


def _pooled_and_noise(moments: Tensor, ridge: float, n: int) -> tuple[Tensor, Tensor]:
    """Pooled covariance (R, d, d) and what the ridge adds (R,), from the moments of the labels."""
    d = moments.shape[-1] - 1
    second = moments.diagonal(dim1=-2, dim2=-1)[..., :d]  # (R, K, d)
    variance = second.sum((1, 2)) / (n * d)
    if not bool(variance.isfinite().all()):
        raise ValueError(
            "Z must be finite, and the squares of its values too, got some that are not"
        )
    # The scatter of a component is a difference of terms of up to n d times the variance.
    least = 16.0 * torch.finfo(torch.float64).eps * n * d
    noise = max(ridge, least) * variance
    noise = torch.where(noise > torch.finfo(torch.float64).tiny, noise, 1.0)  # rows all equal
    return _scatter(moments)[2].sum(1) / n, noise


def _scatter(moments: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Rows (R, K), means (R, K, d) and scatter (R, K, d, d) about them, from the moments."""
    count, total = moments[..., -1, -1], moments[..., -1, :-1]
    safe = count + LEAST_ROWS
    means = total / safe.unsqueeze(-1)
    # about `means`, which are not quite the means where there are next to no rows
    twice = (2.0 * safe - count)[..., None, None] * means.unsqueeze(-1) * means.unsqueeze(-2)
    scatter = moments[..., :-1, :-1] - twice
    return safe, means, 0.5 * (scatter + scatter.mT)


def _maximise(moments: Tensor, penalty: _Penalty, n: int) -> _Mixture:
    """M step from moments (R, K, d + 1, d + 1)."""
    count, means, scatter = _scatter(moments)
    (R, K), d = count.shape, means.shape[-1]
    prior = penalty.rows * penalty.pooled.unsqueeze(1)  # (R, 1, d, d)
    if penalty.tied:
        covariances = (scatter.sum(1, keepdim=True) + prior) / (n + penalty.rows)
    else:
        covariances = (scatter + prior) / (count + penalty.rows)[..., None, None]
    covariances = covariances.expand(R, K, d, d).clone()
    covariances.diagonal(dim1=-2, dim2=-1).add_(penalty.noise.view(-1, 1, 1))
    weights = count / n + penalty.weight
    return _Mixture(weights / weights.sum(-1, keepdim=True), means, covariances)


def _factors(mixture: _Mixture) -> tuple[Tensor, Tensor, Tensor]:
    """``[A, -A m]`` with ``A' A`` the precision (R, K, d, d + 1), constants and log determinants.

    The constants (R, K) are what the log of weight times density is at the mean.
    """
    lower, _ = torch.linalg.cholesky_ex(mixture.covariances)  # the ridge keeps it definite
    d = lower.shape[-1]
    identity = torch.eye(d, dtype=lower.dtype, device=lower.device).expand_as(lower)
    whiten = torch.linalg.solve_triangular(lower, identity, upper=False)
    factors = torch.cat([whiten, -whiten @ mixture.means.unsqueeze(-1)], -1)
    log_det = 2.0 * lower.diagonal(dim1=-2, dim2=-1).log().sum(-1)  # (R, K)
    constant = mixture.weights.log() - 0.5 * (log_det + d * math.log(2.0 * math.pi))
    return factors, constant, log_det


def _log_joint(rows: Tensor, factors: Tensor, constant: Tensor) -> Tensor:
    """Log of weight times density, (R, K, B), of rows (G, d + 1, B)."""
    R, K, d, _ = factors.shape
    G, _, B = rows.shape
    white = (factors.reshape(G, -1, d + 1) @ rows).view(R, K, d, B)
    return constant.unsqueeze(-1).sub(white.mul_(white).sum(2), alpha=0.5)


def _moments(weight: Tensor, rows: Tensor) -> Tensor:
    """Weighted sums (R, K, d + 1, d + 1) of the outer products of rows (G, d + 1, B)."""
    R, K, B = weight.shape
    G, d1, _ = rows.shape
    outer = rows.unsqueeze(1) * rows.unsqueeze(2)  # (G, d + 1, d + 1, B)
    return (weight.view(G, -1, B) @ outer.view(G, d1 * d1, B).mT).view(R, K, d1, d1)


def _label_moments(rows: _Rows, labels: Tensor, K: int) -> Tensor:
    cluster = torch.arange(K, device=labels.device).view(1, K, 1)
    d1 = rows.Z.shape[-1] + 1
    total = rows.origin.new_zeros(len(labels), K, d1, d1)
    for at, chunk in rows.chunks():
        total += _moments((labels[:, None, at] == cluster).double(), chunk)
    return total


def _expect(
    rows: _Rows, running: Tensor, mixture: _Mixture, penalty: _Penalty
) -> tuple[Tensor, Tensor]:
    """E step: moments (R, K, d + 1, d + 1) under the responsibilities; objective a row, (R,)."""
    factors, constant, log_det = _factors(mixture)
    whiten = factors[..., :-1]
    constant = constant - 0.5 * penalty.noise.unsqueeze(-1) * whiten.square().sum((-2, -1))
    (R, K), d1 = constant.shape, factors.shape[-1]
    total, value = factors.new_zeros(R, K, d1, d1), factors.new_zeros(R)
    for _, chunk in rows.chunks(running):
        share = _log_joint(chunk, factors, constant)  # (R, K, B)
        largest = share.amax(1, keepdim=True)
        share.sub_(largest).exp_()
        norm = share.sum(1, keepdim=True)
        total += _moments(share.div_(norm), chunk)
        value += (norm.log_() + largest).sum((1, 2))
    return total, (value + penalty.value(mixture, whiten, log_det, rows.n)) / rows.n


def _most_likely(rows: _Rows, mixture: _Mixture) -> tuple[Tensor, Tensor]:
    """Labels (R, N) and mean log-likelihood (R,), without penalties."""
    factors, constant, _ = _factors(mixture)
    labels = torch.empty(len(constant), rows.n, dtype=torch.int64, device=constant.device)
    value = constant.new_zeros(len(constant))
    for at, chunk in rows.chunks():
        joint = _log_joint(chunk, factors, constant)
        labels[:, at] = joint.argmax(1)
        value += joint.logsumexp(1).sum(-1)
    return labels, value / rows.n


# --------------------------------------------------------------------------------------------------
# Starts


def children(generator: torch.Generator, count: int) -> list[torch.Generator]:
    """Generators seeded by another: what each draws does not depend on how the rest are used."""
    device = generator.device
    seeds = torch.randint(2**62, (count,), generator=generator, device=device).tolist()
    return [torch.Generator(device).manual_seed(seed) for seed in seeds]


def _joined(first: MixtureResult, second: MixtureResult) -> MixtureResult:
    return MixtureResult(*(torch.cat(pair) for pair in zip(first, second, strict=True)))


def _likeliest(result: MixtureResult, R: int) -> MixtureResult:
    """Of starts stacked start by start, the best of each restart."""
    value = result.log_likelihood.view(-1, R)
    # the first of those that rounding alone tells apart: equal but for the order of their clusters
    best = value.amax(0)
    first = (value >= best - 1e-9 * (1.0 + best.abs())).int().argmax(0)
    index = first * R + torch.arange(R, device=value.device)
    return MixtureResult(*(part[index] for part in result))


# --------------------------------------------------------------------------------------------------
# Checks


def _check_rows(Z: Tensor) -> None:
    if Z.ndim not in (2, 3) or 0 in Z.shape:
        raise ValueError(f"Z must be (N, d) or (R, N, d), none of them 0, got {tuple(Z.shape)}")
    if Z.dtype not in (torch.float32, torch.float64):
        raise TypeError(f"Z must be float32 or float64, got {Z.dtype}")


def _check_labels(labels: Tensor, Z: Tensor, K: int) -> None:
    n = Z.shape[-2]
    expected = f"(R, {n})" if Z.ndim == 2 else f"({len(Z)}, {n})"
    fits = labels.ndim == 2 and labels.shape[1] == n and len(labels) > 0
    if not fits or (Z.ndim == 3 and len(labels) != len(Z)):
        raise ValueError(f"labels must be {expected}, got {tuple(labels.shape)}")
    if labels.dtype not in (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64):
        raise TypeError(f"labels must be whole numbers, got {labels.dtype}")
    if labels.device != Z.device:
        raise ValueError(f"labels are on {labels.device} but Z is on {Z.device}")
    low, high = torch.stack(torch.aminmax(labels)).tolist()
    if low < 0 or high >= K:
        raise ValueError(
            f"labels must be between 0 and n_clusters - 1 = {K - 1}, got {low if low < 0 else high}"
        )


def _rows_and_mixture(
    Z: Tensor, weights: Tensor, means: Tensor, covariances: Tensor, max_bytes: int | None
) -> tuple[_Rows, _Mixture]:
    _check_rows(Z)
    shape = tuple(means.shape)
    R, d = "R" if Z.ndim == 2 else len(Z), Z.shape[-1]
    if means.ndim != 3 or shape[-1] != d or (Z.ndim == 3 and shape[0] != R):
        raise ValueError(f"means must be ({R}, K, {d}), got {shape}")
    for name, tensor, expected in (
        ("weights", weights, shape[:2]),
        ("covariances", covariances, (*shape, shape[-1])),
    ):
        if tuple(tensor.shape) != expected:
            raise ValueError(f"{name} must be {expected} as means, got {tuple(tensor.shape)}")
    for name, tensor in (("weights", weights), ("means", means), ("covariances", covariances)):
        if tensor.device != Z.device:
            raise ValueError(f"{name} are on {tensor.device} but Z is on {Z.device}")
    rows = _Rows(Z, shape[0], shape[1], max_bytes)
    mixture = _Mixture(weights.double(), means.double() - rows.origin, covariances.double())
    return rows, mixture
