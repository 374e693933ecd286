"""Concrete k-means as a layer of any network."""

from __future__ import annotations

import numbers
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn

from concrete_kmeans import functional as F
from concrete_kmeans.lloyd import kmeans_plusplus
from concrete_kmeans.validation import check_choice, check_positive, check_positive_int, is_auto

__all__ = ["Clustering", "ConcreteKMeansLayer"]

#: ``sigma="auto"``: sigma^2 as a share of the mean squared distance to the nearest centre. At 1 the
#: joint training of a network collapses; 0.15 to 0.3 is good on every data set tried.
AUTO_SIGMA2 = 0.3


class Clustering(NamedTuple):
    """What :class:`ConcreteKMeansLayer` returns."""

    loss: Tensor
    """Eq. 7, a scalar."""
    assignment: Tensor
    """One-hot rows (..., K); in training their gradient is that of the relaxed sample."""
    labels: Tensor
    """Index of the assigned cluster (...)."""
    distances: Tensor
    """Squared distances to all centres (..., K)."""


class ConcreteKMeansLayer(nn.Module):
    r"""Cluster the rows of a tensor, with gradients for the rows and the centres.

    In ``train()`` the assignment is a straight-through Gumbel-Softmax sample (Eq. 5 and 6); in
    ``eval()`` it is the nearest centre. Add ``loss`` to the loss of your network.

    Parameters
    ----------
    n_clusters : int
    n_features : int
        Size of the last axis of the input.
    sigma : float or "auto", default="auto"
        Width of the assignment probabilities (Eq. 5). ``"auto"`` follows the scale of the input:
        ``sigma**2`` is 0.3 times the batch's mean squared distance to the nearest centre.
    temperature : float, default=1.0
        Tau of Eq. 6, kept in the buffer ``temperature``; a schedule may set it:
        ``layer.temperature = 0.5`` or ``layer.temperature.fill_(0.5)``.
    gradient : {"distance", "reconstruction"}, default="distance"
        Which form of Eq. 7 the gradient comes from; see
        :func:`concrete_kmeans.functional.kmeans_loss`.
    reduction : {"sum", "mean"}, default="sum"
        Eq. 7 is the sum over rows; ``"mean"`` keeps the loss independent of the batch size.
    device, dtype : optional
        Of the centres.

    Attributes
    ----------
    centers : nn.Parameter of shape (n_clusters, n_features)
        Standard normal until :meth:`init_centers` or ``load_state_dict``.
    temperature : Tensor
        A scalar buffer, saved with the state.

    Examples
    --------
    >>> import torch
    >>> from concrete_kmeans import ConcreteKMeansLayer
    >>> z = torch.tensor([[0.0, 0.1], [0.1, 0.0], [9.0, 9.0]])
    >>> layer = ConcreteKMeansLayer(n_clusters=2, n_features=2).init_centers(z).eval()
    >>> loss, assignment, labels, distances = layer(z)
    >>> bool(labels[0] == labels[1]), bool(labels[0] == labels[2])
    (True, False)
    """

    temperature: Tensor

    def __init__(
        self,
        n_clusters: int,
        n_features: int,
        *,
        sigma: float | Literal["auto"] = "auto",
        temperature: float = 1.0,
        gradient: F.GradientForm = "distance",
        reduction: Literal["sum", "mean"] = "sum",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.n_clusters = check_positive_int("n_clusters", n_clusters)
        self.n_features = check_positive_int("n_features", n_features)
        self.sigma = sigma if is_auto(sigma) else check_positive("sigma", sigma, also="'auto'")
        self.gradient = check_choice("gradient", gradient, get_args(F.GradientForm))
        self.reduction = check_choice("reduction", reduction, ("sum", "mean"))
        self.centers = nn.Parameter(torch.empty(n_clusters, n_features, device=device, dtype=dtype))
        self._first_temperature = check_positive("temperature", temperature)
        self.register_buffer("temperature", torch.empty((), device=device))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the centres from a standard normal distribution; the temperature is the first.

        All that ``to_empty`` leaves without a value gets one.
        """
        nn.init.normal_(self.centers)
        self.temperature.fill_(self._first_temperature)

    @torch.no_grad()
    def init_centers(
        self, z: Tensor, *, generator: torch.Generator | None = None
    ) -> ConcreteKMeansLayer:
        """Set the centres by greedy k-means++ on rows like those of training.

        Parameters
        ----------
        z : Tensor of shape (..., n_features)
            At least ``n_clusters`` rows.
        generator : torch.Generator, optional
            torch's global generator when not given.

        Returns
        -------
        ConcreteKMeansLayer
            Itself.
        """
        self._check_input(z)
        (rows,) = F.at_least_float32(z.detach().reshape(-1, self.n_features))
        if not rows.isfinite().all():
            raise ValueError("z must be finite to start the centres from it; it holds NaN or inf")
        centers, _ = kmeans_plusplus(rows, self.n_clusters, generators=[generator])
        self.centers.copy_(centers[0])
        return self

    def forward(self, z: Tensor, *, generator: torch.Generator | None = None) -> Clustering:
        """Assign each row of ``z`` to a cluster and give the loss.

        Parameters
        ----------
        z : Tensor of shape (..., n_features)
        generator : torch.Generator, optional
            Source of the noise in training; torch's global generator when not given.

        Returns
        -------
        Clustering
            ``(loss, assignment, labels, distances)``.
        """
        self._check_input(z)
        rows = z.reshape(-1, self.n_features)
        distances = F.squared_distances(rows, self.centers)  # (B, K)
        if self.training:
            log_probs = F.log_probs_from_distances(distances, self._sigma(distances))
            assignment = F.concrete_assignment(log_probs, self.temperature, generator=generator)
        else:
            assignment = F.nearest_assignment(distances)
        if self.gradient == "distance":
            loss = F.loss_from_distances(distances, assignment, self.reduction)
        else:
            loss = F.kmeans_loss(
                rows, self.centers, assignment, gradient=self.gradient, reduction=self.reduction
            )
        leading = z.shape[:-1]
        return Clustering(
            loss,
            assignment.reshape(*leading, self.n_clusters),
            assignment.detach().argmax(-1).reshape(leading),
            distances.reshape(*leading, self.n_clusters),
        )

    def _sigma(self, distances: Tensor) -> float | Tensor:
        if self.sigma != "auto":
            return self.sigma
        within = distances.detach().amin(-1).mean()
        return (AUTO_SIGMA2 * within).clamp_min(torch.finfo(within.dtype).tiny).sqrt()

    def _check_input(self, z: Tensor) -> None:
        if not isinstance(z, Tensor):
            raise TypeError(f"z must be a tensor, got {type(z).__name__}")
        if z.ndim < 2 or z.shape[-1] != self.n_features:
            raise ValueError(f"z must be (..., {self.n_features}), got {tuple(z.shape)}")

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "temperature" and isinstance(value, numbers.Real):
            self.temperature.fill_(check_positive("temperature", value))
        elif name == "temperature" and not (isinstance(value, Tensor) and value.ndim == 0):
            raise ValueError(
                f"temperature must be a positive finite number or a scalar tensor, got {value!r}"
            )
        else:
            super().__setattr__(name, value)

    def extra_repr(self) -> str:
        """One line for ``repr``."""
        return (
            f"n_clusters={self.n_clusters}, n_features={self.n_features}, "
            f"sigma={self.sigma!r}, gradient={self.gradient!r}, reduction={self.reduction!r}"
        )
