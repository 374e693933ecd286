"""``ckm report``: a run in the browser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from concrete_kmeans.cli.common import Debug, Format, RunFolder, Trusted, app, printable

__all__ = ["report"]


@app.command()
def report(
    run: RunFolder,
    source: Annotated[
        str | None,
        typer.Option(
            "--input",
            metavar="INPUT",
            help="Rows to show.  [default: those of the fit, if they are where they were]",
        ),
    ] = None,
    no_input: Annotated[
        bool, typer.Option("--no-input", help="Show no rows: sizes, centres and training only.")
    ] = False,
    form: Format = None,
    embed: Trusted = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FILE", help="[default: RUN/report.html]"),
    ] = None,
    title: Annotated[str | None, typer.Option(help="Heading of the page.")] = None,
    _debug: Debug = False,
) -> None:
    """Write a run as one HTML file that needs no network."""
    if source is not None and no_input:
        raise typer.BadParameter("cannot stand beside --input", param_hint="--no-input")
    from concrete_kmeans import files, storage
    from concrete_kmeans.cli import runs

    notes = runs.notes_of(run)
    path = out or run / storage.REPORT
    files.check_file_place(path)
    estimator = runs.open_model(run)
    data = None
    if source is not None:
        data = runs.read_new(run, notes, source, form, embed)
    elif not no_input:
        data = runs.training_data(run, notes, embed)
    runs.write_report(path, estimator, data, notes, title=title, source=source)
    typer.echo(f"Written: {printable(str(path))}")
