"""What every benchmark shares: the machine, a process for each contender, JSON out.

Each contender runs in a process of its own, so that one library's thread pool and memory do not
weigh on another's, and contenders take turns, so that a slow minute of the machine hits them all.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib.util
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import threading
import time
import types
from collections.abc import Callable, Collection
from importlib import metadata
from pathlib import Path
from typing import Any, Self

RESULTS = Path(__file__).parent / "results"
MEMORY_LIMIT = 20 * 2**30  # of address space, so that a peer that needs more fails by itself
PACKAGES = (
    "numpy",
    "scikit-learn",
    "torch",
    "faiss-cpu",
    "fast-pytorch-kmeans",
    "kmeans-pytorch",
    "torch-kmeans",
    "clustpy",
)
#: Two CPUs of one name may differ by a factor of two: how we call their numbers, and Linux does.
NUMBERS = {"family": "cpu family", "model": "model"}
#: Of peers that run on a GPU only.
CUDA_PACKAGES = ("triton", "flash-kmeans")


def machine() -> dict[str, Any]:
    """Where a result comes from; a load above half the cores says that others were at work."""
    import torch

    import concrete_kmeans

    versions = {"python": platform.python_version(), "concrete-kmeans": concrete_kmeans.__version__}
    for package in PACKAGES + (CUDA_PACKAGES if torch.cuda.is_available() else ()):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = "not installed"
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "system": platform.system(),
        "load": LOAD,
        "source": source(),
        "versions": versions,
        "date": time.strftime("%Y-%m-%d"),
    }


def source(folder: Path | None = None) -> str:
    """Which state of the package's code: a digest of its modules, the same wherever they lie.

    A commit does not tell where a copy of the working tree runs, as on a machine with a GPU.
    """
    import concrete_kmeans

    folder = Path(concrete_kmeans.__file__).parent if folder is None else folder
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(f"{path.relative_to(folder).as_posix()}\0".encode())
        digest.update(path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


def of_other_code(parts: Collection[str]) -> list[str]:
    """Names of the committed results that another state of the code gave, or one that is not told.

    Of these parts; quick ones are those of the last quick run and do not count.
    """
    now = source()
    return [
        path.relative_to(RESULTS).as_posix()
        for path in sorted(RESULTS.rglob("*.json"))
        if path.parent.name != "quick"
        and path.stem.partition("-")[0] in parts
        and json.loads(path.read_text("utf-8")).get("machine", {}).get("source") != now
    ]


def _cpu(about: Path = Path("/proc/cpuinfo")) -> str:
    """Its name, and what tells it from others of that name where the system says it."""
    lines = about.read_text("utf-8").splitlines() if about.exists() else []
    said = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    if "model name" not in said:
        return platform.processor()
    numbers = [f"{word} {said[key]}" for word, key in NUMBERS.items() if key in said]
    return ", ".join([said["model name"], *numbers])


#: Processes at work before the benchmark began, on average over a minute.
LOAD = round(os.getloadavg()[0], 1)


def path_of(name: str, *, quick: bool = False, device: str = "cpu", folder: str = "") -> Path:
    """The file of a part's results; quick ones do not write over those that are committed.

    The results of a second machine lie in a folder of their own.
    """
    return (
        RESULTS
        / ("quick" if quick else folder)
        / f"{name}{'' if device == 'cpu' else '-' + device}.json"
    )


def read(
    name: str, *, quick: bool = False, device: str = "cpu", folder: str = ""
) -> dict[str, Any]:
    """What a part has written; empty if nothing."""
    path = path_of(name, quick=quick, device=device, folder=folder)
    return dict(json.loads(path.read_text("utf-8"))) if path.exists() else {}


def write(name: str, result: dict[str, Any], *, quick: bool = False, device: str = "cpu") -> Path:
    """Write a part's results and the machine, whole or not at all."""
    from concrete_kmeans.experiments import results

    path = path_of(name, quick=quick, device=device)
    about = {"machine": machine(), "quick": quick, "device": device}
    results.save(path, about | result)
    print(f"  written to {path.relative_to(RESULTS.parent)}", flush=True)
    return path


def merged(name: str, key: str, result: dict[str, Any], *, quick: bool, device: str) -> None:
    """Write some cases beside those of the same code, versions and machine that the file has."""
    before, now = read(name, quick=quick, device=device), machine()
    known = before.get("machine", {})
    if all(known.get(what) == now[what] for what in ("cpu", "cores", "gpu", "source", "versions")):
        result[key] = before.get(key, {}) | result[key]
    write(name, result, quick=quick, device=device)


# ------------------------------------------------------------------ inside a contender's process


class _StandIn(types.ModuleType):
    """A module that has an empty class under every name."""

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {"__init__": lambda *_, **__: None})


def without_torchvision() -> None:
    """Let ClustPy be imported where torchvision is not installed: of no use for rows."""
    if "torchvision" not in sys.modules and importlib.util.find_spec("torchvision") is None:
        for module in ("", ".transforms", ".datasets", ".models", ".models._api"):
            sys.modules[f"torchvision{module}"] = _StandIn(f"torchvision{module}")


