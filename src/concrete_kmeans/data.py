"""What users bring, as rows the engine reads: tensors as they are, arrays without a copy.

A row source (:class:`concrete_kmeans.lloyd.RowSource`) has a shape ``(N, D)``, a dtype and a
device, and gives dense rows ``(B, D)`` for a slice or a tensor of row numbers, which may lie on its
device or on the CPU. Rows picked by number are fresh memory; those of a slice may not be. The
sources here may be read from several threads. One whose rows are too many to be held has a
``stream`` (:class:`Stream`): passes over it are read ahead, and batches come from windows.
"""

from __future__ import annotations

import bisect
import itertools
import math
import os
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias, cast, get_args

import numpy as np
import numpy.typing as npt
import torch
from scipy import sparse
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset
from torch.utils.dlpack import from_dlpack

from concrete_kmeans import processes
from concrete_kmeans.fused import kernels_for
from concrete_kmeans.lloyd import Rows, own_rows
from concrete_kmeans.readers.files import Arrays, open_input
from concrete_kmeans.readers.parquet import ENDINGS as PARQUET_ENDINGS
from concrete_kmeans.readers.parquet import Parquet
from concrete_kmeans.reading import WORTH, read_ahead, read_beside
from concrete_kmeans.validation import check_choice, check_positive_int, is_auto, shown

__all__ = [
    "ArrayRows",
    "Batch",
    "Batches",
    "DatasetRows",
    "DrawnWindows",
    "Moments",
    "ParquetRows",
    "Scaled",
    "Subset",
    "Scaling",
    "ScalingKind",
    "Source",
    "SparseRows",
    "Stream",
    "Streamed",
    "TensorRows",
    "Windows",
    "Without",
    "as_rows",
    "check_batch_size",
    "check_tensor",
    "chunks_of",
    "detached",
    "feature_moments",
    "fit_scaling",
    "float_type",
    "from_path",
    "merge_equal_rows",
    "on_disk",
    "open_rows",
    "pieces",
    "resolve_device",
    "stream_of",
    "streams",
    "surely_finite",
]

ScalingKind: TypeAlias = Literal["none", "global", "standard", "minmax"]

CPU = torch.device("cpu")
#: Rows read at a time by a pass over all of them.
MAX_PIECE_BYTES = 8 * 2**20
#: Pinned memory that rows pass on their way to CUDA, a part after the other; two are in use.
PINNED_BYTES = 32 * 2**20
#: Part of the free device memory that the rows may take; and those of a CSR matrix, made dense.
RESIDENT_SHARE, SPARSE_SHARE = 0.6, 0.2
#: Rows of a memmap, a Dataset or Parquet files that take more are streamed.
STREAM_BYTES = 256 * 2**20
#: Of a window, the rows of a stream that are shuffled together. Two are in memory at a time.
WINDOW_BYTES = 64 * 2**20
#: Of what is read at a time for a window: it is copied, and scaled, before it is in its place.
MAX_READ_BYTES = 2**20
#: Rows of a memmap that are read together for a window, and the most blocks it is cut into: small,
#: so that a window has rows of many places; but large enough to be worth a read from a disk.
BLOCK_BYTES, MAX_BLOCKS = 64 * 2**10, 2**18
#: Parts of a stream of which every window has rows, where it can be read from anywhere.
LANES = 1024

#: Types of arrays that torch reads on every device; any other is converted by numpy.
_TORCH_DTYPES: dict[np.dtype[Any], torch.dtype] = {
    np.dtype(str(dtype).removeprefix("torch.")): dtype
    for dtype in (
        *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
        *(torch.float16, torch.float32, torch.float64),
    )
}
_NUMPY_DTYPES: dict[torch.dtype, np.dtype[Any]] = {
    torch.float32: np.dtype(np.float32),
    torch.float64: np.dtype(np.float64),
}


# --------------------------------------------------------------------------------------------------
# sources of rows


class ArrayRows:
    """Rows of a numeric array or memmap of any dtype, converted in the pieces that are read.

    Parameters
    ----------
    X : array of shape (N, ...)
        Never copied as a whole; more than two axes are flattened in the pieces.
    device, dtype
        Of the rows handed out.

    Examples
    --------
    >>> images = np.arange(8, dtype=np.uint8).reshape(2, 2, 2)
    >>> ArrayRows(images, torch.device("cpu"), torch.float32)[torch.tensor([1])]
    tensor([[4., 5., 6., 7.]])
    """

    index_device = CPU

    def __init__(self, X: npt.NDArray[Any], device: torch.device, dtype: torch.dtype) -> None:
        if X.dtype.kind not in "biuf":
            raise TypeError(f"X must hold real numbers, got an array of dtype {X.dtype}")
        self.X = np.asarray(X)  # of a memmap too, still not read
        self.device, self.dtype = _with_index(device), dtype
        self.shape = _flat_shape(X.shape)
        # torch converts on all threads, numpy on one
        self._tensor = _shared(self.X) if _torch_reads(self.X) else None
        self.whole = X.dtype.kind in "biu"
        """Whether the numbers are integers, and so finite."""

    def __getitem__(self, rows: slice | Tensor, /) -> Tensor:
        """Dense rows on the device."""
        if self._tensor is not None:
            piece = self._tensor[rows if isinstance(rows, slice) else rows.cpu()]  # (B, ...)
        else:
            own = _TORCH_DTYPES.get(self.X.dtype.newbyteorder("="), self.dtype)
            with np.errstate(over="ignore"):  # too large for float32 is infinity there, as in torch
                piece = torch.from_numpy(self.X[_host_index(rows)].astype(_name(own)))
        return _deliver(piece.reshape(len(piece), self.shape[1]), self.device, self.dtype)

    def given(self, number: int) -> npt.NDArray[Any]:
        """A row (D,) as it was brought, for errors."""
        row: npt.NDArray[Any] = self.X[number]
        return row.reshape(-1)


class TensorRows:
    """Rows of a tensor that stays where it is, converted in the pieces that are read.

    Parameters
    ----------
    X : Tensor of shape (N, ...)
        Never converted or moved as a whole; more than two axes are flattened in the pieces.
    device, dtype
        Of the rows handed out.

    Examples
    --------
    >>> X = torch.tensor([[1, 2], [3, 4]], dtype=torch.uint8)
    >>> TensorRows(X, X.device, torch.float64)[0:1]
    tensor([[1., 2.]], dtype=torch.float64)
    """

    def __init__(self, X: Tensor, device: torch.device, dtype: torch.dtype) -> None:
        if X.layout != torch.strided:
            raise TypeError(f"X must be a dense tensor (or a scipy CSR matrix), got {X.layout}")
        if X.is_complex():
            raise TypeError(f"X must hold real numbers, got a tensor of dtype {X.dtype}")
        self.X = X.detach()
        self.device, self.dtype = _with_index(device), dtype
        self.shape = _flat_shape(X.shape)
        self.index_device = X.device

    def __getitem__(self, rows: slice | Tensor, /) -> Tensor:
        """Dense rows on the device."""
        index = rows if isinstance(rows, slice) else rows.to(self.index_device)
        piece = self.X[index]  # (B, ...)
        return _deliver(piece.reshape(len(piece), self.shape[1]), self.device, self.dtype)


