"""The model folder: what a fitted estimator leaves on disk, as plain files.

========================  ==========================================================================
``model.safetensors``     every tensor: networks, centres, scaling and labels of all restarts
``config.json``           format, versions, class, parameters, shapes, label-free scores
``history.json``          losses of the training
``labels.csv``            cluster of each training row, for people; nothing reads it again
========================  ==========================================================================

A folder is written under a temporary name beside its place and renamed when it is whole. Nothing in
it can be executed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load as tensors_from_bytes
from safetensors.torch import save as tensors_to_bytes
from torch import Tensor

from concrete_kmeans.files import check_above

__all__ = [
    "CONFIG",
    "FORMAT",
    "FORMAT_VERSION",
    "HISTORY",
    "LABELS",
    "REPORT",
    "TENSORS",
    "Stored",
    "check_place",
    "decode",
    "encode",
    "is_model_folder",
    "read",
    "read_config",
    "write",
]

#: What ``config.json`` says it belongs to, and the version of the layout that is written here.
FORMAT, FORMAT_VERSION = "concrete-kmeans model", 1
TENSORS, CONFIG, HISTORY, LABELS = "model.safetensors", "config.json", "history.json", "labels.csv"
#: Made from a model folder, and worthless without it: goes when the folder is replaced.
REPORT = "report.html"
#: Key that marks a JSON object which stands for something JSON has no form for.
TAG = "$"


@dataclass(frozen=True)
class Stored:
    """What a model folder holds."""

    config: dict[str, Any]
    """Ready for JSON; see :func:`encode`."""
    tensors: dict[str, Tensor]
    history: list[Any] = field(default_factory=list)
    """Ready for JSON."""


# --------------------------------------------------------------------------------------------------
# values that JSON has no form for


def encode(value: Any, tensors: dict[str, Tensor], name: str) -> Any:
    """Plain JSON for a value; arrays and tensors in it are put into ``tensors`` under ``name``.

    Parameters
    ----------
    value : None, bool, number, str, list, tuple, dict with str keys, dtype-bearing array or Tensor
        Or nests of them. Floats that are not finite, tuples, arrays and devices become tagged
        objects, from which :func:`decode` makes the same again.
    tensors : dict
        Filled.
    name : str
        Of the value.

    Raises
    ------
    TypeError
        For anything else: functions, modules, random states.

    Examples
    --------
    >>> encode({"rate": (0.1, float("inf"))}, {}, "")
    {'rate': {'$': 'tuple', 'items': [0.1, {'$': 'float', 'value': 'inf'}]}}
    """
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return {TAG: "float", "value": repr(value)}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        items = [encode(item, tensors, f"{name}.{i}") for i, item in enumerate(value)]
        return items if isinstance(value, list) else {TAG: "tuple", "items": items}
    if isinstance(value, torch.device):
        return {TAG: "device", "value": str(value)}
    if isinstance(value, np.ndarray | Tensor):
        tensors[name] = (
            torch.from_numpy(np.array(value)) if isinstance(value, np.ndarray) else value
        )
        return {TAG: "tensor" if isinstance(value, Tensor) else "array", "value": name}
    if isinstance(value, dict) and all(isinstance(key, str) and key != TAG for key in value):
        return {key: encode(item, tensors, f"{name}.{key}") for key, item in value.items()}
    raise TypeError(f"{name} cannot be written as JSON, got {type(value).__name__}")


def decode(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    """What :func:`encode` was given.

    Examples
    --------
    >>> decode({"$": "tuple", "items": [1, {"$": "float", "value": "nan"}]}, {})
    (1, nan)
    """
    if isinstance(value, list):
        return [decode(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    if TAG not in value:
        return {key: decode(item, tensors) for key, item in value.items()}
    kind = value[TAG]
    if kind == "tuple":
        return tuple(decode(value["items"], tensors))
    if kind == "float":
        return float(value["value"])
    if kind == "device":
        return torch.device(value["value"])
    if kind in ("array", "tensor"):
        tensor = tensors[value["value"]]
        return tensor if kind == "tensor" else tensor.numpy()
    raise ValueError(f"unknown kind of value {kind!r}")


# --------------------------------------------------------------------------------------------------
# writing


def check_place(path: Path, *, overwrite: bool = False) -> None:
    """Refuse a place that a model folder cannot or may not be written to; nothing is written.

    An empty folder may be used. A model folder is replaced only if ``overwrite``, and only if
    nothing else lies in it; any other folder never is.
    """
    if path.is_symlink() and not path.exists():
        raise FileExistsError(f"{path} is a link that leads nowhere; give another name")
    if not path.exists():
        check_above(path)
        return
    if not path.is_dir():
        raise FileExistsError(f"{path} is a file, not a folder; give another name")
    held = sorted(item.name for item in path.iterdir())
    if held and not is_model_folder(path):
        raise FileExistsError(f"{path} is not a model folder and is not empty; give another name")
    if held and not overwrite:
        raise FileExistsError(
            f"{path} holds a model already: overwrite=True, or --overwrite, replaces it"
        )
    if strange := sorted({*held} - {TENSORS, CONFIG, HISTORY, LABELS, REPORT}):
        raise FileExistsError(
            f"{path} holds {strange[0]!r}, which is no part of a model and would be lost; "
            "move it away or give another name"
        )
    check_above(path)


def is_model_folder(path: Path) -> bool:
    """Whether there is a ``config.json`` that says so, of whatever version."""
    try:
        config = json.loads((path / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(config, dict) and config.get("format") == FORMAT


def write(path: Path, stored: Stored, labels: str, *, overwrite: bool = False) -> None:
    """Write a model folder, whole or not at all.

    Parameters
    ----------
    path : Path
        Of the folder; folders above it are made.
    stored : Stored
    labels : str
        Text of ``labels.csv``.
    overwrite : bool, default=False
        Replace a model folder that is there; see :func:`check_place`.
    """
    check_place(path, overwrite=overwrite)
    whole = {name: t.detach().cpu().contiguous().clone() for name, t in stored.tensors.items()}
    files = {
        TENSORS: tensors_to_bytes(whole, {"format": "pt"}),
        HISTORY: _to_json(stored.history),
        LABELS: labels.encode("utf-8", "surrogatepass"),  # file names need not be text
    }
    config = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "sha256": {name: hashlib.sha256(files[name]).hexdigest() for name in (TENSORS, HISTORY)},
        **stored.config,
    }
    try:
        _write_folder(path, {**files, CONFIG: _to_json(config)})
    except OSError as error:
        # the temporary name that failed means nothing to anybody
        raise type(error)(error.errno, error.strerror, str(path)) from error


def _write_folder(path: Path, files: Mapping[str, bytes]) -> None:
    path = path.resolve()  # of a link to a folder, the folder is replaced
    path.parent.mkdir(parents=True, exist_ok=True)
    token = secrets.token_hex(4)
    fresh, old = (path.with_name(f".{path.name}.{token}.{word}") for word in ("tmp", "old"))
    try:
        fresh.mkdir()
        for name, data in files.items():
            with (fresh / name).open("xb") as stream:
                stream.write(data)
                stream.flush()
                os.fsync(stream.fileno())
        _sync(fresh)
        with _aside(path, old):
            fresh.rename(path)
        _sync(path.parent)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise


@contextlib.contextmanager
def _aside(path: Path, old: Path) -> Iterator[None]:
    """Move what lies at a path away, back if what follows fails; then drop it."""
    if not path.exists():
        yield
        return
    path.rename(old)
    try:
        yield
    except BaseException:
        old.rename(path)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _sync(folder: Path) -> None:
    """Bring a folder's list of names to the disk, where the system can."""
    if hasattr(os, "O_DIRECTORY"):
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _to_json(value: Any) -> bytes:
    text = json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8", "surrogatepass") + b"\n"