def memory(field: str) -> float:
    """A line of this process's status, in MB."""
    status = Path("/proc/self/status").read_text()
    return next(float(line.split()[1]) / 1024 for line in status.splitlines() if field in line)


class Peak:
    """Largest memory of this process, without what belongs to files, in MB.

    It is looked at every so many seconds: every hundredth costs ``predict`` 3 % of its time.
    """

    def __init__(self, every: float = 0.01) -> None:
        self.every = every

    def __enter__(self) -> Self:
        self.before = self.most = memory("RssAnon")
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._watch)
        self.thread.start()
        return self

    def _watch(self) -> None:
        while not self.over.wait(self.every):
            self.most = max(self.most, memory("RssAnon"))

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self.thread.join()

    @property
    def extra(self) -> float:
        """Above what it was."""
        return round(self.most - self.before, 1)


def timed(run: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """One run: seconds, and the peak of memory above what was in use before it, in MB."""
    with contextlib.suppress(OSError):  # some containers do not let one
        Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    before = memory("VmRSS")
    start = time.perf_counter()
    outcome = run()
    seconds = time.perf_counter() - start
    return {"seconds": seconds, "extra_mb": memory("VmHWM") - before, **outcome}


def serve(contenders: dict[str, Callable[..., dict[str, Any]]]) -> None:
    """Run one contender as the command line says, print its outcome as JSON, and leave."""
    name, arguments = sys.argv[2], json.loads(sys.argv[3])
    if arguments.get("device", "cpu") == "cpu":  # CUDA reserves more addresses than there is memory
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT, MEMORY_LIMIT))
    try:
        outcome = contenders[name](**arguments)
    except (MemoryError, RuntimeError) as error:
        if "alloc" not in str(error).lower() and not isinstance(error, MemoryError):
            raise
        outcome = {"error": f"out of memory (limit {MEMORY_LIMIT >> 30} GiB)"}
    except ModuleNotFoundError as error:
        outcome = {"error": f"not installed: no module named {error.name!r}"}
    sys.stdout.write("\n" + json.dumps(outcome))


# ----------------------------------------------------------------------------- in the main process


#: What would hold a peer's BLAS to fewer instructions, or smaller blocks, than the CPU has.
HELD_BACK = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")


def ask(script: str, contender: str, arguments: dict[str, Any], timeout: float) -> dict[str, Any]:
    command = [sys.executable, script, "--contender", contender, json.dumps(arguments)]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            env={name: value for name, value in os.environ.items() if name not in HELD_BACK},
        )
    except subprocess.TimeoutExpired:
        return {"error": f"did not end in {timeout:.0f} s"}
    if done.returncode:
        return {"error": done.stderr.strip().splitlines()[-1][:200] if done.stderr else "failed"}
    return dict(json.loads(done.stdout.splitlines()[-1]))


def compare(
    script: str,
    contenders: list[str],
    arguments: dict[str, Any],
    *,
    rounds: int,
    timeout: float,
    product: dict[str, Any] | None = None,
) -> dict[str, dict[str, Any]]:
    """Median and spread of each contender over rounds in which they take turns.

    Those that only say what the machine can do, whose names begin with "product", are given the
    arguments of that name as well.
    """
    outcomes: dict[str, list[dict[str, Any]]] = {name: [] for name in contenders}
    for i in range(rounds):
        for name in contenders:
            if not (outcomes[name] and "error" in outcomes[name][-1]):
                progress(f"round {i + 1} of {rounds}: {name}")
                given = arguments
                if product and name.startswith("product"):
                    given = arguments | product
                outcomes[name].append(ask(script, name, given, timeout))
    summary: dict[str, dict[str, Any]] = {}
    for name, runs in outcomes.items():
        if "error" in runs[-1]:
            summary[name] = runs[-1]
            continue
        seconds = sorted(run["seconds"] for run in runs)
        summary[name] = runs[0] | {
            "seconds": statistics.median(seconds),
            "seconds_all": [round(s, 4) for s in seconds],
            "extra_mb": round(max(run["extra_mb"] for run in runs), 1),
            "rounds": len(runs),
        }
    return summary


def progress(text: str) -> None:
    """Tell on stderr what goes on."""
    print(f"  ... {text}", file=sys.stderr, flush=True)


def synchronize(device: str) -> None:
    """Wait until the device has done what it was asked to."""
    if device != "cpu":
        import torch

        torch.cuda.synchronize()


def best_seconds(run: Callable[[], object], device: str, rounds: int) -> float:
    """The shortest of some runs, after one that does not count."""
    seconds = []
    for _ in range(rounds + 1):
        synchronize(device)
        start = time.perf_counter()
        run()
        synchronize(device)
        seconds.append(time.perf_counter() - start)
    return min(seconds[1:])


def parser(description: str | None) -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(description=description)
    result.add_argument("--rounds", type=int, help="times each contender runs")
    result.add_argument("--cases", help="only these cases, separated by commas")
    result.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    result.add_argument("--quick", action="store_true", help="less of everything; own files")
    return result