class SparseRows:
    """CSR rows that become dense only in the pieces that are read.

    Parameters
    ----------
    X : CSR array or matrix of shape (N, D)
    device, dtype
        Of the rows handed out; the dtype is that of ``X`` by default.

    Examples
    --------
    >>> SparseRows(sparse.csr_array([[0.0, 2.0], [0.0, 0.0]]), torch.device("cpu"))[0:2]
    tensor([[0., 2.],
            [0., 0.]], dtype=torch.float64)
    """

    index_device = CPU

    def __init__(
        self,
        X: sparse.csr_array | sparse.csr_matrix,
        device: torch.device,
        dtype: torch.dtype | None = None,
    ) -> None:
        self.X, self.device = X, _with_index(device)
        self.shape = _flat_shape(X.shape)
        self.dtype = dtype or torch.from_numpy(np.empty(0, dtype=X.dtype)).dtype

    def __getitem__(self, rows: slice | Tensor, /) -> Tensor:
        """Dense rows on the device."""
        piece = self.X[_host_index(rows)].toarray()
        if piece.dtype not in _TORCH_DTYPES:
            piece = piece.astype(_name(self.dtype))
        host = torch.from_numpy(piece)
        return _deliver(host, self.device, self.dtype)


class DatasetRows:
    """Rows of a map-style ``torch.utils.data.Dataset``, each read when it is asked for.

    Parameters
    ----------
    dataset : Dataset
        An item is a tensor or array of numbers, or a tuple that begins with one; all of one shape
        and finite, which every read checks. ``__getitems__`` is used where there is one. One
        thread reads at a time.
    device, dtype
        Of the rows handed out.

    Examples
    --------
    >>> from torch.utils.data import TensorDataset
    >>> dataset = TensorDataset(torch.arange(6).view(3, 2), torch.zeros(3))
    >>> DatasetRows(dataset, torch.device("cpu"), torch.float32)[torch.tensor([2, 0])]
    tensor([[4., 5.],
            [0., 1.]])
    """

    index_device = CPU

    def __init__(self, dataset: Dataset[Any], device: torch.device, dtype: torch.dtype) -> None:
        if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
            raise TypeError(
                "X must be a map-style Dataset, with __len__ and __getitem__, since rows are drawn "
                f"by number; got {type(dataset).__name__}"
            )
        self.dataset, self.device, self.dtype = dataset, _with_index(device), dtype
        self._lock = threading.Lock()
        n = len(dataset)
        first = self._numbers(self._item(0), 0) if n else np.empty(())
        self.feature_shape, self.item_dtype = first.shape, first.dtype
        self.shape = _flat_shape((n, *(self.feature_shape or (1,))))

    def __getitem__(self, rows: slice | Tensor, /) -> Tensor:
        """Dense rows on the device."""
        index = _host_index(rows)
        numbers = (
            list(range(*index.indices(self.shape[0])))
            if isinstance(index, slice)
            else index.tolist()
        )
        shape = len(numbers), self.shape[1]
        few = math.prod(shape) * self.dtype.itemsize <= PINNED_BYTES
        pin = self.device.type == "cuda" and few
        host = torch.empty(shape, dtype=self.dtype, pin_memory=pin)
        out = host.numpy()
        with self._lock, np.errstate(over="ignore"):
            for place, (i, item) in enumerate(zip(numbers, self._items(numbers), strict=True)):
                row = self._numbers(item, i)
                if row.shape != self.feature_shape:
                    raise ValueError(
                        f"all rows of X must have the shape {self.feature_shape} of row 0, "
                        f"row {i} has {row.shape}"
                    )
                out[place] = row.reshape(-1)
        _check_finite(host, numbers, given=self.given)
        return _deliver(host, self.device, self.dtype)

    def given(self, number: int) -> npt.NDArray[Any]:
        """A row (D,) as it was brought, for errors."""
        with self._lock:
            return self._numbers(self._items([number])[0], number).reshape(-1)

    def _items(self, numbers: list[int]) -> Sequence[Any]:
        many = getattr(self.dataset, "__getitems__", None)
        if many is None or not numbers:
            return [self._item(i) for i in numbers]
        items: Sequence[Any] = many(numbers)
        if len(items) != len(numbers):
            raise ValueError(
                f"__getitems__ of X must give one item for each of {len(numbers)} row numbers, "
                f"got {len(items)}"
            )
        return items

    def _item(self, i: int) -> Any:
        try:
            return self.dataset[i]
        except Exception as error:
            error.add_note(f"row {i} of X, a {type(self.dataset).__name__}, could not be read")
            raise

    @staticmethod
    def _numbers(item: Any, i: int) -> npt.NDArray[Any]:
        """An item as an array, without what follows it in a tuple."""
        first = item[0] if isinstance(item, tuple) and item else item
        if isinstance(first, Tensor):
            first = first.detach().cpu()
            first = first.float() if first.dtype == torch.bfloat16 else first  # numpy has none
        try:
            row = np.asarray(first)
        except (TypeError, ValueError, RuntimeError):  # a list of a row and its label, say
            row = np.empty((), object)
        if row.dtype.kind not in "biuf":
            raise TypeError(
                "an item of X must be an array or tensor of real numbers, or a tuple that begins "
                f"with one; row {i} is {type(first).__name__} (dtype {row.dtype})"
            )
        return row


class ParquetRows:
    """Rows of Parquet files, converted in the pieces that are read.

    Parameters
    ----------
    X : Parquet
    device, dtype
        Of the rows handed out.
    """

    index_device = CPU

    def __init__(self, X: Parquet, device: torch.device, dtype: torch.dtype) -> None:
        self.X, self.device, self.dtype = X, _with_index(device), dtype
        self.shape = _flat_shape(X.shape)

    def __getitem__(self, rows: slice | Tensor, /) -> Tensor:
        """Dense rows on the device."""
        index = _host_index(rows)
        if isinstance(index, slice):
            start, stop, _ = index.indices(self.shape[0])
            found = self.X.read(start, max(start, stop))
        else:
            found = self.X.pick(index)
        with np.errstate(over="ignore"):
            host = torch.from_numpy(found.astype(_NUMPY_DTYPES[self.dtype], copy=False))
        return _deliver(host, self.device, self.dtype)

    def given(self, number: int) -> npt.NDArray[Any]:
        """A row (D,) as it was brought, for errors."""
        return self.X.pick(np.array([number])).reshape(-1)


class Stream(NamedTuple):
    """How rows that are too many to be held are read, of a source that has ``stream``."""

    bounds: npt.NDArray[np.int64]
    """Numbers of the rows that blocks begin with, and of all rows, (blocks + 1,). Within a block
    rows are read in order."""
    n_open: int
    """Blocks that can be read in turn without beginning anew."""
    in_order: bool = True
    """Whether a block has to be read from its first row on."""


class Streamed:
    """Rows that are read from where they lie whenever they are needed, and checked when read.

    Parameters
    ----------
    rows : ArrayRows, ParquetRows or DatasetRows
    stream : Stream
    names : sequence of str, optional
        Of the features, for errors.

    Examples
    --------
    >>> X = np.array([[1.0, 2.0], [3.0, np.nan]])
    >>> rows = Streamed(ArrayRows(X, torch.device("cpu"), torch.float64), even_blocks(2, 2, 8))
    >>> rows[0:2]
    Traceback (most recent call last):
    ...
    ValueError: X must be finite; row 1, feature 1 is NaN
    """

    index_device = CPU

    def __init__(
        self,
        rows: ArrayRows | ParquetRows | DatasetRows,
        stream: Stream,
        names: Sequence[str] | None = None,
    ) -> None:
        self.rows, self.stream, self.names = rows, stream, names
        self.known: dict[str, Any] = {}
        """What passes have found of all rows, for the next that needs it."""
        self.shape, self.dtype, self.device = rows.shape, rows.dtype, rows.device

    def __getitem__(self, rows: slice | Tensor, /) -> Tensor:
        """Dense rows on the device."""
        found = self.rows[rows]
        if not (isinstance(self.rows, ArrayRows) and self.rows.whole):
            numbers = range(*rows.indices(self.shape[0])) if isinstance(rows, slice) else rows
            _check_finite(found, numbers, self.names, self.rows.given)
        return found


