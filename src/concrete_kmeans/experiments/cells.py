"""Tables that fill cell by cell: what is finished stays, and says what it was made of and by."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from concrete_kmeans.experiments import results
from concrete_kmeans.experiments.results import Record

__all__ = ["content_digest", "machines", "open_table", "pick", "without_unused"]


def pick(text: str, known: Sequence[str], what: str) -> tuple[str, ...]:
    """Names separated by commas, in the order of the known ones.

    >>> pick("b, a", ("a", "b", "c"), "methods")
    ('a', 'b')
    """
    asked = [part.strip() for part in text.split(",")]
    if unknown := [name for name in asked if name not in known]:
        raise ValueError(
            f"{', '.join(map(repr, unknown))} not among the {what}: {', '.join(known)}"
        )
    return tuple(name for name in known if name in asked)


def open_table(path: Path, title: str, version: int) -> Record:
    """Read a table to go on with, or begin one; any other file is an error, and left alone."""
    name = title.replace(" ", "")
    record = results.load(path) or {"table": name, "format": version}
    if (record.get("table"), record.get("format")) != (name, version):
        raise ValueError(f"{path} does not hold {title} in format {version}; move it away")
    for part in ("configs", "environments", "rows"):
        record.setdefault(part, {})
    return record


def without_unused(record: Record, cells: Iterable[Record], *current: str) -> Record:
    """The record without configurations and environments that no cell has any more."""
    cells = list(cells)
    used = {*current, *(cell["config"] for cell in cells)}
    machines = {cell["environment"] for cell in cells}
    return record | {
        "configs": {key: value for key, value in record["configs"].items() if key in used},
        "environments": {k: v for k, v in record["environments"].items() if k in machines},
    }


def content_digest(*arrays: Any) -> str:
    """Digest of what arrays and CSR matrices hold."""
    digest = hashlib.sha256()
    for array in arrays:
        parts = (array.data, array.indices, array.indptr) if hasattr(array, "indptr") else (array,)
        for part in parts:
            digest.update(np.ascontiguousarray(part).tobytes())
    return digest.hexdigest()


def machines(record: Record) -> list[str]:
    """What the cells were computed with, in words, each once."""
    return list(dict.fromkeys(_in_words(machine) for machine in record["environments"].values()))


def _in_words(machine: Record) -> str:
    versions, hardware = machine["versions"], machine["machine"]
    packages = ", ".join(f"{name} {number}" for name, number in versions.items())
    gpu = f", {hardware['gpu']}" if hardware["gpu"] else ""
    return (
        f"{packages}; {hardware['cpu']}{gpu}, {hardware['cores']} cores, "
        f"torch threads: {hardware['threads']}, {hardware['platform']}"
    )
