"""Deep concrete k-means: Eq. 8, as printed or with distances that know no scale."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, TypeAlias, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from concrete_kmeans import functional as F
from concrete_kmeans import processes
from concrete_kmeans.augment import Augment
from concrete_kmeans.data import Batch
from concrete_kmeans.fused import kernels_for
from concrete_kmeans.networks import Autoencoder
from concrete_kmeans.objectives.base import noise_of_batch
from concrete_kmeans.objectives.deep import DeepObjective
from concrete_kmeans.streams import aside, is_one, join

__all__ = ["Concrete", "Form", "Scales"]

Form: TypeAlias = Literal["scaled", "paper"]

#: Weight of the cross-entropy in a warm-up. At 1 the reconstruction and the distances win where
#: they disagree with the partition: on pendigits 3 % of its information was lost, at 20 none.
HELD_WEIGHT = 20.0
#: Rows times clusters of a batch that one program of a kernel can hold.
AT_ONCE = 2**13


class Scales(NamedTuple):
    """The code as the joint phase finds it, of each restart."""

    within: Tensor
    """(R,), mean squared distance to the own centre."""
    spread: Tensor
    """(R,), total variance."""
    reconstruction: Tensor
    """(R,), mean of Eq. 4 over rows."""
    sizes: Tensor
    """(R, K), share of the rows in each cluster."""


class Concrete(DeepObjective):
    """Eq. 8 for R restarts.

    Parameters
    ----------
    network : Autoencoder
    centers : Tensor of shape (R, K, d)
    scales : Scales
    form : {"scaled", "paper"}
    sigma2 : Tensor of shape (R,)
        Square of sigma in Eq. 5.
    weight : float
        Lambda of Eq. 8; in the scaled form relative to reconstruction / within.
    balance : float
        Weight of the divergence of the mean assignment from the first cluster sizes.
    held : Tensor of shape (R, N), optional
        Assign each row to this cluster instead of sampling: the warm-up.
    """

    def __init__(
        self,
        network: Autoencoder,
        centers: Tensor,
        scales: Scales,
        *,
        form: Form,
        sigma2: Tensor,
        weight: float,
        balance: float,
        held: Tensor | None = None,
        augment: Augment | None = None,
    ) -> None:
        super().__init__(network, centers, augment=augment)
        self.form, self.scales, self.balance, self.held = form, scales, balance, held
        self.sigma = sigma2.sqrt()
        self.weight = torch.full_like(scales.within, weight)
        if form == "scaled":
            self.weight = weight * scales.reconstruction / scales.within
        self.balance_weight = self.weight * balance * scales.within  # (R,)

    def noise_shape(self, n_rows: int) -> tuple[int, int, int] | None:
        """Where assignments are drawn."""
        return None if self.held is not None else (len(self.centers), n_rows, self.centers.shape[1])

    def loss(
        self, batch: Batch, temperature: float | Tensor, generators: Sequence[torch.Generator]
    ) -> dict[str, Tensor]:
        """Eq. 8, a mean over the batch."""
        rows = self.view(batch, generators)
        noise, shape = self.noise, self.noise_shape(rows.shape[1])
        if noise is None and shape is not None:
            noise = noise_of_batch(batch, self.centers.new_empty(shape), generators)
        codes = clean = self.network.encode(rows)
        if rows is not batch.rows:  # an augmented row belongs where the row itself belongs
            clean = self.network.encode(batch.rows)
        read = [codes, clean] if noise is None else [codes, clean, noise]
        with aside(*read):  # beside the decoder
            weighted, parts = self._clustering(batch, codes, clean, noise, temperature)
        reconstruction = self.reconstruction(rows, codes)
        join()
        return {
            "loss": reconstruction + weighted,
            "reconstruction": reconstruction,
            **parts,
        }  # Eq. 8

    def _clustering(
        self,
        batch: Batch,
        codes: Tensor,
        clean: Tensor,
        noise: Tensor | None,
        temperature: float | Tensor,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """What Eq. 8 adds to the reconstruction, (R,), and its parts."""
        alone = clean is codes
        codes = self.network.points(codes)
        clean = codes if alone else self.network.points(clean)
        if noise is not None and alone and self.form == "scaled" and not processes.many():
            weighted, clustering, balance = _Clustering.apply(  # type: ignore[no-untyped-call]
                codes, self.centers, noise, temperature, self
            )
            parts = {"clustering": clustering}
            return weighted, parts | ({"balance": balance} if self.balance else {})
        distances = self.distances(codes, batch.share)
        log_probs = F.log_probs_from_distances(
            distances if alone else self.distances(clean, batch.share), self.sigma
        )  # Eq. 5
        if noise is None:
            labels = cast("Tensor", self.held).gather(1, batch.index)
            clustering = self._held(distances, log_probs, labels)
        else:
            assignment = F.concrete_assignment(log_probs, temperature, noise=noise)  # Eq. 6
            if self.form == "paper":
                clustering = F.kmeans_loss(
                    codes, self.centers, assignment, gradient="reconstruction", reduction="mean"
                )  # Eq. 7
            else:
                clustering = F.loss_from_distances(distances, assignment, "mean")
        parts = {"clustering": clustering}
        weighted = self.weight * clustering
        if self.balance:
            parts["balance"] = self._balance(log_probs, batch.share)
            weighted = weighted + self.balance_weight * parts["balance"]
        return weighted, parts

    def distances(self, codes: Tensor, share: float = 1.0) -> Tensor:
        """Squared distances (R, B, K) to the centres, as if the code had its first spread.

        ``share`` is the part of the batch that the codes are.
        """
        distances = F.squared_distances(codes, self.centers)
        if self.form == "paper":
            return distances
        # Departs from Eq. 7: distances are relative to the spread of the code. As printed, the loss
        # falls when the code shrinks, and the clusters are lost on every data set but for a narrow
        # range of lambda that differs between them (docs/deep.md).
        (codes,) = F.at_least_float32(codes)
        spread = _variance(codes, share).sum(-1)  # (R,)
        return distances * (self.scales.spread / spread.clamp_min(_TINY)).view(-1, 1, 1)

    def _held(self, distances: Tensor, log_probs: Tensor, labels: Tensor) -> Tensor:
        """Distance to the given cluster's centre, and the cross-entropy of Eq. 5 to it, (R,)."""
        label = labels.unsqueeze(-1)
        own = distances.gather(-1, label).squeeze(-1).mean(-1)
        surprise = -log_probs.gather(-1, label).squeeze(-1).mean(-1)
        return own + HELD_WEIGHT * self.scales.within * surprise

    def _balance(self, log_probs: Tensor, part: float) -> Tensor:
        """Divergence of the batch's mean assignment from the first sizes, (R,)."""
        # Departs from Eq. 8: a few clusters swallow the rest without this term (docs/deep.md).
        mean = processes.sum_with_gradient(log_probs.exp().mean(-2), part)
        return (mean.clamp_min(_TINY) * _log_ratio(mean, self.scales.sizes)).sum(-1)


