r"""DCN (Yang, Fu, Sidiropoulos, Hong 2017): k-means in the code, in turns with the network.

.. math::
    L &= \sum_i \|g(f(x_i)) - x_i\|^2 + \tfrac{\lambda}{2} \|f(x_i) - M s_i\|^2
    &&\text{(DCN, 4)} \\
    s_i &= \arg\min_j \|f(x_i) - m_j\|^2 &&\text{(DCN, 6)} \\
    m_j &\leftarrow m_j - \tfrac{1}{c_j} (m_j - f(x_i)) s_{ij}, \quad c_j \leftarrow c_j + s_{ij}
    &&\text{(DCN, 8)}
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from concrete_kmeans import functional as F
from concrete_kmeans import processes
from concrete_kmeans.augment import Augment
from concrete_kmeans.data import Batch
from concrete_kmeans.networks import Autoencoder
from concrete_kmeans.objectives.deep import DeepObjective

__all__ = ["AlternatingClustering"]

#: Rows a centre counts as having seen at the start, as in the authors' code.
FIRST_COUNT = 100.0


class AlternatingClustering(DeepObjective):
    """A gradient step with assignments fixed, then new assignments, then new centres.

    Parameters
    ----------
    network : Autoencoder
    centers : Tensor of shape (R, K, d)
    labels : Tensor of shape (R, N)
        Cluster of each row at the start; copied.
    weight : float
        Lambda.
    """

    def __init__(
        self,
        network: Autoencoder,
        centers: Tensor,
        labels: Tensor,
        *,
        weight: float,
        augment: Augment | None = None,
    ) -> None:
        super().__init__(network, centers, augment=augment)
        self.centers.requires_grad_(False)
        self.labels, self.weight = labels.clone(), weight
        self.counts = centers.new_full(centers.shape[:2], FIRST_COUNT)

    def parameters(self) -> list[Tensor]:
        """Weights of both networks: no gradient moves the centres."""
        return list(self.network.parameters())

    def state(self) -> list[Tensor]:
        """Networks, centres, counts and the assignment."""
        return [*super().state(), self.counts, self.labels]

    def loss(
        self,
        batch: Batch,
        temperature: float | Tensor,  # noqa: ARG002
        generators: Sequence[torch.Generator],
    ) -> dict[str, Tensor]:
        """(DCN, 4), a mean over the batch."""
        rows = self.view(batch, generators)
        codes = self.network.encode(rows)
        reconstruction = self.reconstruction(rows, codes)
        labels = self.labels.gather(1, batch.index)  # (R, B)
        own = self.centers.gather(1, labels.unsqueeze(-1).expand(-1, -1, codes.shape[-1]))
        clustering = ((self.network.points(codes) - own) ** 2).sum(-1).mean(-1)
        loss = reconstruction + 0.5 * self.weight * clustering
        return {"loss": loss, "reconstruction": reconstruction, "clustering": clustering}

    @torch.no_grad()
    def after_step(self, batch: Batch) -> None:
        """(DCN, 6) and (DCN, 8) for the rows of the batch."""
        network = self.network.eval()  # as predict will see the rows: dropout is for the gradient
        (codes,) = F.at_least_float32(network.points(network.encode(batch.rows)))
        network.train()
        hard = F.nearest_assignment(F.squared_distances(codes, self.centers))  # (R, B, K)
        labels = processes.gather(hard.argmax(-1), batch.size, dim=1)
        self.labels.scatter_(1, batch.index if batch.whole is None else batch.whole, labels)
        size, sums = hard.sum(-2), hard.mT @ codes
        processes.sum_in_place([size, sums])
        # the rows of a cluster one after another, in closed form: (c m + sum z) / (c + n)
        seen = self.counts + size
        total = self.counts.unsqueeze(-1) * self.centers + sums
        self.centers.copy_(total / seen.unsqueeze(-1))
        self.counts.copy_(seen)
