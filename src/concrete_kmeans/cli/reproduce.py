"""``ckm reproduce``: the tables of the paper."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from concrete_kmeans.cli.common import INTERRUPTED, AsJson, Debug, app, checked, progress, say

if TYPE_CHECKING:
    from rich.table import Table

reproduce = typer.Typer(no_args_is_help=True, help="Compute a table of the paper again.")
app.add_typer(reproduce, name="reproduce")

DataSets = Annotated[
    str | None,
    typer.Option(metavar="A,B,...", help="Data sets, with commas between.  [default: all]"),
]
Seeds = Annotated[int, typer.Option(min=1, help="Runs of each method.")]
DataHome = Annotated[
    Path | None,
    typer.Option(
        exists=True,
        file_okay=False,
        help="Folder to look for data in, before $CKM_DATA_HOME, the cache and the internet.",
    ),
]
Out = Annotated[Path, typer.Option(file_okay=False, help="Folder of the results.")]
Device = Annotated[str, typer.Option(help="Where everything runs: auto, cpu, cuda, ...")]
PrecisionOption = Annotated[
    str,
    typer.Option(
        help="Of training: float32, tf32, bfloat16, float64; auto is tf32 on CUDA, else float32."
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Compute finished cells again.")]


@contextmanager
def _kept_when_interrupted() -> Iterator[None]:
    """Tell that what is finished stays."""
    try:
        yield
    except KeyboardInterrupt:
        kept = "what is finished is kept, and the same command goes on from there"
        typer.echo(f"ckm: interrupted; {kept}", err=True)
        raise typer.Exit(INTERRUPTED) from None


def _tell(as_json: bool, record: dict[str, Any], table: Table, *sentences: str) -> None:
    """The results for machines, or as a table with sentences under it."""
    from concrete_kmeans.experiments import results

    if as_json:
        typer.echo(results.to_json(record), nl=False)
    else:
        say(table, *sentences)


@reproduce.command()
def table1(
    datasets: DataSets = None,
    seeds: Seeds = 15,
    data_home: DataHome = None,
    out: Out = Path("runs/table1"),
    device: Annotated[str, typer.Option(help="Where CKM runs: auto, cpu, cuda, ...")] = "auto",
    force: Force = False,
    as_json: AsJson = False,
    _debug: Debug = False,
) -> None:
    """Shallow CKM against scikit-learn's k-means, on the data sets of Table 1.

    Writes table1.json, table1.md and table1.tex. What is finished stays: after an interruption
    the same command goes on where it stopped.
    """
    from concrete_kmeans.data import resolve_device
    from concrete_kmeans.experiments import table1 as experiment

    names = experiment.DATASETS
    if datasets is not None:
        names = checked("--datasets", lambda: experiment.dataset_names(datasets))
    place = checked("--device", lambda: str(resolve_device(device, None)))
    fits = len(names) * len(experiment.METHODS) * seeds
    with _kept_when_interrupted(), progress(fits) as advance:
        record = experiment.run(
            out,
            names=names,
            n_seeds=seeds,
            data_home=data_home,
            device=place,
            force=force,
            advance=advance,
        )
    _tell(
        as_json,
        record,
        experiment.to_table(record),
        *experiment.verdict(record),
        f"Written: {out / 'table1.json'}, table1.md and table1.tex",
    )


@reproduce.command()
def table2(
    datasets: DataSets = None,
    methods: Annotated[
        str | None,
        typer.Option(metavar="A,B,...", help="Methods, with commas between.  [default: all]"),
    ] = None,
    seeds: Seeds = 15,
    data_home: DataHome = None,
    out: Out = Path("runs/table2"),
    device: Device = "auto",
    precision: PrecisionOption = "auto",
    force: Force = False,
    as_json: AsJson = False,
    _debug: Debug = False,
) -> None:
    """Deep clustering on MNIST, USPS and 20 Newsgroups: Table 2, and methods beyond it.

    Data sets: mnist, usps, usps-split, 20newsgroups, 20newsgroups-plain. Methods: km, ae+km, dec,
    dcn, ckm-paper, ckm-k-means++, ckm, ae+mixture, idec, dkm, ckm-consensus, ckm-conv (images
    only). AE+KM comes with every method that goes on from its autoencoders.

    Writes table2.json, table2.md, table2.tex and table2.svg, and the autoencoders. What is
    finished stays: after an interruption the same command goes on where it stopped.
    """
    from concrete_kmeans.data import resolve_device
    from concrete_kmeans.experiments import cells, config, table2_report
    from concrete_kmeans.experiments import table2 as experiment

    known = config.table2()
    names = asked = None
    if datasets is not None:
        names = checked("--datasets", lambda: cells.pick(datasets, [*known.datasets], "data sets"))
    if methods is not None:
        asked = checked("--methods", lambda: cells.pick(methods, [*known.methods], "methods"))
    planned = checked("--methods", lambda: experiment.plan(known, names, asked))
    place = checked("--device", lambda: resolve_device(device, None))
    chosen = checked("--precision", lambda: experiment.choose_precision(precision, place))
    fits = seeds * sum(map(len, planned.values()))
    with _kept_when_interrupted(), progress(fits) as advance:
        record = experiment.run(
            out,
            names=names,
            methods=asked,
            n_seeds=seeds,
            data_home=data_home,
            device=str(place),
            precision=chosen,
            force=force,
            advance=advance,
        )
    _tell(
        as_json,
        record,
        table2_report.to_table(record),
        *table2_report.verdict(record),
        f"Written: {out / 'table2.json'}, table2.md, table2.tex and table2.svg",
    )


@reproduce.command()
def runtime(
    rows: Annotated[
        int | None, typer.Option(min=1, help="Use the first so many rows.  [default: all]")
    ] = None,
    epochs: Annotated[int, typer.Option(min=2, help="Joint epochs; the first does not count.")] = 6,
    data_home: DataHome = None,
    out: Out = Path("runs/runtime"),
    device: Device = "auto",
    precision: PrecisionOption = "auto",
    as_json: AsJson = False,
    _debug: Debug = False,
) -> None:
    """Seconds of a joint epoch on MNIST of CKM, DEC and DCN, one seed and 15 at once.

    Writes runtime.json and runtime.md. Without a GPU all 70,000 rows take hours: see --rows.
    """
    from concrete_kmeans.data import resolve_device
    from concrete_kmeans.experiments import config, table2
    from concrete_kmeans.experiments import runtime as experiment

    place = checked("--device", lambda: resolve_device(device, None))
    chosen = checked("--precision", lambda: table2.choose_precision(precision, place))
    known = config.runtime()
    with progress(len(known.seeds) * len(known.methods)) as advance:
        record = experiment.run(
            out,
            rows=rows,
            epochs=epochs,
            data_home=data_home,
            device=str(place),
            precision=chosen,
            advance=advance,
        )
    _tell(
        as_json,
        record,
        experiment.to_table(record),
        f"Written: {out / 'runtime.json'} and runtime.md",
    )
