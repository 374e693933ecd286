"""Whatever is brought, only documented errors: 10,000 cases of odd input.

``python benchmarks/fuzz.py`` brings odd arrays, sparse matrices, arguments, config files, tables,
Parquet, pictures, model folders and command lines, and judges what happens:

- it works, and the result keeps what is promised of it; or
- an error that is raised on purpose, in this package or by scikit-learn's checks: a ``ValueError``,
  ``TypeError``, ``FloatingPointError`` (a fit that diverges) or one of files that are not there, in
  one line that names the argument or the file; of a command, exit code 1 with one line, or 2.

Anything else is a finding: another error, a warning that is not for users, a crash of the process,
a case over its time or memory. The exit code is 1 if there are any. Each case has a seed of its
own: ``--target arrays --case 17`` does one again, with its traceback.
"""

from __future__ import annotations

import argparse
import json
import linecache
import logging
import multiprocessing
import platform
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import torch

import concrete_kmeans
from fuzz_cases import TARGETS, Case, FindingError, seeds

#: Errors that are documented.
ALLOWED = (
    ValueError,
    TypeError,
    FloatingPointError,
    FileNotFoundError,
    FileExistsError,
    NotADirectoryError,
    IsADirectoryError,
)
#: Seconds, and bytes of memory beyond those at the start, that a case may take.
SECONDS, MEMORY = 30, 4 * 2**30
#: Where an error may be raised on purpose.
PACKAGE = str(Path(concrete_kmeans.__file__).parent)
CHECKS = str(Path("sklearn", "utils"))


@dataclass(frozen=True)
class Found:
    """A case that breaks the contract."""

    target: str
    case: int
    what: str
    why: str


def judge(case: Case) -> tuple[str, str]:
    """Do a case; how it ended, and why that is wrong, if it is."""
    try:
        with warnings.catch_warnings(), _limited():
            warnings.simplefilter("error")
            warnings.simplefilter("ignore", UserWarning)  # told to users on purpose
            case.work()
    except FindingError as error:
        return "finding", str(error)
    except Exception as error:  # noqa: BLE001  # what it is, is the question
        return type(error).__name__, _fault(error, case)
    return "works", ""


def _fault(error: Exception, case: Case) -> str:
    text = f"{type(error).__name__}: {str(error)[:300]}"
    frame = _last(error.__traceback__)
    file, line = frame.tb_frame.f_code.co_filename, frame.tb_lineno
    where = f"{file}:{line}"
    if type(error) not in ALLOWED and not type(error).__module__.startswith("concrete_kmeans"):
        return f"{text} ({where})"
    if CHECKS in file:
        return ""
    raised = linecache.getline(file, line).strip().startswith("raise")
    if not file.startswith(PACKAGE) or not raised:
        return f"not raised on purpose: {text} ({where})"
    if "\n" in str(error):
        return f"more than a line: {text} ({where})"
    if case.names and not any(name in str(error) for name in case.names):
        return f"none of {list(case.names)} is named: {text} ({where})"
    return ""


def _last(found: TracebackType | None) -> TracebackType:
    if found is None:
        raise ValueError("an error that was never raised")
    while found.tb_next is not None:
        found = found.tb_next
    return found


class _TooLongError(Exception):
    """A case that did not end."""


