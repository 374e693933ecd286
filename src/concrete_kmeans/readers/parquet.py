"""Parquet files as rows, read in order and a piece at a time."""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from concrete_kmeans.readers.contents import need, unknown
from concrete_kmeans.readers.files import DAMAGE

__all__ = ["Parquet", "ParquetColumn"]

Numbers: TypeAlias = npt.NDArray[Any]

#: Decoded bytes of the rows that a scan holds, about.
BATCH_BYTES = 4 * 2**20
#: Compressed bytes that a scan reads of a column at a time.
BUFFER_BYTES = 2**16
#: A scan holds a page of each column and the dictionary of its values: a megabyte each, as files
#: are commonly written.
PAGES_BYTES = 9 * 2**18
#: Scans that are open at a time take so many bytes, about; and are so many, at most.
OPEN_BYTES, MAX_OPEN = 192 * 2**20, 16
#: Endings of the files that are looked for in a folder.
ENDINGS = (".parquet", ".pq")


@dataclass(frozen=True)
class ParquetColumn:
    """A column that holds a number a row, or as many in a list."""

    name: str
    size: int | None
    """Of the lists; None where values are numbers."""

    @property
    def features(self) -> list[str]:
        """Their names."""
        return [self.name] if self.size is None else [f"{self.name}.{i}" for i in range(self.size)]


