"""The equations of concrete k-means as functions of tensors.

Shapes: ``z`` is ``(..., B, D)``, ``centers`` ``(..., K, D)``, everything over rows and clusters
``(..., B, K)``. Leading axes are a batch of independent problems (restarts, say) and broadcast.
``sigma`` and ``temperature`` are numbers, or tensors of the leading shape: one value a problem.

Half-precision input is computed, and returned, in float32, also under autocast: a squared distance
overflows float16 at a distance of 256, and bfloat16 has eight bits to tell two centres apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor

from concrete_kmeans.validation import check_choice, check_positive

__all__ = [
    "Generators",
    "GradientForm",
    "Reduction",
    "assignment_log_probs",
    "concrete_assignment",
    "gumbel_noise",
    "kmeans_loss",
    "nearest_assignment",
    "squared_distances",
]

GradientForm = Literal["distance", "reconstruction"]
Reduction = Literal["sum", "mean", "none"]
#: Looked up once: the compiler of torch 2.6 stops at a question about types.
_GRADIENTS, _REDUCTIONS = get_args(GradientForm), get_args(Reduction)
Generators: TypeAlias = torch.Generator | Sequence[torch.Generator] | None


def squared_distances(z: Tensor, centers: Tensor) -> Tensor:
    """Squared Euclidean distances of every row to every centre.

    Both sides are moved so that the centres' mean is the origin before
    ``|z|^2 - 2 z.mu + |mu|^2`` is formed: data far from the origin keep their digits.

    Parameters
    ----------
    z : Tensor of shape (..., B, D)
    centers : Tensor of shape (..., K, D)

    Returns
    -------
    Tensor of shape (..., B, K)
        Never negative.

    Examples
    --------
    >>> squared_distances(torch.tensor([[0.0, 3.0]]), torch.tensor([[0.0, 0.0], [4.0, 0.0]]))
    tensor([[ 9., 25.]])
    """
    _check_rows_and_centers(z, centers)
    z, centers = at_least_float32(z, centers)
    with torch.autocast(z.device.type, enabled=False):
        origin = centers.detach().mean(-2, keepdim=True)
        z, centers = z - origin, centers - origin
        cross = z @ centers.mT  # (..., B, K)
        norms = _squared_norms(z).unsqueeze(-1) + _squared_norms(centers).unsqueeze(-2)
        return (norms - 2.0 * cross).clamp_min(0.0)


def assignment_log_probs(z: Tensor, centers: Tensor, sigma: float | Tensor) -> Tensor:
    r"""Log-probability of each cluster for each row (Eq. 5).

    .. math:: \log p(C_{ij} | x_i) = \log \mathrm{softmax}_j (-\sigma^{-2} \|z_i - \mu_j\|^2)

    Parameters
    ----------
    z : Tensor of shape (..., B, D)
    centers : Tensor of shape (..., K, D)
    sigma : float or Tensor of the leading shape
        Width of the assignment, positive.

    Returns
    -------
    Tensor of shape (..., B, K)
        Rows of ``exp`` sum to one.

    Examples
    --------
    >>> z, centers = torch.zeros(1, 2), torch.tensor([[0.0, 0.0], [1.0, 0.0]])
    >>> assignment_log_probs(z, centers, sigma=1.0).exp()
    tensor([[0.7311, 0.2689]])
    """
    sigma = _positive("sigma", sigma)
    return log_probs_from_distances(squared_distances(z, centers), sigma)


def log_probs_from_distances(distances: Tensor, sigma: float | Tensor, dim: int = -1) -> Tensor:
    """Eq. 5 from squared distances ``(..., B, K)``, which a caller may already have.

    Clusters may lie along another axis, ``dim``.
    """
    # The softmax does not see a shift of a row; without it, a point far from all centres would lose
    # the digits that tell them apart, and a tiny sigma would give -inf everywhere.
    excess = distances - distances.detach().amin(dim, keepdim=True)
    sigma = _over_rows_and_clusters(sigma)
    return (-excess / sigma / sigma).log_softmax(dim)  # Eq. 5


def gumbel_noise(like: Tensor, generator: Generators = None) -> Tensor:
    """Standard Gumbel noise in the shape of ``like``, float32 at least.

    Parameters
    ----------
    like : Tensor of shape (..., B, K)
    generator : torch.Generator, sequence of them, or None
        A sequence has one generator for each index of the first axis, so that restart ``r`` of a
        stack draws what it would draw alone. None is torch's global generator.

    Returns
    -------
    Tensor of shape (..., B, K)

    Examples
    --------
    >>> a, b = torch.Generator().manual_seed(0), torch.Generator().manual_seed(0)
    >>> torch.equal(gumbel_noise(torch.zeros(4, 3), a), gumbel_noise(torch.zeros(4, 3), b))
    True
    """
    (like,) = at_least_float32(like)
    noise = torch.empty_like(like, memory_format=torch.contiguous_format, requires_grad=False)
    return gumbel_from_exponential_(draw_exponential_(noise, generator))


def draw_exponential_(noise: Tensor, generator: Generators) -> Tensor:
    """Fill a tensor, of whose first axis each index may have a generator of its own."""
    if not isinstance(generator, Sequence):
        return noise.exponential_(generator=generator)
    if noise.ndim < 3 or len(generator) != len(noise):
        raise ValueError(
            f"generator must hold one generator for each of the {noise.shape[0]} problems on "
            f"the first axis of {tuple(noise.shape)}, got {len(generator)}"
        )
    for part, own in zip(noise, generator, strict=True):
        part.exponential_(generator=own)
    return noise


def gumbel_from_exponential_(noise: Tensor) -> Tensor:
    """Turn exponential draws into Gumbel's, in place."""
    # An exponential draw can round to zero, and log(0) would make the whole row NaN.
    return noise.clamp_min_(torch.finfo(noise.dtype).tiny).log_().neg_()


