"""The data sets of the paper's experiments, by name.

``load("digits")`` needs nothing. The others are looked for in the folder ``data_home``, then in
``$CKM_DATA_HOME``, then in the cache (``$XDG_CACHE_HOME/concrete-kmeans`` or
``~/.cache/concrete-kmeans``); what is found nowhere is downloaded from its public source into
the cache, once its checksum has been verified.
"""

from __future__ import annotations

import importlib.util
import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from concrete_kmeans.datasets import _fetch, _formats
from concrete_kmeans.datasets._fetch import DataNotFoundError, DataWarning, DownloadError
from concrete_kmeans.datasets._sources import FILES, LAYOUTS, TABLES
from concrete_kmeans.validation import shown

__all__ = ["load", "names", "Dataset", "DataWarning", "DataNotFoundError", "DownloadError"]

_DIGITS = tuple("0123456789")
_RECIPES: dict[str, dict[str, Any]] = {
    "raw": {},
    "plain": {"max_features": 2000},
    "sublinear": {"max_features": 2000, "sublinear_tf": True},
}


@dataclass(frozen=True, eq=False)
class Dataset:
    """Points with known classes; unpacks as ``X, y``.

    Attributes
    ----------
    name : str
        What :func:`load` was asked for.
    data : ndarray or sparse matrix of shape (n_samples, n_features), or list of str
        One row a point. Text is a CSR matrix, or the posts themselves with ``recipe="raw"``.
    target : ndarray of int64 of shape (n_samples,)
        Classes 0 to ``n_classes - 1``.
    target_names : tuple of str
        How the source writes each class.
    image_shape : tuple of int or None
        Height and width, when a row is an image.
    n_train : int or None
        Size of the original training part, which comes first, when the source has one.
    source : str
        Where the data were loaded from.

    Examples
    --------
    >>> from concrete_kmeans import datasets
    >>> datasets.load("digits").n_classes
    10
    """

    name: str
    data: Any = field(repr=False)
    target: NDArray[np.int64] = field(repr=False)
    target_names: tuple[str, ...]
    image_shape: tuple[int, int] | None
    n_train: int | None
    source: str

    @property
    def n_classes(self) -> int:
        """Number of classes."""
        return len(self.target_names)

    def __iter__(self) -> Iterator[Any]:
        return iter((self.data, self.target))


def names() -> tuple[str, ...]:
    """List the names that :func:`load` knows.

    Returns
    -------
    tuple of str
        Names in lower case.

    Examples
    --------
    >>> from concrete_kmeans import datasets
    >>> datasets.names()
    ('digits', 'mnist', 'usps', '20newsgroups', 'pendigits', 'dig44', ...)
    """
    return ("digits", *LAYOUTS, *TABLES)


def load(name: str, data_home: str | os.PathLike[str] | None = None, **options: str) -> Dataset:
    """Load a data set by name, from a local file or its public source.

    Numbers are those of the source, except that the pixels of ``mnist`` and ``usps`` are scaled
    to 0..1. A local file that differs from the known data set is read all the same, with a
    :class:`DataWarning`; a download that differs is refused.

    Parameters
    ----------
    name : str
        One of :func:`names`.
    data_home : path-like or None
        An existing folder to look in first. A file that is not there is looked for in
        ``$CKM_DATA_HOME`` and the cache, then downloaded into the cache.
    **options : str
        For ``20newsgroups``, ``recipe``: ``"sublinear"`` (the default; tf-idf of the 2,000 most
        frequent words with sublinear term frequencies), ``"plain"`` (the same with plain
        frequencies) or ``"raw"`` (the posts as strings).

    Returns
    -------
    Dataset
        Points and classes.

    Raises
    ------
    ValueError
        If the name or an option's value is unknown, or a file is malformed.
    NotADirectoryError
        If ``data_home`` is not an existing folder.
    DataNotFoundError
        If the data set is not publicly distributed (``dig44``) and in none of the folders.
    DownloadError
        If the download fails or gives other data than expected.

    Examples
    --------
    >>> from concrete_kmeans import datasets
    >>> X, y = datasets.load("digits")
    >>> X.shape, y.shape
    ((1797, 64), (1797,))
    """
    if not isinstance(name, str) or name not in names():
        raise ValueError(f"name is {shown(name)}; it must be one of {', '.join(names())}")
    known_options = {"recipe"} if name == "20newsgroups" else set()
    if unknown := sorted(options.keys() - known_options):
        allowed = ", ".join(known_options) or "none"
        raise TypeError(f"options for {name!r} include {', '.join(unknown)}; allowed: {allowed}")
    places = _fetch.folders(data_home)
    if name in TABLES:
        return _load_table(name, places)
    loaders: dict[str, Callable[..., Dataset]] = {
        "digits": _load_digits,
        "mnist": _load_mnist,
        "usps": _load_usps,
        "20newsgroups": _load_newsgroups,
    }
    return loaders[name](places, **options)


