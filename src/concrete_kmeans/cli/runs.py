"""A run: the model folder of ``ckm fit``, and what it remembers of its input."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from concrete_kmeans import files, load, readers, storage
from concrete_kmeans.checkpoints import holds_checkpoints, remove_checkpoints
from concrete_kmeans.readers import Data
from concrete_kmeans.report import Images, Items, KCurve, Texts, collect, write
from concrete_kmeans.validation import check_types

__all__ = [
    "Input",
    "Kept",
    "Notes",
    "notes_of",
    "open_model",
    "read_new",
    "rows_for",
    "rows_of",
    "training_data",
    "write_report",
]

#: Key of ``config.json`` that holds the notes.
KEY = "run"


@dataclass(frozen=True)
class Input:
    """Where the rows of a fit came from."""

    path: str
    """Absolute."""
    format: str | None
    sha256: str

    @classmethod
    def of(cls, source: str, form: str | None) -> Input | None:
        """Of a file or a folder; None of standard input."""
        if source == "-" or not Path(source).exists():
            return None
        return cls(str(Path(source).absolute()), form, files.digest(Path(source)))


@dataclass(frozen=True)
class Notes:
    """What ``ckm fit`` writes into a model folder beside the model; ready for JSON."""

    preparation: dict[str, Any]
    """How the input becomes rows."""
    input: dict[str, Any] | None
    method: str
    preset: str
    seconds: float
    scores: dict[str, float]
    """Label-free."""
    label_scores: dict[str, float] | None
    k_curve: dict[str, Any] | None
    interrupted: bool
    warnings: list[str]

    def place(self) -> Input | None:
        """Where the rows came from; None of standard input."""
        return None if self.input is None else Input(**self.input)

    def curve(self) -> KCurve | None:
        """Why this number of clusters, if it was chosen."""
        return None if self.k_curve is None else KCurve(**self.k_curve)

    def to_json(self) -> dict[str, Any]:
        """As the key of ``config.json`` that they stand under."""
        return {KEY: asdict(self)}


class Kept:
    """Checkpoints of a fit whose run is not written yet, in a hidden folder beside its place."""

    def __init__(self, run: Path) -> None:
        place = run.resolve()
        self.run, self.folder = run, place.with_name(f".{place.name}.checkpoints")
        self.autoencoder, self.fit = self.folder / "autoencoder", self.folder / "fit"

    def __bool__(self) -> bool:
        """Whether there are any."""
        return holds_checkpoints(self.autoencoder) or holds_checkpoints(self.fit)

    def check(self, *, resume: bool, overwrite: bool) -> None:
        """Refuse to go on with nothing, or to drop what may be gone on with unasked."""
        if not resume:
            if self and not overwrite:
                raise FileExistsError(
                    f"a fit that was stopped has left checkpoints in {self.folder}: --resume goes "
                    "on with it, --overwrite begins anew"
                )
            return
        replaced = overwrite or not storage.is_model_folder(self.run)
        if not replaced and not notes_of(self.run).interrupted:
            raise FileExistsError(f"{self.run} is finished: --resume has nothing to go on with")
        if not self:
            raise FileNotFoundError(
                f"no checkpoint to go on with in {self.folder}: leave out --resume to begin anew"
            )

    def remove(self) -> None:
        """The run is written, or begins anew."""
        for folder in (self.autoencoder, self.fit, self.folder):
            remove_checkpoints(folder)


def notes_of(folder: Path) -> Notes:
    """The notes of a run, which a model saved from Python does not have."""
    found = storage.read_config(folder).get(KEY)
    if found is None:
        raise ValueError(
            f"{folder} was not written by ckm fit: it does not say how rows are prepared; "
            "concrete_kmeans.load reads it in Python"
        )
    try:
        check_types(Notes, found)
        notes = Notes(**found)
        check_types(Input, notes.input or {})
        check_types(KCurve, notes.k_curve or {})
        notes.place()
        notes.curve()
    except (TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"{folder / storage.CONFIG} is damaged: {KEY}: {error}") from error
    return notes


def open_model(folder: Path, device: str = "auto") -> Any:
    """The fitted estimator, to compute on a device of this machine, whatever it was fitted on."""
    return load(folder).set_params(device=device)


def read_new(
    folder: Path, notes: Notes, source: str, form: str | None, embed: str | None = None
) -> Data:
    """Rows of another input, prepared as those of the fit were."""
    try:
        return readers.read_again(source, notes.preparation, form=form, embed=embed)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{folder / storage.CONFIG} is damaged: the preparation of rows is not whole "
            f"({type(error).__name__}: {error})"
        ) from error


def training_data(folder: Path, notes: Notes, embed: str | None = None) -> Data:
    """The rows of the fit, read again from where they were."""
    ask = f"give the rows to show by --input, or --no-input; {folder} does not hold them"
    place = notes.place()
    if place is None:
        raise ValueError(f"the rows came from standard input: {ask}")
    if not Path(place.path).exists():
        raise FileNotFoundError(f"{place.path}, the input of the fit, is gone: {ask}")
    if files.digest(Path(place.path)) != place.sha256:
        raise ValueError(f"{place.path}, the input of the fit, has changed since: {ask}")
    return read_new(folder, notes, place.path, place.format, embed)


def rows_for(rows: Any, *, keep_shape: bool) -> Any:
    """Rows as an estimator takes them: pictures as they are, or flat."""
    if keep_shape or sparse.issparse(rows) or rows.ndim == 2:
        return rows
    return rows.reshape(len(rows), -1)


def rows_of(estimator: Any, data: Data) -> Any:
    """Rows as a fitted estimator takes them."""
    return rows_for(data.rows, keep_shape=len(getattr(estimator, "feature_shape_", ())) > 1)


def write_report(
    path: Path,
    estimator: Any,
    data: Data | None,
    notes: Notes,
    *,
    title: str | None = None,
    source: str | None = None,
) -> None:
    """Write the report of a run; without data it has no map.

    Without a title it has that of the input, which is the fit's unless another is named.
    """
    rows: Any = None
    shown: dict[str, Any] = {}
    place = notes.place()
    source = source or (None if place is None else place.path)
    if data is not None:
        rows = rows_of(estimator, data)
        counted = data.ids == [str(i) for i in range(len(data.ids))]
        ids = None if counted else data.ids
        shown = {"classes": data.labels, "ids": ids, "items": _items(data)}
    collected = collect(estimator, rows, title=title, k_curve=notes.curve(), **shown)
    if title is None and source not in (None, "-"):
        collected = replace(
            collected, title=f"{Path(str(source)).absolute().name}: {collected.title}"
        )
    write(collected, path)


def _items(data: Data) -> Items | None:
    """Texts or pictures; None leaves the columns of the rows to be shown."""
    if data.kind == "image" and np.ndim(data.rows) > 2:
        return Images.from_rows(data.rows, data.rows.shape[1:])
    if data.kind == "text" and data.items is not None:
        return Texts(data.items)
    return None
