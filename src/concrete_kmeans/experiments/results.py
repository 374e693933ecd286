"""Results on disk: whole files or none, what made them, and whether they can be taken again."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeAlias

import concrete_kmeans

__all__ = ["Record", "digest", "environment", "load", "now", "save", "to_json", "write_text"]

#: What a JSON file of results holds.
Record: TypeAlias = dict[str, Any]


def digest(value: object) -> str:
    """Short name of a JSON value: equal for equal values, whatever the order of keys."""
    canonical = json.dumps(value, sort_keys=True, allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


def load(path: Path) -> Record | None:
    """Read the results in a file; None when there is no such file."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise ValueError(f"{path} is not a file of results ({error}); move it away") from error
    if not isinstance(record, dict):
        raise ValueError(f"{path} is not a file of results (no JSON object); move it away")  # noqa: TRY004
    return record


def save(path: Path, record: Record) -> None:
    """Write results to a file, creating its folder."""
    write_text(path, to_json(record))


def to_json(record: Record) -> str:
    """JSON text of results, as :func:`save` writes it."""
    return json.dumps(record, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def write_text(path: Path, text: str) -> None:
    """Write a file so that a reader, or a run killed at any moment, sees the old or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.chmod(0o644)  # mkstemp lets only the owner read
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def now() -> str:
    """Date and time of now in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def environment() -> Record:
    """Versions, machine and source commit; no names of hosts, users or folders."""
    import torch

    packages = {"numpy": "numpy", "scipy": "scipy", "sklearn": "scikit-learn", "torch": "torch"}
    return {
        "versions": {
            "python": platform.python_version(),
            **{module: version(package) for module, package in packages.items()},
            "concrete_kmeans": concrete_kmeans.__version__,
        },
        "machine": {
            "cpu": _cpu_model(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
            "platform": f"{platform.system()} {platform.machine()}",
        },
        "git": _git(),
    }


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or "unknown"


def _git() -> Mapping[str, object] | None:
    """Commit of the package's source; None when it runs from somewhere else than its checkout."""
    git, source = shutil.which("git"), Path(__file__).parents[1]
    if git is None:
        return None

    def ask(*arguments: str) -> str:
        command = [git, "--no-optional-locks", "-C", str(source), *arguments]
        answer = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10)  # noqa: S603
        return answer.stdout.strip()

    try:
        # An installed package may lie inside the checkout of some other project.
        ask("ls-files", "--error-unmatch", "__init__.py")
        return {"commit": ask("rev-parse", "HEAD"), "changed": bool(ask("status", "-s", "--", "."))}
    except (OSError, subprocess.SubprocessError):
        return None
