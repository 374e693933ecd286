"""Checkpoints: a fit that was stopped, at whatever moment, goes on where it was.

A checkpoint is one safetensors file: what of the fit is finished, and the training loop under way.
Its name holds its number and its checksum; it is written under a temporary name and renamed when it
is whole, and the last two are kept. Nothing in it can be executed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load as tensors_from_bytes
from safetensors.torch import save as tensors_to_bytes
from torch import Tensor

from concrete_kmeans import processes, storage
from concrete_kmeans.files import check_above, write_bytes

__all__ = [
    "JSON",
    "CheckpointWarning",
    "Checkpoints",
    "Signals",
    "Stopped",
    "check_folder",
    "digest_tensors",
    "holds_checkpoints",
    "pack",
    "remove_checkpoints",
    "team_folder",
    "unpack",
]

logger = logging.getLogger(__name__)

#: Version of the layout that is written here; no other is read.
VERSION = 1
#: Checkpoints that are kept: the newest, and one to fall back on.
KEPT = 2
#: Name of the tensor that holds all that is no tensor, as JSON.
JSON = "json"
#: Folders, inside the first one's, of teams of processes that share out the restarts.
TEAMS = "restarts-*"
#: Digits of the checksum in a name.
DIGITS = 16


class CheckpointWarning(UserWarning):
    """A checkpoint is damaged, or could not be written; the one before is used or kept."""


class Stopped(KeyboardInterrupt):
    """A signal that ends a fit."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by signal {int(number)}")
        self.signal = int(number)


class Checkpoints:
    """Of one fit, in a folder of their own.

    Parameters
    ----------
    folder : Path
        Made when the first checkpoint is written.
    minutes : float
        Between two checkpoints.
    identity : callable
        Gives what makes the fit the one it is, as texts by name: a checkpoint with others is
        refused. Called only when a checkpoint is read or written.
    """

    def __init__(
        self, folder: Path, minutes: float, identity: Callable[[], Mapping[str, str]]
    ) -> None:
        self.folder, self.seconds = folder, 60.0 * minutes
        self._make_identity = identity
        self.finished: dict[str, Any] = {}
        """Results of the parts of the fit that are done."""
        self.state: dict[str, Any] = {}
        """Of the fit when the last of them was done."""
        self._loop: dict[str, Any] | None = None
        self._number = 0
        self._last = time.monotonic()
        self._behind = False

    # ----------------------------------------------------------------------------------------------
    # going on

    def read(self, device: torch.device) -> bool:
        """Take over the newest whole checkpoint; return whether there is one.

        Of many processes the first reads it.

        Raises
        ------
        ValueError
            It belongs to another fit, or none of those that are there is whole.
        """
        data = processes.bytes_by_first(self._newest)
        if not data:
            return False
        found = unpack(data, device)
        self.finished, self.state = found["finished"], found["state"]
        self._loop = found["loop"]
        return True

    def _newest(self) -> bytes:
        """What the newest whole checkpoint holds; nothing if there is none."""
        _remove_unfinished(self.folder)
        there = _files(self.folder)
        for path in reversed(there):
            try:
                data = _read(path)
                found = unpack(data, torch.device("cpu"))
                found = {name: found[name] for name in ("identity", "finished", "state", "loop")}
            except (OSError, ValueError, KeyError) as error:
                _warn(f"checkpoint {path} cannot be used ({error}); the one before it is tried")
                continue
            self._check_identity(path, found["identity"])
            self._number = max(map(_number, there))
            logger.info("going on from %s", path)
            return data
        if there:
            raise ValueError(
                f"checkpoint: none of the {len(there)} checkpoint(s) in {self.folder} can be used; "
                "remove them to begin anew"
            )
        return b""

    def take_loop(self) -> dict[str, Any] | None:
        """The loop to go on with, if one was under way; the first that asks has it."""
        loop, self._loop = self._loop, None
        return loop

    @cached_property
    def _identity(self) -> dict[str, str]:
        return {"version": str(VERSION), **self._make_identity()}

    def _check_identity(self, path: Path, found: Mapping[str, str]) -> None:
        for name in {**found, **self._identity}:
            was, now = found.get(name, "not there"), self._identity.get(name, "not there")
            if was != now:
                raise ValueError(
                    f"checkpoint {path} is of another fit: {name} was {was}, is {now}; give "
                    "another folder, or remove it to begin anew"
                )

    # ----------------------------------------------------------------------------------------------
    # writing

    @property
    def due(self) -> bool:
        """Whether the last one was written long enough ago, by the clock of this process."""
        return time.monotonic() - self._last >= self.seconds

    def finish(self, name: str, result: Any, state: dict[str, Any]) -> None:
        """A part of the fit is done: remember its result, and the fit's state after it."""
        self.finished[name], self.state, self._behind = result, state, True
        if self.due:
            self.write(None)

    def catch_up(self) -> None:
        """Write what was finished since the last one, if anything: the fit is about to end."""
        if self._behind:
            self.write(None)

    def write(self, loop: dict[str, Any] | None) -> None:
        """Write a checkpoint, with a loop that is under way; of many processes, the first does.

        A failure is a warning: it is no reason to lose the fit as well.
        """
        if processes.rank() > 0:
            return
        data = pack(
            {
                "identity": self._identity,
                "finished": self.finished,
                "state": self.state,
                "loop": loop,
            }
        )
        self._number += 1
        name = f"checkpoint-{self._number:06}-{_checksum(data)}.safetensors"
        try:
            write_bytes(self.folder / name, data)
            self._behind = False
            for path in _files(self.folder)[:-KEPT]:
                path.unlink(missing_ok=True)
        except OSError as error:
            _warn(f"checkpoint not written, the fit goes on without it: {error}")
        self._last = time.monotonic()

    def remove(self) -> None:
        """Remove them all: the fit has ended."""
        if processes.rank() == 0:
            remove_checkpoints(self.folder)