# --------------------------------------------------------------------------------------------------
# reading


def read(path: Path) -> Stored:
    """Read a model folder; every file is checked before it is used.

    Raises
    ------
    FileNotFoundError
        No folder, or a file of it is missing.
    ValueError
        Not a model folder, one of a later format, or a damaged file; the message names the file.
    """
    config = read_config(path)
    sums = config.get("sha256")
    if not isinstance(sums, dict):
        raise _damaged(path / CONFIG, "it has no checksums")
    files = {}
    for name in (TENSORS, HISTORY):
        files[name] = _bytes(path / name)
        if hashlib.sha256(files[name]).hexdigest() != sums.get(name):
            raise _damaged(path / name, f"its checksum is not that of {CONFIG}")
    try:
        tensors = tensors_from_bytes(files[TENSORS])
    except SafetensorError as error:
        raise _damaged(path / TENSORS, str(error)) from error
    history = _from_json(path / HISTORY, files[HISTORY])
    if not isinstance(history, list):
        raise _damaged(path / HISTORY, "it is no list")
    return Stored(config, tensors, history)


def read_config(path: Path) -> dict[str, Any]:
    """``config.json`` of a model folder, checked for format and version."""
    if not path.is_dir():
        what = "is a file, not a model folder" if path.exists() else "does not exist"
        raise FileNotFoundError(f"{path} {what}")
    config = _from_json(path / CONFIG, _bytes(path / CONFIG))
    if not isinstance(config, dict) or config.get("format") != FORMAT:
        raise ValueError(f"{path / CONFIG} is not of a model folder of concrete-kmeans")
    version = config.get("format_version")
    if not isinstance(version, int) or version < 1:
        raise _damaged(path / CONFIG, f"format_version is {version!r}")
    if version > FORMAT_VERSION:
        raise ValueError(
            f"{path / CONFIG} has format {version}, of concrete-kmeans "
            f"{config.get('package_version')}; this version reads formats up to "
            f"{FORMAT_VERSION}: install a later one"
        )
    return config


def _from_json(path: Path, data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:  # the latter of a thousand brackets
        raise _damaged(path, f"not JSON: {error}") from error


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise FileNotFoundError(
            f"{path} is missing: {path.parent} is not a whole model folder"
        ) from None


def _damaged(path: Path, why: str) -> ValueError:
    return ValueError(f"{path} is damaged: {why}")
