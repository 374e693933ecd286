"""Arrays of numbers: one from a file, checked, pictures with their channels first."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, cast

import numpy as np
from scipy import sparse

from concrete_kmeans.readers.contents import Data, Kind, Missing, Options, Preparation, unknown
from concrete_kmeans.readers.files import Arrays, Input

__all__ = ["ArrayPreparation"]

#: Rows of so many floats without names, or more, are taken for embeddings.
MIN_EMBEDDING = 100
#: The least side of a picture.
MIN_SIDE = 4
#: Numbers that are checked at a time.
PIECE = 2**22


@dataclass(frozen=True)
class ArrayPreparation(Preparation):
    """One array of a file, as it is."""

    name: ClassVar[str] = "array"

    array: str
    """Its name; empty where the file holds one without."""
    shape: list[int]
    """Of a row as it is in the file."""
    channels_last: bool
    missing: Missing
    kind: Kind
    means: list[float] = field(default_factory=list)
    """Of the features, if values may be missing."""
    label_array: str | None = None
    id_array: str | None = None

    @classmethod
    def learn(cls, found: Any, options: Options) -> tuple[Data, ArrayPreparation]:
        """Choose the array."""
        given: Arrays = found
        for option, value in (("--drop", options.drop), ("--size", options.size)):
            if value:
                raise ValueError(f"{option} has no meaning here: {given.name} holds arrays")
        name = _choose(given, options)
        array = _numbers(given, name)
        last = array.ndim == 4 and array.shape[3] in (1, 3) and array.shape[1] not in (1, 3)
        means = []
        if options.missing == "mean" and array.ndim == 2 and not sparse.issparse(array):
            means = _means(given.name, array)
        preparation = cls(
            name,
            list(array.shape[1:]),
            last,
            options.missing,
            _kind(array),
            means,
            options.label_column,
            options.id_column,
        )
        return preparation.apply(given), preparation

    def apply(self, found: Input) -> Data:
        """The same array of another file."""
        if not isinstance(found, Arrays):
            raise ValueError(f"{found.name} holds no array, as the file of the fit did")  # noqa: TRY004
        name = self.array if self.array in found.shapes else _only(found, self)
        array = _numbers(found, name)
        if list(array.shape[1:]) != self.shape:
            raise ValueError(
                f"{found.name}: rows must have the shape {tuple(self.shape)} of the fit, "
                f"got {tuple(array.shape[1:])}"
            )
        array = self._filled(found.name, array)
        if self.channels_last:
            array = np.ascontiguousarray(np.moveaxis(array, 3, 1))
        n = array.shape[0]
        return Data(
            array,
            self.kind,
            _column(found, self.id_array, n) or [str(i) for i in range(n)],
            labels=_column(found, self.label_array, n),
        )

    def _filled(self, name: str, array: Any) -> Any:
        """Without values that are missing."""
        if sparse.issparse(array):
            if not np.isfinite(cast("Any", array).data).all():
                raise ValueError(f"{name} holds NaN or infinity")
            return array
        feature = _first_missing(array)
        if feature is None:
            return array
        if not self.means:
            raise ValueError(
                f"{name}: feature {feature} holds NaN or infinity: fill it, or use --missing mean"
                + ("" if array.ndim == 2 else ", which is for rows with one axis")
            )
        if np.isinf(array).any():
            raise ValueError(f"{name}: feature {feature} holds infinity")
        return np.where(np.isnan(array), np.array(self.means, array.dtype), array)


def _choose(given: Arrays, options: Options) -> str:
    """Name of the array that holds the rows."""
    for role in (options.label_column, options.id_column, *options.columns):
        if role is not None and (role not in given.shapes or "" in given.shapes):
            raise unknown(f"{given.name}: array", role, [n for n in given.shapes if n])
    if len(options.columns) > 1:
        raise ValueError(f"--columns must name one array of {given.name}, got {options.columns}")
    if options.columns:
        return options.columns[0]
    taken = {options.label_column, options.id_column}
    rows = [n for n, shape in given.shapes.items() if len(shape) > 1 and n not in taken]
    if len(rows) == 1:
        return rows[0]
    listed = ", ".join(f"{n!r} {shape}" if n else str(shape) for n, shape in given.shapes.items())
    if not rows:
        raise ValueError(f"{given.name} holds no array of rows with features; it has {listed}")
    raise ValueError(f"{given.name} holds {listed}: choose one by --columns NAME")


def _only(found: Arrays, preparation: ArrayPreparation) -> str:
    """The array of a file that does not have the name of the fit's, if there is no doubt."""
    fitting = [n for n, s in found.shapes.items() if list(s[1:]) == preparation.shape]
    if len(fitting) != 1:
        raise unknown(f"{found.name}: array", preparation.array, found.shapes)
    return fitting[0]


def _numbers(given: Arrays, name: str) -> Any:
    array = given.get(name)
    if array.dtype.kind not in "biuf":
        raise ValueError(f"{given.name} must hold real numbers, got {array.dtype}")
    if array.ndim < 2:
        raise ValueError(
            f"{given.name} must have two axes or more, the first over rows, got {array.shape}"
        )
    if 0 in array.shape:
        raise ValueError(f"{given.name} has no rows or no features: its shape is {array.shape}")
    return array


def _kind(array: Any) -> Kind:
    if sparse.issparse(array):
        return "text"
    sides = array.shape[1:3]
    if array.ndim in (3, 4) and min(sides) >= MIN_SIDE:
        return "image"
    if array.ndim == 4 and min(array.shape[2:]) >= MIN_SIDE and array.shape[1] in (1, 3):
        return "image"
    wide = array.ndim == 2 and array.shape[1] >= MIN_EMBEDDING
    return "embeddings" if wide and array.dtype.kind == "f" else "tabular"


def _pieces(array: Any) -> Any:
    size = max(1, PIECE // int(np.prod(array.shape[1:])))
    for start in range(0, len(array), size):
        yield np.asarray(array[start : start + size])


def _first_missing(array: Any) -> int | None:
    """The first feature with a value that is no number; read piece by piece."""
    if array.dtype.kind != "f":
        return None
    for piece in _pieces(array):
        bad = ~np.isfinite(piece)
        if bad.any():
            return int(bad.reshape(len(piece), -1).any(0).argmax())
    return None


def _means(name: str, array: Any) -> list[float]:
    total, count = np.zeros(array.shape[1]), np.zeros(array.shape[1])
    for piece in _pieces(array):
        total += np.nansum(piece, 0, dtype=np.float64)
        count += (~np.isnan(piece)).sum(0)
    if not count.all():
        raise ValueError(f"{name}: feature {int(count.argmin())} has no value at all")
    means: list[float] = (total / count).tolist()
    return means


def _column(found: Arrays, name: str | None, n: int) -> list[Any] | None:
    """A label or name for each row, from another array."""
    if name is None or name not in found.shapes:
        return None
    values = found.get(name)
    if values.shape != (n,):
        raise ValueError(f"{found.name}: {name!r} must have the shape ({n},), got {values.shape}")
    return [v.decode("utf-8", "replace") if isinstance(v, bytes) else v for v in values.tolist()]