@contextmanager
def _limited() -> Iterator[None]:
    def stop(*_: object) -> None:
        raise _TooLongError(f"more than {SECONDS} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def run_case(seed: int, target: str, number: int, inputs: Path) -> tuple[str, str, str]:
    """Make a case and do it: what it was, how it ended, and what is wrong with that."""
    make, _ = TARGETS[target]
    rng = np.random.default_rng([seed, list(TARGETS).index(target), number])
    with tempfile.TemporaryDirectory(dir=inputs.parent) as folder:
        case = make(rng, inputs, Path(folder))
        return case.what, *judge(case)


def run_part(seed: int, target: str, numbers: list[int], inputs: Path, answers: Any) -> None:
    """Do the cases of a target, in a process of its own; what each begins and ends is told."""
    _quiet()
    grown = resource.getrlimit(resource.RLIMIT_AS)[1]
    held = int(Path("/proc/self/statm").read_text("ascii").split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (held + MEMORY, grown))
    for number in numbers:
        answers.send((number, None))
        answers.send((number, run_case(seed, target, number, inputs)))
    answers.send(None)


def _quiet() -> None:
    torch.set_num_threads(1)
    logging.getLogger("concrete_kmeans").setLevel(logging.ERROR)


def run_target(
    seed: int, target: str, numbers: list[int], inputs: Path
) -> Iterator[tuple[int, tuple[str, str, str]]]:
    """Do the cases of a target; a process that dies is an answer, and another one goes on."""
    context = multiprocessing.get_context("fork")
    while numbers:
        ours, theirs = context.Pipe(duplex=False)
        worker = context.Process(target=run_part, args=(seed, target, numbers, inputs, theirs))
        worker.start()
        theirs.close()
        number, done = numbers[0], False
        try:
            while (answer := ours.recv()) is not None:
                number = answer[0]
                if answer[1] is not None:
                    yield number, answer[1]
            done = True
        except EOFError:
            worker.join()
            yield number, ("", "crash", f"the process died with {worker.exitcode}")
        worker.join()
        numbers = [] if done else [n for n in numbers if n > number]


def counts(total: int) -> dict[str, int]:
    """Cases of each target, by its share."""
    whole = sum(share for _, share in TARGETS.values())
    shares = {name: total * share // whole for name, (_, share) in TARGETS.items()}
    shares[next(iter(shares))] += total - sum(shares.values())
    return shares


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--target", choices=list(TARGETS))
    parser.add_argument("--case", type=int, help="this one only, with its traceback")
    parser.add_argument("--out", type=Path, help="JSON file for the results")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        inputs = Path(folder, "seeds")
        inputs.mkdir()
        _quiet()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            seeds(inputs)
        if asked.case is not None:
            show(asked.seed, asked.target or "arrays", asked.case, inputs)
            return
        record = run(asked.cases, asked.seed, asked.target, inputs)
    for found in record["findings"]:
        print(f"{found['target']} {found['case']}: {found['what'][:160]}\n    {found['why']}")
    print(
        f"{record['cases']} cases, seed {record['seed']}, {record['seconds']:.0f} s, "
        f"findings: {len(record['findings'])}"
    )
    if asked.out is not None:
        asked.out.write_text(json.dumps(record, indent=1) + "\n", "utf-8")
    sys.exit(bool(record["findings"]))


def run(cases: int, seed: int, only: str | None, inputs: Path) -> dict[str, Any]:
    """Do all cases; what came of them, ready for JSON."""
    start, findings, ends = time.perf_counter(), [], {}
    asked = {only: cases} if only else counts(cases)
    for target, n in asked.items():
        ended: Counter[str] = Counter()
        for number, (what, end, why) in run_target(seed, target, list(range(n)), inputs):
            ended[end] += 1
            if why:
                findings.append(Found(target, number, what, why))
        ends[target] = {"cases": n, **dict(ended.most_common())}
        print(f"{target:>20}: {ends[target]}", flush=True)
    return {
        "cases": sum(asked.values()),
        "seed": seed,
        "seconds": round(time.perf_counter() - start, 1),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "targets": ends,
        "findings": [asdict(found) for found in findings],
    }


def show(seed: int, target: str, number: int, inputs: Path) -> None:
    """One case, with its traceback."""
    make, _ = TARGETS[target]
    rng = np.random.default_rng([seed, list(TARGETS).index(target), number])
    with tempfile.TemporaryDirectory(dir=inputs.parent) as folder:
        case = make(rng, inputs, Path(folder))
        print(case.what)
        try:
            with _limited():
                case.work()
        except Exception:  # noqa: BLE001
            traceback.print_exc()
        print(judge(case))


if __name__ == "__main__":
    main()
