"""What passes and steps cost, and what follows for large data: the tables of docs/scaling.md.

``python docs/cost_model.py`` writes the parts of the page between the marks, from the formulas
below and the committed measurements; ``tests/test_docs.py`` holds the page to them.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from concrete_kmeans.experiments import results, tables
from concrete_kmeans.experiments.results import Record

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

from cases import CASES  # noqa: E402

PAGE = ROOT / "docs" / "scaling.md"
RESULTS = ROOT / "benchmarks" / "results"
#: Adam reads weight, gradient and two moments and writes weight and moments, in float32.
ADAM_BYTES = 28
STEPS = "20,000 steps of ConcreteKMeans, batches of 65,536"


class Cost(NamedTuple):
    """Of a pass or a step, over all processes; ``sent`` is what each of them exchanges."""

    flops: float
    read: float
    """Bytes."""
    sent: float = 0.0
    """Bytes that every process adds up with the others."""


class Machine(NamedTuple):
    """A device, and what connects it."""

    flops: float
    memory: float
    """Bytes a second."""
    holds: float
    """Bytes."""
    network: float
    """Bytes a second, to other devices."""
    disk: float
    """Bytes a second that can be read for one device."""
    share: float
    """Of the rate of a product that a pass reaches."""


def h200() -> Machine:
    """An H200: rates of a bfloat16 product and of a copy as measured on one.

    Network, disk and share are assumptions: a 400 Gbit/s link and two NVMe drives a device.
    """
    limits = _benchmark("limits-cuda")
    rates = limits["flops_per_s"]["bfloat16"], limits["copy_bytes_per_s"]
    return Machine(*rates, holds=141e9, network=50e9, disk=14e9, share=0.6)


def lloyd_pass(n: float, d: int, k: int, itemsize: int) -> Cost:
    """Distances of all rows to all centres; sums and counts of clusters are added up."""
    return Cost(2.0 * n * k * d, n * d * itemsize, 8.0 * k * (d + 1))


def kmeans_plusplus(n: float, d: int, k: int, itemsize: int) -> Cost:
    """A pass for each centre, over a few candidates."""
    trials = 2 + int(math.log(k))
    return Cost(2.0 * n * k * trials * d, n * d * itemsize * k, 8.0 * k * trials)


def concrete_step(batch: int, d: int, k: int) -> Cost:
    """Distances of a batch, and the gradient of the centres by one product."""
    return Cost(4.0 * batch * k * d, 4.0 * batch * d, 4.0 * k * (d + 1))


def deep_step(widths: Sequence[int], batch: int, k: int) -> Cost:
    """Encoder and its mirror image, forward and backward, and Adam; ``widths`` begin with D."""
    weights = 2 * sum(a * b for a, b in pairwise(widths))
    flops = batch * (6.0 * weights - 2.0 * widths[0] * widths[1]) + 6.0 * batch * k * widths[-1]
    return Cost(flops, ADAM_BYTES * weights, 4.0 * (weights + k * widths[-1]))


def seconds(cost: Cost, machine: Machine, devices: int, *, resident: bool) -> dict[str, float]:
    """What a pass takes: the largest of computing and reading, then the exchange (a ring)."""
    feed = machine.memory if resident else machine.disk
    return {
        "compute": cost.flops / (machine.flops * machine.share * devices),
        "read": cost.read / (feed * devices),
        "exchange": 2.0 * (devices - 1) / devices * cost.sent / machine.network,
    }


def total(parts: dict[str, float]) -> float:
    """Reading overlaps computing; the exchange follows."""
    return max(parts["compute"], parts["read"]) + parts["exchange"]


# --------------------------------------------------------------------------------------------------
# the page


def checked() -> str:
    """The model beside what was measured."""
    training, lloyd = _benchmark("training-cuda"), _benchmark("lloyd")
    own = [name for name in training["contenders"] if name.startswith("concrete-kmeans")]
    lines = [_epoch(training, name) for name in own]
    lines += [_pass(_benchmark("limits"), name, case) for name, case in lloyd["cases"].items()]
    return tables.markdown(["what", "arithmetic", "memory", "bound", "measured", "share"], lines)


def _epoch(record: Record, name: str) -> list[str]:
    found = record["contenders"][name]
    precision = name.split(", ")[1]
    limit = record["contenders"][f"product, {precision}"]
    cost = deep_step(record["widths"], record["batch"], 10)
    steps = found["seeds"] * (found["rows"] // record["batch"])
    products = steps * cost.flops / limit["flops_per_s"]
    adam = steps * cost.read / limit["copy_bytes_per_s"]
    title = f"H200, joint MNIST epoch, {precision}, seeds: {found['seeds']}"
    return _line(title, products, adam, products + adam, found["seconds"])


def _pass(limits: Record, name: str, case: Record) -> list[str]:
    cost = lloyd_pass(*(CASES[name][key] for key in ("n", "d", "k")), 4)
    products = cost.flops / limits["flops_per_s"]["float32"]
    # a copy counts what it reads and what it writes
    reading = cost.read / (limits["copy_bytes_per_s"] / 2.0)
    measured = case["contenders"]["concrete-kmeans"]["seconds_per_iteration"]
    title = f"2 CPU cores, Lloyd pass, {case['title']}"
    return _line(title, products, reading, max(products, reading), measured)


def _line(title: str, a: float, b: float, bound: float, measured: float) -> list[str]:
    times = [f"{1e3 * value:.3g} ms" for value in (a, b, bound, measured)]
    return [title, *times, f"{100 * bound / measured:.0f} %"]


def predicted() -> str:
    """A billion embeddings of 768 numbers, ten thousand clusters, in bfloat16."""
    n, d, k, itemsize = 1e9, 768, 10_000, 2
    gpu = h200()
    lines = []
    for devices in (8, 64):
        resident = n * d * itemsize < 0.9 * devices * gpu.holds
        where = "in the GPUs' memory" if resident else "read from disk"
        one = lloyd_pass(n, d, k, itemsize)
        for title, cost, times, held in (
            ("k-means++ over all rows", kmeans_plusplus(n, d, k, itemsize), 1, resident),
            ("k-means++ over 4 million rows", kmeans_plusplus(2**22, d, k, itemsize), 1, True),
            ("20 passes of Lloyd", one, 20, resident),
            (STEPS, concrete_step(65_536, d, k), 20_000, resident),
            ("labels of all rows", one, 1, resident),
        ):
            parts = seconds(cost, gpu, devices, resident=held)
            lines.append(
                [str(devices), where, title]
                + [_time(times * parts[key]) for key in ("compute", "read", "exchange")]
                + [_time(times * total(parts))]
            )
    header = ["GPUs", "rows", "what", "computing", "reading", "exchange", "in all"]
    return tables.markdown(header, lines, left=3)


def streams() -> str:
    """Peak memory and time a row of fits on files, as they grow."""
    record = _benchmark("streaming")
    sizes = sorted({run["rows"] for run in record["memory"]})
    peaks = {(run["kind"], run["method"], run["rows"]): run["peak_mb"] for run in record["memory"]}
    lines = [
        [kind, method, *(f"{peaks[kind, method, rows]:.0f} MB" for rows in sizes)]
        for kind, method in dict.fromkeys(key[:2] for key in peaks)
    ]
    header = ["rows from", "fit", *(f"{rows * record['shape'][1] / 2**28:g} GiB" for rows in sizes)]
    memory = tables.markdown(header, lines, left=2)
    growth = {
        name: {key: own[key] for key in ("seconds", "predict_seconds")}
        for name, own in record["time_a_row_us"].items()
    }
    sizes = sorted(map(int, next(iter(growth.values()))["seconds"]))
    lines = [
        [f"{name}{', predict' if key != 'seconds' else ''}"]
        + [f"{own[key][str(rows)]:.3g} µs" for rows in sizes]
        + [f"{100 * (own[key][str(sizes[-1])] / own[key][str(sizes[0])] - 1):+.0f} %"]
        for name, own in growth.items()
        for key in own
    ]
    header = ["time a row, memmap", *(f"{rows:,} rows" for rows in sizes), "growth"]
    return f"{memory}\n{tables.markdown(header, lines)}"


def processes() -> str:
    """Twice the processes with twice the rows, beside processes that exchange nothing."""
    figures = _benchmark("processes")["figures"]
    lines = []
    for name, own in figures.items():
        one, two = own["1"], own["2"]
        shares = [f"{100 * two[key]:.0f} %" for key in ("efficiency", "efficiency_apart")]
        lines.append([name, *(f"{1e3 * each['seconds']:.3g} ms" for each in (one, two)), *shares])
        lines[-1] += [f"{two['messages']:g}", f"{two['bytes'] / 1e3:,.0f} kB"]
    header = ["what", "1 process", "2 processes", "efficiency", "exchanging nothing"]
    return tables.markdown([*header, "messages", "bytes"], lines)


def _benchmark(name: str) -> Record:
    path = RESULTS / f"{name}.json"
    record = results.load(path)
    if record is None:
        script = name.removesuffix("-cuda")
        raise SystemExit(f"{path} is missing: run benchmarks/{script}.py first")
    return record


def _time(value: float) -> str:
    if value < 120:
        return f"{value:.2g} s"
    return f"{value / 60:.0f} min" if value < 7200 else f"{value / 3600:.1f} h"


PARTS = {
    "streams": streams,
    "processes": processes,
    "checked": checked,
    "predicted": predicted,
}


def made(text: str) -> str:
    """The page with its parts made again."""
    for name, make in PARTS.items():
        text = tables.into_page(text, name, f"\n\n{make()}\n")
    return text


if __name__ == "__main__":
    results.write_text(PAGE, made(PAGE.read_text("utf-8")))
