"""``ckm bench``: how fast it is here, beside its peers and what the machine can do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from concrete_kmeans.cli.common import Debug, app, checked

#: Beside the package in its source; peers and scripts are no part of what is installed.
SUITE = Path(__file__).parents[3] / "benchmarks" / "suite.py"
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


@app.command()
def bench(
    parts: Annotated[
        list[str] | None,
        typer.Argument(metavar="PART", help=f"{', '.join(PARTS)}.  [default: all]"),
    ] = None,
    device: Annotated[str, typer.Option(help="Where it runs: cpu or cuda.")] = "cpu",
    quick: Annotated[
        bool, typer.Option("--quick/--full", help="A few minutes, or the figures of the docs.")
    ] = True,
    rounds: Annotated[
        int | None,
        typer.Option(help="Times each contender runs; of shallow, seeds.  [default: the part's]"),
    ] = None,
    _debug: Debug = False,
) -> None:
    """Measure the speed against peers and against the machine's limits.

    Needs a checkout of the source. Writes JSON to benchmarks/results/quick/, or to
    benchmarks/results/ with --full. Peers that are not installed are named.
    """
    from concrete_kmeans.data import resolve_device
    from concrete_kmeans.validation import check_choice, check_positive_int

    asked = list(parts or ())
    checked("PARTS", lambda: [check_choice("PARTS", part, PARTS) for part in asked])
    checked("--device", lambda: check_choice("device", device, ("cpu", "cuda")))
    checked("--device", lambda: resolve_device(device, None))
    if rounds is not None:
        checked("--rounds", lambda: check_positive_int("rounds", rounds))
    if not SUITE.is_file():
        raise RuntimeError(
            "the benchmarks are not installed with the package; ckm bench runs in a checkout of "
            "its source that is installed by pip install --editable"
        )
    command = [sys.executable, str(SUITE), *asked, "--device", device]
    command += [] if rounds is None else ["--rounds", str(rounds)]
    done = subprocess.run([*command, *(["--quick"] if quick else [])], check=False)  # noqa: S603
    if done.returncode:
        raise typer.Exit(done.returncode)
