"""What is asked of a file, and what comes out of it."""

from __future__ import annotations

import abc
import importlib
import types
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from difflib import get_close_matches
from typing import Any, ClassVar, Literal, Self, TypeAlias

from concrete_kmeans.validation import check_types

__all__ = [
    "Data",
    "Kind",
    "Missing",
    "Mode",
    "Options",
    "Preparation",
    "need",
    "plain_values",
    "unknown",
]

Kind: TypeAlias = Literal["tabular", "image", "text", "embeddings"]
Missing: TypeAlias = Literal["error", "mean"]
Mode: TypeAlias = Literal["auto", "grey", "rgb"]


@dataclass(frozen=True)
class Options:
    """What the user says about an input."""

    format: str | None = None
    """Instead of the ending of the file's name."""
    columns: Sequence[str] = ()
    """The features; all by default. Of a file of several arrays, the name of one."""
    drop: Sequence[str] = ()
    label_column: str | None = None
    """For scores only."""
    id_column: str | None = None
    text_column: str | None = None
    missing: Missing = "error"
    """Of values that are not there: refuse them, or put the mean of the feature."""
    size: tuple[int, int] | None = None
    """Height and width that pictures are resized to."""
    mode: Mode = "auto"
    """Of pictures; ``"auto"`` is grey if all are."""
    max_words: int = 2000
    embed: str | None = None
    """Name of a sentence-transformers model for texts."""

    def check_for(self, source: str, *, of_text: bool) -> None:
        """Refuse what has no meaning for this kind of input."""
        wrong = {"--columns": self.columns, "--drop": self.drop, "--size": self.size}
        if not of_text:
            wrong = {"--embed": self.embed}
        for option, value in wrong.items():
            if value:
                kind = "texts" if of_text else "no texts"
                raise ValueError(f"{option} has no meaning here: {source} is read as {kind}")


@dataclass(frozen=True)
class Data:
    """Rows, and what is known of them."""

    rows: Any
    """DataFrame or array (N, D), CSR matrix (N, D), or pictures (N, H, W) or (N, 3, H, W)."""
    kind: Kind
    ids: list[str]
    """Name of each row."""
    feature_names: list[str] | None = None
    labels: list[Any] | None = None
    """For scores only."""
    items: list[str] | None = None
    """Texts, or paths of pictures."""
    notes: list[str] = field(default_factory=list)
    """What the reader decided on its own, in sentences."""


@dataclass(frozen=True)
class Preparation(abc.ABC):
    """How an input becomes rows; learned from the rows of a fit, repeated on others."""

    name: ClassVar[str]

    @classmethod
    @abc.abstractmethod
    def learn(cls, found: Any, options: Options) -> tuple[Data, Preparation]:
        """Learn it from an opened input; return the rows as well."""

    @abc.abstractmethod
    def apply(self, found: Any) -> Data:
        """Rows of another opened input."""

    def to_json(self) -> dict[str, Any]:
        """Everything, ready for JSON."""
        return {"reader": self.name, **asdict(self)}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Self:
        """What :meth:`to_json` gave."""
        given = {key: item for key, item in value.items() if key != "reader"}
        check_types(cls, given)
        return cls(**given)


def need(module: str, what: str, package: str = "concrete-kmeans[data]") -> types.ModuleType:
    """Import a module that is not always installed."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"{what} needs {module.partition('.')[0]}: pip install '{package}'"
        ) from error


def plain_values(series: Any) -> list[Any]:
    """Values of a column of a table; None for those that are missing, whatever stands for them.

    >>> import pandas
    >>> plain_values(pandas.Series([1, 2, None]))  # pandas makes floats of these
    [1, 2, None]
    """
    if series.dtype.kind == "f" and series.isna().any():
        known = series.dropna()
        if (known % 1 == 0).all() and (known.abs() < 2**53).all():
            series = series.astype("Int64")
    return [
        None if missing else value
        for missing, value in zip(series.isna(), series.tolist(), strict=True)
    ]


def unknown(what: str, name: str, known: Iterable[object]) -> ValueError:
    """The error for a name that is not there, with the nearest that is."""
    names = [str(item) for item in known]
    near = get_close_matches(name, names, n=1)
    listed = ", ".join(map(repr, names[:10])) + (", ..." if len(names) > 10 else "")
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return ValueError(f"{what} {name!r} is not among {listed or 'none'}{hint}")