def even_blocks(n: int, d: int, itemsize: int) -> Stream:
    """Of rows that can be read from anywhere."""
    n_blocks = -(-n * d * itemsize // BLOCK_BYTES)
    n_blocks = max(1, min(n, MAX_BLOCKS, n_blocks))
    bounds = np.arange(n_blocks + 1) * n // n_blocks
    # some blocks a lane, so that every pass has them in another order
    return Stream(bounds, max(1, min(LANES, n_blocks // 4)), in_order=False)


def _check_finite(
    rows: Tensor,
    numbers: Sequence[int] | Tensor,
    names: Sequence[str] | None = None,
    given: Callable[[int], npt.NDArray[Any]] | None = None,
) -> None:
    """Refuse rows (B, D) with NaN or infinity; the error names the first."""
    # a sum is finite only if its terms are: one pass, no copy, unless the sum overflows
    if bool(rows.sum().isfinite()):
        return
    bad = ~rows.isfinite()
    if not bool(bad.any()):
        return
    row = int(bad.any(1).int().argmax())
    feature = int(bad[row].int().argmax())
    number, value = int(numbers[row]), rows[row, feature].item()
    narrow = ""
    if given is not None and math.isinf(value):  # it may be too large for the type of the rows only
        own = given(number)[feature]
        narrow = f" as {_name(rows.dtype)}" if np.isfinite(own) else ""
        value = own if narrow else value
    name = "" if names is None else f" ({names[feature]})"
    said = str(value).replace("nan", "NaN").replace("inf", "infinity")
    raise ValueError(f"X must be finite{narrow}; row {number}, feature {feature}{name} is {said}")


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _with_index(device: torch.device) -> torch.device:
    """``cuda`` as ``cuda:0``, say: the device that tensors there name."""
    return CPU if device.type == "cpu" else torch.empty(0, device=device).device


def _flat_shape(shape: Sequence[int]) -> tuple[int, int]:
    """``(N, D)`` of ``(N, ...)``."""
    if len(shape) < 2:
        raise ValueError(f"X must have at least 2 axes, the first over rows, got {tuple(shape)}")
    flat = int(shape[0]), math.prod(map(int, shape[1:]))
    for size, what in zip(flat, ("sample", "feature"), strict=True):
        if size < 1:
            raise ValueError(
                f"X has 0 {what}(s) (shape={tuple(shape)}) while a minimum of 1 is required"
            )
    return flat


def _host_index(rows: slice | Tensor) -> slice | npt.NDArray[Any]:
    return rows if isinstance(rows, slice) else rows.cpu().numpy()


def _deliver(piece: Tensor, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Bring a piece to the device, narrow, and to its dtype there."""
    if piece.device == device:
        return piece.to(dtype)
    narrow = min(piece.dtype, dtype, key=lambda own: own.itemsize)
    if device.type == "cuda" and piece.device == CPU and not piece.is_pinned():
        return _through_pinned(piece, device, narrow).to(dtype)
    # torch hands pinned memory out again only when the copy from it is done
    return piece.to(narrow).to(device, non_blocking=True).to(dtype)


def _through_pinned(piece: Tensor, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Rows (B, D) on CUDA, in this dtype from the host on: the next part is read meanwhile."""
    out = torch.empty(piece.shape, dtype=dtype, device=device)
    size = max(1, PINNED_BYTES // max(1, piece.shape[1] * dtype.itemsize))
    arrived: list[torch.cuda.Event] = []
    for rows, there in zip(torch.split(piece, size), torch.split(out, size), strict=True):
        if len(arrived) > 1:
            arrived[-2].synchronize()  # else a fast host would pin all of the piece
        host = torch.empty(rows.shape, dtype=dtype, pin_memory=True)
        there.copy_(host.copy_(rows), non_blocking=True)
        arrived.append(torch.cuda.current_stream(device).record_event())
    return out


# --------------------------------------------------------------------------------------------------
# opening what users bring


class Source(NamedTuple):
    """Rows and what they are, from :func:`open_rows`."""

    rows: Rows
    """(N, D); ``rows[slice or row numbers]`` is dense (B, D)."""
    feature_shape: tuple[int, ...]
    """Of one row: ``(D,)``, or ``(1, 28, 28)``, say."""
    where: str
    """``"device"``: in its memory; ``"streamed"``: every piece is brought there when read."""


def open_rows(
    X: Any,
    *,
    device: torch.device,
    dtype: torch.dtype,
    max_resident_bytes: int | None = None,
) -> Source:
    """Rows of anything, read in pieces and never copied as a whole on the CPU.

    Parameters
    ----------
    X : array, memmap, CSR matrix, Tensor, map-style Dataset or Parquet
        Checked before, but for a Dataset and what is streamed, whose rows are checked when read.
        Of a memmap, a Dataset or Parquet files of more than 256 MiB every row is read whenever it
        is needed; Parquet files of less are read once. Arrays and tensors of
        shape (N, H, W), (N, C, H, W) and so on are flattened to rows. A tensor stays where it is.
    device : torch.device
        Where rows are handed out. For CUDA an array is copied there once, in its own dtype, if it
        fits, and so are dense rows of a CSR matrix; else pieces are streamed.
    dtype : torch.float32 or torch.float64
        Of the rows handed out. What has it already is shared, the rest converted piece by piece.
    max_resident_bytes : int, optional
        The largest array, Parquet files or dense form of a CSR matrix copied to a CUDA device; by
        default 60 % of its free memory, of a CSR matrix 20 %.

    Returns
    -------
    Source

    Examples
    --------
    >>> images = np.ones((5, 28, 28), dtype=np.uint8)
    >>> source = open_rows(images, device=torch.device("cpu"), dtype=torch.float32)
    >>> source.rows[0:2].shape, source.feature_shape, source.where
    (torch.Size([2, 784]), (28, 28), 'device')
    """
    if dtype not in (torch.float32, torch.float64):
        raise ValueError(f"dtype must be torch.float32 or torch.float64, got {dtype!r}")
    if max_resident_bytes is not None and max_resident_bytes != 0:
        check_positive_int("max_resident_bytes", max_resident_bytes, also="0 or None")
    device = _with_index(device)
    if isinstance(X, Tensor):
        return _open_tensor(X, device, dtype)
    if isinstance(X, np.ndarray):
        return _open_array(X, device, dtype, max_resident_bytes)
    if isinstance(X, sparse.csr_array | sparse.csr_matrix):
        opened = _open_sparse(SparseRows(X, device, dtype), max_resident_bytes)
        here = device == CPU or isinstance(opened, Tensor)
        return Source(opened, (int(X.shape[1]),), "device" if here else "streamed")
    if isinstance(X, Dataset):
        dataset = DatasetRows(X, device, dtype)
        shape = dataset.feature_shape or (1,)
        if math.prod(dataset.shape) * dtype.itemsize <= STREAM_BYTES:
            return Source(dataset, shape, "streamed")
        blocks = even_blocks(*dataset.shape, dtype.itemsize)
        return Source(Streamed(dataset, blocks), shape, "streamed")
    if isinstance(X, Parquet):
        return _open_parquet(X, device, dtype, max_resident_bytes)
    raise TypeError(
        "X must be an array, a CSR matrix, a tensor, a map-style Dataset or Parquet, got "
        f"{type(X).__name__}"
    )


def _open_tensor(X: Tensor, device: torch.device, dtype: torch.dtype) -> Source:
    rows = TensorRows(X, device, dtype)
    shape, where = tuple(X.shape[1:]), "device" if X.device == device else "streamed"
    if X.device == device and X.dtype == dtype:
        try:
            return Source(rows.X.view(rows.shape), shape, where)
        except RuntimeError:  # these strides cannot be flattened without a copy
            pass
    return Source(rows, shape, where)


def _open_array(
    X: npt.NDArray[Any], device: torch.device, dtype: torch.dtype, max_resident_bytes: int | None
) -> Source:
    rows = ArrayRows(X, device, dtype)
    shape = tuple(map(int, X.shape[1:]))
    large = on_disk(X)
    if device == CPU and large:
        return Source(Streamed(rows, even_blocks(*rows.shape, X.itemsize)), shape, "streamed")
    if device == CPU:
        shareable = X.ndim == 2 or X.flags.c_contiguous  # flattened without a copy
        if shareable and _torch_reads(X) and _TORCH_DTYPES[X.dtype] == dtype:
            return Source(_shared(rows.X.reshape(rows.shape)), shape, "device")
        return Source(rows, shape, "device")
    blocks = even_blocks(*rows.shape, X.itemsize)
    if not _fits(X.nbytes, device, max_resident_bytes):
        return Source(Streamed(rows, blocks) if large else rows, shape, "streamed")
    own = ArrayRows(X, device, _TORCH_DTYPES.get(X.dtype.newbyteorder("="), dtype))
    resident = _resident(Streamed(own, blocks) if large else own)
    return _open_tensor(resident, device, dtype)._replace(feature_shape=shape)


def _open_parquet(
    X: Parquet, device: torch.device, dtype: torch.dtype, max_resident_bytes: int | None
) -> Source:
    rows = Streamed(ParquetRows(X, device, dtype), Stream(X.bounds, X.n_open), X.feature_names)
    size = math.prod(X.shape) * dtype.itemsize
    if (device == CPU and size > STREAM_BYTES) or not _fits(size, device, max_resident_bytes):
        return Source(rows, X.shape[1:], "streamed")
    return Source(_resident(rows), X.shape[1:], "device")


def _open_sparse(rows: SparseRows, most: int | None) -> Rows:
    """Dense in the memory of a device that is not the CPU, if they fit.

    There a step reads them without the host, and may be recorded.
    """
    size = math.prod(rows.shape) * rows.dtype.itemsize
    if rows.device == CPU or not _fits(size, rows.device, most, SPARSE_SHARE):
        return rows
    return _resident(rows)


def _fits(size: int, device: torch.device, most: int | None, share: float = RESIDENT_SHARE) -> bool:
    """Whether so many bytes may be copied to the device."""
    if device.type == "cuda" and most is None:
        most = int(share * torch.cuda.mem_get_info(device)[0])
    return most is None or size <= most


def _resident(rows: ArrayRows | SparseRows | Streamed) -> Tensor:
    """All rows on their device."""
    resident = torch.empty(rows.shape, dtype=rows.dtype, device=rows.device)
    for start, stop, piece in pieces(rows):
        resident[start:stop] = piece
    return resident


def _torch_reads(X: npt.NDArray[Any]) -> bool:
    """Whether torch can read an array where it lies."""
    forward = all(stride >= 0 and stride % X.itemsize == 0 for stride in X.strides)
    return forward and X.dtype.isnative and X.dtype in _TORCH_DTYPES


def surely_finite(X: object) -> bool:
    """Whether X is an array of floats whose sum, by all threads, is finite: then all of them are.

    Examples
    --------
    >>> surely_finite(np.ones(3)), surely_finite(np.array([np.nan])), surely_finite([1.0])
    (True, False, False)
    """
    if not (isinstance(X, np.ndarray) and X.dtype in _NUMPY_DTYPES.values() and _torch_reads(X)):
        return False
    return bool(_shared(X).sum().isfinite())


def on_disk(X: npt.NDArray[Any]) -> bool:
    """Whether an array is a memmap, or a view of one, that is too large to be held."""
    base: Any = X
    while isinstance(base, np.ndarray) and not isinstance(base, np.memmap):
        base = base.base
    return isinstance(base, np.memmap) and X.nbytes > STREAM_BYTES


def from_path(X: Any) -> Any:
    """What a path names: a ``.npy`` file as a memmap, Parquet files as such; all else as it is."""
    if not isinstance(X, str | os.PathLike):
        return X
    path = Path(X)
    ending = path.suffix.lower()
    if ending == ".npy":
        return cast("Arrays", open_input(path, "npy")).get("")
    if ending in PARQUET_ENDINGS or path.is_dir():
        return Parquet(path)
    raise ValueError(
        "X must be rows, or the path of a .npy file, a Parquet file or a folder of those, got "
        f"{shown(X)}; ckm fit reads other files"
    )


def streams(X: object) -> bool:
    """Whether rows of X are checked when they are read: all of it may be more than memory holds."""
    return isinstance(X, Dataset | Parquet) or (isinstance(X, np.ndarray) and on_disk(X))


def _shared(X: npt.NDArray[Any]) -> Tensor:
    with warnings.catch_warnings():
        # torch warns that writing to a read-only array is undefined; rows are never written to
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(X)


def float_type(X: Any) -> torch.dtype:
    """Of the rows of what :func:`streams`: float32 where that holds every number, else float64."""
    own = DatasetRows(X, CPU, torch.float64).item_dtype if isinstance(X, Dataset) else X.dtype
    return torch.float32 if own in (np.float32, np.float16) else torch.float64


def as_rows(X: Any, device: torch.device, *, once: bool = False) -> Rows:
    """Rows on the device from a checked array, CSR matrix or tensor; no copy on the CPU.

    Those of a CSR matrix that are read ``once`` are streamed to a device.
    """
    if isinstance(X, Tensor):
        return X
    if sparse.issparse(X):
        rows = SparseRows(cast("sparse.csr_array", X), device)
        return _open_sparse(rows, 0 if once else None)
    # backward strides, which a contiguous array of one row may have, and swapped bytes: not torch's
    if any(stride < 0 for stride in X.strides) or not X.dtype.isnative:
        X = X.astype(X.dtype.newbyteorder("="))
    return _shared(np.ascontiguousarray(X)).to(device)


def resolve_device(device: str | torch.device, X: object) -> torch.device:
    """Where to compute: a tensor's own device; for anything else CUDA if there, or the CPU."""
    if isinstance(X, Tensor):
        if not is_auto(device) and not _same_device(_usable(device), X.device):
            raise ValueError(
                f"device={str(device)!r} but X is on {X.device}: a tensor is never moved; "
                "move it yourself or leave device='auto'"
            )
        if X.is_meta:
            raise ValueError("X must hold numbers, got a tensor on the meta device")
        return X.device
    if is_auto(device):
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return _usable(device)


def _usable(device: str | torch.device) -> torch.device:
    try:
        resolved = torch.device(device)
        torch.empty(0, device=resolved).cpu()  # meta has no values to give
    except (RuntimeError, AssertionError, TypeError, ValueError, NotImplementedError) as error:
        raise ValueError(
            f"device must be 'auto' or a device torch can use here, got {shown(device)}"
        ) from error
    return resolved


def _same_device(wanted: torch.device, have: torch.device) -> bool:
    return wanted.type == have.type and wanted.index in (None, have.index)


def detached(X: Tensor) -> Tensor:
    """The same memory without a graph, for gradients to be computed with."""
    X = X.detach()
    return from_dlpack(X) if X.is_inference() else X  # autograd refuses inference tensors


def check_tensor(X: Tensor) -> Tensor:
    """Check for (N, D), not empty and finite; return it as float32 or float64."""
    if X.ndim != 2:
        raise ValueError(f"X must be a 2D tensor (n_samples, n_features), got {tuple(X.shape)}")
    if X.layout != torch.strided:
        raise TypeError(f"X must be a dense tensor (or a scipy CSR matrix), got {X.layout}")
    if X.is_complex():
        raise ValueError(f"Complex data not supported: X must be real numbers, got {X.dtype}")
    for size, what in zip(X.shape, ("sample", "feature"), strict=True):
        if size < 1:
            raise ValueError(
                f"X has 0 {what}(s) (shape={tuple(X.shape)}) while a minimum of 1 is required"
            )
    X = detached(X)
    if X.dtype not in (torch.float32, torch.float64):
        X = X.to(torch.float32)
    _check_finite(X, range(len(X)))
    return X


def merge_equal_rows(X: Rows, weight: Tensor | None) -> tuple[Tensor, Tensor]:
    """Distinct rows in a fixed order, with the weights of equal ones added; zero weights left out.

    The outcome of a fit on them depends neither on the order of the rows nor on whether a row is
    repeated or weighted.
    """
    rows = X[0 : X.shape[0]]
    if weight is None:
        weight = torch.ones(len(rows), dtype=rows.dtype, device=rows.device)
    rows, weight = rows[weight > 0], weight[weight > 0]
    distinct, group = torch.unique(rows, dim=0, return_inverse=True)
    total = torch.zeros(len(distinct), dtype=weight.dtype, device=weight.device)
    return distinct, total.index_add_(0, group, weight)


# --------------------------------------------------------------------------------------------------
# passes over all rows, and scaling


def pieces(rows: Rows, max_bytes: int = MAX_PIECE_BYTES) -> Iterator[tuple[int, int, Tensor]]:
    """One pass over the rows: ``(start, stop, rows[start:stop])``.

    Parameters
    ----------
    rows : Tensor or RowSource of shape (N, D)
    max_bytes : int
        Of a piece, which holds one row at least.

    Examples
    --------
    >>> [(start, stop) for start, stop, _ in pieces(torch.zeros(5, 3), max_bytes=24)]
    [(0, 2), (2, 4), (4, 5)]
    """
    check_positive_int("max_bytes", max_bytes)
    yield from chunks_of(rows, max(1, max_bytes // (int(rows.shape[1]) * rows.dtype.itemsize)))


def chunks_of(rows: Rows, size: int) -> Iterator[tuple[int, int, Tensor]]:
    """One pass over the rows, so many at a time; those that have to be read are read meanwhile."""
    n = int(rows.shape[0])
    ends = ((start, min(start + size, n)) for start in range(0, n, size))
    found = ((start, stop, rows[start:stop]) for start, stop in ends)
    if rows.device.type == "cuda" and _index_device(rows) == CPU:
        return read_beside(found, rows.device)
    return found if stream_of(rows) is None else read_ahead(found, worth=WORTH)


class Moments(NamedTuple):
    """Of each feature over all rows, in float64."""

    mean: Tensor
    """(D,)."""
    variance: Tensor
    """(D,), the mean squared deviation; zero exactly where all values are equal."""
    minimum: Tensor
    """(D,)."""
    maximum: Tensor
    """(D,)."""


def feature_moments(rows: Rows) -> Moments:
    """Mean, variance, minimum and maximum of each feature in one pass over pieces of the rows.

    Deviations are taken from the mean of the piece and the pieces merged, so that rows far from the
    origin keep their digits.

    Parameters
    ----------
    rows : Tensor or RowSource of shape (N, D)

    Returns
    -------
    Moments

    Examples
    --------
    >>> moments = feature_moments(torch.tensor([[1e9], [1e9 + 2]], dtype=torch.float64))
    >>> moments.mean.item() - 1e9, moments.variance.item()
    (1.0, 1.0)
    """
    d = int(rows.shape[1])
    mean = torch.zeros(d, dtype=torch.float64, device=rows.device)
    square = torch.zeros_like(mean)  # sum of squared deviations from the mean
    minimum, maximum = torch.full_like(mean, torch.inf), torch.full_like(mean, -torch.inf)
    # one for all pieces: the allocator would keep what several of this size leave free
    wide = torch.empty(0, d, dtype=torch.float64, device=rows.device)
    for start, stop, piece in pieces(own_rows(rows)):
        minimum, maximum = minimum.minimum(piece.amin(0)), maximum.maximum(piece.amax(0))
        wide = wide if len(wide) >= len(piece) else wide.new_empty(piece.shape)
        deviation = wide[: len(piece)].copy_(piece)
        own = deviation.mean(0)
        deviation.sub_(own)
        jump, share = own - mean, (stop - start) / stop
        mean = mean + share * jump
        square = square + deviation.mul_(deviation).sum(0) + start * share * jump.square()
    if processes.many():
        mean, square, minimum, maximum = _merge_moments(mean, square, minimum, maximum, rows)
    constant = minimum == maximum
    mean = minimum.where(constant, mean)
    variance = (square / rows.shape[0]).masked_fill(constant, 0.0)
    finite = mean.isfinite() & variance.isfinite()
    if not bool(finite.all()):
        feature = int(finite.int().argmin())
        raise ValueError(
            f"X must be finite as {_name(rows.dtype)}, and its squares as float64; feature "
            f"{feature} is not: minimum {minimum[feature]:.3g}, maximum {maximum[feature]:.3g}"
        )
    return Moments(mean, variance, minimum, maximum)


def _merge_moments(
    mean: Tensor, square: Tensor, minimum: Tensor, maximum: Tensor, rows: Rows
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Of the rows of all processes, from those of each, (D,) each: as pieces are merged."""
    share = processes.share(int(rows.shape[0]))
    overall = processes.sum_all(share * mean)
    square = square + share * rows.shape[0] * (mean - overall).square()
    low, high = processes.gather(torch.stack([minimum, -maximum])[None], processes.size()).amin(0)
    return overall, processes.sum_all(square), low, -high


@dataclass(frozen=True, eq=False)
class Scaling:
    """Scaled rows ``(rows - shift) * factor``, from :func:`fit_scaling`.

    Parameters
    ----------
    kind : {"none", "global", "standard", "minmax"}
    shift : Tensor of shape (D,)
    factor : Tensor of shape (D,) or ()
        Positive.

    Examples
    --------
    >>> scaling = Scaling("minmax", torch.tensor([1.0]), torch.tensor([0.5]))
    >>> scaling(torch.tensor([[1.0], [3.0]])).tolist()
    [[0.0], [1.0]]
    >>> scaling.inverse(torch.tensor([[0.0], [1.0]])).tolist()
    [[1.0], [3.0]]
    """

    kind: ScalingKind
    shift: Tensor
    factor: Tensor

    def __call__(self, rows: Tensor) -> Tensor:
        """Scale rows (..., D), in their own dtype and on their own device."""
        if self.kind == "none":
            return rows
        high, low, factor = self.like(rows)
        return (rows - high).sub_(low).mul_(factor)

    def inverse(self, rows: Tensor) -> Tensor:
        """Undo the scaling of rows (..., D): centres, say."""
        if self.kind == "none":
            return rows
        high, low, factor = self.like(rows)
        return rows / factor + low + high

    def like(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Shift in two parts, and factor, for rows of this dtype on this device."""
        if not rows.is_floating_point():
            raise TypeError(f"rows must be floating point to be scaled, got {rows.dtype}")
        shift = self.shift.to(rows.device, torch.float64)
        # far from the origin, float32 rounds the mean by a visible part of the spread: the rest of
        # the shift follows on its own
        high = shift.to(rows.dtype)
        low = (shift - high.double()).to(rows.dtype)
        return high, low, self.factor.to(rows)


def fit_scaling(
    rows: Rows, kind: str, *, sparse: bool = False, moments: Moments | None = None
) -> Scaling:
    """Find shift and factor in one pass over pieces of the rows, in float64.

    Parameters
    ----------
    rows : Tensor or RowSource of shape (N, D)
    kind : {"none", "global", "standard", "minmax"}
        ``"global"`` subtracts the mean and divides by one number, so that the mean variance of the
        features is one. ``"standard"`` gives each feature mean zero and variance one; ``"minmax"``
        takes each to [0, 1]. What does not vary is divided by one.
    sparse : bool, default=False
        Zeros stay zeros: the shift is zero and only the factor is found, for ``"minmax"`` one over
        the largest absolute value.
    moments : Moments, optional
        Of the rows, if they are known: the pass is spared.

    Returns
    -------
    Scaling

    Examples
    --------
    >>> X = torch.tensor([[1.0, 7.0], [3.0, 7.0]])
    >>> fit_scaling(X, "standard")(X)
    tensor([[-1.,  0.],
            [ 1.,  0.]])
    """
    check_choice("kind", kind, get_args(ScalingKind))
    d = int(rows.shape[1])
    shift = torch.zeros(d, dtype=torch.float64, device=rows.device)
    if kind == "none":
        return Scaling("none", shift, torch.ones_like(shift[0]))
    moments = feature_moments(rows) if moments is None else moments
    if kind == "minmax":
        spread = moments.maximum - moments.minimum
        if sparse:
            spread = torch.maximum(moments.maximum.abs(), moments.minimum.abs())
    else:
        variance = moments.variance.mean() if kind == "global" else moments.variance
        spread = variance.sqrt()
    if not sparse:
        shift = moments.minimum if kind == "minmax" else moments.mean
    # one over a spread below this is infinite in the dtype of the rows
    least = torch.finfo(rows.dtype).tiny
    factor = torch.where(spread > least, spread, 1.0).reciprocal()
    return Scaling(cast("ScalingKind", kind), shift, factor)


class Scaled:
    """Rows that are scaled in the pieces that are read.

    Examples
    --------
    >>> X = torch.tensor([[1.0], [3.0]])
    >>> Scaled(X, fit_scaling(X, "standard"))[torch.tensor([1])]
    tensor([[1.]])
    """

    def __init__(self, rows: Rows, scaling: Scaling) -> None:
        self.rows, self.scaling = rows, scaling
        self.shape: Sequence[int] = tuple(rows.shape)
        self.dtype, self.device = rows.dtype, rows.device
        self.index_device = _index_device(rows)
        self.stream = stream_of(rows)
        self._parts: tuple[Tensor, Tensor, Tensor] | None = None

    def __getitem__(self, rows: slice | Tensor, /) -> Tensor:
        """Dense scaled rows on the device."""
        if self.scaling.kind == "none":
            return self.rows[rows]
        index = None
        if self._picks(rows):
            every, index = cast("Tensor", self.rows), cast("Tensor", rows)
        else:
            every = self.rows[rows]
        kernels = kernels_for(every) if every.is_contiguous() else None
        if index is None and kernels is None:
            return self.scaling(every)
        if self._parts is None:  # some operations, which a step need not do again
            high, low, factor = self.scaling.like(every)
            self._parts = high, low, factor.expand_as(high).contiguous()
        if kernels is not None:  # one pass instead of three
            index = torch.arange(len(every), device=every.device) if index is None else index
            return cast("Tensor", kernels.take(every, index, *self._parts))
        high, low, factor = self._parts
        # a quarter of the time of every[index]
        return every.index_select(0, cast("Tensor", index)).sub_(high).sub_(low).mul_(factor)

    def _picks(self, rows: slice | Tensor) -> bool:
        """Whether these are row numbers, by which rows and scaling are one pass."""
        if isinstance(rows, slice) or not isinstance(self.rows, Tensor):
            return False
        return rows.dtype == torch.int64 and rows.ndim == 1 and rows.device == self.device


class Subset:
    """Some of the rows of another source.

    Examples
    --------
    >>> Subset(torch.tensor([[1.0], [3.0], [5.0]]), torch.tensor([0, 2]))[1:]
    tensor([[5.]])
    """

    def __init__(self, rows: Rows, index: Tensor) -> None:
        self.index_device = _index_device(rows)
        self.rows, self.index = rows, index.to(self.index_device)
        self.shape: Sequence[int] = (len(index), int(rows.shape[1]))
        self.dtype, self.device = rows.dtype, rows.device

    def __getitem__(self, rows: slice | Tensor, /) -> Tensor:
        """Dense rows on the device."""
        own = rows if isinstance(rows, slice) else rows.to(self.index_device)
        return self.rows[self.index[own]]


class Without:
    """All rows of another source but some.

    Parameters
    ----------
    rows : Tensor or RowSource of shape (N, D)
    left_out : Tensor of shape (M,)
        Their numbers, rising.

    Examples
    --------
    >>> rest = Without(torch.tensor([[1.0], [3.0], [5.0], [7.0]]), torch.tensor([0, 2]))
    >>> rest[0:2].tolist(), rest[torch.tensor([1])].tolist()
    ([[3.0], [7.0]], [[7.0]])
    """

    def __init__(self, rows: Rows, left_out: Tensor) -> None:
        self.index_device = _index_device(rows)
        self.rows, self.left_out = rows, left_out.to(self.index_device)
        self.shape: Sequence[int] = (int(rows.shape[0]) - len(left_out), int(rows.shape[1]))
        self.dtype, self.device = rows.dtype, rows.device
        # how many of the rows that are kept come before each that is not
        self._before = self.left_out - torch.arange(len(left_out), device=self.index_device)
        self.stream = stream_of(rows)
        if self.stream is not None:
            bounds, out = self.stream.bounds, self.left_out.cpu().numpy()
            self.stream = self.stream._replace(bounds=bounds - np.searchsorted(out, bounds))

    def numbers(self, kept: Tensor) -> Tensor:
        """Numbers in the other source, of rows by their numbers here."""
        return kept + torch.searchsorted(self._before, kept, right=True)

    def __getitem__(self, rows: slice | Tensor, /) -> Tensor:
        """Dense rows on the device."""
        if not isinstance(rows, slice):
            return self.rows[self.numbers(rows.to(self.index_device))]
        start, stop, _ = rows.indices(self.shape[0])
        if start >= stop:
            return self.rows[0:0]
        ends = torch.tensor([start, stop - 1], device=self.index_device)
        first, last = self.numbers(ends).tolist()
        found = self.rows[first : last + 1]
        inside = self.left_out[(self.left_out > first) & (self.left_out < last)] - first
        if not len(inside):
            return found
        keep = torch.ones(len(found), dtype=torch.bool, device=inside.device)
        keep[inside] = False
        return found[keep.to(found.device)]


def stream_of(rows: Rows) -> Stream | None:
    """How rows are streamed; None of those that are held."""
    return getattr(rows, "stream", None)


def _index_device(rows: Rows) -> torch.device:
    """Where row numbers had best lie for a read that waits for no other device."""
    device: torch.device = getattr(rows, "index_device", rows.device)
    return device


# --------------------------------------------------------------------------------------------------
# batches


class Batch(NamedTuple):
    """Rows of one step, of each restart its own."""

    rows: Tensor
    """(R, B, D)."""
    weight: Tensor | None
    """(R, B)."""
    index: Tensor  # type: ignore[assignment]  # hides tuple.index, which nobody calls
    """(R, B), their row numbers, on the device of the rows."""
    whole: Tensor | None = None
    """Where processes share a batch: row numbers of all of it."""

    @property
    def size(self) -> int:
        """Rows of the batch in all processes."""
        return int((self.index if self.whole is None else self.whole).shape[1])

    @property
    def share(self) -> float:
        """Part of them that is here."""
        return self.index.shape[1] / self.size


class Place(NamedTuple):
    """Where passes over shuffled rows are."""

    began: list[Tensor]
    """States of the generators before the shuffle of this pass, which is cheaper to draw again
    than to keep."""
    taken: int
    """Batches that are taken, of all passes."""


class Windows:
    """The order in which a stream is read: windows that fit in memory, each with rows of all parts.

    The stream is cut into lanes, runs of as many blocks. In every pass the blocks of a lane come in
    another order, and a window has the next rows of each lane. The order is that of the number of
    the pass: restarts share what is read, and shuffle it each on its own.

    Parameters
    ----------
    stream : Stream
    size : int
        Rows of a window, about.

    Examples
    --------
    >>> windows = Windows(Stream(np.array([0, 2, 4, 6, 8]), n_open=2), size=4)
    >>> windows.count, [sorted(windows.ranges(0, i)) for i in range(2)]
    (2, [[(0, 2), (4, 6)], [(2, 4), (6, 8)]])
    """

    def __init__(self, stream: Stream, size: int) -> None:
        self.bounds = stream.bounds
        self.count = -(-int(self.bounds[-1]) // size)
        n_blocks = len(self.bounds) - 1
        n_lanes = min(stream.n_open, n_blocks)
        self.lanes = np.arange(n_lanes + 1) * n_blocks // n_lanes  # first blocks of them, and end
        self.lengths = np.diff(self.bounds[self.lanes])
        # lanes of which a window has less than a row take turns
        self.phases = np.arange(n_lanes) * self.count // n_lanes
        self._number, self._lanes = -1, [(np.empty(0, np.int64),) * 2]

    def start(self, window: int) -> int:
        """Rows in the windows before one."""
        return int(((self.lengths * window + self.phases) // self.count).sum())

    def read(self, X: Rows, number: int, window: int) -> tuple[Tensor, Tensor]:
        """Rows (W, D) of a window in a pass, and their numbers."""
        ranges = self.ranges(number, window)
        parts = [torch.arange(start, stop) for start, stop in ranges]
        numbers = torch.cat([torch.empty(0, dtype=torch.int64), *parts])
        rows = torch.empty(len(numbers), int(X.shape[1]), dtype=X.dtype, device=X.device)
        done, step = 0, max(1, MAX_READ_BYTES // (int(X.shape[1]) * X.dtype.itemsize))
        for first, last in ranges:
            for start in range(first, last, step):
                stop = min(start + step, last)
                rows[done : done + stop - start] = X[start:stop]
                done += stop - start
        return rows, numbers

    def ranges(self, number: int, window: int) -> list[tuple[int, int]]:
        """Rows ``start`` to ``stop`` of a window in a pass, range by range."""
        if number != self._number:
            self._number, self._lanes = number, list(self._ordered(number))
        found = []
        firsts = (self.lengths * window + self.phases) // self.count
        lasts = (self.lengths * (window + 1) + self.phases) // self.count
        ends_of_lanes = zip(self._lanes, firsts.tolist(), lasts.tolist(), strict=True)
        for (blocks, ends), first, last in ends_of_lanes:
            block = int(np.searchsorted(ends, first, side="right"))
            while first < last:
                end = int(self.bounds[blocks[block] + 1])
                begin = end - int(ends[block] - first)
                stop = min(end, begin + last - first)
                found.append((begin, stop))
                first, block = first + stop - begin, block + 1
        return found

    def _ordered(self, number: int) -> Iterator[tuple[npt.NDArray[Any], npt.NDArray[Any]]]:
        """Blocks of each lane as a pass reads them, and how many rows end with each."""
        order = np.random.default_rng(number)
        sizes = np.diff(self.bounds)
        for first, last in itertools.pairwise(self.lanes):
            blocks = first + order.permutation(last - first)
            yield blocks, np.cumsum(sizes[blocks])


class DrawnWindows:
    """Windows of which each has one of every few neighbouring rows, drawn at random.

    A pass over the stream reads one of them: for training that is over after a few, on a stream
    whose blocks are read in order. Parameters are those of :class:`Windows`.

    Examples
    --------
    >>> windows = DrawnWindows(Stream(np.array([0, 6]), n_open=1), size=3)
    >>> pairs = [windows.read(torch.arange(6.0).view(6, 1), 0, i)[1] // 2 for i in range(2)]
    >>> windows.count, pairs
    (2, [tensor([0, 1, 2]), tensor([0, 1, 2])])
    """

    def __init__(self, stream: Stream, size: int) -> None:
        n = int(stream.bounds[-1])
        self.size = min(size, n)
        self.count = -(-n // self.size)
        self.bounds = np.arange(self.size + 1) * n // self.size

    def start(self, window: int) -> int:
        """Rows in the windows before one."""
        return int(np.minimum(np.diff(self.bounds), window).sum())

    def read(self, X: Rows, number: int, window: int) -> tuple[Tensor, Tensor]:
        """Rows (W, D) of a window in a pass, and their numbers."""
        sizes = np.diff(self.bounds)
        first = np.random.default_rng(number).integers(0, sizes)  # each in turn from there on
        here = (window < sizes).nonzero()
        numbers = (self.bounds[:-1] + (first + window) % sizes)[here]
        found = torch.from_numpy(numbers)
        return X[found], found


def _window_rows(rows: Rows) -> int:
    return max(1, WINDOW_BYTES // (int(rows.shape[1]) * rows.dtype.itemsize))


def check_batch_size(rows: Rows, batch_size: int) -> None:
    """Refuse batches of more rows than are in memory at a time."""
    if stream_of(rows) is not None and batch_size > _window_rows(rows):
        raise ValueError(
            f"batch_size must be at most {_window_rows(rows)} for rows of {rows.shape[1]} numbers "
            f"that are streamed, got {batch_size}"
        )


class _Window(NamedTuple):
    rows: Tensor  # (W, D)
    numbers: Tensor  # (W,), on the CPU
    start: int  # rows of this pass before it
    orders: Tensor  # (R, W), of each restart


class Batches:
    """Batches ``(R, B, D)`` without end, each restart shuffled by its own generator.

    Rows are drawn without replacement, pass after pass, up to ``max_shuffled`` rows; beyond, where
    a permutation costs more than the training, with replacement. If all rows fit in one batch,
    every batch is all of them. Rows of a stream are drawn without replacement from
    :class:`Windows` or :class:`DrawnWindows`, of which the next is read while one is used.

    Many processes draw the same batches, and each reads its own part of every one.

    :attr:`place` and the generators' states say which batch is next; both set on fresh batches,
    they go on with it.

    Parameters
    ----------
    X : Tensor or RowSource of shape (N, D)
    weight : Tensor of shape (N,), optional
    batch_size : int
    generators : sequence of R torch.Generator
    n_batches : int, optional
        How many will be asked for. Of Parquet files of which they are a small part, windows are
        drawn from all rows, each in a pass of its own: by blocks they would see a few of them.

    Examples
    --------
    >>> X, generators = torch.arange(6.0).view(6, 1), [torch.Generator().manual_seed(0)]
    >>> batches = Batches(X, None, 2, generators)
    >>> rows, weight, index, _ = next(iter(batches))
    >>> torch.equal(rows, X[index]), weight, batches.per_epoch
    (True, None, 3)
    """

    max_shuffled = 2**24

    def __init__(
        self,
        X: Rows,
        weight: Tensor | None,
        batch_size: int,
        generators: Sequence[torch.Generator],
        *,
        n_batches: int | None = None,
    ) -> None:
        self.X, self.generators = X, generators
        self.n, self.size = int(X.shape[0]), min(int(batch_size), int(X.shape[0]))
        # a mean of one keeps the loss and the learning rate those of unweighted rows
        self.weight = None if weight is None else weight / weight.mean()
        self.place: Place | None = None
        """None before the first pass, and where nothing is shuffled."""
        self.windows: Windows | DrawnWindows | None = None
        """Of a stream."""
        if (stream := stream_of(X)) is not None:
            self.windows = self._windows(stream, n_batches)

    def _windows(self, stream: Stream, n_batches: int | None) -> Windows | DrawnWindows:
        few = n_batches is not None and 8 * n_batches * self.size <= self.n
        kind = DrawnWindows if few and stream.in_order else Windows
        return kind(stream, _window_rows(self.X))

    @property
    def per_epoch(self) -> int:
        """Batches in a pass over the rows."""
        return self.n // self.size

    @property
    def shape(self) -> tuple[int, int]:
        """R and B."""
        return len(self.generators), self.size

    @property
    def on_cuda(self) -> bool:
        """Whether the rows of a batch are read without the host."""
        return self.X.device.type == "cuda" and _index_device(self.X) == self.X.device

    def __iter__(self) -> Iterator[Batch]:
        if self.windows is not None:
            yield from self._of_windows(self.windows)
        if self.size == self.n:
            part = processes.own(self.n)
            rows = self.X[part].expand(len(self.generators), -1, -1)
            for index in self.indices():
                whole = index.to(self.X.device)
                weight = None if self.weight is None else self.weight.expand(*whole.shape)[:, part]
                yield Batch(rows, weight, whole[:, part], whole if processes.many() else None)
        for index in self.indices():
            yield self.take(index)

    def take(self, index: Tensor) -> Batch:
        """The batch of those rows, (R, B)."""
        part = processes.own(self.size)
        rows = self.X[index[:, part].reshape(-1)].view(len(index), part.stop - part.start, -1)
        return self._batch(rows, index)

    def _batch(self, rows: Tensor, index: Tensor) -> Batch:
        """The batch of those rows, (R, B), of which this process has its own part."""
        whole = index.to(self.X.device, non_blocking=True)
        own = whole[:, processes.own(self.size)]
        weight = None if self.weight is None else self.weight[own]
        return Batch(rows, weight, own, whole if processes.many() else None)

    def indices(self) -> Iterator[Tensor]:
        """Numbers (R, B) of the rows of batch after batch."""
        device = _index_device(self.X)
        if self.size == self.n:
            every = torch.arange(self.n, device=device).expand(*self.shape)
            yield from itertools.repeat(every)
        while True:
            if self.n > self.max_shuffled:
                draws = [torch.randint(self.n, (self.size,), **_on(g)) for g in self.generators]
                yield torch.stack(draws).to(device)
                continue
            order = self._drawn(self._shuffled).to(device)
            # the remainder of a pass would be a batch of another size: it waits for another shuffle
            for i in self._left():
                yield order[:, i * self.size : (i + 1) * self.size]

    def _of_windows(self, windows: Windows | DrawnWindows) -> Iterator[Batch]:
        """Batch after batch of a stream."""
        while True:
            seeds = self._drawn(self._seeds)
            number, first = divmod(cast("Place", self.place).taken, self.per_epoch)
            found = self._pass(windows, number, first, seeds.tolist())
            for _, batch in zip(self._left(), found, strict=False):
                yield batch

    def _pass(
        self, windows: Windows | DrawnWindows, number: int, first: int, seeds: list[int]
    ) -> Iterator[Batch]:
        """Batches of a pass from one on; that at the end of a window goes on in the next."""
        place = first * self.size
        begin = bisect.bisect_right(range(windows.count), place, key=windows.start) - 1
        read = (self._window(windows, number, w, seeds) for w in range(begin, windows.count))
        rows: list[Tensor] = []
        index: list[Tensor] = []
        missing = self.size
        for window in read_ahead(read):
            done = max(0, place - window.start)
            while done < len(window.numbers):
                order = window.orders[:, done : done + missing]
                rows.append(window.rows[order.to(window.rows.device)])
                index.append(window.numbers[order])
                done, missing = done + order.shape[1], missing - order.shape[1]
                if not missing:
                    whole = torch.cat(rows, 1)
                    yield self._batch(whole[:, processes.own(self.size)], torch.cat(index, 1))
                    rows, index, missing = [], [], self.size
            del window  # while the next one is awaited, it would be a third

    def _window(
        self, windows: Windows | DrawnWindows, number: int, window: int, seeds: list[int]
    ) -> _Window:
        rows, numbers = windows.read(self.X, number, window)
        own = [torch.Generator().manual_seed(seed + window) for seed in seeds]
        orders = torch.stack([torch.randperm(len(numbers), generator=g) for g in own])
        return _Window(rows, numbers, windows.start(window), orders)

    def _left(self) -> Iterator[int]:
        """Numbers of the batches left in this pass, each noted as taken."""
        place = cast("Place", self.place)
        for i in range(place.taken % self.per_epoch, self.per_epoch):
            place = self.place = place._replace(taken=place.taken + 1)
            yield i

    def _drawn(self, draw: Callable[[], Tensor]) -> Tensor:
        """What the generators give for this pass, a new one or one that was under way."""
        if self.place is None or self.place.taken % self.per_epoch == 0:
            taken = 0 if self.place is None else self.place.taken
            self.place = Place([g.get_state() for g in self.generators], taken)
            return draw()
        now = [g.get_state() for g in self.generators]
        _set_states(self.generators, self.place.began)
        drawn = draw()
        _set_states(self.generators, now)
        return drawn

    def _shuffled(self) -> Tensor:
        """Row numbers (R, N), of each restart in its own order."""
        return torch.stack([torch.randperm(self.n, **_on(g)) for g in self.generators])

    def _seeds(self) -> Tensor:
        """A number (R,) for each restart, that orders the rows of its windows."""
        draws = [torch.randint(2**62, (), **_on(g)) for g in self.generators]
        return torch.stack(draws).cpu()


def _set_states(generators: Sequence[torch.Generator], states: Sequence[Tensor]) -> None:
    for generator, state in zip(generators, states, strict=True):
        generator.set_state(state)


def _on(generator: torch.Generator) -> dict[str, Any]:
    return {"generator": generator, "device": generator.device}
