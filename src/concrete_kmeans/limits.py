"""How large a file may become in memory: a few bytes can declare, or unpack to, any number.

Each bound is far above what people have, and can be raised by an environment variable, which the
error names.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable
from typing import IO, Any

__all__ = ["bounded", "check_size", "max_pixels"]

#: Bytes that a file may unpack to; or so many times its own size, if that is more.
MAX_UNPACKED, RATIO = 4 * 2**30, 20
#: Pixels of a picture.
MAX_PIXELS = 2**26
#: What may follow a number.
UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def max_pixels() -> int:
    """Pixels of a picture that is decoded: ``$CKM_MAX_PIXELS``, or 67 million."""
    return _set_by("CKM_MAX_PIXELS", MAX_PIXELS)


def max_unpacked(packed: int) -> int:
    """Bytes that a file of so many may unpack to: ``$CKM_MAX_UNPACKED``, or 4 GiB, or the ratio."""
    return max(_set_by("CKM_MAX_UNPACKED", MAX_UNPACKED), RATIO * packed)


def check_size(name: str, packed: int, unpacked: int) -> None:
    """Refuse a file that says that it is so large, before anything is made of it.

    Parameters
    ----------
    name : str
        Of the file.
    packed, unpacked : int
        Bytes on disk, and as declared in the file.
    """
    if unpacked > max_unpacked(packed):
        raise ValueError(_too_large(name, packed))


def bounded(stream: IO[bytes], name: str, packed: int, most: int | None = None) -> IO[bytes]:
    """The stream of a compressed file, which ends in an error where it becomes too large.

    Parameters
    ----------
    stream : binary stream
        Of what is unpacked; closed with the one returned.
    name : str
        Of the file.
    packed : int
        Its bytes on disk.
    most : int, optional
        Bytes, instead of those that the environment allows.

    Examples
    --------
    >>> bounded(io.BytesIO(b"abc"), "a.gz", 3, most=3).read()
    b'abc'
    >>> bounded(io.BytesIO(b"abcd"), "a.gz", 3, most=3).read()
    Traceback (most recent call last):
    ValueError: a.gz unpacks to more than the allowed 3 bytes
    """
    if most is None:
        return io.BufferedReader(
            _Bounded(stream, max_unpacked(packed), lambda: _too_large(name, packed))
        )
    text = f"{name} unpacks to more than the allowed {most} bytes"
    return io.BufferedReader(_Bounded(stream, most, lambda: text))


class _Bounded(io.RawIOBase):
    def __init__(self, stream: IO[bytes], most: int, message: Callable[[], str]) -> None:
        super().__init__()
        self.stream, self.most, self.message = stream, most, message
        self.position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return self.stream.seekable()

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self.position = self.stream.seek(offset, whence)
        return self.position

    def readinto(self, buffer: Any) -> int:
        data = self.stream.read(len(buffer))
        self.position += len(data)
        if self.position > self.most:
            raise ValueError(self.message())
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self.stream.close()
        super().close()


def _too_large(name: str, packed: int) -> str:
    return (
        f"{name} unpacks to more than the allowed {max_unpacked(packed)} bytes; if you trust it, "
        "allow more, as CKM_MAX_UNPACKED=64G in the environment"
    )


def _set_by(variable: str, default: int) -> int:
    text = os.environ.get(variable)
    if not text:
        return default
    found = re.fullmatch(r"([0-9]{1,18})([KMGT]?)", text.strip().upper())
    if found is None:
        raise ValueError(f"{variable} must be a whole number, as 500M or 64G, got {text!r}")
    return int(found[1]) * UNITS[found[2]]
