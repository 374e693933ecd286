"""The work of ``ckm fit``: rows in, a model folder out."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from concrete_kmeans import estimators, metrics, processes, readers, storage
from concrete_kmeans.checkpoints import Stopped
from concrete_kmeans.choosing import choose_k
from concrete_kmeans.cli.runs import Input, Kept, Notes, rows_for, write_report
from concrete_kmeans.data import feature_moments, open_rows
from concrete_kmeans.estimators.deep import choose_scale
from concrete_kmeans.estimators.saving import save
from concrete_kmeans.readers import Data, Options
from concrete_kmeans.report import KCurve
from concrete_kmeans.report.collecting import (
    SILHOUETTE_ROWS,
    embed,
    label_free,
    silhouette,
)
from concrete_kmeans.report.projection import evenly
from concrete_kmeans.training import Callback, Interrupted

__all__ = ["METHODS", "PRESETS", "Fitted", "Request", "run"]

#: What may be set of the deep methods; AE+KM has no joint phase, and so no epochs of it.
DEEP = (
    "encoder",
    "augment",
    "scale",
    "n_init",
    "pretrain_epochs",
    "epochs",
    "batch_size",
    "precision",
    "checkpoint_every",
    "device",
    "random_state",
)
#: Options that are not named as the parameters they set.
OPTIONS = {"random_state": "seed", "checkpoint_every": "checkpoint-minutes"}


@dataclass(frozen=True)
class Method:
    """An estimator, its parameters where they differ from the defaults, and what may be set."""

    name: str
    parameters: Mapping[str, Any]
    options: Sequence[str]

    @property
    def deep(self) -> bool:
        """Whether it has a network."""
        return "encoder" in self.options


METHODS: dict[str, Method] = {
    "ckm": Method("DeepConcreteKMeans", {}, [*DEEP, "choose"]),
    "ae+km": Method("AutoencoderKMeans", {}, [name for name in DEEP if name != "epochs"]),
    "dec": Method("DEC", {}, DEEP),
    "idec": Method("IDEC", {}, DEEP),
    "dcn": Method("DCN", {}, DEEP),
    "dkm": Method("DKM", {}, DEEP),
    "concrete": Method("ConcreteKMeans", {}, ["n_init", "batch_size", "device", "random_state"]),
    "km": Method(
        "ConcreteKMeans",
        {"algorithm": "lloyd", "n_init": 10},
        ["n_init", "device", "random_state"],
    ),
}
#: What each kind of rows sets, for the methods that have it. Pixels, word weights and embeddings
#: are measured alike: the variance of a feature says how much it matters.
PRESETS: dict[str, dict[str, Any]] = {
    "tabular": {"scale": "auto"},
    "image": {"scale": "global"},
    "text": {"scale": "global"},
    "embeddings": {"scale": "global"},
}


@dataclass(frozen=True)
class Request:
    """What the user asked for."""

    source: str
    out: Path
    n_clusters: int | tuple[int, int]
    """Or the smallest and the largest to choose from."""
    method: str
    preset: str | None
    options: Options
    parameters: dict[str, Any]
    """Of the estimator, by their names; only those that were given."""
    overwrite: bool
    report: bool
    resume: bool = False
    up_to_rows: bool = False
    """Whether the largest number of clusters to choose from falls to what the rows allow."""

    @property
    def kept(self) -> Kept:
        """Its checkpoints."""
        return Kept(self.out)

    def check_method(self) -> None:
        """Refuse parameters that the method does not have."""
        method = METHODS[self.method]
        wrong = [OPTIONS.get(n, n) for n in self.parameters if n not in method.options]
        if self.resume and not method.deep:
            wrong.append("resume")
        if wrong:
            option = wrong[0].replace("_", "-")
            raise ValueError(f"--{option} has no meaning for --method {self.method}")

    def check_place(self) -> None:
        """Refuse a folder that cannot be written, before the input is read."""
        storage.check_place(self.out, overwrite=self.overwrite or self.resume)
        self.kept.check(resume=self.resume, overwrite=self.overwrite)


@dataclass(frozen=True)
class Fitted:
    """What came out."""

    estimator: Any
    data: Data
    notes: Notes
    signal: int | None = None
    """That interrupted the training."""

    @property
    def sizes(self) -> list[int]:
        """Rows of each cluster."""
        K = len(self.estimator.cluster_centers_)
        sizes: list[int] = np.bincount(_host(self.estimator.labels_), minlength=K).tolist()
        return sizes


def run(
    request: Request,
    *,
    tell: Callable[[str], None],
    callback: Callback,
    warnings: list[str],
) -> Fitted | None:
    """Read, fit, score and write.

    Many processes read and fit; the first scores and writes, and the others return None.

    Parameters
    ----------
    request : Request
    tell : callable
        Told what begins.
    callback : Callback
        Of the training of deep methods.
    warnings : list of str
        Those told so far, which the folder keeps.
    """
    tell("reading")
    if request.source == "-" and processes.several():
        raise ValueError("standard input can be read by one process only: give a file")
    place = Input.of(request.source, request.options.format) if processes.first() else None
    data, preparation = readers.read(request.source, request.options)
    preset = request.preset or data.kind
    method = METHODS[request.method]
    picture = preset == "image" and np.ndim(data.rows) > 2
    rows = rows_for(data.rows, keep_shape=picture and method.deep)
    request = replace(request, n_clusters=_possible(request, rows.shape[0]))
    if preset == "tabular" and not method.deep and _spread_unequally(rows):
        data.notes.append(
            f"Features differ much in spread, and {request.method} takes them as they are: those "
            "of large numbers decide. Standardise them first, or use a deep method."
        )
    known = _known_labels(data)
    if not request.resume and processes.first():
        request.kept.remove()
    start = time.perf_counter()
    parameters = {**PRESETS[preset], **method.parameters, **request.parameters}
    parameters = {n: v for n, v in parameters.items() if n in method.options or n == "algorithm"}
    estimator, curve = _make(request, method, parameters, rows, tell, callback)
    tell("fitting")
    number = _fit(estimator, rows, request.kept)
    seconds = time.perf_counter() - start
    if not processes.first():
        if number is not None:
            raise Stopped(number)
        return None
    if method.deep:  # none of these is a part of the model
        estimator.set_params(callbacks=None, pretrained=None, checkpoint=None)
    tell("scoring")
    labels = _host(estimator.labels_)
    notes = Notes(
        preparation.to_json(),
        None if place is None else asdict(place),
        request.method,
        preset,
        round(seconds, 3),
        _label_free(estimator, rows, labels),
        None if known is None else metrics.scores(known[0], labels[known[1]]),
        None if curve is None else _plain(curve),
        number is not None,
        list(dict.fromkeys(warnings)),
    )
    tell("writing")
    replaces = request.overwrite or request.resume
    save(estimator, request.out, overwrite=replaces, ids=data.ids, notes=notes.to_json())
    if number is None:
        request.kept.remove()
        if request.report:
            tell("report")
            write_report(request.out / storage.REPORT, estimator, data, notes)
    return Fitted(estimator, data, notes, number)


def _fit(estimator: Any, rows: Any, kept: Kept) -> int | None:
    """Fit; the number of the signal if one interrupted it: the state of the last step is kept."""
    try:
        estimator.fit(rows)
    except Interrupted as interrupted:
        return interrupted.signal
    except FloatingPointError:  # it would fail in the same way again
        if processes.first():
            kept.remove()
        raise
    return None


def _make(
    request: Request,
    method: Method,
    parameters: dict[str, Any],
    rows: Any,
    tell: Callable[[str], None],
    callback: Callback,
) -> tuple[Any, KCurve | None]:
    """The estimator to fit, its number of clusters chosen if need be."""
    cls = getattr(estimators, method.name)
    if method.deep:
        parameters = {**parameters, "callbacks": [callback], "checkpoint": request.kept.fit}
    if isinstance(request.n_clusters, int):
        return _lasting(cls(request.n_clusters, **parameters)), None
    low, high = request.n_clusters
    tried, seed = range(low, high + 1), parameters["random_state"]
    if not method.deep:
        tell("choosing k")
        curve = _same(choose_k(rows, tried, random_state=seed))
        return cls(curve.chosen, **parameters), curve
    # one autoencoder serves every k, and the fit that follows; of the method's own class, since
    # methods differ in how they compare codes
    alone = {"epochs": 0, "init": "k-means++", "checkpoint": request.kept.autoencoder}
    autoencoder = _lasting(cls(low, **{**parameters, **alone})).fit(rows)
    tell("choosing k")
    curve = _same(choose_k(autoencoder.transform(rows), tried, random_state=seed))
    return _lasting(cls(curve.chosen, pretrained=autoencoder, **parameters)), curve


def _same(curve: KCurve) -> KCurve:
    """With the choice of the first process: rounding may tell two machines otherwise."""
    with processes.together():
        return replace(curve, chosen=processes.number_from_first(curve.chosen))


def _lasting(estimator: Any) -> Any:
    """Its checkpoints stay until the run is written."""
    estimator.leaves_checkpoints = True
    return estimator


def _possible(request: Request, n: int) -> int | tuple[int, int]:
    """The number of clusters, or those to choose from, that n rows can have."""
    asked = request.n_clusters
    if isinstance(asked, int):
        if asked > n:
            raise ValueError(f"{asked} clusters cannot be made of {n} row{'s' * (n != 1)}")
        return asked
    low, high = asked
    if n < 4:
        raise ValueError(f"-k auto needs at least 4 rows to choose by, got {n}: give a number")
    if request.up_to_rows:
        high = min(high, n - 1)
    if high >= n:
        raise ValueError(
            f"{high} clusters cannot be tried on {n} rows: --k-range 2:{n - 1} at most"
        )
    return low, high


def _spread_unequally(rows: Any) -> bool:
    """Whether a deep method would standardise each feature."""
    held = rows if isinstance(rows, np.ndarray) else np.asarray(rows, dtype=np.float64)
    numbers = open_rows(held, device=torch.device("cpu"), dtype=torch.float64).rows
    return choose_scale(feature_moments(numbers)) == "standard"


def _known_labels(data: Data) -> tuple[list[str], npt.NDArray[np.bool_]] | None:
    """Labels of the rows that have one, as text, and which those are; None if there are none."""
    if data.labels is None:
        return None
    known = np.array([label is not None and label == label for label in data.labels])
    if not known.any():
        return None
    return [str(label) for label, here in zip(data.labels, known, strict=True) if here], known


def _label_free(estimator: Any, rows: Any, labels: npt.NDArray[Any]) -> dict[str, float]:
    """Scores that need no labels; the silhouette embeds no more rows than it looks at."""
    some = evenly(len(labels), SILHOUETTE_ROWS)
    codes, _ = embed(estimator, rows.iloc[some] if hasattr(rows, "iloc") else rows[some])
    scores = label_free(estimator, labels, float(estimator.inertia_))
    return scores | silhouette(codes, labels[some])


def _plain(curve: KCurve) -> dict[str, Any]:
    return {**asdict(curve), "scores": {n: list(v) for n, v in curve.scores.items()}}


def _host(labels: Any) -> npt.NDArray[np.int64]:
    return torch.as_tensor(labels).cpu().numpy().astype(np.int64)
