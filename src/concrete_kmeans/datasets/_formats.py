"""Readers of the file formats: bytes in, checked arrays out.

Every reader takes the path only to name it in errors, or to read it; none writes.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import lzma
import re
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from concrete_kmeans.datasets._sources import RawTable
from concrete_kmeans.limits import bounded

__all__ = [
    "Posts",
    "content_digest",
    "csv_from_raw",
    "encode_labels",
    "parse_csv",
    "read_idx",
    "read_newsgroups",
    "read_unpacked",
    "read_usps_h5",
    "read_usps_text",
    "unpack_lzw",
]

MAX_UNPACKED = 512 * 2**20  # bytes; ten times the largest file known here
MAX_POST = 2**20  # bytes; the largest post known here has 160,616


def read_unpacked(path: Path, max_bytes: int = MAX_UNPACKED) -> bytes:
    """Read a file, through gzip when its name ends in ``.gz``, up to ``max_bytes``."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
            content = stream.read(max_bytes + 1)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path} is not a whole gzip file: {error}") from error
    if len(content) > max_bytes:
        raise ValueError(f"{path} unpacks to more than the allowed {max_bytes} bytes")
    return content


def read_idx(path: Path, n_dims: int) -> NDArray[np.uint8]:
    """Read the unsigned bytes of an IDX file with ``n_dims`` dimensions."""
    content = read_unpacked(path)
    head = 4 + 4 * n_dims
    if len(content) < head:
        raise ValueError(f"{path} is truncated: {len(content)} bytes, its header has {head}")
    magic, *shape = struct.unpack(f">{1 + n_dims}I", content[:head])
    expected = 0x0800 + n_dims  # two zero bytes, type 8 (unsigned byte), number of dimensions
    if magic != expected:
        raise ValueError(f"{path} starts with {magic:#010x}; an IDX file like it, {expected:#010x}")
    size = int(np.prod(shape, dtype=object))
    if len(content) - head != size:
        raise ValueError(
            f"{path} declares {' x '.join(map(str, shape))} = {size} values "
            f"and has {len(content) - head}"
        )
    return np.frombuffer(content, dtype=np.uint8, offset=head).reshape(shape)


