"""What every benchmark shares: the machine, a process for each contender, JSON out.

Each contender runs in a process of its own, so that one library's thread pool and memory do not
weigh on another's, and contenders take turns, so that a slow minute of the machine hits them all.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
MEMORY_LIMIT = 20 * 2**30  # of address space, so that a peer that needs more fails by itself


def machine() -> dict[str, Any]:
    cpu = Path("/proc/cpuinfo")
    names = (
        [line for line in cpu.read_text().splitlines() if "model name" in line]
        if cpu.exists()
        else []
    )
    packages = (
        "numpy",
        "scikit-learn",
        "torch",
        "faiss-cpu",
        "fast-pytorch-kmeans",
        "kmeans-pytorch",
        "torch-kmeans",
        "concrete-kmeans",
    )
    versions = {"python": platform.python_version()}
    for package in packages:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = "not installed"
    return {
        "cpu": names[0].split(":")[1].strip() if names else platform.processor(),
        "cores": os.cpu_count(),
        "system": platform.system(),
        "versions": versions,
        "date": time.strftime("%Y-%m-%d"),
    }


def write(name: str, result: dict[str, Any]) -> Path:
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    with tempfile.NamedTemporaryFile("w", dir=RESULTS, delete=False) as file:
        json.dump({"machine": machine()} | result, file, indent=1)
        file.write("\n")
    Path(file.name).chmod(0o644)
    Path(file.name).replace(path)
    return path


# ------------------------------------------------------------------ inside a contender's process


def _memory(field: str) -> float:
    status = Path("/proc/self/status").read_text()
    return next(float(line.split()[1]) / 1024 for line in status.splitlines() if field in line)


def timed(run: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """One run: seconds, and the peak of memory above what was in use before it, in MB."""
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    before = _memory("VmRSS")
    start = time.perf_counter()
    outcome = run()
    seconds = time.perf_counter() - start
    return {"seconds": seconds, "extra_mb": _memory("VmHWM") - before, **outcome}


def serve(contenders: dict[str, Callable[..., dict[str, Any]]]) -> None:
    """Run one contender as the command line says, print its outcome as JSON, and leave."""
    name, arguments = sys.argv[2], json.loads(sys.argv[3])
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT, MEMORY_LIMIT))
    try:
        outcome = contenders[name](**arguments)
    except (MemoryError, RuntimeError) as error:
        if "alloc" not in str(error).lower() and not isinstance(error, MemoryError):
            raise
        outcome = {"error": f"out of memory (limit {MEMORY_LIMIT >> 30} GiB)"}
    sys.stdout.write("\n" + json.dumps(outcome))


# ----------------------------------------------------------------------------- in the main process


def ask(script: str, contender: str, arguments: dict[str, Any], timeout: float) -> dict[str, Any]:
    command = [sys.executable, script, "--contender", contender, json.dumps(arguments)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
    except subprocess.TimeoutExpired:
        return {"error": f"did not end in {timeout:.0f} s"}
    if done.returncode:
        return {"error": done.stderr.strip().splitlines()[-1][:200] if done.stderr else "failed"}
    return dict(json.loads(done.stdout.splitlines()[-1]))


def compare(
    script: str, contenders: list[str], arguments: dict[str, Any], *, rounds: int, timeout: float
) -> dict[str, dict[str, Any]]:
    """Median and spread of each contender over rounds in which they take turns."""
    outcomes: dict[str, list[dict[str, Any]]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name in contenders:
            if not (outcomes[name] and "error" in outcomes[name][-1]):
                outcomes[name].append(ask(script, name, arguments, timeout))
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


def parser(description: str | None) -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(description=description)
    result.add_argument("--rounds", type=int, default=5, help="times each contender runs")
    result.add_argument("--cases", help="only these cases, separated by commas")
    return result
