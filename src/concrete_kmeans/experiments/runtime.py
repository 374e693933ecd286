"""Seconds of a joint epoch, beside the paper's: one seed alone, and a stack of seeds."""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.table import Table
from torch import Tensor

from concrete_kmeans import datasets
from concrete_kmeans.data import resolve_device
from concrete_kmeans.estimators import ClusterCollapseWarning
from concrete_kmeans.experiments import cells, deep, results, tables
from concrete_kmeans.experiments.config import Runtime
from concrete_kmeans.experiments.config import runtime as default_config
from concrete_kmeans.experiments.results import Record
from concrete_kmeans.experiments.table2 import choose_precision
from concrete_kmeans.training import Event
from concrete_kmeans.validation import check_positive_int

__all__ = ["EPOCHS", "epoch_seconds", "run", "sections", "to_markdown", "to_table"]

FORMAT, EPOCHS = 1, 6
#: Epochs before the clock starts: memory is got, kernels are chosen.
WARM_UP = 1


def run(
    out: Path,
    *,
    config: Runtime | None = None,
    rows: int | None = None,
    epochs: int = EPOCHS,
    data_home: Path | None = None,
    device: str = "auto",
    precision: str = "auto",
    advance: Callable[[str, int], None] = lambda _text, _fits: None,
) -> Record:
    """Measure each method and write ``runtime.json`` and ``runtime.md`` into the folder ``out``.

    Everything is measured again, on one machine: a measurement is written when it ends.

    Parameters
    ----------
    out : Path
        Folder of the results.
    config : Runtime or None
        Data set, network and methods; the paper's by default.
    rows : int or None
        Use the first so many rows; all by default.
    epochs : int
        Joint epochs of each method, at least 2; the first does not count.
    data_home : Path or None
        As in :func:`concrete_kmeans.datasets.load`.
    device : str
        Where everything runs.
    precision : {"auto", "float32", "tf32", "bfloat16", "float64"}
        Of training; ``"auto"`` is TF32 on CUDA and float32 elsewhere.
    advance : callable
        Told what goes on and how many measurements are done since it was last told.

    Returns
    -------
    dict
        What the JSON file holds.
    """
    config = default_config() if config is None else config
    if check_positive_int("epochs", epochs) <= WARM_UP:
        raise ValueError(f"epochs must be at least {WARM_UP + 1}, got {epochs}")
    if rows is not None:
        check_positive_int("rows", rows)
    place = resolve_device(device, None)
    chosen = choose_precision(precision, place)
    advance("loading", 0)
    loaded = datasets.load(config.load, data_home)
    n = len(loaded.data) if rows is None else rows
    least = max(config.batch_size, loaded.n_classes)
    if not least <= n <= len(loaded.data):
        raise ValueError(f"rows must be from {least} to {len(loaded.data)}, got {n}")
    X = torch.from_numpy(np.ascontiguousarray(loaded.data[:n], dtype=np.float32)).to(place)
    machine = results.environment()
    record: Record = {
        "table": "runtime",
        "format": FORMAT,
        "config": asdict(config),
        "n_samples": len(loaded.data),
        "rows": n,
        "epochs": epochs,
        "device": place.type,
        "precision": chosen,
        "environments": {results.digest(machine): machine},
        "finished": results.now(),
        "measured": [],
    }
    for n_seeds in config.seeds:
        for method, known in config.methods.items():
            what = f"{deep.TITLES[method]}, seeds: {n_seeds}"
            advance(what, 0)
            given = {"encoder": tuple(config.encoder), "batch_size": config.batch_size}
            measured = measure(
                method, X, loaded.n_classes, n_seeds, epochs, precision=chosen, **given
            )
            about = {"method": method, "seeds": n_seeds, "paper": known["paper"]}
            record["measured"].append(about | measured)
            record["finished"] = results.now()
            results.save(out / "runtime.json", record)
            results.write_text(out / "runtime.md", to_markdown(record))
            advance(what, 1)
    return record


