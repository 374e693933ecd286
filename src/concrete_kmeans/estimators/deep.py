"""What the deep estimators share: data in, Algorithm 1 of the paper in phases, results out."""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Self, TypeAlias, TypeVar, cast, get_args

import numpy as np
import torch
from sklearn.base import (
    BaseEstimator,
    ClassNamePrefixFeaturesOutMixin,
    ClusterMixin,
    TransformerMixin,
)
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from concrete_kmeans import processes, storage
from concrete_kmeans.augment import resolve_augment
from concrete_kmeans.checkpoints import (
    Checkpoints,
    check_folder,
    digest_tensors,
    pack,
    team_folder,
    unpack,
)
from concrete_kmeans.data import (
    Batches,
    Moments,
    Scaled,
    Scaling,
    Source,
    Subset,
    Without,
    check_batch_size,
    check_tensor,
    detached,
    feature_moments,
    fit_scaling,
    from_path,
    open_rows,
    pieces,
    resolve_device,
    stream_of,
    streams,
)
from concrete_kmeans.estimators.inputs import (
    Array,
    Schedule,
    check_features,
    check_seed,
    like_input,
    seed_from,
    start_and_end,
    validated,
)
from concrete_kmeans.estimators.reporting import ReportMixin
from concrete_kmeans.estimators.saving import SaveMixin
from concrete_kmeans.lloyd import Rows
from concrete_kmeans.metrics import pairwise_ari
from concrete_kmeans.model import Model
from concrete_kmeans.modes import plain
from concrete_kmeans.networks import (
    Autoencoder,
    build_autoencoder,
    default_widths,
    principal_components,
)
from concrete_kmeans.objectives.deep import ClusterWatch, DeepObjective, Reconstruction
from concrete_kmeans.progress import progress_bar
from concrete_kmeans.starts import (
    MAX_ROWS,
    STARTS,
    Start,
    code_gain,
    find_start,
    from_centers,
    from_labels,
)
from concrete_kmeans.training import (
    Annealed,
    Callback,
    Event,
    Interrupted,
    Monitor,
    Precision,
    Settings,
    train,
)
from concrete_kmeans.validation import (
    check_choice,
    check_not_negative,
    check_positive,
    check_positive_int,
    check_sizes,
    check_whole,
    is_auto,
    shown,
)

__all__ = ["ClusterCollapseWarning", "DeepClusterer", "DeepRestart", "Defaults", "Fit"]

logger = logging.getLogger(__name__)

T = TypeVar("T")
Auto: TypeAlias = Literal["auto"]
EncoderSpec: TypeAlias = str | Sequence[int] | nn.Module | Callable[[], nn.Module]
Scale: TypeAlias = Literal["auto", "none", "global", "standard"]

#: What ``init`` may say.
INITS = ("auto", *STARTS)
#: What ``encoder`` may say.
ENCODERS = ("auto", "mlp", "residual", "conv")
#: Epochs of pretraining; and steps of a phase, at least, where rows are few.
PRETRAIN_EPOCHS, LEAST_TRAINING_STEPS = 50, 150
#: ``scale="auto"``: part of the features that carry the variance under which each gets a factor of
#: its own; and part that has one minimum from which they are taken for pixels or counts.
FEW_FEATURES, SHARED_MINIMUM = 0.2, 0.9
#: ``normalize="auto"``: rows have one length if theirs, of so many rows, differ by less than this
#: part of it.
LENGTHS, ONE_LENGTH = 1000, 0.01
#: Types that hold no NaN, and are read as they are.
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool)
#: Rows of which none is kept out of pretraining.
FEW_ROWS = 50
#: Parameters that have no part in what a fit computes: a checkpoint may be of others.
NO_PART = ("callbacks", "checkpoint", "checkpoint_every", "verbose")
#: Rows whose clusters are compared between checks; and steps between checks, at least and at most.
WATCHED_ROWS, LEAST_STEPS, MOST_STEPS = 4096, 8, 10_000
#: Rows of a stream that starts and scales are found on, unless so many bytes are fewer; and every
#: how many of them is kept out of pretraining.
SAMPLE_ROWS, SAMPLE_BYTES, HELD_EVERY = 2**15, 256 * 2**20, 8


class ClusterCollapseWarning(UserWarning):
    """Clusters merged, the code shrank or a loss was not finite; the last good state is kept."""


@dataclass(frozen=True)
class Defaults:
    """What a method puts for ``"auto"``."""

    epochs: int
    learning_rate: Schedule
    clustering_weight: float = 1.0
    optimizer: Literal["adam", "sgd"] = "adam"
    init: str = "k-means++"
    tol: float = 1e-3
    patience: int | None = 1
    """Checks at rest before a restart stops; None to run all epochs."""
    normalize: bool = False
    """Whether the code of rows of one length is compared by direction."""


class DeepRestart(NamedTuple):
    """One of the ``n_init`` restarts of a fit."""

    seed: int
    """``random_state=seed`` with ``n_init=1`` repeats this restart alone."""
    inertia: float
    """Sum of squared distances in the code to the nearest centre."""
    reconstruction: float
    """Mean squared error of a row, summed over features, in scaled units."""
    agreement: float
    """Mean adjusted Rand index with the other restarts; NaN where there are none."""
    n_iter: int
    """Gradient steps after pretraining."""
    status: str
    """``"done"``, ``"collapsed: <how>"``, or ``"failed in <phase> at step <step>"``."""
    labels: Array
    cluster_centers: Array


