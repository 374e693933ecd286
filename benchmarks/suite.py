"""Run parts of the benchmarks one after the other, and say what they mean for the targets.

``make bench`` runs the quick ones; ``ckm bench training predict --device cuda --full`` some, in
full.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

import targets

#: In the order they run: the limits come first.
PARTS = (
    "limits",
    "imports",
    "lloyd",
    "predict",
    "training",
    "shallow",
    "first_fit",
    "growth",
    "step_profile",
)
#: What ``make bench`` leaves out: they show how the cost is made up, not how it compares.
NOT_QUICK = ("first_fit", "growth", "step_profile")
#: What runs once, however many rounds are asked for.
ONCE = ("first_fit", "step_profile")
#: What only the CPU is asked for: peers that do not run elsewhere.
CPU_ONLY = ("imports", "shallow")


def chosen_parts(asked: list[str], device: str, quick: bool) -> list[str]:
    """The parts to run; all that the device and the mode know when none is named."""
    unknown = [part for part in asked if part not in PARTS]
    if unknown:
        raise ValueError(f"parts must be among {', '.join(PARTS)}, got {', '.join(unknown)}")
    if device != "cpu" and (wrong := [part for part in asked if part in CPU_ONLY]):
        raise ValueError(f"{', '.join(wrong)} run on the CPU only, got --device {device}")
    left_out = {*(NOT_QUICK if quick else ()), *(CPU_ONLY if device != "cpu" else ())}
    return [part for part in PARTS if part in asked or not (asked or part in left_out)]


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    options.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    options.add_argument("--quick", action="store_true", help="less of everything; own files")
    options.add_argument("--rounds", type=int, help="times each contender runs")
    chosen = options.parse_args()
    try:
        parts = chosen_parts(chosen.parts, chosen.device, chosen.quick)
    except ValueError as error:
        options.error(str(error))
    given = ["--device", chosen.device, *(["--quick"] if chosen.quick else [])]
    if chosen.rounds is not None:
        given += ["--rounds", str(chosen.rounds)]
        if chosen.rounds > 1 and (once := [part for part in parts if part in ONCE]):
            print(f"run once all the same: {', '.join(once)}\n", flush=True)
    failed = []
    for part in parts:
        start = time.perf_counter()
        script = Path(__file__).with_name(f"{part}.py")
        if subprocess.run([sys.executable, str(script), *given], check=False).returncode:
            failed.append(part)
        print(f"  {part}: {time.perf_counter() - start:.0f} s\n", flush=True)
    print("Targets" + (", by the quick results" if chosen.quick else ""))
    print("\n".join(targets.lines(quick=chosen.quick, device=chosen.device)))
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return len(failed)


if __name__ == "__main__":
    sys.exit(main())
