"""Weak scaling: as many times the rows on as many times the processes, by torchrun and gloo.

``python benchmarks/processes.py`` fits a fixed number of steps with 1 and 2 processes, rows and
batch growing with their number, and writes ``results/processes.json``: seconds of a step, and of a
pass of Lloyd's algorithm, the time of one process over that of many (1 is perfect), and the bytes
and messages that a step exchanges. Numbers of processes take turns. A process has one thread.

Processes that share a machine share its cores, memory and caches, and those of whoever else is on
it: as many processes that work apart, each on the rows of one, are measured as well ("apart"). The
time of those over the time together is what the exchange leaves, whatever the machine does.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

import measure
from concrete_kmeans import DCN, ConcreteKMeans, DeepConcreteKMeans, processes
from concrete_kmeans.training import Event

#: Of one process; as many times as many for more.
ROWS, BATCH = 8192, 1024
FEATURES, CLUSTERS, CODE = 256, 20, (256, 256, 10)
#: Passes of Lloyd's algorithm.
PASSES = 20


def rows(count: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    centers = rng.normal(size=(CLUSTERS, FEATURES)) * 0.3
    labels = rng.integers(CLUSTERS, size=ROWS * count)
    return (centers[labels] + rng.normal(size=(ROWS * count, FEATURES))).astype(np.float32)


class Exchange:
    """Counts what this process sends."""

    def __init__(self) -> None:
        self.messages, self.bytes = 0, 0
        for name in ("all_reduce", "broadcast", "all_gather"):
            setattr(dist, name, self._counted(getattr(dist, name)))

    def _counted(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **named: Any) -> Any:
            self.messages += 1
            self.bytes += next(one.nbytes for one in arguments if isinstance(one, torch.Tensor))
            return call(*arguments, **named)

        return counted

    def read(self) -> tuple[int, int]:
        """Messages and bytes so far."""
        return self.messages, self.bytes


def deep(method: Any, X: np.ndarray, count: int, exchange: Exchange) -> dict[str, float]:
    """Of the steps of the joint phase between its first and its last event."""
    seen: list[tuple[Event, float, tuple[int, int]]] = []
    labels = np.arange(len(X)) % CLUSTERS
    fit = method(
        CLUSTERS,
        encoder=CODE,
        pretrain_epochs=1,
        epochs=8,
        batch_size=BATCH * count,
        init=labels,
        tol=0.0,
        scale="global",
        device="cpu",
        random_state=0,
        callbacks=[lambda e: seen.append((e, time.perf_counter(), exchange.read()))],
    )
    fit.fit(X)
    joint = [one for one in seen if one[0].phase == "joint"]
    if not joint:  # only the first process is told
        return {}
    (first, begin, before), (last, end, after) = joint[0], joint[-1]
    steps = last.step - first.step
    return {
        "seconds": (end - begin) / steps,
        "messages": (after[0] - before[0]) / steps,
        "bytes": (after[1] - before[1]) / steps,
    }


def lloyd(X: np.ndarray, exchange: Exchange) -> dict[str, float]:
    first = X[:CLUSTERS]
    exact = ConcreteKMeans(
        CLUSTERS, init=first, n_init=1, algorithm="lloyd", max_iter=PASSES, tol=0.0
    )
    before, begin = exchange.read(), time.perf_counter()
    exact.fit(X)
    seconds, after = time.perf_counter() - begin, exchange.read()
    return {
        "seconds": seconds / exact.n_iter_,
        "messages": (after[0] - before[0]) / exact.n_iter_,
        "bytes": (after[1] - before[1]) / exact.n_iter_,
    }


def work(out: Path, apart: bool) -> None:
    """What each process does; the first writes what it measured."""
    torch.set_num_threads(1)
    exchange = Exchange()
    with processes.started("cpu"), processes.alone() if apart else contextlib.nullcontext():
        count = 1 if apart else dist.get_world_size()
        X = rows(count)
        found = {
            "CKM, a step": deep(DeepConcreteKMeans, X, count, exchange),
            "DCN, a step": deep(DCN, X, count, exchange),
            "Lloyd, a pass": lloyd(X, exchange),
        }
        if dist.get_rank() == 0:
            out.write_text(json.dumps(found))


def measured(count: int, apart: bool = False) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "found.json"
        torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone")
        command = [*torchrun, f"--nproc-per-node={count}", __file__, "--work", str(out)]
        command += ["--apart"] if apart else []
        subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
        return json.loads(out.read_text())


def ratio(name: str, these: list[dict[str, Any]], those: list[dict[str, Any]]) -> float:
    """Median over rounds of the seconds of one over those of another."""
    pairs = zip(these, those, strict=True)
    return statistics.median(a[name]["seconds"] / b[name]["seconds"] for a, b in pairs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--apart", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work is not None:
        work(arguments.work, arguments.apart)
        return
    load = os.getloadavg()[0]
    rounds: dict[int, list[dict[str, Any]]] = {count: [] for count in arguments.processes}
    apart: dict[int, list[dict[str, Any]]] = {count: [] for count in arguments.processes}
    for _ in range(arguments.rounds):
        for count in arguments.processes:
            rounds[count].append(measured(count))
            apart[count].append(measured(count, apart=True) if count > 1 else rounds[count][-1])
    result: dict[str, Any] = {"machine": measure.machine(), "load_before": round(load, 2)}
    result |= {"rows_each": ROWS, "batch_each": BATCH, "features": FEATURES, "code": CODE}
    result["figures"] = {}
    base = arguments.processes[0]
    for name in rounds[base][0]:
        figures = {}
        for count, found in rounds.items():
            seconds = [one[name]["seconds"] for one in found]
            figures[str(count)] = {
                "seconds": statistics.median(seconds),
                "all_seconds": seconds,
                "efficiency": ratio(name, rounds[base], found),
                "efficiency_apart": ratio(name, rounds[base], apart[count]),
                "apart_over_together": ratio(name, apart[count], found),
                "messages": round(found[0][name]["messages"], 1),
                "bytes": round(found[0][name]["bytes"]),
            }
            shown = {key: value for key, value in figures[str(count)].items() if "all" not in key}
            print(f"{name}, {count} process(es): {shown}")
        result["figures"][name] = figures
    print(measure.write("processes", result))


if __name__ == "__main__":
    main()
