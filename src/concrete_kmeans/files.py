"""Whole files or none."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path

__all__ = ["check_above", "check_file_place", "digest", "write_bytes", "write_text"]


def write_text(path: Path, text: str) -> None:
    """As :func:`write_bytes`, in UTF-8."""
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file so that a reader, or a run killed at any moment, sees the old or the new one.

    Folders above it are made.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.chmod(0o644)  # mkstemp lets only the owner read
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        # the temporary name that failed means nothing to anybody
        raise type(error)(error.errno, error.strerror, str(path)) from error
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def check_file_place(path: Path) -> None:
    """Refuse a place that a file cannot be written to; nothing is written."""
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder; give the name of a file")
    check_above(path)


def check_above(path: Path) -> None:
    """Refuse a path that lies, or would lie, in what is no folder or read-only."""
    above = next(folder for folder in path.absolute().parents if folder.exists())
    if not above.is_dir():
        raise NotADirectoryError(f"{path} cannot be made: {above} is not a folder")
    if not os.access(above, os.W_OK | os.X_OK):
        raise PermissionError(f"{path} cannot be made: {above} is read-only")


def digest(path: Path) -> str:
    """SHA-256 of a file; of a folder, over the names and contents of all files in it."""
    if path.is_file():
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    whole = hashlib.sha256()
    for file in sorted(item for item in path.rglob("*") if item.is_file()):
        name = os.fsencode(file.relative_to(path))
        whole.update(f"{len(name)} ".encode() + name + digest(file).encode())
    return whole.hexdigest()
