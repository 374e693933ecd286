"""Tables: numbers as they are, categories one-hot, lists of numbers as embeddings."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from decimal import Decimal
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
#: More of them than this, in more than half of the rows, are names of rows rather than categories.
FEW_CATEGORIES = 10
#: More different numbers than this, in nine of ten rows, are numbers, whatever the others hold.
FEW_NUMBERS, MOSTLY = 20, 0.9
#: A day, with or without a time, the year first or last.
DATE = re.compile(
    r"\s*(\d{4}([-/.])\d{1,2}\2\d{1,2}|\d{1,2}([-/.])\d{1,2}\3(\d{4}|\d{2}))"
    r"([ T]\d{1,2}:\d{2}.*)?\s*"
)
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
        elif id_column is None and (named := _named_ids(frame, roles)):
            id_column = named
            notes.append(f"Column {named!r} differs in every row: taken for their ids.")
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
        elif self.id_column is not None and not _is_id(self.id_column):
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
            unseen = missing.all(1) & series.notna().to_numpy()
            if unseen.any():
                row = int(unseen.argmax())
                wrong = f"the fit has not seen {str(series[row])[:40]!r}, row {row}"
            else:
                wrong = f"{_how_many(missing)} missing"
            raise ValueError(
                f"{source}: column {column.name!r}: {wrong}; fill it, or fit with --missing mean, "
                "which puts the mean there"
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


def _named_ids(frame: Any, roles: list[str | None]) -> str | None:
    """A column that is called id, has no other role, and another number or text in every row."""
    for name in frame.columns:
        if str(name).lower() == "id" and name not in roles:
            series = frame[name]
            told = series.dtype.kind in "iu" or series.map(lambda one: isinstance(one, str)).all()
            return str(name) if told and series.is_unique else None
    return None


def _is_id(name: str) -> bool:
    """Whether a column can be taken for ids by its name; new rows need not have it."""
    return name == UNNAMED or name.lower() == "id"


def _learned(source: str, series: Any, missing: Missing) -> Column:
    if series.isna().all():
        raise ValueError(f"{source}: column {series.name!r} is empty: --drop it")
    kind = _kind(source, series)
    categories = _categories(source, series) if kind == "category" else []
    size = len(categories) if kind == "category" else 1
    if kind == "vector":
        size = len(series.dropna().iloc[0])
        if size == 0:
            raise ValueError(f"{source}: column {series.name!r} holds empty lists: --drop it")
    column = Column(series.name, kind, [0.0] * size, categories)
    values = _values(source, column, series)
    there = ~np.isnan(values)
    if not there.any(0).all():
        raise ValueError(
            f"{source}: column {series.name!r} has a feature without values: --drop it"
        )
    if missing == "error" and not there.all():
        raise ValueError(
            f"{source}: column {series.name!r}: {_how_many(~there)} missing; fill it, --drop it, "
            "or use --missing mean"
        )
    means = np.nanmean(values, 0).tolist() if missing == "mean" else column.means
    return Column(series.name, kind, means, categories)


def _how_many(missing: npt.NDArray[np.bool_]) -> str:
    n = int(missing.any(1).sum())
    return f"{n} of {len(missing)} values {'is' if n == 1 else 'are'}"


def _categories(source: str, series: Any) -> list[str]:
    """Those of a column of texts, unless it was meant for numbers or names."""
    known = series.dropna()
    categories = sorted({str(value) for value in known})
    elsewhere = "use it by --text-column, --label-column or --id-column, or --drop it"
    numbers = need("pandas", "a table").to_numeric(known, errors="coerce")
    if numbers.notna().mean() >= MOSTLY and numbers.nunique() > FEW_NUMBERS:
        wrong = numbers.isna()
        raise ValueError(
            f"{source}: column {series.name!r} holds numbers, but row {wrong.idxmax()} is "
            f"{known[wrong].iloc[0]!r}: leave it empty if it is missing, or --drop the column"
        )
    if len(categories) > MAX_CATEGORIES:
        raise ValueError(
            f"{source}: column {series.name!r} holds {len(categories)} different texts, more than "
            f"{MAX_CATEGORIES}: {elsewhere}"
        )
    if len(categories) > max(FEW_CATEGORIES, len(known) / 2):
        raise ValueError(
            f"{source}: column {series.name!r} holds {len(categories)} different texts in "
            f"{len(known)} rows, names rather than categories: {elsewhere}"
        )
    return categories


def _kind(source: str, series: Any) -> Literal["number", "category", "vector"]:
    types = need("pandas", "a table").api.types
    known = series.dropna()
    dates = types.is_datetime64_any_dtype(series.dtype) or all(map(_is_date, known))
    if types.is_complex_dtype(series.dtype) or dates:
        what = "dates" if dates else "complex numbers"
        raise ValueError(f"{source}: column {series.name!r} holds {what}: --drop it")
    if types.is_numeric_dtype(series.dtype) or all(isinstance(v, Decimal) for v in known):
        return "number"
    if isinstance(known.iloc[0], list | tuple | np.ndarray):
        return "vector"
    if types.is_timedelta64_dtype(series.dtype) or _is_strange(known):
        raise ValueError(
            f"{source}: column {series.name!r} holds neither numbers nor texts: --drop it"
        )
    return "category"


def _is_date(value: object) -> bool:
    text = isinstance(value, str) and DATE.fullmatch(value) is not None
    return text or isinstance(value, dt.date)


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
