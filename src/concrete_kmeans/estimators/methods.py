"""The deep methods, each a few lines over the shared estimator and its objective."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
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
    untrained,
    watched,
)
from concrete_kmeans.estimators.inputs import Schedule, start_and_end
from concrete_kmeans.metrics import ari
from concrete_kmeans.objectives.concrete import Concrete, Form, Scales
from concrete_kmeans.objectives.dcn import AlternatingClustering
from concrete_kmeans.objectives.dec import EmbeddedClustering
from concrete_kmeans.objectives.deep import DeepObjective, LabelsLearned
from concrete_kmeans.objectives.dkm import InverseTemperatures, SoftClustering
from concrete_kmeans.starts import Start, consensus, from_labels
from concrete_kmeans.training import Annealed, Callback, Precision
from concrete_kmeans.validation import (
    check_choice,
    check_not_negative,
    check_positive,
    is_auto,
    shown,
)

__all__ = ["DCN", "DEC", "DKM", "IDEC", "AutoencoderKMeans", "DeepConcreteKMeans"]

#: ``sigma="auto"``, squared.
AUTO_SIGMA2: dict[Form, float] = {"scaled": 0.15, "paper": 0.05}
#: ``balance="auto"``.
AUTO_BALANCE: dict[Form, float] = {"scaled": 1.0, "paper": 0.0}
#: Epochs, and steps, at most, that hand a partition over to the network; they end when this part
#: of the rows has its centre nearest.
WARM_UP_EPOCHS, WARM_UP_STEPS, LEARNED = 30, 3000, 0.999
#: Steps between two targets of DEC and IDEC.
REFRESH_EVERY = 140


class DeepConcreteKMeans(DeepClusterer):
    r"""Hard k-means in an embedding that is learned with it.

    An autoencoder is pretrained, a first partition of its code is found without labels, and then
    encoder, decoder and centres are trained together through sampled hard assignments (Algorithm 1
    of the paper). Every default holds for any data; none was chosen with labels.

    Parameters
    ----------
    n_clusters : int, default=8
        Number of clusters.
    objective : {"scaled", "paper"}, default="scaled"
        ``"paper"`` is Eq. 8 as printed, from a k-means++ start. ``"scaled"`` measures distances
        relative to the spread of the code, so that it cannot win by shrinking it, and keeps
        clusters from swallowing each other by ``balance``.
    encoder : {"auto", "mlp", "residual", "conv"}, widths, nn.Module or callable, default="auto"
        Widths such as ``(500, 500, 2000, 10)`` make an MLP; the last is the size of the code.
        ``"auto"`` is ``"mlp"``: 500-500-10, less for few rows. ``"residual"`` begins as PCA.
        ``"conv"`` is for images. A module maps rows (B, ...) to codes (B, d); a callable without
        arguments returns one, called for each restart.
    decoder : "auto", widths, nn.Module or callable, default="auto"
        ``"auto"`` mirrors the encoder. Widths are those of the hidden layers, from the code out.
    pretrained : fitted deep estimator, optional
        Take its autoencoders (restart r for restart r) and its scaling instead of pretraining.
    pretrain_epochs : int or "auto", default="auto"
        Passes over the rows that train the autoencoder alone; 50, more for few rows.
    epochs : int or "auto", default="auto"
        Passes of joint training at most; 60, more for few rows. Training stops when the
        clusters rest (``tol``).
    batch_size : int, default=256
    pretrain_learning_rate, learning_rate : float or (start, end), default=1e-3 and "auto"
        Of Adam; a pair falls exponentially. ``"auto"`` is 3e-4.
    clustering_weight : float or "auto", default="auto"
        Lambda of Eq. 8; in the scaled form relative to (reconstruction / within-cluster distance)
        at the start. ``"auto"`` is 5, and 0.3 for ``"paper"``.
    balance : float or "auto", default="auto"
        Pull of the mean assignment towards the cluster sizes of the start. ``"auto"`` is 1, and 0
        for ``"paper"``.
    sigma : float or "auto", default="auto"
        Width of Eq. 5, over the root mean squared distance to the own centre at the start: nobody
        knows the units of a code before it is learned. ``"auto"`` is the root of 0.15 (``"paper"``:
        0.05).
    temperature : float or (start, end), default=(1.0, 0.1)
        Tau of Eq. 6, falling exponentially over the joint epochs.
    init : {"auto", "k-means++", "mixture", "graph", "consensus"}, centers or labels, default="auto"
        The first partition of the code. ``"k-means++"`` is the paper's (10 draws, Lloyd);
        ``"mixture"`` a full-covariance Gaussian mixture; ``"graph"`` the normalised cut of a
        neighbour graph of the whitened code; ``"consensus"`` k-means on the votes of six
        partitions of rows and code. ``"auto"`` is ``"consensus"``, or ``"k-means++"`` for
        ``objective="paper"``. Or centres (n_clusters, code size), or whole-number labels
        (n_samples,), or one set of either for each restart.
    n_init : int, default=1
        Restarts, trained together.
    choose : {"agreement", "consensus"}, default="agreement"
        Which restart is kept, without labels: the one that agrees best with the others; or, of
        three or more, the one that agrees best with a consensus of all (k-means on their votes),
        trained on until it gives that consensus.
    scale : {"auto", "global", "standard", "none"}, default="auto"
        Centre the features and divide all by one number, or each by its own standard deviation.
        ``"auto"`` decides by how unequal their variances are.
    normalize : bool or "auto", default="auto"
        Compare codes by direction alone, scaled to unit length. ``"auto"`` does so where all rows
        have one length, as tf-idf and many embeddings do (not for ``objective="paper"``).
    augment : callable or {"image", "noise", "dropout"}, optional
        Gives another view of each batch to train on; assignments come from the rows themselves.
        A callable takes rows (R, B, n_features), and generators if it has a parameter of that name.
    tol : float or "auto", default="auto"
        A restart is at rest when at most this part of the rows changed its cluster in an epoch;
        1e-4, five epochs in a row, by default.
    clip_norm : float, optional
        Largest norm of a restart's gradient.
    stacking : {"vmap", "loop"}, default="vmap"
        How restarts of convolutions and of your modules run: batched by ``torch.func``, or one
        after another, which takes any module.
    device : str or torch.device, default="auto"
        A tensor is computed where it is; anything else on CUDA if there is any.
    precision : {"float32", "tf32", "bfloat16", "float64"}, default="float32"
        Of products in training; with ``"bfloat16"``, also of the encoder in ``predict`` and its
        like. Weights, distances and losses are float32 at least.
    callbacks : list of callables, optional
        Called with a :class:`concrete_kmeans.training.Event` about once an epoch (in the joint
        phase of DEC and IDEC every 140 steps); one that returns True ends the phase.
    checkpoint : str or Path, optional
        Folder for checkpoints, of one fit at a time. A fit that was stopped goes on from it when
        ``fit`` is called with the same parameters and rows, and ends with the weights of one that
        was not: bit for bit on the same machine. Ctrl-C and SIGTERM write one more and raise
        :class:`concrete_kmeans.training.Interrupted`; what is trained so far can be used. A
        checkpoint of other parameters or rows is refused; those of a fit that has ended are
        removed. Callbacks are told only of what is still to come.
    checkpoint_every : float, default=5.0
        Minutes between two checkpoints: what a fit that is killed loses at most.
    verbose : int, default=0
        Above 0, a progress bar on a terminal.
    random_state : int, RandomState or None, default=None
        Restart ``r`` is seeded with ``random_state + r``, and is what that seed gives alone. No
        global random state is read or written; None draws a fresh seed.

    Attributes
    ----------
    labels_ : array or Tensor of shape (n_samples,)
        ``predict`` of the training rows.
    cluster_centers_ : array or Tensor of shape (n_clusters, code size)
        In the code; :meth:`decode_centers` gives them in the units of the rows.
    inertia_ : float
        Sum of squared distances in the code to the nearest centre.
    n_iter_ : int
        Gradient steps after pretraining.
    restarts_ : list of DeepRestart
        Label-free scores, labels and centres of every restart.
    best_restart_ : int
        The one that was kept.
    model_ : Model
        Networks, centres and scaling of all restarts.
    history_ : list of Event
        Losses by phase, about once an epoch.
    n_features_in_ : int
    feature_names_in_ : array of str
        Only for input whose columns have names.
    feature_shape_ : tuple of int
        Shape of a row.

    See Also
    --------
    ConcreteKMeans : Without a network.
    ConcreteKMeansLayer : The same inside a network of yours.

    Examples
    --------
    >>> from sklearn.datasets import make_blobs
    >>> from concrete_kmeans import DeepConcreteKMeans
    >>> X, y = make_blobs(200, n_features=8, centers=3, random_state=0)
    >>> model = DeepConcreteKMeans(3, encoder=(32, 2), epochs=5, random_state=0).fit(X)
    >>> sorted(int(sum(model.labels_ == k)) for k in range(3))
    [66, 67, 67]
    >>> model.transform(X[:5]).shape, model.decode_centers().shape
    ((5, 2), (3, 8))
    """

    _defaults: ClassVar[Defaults] = Defaults(
        epochs=60,
        learning_rate=3e-4,
        clustering_weight=5.0,
        init="consensus",
        tol=1e-4,
        patience=5,
        normalize=True,
    )
    _paper: ClassVar[Defaults] = Defaults(
        epochs=60, learning_rate=3e-4, clustering_weight=0.3, tol=1e-4, patience=5
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
        choose: Literal["agreement", "consensus"] = "agreement",
        scale: Scale = "auto",
        normalize: bool | Auto = "auto",
        augment: Any = None,
        tol: float | Auto = "auto",
        clip_norm: float | None = None,
        stacking: Literal["vmap", "loop"] = "vmap",
        device: str | torch.device = "auto",
        precision: Precision = "float32",
        callbacks: Sequence[Callback] | None = None,
        checkpoint: str | Path | None = None,
        checkpoint_every: float = 5.0,
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
            normalize=normalize,
            augment=augment,
            tol=tol,
            clip_norm=clip_norm,
            stacking=stacking,
            device=device,
            precision=precision,
            callbacks=callbacks,
            checkpoint=checkpoint,
            checkpoint_every=checkpoint_every,
            verbose=verbose,
            random_state=random_state,
        )
        self.objective = objective
        self.balance = balance
        self.sigma = sigma
        self.choose = choose
        self.temperature = temperature

    def _check_params(self) -> None:
        check_choice("objective", self.objective, get_args(Form))
        check_choice("choose", self.choose, ("agreement", "consensus"))
        super()._check_params()
        start_and_end("temperature", self.temperature)
        if not is_auto(self.sigma):
            check_positive("sigma", self.sigma, also="'auto'")
        if not is_auto(self.balance):
            check_not_negative("balance", self.balance, also="'auto'")

    def _method_defaults(self) -> Defaults:
        return self._paper if self.objective == "paper" else self._defaults

    def _objective(self, fit: Fit, start: Start) -> DeepObjective:
        if not all(start.nearest):
            start = Start(*fit.once("warm-up", lambda: self._warm_up(fit, start)))
        objective = self._concrete(fit, start, held=None)
        fit.widths = objective.sigma.square(), objective.scales.spread
        return objective

    def _agree(self, fit: Fit, centers: Tensor) -> tuple[Tensor, int | None]:
        sound = [r for r, failed in enumerate(fit.failed) if not failed]
        if self.choose == "agreement" or fit.over or len(sound) < 3:
            return centers, None
        labels, _ = fit.model(centers, torch.ones_like(centers[:, 0, 0])).assign(fit.sample)
        shared = consensus(labels[sound], self.n_clusters, fit.generators[sound[0]])  # (N,)
        host = shared.cpu().numpy()
        best = max(sound, key=lambda r: ari(host, labels[r].cpu().numpy()))
        # of one restart only: the others stay what their seeds give
        network = fit.network.select([best])
        one = replace(
            fit,
            network=network,
            seeds=[fit.seeds[best]],
            generators=[fit.generators[best]],
            gains=[fit.gains[best]],
            status=["done"],
            n_iter=[fit.n_iter[best]],
        )
        codes = untrained(one).codes(fit.sample)
        start = self._warm_up(one, from_labels(codes, shared.unsqueeze(0), self.n_clusters))
        every, own = fit.network.state_dict(), network.state_dict()  # not copies
        for name, state in every.items():
            state[best] = own[name][0]
        centers = centers.clone()
        centers[best] = start.centers[0]
        fit.n_iter[best], fit.interrupted = one.n_iter[0], one.interrupted
        return centers, best

    def _warm_up(self, fit: Fit, start: Start) -> Start:
        """Teach networks a partition whose nearest centres are not its own."""
        objective = self._concrete(fit, start, held=start.labels)
        n = int(fit.sample.shape[0])
        most = -(-WARM_UP_STEPS * int(self.batch_size) // n)
        epochs = epochs_for(n, self.batch_size, min(WARM_UP_EPOCHS, most))
        rate = start_and_end("pretrain_learning_rate", self.pretrain_learning_rate)
        index = watched(fit.sample)
        learned = LabelsLearned(objective, fit.sample[index], start.labels[:, index], LEARNED)
        untaught = [not nearest for nearest in start.nearest]
        self._train(
            fit,
            objective,
            "warm-up",
            epochs,
            rate,
            learned,
            rows=fit.sample,
            restarts=untaught,
        )
        return start._replace(centers=objective.centers.detach(), nearest=(True,) * len(untaught))

    def _concrete(self, fit: Fit, start: Start, held: Tensor | None) -> Concrete:
        scales = self._scales(fit, start)
        relative = AUTO_SIGMA2[self.objective] if self.sigma == "auto" else float(self.sigma) ** 2
        balance = AUTO_BALANCE[self.objective] if self.balance == "auto" else float(self.balance)
        return Concrete(
            fit.network,
            start.centers,
            scales,
            form=self.objective,
            sigma2=relative * scales.within,
            weight=self._weight(),
            balance=balance,
            held=held,
            augment=self._augmentation(fit),
        )

    def _scales(self, fit: Fit, start: Start) -> Scales:
        """Of the code and the partition at the start."""
        model = fit.model(start.centers, torch.ones_like(start.centers[:, 0, 0]))
        codes = model.codes(fit.sample)
        spread = codes.var(1, correction=0).sum(-1)
        own = start.centers.gather(1, start.labels.unsqueeze(-1).expand(-1, -1, codes.shape[-1]))
        within = ((codes - own) ** 2).sum(-1).mean(-1)
        counts = [torch.bincount(own, minlength=self.n_clusters) for own in start.labels]
        return Scales(
            # no cluster is a point: sigma and lambda would have no scale
            within.clamp_min(1e-6).maximum(1e-4 * spread),
            spread.clamp_min(1e-6),
            model.reconstruction_error(fit.sample).clamp_min(1e-6),
            torch.stack(counts).to(codes.dtype) / codes.shape[1],
        )

    def _temperature(self, n_steps: int) -> Callable[[int], float]:
        return Annealed(*start_and_end("temperature", self.temperature), n_steps)

    def _sigma2(self, fit: Fit, centers: Tensor) -> Tensor:
        """Sigma of Eq. 5 as training had it, in the units of the code as it is now."""
        if fit.widths is None:  # no joint phase
            return super()._sigma2(fit, centers)
        sigma2, spread = fit.widths
        if self.objective == "scaled":
            codes = fit.model(centers, sigma2).codes(fit.sample)
            sigma2 = sigma2 * codes.var(1, correction=0).sum(-1) / spread
        return sigma2.clamp_min(torch.finfo(sigma2.dtype).tiny)


class AutoencoderKMeans(DeepClusterer):
    """An autoencoder, then k-means on its code: AE+KM of the paper's Table 2.

    Parameters and attributes are those of :class:`DeepConcreteKMeans`. There is no joint phase:
    ``epochs``, ``learning_rate``, ``tol`` are accepted, so that methods can be exchanged, and have
    no part. ``init="auto"`` is ``"k-means++"``.

    Examples
    --------
    >>> import numpy as np
    >>> from concrete_kmeans import DEC, AutoencoderKMeans
    >>> X = np.random.default_rng(0).normal(size=(64, 6))
    >>> ae = AutoencoderKMeans(2, encoder=(16, 2), pretrain_epochs=3, random_state=0).fit(X)
    >>> ae.reconstruct(X).shape
    (64, 6)
    >>> dec = DEC(2, pretrained=ae, epochs=2, random_state=0).fit(X)  # no second pretraining
    """

    _defaults: ClassVar[Defaults] = Defaults(epochs=0, learning_rate=1e-3)


class DEC(DeepClusterer):
    """Deep embedded clustering (Xie, Girshick, Farhadi 2016).

    Parameters and attributes are those of :class:`DeepConcreteKMeans`, without its
    ``objective``, ``balance``, ``sigma`` and ``temperature``. The target is computed over all rows
    every 140 steps. ``"auto"`` values: SGD with momentum 0.9 and ``learning_rate=0.01``, at most
    100 epochs, ``tol=1e-3``, ``init="k-means++"``. There is no ``clustering_weight``.
    """

    _defaults: ClassVar[Defaults] = Defaults(
        epochs=100, learning_rate=1e-2, optimizer="sgd", tol=1e-3
    )
    _kernel = "student"

    def _check_params(self) -> None:
        super()._check_params()
        if self._gamma() is None and not is_auto(self.clustering_weight):
            raise ValueError(
                "clustering_weight must be 'auto': DEC minimises one term; IDEC weighs two, "
                f"got {shown(self.clustering_weight)}"
            )

    def _gamma(self) -> float | None:
        """Weight of the divergence beside the reconstruction; None for no reconstruction."""
        return None

    def _objective(self, fit: Fit, start: Start) -> DeepObjective:
        return EmbeddedClustering(
            fit.network,
            start.centers,
            fit.rows,
            refresh_every=REFRESH_EVERY,
            weight=self._gamma(),
            augment=self._augmentation(fit),
        )

    def _sigma2(self, fit: Fit, centers: Tensor) -> Tensor:  # noqa: ARG002
        return torch.ones_like(centers[:, 0, 0])


class IDEC(DEC):
    """DEC with the decoder kept in training (Guo, Gao, Liu, Yin 2017).

    As :class:`DEC`, but Adam with ``learning_rate=1e-3``; ``clustering_weight`` is gamma, 0.1.
    """

    _defaults: ClassVar[Defaults] = Defaults(
        epochs=100, learning_rate=1e-3, clustering_weight=0.1, tol=1e-3
    )

    def _gamma(self) -> float | None:
        return self._weight()


class DCN(DeepClusterer):
    """Deep clustering network (Yang, Fu, Sidiropoulos, Hong 2017).

    Parameters and attributes are those of :class:`DeepConcreteKMeans`, without its
    ``objective``, ``balance``, ``sigma`` and ``temperature``. ``"auto"`` values: 50 epochs of Adam
    with ``learning_rate=1e-3``, lambda ``clustering_weight=0.1``, ``init="k-means++"``.
    """

    _defaults: ClassVar[Defaults] = Defaults(
        epochs=50, learning_rate=1e-3, clustering_weight=0.1, tol=1e-4, patience=5
    )

    def _objective(self, fit: Fit, start: Start) -> DeepObjective:
        labels = start.labels
        if fit.sampled is not None:  # the method keeps the cluster of every row
            model = fit.model(start.centers, torch.ones_like(start.centers[:, 0, 0]))
            labels = model.evaluate(fit.rows, decode=False).labels.long()
        return AlternatingClustering(
            fit.network,
            start.centers,
            labels,
            weight=self._weight(),
            augment=self._augmentation(fit),
        )


class DKM(DeepClusterer):
    """Deep k-means with an annealed softmax (Moradi Fard, Thonet, Gaussier 2020).

    Parameters and attributes are those of :class:`DeepConcreteKMeans`, without its
    ``objective``, ``balance``, ``sigma`` and ``temperature``. ``"auto"`` values: 100 epochs of Adam
    with ``learning_rate=1e-3``, lambda ``clustering_weight=1``, ``init="k-means++"``. The
    annealing is its schedule: it does not stop early.
    """

    _defaults: ClassVar[Defaults] = Defaults(
        epochs=100, learning_rate=1e-3, clustering_weight=1.0, patience=None
    )

    def _objective(self, fit: Fit, start: Start) -> DeepObjective:
        return SoftClustering(
            fit.network, start.centers, weight=self._weight(), augment=self._augmentation(fit)
        )

    def _temperature(self, n_steps: int) -> Callable[[int], float]:
        return InverseTemperatures(n_steps)
