"""``ckm export``: a model for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from concrete_kmeans.cli.common import Debug, RunFolder, app, printable

__all__ = ["export"]


@app.command()
def export(
    run: RunFolder,
    onnx: Annotated[Path, typer.Option(metavar="FILE", help="File to write, as model.onnx.")],
    _debug: Debug = False,
) -> None:
    """Write scaling, encoder and assignment as an ONNX file.

    It takes float32 rows, as many as there are, and gives labels, codes and distances to the
    centres. How files become rows (categories, words, decoding of pictures) is not part of it.
    """
    from concrete_kmeans import files, load
    from concrete_kmeans.exporting import export_onnx

    files.check_file_place(onnx)
    export_onnx(load(run), onnx)
    typer.echo(f"Written: {printable(str(onnx))}")
