"""Find the files of a data set in the folders to look in, or download and verify them."""

from __future__ import annotations

import gzip
import hashlib
import http.client
import os
import tempfile
import time
import urllib.error
import urllib.request
import warnings
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from concrete_kmeans.datasets._formats import content_digest, csv_from_raw, parse_csv
from concrete_kmeans.datasets._sources import RawTable, RemoteFile

__all__ = [
    "DataNotFoundError",
    "DataWarning",
    "DownloadError",
    "cache_folder",
    "check_file",
    "download",
    "fetch_file",
    "fetch_table",
    "find",
    "folders",
    "store",
    "warn_changed",
]

MAX_DOWNLOAD = 32 * 2**20  # bytes; the largest file known here has 14 MB
TIMEOUT = 30.0  # seconds without a byte
DEADLINE = 600.0  # seconds for a whole file


class DataWarning(UserWarning):
    """A local file differs from the data set that is known under its name."""


class DataNotFoundError(FileNotFoundError):
    """A data set is in no folder that was looked in, and cannot be downloaded."""


class DownloadError(OSError):
    """A download failed, or what came is not the known data set."""


def cache_folder() -> Path:
    """Name the folder for downloads, which need not exist."""
    base = os.environ.get("XDG_CACHE_HOME") or (os.name == "nt" and os.environ.get("LOCALAPPDATA"))
    return (Path(base) if base else Path.home() / ".cache") / "concrete-kmeans"


def folders(data_home: str | os.PathLike[str] | None) -> list[Path]:
    """List the folders to look in: ``data_home``, ``$CKM_DATA_HOME``, the cache."""
    places = []
    if data_home is not None:
        home = Path(data_home).expanduser()
        if not home.is_dir():
            raise NotADirectoryError(f"data_home is {str(home)!r}; it must be an existing folder")
        places.append(home)
    if from_environment := os.environ.get("CKM_DATA_HOME"):
        places.append(Path(from_environment).expanduser())
    return [*places, cache_folder()]


def find(layouts: Iterable[Sequence[str]], places: Iterable[Path]) -> list[Path] | None:
    """Find the first folder that has all files of a layout, and return their paths."""
    layouts = list(layouts)
    for place in places:
        for layout in layouts:
            paths = [place / filename for filename in layout]
            if all(path.is_file() for path in paths):
                return paths
    return None


def check_file(path: Path, known: RemoteFile, stacklevel: int) -> None:
    """Warn when a local file is not the known one: a user may have a copy of their own."""
    with path.open("rb") as stream:
        found = hashlib.file_digest(stream, "sha256").hexdigest()
    if found != known.sha256:
        warn_changed(path, known.sha256, found, stacklevel)


def warn_changed(path: Path, expected: str, found: str, stacklevel: int) -> None:
    """Issue the :class:`DataWarning` for a file, ``stacklevel`` calls up from here."""
    warnings.warn(
        f"{path} differs from the known data set: sha256 {found}, expected {expected}",
        DataWarning,
        stacklevel=stacklevel,
    )


def fetch_file(filename: str, known: RemoteFile) -> Path:
    """Download a file into the cache, if its sum is the known one."""
    if known.url is None:
        raise DataNotFoundError(f"{filename} has no public source")
    content = download(known.url)
    _verify(known.url, known.sha256, hashlib.sha256(content).hexdigest())
    return store(content, filename)


def fetch_table(filename: str, raw: RawTable, digest: str) -> Path:
    """Download a table and keep it in the cache as CSV, if its content is the known one."""
    parts = [(url, download(url)) for url in raw.urls]
    where = " + ".join(raw.urls)
    try:
        content = csv_from_raw(parts, raw)
        found = content_digest(*parse_csv(content, where))
    except ValueError as error:
        sums = ", ".join(hashlib.sha256(part).hexdigest() for _, part in parts)
        raise DownloadError(
            f"{where} did not give the known table (content digest {digest}): {error}; "
            f"sha256 of what came: {sums}"
        ) from error
    _verify(where, digest, found)
    return store(gzip.compress(content, mtime=0), filename)


def _verify(url: str, expected: str, found: str) -> None:
    if found != expected:
        raise DownloadError(
            f"{url} gave other data than expected, nothing was kept: "
            f"expected sha256 {expected}, found {found}"
        )


def store(content: bytes, filename: str) -> Path:
    """Write a file into the cache whole or not at all."""
    folder = cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / filename
    handle, temporary = tempfile.mkstemp(prefix=f".{filename}.", suffix=".part", dir=folder)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
        Path(temporary).replace(path)
    except BaseException:
        with suppress(OSError):
            Path(temporary).unlink()
        raise
    return path


def download(url: str) -> bytes:
    """Fetch an http(s) address into memory, up to ``MAX_DOWNLOAD`` bytes."""
    if urlsplit(url).scheme not in ("http", "https"):
        raise DownloadError(f"{url} is not an http or https address")
    try:
        with _opener().open(url, timeout=TIMEOUT) as response:
            declared = response.headers.get("Content-Length", "")
            content = _read(response, url)
    except (OSError, http.client.HTTPException) as error:  # URLError is an OSError
        if isinstance(error, urllib.error.HTTPError):
            error.close()
        if isinstance(error, DownloadError):
            raise
        raise DownloadError(f"could not download {url}: {error}") from error
    if declared.isdecimal() and int(declared) != len(content):
        raise DownloadError(f"{url} broke off after {len(content)} of {declared} bytes")
    return content


def _read(response: http.client.HTTPResponse, url: str) -> bytes:
    content = bytearray()
    deadline = time.monotonic() + DEADLINE
    while chunk := response.read(2**16):
        content += chunk
        if len(content) > MAX_DOWNLOAD:
            raise DownloadError(f"{url} has more than the allowed {MAX_DOWNLOAD} bytes")
        if time.monotonic() > deadline:
            raise DownloadError(f"{url} took longer than {DEADLINE:g} seconds")
    return bytes(content)


def _opener() -> urllib.request.OpenerDirector:
    # Not urlopen: its handlers would also follow a redirect to an ftp address.
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler,
        urllib.request.HTTPHandler,
        urllib.request.HTTPSHandler,
        urllib.request.HTTPDefaultErrorHandler,
        urllib.request.HTTPRedirectHandler,
        urllib.request.HTTPErrorProcessor,
        urllib.request.UnknownHandler,
    ):
        opener.add_handler(handler())
    opener.addheaders = [("User-Agent", "concrete-kmeans")]
    return opener
