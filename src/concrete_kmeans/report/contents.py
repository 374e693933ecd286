"""What a report shows, whatever it was collected from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["Images", "Items", "KCurve", "ReportData", "Table", "Texts"]

Numbers: TypeAlias = npt.NDArray[Any]

#: A page has two bytes for the cluster of a row.
MAX_CLUSTERS = 2**16


@dataclass(frozen=True)
class Images:
    """Pictures, one a row: uint8 of shape (n, h, w) or (n, h, w, 3).

    Only the rows that are shown are read, so a memmap will do.
    """

    pixels: Numbers

    def __post_init__(self) -> None:
        shape = np.shape(self.pixels)
        if len(shape) not in (3, 4) or (len(shape) == 4 and shape[3] != 3) or 0 in shape[1:]:
            raise ValueError(f"pixels must have shape (n, h, w) or (n, h, w, 3), got {shape}")
        if self.pixels.dtype != np.uint8:
            raise TypeError(f"pixels must be uint8, got {self.pixels.dtype}")

    def __len__(self) -> int:
        return len(self.pixels)

    @classmethod
    def from_rows(
        cls, rows: Any, shape: Sequence[int], limits: tuple[float, float] | None = None
    ) -> Images:
        """Pictures of rows of numbers.

        Parameters
        ----------
        rows : array of shape (n, ...)
            Any numbers.
        shape : (h, w), (1, h, w) or (3, h, w)
        limits : (low, high), optional
            The numbers that are black and white; by default the smallest, or 0 if all are above,
            and the largest.
        """
        rows = np.asarray(rows).reshape(len(rows), *shape)
        if rows.ndim == 4:
            if shape[0] not in (1, 3):
                raise ValueError(f"shape must be (h, w), (1, h, w) or (3, h, w), got {shape}")
            rows = rows[:, 0] if shape[0] == 1 else np.moveaxis(rows, 1, 3)
        if rows.dtype == np.uint8 and limits is None:
            return cls(rows)
        low, high = limits or value_limits(rows)
        out = np.empty(rows.shape, np.uint8)
        for start in range(0, len(rows), 1024):  # the floats of all rows would be a second copy
            piece = rows[start : start + 1024].astype(np.float32)
            scaled = (piece - low) * (255.0 / max(high - low, 1e-30))
            out[start : start + 1024] = scaled.round().clip(0, 255)
        return cls(out)


def value_limits(rows: Numbers) -> tuple[float, float]:
    """The numbers of ``rows`` that are shown black and white."""
    return (min(float(rows.min()), 0.0), float(rows.max())) if rows.size else (0.0, 1.0)


@dataclass(frozen=True)
class Texts:
    """A text a row."""

    texts: Sequence[str]

    def __post_init__(self) -> None:
        if isinstance(self.texts, str):
            raise TypeError("texts must be a sequence with a str a row, got one str")
        for row, text in enumerate(self.texts):
            if not isinstance(text, str):
                raise TypeError(f"texts must be str, got {type(text).__name__} in row {row}")

    def __len__(self) -> int:
        return len(self.texts)


@dataclass(frozen=True)
class Table:
    """Numbers with names: values of shape (n, n_features), NaN where there is none."""

    values: Numbers
    names: Sequence[str]

    def __post_init__(self) -> None:
        shape = np.shape(self.values)
        if len(shape) != 2 or shape[1] != len(self.names):
            raise ValueError(
                f"values must have shape (n, {len(self.names)}), a column a name, got {shape}"
            )
        values = np.asarray(self.values)
        if values.dtype.kind not in "biuf":
            raise TypeError(f"values must be numbers, got {values.dtype}")
        if np.isinf(values).any():
            row, column = np.argwhere(np.isinf(values))[0]
            raise ValueError(
                f"values must be finite or NaN, got {values[row, column]} in row {row} of "
                f"{self.names[column]!r}"
            )
        object.__setattr__(self, "values", values)

    def __len__(self) -> int:
        return len(self.values)


Items: TypeAlias = Images | Texts | Table


@dataclass(frozen=True)
class KCurve:
    """Why this number of clusters: scores over the numbers that were tried."""

    k: Sequence[int]
    scores: Mapping[str, Sequence[float]]
    """Under the name of each score, a value for each of ``k``."""
    chosen: int
    reasons: Sequence[str] = ()
    """Sentences."""

    def __post_init__(self) -> None:
        for name, values in self.scores.items():
            if len(values) != len(self.k):
                raise ValueError(f"scores[{name!r}] has {len(values)} values for {len(self.k)} k")


def check_lengths(n: int, **parts: Any) -> None:
    """Refuse parts, other than None, that have not one element a row."""
    for name, value in parts.items():
        if value is not None and len(value) != n:
            raise ValueError(f"{name} must have {n} rows, as labels has, got {len(value)}")


@dataclass(frozen=True)
class ReportData:
    """What a report is made of; only the first three are needed.

    Attributes
    ----------
    title : str
    labels : array-like of int of shape (n,)
        Clusters, 0 to ``n_clusters - 1``.
    n_clusters : int
    subtitle : str
    figures : mapping from str to number or str
        Label-free figures in the order shown; the page explains those it knows.
    map : array of shape (n, 2), optional
    map_caption : str
        What the map is.
    distance : array of shape (n,), optional
        To the own centre: the nearest are the most typical.
    doubt : array of shape (n,), optional
        From 0, at the own centre, to 1, as near to another.
    classes : sequence of n labels, optional
        Known classes, of any kind that can be shown as text.
    items : Images, Texts or Table, optional
        What the rows are.
    ids : sequence of n str, optional
        Names of the rows.
    centers : Images, optional
        Of ``n_clusters`` decoded centres.
    history : sequence of mappings
        As ``dataclasses.asdict`` of :class:`concrete_kmeans.training.Event` gives them.
    restarts : sequence of mappings from str to number or str
        A row a restart, all with the same keys.
    best_restart : int
    agreement : array of shape (R, R), optional
        Adjusted Rand index between restarts.
    k_curve : KCurve, optional
    """

    title: str
    labels: Any
    n_clusters: int
    subtitle: str = ""
    figures: Mapping[str, float | str] = field(default_factory=dict)
    map: Numbers | None = None
    map_caption: str = ""
    distance: Numbers | None = None
    doubt: Numbers | None = None
    classes: Any = None
    items: Items | None = None
    ids: Sequence[str] | None = None
    centers: Images | None = None
    history: Sequence[Mapping[str, Any]] = ()
    restarts: Sequence[Mapping[str, float | str]] = ()
    best_restart: int = 0
    agreement: Numbers | None = None
    k_curve: KCurve | None = None

    def __post_init__(self) -> None:
        labels = np.asarray(self.labels)
        if labels.ndim != 1 or labels.size == 0 or labels.dtype.kind not in "iu":
            raise ValueError(
                "labels must be whole numbers of shape (n,), at least one, got "
                f"{labels.dtype} of shape {labels.shape}"
            )
        if labels.min() < 0 or labels.max() >= self.n_clusters:
            raise ValueError(
                f"labels must be from 0 to n_clusters - 1 = {self.n_clusters - 1}, got "
                f"{labels.min()} to {labels.max()}"
            )
        object.__setattr__(self, "labels", labels)
        if self.n_clusters > MAX_CLUSTERS:
            raise ValueError(f"n_clusters must be at most {MAX_CLUSTERS:,}, got {self.n_clusters}")
        n = len(labels)
        parts = ("map", "distance", "doubt", "classes", "items", "ids")
        check_lengths(n, **{name: getattr(self, name) for name in parts})
        if self.map is not None and np.shape(self.map) != (n, 2):
            raise ValueError(f"map must have shape ({n}, 2), got {np.shape(self.map)}")
        for name in ("map", "distance", "doubt"):
            value = getattr(self, name)
            if value is not None and not np.isfinite(value).all():
                raise ValueError(f"{name} must be finite")
        if self.centers is not None and len(self.centers) != self.n_clusters:
            raise ValueError(
                f"centers must have {self.n_clusters} pictures, got {len(self.centers)}"
            )