def read_usps_text(path: Path) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Read a ``zip.train`` or ``zip.test`` file: the digit, then 16 x 16 pixels in -1..1.

    Returns pixels scaled to 0..1 of shape (n, 256), and digits of shape (n,).
    """
    table = _numbers(_lines(read_unpacked(path), path), None, 257, path, first_line=1)
    digits = table[:, 0].astype(np.int64)
    pixels = ((table[:, 1:] + 1) / 2).astype(np.float32)
    _check_usps(pixels, digits, table[:, 0], path)
    return pixels, digits


def read_usps_h5(path: Path) -> list[tuple[NDArray[np.float32], NDArray[np.int64]]]:
    """Read ``usps.h5``: training, then test part, each like :func:`read_usps_text`."""
    import h5py

    parts = []
    try:
        with h5py.File(path, "r") as file:
            for part in ("train", "test"):
                pixels = np.asarray(file[part]["data"], dtype=np.float32)
                target = np.asarray(file[part]["target"])
                digits = target.astype(np.int64)
                _check_usps(pixels, digits, target, path)
                parts.append((pixels, digits))
    except (OSError, KeyError) as error:
        raise ValueError(
            f"{path} is not an HDF5 file with {{train,test}}/{{data,target}}"
        ) from error
    return parts


def _check_usps(
    pixels: NDArray[np.float32],
    digits: NDArray[np.int64],
    written: NDArray[np.generic],
    path: Path,
) -> None:
    if pixels.ndim != 2 or pixels.shape[1] != 256 or len(pixels) != len(digits):
        raise ValueError(f"{path} has images of shape {pixels.shape}; they must be (n, 256)")
    if not (np.array_equal(digits, written) and ((digits >= 0) & (digits <= 9)).all()):
        raise ValueError(f"{path} has labels that are not digits 0..9")
    if pixels.size and not (pixels.min() >= 0 and pixels.max() <= 1):
        raise ValueError(f"{path} has pixels outside the range of the USPS digits")


def parse_csv(content: bytes, path: Path | str) -> tuple[NDArray[np.float64], list[str]]:
    """Parse a header, then rows of numbers whose last column, ``label``, is text.

    Returns the numbers of shape (n, d) and the n labels.
    """
    lines = _lines(content, path)
    header = [name.strip() for name in lines[0].split(",")] if lines else []
    if len(header) < 2 or header[-1] != "label":
        raise ValueError(f"{path}, line 1: the header must name the columns, the last one 'label'")
    if len(lines) == 1:
        raise ValueError(f"{path} has a header and no rows")
    split = [line.rpartition(",") for line in lines[1:]]
    data = _numbers([row[0] for row in split], ",", len(header) - 1, path, first_line=2)
    labels = [row[2].strip() for row in split]
    if "" in labels:
        raise ValueError(f"{path}, line {labels.index('') + 2}: the label is empty")
    return data, labels


def _lines(content: bytes, path: Path | str) -> list[str]:
    try:
        return content.decode("utf-8-sig").rstrip().splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not a text file in UTF-8: {error}") from error


def _numbers(
    lines: Sequence[str], separator: str | None, n_columns: int, path: Path | str, first_line: int
) -> NDArray[np.float64]:
    """Parse (n, n_columns) finite numbers; an error names the line at fault."""
    try:
        # Empty lines would be skipped, and all of them warned about.
        table = (
            np.loadtxt(lines, delimiter=separator, comments=None, ndmin=2) if any(lines) else None
        )
    except ValueError:
        table = None
    if table is None or table.shape != (len(lines), n_columns) or not np.isfinite(table).all():
        raise ValueError(_fault(lines, separator, n_columns, path, first_line))
    return np.asarray(table, dtype=np.float64)


def _fault(
    lines: Sequence[str], separator: str | None, n_columns: int, path: Path | str, first_line: int
) -> str:
    for number, line in enumerate(lines, start=first_line):
        values = line.split(separator)
        if len(values) != n_columns:
            return f"{path}, line {number}: {len(values)} numbers, and there must be {n_columns}"
        for column, value in enumerate(values, start=1):
            try:
                finite = bool(np.isfinite(float(value)))
            except ValueError:
                finite = False
            if not finite:
                return f"{path}, line {number}, column {column}: {value!r} is not a finite number"
    return f"{path} is not a table of {n_columns} columns of numbers"


def encode_labels(labels: Sequence[str]) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Replace labels by their rank, by value when all of them are integers, else as text."""
    distinct, codes = np.unique(np.asarray(labels), return_inverse=True)
    names = [str(name) for name in distinct]
    order = list(range(len(names)))
    if all(re.fullmatch(r"[+-]?\d+", name, re.ASCII) for name in names):
        order.sort(key=lambda i: int(names[i]))
    rank = np.empty(len(names), dtype=np.int64)
    rank[order] = np.arange(len(names))
    return rank[codes], tuple(names[i] for i in order)


def content_digest(data: NDArray[np.float64], labels: Iterable[str]) -> str:
    """SHA-256 of a table's content, the same for every order of its rows.

    A row is written as its numbers in ``%.6g``, which absorbs how a source writes them, and its
    label, with commas between; the sums of the rows are sorted and summed.
    """
    pattern = "%.6g," * data.shape[1]
    rows = (data + 0.0).tolist()  # adding zero turns -0.0 into 0.0
    sums = sorted(
        hashlib.sha256((pattern % tuple(row) + label).encode()).digest()
        for row, label in zip(rows, labels, strict=True)
    )
    return hashlib.sha256(b"".join(sums)).hexdigest()


def csv_from_raw(parts: Sequence[tuple[str, bytes]], raw: RawTable) -> bytes:
    """Rewrite what a public source distributes, as (url, content), in the layout of parse_csv."""
    rows = []
    for url, packed in parts:
        content = packed
        if url.endswith(".Z"):
            content = unpack_lzw(packed)
        elif url.endswith(".zip"):
            content = _only_table_of_zip(packed, url)
        for line in content.decode("latin-1").splitlines():
            if not line.strip() or line.startswith("@"):  # "@": the header of the KEEL format
                continue
            values = [value.strip() for value in line.split(raw.separator)][raw.skip :]
            if len(values) < 2:
                raise ValueError(f"{url}: {line[:80]!r} is not a row of the table")
            label = values.pop(raw.label)
            rows.append([*values, raw.rename.get(label, label)])
    if not rows:
        raise ValueError(f"{parts[0][0]} holds no rows")
    header = [*(f"x{i}" for i in range(1, len(rows[0]))), "label"]
    return "".join(",".join(row) + "\n" for row in [header, *rows]).encode()


def _only_table_of_zip(packed: bytes, url: str, max_bytes: int = MAX_UNPACKED) -> bytes:
    try:
        with zipfile.ZipFile(io.BytesIO(packed)) as archive:
            members = [info for info in archive.infolist() if info.filename.endswith(".dat")]
            if len(members) != 1:
                raise ValueError(f"{url} holds {len(members)} files named *.dat; it must be one")
            with archive.open(members[0]) as stream:
                content = stream.read(max_bytes + 1)
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError) as error:
        raise ValueError(f"{url} is not a zip archive that can be read: {error}") from error
    if len(content) > max_bytes:
        raise ValueError(f"{url} unpacks to more than the allowed {max_bytes} bytes")
    return content