def concrete_assignment(
    log_probs: Tensor,
    temperature: float | Tensor,
    *,
    hard: bool = True,
    generator: Generators = None,
    noise: Tensor | None = None,
) -> Tensor:
    r"""Sample assignments whose gradient is that of the relaxed sample (Eq. 6).

    .. math:: h_{ij} = \mathrm{softmax}_j ((\log p(C_{ij} | x_i) + G_{ij}) / \tau),
              \qquad G_{ij} \sim \mathrm{Gumbel}

    Parameters
    ----------
    log_probs : Tensor of shape (..., B, K)
    temperature : float or Tensor of the leading shape
        Tau, positive. It shapes the relaxed sample and its gradient; the law of the hard sample is
        that of ``log_probs`` whatever the temperature.
    hard : bool, default=True
        Round the largest component to one and the others to zero in the forward pass
        (straight-through); else return the relaxed sample.
    generator : torch.Generator, sequence of them, or None
        Source of the noise, as in :func:`gumbel_noise`.
    noise : Tensor of shape (..., B, K), optional
        Gumbel noise drawn before, instead of ``generator``. ``torch.compile`` cannot trace a
        generator: draw with :func:`gumbel_noise` outside the compiled function and pass it in.

    Returns
    -------
    Tensor of shape (..., B, K)
        One-hot rows when ``hard``, else rows on the simplex.

    Examples
    --------
    >>> concrete_assignment(torch.tensor([[0.0, -90.0]]), temperature=1.0)
    tensor([[1., 0.]])
    """
    temperature = _over_rows_and_clusters(_positive("temperature", temperature))
    if noise is None:
        noise = gumbel_noise(log_probs, generator)
    elif generator is not None:
        raise ValueError("give generator or noise, not both")
    elif noise.shape[-2:] != log_probs.shape[-2:]:
        raise ValueError(
            f"noise must be (..., B, K) as log_probs {tuple(log_probs.shape)}, "
            f"got {tuple(noise.shape)}"
        )
    log_probs, noise = at_least_float32(log_probs, noise)
    soft = ((log_probs + noise) / temperature).softmax(-1)  # Eq. 6
    if not hard:
        return soft
    return _one_hot(soft.argmax(-1), soft) - soft.detach() + soft  # this order is exactly one-hot


def nearest_assignment(distances: Tensor) -> Tensor:
    """One-hot rows for the smallest distance: the arg max of Eq. 5, the paper's test-time rule.

    Examples
    --------
    >>> nearest_assignment(torch.tensor([[3.0, 1.0, 2.0]]))
    tensor([[0., 1., 0.]])
    """
    return _one_hot(distances.argmin(-1), distances)