def measure(
    method: str, X: Tensor, n_clusters: int, n_seeds: int, epochs: int, **given: Any
) -> Record:
    """Seconds of a joint epoch of a method, trained from a k-means++ start."""
    ticks: list[tuple[int, float]] = []

    def note(event: Event) -> None:  # a check has waited for the device
        if event.phase == "joint":
            ticks.append((event.step, time.perf_counter()))

    estimator = deep.make(
        method,
        n_clusters,
        n_seeds,
        **given,
        init="k-means++",
        pretrain_epochs=1,  # enough for a code that does not collapse at once
        epochs=epochs,
        tol=0.0,  # no rest before the end
        callbacks=[note],
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ClusterCollapseWarning)
        estimator.fit(X)
    per_epoch = len(X) // given["batch_size"]
    seconds = epoch_seconds(ticks, per_epoch)
    return {
        "seconds": statistics.median(seconds),
        "fastest": min(seconds),
        "slowest": max(seconds),
        "intervals": len(seconds),
        "steps_per_epoch": per_epoch,
        "parameters": deep.parameters_of(estimator),
    }


def epoch_seconds(ticks: Sequence[tuple[int, float]], per_epoch: int) -> list[float]:
    """Seconds of an epoch by each interval between two checks, after the warm-up.

    Parameters
    ----------
    ticks : sequence of (step, seconds)
        When which step had been done. DEC is checked every 140 steps, the others once an epoch.
    per_epoch : int
        Steps of an epoch.

    Examples
    --------
    >>> epoch_seconds([(10, 5.0), (20, 6.0), (30, 8.0)], per_epoch=10)
    [1.0, 2.0]
    """
    counted = [tick for tick in ticks if tick[0] >= WARM_UP * per_epoch]
    found = [
        per_epoch * (end - start) / (last - first)
        for (first, start), (last, end) in pairwise(counted)
    ]
    if not found:
        raise RuntimeError("training ended before an epoch could be measured; use more epochs")
    return found


# --------------------------------------------------------------------------------------------------
# rendering: from the record alone


def time_table(record: Record) -> tables.Cells:
    """Header and rows, one a method and number of seeds."""
    header = ["method", "seeds at once", "s/epoch", "fastest", "slowest", "s/epoch and seed"]
    header += ["paper, one seed", "paper over ours"]
    lines = []
    for found in record["measured"]:
        each = found["seconds"] / found["seeds"]
        # with rows left out, the paper's epoch is another one
        whole = record["rows"] == record["n_samples"]
        compare = f"{found['paper'] / each:.1f}" if whole else "—"
        times = [f"{found[key]:.3g}" for key in ("seconds", "fastest", "slowest")]
        lines.append(
            [
                deep.TITLES[found["method"]],
                str(found["seeds"]),
                *times,
                f"{each:.3g}",
                f"{found['paper']:.0f}",
                compare,
            ]
        )
    return header, lines


def sections(record: Record) -> str:
    """What was measured and how, and the table."""
    widths = "-".join(map(str, record["config"]["encoder"]))
    text = (
        f"Seconds of a joint epoch over {record['rows']:,} rows of {record['config']['title']}, "
        f"encoder {widths}, batches of {record['config']['batch_size']}, {record['precision']} on "
        f"{record['device']}: median over the epochs after the first, "
        f"{record['epochs'] - WARM_UP} in all. DEC's include its target over all rows, every 140 "
        "steps. The paper names neither its machine nor its batch size."
    )
    made = [f"Computed with {words}.\n" for words in cells.machines(record)]
    return "\n".join([f"{text}\n", tables.markdown(*time_table(record)), *made])


def to_markdown(record: Record) -> str:
    """The record as a page of Markdown."""
    return f"# Runtime\n\n{sections(record)}"


def to_table(record: Record) -> Table:
    """The same for the terminal."""
    header, lines = time_table(record)
    title = f"Seconds of a joint epoch, {record['config']['title']}, {record['rows']:,} rows"
    table = tables.terminal(title, header)
    for line in lines:
        table.add_row(*line)
    return table
