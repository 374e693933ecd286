"""Opening an input by its kind, nothing prepared yet."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import re
import struct
import sys
import tokenize
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeAlias

import numpy as np

from concrete_kmeans.limits import bounded, check_size
from concrete_kmeans.readers.contents import need
from concrete_kmeans.validation import check_sparse

__all__ = ["FORMATS", "IMAGES", "Arrays", "Frame", "ImageFiles", "Input", "Lines", "open_input"]

#: What ``form`` may say.
FORMATS = ("npy", "npz", "csv", "tsv", "parquet", "h5", "images", "txt", "jsonl")
#: Formats that can be read from standard input.
STREAMED = ("csv", "tsv", "txt", "jsonl")
#: Endings of file names, each with its format.
ENDINGS = {
    **{f".{name}": name for name in ("npy", "npz", "csv", "tsv", "parquet", "h5", "txt", "jsonl")},
    ".csv.gz": "csv",
    ".tsv.gz": "tsv",
    ".txt.gz": "txt",
    ".jsonl.gz": "jsonl",
    ".hdf5": "h5",
    ".pq": "parquet",
    ".ndjson": "jsonl",
}
#: Endings of the files that make a folder one of Parquet.
PARQUET = (".parquet", ".pq")
#: A number as much of Europe writes it, where another sign separates the columns.
DECIMAL_COMMA = re.compile(r"\s*[-+]?\d+(,\d+)?([eE][-+]?\d+)?\s*")
#: Endings of the pictures that are read.
IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".pgm", ".ppm")


@dataclass(frozen=True)
class Frame:
    """A table: a pandas DataFrame whose columns are named by text."""

    name: str
    frame: Any
    is_text: bool = False
    """It comes from a file of texts."""


@dataclass(frozen=True)
class Arrays:
    """Arrays by name, read when asked for; one under an empty name where it has none."""

    name: str
    shapes: dict[str, tuple[int, ...]]
    get: Callable[[str], Any]


@dataclass(frozen=True)
class ImageFiles:
    """Pictures in a folder, in the order of their names."""

    name: str
    folder: Path
    paths: list[Path]
    classes: list[str] | None
    """Name of the folder that each lies in, where there is one a class."""
    skipped: int
    """Files of other kinds."""


@dataclass(frozen=True)
class Lines:
    """A text a line."""

    name: str
    texts: list[str]
    numbers: list[int]
    """Of the lines, from 1; empty ones are left out."""


Input: TypeAlias = Frame | Arrays | ImageFiles | Lines


def open_input(source: str | Path, form: str | None = None) -> Input:
    """Open a file or a folder, or standard input for ``"-"``.

    Raises
    ------
    FileNotFoundError
    ValueError
        A format that is not known, or a file that is not what its name says; the message names it.
    """
    if form is not None and form not in FORMATS:
        raise ValueError(f"format must be one of {', '.join(FORMATS)}, got {form!r}")
    if str(source) == "-":
        if form not in STREAMED:
            raise ValueError(f"standard input needs a format of {', '.join(STREAMED)}: --format")
        content = sys.stdin.buffer.read()
        if not content:
            raise ValueError("standard input is empty")
        with _whole("standard input", form):
            return _opened("standard input", form, io.BytesIO(content))
    path = Path(source)
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist")
    if path.is_dir():
        return _folder(path, form)
    if not path.is_file():
        raise ValueError(f"{path} is neither a file nor a folder; a pipe is read as -")
    if path.stat().st_size == 0:
        raise ValueError(f"{path} is empty")
    form = form or _format_of(path)
    if form == "images":
        raise NotADirectoryError(f"{path} is a file; pictures are read from a folder")
    if form in ("npy", "npz", "h5"):
        return _arrays(path, form)
    with _whole(path, form), _stream(path) as stream:
        return _opened(str(path), form, stream)


def _stream(path: Path) -> IO[bytes]:
    if path.suffix.lower() != ".gz":
        return path.open("rb")
    return bounded(gzip.open(path), str(path), path.stat().st_size)  # type: ignore[arg-type]


def _format_of(path: Path) -> str:
    name = path.name.lower()
    for ending in sorted(ENDINGS, key=len, reverse=True):
        if name.endswith(ending):
            return ENDINGS[ending]
    if name.endswith(IMAGES):
        raise ValueError(f"{path} is one picture; give the folder it lies in")
    raise ValueError(
        f"{path}: its name does not tell what it is; --format, one of {', '.join(FORMATS)}, does"
    )


@contextlib.contextmanager
def _whole(path: Path | str, form: str) -> Iterator[None]:
    """Say which file it was that could not be read."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not text in UTF-8: {error.reason}") from error
    except (EOFError, gzip.BadGzipFile, zlib.error, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    except _NotReadableError as error:
        said = " ".join(str(error).split())  # libraries may take several lines
        raise ValueError(f"{path} cannot be read as {form}: {said}") from error


class _NotReadableError(Exception):
    """What a library said about a file."""


#: What libraries raise for files that are damaged, besides errors of their own.
DAMAGE: tuple[type[Exception], ...] = (
    *(ValueError, TypeError, OSError, RuntimeError, KeyError, IndexError, OverflowError),
    *(MemoryError, NotImplementedError, SyntaxError, struct.error, tokenize.TokenError),
)


@contextlib.contextmanager
def _by_library(*errors: type[Exception]) -> Iterator[None]:
    """While it lasts, a library reads a file: whatever it raises is about that."""
    try:
        yield
    except (*DAMAGE, *errors) as error:
        raise _NotReadableError(str(error) or type(error).__name__) from error


def _opened(name: str, form: str, stream: IO[bytes]) -> Input:
    if form == "txt":
        return _lines(name, stream)
    if form == "jsonl":
        return _records(name, stream)
    frame = _parquet(stream, name) if form == "parquet" else _csv(stream, form)
    return _checked_frame(name, frame)


def _checked_frame(name: str, frame: Any, *, is_text: bool = False) -> Frame:
    if not len(frame):
        raise ValueError(f"{name} has no rows")
    frame.columns = [str(column) for column in frame.columns]
    _check_unique(name, list(frame.columns))
    return Frame(name, frame.reset_index(drop=True), is_text)


def _check_unique(name: str, columns: list[str]) -> None:
    ((most, times),) = Counter(columns).most_common(1) or [("", 0)]
    if times > 1:
        raise ValueError(f"{name} has two columns named {most!r}")


# --------------------------------------------------------------------------------------------------
# tables


def _csv(stream: IO[bytes], form: str) -> Any:
    pd = need("pandas", "a table")
    text = io.TextIOWrapper(stream, encoding="utf-8-sig", newline="")
    head = text.readline().rstrip("\r\n")
    text.seek(0)
    separator = "\t" if form == "tsv" else max(",;\t|", key=head.count)
    names = [cell.strip().strip('"') for cell in head.split(separator)]
    header = None if _is_row_of_numbers(names) else 0
    try:
        frame = pd.read_csv(text, sep=separator, header=header, low_memory=False)
        if separator != ",":
            frame = frame.apply(_with_decimal_points)
    except pd.errors.EmptyDataError as error:
        raise _NotReadableError("it is empty") from error
    except pd.errors.ParserError as error:
        raise _NotReadableError(str(error).removeprefix("Error tokenizing data. ")) from error
    finally:
        text.detach()
    return frame


def _with_decimal_points(column: Any) -> Any:
    """Numbers, of a column of texts that are all numbers with a decimal comma."""
    known = column.dropna()
    texts = len(known) and all(isinstance(value, str) for value in known)
    if not texts or not all(map(DECIMAL_COMMA.fullmatch, known)):
        return column
    return column.str.replace(",", ".").astype(float)


def _is_row_of_numbers(names: list[str]) -> bool:
    """Whether a first line is data; 0, 1, 2, ... are the names that pandas writes."""
    if names == [str(i) for i in range(len(names))]:
        return False
    with contextlib.suppress(ValueError):
        return bool([float(name) for name in names])
    return False


def _parquet(source: Any, name: str) -> Any:
    arrow, pd = need("pyarrow", "Parquet"), need("pandas", "a table")
    files = [source]
    if isinstance(source, Path):
        files = sorted(path for path in source.rglob("*") if path.suffix in PARQUET)
    for file in files:
        with _by_library(arrow.ArrowException):
            footer = need("pyarrow.parquet", "Parquet").read_metadata(file)
            names = footer.schema.to_arrow_schema().names
        _check_unique(name, names)
        check_size(name, *_parquet_sizes(file, footer))
    with _by_library(arrow.ArrowException):
        return pd.read_parquet(source, engine="pyarrow")


def _parquet_sizes(file: Any, footer: Any) -> tuple[int, int]:
    """Bytes on disk, and those that a file says it becomes.

    A run of one value takes a few bytes, however long it is: values count as eight bytes at least.
    """
    chunks = [
        footer.row_group(i).column(j)
        for i in range(footer.num_row_groups)
        for j in range(footer.num_columns)
    ]
    unpacked = sum(max(c.total_uncompressed_size, 8 * c.num_values) for c in chunks)
    if isinstance(file, Path):
        return file.stat().st_size, unpacked
    packed = file.seek(0, io.SEEK_END)
    file.seek(0)
    return packed, unpacked


def _records(name: str, stream: IO[bytes]) -> Frame:
    pd = need("pandas", "a file of records")
    records = []
    for number, line in enumerate(stream, 1):
        if not line.strip():
            continue
        try:
            record = _from_json(line)
        except UnicodeDecodeError:
            raise
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{name}, line {number} is not JSON: {error}") from error
        if not isinstance(record, dict):
            raise ValueError(f"{name}, line {number} is not a JSON object")  # noqa: TRY004
        records.append(record)
    return _checked_frame(name, pd.DataFrame(records), is_text=True)


def _from_json(line: bytes) -> Any:
    found = json.loads(line)
    if b"\\ud" not in line.lower():
        return found
    # half a character, as of a text that was cut off, is no text: the sign for it stands there
    whole = json.dumps(found, ensure_ascii=False).encode("utf-16", "surrogatepass")
    return json.loads(whole.decode("utf-16", "replace"))


def _lines(name: str, stream: IO[bytes]) -> Lines:
    lines = [line.strip() for line in stream.read().decode("utf-8-sig").split("\n")]
    numbered = [(number, line) for number, line in enumerate(lines, 1) if line]
    if not numbered:
        raise ValueError(f"{name} has no text")
    return Lines(name, [line for _, line in numbered], [number for number, _ in numbered])


# --------------------------------------------------------------------------------------------------
# arrays


def _arrays(path: Path, form: str) -> Arrays:
    with _whole(path, form):
        if form == "h5":
            return _hdf5(path)
        if form == "npy":
            array = _loaded(path, np.ndarray, mmap_mode="r")
            return Arrays(str(path), {"": array.shape}, lambda _: array)
        with path.open("rb") as stream, _loaded(stream, np.lib.npyio.NpzFile) as archive:
            declared = sum(member.file_size for member in archive.zip.infolist())
            check_size(str(path), path.stat().st_size, declared)
            if {"indptr", "indices", "data", "shape", "format"} <= {*archive.files}:
                return _sparse(path)
            return _zipped(path, archive)


def _loaded(file: Any, kind: type, **options: Any) -> Any:
    with _by_library():
        found = np.load(file, allow_pickle=False, **options)
    if not isinstance(found, kind):
        raise _NotReadableError(f"it holds {type(found).__name__}, which is of another format")
    return found


def _zipped(path: Path, archive: Any) -> Arrays:
    with _by_library():
        arrays = {name: archive[name] for name in archive.files}
    arrays = {name: array for name, array in arrays.items() if isinstance(array, np.ndarray)}
    shapes = {name: array.shape for name, array in arrays.items()}
    return Arrays(str(path), shapes, arrays.__getitem__)


def _sparse(path: Path) -> Arrays:
    from scipy import sparse

    with _by_library():
        found = sparse.load_npz(path)
        check_sparse("it", found)
        matrix = sparse.csr_array(found)
    return Arrays(str(path), {"": matrix.shape}, lambda _: matrix)


def _hdf5(path: Path) -> Arrays:
    h5py = need("h5py", "HDF5")
    shapes: dict[str, tuple[int, ...]] = {}

    def note(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset) and item.shape is not None:
            shapes[name] = item.shape

    def get(name: str) -> Any:
        with _whole(path, "h5"):
            with _by_library():
                file = h5py.File(path, "r")
            with file:
                return _hdf5_values(path, name, file)

    with _by_library(), h5py.File(path, "r") as file:
        file.visititems(note)
    return Arrays(str(path), shapes, get)


def _hdf5_values(path: Path, name: str, file: Any) -> Any:
    with _by_library():
        array = file[name]
        declared = array.size * array.dtype.itemsize
        # the file of a stranger could name any file of this machine
        elsewhere = array.is_virtual or array.external
    if elsewhere:
        raise _NotReadableError(f"the values of {name!r} lie in other files, which are not read")
    check_size(str(path), path.stat().st_size, declared)
    with _by_library():
        return array[()]


# --------------------------------------------------------------------------------------------------
# folders


def _folder(path: Path, form: str | None) -> Input:
    if form not in (None, "images", "parquet"):
        raise IsADirectoryError(f"{path} is a folder, which cannot be read as {form}")
    shown = sorted(item for item in path.iterdir() if not item.name.startswith("."))
    if not shown:
        raise ValueError(f"{path} is empty")
    if form == "parquet" or (form is None and any(p.suffix in PARQUET for p in shown)):
        with _whole(path, "parquet"):
            return _checked_frame(str(path), _parquet(path, str(path)))
    own = [item for item in shown if _is_picture(item)]
    folders = {item: _pictures(item) for item in shown if item.is_dir()}
    filled = {folder: inside for folder, inside in folders.items() if inside}
    if own and filled:
        raise ValueError(
            f"{path} holds pictures, as {own[0].name!r}, and a folder of pictures, "
            f"{next(iter(filled)).name!r}: keep either"
        )
    paths = own or [picture for inside in filled.values() for picture in inside]
    if not paths:
        raise ValueError(
            f"{path} holds no picture ({', '.join(IMAGES)}), no folders of them and no .parquet"
        )
    others = sum(item.is_file() for item in shown) - len(own)
    others += sum(_count_others(folder) for folder in filled)
    classes = None if own else [picture.parent.name for picture in paths]
    return ImageFiles(str(path), path, paths, classes, others)


def _is_picture(path: Path) -> bool:
    return path.suffix.lower() in IMAGES and not path.name.startswith(".") and path.is_file()


def _pictures(folder: Path) -> list[Path]:
    return sorted(item for item in folder.iterdir() if _is_picture(item))


def _count_others(folder: Path) -> int:
    return sum(item.is_file() and not _is_picture(item) for item in folder.iterdir())
