"""``ckm reproduce``: the tables of the paper."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from concrete_kmeans.cli.common import INTERRUPTED, Debug, app, checked, progress, say

reproduce = typer.Typer(no_args_is_help=True, help="Compute a table of the paper again.")
app.add_typer(reproduce, name="reproduce")


@reproduce.command()
def table1(
    datasets: Annotated[
        str | None,
        typer.Option(metavar="A,B,...", help="Data sets, with commas between.  [default: all]"),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each method.")] = 15,
    data_home: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            file_okay=False,
            help="Folder to look for data in, before $CKM_DATA_HOME, the cache and the internet.",
        ),
    ] = None,
    out: Annotated[Path, typer.Option(file_okay=False, help="Folder of the results.")] = Path(
        "runs/table1"
    ),
    device: Annotated[str, typer.Option(help="Where CKM runs: auto, cpu, cuda, ...")] = "auto",
    force: Annotated[bool, typer.Option("--force", help="Compute finished cells again.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the results as JSON, not as a table.")
    ] = False,
    _debug: Debug = False,
) -> None:
    """Shallow CKM against scikit-learn's k-means, on the data sets of Table 1.

    Writes table1.json, table1.md and table1.tex. What is finished stays: after an interruption
    the same command goes on where it stopped.
    """
    from concrete_kmeans.data import resolve_device
    from concrete_kmeans.experiments import results
    from concrete_kmeans.experiments import table1 as experiment

    names = experiment.DATASETS
    if datasets is not None:
        names = checked("--datasets", lambda: experiment.dataset_names(datasets))
    place = checked("--device", lambda: str(resolve_device(device, None)))
    try:
        with progress(len(names) * len(experiment.METHODS) * seeds) as advance:
            record = experiment.run(
                out,
                names=names,
                n_seeds=seeds,
                data_home=data_home,
                device=place,
                force=force,
                advance=advance,
            )
    except KeyboardInterrupt:
        kept = "what is finished is kept, and the same command goes on from there"
        typer.echo(f"ckm: interrupted; {kept}", err=True)
        raise typer.Exit(INTERRUPTED) from None
    if as_json:
        typer.echo(results.to_json(record), nl=False)
    else:
        written = f"Written: {out / 'table1.json'}, table1.md and table1.tex"
        say(experiment.to_table(record), *experiment.verdict(record), written)
