"""Concrete k-means on features as they are: a drop-in for ``sklearn.cluster.KMeans``."""

from __future__ import annotations

import numbers
import warnings
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Self, TypeAlias, cast, get_args

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
from sklearn.utils.validation import _check_sample_weight, check_is_fitted
from torch import Tensor

from concrete_kmeans import functional as F
from concrete_kmeans import processes
from concrete_kmeans.checkpoints import pack, unpack
from concrete_kmeans.data import (
    Batches,
    as_rows,
    check_batch_size,
    check_tensor,
    chunks_of,
    float_type,
    from_path,
    merge_equal_rows,
    open_rows,
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
from concrete_kmeans.lloyd import (
    Rows,
    assign,
    first_centers,
    kmeans_plusplus,
    label_rows,
    lloyd,
    nearest_labels,
)
from concrete_kmeans.memory import Parts
from concrete_kmeans.modes import plain
from concrete_kmeans.objectives.shallow import (
    CentersAtRest,
    CurvatureSGD,
    ShallowGradient,
    ShallowObjective,
)
from concrete_kmeans.progress import progress_bar
from concrete_kmeans.training import Annealed, Interrupted, InverseTime, Settings, train
from concrete_kmeans.validation import (
    check_choice,
    check_not_negative,
    check_positive,
    check_positive_int,
    check_whole,
    is_auto,
    shown,
)

__all__ = ["ConcreteKMeans", "Online", "Restart"]

Init: TypeAlias = (
    Literal["k-means++", "random"] | Array | Callable[[Any, int, np.random.RandomState], Any]
)

#: ``sigma="auto"``: sigma^2 over the mean squared distance to the nearest first centre. At .05 and
#: at .3 single seeds end 2 to 8 % above Lloyd's inertia, at .15 none of 150 (docs/shallow.md).
AUTO_SIGMA2 = 0.15
#: Rows that k-means++ sees, and that set sigma, unless there are fewer; see ``init_size``.
INIT_SIZE, INIT_ROWS_PER_CLUSTER = 2**15, 64
#: Steps of a call of ``partial_fit`` from which on they are recorded on CUDA: ten take 20 ms either
#: way, 20 take 24 instead of 37, 100 take 36 instead of 160.
LEAST_RECORDED = 16
#: Rows of ``transform`` computed at a time.
CHUNK_ROWS = 8192


class Restart(NamedTuple):
    """One of the ``n_init`` restarts of a fit."""

    seed: int
    """``random_state=seed`` with ``n_init=1`` repeats this restart alone."""
    inertia: float
    n_iter: int
    cluster_centers: Array


class ConcreteKMeans(
    ReportMixin,
    SaveMixin,
    ClassNamePrefixFeaturesOutMixin,  # type: ignore[misc]
    TransformerMixin,  # type: ignore[misc]
    ClusterMixin,  # type: ignore[misc]
    BaseEstimator,  # type: ignore[misc]
):
    """k-means solved by stochastic gradients through sampled hard assignments.

    Each step assigns a small batch of rows to clusters at random, with the probabilities of Eq. 5,
    and moves the centres along the gradient of the k-means loss. The randomness is annealed away:
    training ends in hard k-means, often in a lower minimum than Lloyd's algorithm reaches from the
    same start. There is no Lloyd pass at the end.

    Parameters
    ----------
    n_clusters : int, default=8
        Number of clusters.
    init : {"k-means++", "random"}, array of shape (n_clusters, n_features) or callable
        First centres, as in :class:`sklearn.cluster.KMeans`. A callable takes ``(X, n_clusters,
        random_state)``.
    n_init : int or "auto", default="auto"
        Restarts, trained together; the one of lowest inertia is kept. ``"auto"`` is 10 for
        ``init="random"`` or a callable, else 1.
    max_iter : int, default=2000
        Gradient steps (``algorithm="lloyd"``: iterations). The schedules below stretch over them.
    tol : float, default=1e-6
        A restart stops early when its centres, weighted by cluster size, moved by a mean square of
        at most ``tol`` times the inertia per row in 100 steps. (``"lloyd"``: as scikit-learn's.)
    batch_size : int, default=256
        Rows in a gradient step. With no more rows than that, each step uses all of them.
    sigma : float or "auto", default="auto"
        Width of the assignment probabilities (Eq. 5) at temperature one. ``"auto"`` sets
        ``sigma**2`` to 0.15 times the mean squared distance to the nearest first centre.
    temperature : float or (start, end), default=(1.0, 0.02)
        Tau of Eq. 6, annealed exponentially over the first nine tenths of the steps; it also
        narrows Eq. 5, in which ``sigma**2 * temperature`` stands for ``sigma**2``.
    learning_rate : float or (start, end), default=(0.5, 0.003)
        As a part of a centre's Newton step, so in (0, 1]; falls exponentially over the steps.
    gradient : {"detached", "distance", "reconstruction"}, default="detached"
        What the gradient sees of the sampled assignment: nothing, or its relaxation in either form
        of Eq. 7. Where only the centres learn, ``"detached"`` ends lower.
    init_size : int or "auto", default="auto"
        Rows that k-means++ and ``sigma="auto"`` look at, drawn without replacement, the same for
        all seeds. ``"auto"`` is 32,768 or 64 for each cluster, whichever is more. ``"lloyd"`` does
        without, unless rows are streamed.
    algorithm : {"concrete", "lloyd"}, default="concrete"
        ``"lloyd"`` runs exact k-means instead, on all rows and on the device of the data. Of more
        than 32,768 rows (and 128 a cluster) without weights, ``init="k-means++"`` then is the best
        of up to four runs on a sample: :func:`concrete_kmeans.lloyd.first_centers`.
    device : str or torch.device, default="auto"
        Where to compute. A tensor is computed where it is; anything else on CUDA if there is any.
    copy_x : bool, default=True
        For compatibility: X is never written to.
    verbose : int, default=0
        Above 0, a progress bar on a terminal; ``algorithm="lloyd"`` has none. What is logged goes
        to the logger ``concrete_kmeans``, whatever this is.
    random_state : int, RandomState or None, default=None
        Restart ``r`` is seeded with ``random_state + r``, and is what that seed gives alone. No
        global random state is read or written; None draws a fresh seed.

    Attributes
    ----------
    cluster_centers_ : array or Tensor of shape (n_clusters, n_features)
    labels_ : array or Tensor of shape (n_samples,)
        ``predict`` of the training rows; after ``partial_fit``, of the last rows.
    inertia_ : float
        Weighted sum of squared distances to the nearest centre.
    n_iter_ : int
        Steps (or iterations) run.
    restarts_ : list of Restart
        Seed, inertia, steps and centres of every restart.
    n_features_in_ : int
    feature_names_in_ : array of str
        Only for input whose columns have names.

    See Also
    --------
    ConcreteKMeansLayer : The same inside a network of yours.

    Examples
    --------
    >>> import numpy as np
    >>> from concrete_kmeans import ConcreteKMeans
    >>> X = np.array([[1, 2], [1, 4], [1, 0], [10, 2], [10, 4], [10, 0]])
    >>> km = ConcreteKMeans(n_clusters=2, random_state=0).fit(X)
    >>> km.predict([[0, 0], [12, 3]]) == km.labels_[[0, 3]]
    array([ True,  True])
    >>> np.sort(km.cluster_centers_, axis=0).round(2)
    array([[ 1.,  2.],
           [10.,  2.]])
    """

    def __init__(
        self,
        n_clusters: int = 8,
        *,
        init: Init = "k-means++",
        n_init: int | Literal["auto"] = "auto",
        max_iter: int = 2000,
        tol: float = 1e-6,
        batch_size: int = 256,
        sigma: float | Literal["auto"] = "auto",
        temperature: Schedule = (1.0, 0.02),
        learning_rate: Schedule = (0.5, 0.003),
        gradient: ShallowGradient = "detached",
        init_size: int | Literal["auto"] = "auto",
        algorithm: Literal["concrete", "lloyd"] = "concrete",
        device: str | torch.device = "auto",
        copy_x: bool = True,
        verbose: int = 0,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.n_clusters = n_clusters
        self.init = init
        self.n_init = n_init
        self.max_iter = max_iter
        self.tol = tol
        self.batch_size = batch_size
        self.sigma = sigma
        self.temperature = temperature
        self.learning_rate = learning_rate
        self.gradient = gradient
        self.init_size = init_size
        self.algorithm = algorithm
        self.device = device
        self.copy_x = copy_x
        self.verbose = verbose
        self.random_state = random_state

    # ----------------------------------------------------------------------------------------------
    # fitting

    @plain()
    def fit(self, X: Any, y: object = None, sample_weight: Any = None) -> Self:  # noqa: ARG002
        """Find the centres.

        Parameters
        ----------
        X : array, DataFrame, CSR matrix, Tensor, Dataset, Parquet or path of n_samples rows
            Integers become floats; float32 and float64 stay; half precision becomes float32. A
            memmap, a map-style Dataset or :class:`~concrete_kmeans.Parquet` of more than 256 MiB is
            streamed: it may be larger than memory.
        y : ignored
        sample_weight : array or Tensor of shape (n_samples,), optional
            Not negative; 1 for each row by default.

        Returns
        -------
        self
        """
        self._check_params()
        with processes.together():
            self._fit(X, sample_weight)
        return self

    def _fit(self, X: Any, sample_weight: Any) -> None:
        X, rows, weight = self._check_fit_input(X, sample_weight)
        if self.algorithm == "concrete":
            check_batch_size(rows, self.batch_size)
        n_init = self._n_init()
        seed = processes.number_from_first(seed_from(self.random_state))
        # Every step uses all rows when one batch holds them; merged, equal rows count as a weight.
        merge = int(rows.shape[0]) <= self.batch_size and stream_of(rows) is None
        own, own_weight = merge_equal_rows(rows, weight) if merge else (rows, weight)
        sample, sample_weight = self._init_sample(own, own_weight)
        with processes.split(n_init) as mine:
            generators = [torch.Generator(rows.device).manual_seed(seed + r) for r in mine]
            first = self._first_centers(X, sample, sample_weight, generators, seed + mine.start)
            centers = processes.from_first(first)
            if self.algorithm == "concrete":
                sigma = self._sigma(sample, sample_weight, centers)
                found = self._descend(own, own_weight, centers, sigma, generators)
            else:
                found = self._lloyd(own, own_weight, centers)
            centers, n_iter, stop = _of_all_teams(*found)
        # of a stream, the labels of one restart are enough to hold
        several = n_init > 1 and stream_of(rows) is not None
        labels, totals = label_rows(rows, centers, sample_weight=weight, keep=not several)
        totals = totals.where(totals.isfinite(), torch.inf)
        best = int(totals.argmin())
        if not bool(totals[best].isfinite()):
            kind = str(rows.dtype).removeprefix("torch.")
            large = f"squares of X, or their sums, are too large for {kind}: scale X"
            if self.algorithm == "concrete":
                large = (
                    f"{large}; or learning_rate={self.learning_rate!r} is too large for gradient="
                    f"{self.gradient!r}: lower it"
                )
            raise FloatingPointError(
                f"training diverged, no restart ended with finite centers and inertia: {large}"
            )
        own_labels = nearest_labels(rows, centers[best])[0] if several else labels[best]
        give = like_input(X)
        self.restarts_ = [
            Restart(seed + r, float(totals[r]), int(n_iter[r]), give(centers[r]))
            for r in range(n_init)
        ]
        self.cluster_centers_ = self.restarts_[best].cluster_centers
        self.labels_ = like_input(X, fresh=n_init == 1 or several)(own_labels)
        self.inertia_ = float(totals[best])
        self.n_iter_ = int(n_iter[best])
        self._online: Online | None = None
        if stop is not None:
            raise stop
        self._warn_if_fewer_clusters(own_labels)

    def _descend(
        self,
        rows: Rows,
        weight: Tensor | None,
        centers: Tensor,
        sigma: Tensor,
        generators: list[torch.Generator],
    ) -> tuple[Tensor, Tensor, Interrupted | None]:
        """Centres (R, K, D), steps (R,), and the interruption if there was one."""
        objective = ShallowObjective(centers, sigma, self.gradient)
        batches = Batches(rows, weight, self.batch_size, generators, n_batches=self.max_iter)
        monitor = CentersAtRest(objective, self.tol, self.max_iter // 2, generators)
        settings, verbose, stop = self._settings(), self.verbose if processes.first() else 0, None
        with progress_bar(verbose, "fit", self.max_iter) as bar:
            try:
                outcome = train(
                    objective, batches, settings, generators, monitor=monitor, callbacks=bar
                )
            except Interrupted as interrupted:
                stop, outcome = interrupted, interrupted.outcome
        return objective.centers.detach(), outcome.n_steps, stop

    def _lloyd(
        self, rows: Rows, weight: Tensor | None, centers: Tensor
    ) -> tuple[Tensor, Tensor, Interrupted | None]:
        if rows.shape[0] < self.n_clusters:  # fewer distinct rows than clusters: all are centres
            return centers, torch.ones(len(centers), dtype=torch.int64), None
        result = lloyd(rows, centers, sample_weight=weight, max_iter=self.max_iter, tol=self.tol)
        return result.centers, result.n_iter, None

    @plain()
    def partial_fit(self, X: Any, y: object = None, sample_weight: Any = None) -> Self:  # noqa: ARG002
        """Move the centres by the gradients of some rows; the first call sets them.

        The temperature is at its end throughout, and the learning rate falls to its end as one over
        the number of steps, since there is no last call to anneal towards.

        Parameters
        ----------
        X : array, DataFrame, CSR matrix, Tensor, Dataset, Parquet or path of n_samples rows
            At least ``n_clusters`` rows in the first call. Taken in batches of ``batch_size``.
        y : ignored
        sample_weight : array or Tensor of shape (n_samples,), optional

        Returns
        -------
        self
        """
        self._check_params()
        with processes.together():
            self._partial_fit(X, sample_weight)
        return self

    def _partial_fit(self, X: Any, sample_weight: Any) -> None:
        first = not hasattr(self, "cluster_centers_")
        X, rows, weight = self._check_fit_input(X, sample_weight, first=first)
        check_batch_size(rows, self.batch_size)
        if first:
            seed = processes.number_from_first(seed_from(self.random_state))
            generators = [torch.Generator(rows.device).manual_seed(seed)]
            sample, sample_weight = self._init_sample(rows, weight)
            centers = self._first_centers(X, sample, sample_weight, generators, seed)
            sigma = self._sigma(sample, sample_weight, centers)
            state = Online(0, sigma, None, generators[0].get_state())
        else:
            centers = self._centers_for(rows).unsqueeze(0)
            state = self._online_state(rows, weight, centers)
        generator = torch.Generator(rows.device)
        generator.set_state(state.generator)
        objective = ShallowObjective(centers, state.sigma.to(centers), self.gradient, state.shares)
        batches = Batches(rows, weight, self.batch_size, [generator])
        n_steps = -(-batches.n // batches.size)
        rate = start_and_end("learning_rate", self.learning_rate)
        _, temperature = start_and_end("temperature", self.temperature)
        falling = InverseTime(*rate, state.n_steps)
        settings = Settings(
            n_steps,
            falling,
            lambda _: temperature,
            CurvatureSGD,
            record=n_steps >= LEAST_RECORDED,
        )
        train(objective, batches, settings, [generator])
        taken = state.n_steps + n_steps
        state = Online(taken, state.sigma, objective.shares, generator.get_state())
        centers = objective.centers.detach()
        labels, total = label_rows(rows, centers, sample_weight=weight)
        give = like_input(X)
        self.cluster_centers_ = give(centers[0])
        self.labels_ = like_input(X, fresh=True)(labels[0])
        self.inertia_ = float(total)
        self.n_iter_ = state.n_steps
        self._online = state

    def _first_centers(
        self,
        X: Any,
        sample: Rows,
        weight: Tensor | None,
        generators: list[torch.Generator],
        seed: int,
    ) -> Tensor:
        """First centres (R, K, D), from a sample of the rows."""
        n, R = int(sample.shape[0]), len(generators)
        if callable(self.init) or not isinstance(self.init, str):
            return self._given_centers(X, sample, R, seed)
        if n < self.n_clusters:  # fewer distinct rows than clusters, merged by fit
            repeated = sample[torch.arange(self.n_clusters, device=sample.device) % n]
            return repeated.expand(R, -1, -1)
        if self.init == "k-means++" and self.algorithm == "lloyd":
            return first_centers(
                sample, self.n_clusters, generators=generators, sample_weight=weight
            )
        if self.init == "k-means++":
            centers, _ = kmeans_plusplus(
                sample, self.n_clusters, generators=generators, sample_weight=weight
            )
            return centers
        picks = []
        for generator in generators:
            # the K smallest of exponential draws over the weights: a weighted draw of K rows
            # without replacement, and without the limit of torch.multinomial
            draw = torch.empty(n, dtype=torch.float64, device=sample.device)
            draw.exponential_(generator=generator)
            draw = draw if weight is None else draw / weight
            picks.append(draw.topk(self.n_clusters, largest=False).indices)
        return sample[torch.cat(picks)].view(R, self.n_clusters, -1)

    def _given_centers(self, X: Any, rows: Rows, R: int, seed: int) -> Tensor:
        given: Any = self.init
        if callable(given):
            sets = [given(X, self.n_clusters, np.random.RandomState(seed + r)) for r in range(R)]
        else:
            sets = [given]
        shape = (self.n_clusters, int(rows.shape[1]))
        checked = []
        for centers in sets:
            if not isinstance(centers, Tensor):
                try:
                    centers = torch.from_numpy(np.array(centers, dtype=np.float64))
                except (TypeError, ValueError) as error:
                    raise ValueError(
                        "init must be 'k-means++', 'random', centers of shape (n_clusters, "
                        f"n_features) or a function that gives them, got {shown(centers)}"
                    ) from error
            centers = centers.detach().to(dtype=rows.dtype, device=rows.device)
            if tuple(centers.shape) != shape:
                raise ValueError(
                    f"init must give centers of shape (n_clusters, n_features) = {shape}, "
                    f"got {tuple(centers.shape)}"
                )
            if not bool(centers.isfinite().all()):
                raise ValueError("init must give finite centers; it holds NaN or infinity")
            checked.append(centers)
        return torch.stack(checked).expand(R, -1, -1)

    def _init_sample(self, rows: Rows, weight: Tensor | None) -> tuple[Rows, Tensor | None]:
        """The rows that k-means++ and sigma look at: the same for every seed, so shared by all."""
        n, streamed = int(rows.shape[0]), stream_of(rows) is not None
        size = max(INIT_SIZE, INIT_ROWS_PER_CLUSTER * int(self.n_clusters))
        if self.init_size != "auto":
            size = max(check_positive_int("init_size", self.init_size), self.n_clusters)
        if n <= size or (self.algorithm == "lloyd" and not streamed):
            return rows, weight
        fixed = torch.Generator().manual_seed(0)
        index = torch.randint(n, (size,), generator=fixed)
        if n <= Batches.max_shuffled and not streamed:
            index = torch.randperm(n, generator=fixed)[:size]
        index = index.to(rows.device)
        return rows[index], None if weight is None else weight[index]

    def _sigma(self, sample: Rows, weight: Tensor | None, centers: Tensor) -> Tensor:
        """Sigma of each restart, (R,), from a sample of the rows."""
        if self.sigma != "auto":
            sigma = check_positive("sigma", self.sigma, also="'auto'")
            return torch.full((len(centers),), sigma, dtype=centers.dtype, device=centers.device)
        _, distances = assign(sample, centers)
        if weight is not None:
            distances = distances * (weight / weight.mean())
        within = distances.double().mean(-1).to(centers.dtype)
        return (AUTO_SIGMA2 * within).clamp_min(torch.finfo(centers.dtype).tiny).sqrt()

    def _online_state(self, rows: Rows, weight: Tensor | None, centers: Tensor) -> Online:
        """What ``partial_fit`` goes on from; after ``fit``, with the learning rate at its end."""
        if self._online is not None:
            online = self._online
            shares = None if online.shares is None else online.shares.to(centers)
            return online._replace(shares=shares, sigma=online.sigma.to(centers))
        start, end = start_and_end("learning_rate", self.learning_rate)
        taken = int(InverseTime.slow * start / end)
        seed = processes.number_from_first(seed_from(self.random_state))
        generator = torch.Generator(rows.device).manual_seed(seed)
        sigma = self._sigma(*self._init_sample(rows, weight), centers)
        return Online(taken, sigma, None, generator.get_state())

    def _settings(self) -> Settings:
        n = self.max_iter
        temperature = Annealed(
            *start_and_end("temperature", self.temperature), 0.9 * n
        )  # the rest settles
        rate = Annealed(*start_and_end("learning_rate", self.learning_rate), n)
        return Settings(n, rate, temperature, CurvatureSGD)

    # ----------------------------------------------------------------------------------------------
    # using the fit

    @plain()
    def predict(self, X: Any) -> Array:
        """Index of the nearest centre for each row.

        Parameters
        ----------
        X : array, DataFrame, CSR matrix, Tensor, Dataset, Parquet or path of n_samples rows

        Returns
        -------
        labels : array, or Tensor on the device of X, of shape (n_samples,), int32
        """
        X, rows = self._check_new_input(X)
        return like_input(X, fresh=True)(nearest_labels(rows, self._centers_for(rows))[0])

    @plain()
    def transform(self, X: Any) -> Array:
        """Distance of each row to each centre.

        Parameters
        ----------
        X : array, DataFrame, CSR matrix, Tensor, Dataset, Parquet or path of n_samples rows

        Returns
        -------
        distances : array, or Tensor on the device of X, of shape (n_samples, n_clusters)
        """
        X, rows = self._check_new_input(X)
        return like_input(X)(self._distances(rows))

    def fit_transform(self, X: Any, y: object = None, sample_weight: Any = None) -> Array:
        """``fit``, then ``transform`` of the same rows."""
        return self.fit(X, y, sample_weight=sample_weight).transform(X)

    @plain()
    def score(self, X: Any, y: object = None, sample_weight: Any = None) -> float:  # noqa: ARG002
        """Minus the inertia of the rows: larger is better.

        Parameters
        ----------
        X : array, DataFrame, CSR matrix, Tensor, Dataset, Parquet or path of n_samples rows
        y : ignored
        sample_weight : array or Tensor of shape (n_samples,), optional

        Returns
        -------
        float
        """
        _, rows = self._check_new_input(X)
        weight = self._check_weight(sample_weight, rows)
        _, total = label_rows(rows, self._centers_for(rows), sample_weight=weight, keep=False)
        return -float(total)

    @torch.inference_mode()
    def _distances(self, rows: Rows) -> Tensor:
        centers = self._centers_for(rows)
        out = torch.empty(int(rows.shape[0]), len(centers), dtype=rows.dtype, device=rows.device)
        parts = Parts()
        for begin, end, piece in chunks_of(rows, CHUNK_ROWS):

            def compute(start: int, stop: int, begin: int = begin, piece: Tensor = piece) -> None:
                found = F.squared_distances(piece[start:stop], centers).sqrt_()
                out[begin + start : begin + stop] = found

            for _ in parts(end - begin, compute):
                pass
        return out

    # ----------------------------------------------------------------------------------------------
    # checks

    def _check_params(self) -> None:
        """Everything that can be known to be wrong before any work starts."""
        check_positive_int("n_clusters", self.n_clusters)
        check_positive_int("max_iter", self.max_iter)
        check_positive_int("batch_size", self.batch_size)
        check_not_negative("tol", self.tol)
        if not is_auto(self.n_init):
            check_positive_int("n_init", self.n_init, also="'auto'")
        if not is_auto(self.init_size):
            check_positive_int("init_size", self.init_size, also="'auto'")
        if not is_auto(self.sigma):
            check_positive("sigma", self.sigma, also="'auto'")
        if isinstance(self.init, str):
            check_choice("init", self.init, ("k-means++", "random"))
        check_choice("algorithm", self.algorithm, ("concrete", "lloyd"))
        check_choice("gradient", self.gradient, ("detached", *get_args(F.GradientForm)))
        check_seed(self.random_state)
        verbose = self.verbose
        check_whole("verbose", int(verbose) if isinstance(verbose, bool) else verbose)
        if not isinstance(self.copy_x, bool | np.bool_):
            raise TypeError(f"copy_x must be True or False, got {shown(self.copy_x)}")
        start_and_end("temperature", self.temperature)
        if max(start_and_end("learning_rate", self.learning_rate)) > 1.0:
            raise ValueError(f"learning_rate must be in (0, 1], got {shown(self.learning_rate)}")

    def _n_init(self) -> int:
        if self.n_init != "auto":
            return int(self.n_init)
        return (
            10
            if callable(self.init) or (isinstance(self.init, str) and self.init == "random")
            else 1
        )

    def _check_fit_input(
        self, X: Any, sample_weight: Any, *, first: bool = True
    ) -> tuple[Any, Rows, Tensor | None]:
        X, rows = self._checked(X, reset=first)
        weight = self._check_weight(sample_weight, rows)
        if first and int(rows.shape[0]) < self.n_clusters:
            raise ValueError(f"n_samples={rows.shape[0]} should be >= n_clusters={self.n_clusters}")
        return X, rows, weight

    def _check_new_input(self, X: Any) -> tuple[Any, Rows]:
        check_is_fitted(self)
        return self._checked(X, reset=False)

    def _checked(self, X: Any, *, reset: bool) -> tuple[Any, Rows]:
        X = from_path(X)
        device = resolve_device(self.device, X)
        if streams(X):
            rows = open_rows(X, device=device, dtype=float_type(X)).rows
            check_features(self, X, int(rows.shape[1]), reset=reset)
            return X, rows
        if isinstance(X, Tensor):
            X = check_tensor(X)
            check_features(self, X, int(X.shape[1]), reset=reset)
        else:
            X = validated(self, X, reset=reset, dtype=[np.float64, np.float32], order="C")
        return X, as_rows(X, device, once=not reset)

    def _check_weight(self, sample_weight: Any, rows: Rows) -> Tensor | None:
        if sample_weight is None:
            return None
        if isinstance(sample_weight, Tensor):
            sample_weight = sample_weight.detach().cpu().numpy()
        if isinstance(sample_weight, numbers.Number):  # scikit-learn would not look at it
            sample_weight = check_positive("sample_weight", sample_weight, also="one a row")
        like = np.empty((int(rows.shape[0]), 0))
        checked = _check_sample_weight(
            sample_weight, like, dtype=np.float64, ensure_non_negative=True
        )
        if not checked.any():  # before version 1.8 scikit-learn let them pass
            raise ValueError("Sample weights must contain at least one non-zero number.")
        return torch.from_numpy(checked).to(dtype=rows.dtype, device=rows.device)

    def _centers_for(self, rows: Rows) -> Tensor:
        """The centres, in the type and on the device of the rows."""
        centers = self.cluster_centers_
        if not isinstance(centers, Tensor):
            centers = torch.tensor(centers)
        return centers.to(dtype=rows.dtype, device=rows.device)

    def _warn_if_fewer_clusters(self, labels: Tensor) -> None:
        found = int((torch.bincount(labels) > 0).sum())
        if found < self.n_clusters:
            warnings.warn(
                f"Number of distinct clusters ({found}) found smaller than n_clusters "
                f"({self.n_clusters}). Possibly due to duplicate points in X.",
                ConvergenceWarning,
                stacklevel=5,
            )

    @property
    def _n_features_out(self) -> int:
        return len(self.cluster_centers_)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return cast("Tags", tags)


def _of_all_teams(
    centers: Tensor, n_iter: Tensor, stop: Interrupted | None
) -> tuple[Tensor, Tensor, Interrupted | None]:
    """Centres and steps of the restarts of all teams of processes; and whether one was stopped."""
    if processes.n_teams() == 1:
        return centers, n_iter, stop
    own = {"centers": centers, "n_iter": n_iter, "signal": 0 if stop is None else stop.signal}
    parts = [unpack(data, centers.device) for data in processes.exchange(pack(own))]
    n_iter = torch.cat([part["n_iter"] for part in parts])
    if number := max(part["signal"] for part in parts):
        stop = Interrupted.elsewhere(n_iter, number)
    return torch.cat([part["centers"] for part in parts]), n_iter, stop


class Online(NamedTuple):
    """What ``partial_fit`` keeps between calls."""

    n_steps: int
    sigma: Tensor
    shares: Tensor | None
    generator: Tensor
