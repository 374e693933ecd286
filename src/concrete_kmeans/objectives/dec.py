r"""DEC (Xie, Girshick, Farhadi 2016) and IDEC (Guo, Gao, Liu, Yin 2017).

.. math::
    q_{ij} &= \frac{(1 + \|z_i - \mu_j\|^2)^{-1}}{\sum_l (1 + \|z_i - \mu_l\|^2)^{-1}}
    &&\text{(DEC, 1)} \\
    p_{ij} &= \frac{q_{ij}^2 / f_j}{\sum_l q_{il}^2 / f_l}, \quad f_j = \sum_i q_{ij}
    &&\text{(DEC, 3)} \\
    L &= \mathrm{KL}(P \| Q) \text{ (DEC, 2)}, \qquad
    L = L_r + \gamma \, \mathrm{KL}(P \| Q) \text{ (IDEC, 9)}
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from concrete_kmeans import functional as F
from concrete_kmeans import processes
from concrete_kmeans.augment import Augment
from concrete_kmeans.data import Batch, pieces
from concrete_kmeans.lloyd import Rows, own_rows
from concrete_kmeans.networks import Autoencoder
from concrete_kmeans.objectives.deep import DeepObjective

__all__ = ["EmbeddedClustering", "student_t", "target_distribution"]


def student_t(codes: Tensor, centers: Tensor) -> Tensor:
    """Soft assignment q (..., B, K) by Student's t kernel (DEC, 1)."""
    kernel = 1.0 / (1.0 + F.squared_distances(codes, centers))
    return kernel / kernel.sum(-1, keepdim=True)


def target_distribution(q: Tensor, frequencies: Tensor) -> Tensor:
    """Sharpened assignment p (..., B, K) from q and its sums over all rows, (..., K) (DEC, 3)."""
    weight = q * q / frequencies.unsqueeze(-2)
    return weight / weight.sum(-1, keepdim=True)


class EmbeddedClustering(DeepObjective):
    """KL divergence of the soft assignment from its own sharpened form.

    Parameters
    ----------
    network : Autoencoder
    centers : Tensor of shape (R, K, d)
    rows : Rows
        All rows: the target is computed over them, not over a batch.
    refresh_every : int
        Steps between two computations of the target.
    weight : float or None
        IDEC's gamma; None is DEC, which has no decoder.
    """

    def __init__(
        self,
        network: Autoencoder,
        centers: Tensor,
        rows: Rows,
        *,
        refresh_every: int,
        weight: float | None = None,
        augment: Augment | None = None,
    ) -> None:
        super().__init__(network, centers, augment=augment)
        self.rows, self.refresh_every, self.weight = rows, refresh_every, weight
        R, K, _ = centers.shape
        # the method's own state: one value for each row and cluster, held between two refreshes
        self.target = centers.new_empty(R, int(rows.shape[0]), K)

    def parameters(self) -> list[Tensor]:
        """Weights of the encoder and, in IDEC, of the decoder; and the centres."""
        if self.weight is None:
            return [*self.network.encoder.parameters(), self.centers]
        return super().parameters()

    @torch.no_grad()
    def refresh(self) -> None:
        """Compute the target over all rows."""
        network, n = self.network.eval(), self.target.shape[1]
        own = self.target[:, processes.own(n)]  # (R, N of this process, K)
        for start, stop, rows in pieces(own_rows(self.rows)):
            own[:, start:stop] = student_t(network.points(network.encode(rows)), self.centers)
        network.train()
        frequencies = processes.sum_all(own.sum(1))  # (R, K)
        size = max(1, 2**20 // own.shape[-1])
        for start in range(0, own.shape[1], size):
            q = own[:, start : start + size]
            own[:, start : start + size] = target_distribution(q, frequencies)
        if processes.many():  # a batch has rows of every process
            self.target.copy_(processes.gather(own, n, dim=1))

    def loss(
        self,
        batch: Batch,
        temperature: float | Tensor,  # noqa: ARG002
        generators: Sequence[torch.Generator],
    ) -> dict[str, Tensor]:
        """(DEC, 2) or (IDEC, 9), a mean over the batch."""
        rows = self.view(batch, generators)
        codes = self.network.encode(rows)
        index = batch.index.unsqueeze(-1).expand(-1, -1, self.target.shape[-1])
        p, q = self.target.gather(1, index), student_t(self.network.points(codes), self.centers)
        divergence = (torch.special.xlogy(p, p) - p * q.log()).sum(-1).mean(-1)  # (R,)
        if self.weight is None:
            return {"loss": divergence}
        # IDEC's gamma is for an error averaged over features too, as in its authors' code
        reconstruction = self.reconstruction(rows, codes) / rows.shape[-1]
        loss = reconstruction + self.weight * divergence
        return {"loss": loss, "reconstruction": reconstruction, "clustering": divergence}