class _Clustering(torch.autograd.Function):
    """The clustering part of the scaled Eq. 8, its gradient found on the way."""

    @staticmethod
    def forward(
        ctx: Any,
        codes: Tensor,
        centers: Tensor,
        noise: Tensor,
        temperature: float | Tensor,
        of: Concrete,
    ) -> tuple[Tensor, Tensor, Tensor]:
        small = codes.shape[1] * centers.shape[1] <= AT_ONCE
        kernels = kernels_for(codes, centers) if small else None
        if kernels is not None:
            temperature = torch.as_tensor(temperature, dtype=torch.float32, device=codes.device)
        found = (assign if kernels is None else kernels.assign)(
            codes.contiguous(),
            centers,
            noise,
            temperature,
            sigma=of.sigma,
            spread=of.scales.spread,
            weight=of.weight,
            balance_weight=of.balance_weight if of.balance else None,
            sizes=of.scales.sizes,
        )
        weighted, clustering, balance, to_codes, to_centers = found
        ctx.save_for_backward(to_codes, to_centers)
        ctx.mark_non_differentiable(clustering, balance)
        return weighted, clustering, balance

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        to_codes, to_centers = ctx.saved_tensors
        if is_one(gradient):
            return to_codes, to_centers, None, None, None
        slope = gradient.view(-1, 1, 1)
        return (to_codes * slope).to(to_codes.dtype), to_centers * slope, None, None, None


