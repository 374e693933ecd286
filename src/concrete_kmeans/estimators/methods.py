"""The deep methods, each a few lines over the shared estimator and its objective."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from concrete_kmeans.estimators.deep import (
    Auto,
    DeepClusterer,
    Defaults,
    EncoderSpec,
    Fit,
    Scale,
    epochs_for,
)
from concrete_kmeans.estimators.inputs import Schedule, start_and_end
from concrete_kmeans.objectives.concrete import Concrete, Form, Scales
from concrete_kmeans.objectives.dcn import AlternatingClustering
from concrete_kmeans.objectives.dec import EmbeddedClustering
from concrete_kmeans.objectives.deep import DeepObjective
from concrete_kmeans.objectives.dkm import InverseTemperatures, SoftClustering
from concrete_kmeans.starts import Start
from concrete_kmeans.training import Annealed, Callback, Precision
from concrete_kmeans.validation import check_choice, check_not_negative, check_positive

__all__ = ["DCN", "DEC", "DKM", "IDEC", "AutoencoderKMeans", "DeepConcreteKMeans"]

#: ``sigma="auto"``: sigma^2 over the mean squared distance to the own centre at the start.
AUTO_SIGMA2: dict[Form, float] = {"scaled": 0.15, "paper": 0.05}
#: ``balance="auto"``.
AUTO_BALANCE: dict[Form, float] = {"scaled": 1.0, "paper": 0.0}
#: Epochs that hand a partition over to the network, its assignments held.
WARM_UP_EPOCHS = 30


class DeepConcreteKMeans(DeepClusterer):
    """docstring"""

    _defaults: ClassVar[Defaults] = Defaults(
        epochs=60,
        learning_rate=3e-4,
        clustering_weight=1.0,
        init="consensus",
        tol=1e-4,
        patience=10,
    )
    _paper: ClassVar[Defaults] = Defaults(
        epochs=60, learning_rate=3e-4, clustering_weight=0.3, tol=1e-4, patience=10
    )

    def __init__(
        self,
        n_clusters: int = 8,
        *,
        objective: Form = "scaled",
        encoder: EncoderSpec = "auto",
        decoder: EncoderSpec = "auto",
        pretrained: DeepClusterer | None = None,
        pretrain_epochs: int | Auto = "auto",
        epochs: int | Auto = "auto",
        batch_size: int = 256,
        pretrain_learning_rate: Schedule = 1e-3,
        learning_rate: Schedule | Auto = "auto",
        clustering_weight: float | Auto = "auto",
        balance: float | Auto = "auto",
        sigma: float | Auto = "auto",
        temperature: Schedule = (1.0, 0.1),
        init: Any = "auto",
        n_init: int = 1,
        scale: Scale = "auto",
        augment: Any = None,
        tol: float | Auto = "auto",
        clip_norm: float | None = None,
        stacking: Literal["vmap", "loop"] = "vmap",
        device: str | torch.device = "auto",
        precision: Precision = "float32",
        callbacks: Sequence[Callback] | None = None,
        verbose: int = 0,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        super().__init__(
            n_clusters,
            encoder=encoder,
            decoder=decoder,
            pretrained=pretrained,
            pretrain_epochs=pretrain_epochs,
            epochs=epochs,
            batch_size=batch_size,
            pretrain_learning_rate=pretrain_learning_rate,
            learning_rate=learning_rate,
            clustering_weight=clustering_weight,
            init=init,
            n_init=n_init,
            scale=scale,
            augment=augment,
            tol=tol,
            clip_norm=clip_norm,
            stacking=stacking,
            device=device,
            precision=precision,
            callbacks=callbacks,
            verbose=verbose,
            random_state=random_state,
        )
        self.objective = objective
        self.balance = balance
        self.sigma = sigma
        self.temperature = temperature

    def _check_params(self) -> None:
        check_choice("objective", self.objective, get_args(Form))
        super()._check_params()
        start_and_end("temperature", self.temperature)
        if self.sigma != "auto":
            check_positive("sigma", self.sigma, also="'auto'")
        if self.balance != "auto":
            check_not_negative("balance", self.balance)

    def _method_defaults(self) -> Defaults:
        return self._paper if self.objective == "paper" else self._defaults

    def _objective(self, fit: Fit, start: Start) -> DeepObjective:
        if not start.nearest:
            start = self._warm_up(fit, start)
        return self._concrete(fit, start, held=None)

    def _warm_up(self, fit: Fit, start: Start) -> Start:
        """Teach the network a partition whose nearest centres are not its own."""
        objective = self._concrete(fit, start, held=start.labels)
        epochs = epochs_for(fit.n_rows, self.batch_size, WARM_UP_EPOCHS)
        self._train(fit, objective, "warm-up", epochs, self._rate(), watch=False)
        return start._replace(centers=objective.centers.detach(), nearest=True)

    def _concrete(self, fit: Fit, start: Start, held: Tensor | None) -> Concrete:
        scales = self._scales(fit, start)
        auto = self.sigma == "auto"
        sigma2 = (
            AUTO_SIGMA2[self.objective] * scales.within
            if auto
            else torch.full_like(scales.within, float(self.sigma) ** 2)
        )
        balance = AUTO_BALANCE[self.objective] if self.balance == "auto" else float(self.balance)
        objective = Concrete(
            fit.network,
            start.centers,
            scales,
            form=self.objective,
            sigma2=sigma2,
            weight=self._weight(),
            balance=balance,
            held=held,
            augment=self._augmentation(fit),
        )
        self._last = objective
        return objective

    def _scales(self, fit: Fit, start: Start) -> Scales:
        """Of the code and the partition at the start."""
        model = fit.model(start.centers, torch.ones_like(start.centers[:, 0, 0]))
        codes = model.codes(fit.rows)
        spread = codes.var(1, correction=0).sum(-1)
        own = start.centers.gather(1, start.labels.unsqueeze(-1).expand(-1, -1, codes.shape[-1]))
        within = ((codes - own) ** 2).sum(-1).mean(-1)
        sizes = (
            torch.stack([torch.bincount(own, minlength=self.n_clusters) for own in start.labels])
            / codes.shape[1]
        )
        return Scales(
            # no cluster is a point: sigma and lambda would have no scale
            within.clamp_min(1e-6).maximum(1e-4 * spread),
            spread.clamp_min(1e-6),
            model.reconstruction_error(fit.rows).clamp_min(1e-6),
            sizes.to(codes.dtype),
        )

    def _temperature(self, n_steps: int) -> Callable[[int], float]:
        return Annealed(*start_and_end("temperature", self.temperature), n_steps)

    def _sigma2(self, fit: Fit, centers: Tensor) -> Tensor:
        """Sigma of Eq. 5 as training had it, in the units of the code as it is now."""
        objective: Concrete | None = self.__dict__.pop("_last", None)
        if objective is None:
            return super()._sigma2(fit, centers)
        sigma2 = objective.sigma.square()
        if self.objective == "scaled":
            codes = fit.model(centers, sigma2).codes(fit.rows)
            sigma2 = sigma2 * codes.var(1, correction=0).sum(-1) / objective.scales.spread
        return sigma2.clamp_min(torch.finfo(sigma2.dtype).tiny)


class AutoencoderKMeans(DeepClusterer):
    """AE+KM"""

    _defaults: ClassVar[Defaults] = Defaults(epochs=0, learning_rate=1e-3)

    def _joint(self, fit: Fit, start: Start) -> Tensor:  # noqa: ARG002
        return start.centers


class DEC(DeepClusterer):
    """DEC"""

    _defaults: ClassVar[Defaults] = Defaults(
        epochs=100, learning_rate=1e-2, optimizer="sgd", tol=1e-3
    )
    _kernel = "student"

    def _objective(self, fit: Fit, start: Start) -> DeepObjective:
        return EmbeddedClustering(
            fit.network,
            start.centers,
            fit.rows,
            refresh_every=self._refresh_every(fit),
            augment=self._augmentation(fit),
        )

    def _refresh_every(self, fit: Fit) -> int:
        return 140

    def _sigma2(self, fit: Fit, centers: Tensor) -> Tensor:  # noqa: ARG002
        return torch.ones_like(centers[:, 0, 0])


class IDEC(DEC):
    """IDEC"""

    _defaults: ClassVar[Defaults] = Defaults(
        epochs=100, learning_rate=1e-3, clustering_weight=0.1, tol=1e-3
    )

    def _objective(self, fit: Fit, start: Start) -> DeepObjective:
        return EmbeddedClustering(
            fit.network,
            start.centers,
            fit.rows,
            refresh_every=self._refresh_every(fit),
            weight=self._weight(),
            augment=self._augmentation(fit),
        )


class DCN(DeepClusterer):
    """DCN"""

    _defaults: ClassVar[Defaults] = Defaults(
        epochs=50, learning_rate=1e-3, clustering_weight=0.1, tol=1e-4, patience=10
    )

    def _objective(self, fit: Fit, start: Start) -> DeepObjective:
        return AlternatingClustering(
            fit.network,
            start.centers,
            start.labels,
            weight=self._weight(),
            augment=self._augmentation(fit),
        )


class DKM(DeepClusterer):
    """DKM"""

    _defaults: ClassVar[Defaults] = Defaults(
        epochs=100, learning_rate=1e-3, clustering_weight=1.0, patience=None
    )

    def _objective(self, fit: Fit, start: Start) -> DeepObjective:
        return SoftClustering(
            fit.network, start.centers, weight=self._weight(), augment=self._augmentation(fit)
        )

    def _temperature(self, n_steps: int) -> Callable[[int], float]:
        return InverseTemperatures(n_steps)