def _load_digits(_places: list[Path]) -> Dataset:
    from sklearn.datasets import load_digits

    data, target = load_digits(return_X_y=True)
    return Dataset(
        name="digits",
        data=np.asarray(data, dtype=np.float64),
        target=np.asarray(target, dtype=np.int64),
        target_names=_DIGITS,
        image_shape=(8, 8),
        n_train=None,
        source="scikit-learn",
    )


def _load_mnist(places: list[Path]) -> Dataset:
    paths = _files("mnist", places)
    images = [_formats.read_idx(path, 3) for path in paths[::2]]
    labels = [_formats.read_idx(path, 1) for path in paths[1::2]]
    for path, part, part_labels in zip(paths[::2], images, labels, strict=True):
        if len(part) != len(part_labels):
            raise ValueError(f"{path} has {len(part)} images, its labels are {len(part_labels)}")
        if part.shape[1:] != (28, 28):
            raise ValueError(f"{path} has images of {part.shape[1:]}; they must be (28, 28)")
        if part_labels.max(initial=0) > 9:
            raise ValueError(f"the labels of {path} reach {part_labels.max()}; they must be 0..9")
    pixels = np.concatenate(images).reshape(-1, 28 * 28)
    return Dataset(
        name="mnist",
        data=np.divide(pixels, 255, dtype=np.float32),
        target=np.concatenate(labels).astype(np.int64),
        target_names=_DIGITS,
        image_shape=(28, 28),
        n_train=len(images[0]),
        source=_where(paths),
    )


def _load_usps(places: list[Path]) -> Dataset:
    paths = _files("usps", places)
    if paths[0].suffix == ".h5":
        parts = _formats.read_usps_h5(paths[0])
    else:
        parts = [_formats.read_usps_text(path) for path in paths]
    return Dataset(
        name="usps",
        data=np.concatenate([pixels for pixels, _ in parts]),
        target=np.concatenate([digits for _, digits in parts]),
        target_names=_DIGITS,
        image_shape=(16, 16),
        n_train=len(parts[0][0]),
        source=_where(paths),
    )


def _load_newsgroups(places: list[Path], recipe: str = "sublinear") -> Dataset:
    if recipe not in _RECIPES:
        raise ValueError(f"recipe is {recipe!r}; it must be one of {', '.join(_RECIPES)}")
    paths = _files("20newsgroups", places)
    posts = _formats.read_newsgroups(paths[0])
    data: Any = posts.texts
    if recipe != "raw":
        from sklearn.feature_extraction.text import TfidfVectorizer

        data = TfidfVectorizer(dtype=np.float32, **_RECIPES[recipe]).fit_transform(posts.texts)
    return Dataset(
        name="20newsgroups",
        data=data,
        target=posts.target,
        target_names=posts.groups,
        image_shape=None,
        n_train=posts.n_train,
        source=_where(paths),
    )


def _load_table(name: str, places: list[Path]) -> Dataset:
    table = TABLES[name]
    paths = _fetch.find([(f"{name}.csv.gz",), (f"{name}.csv",)], places)
    if paths is None:
        if table.raw is None or table.digest is None:
            raise DataNotFoundError(
                f"{name} is not publicly distributed, so it cannot be downloaded. Put your copy, "
                f"as {name}.csv.gz or {name}.csv with a header and the last column 'label', into "
                f"one of: {', '.join(map(str, places))}"
            )
        paths = [_fetch.fetch_table(f"{name}.csv.gz", table.raw, table.digest)]
    data, labels = _formats.parse_csv(_formats.read_unpacked(paths[0]), paths[0])
    if table.digest is not None:
        found = _formats.content_digest(data, labels)
        if found != table.digest:
            _fetch.warn_changed(paths[0], table.digest, found, stacklevel=4)
    target, target_names = _formats.encode_labels(labels)
    is_image = table.image_shape is not None and data.shape[1] == math.prod(table.image_shape)
    return Dataset(
        name=name,
        data=data,
        target=target,
        target_names=target_names,
        image_shape=table.image_shape if is_image else None,
        n_train=table.n_train if len(data) == table.n_rows else None,
        source=_where(paths),
    )


def _files(name: str, places: list[Path]) -> list[Path]:
    """Find or download the files of a data set, in the order of its layout."""
    layouts = LAYOUTS[name]
    if importlib.util.find_spec("h5py") is None:
        layouts = tuple(layout for layout in layouts if not layout[0].endswith(".h5"))
    paths = _fetch.find(layouts, places) or [
        path
        for filename in layouts[0]
        for path in _fetch.find([(filename,)], places)
        or [_fetch.fetch_file(filename, FILES[filename])]
    ]
    for path in paths:
        _fetch.check_file(path, FILES[path.name], stacklevel=6)
    return paths


def _where(paths: list[Path]) -> str:
    return f"{paths[0].parent}: {', '.join(path.name for path in paths)}"