class Parquet:
    """Rows of a Parquet file, or of all those in a folder, that are never read as a whole.

    The estimators take it as X. Rows of more than 256 MiB are streamed: read in order, a piece at a
    time, whenever they are needed.

    Parameters
    ----------
    path : str or Path
        A file, or a folder in which every ``.parquet`` and ``.pq`` is read, in the order of their
        names, those in folders as well. All have the same columns. What a folder's name says, as
        ``year=2024``, is no column.
    columns : sequence of str, optional
        Those that hold the features: numbers, or lists of numbers of one length. All by default.

    Attributes
    ----------
    shape : (n_rows, n_features)
    dtype : numpy dtype
        float32 if no column holds wider numbers, else float64.
    feature_names : list of str

    Examples
    --------
    >>> import pyarrow, pyarrow.parquet, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     table = pyarrow.table({"a": [1.0, 2.0, 3.0], "b": [[1, 2], [3, 4], [5, 6]]})
    ...     pyarrow.parquet.write_table(table, f"{folder}/part.parquet")
    ...     rows = Parquet(folder)
    ...     rows.shape, rows.feature_names, rows.read(1, 3)
    ((3, 3), ['a', 'b.0', 'b.1'], array([[2., 3., 4.],
           [3., 5., 6.]]))
    """

    ndim = 2

    def __init__(self, path: str | Path, columns: Sequence[str] | None = None) -> None:
        self.path = Path(path)
        if isinstance(columns, str):
            raise TypeError(f"columns must be a sequence of names, got {columns!r}")
        files = _files(self.path)
        self._metadata = [_metadata(file) for file in files]
        self._files, schema = files, _schema(files[0], self._metadata[0])
        names = list(schema.names if columns is None else columns)
        _check_names(files[0], names, schema.names)
        for file, metadata in zip(files[1:], self._metadata[1:], strict=True):
            _check_same(file, _schema(file, metadata), files[0], schema, names)
        if not any(metadata.num_rows for metadata in self._metadata):
            raise ValueError(f"{self.path} has no rows")
        self.columns = [self._column(schema.field(name)) for name in names]
        types = [_number_type(schema.field(name).type) for name in names]
        narrow = all(str(kind) in ("halffloat", "float") for kind in types)
        self.dtype: np.dtype[Any] = np.dtype(np.float32 if narrow else np.float64)
        groups = [
            (f, g, metadata.row_group(g).num_rows)
            for f, metadata in enumerate(self._metadata)
            for g in range(metadata.num_row_groups)
            if metadata.row_group(g).num_rows
        ]
        self._groups = [(f, g) for f, g, _ in groups]
        #: Numbers of the rows that the row groups begin with, and of all rows: (groups + 1,).
        self.bounds = np.concatenate([[0], np.cumsum([n for _, _, n in groups])])
        self.feature_names = [name for column in self.columns for name in column.features]
        self.shape = int(self.bounds[-1]), len(self.feature_names)
        #: Places that rows can be read from in turn without beginning anew: scans held open.
        self.n_open = self._n_open()
        self._held = threading.local()

    @property
    def nbytes(self) -> int:
        """Of all rows, were they in memory."""
        return self.shape[0] * self.shape[1] * self.dtype.itemsize

    def __len__(self) -> int:
        return self.shape[0]

    def _n_open(self) -> int:
        f, g = self._groups[0]
        group = self._metadata[f].row_group(g)
        sizes = [group.column(i).total_uncompressed_size for i in range(group.num_columns)]
        share = len(self.columns) / max(1, len(sizes))
        held = share * sum(min(size, PAGES_BYTES) + BUFFER_BYTES for size in sizes)
        held += 2 * BATCH_BYTES
        return int(min(MAX_OPEN, max(1, OPEN_BYTES // held)))

    def read(self, start: int, stop: int) -> Numbers:
        """Rows ``start`` to ``stop`` (B, D); quick where the last read of this thread ended."""
        scans: OrderedDict[int, _Scan] = self._held.__dict__.setdefault("scans", OrderedDict())
        scan = scans.pop(start, None) or _Scan(self, start)
        rows = scan.read(stop - start)
        if scan.place < len(self):
            scans[scan.place] = scan
        while len(scans) > self.n_open:
            scans.popitem(last=False)
        return rows

    def pick(self, numbers: npt.NDArray[np.int64]) -> Numbers:
        """Rows by number, in any order; every row group that holds one is read up to the last."""
        rising = bool((np.diff(numbers) > 0).all())
        wanted, back = (numbers, None) if rising else np.unique(numbers, return_inverse=True)
        out = np.empty((len(wanted), self.shape[1]), self.dtype)
        ends = np.searchsorted(wanted, self.bounds)  # of the rows wanted of each row group
        for g in np.flatnonzero(np.diff(ends)).tolist():
            scan = _Scan(self, int(self.bounds[g]))
            done = int(ends[g])
            for first, rows in scan.batches(int(wanted[ends[g + 1] - 1]) + 1):
                here = done + int(np.searchsorted(wanted[done:], first + len(rows)))
                out[done:here] = rows[wanted[done:here] - first]
                done = here
        return out if back is None else out[back.reshape(-1)]

    # ----------------------------------------------------------------------------------------------

    def _column(self, field: Any) -> ParquetColumn:
        """How a column becomes features."""
        types = need("pyarrow", "Parquet").types
        if _number_type(field.type) is None:
            raise ValueError(
                f"{self._files[0]}: column {field.name!r} must hold numbers or lists of numbers, "
                f"it is of type {field.type}; choose others by columns"
            )
        if not _is_list(field.type):
            return ParquetColumn(field.name, None)
        if types.is_fixed_size_list(field.type):
            size = int(field.type.list_size)
        else:
            size = self._first_length(field.name)
        # a few bytes can declare a list of any length: its numbers have to be there
        if not 1 <= size <= self._most_numbers(field.name):
            raise ValueError(
                f"{self._files[0]}: column {field.name!r} must hold lists of one number or more "
                "in every row"
            )
        return ParquetColumn(field.name, size)

    def _first_length(self, name: str) -> int:
        """Of the lists of a column: that of the first; 0 if there is none."""
        for file, metadata in zip(self._files, self._metadata, strict=True):
            opened = _open(file, metadata)
            try:
                with _reading(file):
                    for batch in opened.iter_batches(64, columns=[name], use_threads=False):
                        if lengths := batch.column(0).value_lengths().drop_null().tolist():
                            return int(lengths[0])
            finally:
                opened.close()
        return 0

    def _most_numbers(self, name: str) -> int:
        """In a column of a row group."""
        groups = (
            metadata.row_group(g)
            for metadata in self._metadata
            for g in range(metadata.num_row_groups)
        )
        columns = (group.column(i) for group in groups for i in range(group.num_columns))
        here = (c.num_values for c in columns if c.path_in_schema.startswith(f"{name}."))
        return max(here, default=0)

    def batches_from(self, start: int) -> Iterator[tuple[int, Numbers]]:
        """Rows from the row group that holds ``start`` on, with the number of the first."""
        first = int(np.searchsorted(self.bounds, start, side="right")) - 1
        size = max(1, min(2**16, BATCH_BYTES // (self.shape[1] * self.dtype.itemsize)))
        names = [column.name for column in self.columns]
        for g in range(first, len(self._groups)):
            f, own = self._groups[g]
            place = int(self.bounds[g])
            file = _open(self._files[f], self._metadata[f])
            try:
                with _reading(self._files[f]):
                    batches = file.iter_batches(size, [own], names, use_threads=False)
                while True:
                    with _reading(self._files[f]):
                        batch = next(batches, None)
                    if batch is None:
                        break
                    yield place, self._converted(batch, place)
                    place += len(batch)
            finally:
                file.close()
            if place != self.bounds[g + 1]:
                raise ValueError(f"{self._files[f]} holds fewer rows than it says")

    def _converted(self, batch: Any, place: int) -> Numbers:
        """A batch of Arrow columns as rows (B, D); NaN where a value is missing."""
        out = np.empty((len(batch), self.shape[1]), self.dtype)
        feature = 0
        with np.errstate(over="ignore"):
            for column in self.columns:
                values = batch.column(column.name)
                if column.size is None:
                    with _reading(self.path):
                        out[:, feature] = _plain(values)
                    feature += 1
                else:
                    self._check_lengths(values, column, place)
                    with _reading(self.path):
                        flat = _plain(values.flatten())
                        out[:, feature : feature + column.size] = flat.reshape(-1, column.size)
                    feature += column.size
        return out

    def _check_lengths(self, values: Any, column: ParquetColumn, place: int) -> None:
        """Refuse lists of another length than the first."""
        with _reading(self.path):
            lengths = values.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
        wrong = lengths != column.size
        if wrong.any() or values.null_count:
            row = int(wrong.argmax())
            raise ValueError(
                f"{self.path}: column {column.name!r} must hold {column.size} numbers a row, "
                f"row {place + row} holds {lengths[row]}"
            )


class _Scan:
    """Rows from one on, in order; a batch is held."""

    def __init__(self, table: Parquet, start: int) -> None:
        self.place = start
        self._source = table.batches_from(start)
        self._rest = np.empty((0, table.shape[1]), table.dtype)

    def read(self, count: int) -> Numbers:
        """The next rows."""
        parts = [rows for _, rows in self.batches(self.place + count)]
        return parts[0] if len(parts) == 1 else np.concatenate([self._rest[:0], *parts])

    def batches(self, stop: int) -> Iterator[tuple[int, Numbers]]:
        """The next rows up to ``stop``, as they come, with the number of the first of each part."""
        while self.place < stop:
            if not len(self._rest):
                first, rows = next(self._source)
                self._rest = rows[max(0, self.place - first) :]
                continue
            part = self._rest[: stop - self.place]
            self._rest = self._rest[len(part) :]
            first, self.place = self.place, self.place + len(part)
            yield first, part


def _files(path: Path) -> list[Path]:
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist")
    if path.is_file():
        return [path]
    found = sorted(
        file
        for file in path.rglob("*")
        if file.suffix.lower() in ENDINGS
        and file.is_file()
        and not any(part.startswith((".", "_")) for part in file.relative_to(path).parts)
    )
    if not found:
        raise ValueError(f"{path} holds no file that ends in {' or '.join(ENDINGS)}")
    return found


@contextlib.contextmanager
def _reading(file: Path) -> Iterator[None]:
    """While it lasts, Arrow reads a file: whatever it raises is about that."""
    arrow = need("pyarrow", "Parquet")
    try:
        yield
    except (*DAMAGE, arrow.ArrowException) as error:
        said = " ".join(str(error).split())  # it may take several lines
        raise ValueError(f"{file} cannot be read as Parquet: {said}") from error


def _open(file: Path, metadata: Any = None) -> Any:
    """A file whose columns are read a buffer at a time: without, whole columns would be held."""
    with _reading(file):
        return need("pyarrow.parquet", "Parquet").ParquetFile(
            file, metadata=metadata, buffer_size=BUFFER_BYTES, pre_buffer=False
        )


def _metadata(file: Path) -> Any:
    opened = _open(file)
    try:
        return opened.metadata
    finally:
        opened.close()


def _schema(file: Path, metadata: Any) -> Any:
    with _reading(file):
        schema = metadata.schema.to_arrow_schema()
    if len(set(schema.names)) < len(schema.names):
        twice = next(name for name in schema.names if schema.names.count(name) > 1)
        raise ValueError(f"{file} has two columns named {twice!r}")
    return schema


def _check_names(file: Path, names: Sequence[str], known: Sequence[str]) -> None:
    for name in names:
        if name not in known:
            raise unknown(f"{file}: column", name, known)
    if not names or len(set(names)) < len(names):
        raise ValueError(f"columns must name one or more columns, each once, got {names!r}")


def _check_same(file: Path, schema: Any, first: Path, expected: Any, names: Sequence[str]) -> None:
    for name in names:
        if name not in schema.names:
            raise ValueError(f"{file} has no column {name!r}, as {first} has")
        found, wanted = schema.field(name).type, expected.field(name).type
        if found != wanted:
            raise ValueError(f"{file}: column {name!r} is of type {found}, in {first} of {wanted}")


def _is_list(kind: Any) -> bool:
    types = need("pyarrow", "Parquet").types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _number_type(kind: Any) -> Any:
    """The type of the numbers in a column, in lists or not; None if it holds none."""
    types = need("pyarrow", "Parquet").types
    inner = kind.value_type if _is_list(kind) else kind
    plain = (types.is_integer, types.is_floating, types.is_boolean, types.is_decimal)
    return inner if any(is_it(inner) for is_it in plain) else None


def _plain(values: Any) -> Numbers:
    """Arrow numbers as an array; NaN where they are missing."""
    arrow = need("pyarrow", "Parquet")
    if not (arrow.types.is_integer(values.type) or arrow.types.is_floating(values.type)):
        values = values.cast(arrow.float64())
    array: Numbers = values.to_numpy(zero_copy_only=False)
    return array