class Signals:
    """Ctrl-C and SIGTERM, which wait for the end of a step while :meth:`wait` lasts.

    A step that is cut short leaves no state to go on from, and other processes waiting.
    """

    #: Where there are other processes, steps between two questions whether one is to stop.
    ask_every = 10

    def __init__(self) -> None:
        self.noted: int | None = None

    def asked(self, step: int) -> int | None:
        """The signal that asks to stop after this step: the same in all processes."""
        if not processes.many():
            return self.noted
        if step % self.ask_every:
            return None
        return processes.largest(self.noted or 0) or None

    @contextlib.contextmanager
    def wait(self) -> Iterator[None]:
        """While it lasts, they are noted; a second one is not."""
        if threading.current_thread() is not threading.main_thread():
            yield  # only the main thread has signals
            return
        before = {
            number: handler
            for number in (signal.SIGINT, signal.SIGTERM)
            if (handler := signal.getsignal(number)) is not None
        }

        def put_back() -> None:
            for number, handler in before.items():
                signal.signal(number, handler)

        def note(number: int, _frame: object) -> None:
            self.noted = number
            put_back()

        for number in before:
            signal.signal(number, note)
        try:
            yield
        finally:
            put_back()
        if self.noted is not None:  # it came after the last step: it is there again
            late, self.noted = self.noted, None
            signal.raise_signal(late)


def check_folder(folder: Path) -> None:
    """Refuse a folder that checkpoints cannot be written to; nothing is written."""
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"checkpoint must be a folder, {folder} is a file")
    check_above(folder / "checkpoint")


def team_folder(folder: Path, restarts: range) -> Path:
    """Where the team that has those restarts keeps its checkpoints."""
    return folder / TEAMS.replace("*", str(restarts.start)) if restarts.start else folder


def holds_checkpoints(folder: Path) -> bool:
    """Whether there is a checkpoint in a folder, damaged or not."""
    return bool(_files(folder)) or any(map(_files, folder.glob(TEAMS)))


def remove_checkpoints(folder: Path) -> None:
    """Remove the checkpoints in a folder, and the folder if nothing else is in it."""
    for team in folder.glob(TEAMS):
        remove_checkpoints(team)
    _remove_unfinished(folder)
    for path in _files(folder):
        path.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # not there, or not empty
        folder.rmdir()


def digest_tensors(tensors: Iterable[Tensor]) -> str:
    """SHA-256 of types, shapes and values.

    Examples
    --------
    >>> one, two = torch.zeros(2), torch.zeros(1, 2)
    >>> [digest_tensors([one]) == digest_tensors([other]) for other in (one.clone(), two)]
    [True, False]
    """
    whole = hashlib.sha256()
    for tensor in tensors:
        whole.update(f"{tensor.dtype} {tuple(tensor.shape)} ".encode())
        flat = tensor.detach().reshape(-1).cpu().contiguous()
        whole.update(flat.view(torch.uint8).numpy().data)
    return whole.hexdigest()


def _files(folder: Path) -> list[Path]:
    """Checkpoints in a folder, the newest last."""
    return sorted(folder.glob("checkpoint-*-*.safetensors"))


def _remove_unfinished(folder: Path) -> None:
    """Of a fit that was killed while it wrote."""
    for path in folder.glob(".checkpoint-*.tmp"):
        path.unlink(missing_ok=True)


def _number(path: Path) -> int:
    return int(path.stem.split("-")[1])


def _checksum(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:DIGITS]


def _read(path: Path) -> bytes:
    data = path.read_bytes()
    if _checksum(data) != path.stem.split("-")[-1]:
        raise ValueError("its checksum is not that of its name")
    return data


def pack(held: Mapping[str, Any]) -> bytes:
    """Tensors, numbers, texts, and lists and dicts of them, as safetensors."""
    tensors: dict[str, Tensor] = {}
    text = json.dumps(storage.encode(held, tensors, "checkpoint"), allow_nan=False)
    # clones: safetensors takes no tensors that share memory
    whole = {n: t.detach().cpu().contiguous().clone() for n, t in tensors.items()}
    whole[JSON] = torch.from_numpy(np.frombuffer(text.encode(), np.uint8).copy())
    return tensors_to_bytes(whole)


def unpack(data: bytes, device: torch.device) -> dict[str, Any]:
    """What :func:`pack` was given; ValueError of what is no such thing."""
    try:
        tensors = tensors_from_bytes(data)
        text = tensors.pop(JSON).numpy().tobytes()
        there = {name: tensor.to(device) for name, tensor in tensors.items()}
        found: dict[str, Any] = storage.decode(json.loads(text), there)
    except (SafetensorError, KeyError, TypeError) as error:
        raise ValueError(f"not a checkpoint: {error}") from error
    return found


def _warn(text: str) -> None:
    warnings.warn(text, CheckpointWarning, stacklevel=3)