def unpack_lzw(packed: bytes, max_bytes: int = MAX_UNPACKED) -> bytes:
    """Unpack a ``.Z`` file, the adaptive Lempel-Ziv coding of the Unix program compress."""
    if len(packed) < 3 or packed[:2] != b"\x1f\x9d" or not 10 <= packed[2] & 0x1F <= 16:
        raise ValueError("not a .Z file: its first bytes must be 1f 9d, then 10 to 16 bits a code")
    widest, has_clear = packed[2] & 0x1F, bool(packed[2] & 0x80)
    first = [bytes([i]) for i in range(256)] + ([b""] if has_clear else [])
    table, width, previous = list(first), 9, b""
    output, size = [], 0
    position = start = 24  # in bits; start: where codes of this width began
    while position + width <= 8 * len(packed):
        window = int.from_bytes(packed[position // 8 : position // 8 + 3], "little")
        code = window >> position % 8 & (1 << width) - 1
        position += width
        clear = has_clear and code == 256
        if clear:
            table, previous = list(first), b""
        else:
            if code > len(table) or (code == len(table) and not previous):
                raise ValueError(f"not a whole .Z file: code {code} of {len(table)}")
            entry = table[code] if code < len(table) else previous + previous[:1]
            if previous and len(table) < 1 << widest:
                table.append(previous + entry[:1])
            output.append(entry)
            previous = entry
            size += len(entry)
            if size > max_bytes:
                raise ValueError(f"the .Z file unpacks to more than the allowed {max_bytes} bytes")
        if clear or (len(table) == 1 << width and width < widest):
            # Codes come in groups of eight; a change of width leaves the rest of one unused.
            group = 8 * width
            position = start = start + -(-(position - start) // group) * group
            width = 9 if clear else width + 1
    return b"".join(output)


class Posts(NamedTuple):
    """Newsgroup posts: texts, codes of their groups, names of the groups, size of training part."""

    texts: list[str]
    target: NDArray[np.int64]
    groups: tuple[str, ...]
    n_train: int


def read_newsgroups(path: Path) -> Posts:
    """Read the posts of a ``20news-bydate`` archive, which is never unpacked to disk.

    The training part comes first, then groups and posts by their names as text, the order of
    scikit-learn. Members are told by their names; directories, links and everything unknown
    are passed over.
    """
    found: dict[tuple[str, str, str], str] = {}
    pattern = re.compile(
        r"(?:\./)?20news-bydate-(train|test)/([a-z][a-z.\-]*)/(\d{1,12})", re.ASCII
    )
    total = 0
    try:
        # tarfile's own gzip reader takes a truncated file for a short one; these two do not.
        unpack = lzma.open if path.suffix == ".xz" else gzip.open
        packed = path.stat().st_size
        with (
            bounded(cast("IO[bytes]", unpack(path)), str(path), packed, MAX_UNPACKED) as stream,
            tarfile.open(fileobj=stream, mode="r|") as archive,
        ):
            for member in archive:
                match = pattern.fullmatch(member.name)
                if match is None or not member.isreg():
                    continue
                total += member.size
                if member.size > MAX_POST or total > MAX_UNPACKED:
                    raise ValueError(
                        f"{path}: {member.name} declares {member.size} bytes; a post may have "
                        f"{MAX_POST} and all together {MAX_UNPACKED}"
                    )
                part, group, number = match.groups()
                found[part, group, number] = _text_of(archive.extractfile(member))
    except (tarfile.TarError, EOFError, lzma.LZMAError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"{path} is not a whole tar archive: {error}") from error
    if not found:
        raise ValueError(f"{path} has no posts named 20news-bydate-{{train,test}}/GROUP/NUMBER")
    # False before True: the training part first.
    keys = sorted(found, key=lambda key: (key[0] == "test", key[1], key[2]))
    groups = tuple(sorted({group for _, group, _ in keys}))
    code = {group: i for i, group in enumerate(groups)}
    target = np.array([code[group] for _, group, _ in keys], dtype=np.int64)
    n_train = sum(part == "train" for part, _, _ in keys)
    return Posts([found[key] for key in keys], target, groups, n_train)


def _text_of(stream: IO[bytes] | None) -> str:
    if stream is None:
        raise EOFError("a member has no content")
    return stream.read().decode("latin-1")