@dataclass
class Fit:
    """A fit under way."""

    rows: Rows
    sample: Rows
    """What is found without training is found on these: of a stream, evenly spread ones."""
    scaling: Scaling
    feature_shape: tuple[int, ...]
    seeds: list[int]
    generators: list[torch.Generator]
    network: Autoencoder
    defaults: Defaults
    given: Tensor | None
    """The user's labels (R, N) or centres (R, K, d)."""
    gains: list[float]
    """What the code of each restart is worth, below 1 if more than a linear one's."""
    widths: tuple[Tensor, Tensor] | None = None
    """Square of sigma in Eq. 5, and variance of the code it was found for, (R,) each."""
    checkpoints: Checkpoints | None = None
    history: list[Event] = field(default_factory=list)
    status: list[str] = field(default_factory=list)
    n_iter: list[int] = field(default_factory=list)
    interrupted: Interrupted | None = None

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return int(self.rows.shape[0])

    @property
    def sampled(self) -> Tensor | None:
        """Numbers of the rows of the sample, if it is not all rows."""
        return None if self.sample is self.rows else sample_numbers(self.rows)

    @property
    def failed(self) -> list[bool]:
        """Restarts whose loss was not finite."""
        return [status.startswith("failed") for status in self.status]

    @property
    def over(self) -> bool:
        """Whether there is nothing left to train."""
        return self.interrupted is not None or all(self.failed)

    def model(self, centers: Tensor, sigma2: Tensor) -> Model:
        """Of the networks as they are."""
        return Model(self.network, centers, self.scaling, sigma2, self.gains)

    def once(self, part: str, work: Callable[[], T]) -> T:
        """Result of a part of the fit; of one that a checkpoint holds, without doing it again."""
        checkpoints = self.checkpoints
        if checkpoints is None:
            return work()
        if part in checkpoints.finished:
            return cast("T", checkpoints.finished[part])
        try:
            result = work()
        except KeyboardInterrupt:  # outside the loop, which knows how to end
            checkpoints.catch_up()
            raise
        if self.interrupted is None:
            checkpoints.finish(part, result, self.state())
        return result

    def state(self) -> dict[str, Any]:
        """All that parts of the fit change besides their results, as a copy."""
        return {
            "seeds": self.seeds,
            "network": {n: t.detach().clone() for n, t in self.network.state_dict().items()},
            "generators": [generator.get_state() for generator in self.generators],
            "gains": list(self.gains),
            "widths": self.widths,
            "history": [asdict(event) for event in self.history],
            "status": list(self.status),
            "n_iter": list(self.n_iter),
        }

    def of_all_teams(self, centers: Tensor) -> tuple[Fit, Tensor]:
        """With the restarts of all teams of processes, and their centres (R, K, d).

        What is left to do is no part of a checkpoint then: those of the teams are of their own
        restarts.
        """
        if processes.n_teams() == 1:
            return self, centers
        number = 0 if self.interrupted is None else self.interrupted.signal
        own = {**self.state(), "centers": centers, "signal": number}
        parts = [unpack(data, centers.device) for data in processes.exchange(pack(own))]
        lists = {
            name: [value for part in parts for value in part[name]]
            for name in ("seeds", "generators", "gains", "status", "n_iter")
        }
        widths = [part["widths"] for part in parts]
        state = {
            **lists,
            "network": {
                name: torch.cat([part["network"][name] for part in parts])
                for name in own["network"]
            },
            "widths": None if None in widths else tuple(map(torch.cat, zip(*widths, strict=True))),
            "history": joined_histories(
                [part["history"] for part in parts], [len(part["seeds"]) for part in parts]
            ),
        }
        R, number = len(lists["seeds"]), max(part["signal"] for part in parts)
        whole = replace(
            self,
            network=self.network.select([0] * R),
            seeds=lists["seeds"],
            generators=[torch.Generator(centers.device) for _ in range(R)],
            given=None,
            checkpoints=None,
        )
        whole.restore(state)
        if number:
            whole.interrupted = Interrupted.elsewhere(torch.tensor(whole.n_iter), number)
        return whole, torch.cat([part["centers"] for part in parts])

    @torch.no_grad()
    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state` of another fit gave."""
        own, found = self.network.state_dict(), state["network"]  # not copies
        if {n: t.shape for n, t in own.items()} != {n: t.shape for n, t in found.items()}:
            raise ValueError("the checkpoint is of another fit: the networks have other shapes")
        for name, tensor in own.items():
            tensor.copy_(found[name])
        for generator, drawn in zip(self.generators, state["generators"], strict=True):
            generator.set_state(drawn.cpu())
        self.gains, self.widths = state["gains"], state["widths"]
        self.history = [Event(**event) for event in state["history"]]
        self.status, self.n_iter = state["status"], state["n_iter"]


class DeepClusterer(
    ReportMixin,
    SaveMixin,
    ClassNamePrefixFeaturesOutMixin,  # type: ignore[misc]
    TransformerMixin,  # type: ignore[misc]
    ClusterMixin,  # type: ignore[misc]
    BaseEstimator,  # type: ignore[misc]
):
    """Base of the estimators that learn an embedding and its clusters.

    A method says what it minimises in the joint phase (:meth:`_objective`) and what its ``"auto"``
    values are (:attr:`_defaults`). Parameters, attributes and methods are documented at
    :class:`concrete_kmeans.DeepConcreteKMeans`.
    """

    _defaults: ClassVar[Defaults]
    _kernel: ClassVar[Literal["gaussian", "student"]] = "gaussian"
    #: Whether checkpoints stay when a fit has ended: for who has more to do before nothing is lost.
    leaves_checkpoints: bool = False

    def __init__(
        self,
        n_clusters: int = 8,
        *,
        encoder: EncoderSpec = "auto",
        decoder: EncoderSpec = "auto",
        pretrained: DeepClusterer | None = None,
        pretrain_epochs: int | Auto = "auto",
        epochs: int | Auto = "auto",
        batch_size: int = 256,
        pretrain_learning_rate: Schedule = 1e-3,
        learning_rate: Schedule | Auto = "auto",
        clustering_weight: float | Auto = "auto",
        init: Any = "auto",
        n_init: int = 1,
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
        self.n_clusters = n_clusters
        self.encoder = encoder
        self.decoder = decoder
        self.pretrained = pretrained
        self.pretrain_epochs = pretrain_epochs
        self.epochs = epochs
        self.batch_size = batch_size
        self.pretrain_learning_rate = pretrain_learning_rate
        self.learning_rate = learning_rate
        self.clustering_weight = clustering_weight
        self.init = init
        self.n_init = n_init
        self.scale = scale
        self.normalize = normalize
        self.augment = augment
        self.tol = tol
        self.clip_norm = clip_norm
        self.stacking = stacking
        self.device = device
        self.precision = precision
        self.callbacks = callbacks
        self.checkpoint = checkpoint
        self.checkpoint_every = checkpoint_every
        self.verbose = verbose
        self.random_state = random_state

    # ----------------------------------------------------------------------------------------------
    # fitting

    @plain()
    def fit(self, X: Any, y: object = None) -> Self:  # noqa: ARG002
        """Learn the embedding and its clusters.

        Where a process group of torch.distributed is initialised, all its processes have to call it
        with the same arguments: they share the work, and all get the result.

        Parameters
        ----------
        X : array, DataFrame, CSR matrix, Tensor, Dataset, Parquet or path of n_samples rows
            Rows may have more than one axis, as images do. A memmap, a map-style Dataset or
            :class:`~concrete_kmeans.Parquet` of more than 256 MiB is streamed: it may be larger
            than memory.
        y : ignored

        Returns
        -------
        self
        """
        self._check_params()
        with processes.together():
            self._fit(X)
        return self

    def _fit(self, X: Any) -> None:
        X, source = self._open(X, reset=True)
        seed = processes.number_from_first(seed_from(self.random_state))
        with processes.split(self.n_init) as own:
            fit = self._prepare(source, seed, own)
            fit.once("pretrain", lambda: self._pretrain(fit))
            start = Start(*fit.once("start", lambda: self._start(fit)))
            centers = start.centers
            if not fit.over:
                centers = fit.once("joint", lambda: self._joint(fit, start))
            checkpoints = fit.checkpoints
            fit, centers = fit.of_all_teams(centers)
        centers, best = fit.once("choice", lambda: self._agree(fit, centers))
        self._finish(X, fit, centers, best)
        ended = fit.interrupted is None and not self.leaves_checkpoints
        if checkpoints is not None and ended:
            checkpoints.remove()
        self._report_troubles(fit)
        if fit.interrupted is not None:
            raise fit.interrupted

    def _open_checkpoints(self, source: Source, own: range) -> Checkpoints | None:
        if self.checkpoint is None:
            return None
        checkpoints = Checkpoints(
            team_folder(Path(self.checkpoint), own),
            self.checkpoint_every,
            lambda: self._identity(source, own),
        )
        checkpoints.read(source.rows.device)
        return checkpoints

    def _identity(self, source: Source, own: range) -> dict[str, str]:
        """What decides the result of a fit, as short texts."""
        found = {"method": type(self).__name__}
        for name, value in self.get_params(deep=False).items():
            if name not in NO_PART:
                found[name] = _short_text(value)
        if len(own) < self.n_init:
            found["restarts of a team"] = f"{own.start} to {own.stop - 1}"
        rows = (piece for _, _, piece in pieces(source.rows))
        found["X"] = f"{source.feature_shape} on {source.rows.device} {digest_tensors(rows)}"
        return found

    def _prepare(self, source: Source, seed: int, own: range) -> Fit:
        """Of some of the restarts."""
        if source.rows.shape[0] < self.n_clusters:
            raise ValueError(
                f"n_samples={source.rows.shape[0]} should be >= n_clusters={self.n_clusters}"
            )
        resolve_augment(self.augment, source.feature_shape)  # or its error, before any work
        check_batch_size(source.rows, self.batch_size)
        processes.own(min(self.batch_size, int(source.rows.shape[0])))  # likewise
        checkpoints = self._open_checkpoints(source, own)
        if checkpoints is not None and checkpoints.state:
            seeds = checkpoints.state["seeds"]  # a fresh seed must not be drawn again
        else:
            seeds = [seed + r for r in own]
        device = source.rows.device
        generators = [torch.Generator(device).manual_seed(s) for s in seeds]
        gains = [1.0] * len(own)
        if self.pretrained is None:
            scaling = self._fit_scaling(source.rows)
            rows = Scaled(source.rows, scaling)
            network = self._build(rows, source.feature_shape, seeds)
        else:
            network, scaling, gains = self._reuse(self.pretrained, source, own)
            rows = Scaled(source.rows, scaling)
        sample = source.rows
        if stream_of(sample) is not None:
            sample = sample[sample_numbers(sample)]
        directions = self._compares_directions(sample)
        network.set_unit(bool(processes.number_from_first(directions)))
        processes.copy_from_first(list(network.state_dict().values()))
        self.feature_shape_ = source.feature_shape
        given = self._given_init(int(rows.shape[0]), network.code_size)
        fit = Fit(
            rows,
            rows if sample is source.rows else Scaled(sample, scaling),
            scaling,
            source.feature_shape,
            seeds,
            generators,
            network,
            self._method_defaults(),
            None if given is None else given[own.start : own.stop],
            gains,
        )
        fit.status, fit.n_iter = ["done"] * len(own), [0] * len(own)
        if checkpoints is not None:
            if checkpoints.state:
                fit.restore(checkpoints.state)
            checkpoints.state = fit.state()
            fit.checkpoints = checkpoints
        return fit

    def _fit_scaling(self, rows: Rows) -> Scaling:
        kind: str = self.scale
        moments = None
        if kind == "auto":
            moments = feature_moments(rows)
            kind = choose_scale(moments)
        return fit_scaling(rows, kind, moments=moments)

    def _compares_directions(self, rows: Rows) -> bool:
        """Whether codes are scaled to unit length before they are compared."""
        if self.normalize != "auto":
            return bool(self.normalize)
        if not self._method_defaults().normalize:
            return False
        return have_one_length(rows[evenly(rows, LENGTHS)])  # dense, whatever the rows are

    def _build(self, rows: Rows, feature_shape: tuple[int, ...], seeds: list[int]) -> Autoencoder:
        encoder = (
            "mlp" if isinstance(self.encoder, str) and self.encoder == "auto" else self.encoder
        )
        principal = None
        if isinstance(encoder, str) and encoder == "residual":
            d = default_widths(int(rows.shape[1]), int(rows.shape[0]))[-1]
            principal = principal_components((piece for _, _, piece in pieces(rows)), d)
        network = build_autoencoder(
            encoder,
            self.decoder,
            feature_shape,
            seeds=seeds,
            n_rows=int(rows.shape[0]),
            principal=principal,
            stacking=self.stacking,
            dtype=rows.dtype,
            device=rows.device,
        )
        if not [*network.parameters()]:
            raise ValueError(
                "encoder and decoder have no parameters: there is nothing to train; ConcreteKMeans "
                "clusters rows as they are"
            )
        return network

    def _reuse(
        self, other: DeepClusterer, source: Source, own: range
    ) -> tuple[Autoencoder, Scaling, list[float]]:
        """Networks of a fitted estimator: restart r goes on from its restart r."""
        model = other._all_restarts()
        network = model.network
        if network.n_features != source.rows.shape[1]:
            raise ValueError(
                f"pretrained was fitted on {network.n_features} features but X has "
                f"{source.rows.shape[1]}"
            )
        if network.n_restarts < self.n_init:
            raise ValueError(
                f"pretrained has {network.n_restarts} restart(s), fewer than n_init={self.n_init}"
            )
        known, names = (getattr(e, "feature_names_in_", None) for e in (other, self))
        if known is not None and names is not None and list(known) != list(names):
            raise ValueError(
                "pretrained must have been fitted on the features of X, in their order: it has "
                f"{shown(list(known))}, X {shown(list(names))}"
            )
        network = network.select(list(own))
        network = network.to(source.rows.device, source.rows.dtype)
        return network, model.scaling, model.gains[own.start : own.stop]

    def _pretrain(self, fit: Fit) -> None:
        """Train the autoencoder on nine tenths of the rows; the rest tell its code's worth."""
        if self.pretrained is not None:
            return
        held, others = self._hold_out(fit)
        if epochs := self._pretrain_epochs(fit):
            objective = Reconstruction(fit.network, augment=self._augmentation(fit))
            rate = start_and_end("pretrain_learning_rate", self.pretrain_learning_rate)
            self._train(fit, objective, "pretrain", epochs, rate, rows=others)
        if len(held):
            rows = fit.sample[held.to(fit.rows.device)]
            errors = untrained(fit).reconstruction_error(rows)
            # of a stream, what is not held out of the sample is enough, and at hand
            spare = others if fit.sampled is None else without(fit.sample, held)
            gains = code_gain(rows, spare[evenly(spare, MAX_ROWS)], errors, fit.network.code_size)
            fit.gains = processes.from_first(gains).tolist()

    def _hold_out(self, fit: Fit) -> tuple[Tensor, Rows]:
        """Numbers, in the sample, of the rows that pretraining does not see; and the others."""
        sampled = fit.sampled
        if sampled is None:
            held = held_out(fit.rows)
            return held, without(fit.rows, held) if len(held) else fit.rows
        held = torch.arange(0, len(sampled), HELD_EVERY)
        return held, Without(fit.rows, sampled.cpu()[held])

    def _pretrain_epochs(self, fit: Fit) -> int:
        if self.pretrain_epochs != "auto":
            return int(self.pretrain_epochs)
        return epochs_for(fit.n_rows, self.batch_size, PRETRAIN_EPOCHS)

    def _start(self, fit: Fit) -> Start:
        """First partition of the code, after ``init``."""
        codes = untrained(fit).codes(fit.sample)
        if fit.given is None:
            name = fit.defaults.init if self.init == "auto" else self.init
            if fit.over:
                name = "k-means++"  # the quickest that leaves a usable estimator
            return find_start(name, fit.sample, codes, self.n_clusters, fit.generators, fit.gains)
        given = fit.given.to(codes.device)
        if given.dtype.is_floating_point:
            return from_centers(codes, given.to(codes.dtype))
        if fit.sampled is not None:
            given = given[:, fit.sampled]
        return from_labels(codes, given, self.n_clusters)

    def _given_init(self, n: int, d: int) -> Tensor | None:
        """Labels (R, N) or centres (R, K, d) of the user's; None where ``init`` names a start."""
        if isinstance(self.init, str):
            return None
        given, R, K = _numbers(self.init), self.n_init, self.n_clusters
        if not given.dtype.is_floating_point and tuple(given.shape) in ((n,), (R, n)):
            if int(given.min()) < 0 or int(given.max()) >= K:
                raise ValueError(
                    f"init as labels must be whole numbers from 0 to n_clusters - 1 = {K - 1}, "
                    f"got {int(given.min())} to {int(given.max())}"
                )
            return given.long().expand(R, n)
        if tuple(given.shape) not in ((K, d), (R, K, d)):
            raise ValueError(
                f"init must be labels of shape ({n},) or ({R}, {n}), or centers of shape "
                f"(n_clusters, code size) = ({K}, {d}) or ({R}, {K}, {d}), "
                f"got {given.dtype} of shape {tuple(given.shape)}"
            )
        if not bool(given.isfinite().all()):
            raise ValueError("init must give finite centers; it holds NaN or infinity")
        return given.double().expand(R, K, d)

    def _joint(self, fit: Fit, start: Start) -> Tensor:
        """Train networks and centres together; return the centres (R, K, d)."""
        epochs = fit.defaults.epochs if self.epochs == "auto" else int(self.epochs)
        if self.epochs == "auto" and epochs:
            epochs = epochs_for(fit.n_rows, self.batch_size, epochs)
        objective = self._objective(fit, start) if epochs else None
        if objective is None:
            return start.centers
        self._train(fit, objective, "joint", epochs, self._rate(), self._watch(fit, objective))
        return objective.centers.detach()

    def _agree(self, fit: Fit, centers: Tensor) -> tuple[Tensor, int | None]:  # noqa: ARG002
        """Bring one restart to what all say; return the centres, and which it is.

        None to keep them as they are.
        """
        return centers, None

    def _objective(self, fit: Fit, start: Start) -> DeepObjective | None:  # noqa: ARG002
        """What the joint phase minimises; None for a method without one."""
        return None

    def _temperature(self, n_steps: int) -> Callable[[int], float]:  # noqa: ARG002
        """Schedule of the joint phase."""
        return lambda _: 1.0

    def _watch(self, fit: Fit, objective: DeepObjective) -> ClusterWatch:
        return ClusterWatch(
            objective,
            fit.sample[watched(fit.sample)],
            tol=fit.defaults.tol if self.tol == "auto" else float(self.tol),
            patience=fit.defaults.patience,
            generators=fit.generators,
        )

    def _train(
        self,
        fit: Fit,
        objective: DeepObjective,
        phase: str,
        epochs: int,
        rate: tuple[float, float],
        monitor: Monitor | None = None,
        *,
        rows: Rows | None = None,
        restarts: Sequence[bool] | None = None,
    ) -> None:
        """Run a phase, of all restarts or of some, and note what became of each."""
        if fit.over:
            return
        fit.network.train()
        batches = Batches(fit.rows if rows is None else rows, None, self.batch_size, fit.generators)
        n_steps = epochs * batches.per_epoch
        joint = phase != "pretrain"
        settings = Settings(
            n_steps,
            Annealed(*rate, n_steps),
            self._temperature(n_steps) if joint else lambda _: 1.0,
            fit.defaults.optimizer if joint else "adam",
            phase=phase,
            check_every=objective.refresh_every
            or min(max(batches.per_epoch, LEAST_STEPS), MOST_STEPS),
            clip=None if self.clip_norm is None else float(self.clip_norm),
            precision=self.precision,
        )
        with progress_bar(self.verbose if processes.first() else 0, phase, n_steps) as bar:
            callbacks = [*(self.callbacks or ()), *bar]
            try:
                outcome = train(
                    objective,
                    batches,
                    settings,
                    fit.generators,
                    monitor=monitor,
                    callbacks=callbacks,
                    restarts=restarts,
                    checkpoints=fit.checkpoints,
                )
            except Interrupted as interrupted:
                fit.interrupted, outcome = interrupted, interrupted.outcome
        fit.network.eval()
        fit.history += outcome.history
        steps, failed = outcome.n_steps.tolist(), outcome.failed_at.tolist()
        for r, collapsed in enumerate(outcome.collapsed.tolist()):
            fit.n_iter[r] += steps[r] if joint else 0
            if fit.status[r] == "done" and failed[r] >= 0:
                fit.status[r] = f"failed in {phase} at step {failed[r]}"
            elif fit.status[r] == "done" and collapsed:
                found = cast("ClusterWatch", monitor).found
                fit.status[r] = "collapsed: " + (
                    "the code shrank" if bool(found.shrunk[r]) else "clusters merged"
                )
            if fit.status[r] != "done":
                logger.warning("restart %d (seed %d) %s", r, fit.seeds[r], fit.status[r])

    def _finish(self, X: Any, fit: Fit, centers: Tensor, best: int | None) -> None:
        """Choose a restart without labels, if none is named, and set the fitted attributes."""
        give, fresh = like_input(X), like_input(X, fresh=True)
        if fit.network.unit:
            fit.network.lengths.copy_(untrained(fit).mean_lengths(fit.sample))
        model = fit.model(centers.clone(), self._sigma2(fit, centers))
        model = replace(model, kernel=self._kernel, low=self.precision == "bfloat16")
        labels, inertia, reconstruction = model.evaluate(fit.rows)
        agreement = restart_agreement(labels)
        for r in (~inertia.isfinite()).nonzero()[:, 0].tolist():
            # the last step of a phase that no other follows is checked by none
            fit.status[r] = "failed after training: its code is not finite"
        if best is None or fit.failed[best]:
            best = choose_restart(labels, agreement, inertia, fit.failed)
        self.model_ = model
        self.best_restart_ = best
        self._fitted = model.select(best)
        self.restarts_ = [
            DeepRestart(
                fit.seeds[r],
                float(inertia[r]),
                float(reconstruction[r]),
                float(agreement[r]),
                fit.n_iter[r],
                fit.status[r],
                fresh(labels[r]),
                give(centers[r]),
            )
            for r in range(len(labels))
        ]
        own, total = labels[best], inertia[best]
        if len(labels) > 1:  # the path of predict, so that both agree to the last bit
            (own,), (total,), _ = self._fitted.evaluate(fit.rows, decode=False)
        self.labels_ = fresh(own)
        self.cluster_centers_ = give(self._fitted.centers[0])
        self.inertia_ = float(total)
        self.n_iter_ = fit.n_iter[best]
        self.history_ = fit.history

    def _sigma2(self, fit: Fit, centers: Tensor) -> Tensor:
        """Square of the width of ``predict_proba``, (R,): that of round clusters of equal size."""
        _, nearest = fit.model(centers, centers.new_ones(len(centers))).assign(fit.sample)
        within = nearest.mean(-1)
        return (2.0 * within / centers.shape[-1]).clamp_min(torch.finfo(centers.dtype).tiny)

    def _report_troubles(self, fit: Fit) -> None:
        best = self.best_restart_
        if all(fit.failed):
            raise FloatingPointError(
                f"the loss was not finite: restart {best} (seed {fit.seeds[best]}) "
                f"{fit.status[best]}; the last good state is kept. Lower the learning rate, set "
                "clip_norm or check the scale of X"
            )
        troubled = [
            f"{r} (seed {fit.seeds[r]}) {s}" for r, s in enumerate(fit.status) if s != "done"
        ]
        if troubled:
            warnings.warn(
                f"restart {', '.join(troubled)}; the last good state of each is kept",
                ClusterCollapseWarning,
                stacklevel=5,
            )
        found = int((torch.bincount(torch.as_tensor(self.labels_)) > 0).sum())
        if found < self.n_clusters and fit.interrupted is None:
            warnings.warn(
                f"Number of distinct clusters ({found}) found smaller than n_clusters "
                f"({self.n_clusters}). Possibly due to duplicate points in X.",
                ConvergenceWarning,
                stacklevel=5,
            )

    # ----------------------------------------------------------------------------------------------
    # using the fit

    def predict(self, X: Any) -> Array:
        """Cluster of each row: the nearest centre in the code.

        Parameters
        ----------
        X : as in :meth:`fit`

        Returns
        -------
        labels : array, or Tensor on the device of X, of shape (n_samples,), int32
        """
        return self._compute(X, lambda model, rows: model.evaluate(rows, decode=False).labels)

    def transform(self, X: Any) -> Array:
        """Embedding of each row.

        Returns
        -------
        codes : array, or Tensor on the device of X, of shape (n_samples, code size)
        """
        return self._compute(X, lambda model, rows: model.codes(rows))

    def fit_transform(self, X: Any, y: object = None) -> Array:
        """``fit``, then ``transform`` of the same rows."""
        return self.fit(X, y).transform(X)

    def predict_proba(self, X: Any) -> Array:
        """Probability of each cluster for each row, of shape (n_samples, n_clusters)."""
        return self._compute(X, lambda model, rows: model.probabilities(rows))

    def reconstruct(self, X: Any) -> Array:
        """Rows after encoding and decoding, in the units and the shape of X."""
        return self._compute(X, lambda model, rows: self._in_units(model.reconstructions(rows)))

    @plain()
    def decode_centers(self) -> Array:
        """Centres in the units and the shape of a row, (n_clusters, ...)."""
        check_is_fitted(self)
        decoded = self._in_units(self._fitted.decoded_centers())[0]
        return like_input(self.cluster_centers_)(decoded)

    @plain()
    def score(self, X: Any, y: object = None) -> float:  # noqa: ARG002
        """Minus the sum of squared distances in the code to the nearest centre."""
        _, model, rows = self._model_and_rows(X)
        return -float(model.evaluate(rows, decode=False).inertia)

    @plain()
    def _compute(self, X: Any, function: Callable[[Model, Rows], Tensor]) -> Array:
        X, model, rows = self._model_and_rows(X)
        return like_input(X, fresh=True)(function(model, rows)[0])

    def _model_and_rows(self, X: Any) -> tuple[Any, Model, Rows]:
        """X checked, and what computes from its rows as the network sees them."""
        check_is_fitted(self)
        X, source = self._open(X, reset=False)
        model = self._model_on(source.rows)
        return X, model, Scaled(source.rows, model.scaling)

    def _model_on(self, rows: Rows) -> Model:
        model = self._fitted
        if model.centers.device != rows.device:
            network = model.network.select([0]).to(rows.device)
            model = replace(
                model,
                network=network,
                centers=model.centers.to(rows.device),
                sigma2=model.sigma2.to(rows.device),
            )
        return model

    def _in_units(self, rows: Tensor) -> Tensor:
        rows = self._fitted.scaling.inverse(rows)
        return rows.reshape(*rows.shape[:-1], *self.feature_shape_)

    def _all_restarts(self) -> Model:
        check_is_fitted(self)
        return self.model_

    # ----------------------------------------------------------------------------------------------
    # checks

    def _check_params(self) -> None:
        """Everything that can be known to be wrong before any work starts."""
        check_positive_int("n_clusters", self.n_clusters)
        check_positive_int("batch_size", self.batch_size)
        check_positive_int("n_init", self.n_init)
        for name in ("pretrain_epochs", "epochs"):
            value = getattr(self, name)
            if not is_auto(value):
                check_whole(name, value, also="'auto'")
        start_and_end("pretrain_learning_rate", self.pretrain_learning_rate)
        self._rate()
        if not is_auto(self.tol):
            check_not_negative("tol", self.tol, also="'auto'")
        if not is_auto(self.clustering_weight):
            check_not_negative("clustering_weight", self.clustering_weight, also="'auto'")
        if self.clip_norm is not None:
            check_positive("clip_norm", self.clip_norm, also="None")
        check_choice("scale", self.scale, get_args(Scale))
        if not is_auto(self.normalize) and not isinstance(self.normalize, bool):
            raise ValueError(
                f"normalize must be True, False or 'auto', got {shown(self.normalize)}"
            )
        check_choice("stacking", self.stacking, ("vmap", "loop"))
        check_choice("precision", self.precision, get_args(Precision))
        if isinstance(self.init, str):
            check_choice("init", self.init, INITS)
        self._check_networks()
        check_seed(self.random_state)
        verbose = self.verbose
        check_whole("verbose", int(verbose) if isinstance(verbose, bool) else verbose)
        if not isinstance(self.checkpoint, str | Path | None):
            raise TypeError(
                f"checkpoint must be the path of a folder or None, got {shown(self.checkpoint)}"
            )
        if self.checkpoint is not None:
            check_folder(Path(self.checkpoint))
        check_positive("checkpoint_every", self.checkpoint_every)
        callbacks = () if self.callbacks is None else self.callbacks
        if not isinstance(callbacks, Sequence) or not all(map(callable, callbacks)):
            raise TypeError(
                f"callbacks must be a sequence of callables or None, got {shown(self.callbacks)}"
            )

    def _check_networks(self) -> None:
        for name, named, least in (("encoder", ENCODERS, 1), ("decoder", ("auto",), 0)):
            value = getattr(self, name)
            if isinstance(value, str):
                check_choice(name, value, named)
            elif not callable(value):
                check_sizes(name, value, least=least)
        other = self.pretrained
        if other is None:
            return
        allowed = "pretrained must be a fitted deep estimator of this package or None, got"
        if not isinstance(other, DeepClusterer):
            raise TypeError(f"{allowed} {type(other).__name__}")
        if not other.__sklearn_is_fitted__():
            raise ValueError(f"{allowed} {type(other).__name__}, which is not fitted yet")
        for name in ("encoder", "decoder", "scale"):
            own, theirs = getattr(self, name), getattr(other, name)
            if not is_auto(own) and _short_text(_widths(own)) != _short_text(_widths(theirs)):
                raise ValueError(
                    f"{name} must be 'auto' or that of pretrained, {shown(theirs)}: its networks "
                    f"and scaling are taken; got {shown(own)}"
                )

    def _method_defaults(self) -> Defaults:
        return self._defaults

    def _rate(self) -> tuple[float, float]:
        auto = is_auto(self.learning_rate)
        value = self._method_defaults().learning_rate if auto else self.learning_rate
        return start_and_end("learning_rate", value)

    def _weight(self) -> float:
        auto = self.clustering_weight == "auto"
        return self._method_defaults().clustering_weight if auto else float(self.clustering_weight)

    def _augmentation(self, fit: Fit) -> Any:
        black = torch.zeros(fit.network.n_features, device=fit.rows.device)
        return resolve_augment(self.augment, fit.feature_shape, background=fit.scaling(black))

    def _open(self, X: Any, *, reset: bool) -> tuple[Any, Source]:
        """X checked, and as a source of rows on the device."""
        X = from_path(X)
        device = resolve_device(self.device, X)
        dtype = torch.float64 if self.precision == "float64" else torch.float32
        if not reset:
            dtype = self._fitted.centers.dtype
        named = False
        if isinstance(X, Tensor):
            X = _checked(X)
        elif not streams(X):
            named = getattr(X, "ndim", 2) <= 2
            if named:
                X = validated(self, X, reset=reset, dtype="numeric")
            else:  # scikit-learn takes the height of an image for its features
                X = validated(self, X, reset=None, dtype="numeric", allow_nd=True)
        # what a single pass reads need not be on the device, or become dense, as a whole
        most = None if reset else 0
        source = open_rows(X, device=device, dtype=dtype, max_resident_bytes=most)
        if not named:
            check_features(self, X, int(source.rows.shape[1]), reset=reset)
        return X, source

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_fitted")

    def __sklearn_clone__(self) -> Self:
        fresh = super().__sklearn_clone__()
        fresh.pretrained = self.pretrained  # a clone of it would have no networks to give
        return cast("Self", fresh)

    @property
    def _n_features_out(self) -> int:
        return int(self.cluster_centers_.shape[1])

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.transformer_tags.preserves_dtype = ["float32"]
        return cast("Tags", tags)


def epochs_for(n_rows: int, batch_size: int, epochs: int) -> int:
    """Epochs, or more where they would be too few steps to learn anything."""
    per_epoch = max(1, n_rows // int(batch_size))
    return max(epochs, -(-LEAST_TRAINING_STEPS // per_epoch))


def choose_scale(moments: Moments) -> Literal["global", "standard"]:
    """One factor for all features, or one for each, by their variances.

    A factor for each helps where a few features in large units drown the others, and hurts where
    all are measured alike: the variance of a pixel says how much it matters. So it is used where
    few features carry the variance, unless most share one minimum, as pixels and counts do.
    """
    v = moments.variance
    if not bool((v > 0).any()):
        return "global"
    effective = float(v.sum().square() / v.square().sum())  # features, were all alike
    shared = float((moments.minimum == moments.minimum.median()).double().mean())
    few = effective / len(v) < FEW_FEATURES
    return "standard" if few and shared < SHARED_MINIMUM else "global"


def have_one_length(rows: Tensor) -> bool:
    """Whether rows (S, D) differ in direction only, as tf-idf and many embeddings do.

    Rows of zeros, which have no direction, do not count.

    >>> have_one_length(torch.tensor([[0.6, 0.8], [0.0, -1.0], [0.0, 0.0]]))
    True
    >>> have_one_length(torch.tensor([[0.6, 0.8], [0.0, -1.1]]))
    False
    """
    lengths = rows.double().norm(dim=-1)
    lengths = lengths[lengths > 0]
    if rows.shape[1] < 2 or not len(lengths):
        return False
    return bool(lengths.amax() - lengths.amin() <= ONE_LENGTH * lengths.mean())


def joined_histories(
    parts: Sequence[Sequence[Mapping[str, Any]]], sizes: Sequence[int]
) -> list[dict[str, Any]]:
    """Events of all restarts, from those of teams that have so many restarts each.

    A team that was over before has its last losses, or zeros of a phase it did not need, and does
    not run.
    """
    orders = [dict.fromkeys(event["phase"] for event in part) for part in parts]
    phases = max(orders, key=len)  # the order of phases is the same for all, but some need fewer
    joined = []
    for phase in phases:
        own = [[event for event in part if event["phase"] == phase] for part in parts]
        for step in sorted({event["step"] for events in own for event in events}):
            now = [[event for event in events if event["step"] <= step][-1:] for events in own]
            (first, *_) = next(filter(None, now))
            losses = {
                name: [
                    loss
                    for event, size in zip(now, sizes, strict=True)
                    for loss in (event[0]["losses"][name] if event else [0.0] * size)
                ]
                for name in first["losses"]
            }
            running = [
                runs and event[0]["step"] == step
                for event, size in zip(now, sizes, strict=True)
                for runs in (event[0]["running"] if event else [False] * size)
            ]
            joined.append({**first, "step": step, "losses": losses, "running": running})
    return joined


def restart_agreement(labels: Tensor) -> Tensor:
    """Mean adjusted Rand index of each restart with the others, from labels (R, N); (R,)."""
    R = len(labels)
    if R == 1:
        return torch.full((1,), torch.nan, dtype=torch.float32)
    index = torch.from_numpy(pairwise_ari(labels.cpu().numpy())).float()
    return (index.sum(1) - 1.0) / (R - 1)


def choose_restart(
    labels: Tensor, agreement: Tensor, inertia: Tensor, failed: Sequence[bool]
) -> int:
    """The restart that agrees best with the others; of two, that of lower inertia."""
    R = len(labels)
    score = agreement if R > 2 else -inertia.cpu()
    score = score.where(~torch.tensor(failed), -torch.inf)
    return int(score.argmax())


def _numbers(init: Any) -> Tensor:
    """Whole numbers or floats of the user's."""
    if isinstance(init, Tensor):
        return init.detach()
    try:
        given = np.asarray(init)
    except ValueError:  # lists of unequal length
        given = np.empty(0, dtype=object)
    if given.dtype.kind not in "iuf":
        raise TypeError(
            f"init must be one of {', '.join(map(repr, INITS))}, labels or centers, "
            f"got {shown(init)}"
        )
    return torch.from_numpy(given.astype(np.float64 if given.dtype.kind == "f" else np.int64))


def _widths(encoder: EncoderSpec) -> EncoderSpec:
    """Widths as a tuple; anything else as it is."""
    if isinstance(encoder, str) or callable(encoder):
        return encoder
    return tuple(map(int, cast("Sequence[int]", encoder)))


def _short_text(value: Any) -> str:
    """Of a parameter: the same for the same value, and hardly ever for another."""
    if isinstance(value, DeepClusterer):
        networks = value.model_.network.state_dict()
        return f"{type(value).__name__} {digest_tensors(networks.values())}"
    tensors: dict[str, Tensor] = {}
    try:
        text = json.dumps(storage.encode(value, tensors, ""))
    except TypeError:  # a module, a function: only the name tells them apart in another process
        return str(getattr(value, "__qualname__", type(value).__qualname__))
    return f"{text} {digest_tensors(tensors.values())}" if tensors else text


def _checked(X: Tensor) -> Tensor:
    """Detached and finite, of any shape; integers as they are."""
    if X.dtype in INTEGERS:
        return detached(X)
    flat = X.flatten(1) if X.ndim > 2 and X.layout == torch.strided else X
    return check_tensor(flat).view(X.shape)


def evenly(rows: Rows, most: int) -> Tensor:
    """Numbers of at most so many rows, evenly spread, the same for every seed."""
    n = int(rows.shape[0])
    size = min(n, most)
    return torch.arange(size, device=rows.device) * n // size


def sample_numbers(rows: Rows) -> Tensor:
    """Numbers of the rows of a stream that are held, evenly spread."""
    most = SAMPLE_BYTES // (int(rows.shape[1]) * rows.dtype.itemsize)
    return evenly(rows, max(WATCHED_ROWS, min(SAMPLE_ROWS, most)))


def without(rows: Rows, left_out: Tensor) -> Subset:
    """The other rows."""
    rest = torch.ones(int(rows.shape[0]), dtype=torch.bool)
    rest[left_out] = False
    return Subset(rows, rest.nonzero().squeeze(1))


def watched(rows: Rows) -> Tensor:
    """Numbers of the rows that a monitor looks at."""
    return evenly(rows, WATCHED_ROWS)


def held_out(rows: Rows) -> Tensor:
    """Numbers of the rows, a tenth at most, that pretraining does not see; none of a few."""
    n = int(rows.shape[0])
    size = min(n // 10, WATCHED_ROWS) if n >= FEW_ROWS else 0
    return torch.arange(size) * n // max(size, 1)


def untrained(fit: Fit) -> Model:
    """The networks as they are, without centres."""
    none = torch.zeros(len(fit.seeds), 1, fit.network.code_size)
    return fit.model(none.to(fit.rows.device, fit.rows.dtype), none[:, 0, 0])
