"""More rows than memory: peak memory and time a row as the rows grow, under a limit.

``python benchmarks/streaming.py`` writes a memmap of 4 GiB and as much in a folder of Parquet files
to a temporary folder, fits on them and on their first parts, and removes them. Every fit is a
process of its own that may take 1 GiB more than its imports did, by two limits: RLIMIT_DATA, all
memory that a process can write to and that is its own; and RLIMIT_AS, all addresses. Those of a
memmap are taken before that limit is set, and none of them need be in memory: what the page cache
holds of a file the system takes back when it is short of memory.

Exit code 1: a fit failed, differs from the same in memory, or takes more than 15 % longer a row.
"""

from __future__ import annotations

import argparse
import itertools
import json
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import measure

#: Features, clusters, and rows of the whole file: 4 GiB of float32.
D, K, ROWS = 64, 32, 2**24
#: Parts of it whose peak memory is compared, and whose time a row is.
MEMORY, TIME = (16, 4, 1), (64, 16, 4, 1)
#: Bytes that a fit may take above its imports.
LIMIT = 2**30
#: Rows of one cluster that are neighbours, rows written at a time, rows of a row group, and
#: files of a folder.
BLOCK, PART, GROUP, FILES = 2**12, 2**18, 2**16, 16
#: Time a row may grow by this part.
GROWTH = 0.15
#: Rows whose cluster is the same, predicted from a stream and in memory, at least: a row half-way
#: between two centres may fall to either, by rounding.
SAME = 0.9999
#: Seconds that a fit may take.
TIMEOUT = 3600.0