def kmeans_loss(
    z: Tensor,
    centers: Tensor,
    assignment: Tensor,
    *,
    gradient: GradientForm = "distance",
    reduction: Reduction = "sum",
) -> Tensor:
    r"""The k-means loss of given assignments (Eq. 7).

    Parameters
    ----------
    z : Tensor of shape (..., B, D)
    centers : Tensor of shape (..., K, D)
    assignment : Tensor of shape (..., B, K)
        Rows on the simplex, as :func:`concrete_assignment` returns them.
    gradient : {"distance", "reconstruction"}, default="distance"
        ``"reconstruction"`` is :math:`\|z_i - h_i M\|^2`, as printed; ``"distance"`` is
        :math:`\sum_j h_{ij} \|z_i - \mu_j\|^2`. The same value for one-hot rows; what reaches the
        assignment in the backward pass differs, and ``"distance"`` clusters better.
    reduction : {"sum", "mean", "none"}, default="sum"
        Over rows: Eq. 7 is the sum. ``"none"`` gives the loss of each row.

    Returns
    -------
    Tensor of the leading shape, or (..., B) for ``reduction="none"``

    Examples
    --------
    >>> z, centers = torch.tensor([[0.0], [5.0]]), torch.tensor([[1.0], [4.0]])
    >>> kmeans_loss(z, centers, torch.eye(2))
    tensor(2.)
    """
    check_choice("gradient", gradient, _GRADIENTS)
    _check_rows_and_centers(z, centers)
    if assignment.shape[-2:] != (z.shape[-2], centers.shape[-2]):  # would broadcast unnoticed
        raise ValueError(
            f"assignment must be (..., {z.shape[-2]}, {centers.shape[-2]}), one row for each of z "
            f"and one column for each centre, got {tuple(assignment.shape)}"
        )
    if gradient == "distance":
        # Departs from Eq. 7 in the backward pass only: under straight-through the printed form
        # loses 5 to 10 points of NMI on MNIST, USPS and 20 Newsgroups (docs/equations.md).
        return loss_from_distances(squared_distances(z, centers), assignment, reduction)
    z, centers, assignment = at_least_float32(z, centers, assignment)
    with torch.autocast(z.device.type, enabled=False):
        return _reduce(_squared_norms(z - assignment @ centers), reduction)  # Eq. 7


def loss_from_distances(distances: Tensor, assignment: Tensor, reduction: Reduction) -> Tensor:
    """Eq. 7 in the distance form, from squared distances ``(..., B, K)``."""
    return _reduce((assignment * distances).sum(-1), reduction)


def _reduce(rows: Tensor, reduction: Reduction) -> Tensor:
    check_choice("reduction", reduction, _REDUCTIONS)
    if reduction == "none":
        return rows
    return rows.sum(-1) if reduction == "sum" else rows.mean(-1)


def _squared_norms(rows: Tensor) -> Tensor:
    return (rows * rows).sum(-1)  # ten times as fast as square() on the CPU, which calls pow


def _one_hot(labels: Tensor, like: Tensor) -> Tensor:
    return torch.zeros_like(like).scatter_(-1, labels.unsqueeze(-1), 1.0)


def at_least_float32(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Promote to the widest common dtype, float32 at least."""
    dtype = torch.float32
    for tensor in tensors:
        dtype = torch.promote_types(dtype, tensor.dtype)
    return tuple(tensor.to(dtype) for tensor in tensors)


def _over_rows_and_clusters(value: float | Tensor) -> float | Tensor:
    """A value of the leading shape, ready to broadcast over ``(..., B, K)``."""
    return value[..., None, None] if isinstance(value, Tensor) else value


def _positive(name: str, value: float | Tensor) -> float | Tensor:
    # A tensor's values are not read: that would wait for the device and break a compiled graph.
    # Nor can a compiled graph take all checks of a number that changes from call to call.
    if isinstance(value, Tensor) or (torch.compiler.is_compiling() and value > 0.0):
        return value
    return check_positive(name, value)


def _check_rows_and_centers(z: Tensor, centers: Tensor) -> None:
    for name, tensor in (("z", z), ("centers", centers)):
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name} must be a tensor, got {type(tensor).__name__}")
    if z.ndim < 2 or centers.ndim < 2 or z.shape[-1] != centers.shape[-1]:
        raise ValueError(
            "z must be (..., B, D) and centers (..., K, D) with the same D, "
            f"got {tuple(z.shape)} and {tuple(centers.shape)}"
        )
    if centers.shape[-2] < 1:
        raise ValueError(f"centers must hold at least one centre, got {tuple(centers.shape)}")
    for name, tensor in (("z", z), ("centers", centers)):
        if not tensor.dtype.is_floating_point:
            raise TypeError(f"{name} must be floating point, got {tensor.dtype}")
    if z.device != centers.device:
        raise ValueError(f"z is on {z.device} but centers are on {centers.device}")