def assign(
    codes: Tensor,
    centers: Tensor,
    noise: Tensor,
    temperature: float | Tensor,
    *,
    sigma: Tensor,
    spread: Tensor,
    weight: Tensor,
    balance_weight: Tensor | None,
    sizes: Tensor,
) -> tuple[Tensor, ...]:
    """What the kernel of this name finds, by torch's operations: a third of those of autograd.

    Of clusters and rows (R, K, B) on the CPU, where a sum over few clusters is slow if they lie
    side by side; elsewhere (R, B, K): a softmax over clusters that lie apart is slow on CUDA.
    """
    k = 1 if codes.device.type == "cpu" else 2  # where the clusters are, and the rows
    b = 3 - k
    n, own, one = codes.shape[1], codes.dtype, _over(weight / codes.shape[1])
    codes, centers = F.at_least_float32(codes, centers)
    with torch.autocast(codes.device.type, enabled=False):
        mean = codes.mean(1, keepdim=True)
        z, mu = codes - mean, centers - mean  # far from the origin, squares lose their digits
        norms = (z * z).sum(-1)  # (R, B)
        variance = _over(norms.mean(-1))  # (R, 1, 1)
        bounded = variance.clamp_min(_TINY)
        scale = _over(spread) / bounded
        norms = norms.unsqueeze(k) + (mu * mu).sum(-1).unsqueeze(b)  # (R, K, B) or (R, B, K)
        left, right = (mu, z.mT) if k == 1 else (z, mu.mT)
        distances = torch.baddbmm(norms, left, right, alpha=-2.0).clamp_min_(0.0).mul_(scale)
        log_probs = F.log_probs_from_distances(distances, sigma, dim=k)  # Eq. 5
        noise = noise.mT if k == 1 else noise
        soft = ((log_probs + noise) / temperature).softmax(k)  # Eq. 6
        hard = torch.zeros_like(soft).scatter_(k, soft.max(k, keepdim=True).indices, 1.0)
        clustering = (hard * distances).sum((1, 2)) / n  # Eq. 7
        weighted, balance = weight * clustering, torch.zeros_like(clustering)
        # back: to the distances as they are, and through the soft sample
        expected = (soft * distances).sum(k, keepdim=True)
        to_logits = soft * (distances - expected).mul_(one / temperature)
        if balance_weight is not None:
            probs = log_probs.exp()
            share = probs.mean(b)  # (R, K)
            ratio = _log_ratio(share, sizes)
            balance = (share.clamp_min(_TINY) * ratio).sum(-1)
            weighted = weighted + balance_weight * balance
            slope = ((ratio + 1.0) * (share >= _TINY)).unsqueeze(b) * _over(balance_weight / n)
            to_logits += probs * (slope - (probs * slope).sum(k, keepdim=True))
        to_distances = one * hard - to_logits / _over(sigma * sigma)
        to_variance = (to_distances * distances).sum((1, 2), keepdim=True) * (variance > _TINY)
        to_squares = to_distances.mul_(2.0 * scale)
        to_squares = to_squares if k == 1 else to_squares.mT  # (R, K, B)
        to_codes = z * (to_squares.sum(1).unsqueeze(-1) - to_variance * (2.0 / n) / bounded)
        to_codes -= to_squares.mT @ mu
        to_centers = mu * to_squares.sum(-1, keepdim=True) - to_squares @ z
    return weighted, clustering, balance, to_codes.to(own), to_centers


def _over(value: Tensor) -> Tensor:
    """A value a restart, (R,), to broadcast over rows and clusters."""
    return value.view(-1, 1, 1)


def _log_ratio(share: Tensor, sizes: Tensor) -> Tensor:
    """Of shares of rows (..., K) to the first sizes, both kept from zero."""
    return share.clamp_min(_TINY).log() - sizes.clamp_min(1.0 / (sizes.shape[-1] * 1e3)).log()


def _variance(codes: Tensor, share: float) -> Tensor:
    """Of each number of the codes (R, B, d) over the batch of all processes, (R, d)."""
    if not processes.many():
        return codes.var(-2, correction=0)
    mean = processes.sum_all(codes.mean(-2, keepdim=True), share)
    # a variance does not change to first order with the mean it is taken from: it needs no gradient
    return processes.sum_with_gradient((codes - mean).square().mean(-2), share)


_TINY = 1e-12
