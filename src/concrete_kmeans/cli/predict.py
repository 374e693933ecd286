"""``ckm predict``: clusters of new rows."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from concrete_kmeans.cli.common import Debug, Format, RunFolder, Trusted, app, checked

__all__ = ["predict"]

#: Endings of names that labels can be written to.
ENDINGS = (".csv", ".parquet")


@app.command()
def predict(
    run: RunFolder,
    source: Annotated[
        str,
        typer.Argument(
            metavar="NEW",
            show_default=False,
            help="File or folder like that of the fit; - is standard input.",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FILE", help=".csv or .parquet.  [default: stdout]"),
    ] = None,
    form: Format = None,
    embed: Trusted = None,
    device: Annotated[str, typer.Option(help="Where to compute: auto, cpu, cuda, ...")] = "auto",
    _debug: Debug = False,
) -> None:
    """Say which clusters new rows belong to.

    Columns: id, cluster, for a deep model its probability, and the distance to its centre. Rows
    are prepared as those of the fit were.
    """
    if out is not None and out.suffix.lower() not in ENDINGS:
        raise typer.BadParameter(f"must end in .csv or .parquet, got {out}", param_hint="-o")
    from concrete_kmeans import files
    from concrete_kmeans.cli import predicting, runs
    from concrete_kmeans.data import resolve_device

    place = checked("--device", lambda: str(resolve_device(device, None)))
    if out is not None:
        files.check_file_place(out)
    notes = runs.notes_of(run)
    estimator = runs.open_model(run, place)
    found = predicting.predict(estimator, runs.read_new(run, notes, source, form, embed))
    if out is None:
        sys.stdout.buffer.write(predicting.to_csv(found))
        sys.stdout.flush()
    else:
        parquet = out.suffix.lower() == ".parquet"
        data = predicting.to_parquet(found) if parquet else predicting.to_csv(found)
        files.write_bytes(out, data)