def blobs(start: int, stop: int) -> np.ndarray:
    """Rows of round clusters, the same for the same numbers: blocks of one cluster, in turn."""
    centers = np.random.default_rng(0).normal(size=(K, D), scale=2.0).astype(np.float32)
    rows = np.empty((stop - start, D), np.float32)
    for block in range(start // BLOCK, -(-stop // BLOCK)):
        first = block * BLOCK
        part = np.random.default_rng(block + 1).standard_normal((BLOCK, D), dtype=np.float32)
        part += centers[block % K]
        low, high = max(start, first), min(stop, first + BLOCK)
        rows[low - start : high - start] = part[low - first : high - first]
    return rows


def write_files(folder: Path, rows: int) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    whole = np.lib.format.open_memmap(folder / "rows.npy", "w+", np.float32, (rows, D))
    (folder / "rows").mkdir()
    names = [f"x{i}" for i in range(D)]
    schema = pa.schema([(name, pa.float32()) for name in names])
    for file in range(FILES):
        path = folder / "rows" / f"{file:03}.parquet"
        with pq.ParquetWriter(path, schema, use_dictionary=False, compression="none") as parquet:
            for start in range(rows * file // FILES, rows * (file + 1) // FILES, PART):
                part = blobs(start, min(start + PART, rows * (file + 1) // FILES))
                whole[start : start + len(part)] = part
                table = pa.table(dict(zip(names, part.T.copy(), strict=True)), schema)
                parquet.write_table(table, GROUP)
    whole.flush()


# ------------------------------------------------------------------------- in a process of its own


def opened(folder: str, kind: str, rows: int) -> Any:
    """The first rows of the files; of Parquet, the first files of the folder."""
    from concrete_kmeans import Parquet, data

    data.STREAM_BYTES = 0  # few rows are to be read as many are
    if kind == "memmap":
        return np.load(Path(folder) / "rows.npy", mmap_mode="r")[:rows]
    some = Path(folder) / f"first-{rows}"
    if not some.exists():
        some.mkdir()
        for i in range(max(1, FILES * rows // ROWS)):
            (some / f"{i:03}.parquet").symlink_to(Path(folder) / "rows" / f"{i:03}.parquet")
    return Parquet(some)


def concrete(X: Any) -> Any:
    from concrete_kmeans import ConcreteKMeans

    return ConcreteKMeans(K, random_state=0, device="cpu").fit(X)


def lloyd(X: Any) -> Any:
    from concrete_kmeans import ConcreteKMeans

    first = blobs(0, BLOCK * K)[::BLOCK]
    return ConcreteKMeans(K, algorithm="lloyd", init=first, max_iter=3, tol=0.0, device="cpu").fit(
        X
    )


def online(X: Any) -> Any:
    from concrete_kmeans import ConcreteKMeans

    return ConcreteKMeans(K, random_state=0, batch_size=1024, device="cpu").partial_fit(X)


def deep(X: Any) -> Any:
    from concrete_kmeans import DeepConcreteKMeans

    return DeepConcreteKMeans(
        K,
        encoder=(32, 8),
        init="k-means++",
        pretrain_epochs=1,
        epochs=1,
        batch_size=4096,
        random_state=0,
        device="cpu",
    ).fit(X)


METHODS: dict[str, Callable[[Any], Any]] = {
    "concrete": concrete,
    "lloyd": lloyd,
    "partial_fit": online,
    "deep": deep,
}


def run(method: str, kind: str, folder: str, rows: int) -> dict[str, Any]:
    """Fit under the limit, and predict all rows again."""
    METHODS[method](blobs(0, 4096).copy())  # what is imported or set up once
    X = opened(folder, kind, rows)
    for kind_of, now in ((resource.RLIMIT_DATA, "VmData"), (resource.RLIMIT_AS, "VmSize")):
        limit = int(measure.memory(now) * 2**20) + LIMIT
        resource.setrlimit(kind_of, (limit, limit))
    with measure.Peak() as peak:
        start, cpu = time.perf_counter(), time.process_time()
        estimator = METHODS[method](X)
        seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu
        start, predict_cpu = time.perf_counter(), time.process_time()
        labels = estimator.predict(X)
        predicted = time.perf_counter() - start
        predict_cpu = time.process_time() - predict_cpu
    n = len(X)
    known = blobs(0, min(n, PART))
    return {
        "rows": n,
        "gib": round(n * D * 4 / 2**30, 4),
        "peak_mb": peak.extra,
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
        "predict_seconds": predicted,
        "predict_cpu_seconds": predict_cpu,
        "inertia_a_row": float(estimator.inertia_) / n,
        "predict_equals_labels": bool(np.array_equal(labels, estimator.labels_)),
        "same_in_memory": float(np.mean(estimator.predict(known) == labels[: len(known)])),
    }


def subset(kind: str, folder: str, rows: int) -> dict[str, Any]:
    """The same rows as a stream and in memory."""
    X, known = opened(folder, kind, rows), blobs(0, rows)
    found: dict[str, Any] = {"rows": rows}
    pairs = {name: (METHODS[name](X), METHODS[name](known)) for name in METHODS}
    for name, (streamed, held) in pairs.items():
        found[f"{name}_inertia_ratio"] = streamed.inertia_ / held.inertia_
    streamed, held = pairs["lloyd"]
    difference = np.abs(streamed.cluster_centers_ - held.cluster_centers_).max()
    found["lloyd_centers_difference"] = float(difference)
    found["lloyd_labels_equal"] = float(np.mean(streamed.labels_ == held.labels_))
    return found


# ----------------------------------------------------------------------------- in the main process


def grows(times: dict[str, list[dict[str, Any]]], rounds: int) -> dict[str, Any]:
    """Least time a row of each size over the rounds, in microseconds, and growth from 1x to 64x."""
    found: dict[str, Any] = {}
    for name, runs in times.items():
        by_rows: dict[int, list[dict[str, Any]]] = {}
        for one in runs:
            by_rows.setdefault(one["rows"], []).append(one)
        found[name] = {
            key: {
                str(rows): round(min(1e6 * one[key] / rows for one in own), 4)
                for rows, own in sorted(by_rows.items())
            }
            for key in ("seconds", "cpu_seconds", "predict_seconds", "predict_cpu_seconds")
        } | {"rounds": rounds}
        for key in ("seconds", "cpu_seconds", "predict_seconds", "predict_cpu_seconds"):
            values = list(found[name][key].values())
            found[name][f"{key}_growth"] = round(values[-1] / values[0] - 1.0, 3)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS, help="of the whole file")
    parser.add_argument("--rounds", type=int, default=3, help="times the sizes take turns")
    parser.add_argument("--methods", default=",".join(METHODS), help="separated by commas")
    parser.add_argument("--no-time", action="store_true", help="memory only")
    parser.add_argument("--name", default="streaming", help="of the file of results")
    options = parser.parse_args()
    methods = options.methods.split(",")
    folder = Path(tempfile.mkdtemp(prefix="ckm-streaming-"))
    needed = 2.2 * options.rows * D * 4
    if shutil.disk_usage(folder).free < needed:
        print(f"needs {needed / 2**30:.1f} GiB in {folder.parent}")
        return 1
    try:
        write_files(folder, options.rows)
        result = measured(folder, methods, options)
    finally:
        shutil.rmtree(folder)
    path = measure.write(options.name, result)
    print(f"written: {path}")
    return 1 if result["failures"] else 0


def measured(folder: Path, methods: list[str], options: argparse.Namespace) -> dict[str, Any]:
    failures: list[str] = []
    memory = memory_of(folder, methods, options.rows, failures)
    same = subsets(folder, options.rows // FILES, failures)
    timed = [m for m in methods if m != "concrete"]  # whose steps do not grow with the rows
    first = [run for run in memory if run["kind"] == "memmap" and run["method"] in timed]
    rounds = 0 if options.no_time else options.rounds
    growth = times_of(folder, timed, options.rows, rounds, first)
    for name, own in growth.items():
        if own["seconds_growth"] > GROWTH:
            failures.append(f"{name}: a row takes {own['seconds_growth']:.0%} longer")
    for failure in failures:
        print("FAILED", failure)
    return {
        "shape": [options.rows, D],
        "clusters": K,
        "limit": f"RLIMIT_DATA and RLIMIT_AS, {LIMIT >> 20} MiB above the imports",
        "memory": memory,
        "subset": same,
        "time_a_row_us": growth,
        "failures": failures,
    }


def memory_of(
    folder: Path, methods: list[str], rows: int, failures: list[str]
) -> list[dict[str, Any]]:
    """Peak memory of all methods on parts of the files."""
    memory = []
    for kind, method, part in itertools.product(("memmap", "parquet"), methods, MEMORY):
        case = {"method": method, "kind": kind, "rows": rows // part}
        found = asked(case, folder)
        memory.append(found)
        same = found.get("same_in_memory", 0.0)
        if not found.get("predict_equals_labels") or same < SAME:
            failures.append(f"{method} from {kind}, {case['rows']} rows: {found}")
    return memory


def subsets(folder: Path, rows: int, failures: list[str]) -> dict[str, Any]:
    """Streams beside the same rows in memory."""
    same = {}
    for kind in ("memmap", "parquet"):
        case = {"kind": kind, "folder": str(folder), "rows": rows}
        same[kind] = measure.ask(__file__, "subset", case, TIMEOUT)
        print(kind, json.dumps(same[kind]), flush=True)
        if not same[kind].get("lloyd_centers_difference", 1.0) < 1e-4:
            failures.append(f"{kind} differs from memory: {same[kind]}")
    return same


def times_of(
    folder: Path, methods: list[str], rows: int, rounds: int, done: list[dict[str, Any]]
) -> dict[str, Any]:
    """Time a row, from memmaps; sizes take turns. What is done already counts as the first."""
    times: dict[str, list[dict[str, Any]]] = {}
    for turn, method, part in itertools.product(range(rounds), methods, TIME):
        case = {"method": method, "kind": "memmap", "rows": rows // part}
        before = [run for run in done if turn == 0 and case.items() <= run.items()]
        found = before[0] if before else asked(case, folder)
        if "error" not in found:
            times.setdefault(method, []).append(found)
    growth = grows(times, rounds)
    print(json.dumps(growth, indent=1))
    return growth


def asked(case: dict[str, Any], folder: Path) -> dict[str, Any]:
    found = case | measure.ask(__file__, "run", case | {"folder": str(folder)}, TIMEOUT)
    print(json.dumps(found), flush=True)
    return found


if __name__ == "__main__":
    if "--contender" in sys.argv:
        measure.serve({"run": run, "subset": subset})
    else:
        sys.exit(main())
