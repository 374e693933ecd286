"""Seconds that ``import concrete_kmeans`` adds to importing torch and scikit-learn.

``python benchmarks/imports.py`` writes ``results/imports.json``. Each import has a process of its
own; they take turns, and every public name is asked for.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
from typing import Any

from measure import parser, progress, write

BASE = "import torch, sklearn.base, sklearn.metrics, sklearn.utils.validation"
PROGRAMS = {
    "torch and scikit-learn": BASE,
    "import concrete_kmeans": f"{BASE}; import concrete_kmeans",
    "every public name": f"{BASE}; from concrete_kmeans import *",
    "ckm --help": "import sys; sys.argv = ['ckm', '--help']; "
    "import concrete_kmeans.cli as c; c.main()",
}


def seconds(program: str) -> float:
    """Of the program, by its own clock: the start of Python is not part of it."""
    code = (
        "import time, sys\nstart = time.perf_counter()\ntry:\n    exec(sys.argv[1])\n"
        "except SystemExit:\n    pass\nsys.stderr.write(f'\\n{time.perf_counter() - start}')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, program], capture_output=True, text=True, check=True
    )
    return float(done.stderr.splitlines()[-1])


def main() -> None:
    chosen = parser(__doc__).parse_args()
    rounds = chosen.rounds or (2 if chosen.quick else 9)
    taken: dict[str, list[float]] = {name: [] for name in PROGRAMS}
    for i in range(rounds + 1):  # the first fills the cache of files
        progress(f"imports, round {i} of {rounds}")
        for name, program in PROGRAMS.items():
            taken[name].append(seconds(program))
    base = statistics.median(taken["torch and scikit-learn"][1:])
    result: dict[str, Any] = {"command": "python benchmarks/imports.py", "rounds": rounds}
    result["contenders"] = {}
    print("Imports")
    for name, times in taken.items():
        middle = statistics.median(times[1:])
        row = {"seconds": middle, "seconds_all": [round(t, 3) for t in sorted(times[1:])]}
        row["beyond_torch_and_scikit_learn"] = middle - base
        result["contenders"][name] = row
        print(f"  {name:24} {middle:6.2f} s, {middle - base:+6.2f} s")
    write("imports", result, quick=chosen.quick)


if __name__ == "__main__":
    main()
