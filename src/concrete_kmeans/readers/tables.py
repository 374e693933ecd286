"""Tables: numbers as they are, categories one-hot, lists of numbers as embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Literal, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from concrete_kmeans.readers.contents import (
    Data,
    Missing,
    Options,
    Preparation,
    need,
    plain_values,
    unknown,
)
from concrete_kmeans.readers.files import Frame, Input
from concrete_kmeans.validation import check_types

__all__ = ["Column", "TablePreparation"]

Numbers: TypeAlias = npt.NDArray[np.float64]

#: Different texts in a column of categories, at most.
MAX_CATEGORIES = 100
#: Name that pandas gives to a first column without one.
UNNAMED = "Unnamed: 0"


@dataclass(frozen=True)
class Column:
    """How a column becomes features."""

    name: str
    kind: Literal["number", "category", "vector"]
    means: list[float]
    """Of its features, in the rows of the fit: what stands for a missing value."""
    categories: list[str] = field(default_factory=list)

    @property
    def features(self) -> list[str]:
        """Their names."""
        if self.kind == "number":
            return [self.name]
        if self.kind == "category":
            return [f"{self.name}={category}" for category in self.categories]
        return [f"{self.name}.{i}" for i in range(len(self.means))]


@dataclass(frozen=True)
class TablePreparation(Preparation):
    """Columns in an order, one-hot categories and means.

    A value that is missing, or a category that the fit has not seen, is an error that names the
    column; with ``missing="mean"`` the means of the features stand for it.
    """

    name: ClassVar[str] = "table"

    columns: list[Column]
    missing: Missing
    label_column: str | None = None
    id_column: str | None = None

    @classmethod
    def learn(cls, found: Any, options: Options) -> tuple[Data, TablePreparation]:
        """Find the kind of each column, its categories and means."""
        given: Frame = found
        if options.size is not None:
            raise ValueError(f"--size has no meaning here: {given.name} is a table")
        frame, notes = given.frame, []
        roles = [options.label_column, options.id_column, *options.columns, *options.drop]
        for name in roles:
            if name is not None and name not in frame:
                raise unknown(f"{given.name}: column", name, frame.columns)
        id_column = options.id_column
        if id_column is None and _counts_rows(frame) and UNNAMED not in options.columns:
            id_column = UNNAMED
            notes.append("The first column has no name and counts the rows: taken for their ids.")
        out = {options.label_column, id_column, *options.drop}
        chosen = [name for name in options.columns or frame.columns if name not in out]
        if not chosen:
            raise ValueError(f"{given.name}: no column is left to cluster by")
        columns = [_learned(given.name, frame[name], options.missing) for name in chosen]
        preparation = cls(columns, options.missing, options.label_column, id_column)
        data = preparation.apply(given)
        data.notes.extend(notes)
        return data, preparation

    def apply(self, found: Input) -> Data:
        """The same features of another table; columns it has besides are passed over."""
        if not isinstance(found, Frame):
            raise ValueError(f"{found.name} is no table, as the file of the fit was")  # noqa: TRY004
        pd = need("pandas", "a table")
        frame = found.frame
        for column in self.columns:
            if column.name not in frame:
                raise unknown(f"{found.name}: column", column.name, frame.columns)
        parts = [self._features(found.name, column, frame[column.name]) for column in self.columns]
        names = [name for column in self.columns for name in column.features]
        ids = [str(i) for i in range(len(frame))]
        if self.id_column is not None and self.id_column in frame:
            ids = [str(value) for value in frame[self.id_column]]
        elif self.id_column not in (None, UNNAMED):
            raise unknown(f"{found.name}: column", str(self.id_column), frame.columns)
        labels = None
        if self.label_column is not None and self.label_column in frame:
            labels = plain_values(frame[self.label_column])
        vectors = all(column.kind == "vector" for column in self.columns)
        return Data(
            pd.DataFrame(np.concatenate(parts, axis=1), columns=names),
            "embeddings" if vectors else "tabular",
            ids,
            feature_names=names,
            labels=labels,
        )

    def _features(self, source: str, column: Column, series: Any) -> Numbers:
        values = _values(source, column, series)
        missing = np.isnan(values)
        if not missing.any():
            return values
        if self.missing == "error":
            n = int(missing.any(1).sum())
            raise ValueError(
                f"{source}: column {column.name!r} misses {n} of {len(values)} values, or holds "
                "what the fit has not seen: fill it, --drop it, or use --missing mean"
            )
        return np.where(missing, column.means, values)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Self:
        """What ``to_json`` gave."""
        for column in value["columns"]:
            check_types(Column, column)
        columns = [Column(**column) for column in value["columns"]]
        return super().from_json({**value, "columns": columns})

    def to_json(self) -> dict[str, Any]:
        """Everything, ready for JSON."""
        return {**super().to_json(), "columns": [asdict(column) for column in self.columns]}


def _counts_rows(frame: Any) -> bool:
    """Whether the first column is the row numbers that pandas writes without a name."""
    if frame.columns[0] != UNNAMED:
        return False
    numbers = frame[UNNAMED].to_numpy()
    return numbers.dtype.kind in "iu" and bool(np.array_equal(numbers, np.arange(len(frame))))


def _learned(source: str, series: Any, missing: Missing) -> Column:
    if series.isna().all():
        raise ValueError(f"{source}: column {series.name!r} is empty: --drop it")
    kind = _kind(source, series)
    categories: list[str] = []
    if kind == "category":
        categories = sorted({str(value) for value in series.dropna()})
        if len(categories) > MAX_CATEGORIES:
            raise ValueError(
                f"{source}: column {series.name!r} holds {len(categories)} different texts, more "
                f"than {MAX_CATEGORIES}: use it by --text-column, --label-column or --id-column, "
                "or --drop it"
            )
    size = len(categories) if kind == "category" else 1
    if kind == "vector":
        size = len(series.dropna().iloc[0])
        if size == 0:
            raise ValueError(f"{source}: column {series.name!r} holds empty lists: --drop it")
    column = Column(series.name, kind, [0.0] * size, categories)
    values = _values(source, column, series)
    if np.isnan(values).all(0).any():
        raise ValueError(
            f"{source}: column {series.name!r} has a feature without values: --drop it"
        )
    means = np.nanmean(values, 0).tolist() if missing == "mean" else column.means
    return Column(series.name, kind, means, categories)


def _kind(source: str, series: Any) -> Literal["number", "category", "vector"]:
    types = need("pandas", "a table").api.types
    if types.is_complex_dtype(series.dtype) or types.is_datetime64_any_dtype(series.dtype):
        what = "complex numbers" if types.is_complex_dtype(series.dtype) else "dates"
        raise ValueError(f"{source}: column {series.name!r} holds {what}: --drop it")
    if types.is_numeric_dtype(series.dtype):
        return "number"
    known = series.dropna()
    if len(known) and isinstance(known.iloc[0], list | tuple | np.ndarray):
        return "vector"
    if types.is_timedelta64_dtype(series.dtype) or _is_strange(known):
        raise ValueError(
            f"{source}: column {series.name!r} holds neither numbers nor texts: --drop it"
        )
    return "category"


def _is_strange(known: Any) -> bool:
    return not all(isinstance(value, str | bool | int | float) for value in known)


def _values(source: str, column: Column, series: Any) -> Numbers:
    """Features (N, size); NaN where a value is missing or not known."""
    if column.kind == "category":
        return _one_hot(column.categories, series)
    if column.kind == "vector":
        return _stacked(source, column, series)
    pd = need("pandas", "a table")
    numbers = pd.to_numeric(series, errors="coerce")
    wrong = numbers.isna() & series.notna()
    if wrong.any():
        row = int(wrong.to_numpy().argmax())
        raise ValueError(
            f"{source}: column {column.name!r} must hold numbers, row {row} is {series[row]!r}"
        )
    values: Numbers = numbers.to_numpy(np.float64, na_value=np.nan)
    _check_finite(source, column.name, values)
    return values[:, None]


def _check_finite(source: str, name: str, values: Numbers) -> None:
    if np.isinf(values).any():
        raise ValueError(f"{source}: column {name!r} holds infinity")


def _one_hot(categories: Sequence[str], series: Any) -> Numbers:
    place = {category: i for i, category in enumerate(categories)}
    codes = np.array(
        [
            -1 if missing else place.get(str(value), -1)
            for missing, value in zip(series.isna(), series, strict=True)
        ]
    )
    rows: Numbers = np.eye(len(categories))[codes]
    rows[codes < 0] = np.nan
    return rows


def _stacked(source: str, column: Column, series: Any) -> Numbers:
    rows = np.full((len(series), len(column.means)), np.nan)
    for i, (missing, value) in enumerate(zip(series.isna(), series, strict=True)):
        if missing:
            continue
        try:
            rows[i] = np.asarray(value, np.float64).reshape(-1)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"{source}: column {column.name!r} must hold {len(column.means)} numbers a row, "
                f"row {i} is {str(value)[:40]!r}"
            ) from error
    _check_finite(source, column.name, rows)
    return rows
