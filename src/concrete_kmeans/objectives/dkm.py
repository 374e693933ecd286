r"""DKM (Moradi Fard, Thonet, Gaussier 2020): k-means with a softmax for the minimum.

.. math:: L = \sum_i \|g(f(x_i)) - x_i\|^2
          + \lambda \sum_j \|f(x_i) - \mu_j\|^2 \, \mathrm{softmax}_j (-\alpha \|f(x_i) - \mu\|^2)
          \qquad \text{(DKM, 3 and 4)}
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from concrete_kmeans import functional as F
from concrete_kmeans.augment import Augment
from concrete_kmeans.data import Batch
from concrete_kmeans.networks import Autoencoder
from concrete_kmeans.objectives.deep import DeepObjective

__all__ = ["InverseTemperatures", "SoftClustering"]


class InverseTemperatures:
    """1 / alpha at a step: alpha begins at 0.1 and is multiplied by ``2 ** (1 / ln(n) ** 2)``.

    Examples
    --------
    >>> temperature = InverseTemperatures(n_steps=80)
    >>> temperature(0), temperature(1), temperature(2) < temperature(1)
    (10.0, 10.0, True)
    """

    n_values = 40

    def __init__(self, n_steps: int) -> None:
        self.n_steps = n_steps
        self.alphas = [0.1]
        for n in range(2, self.n_values + 1):
            self.alphas.append(self.alphas[-1] * 2.0 ** (1.0 / math.log(n) ** 2))

    def __call__(self, step: int) -> float:
        """Value at a step."""
        return 1.0 / self.alphas[min(step * self.n_values // self.n_steps, self.n_values - 1)]


class SoftClustering(DeepObjective):
    """Distance to the centres, weighted by a softmax that sharpens as it trains.

    Parameters
    ----------
    network : Autoencoder
    centers : Tensor of shape (R, K, d)
    weight : float
        Lambda.
    """

    def __init__(
        self,
        network: Autoencoder,
        centers: Tensor,
        *,
        weight: float,
        augment: Augment | None = None,
    ) -> None:
        super().__init__(network, centers, augment=augment)
        self.weight = weight

    def loss(
        self, batch: Batch, temperature: float | Tensor, generators: Sequence[torch.Generator]
    ) -> dict[str, Tensor]:
        """(DKM, 3), a mean over the batch; ``temperature`` is 1 / alpha."""
        rows = self.view(batch, generators)
        codes = self.network.encode(rows)
        reconstruction = self.reconstruction(rows, codes)
        distances = F.squared_distances(self.network.points(codes), self.centers)
        share = F.log_probs_from_distances(distances, temperature**0.5).exp()
        clustering = (share * distances).sum(-1).mean(-1)
        loss = reconstruction + self.weight * clustering
        return {"loss": loss, "reconstruction": reconstruction, "clustering": clustering}
