"""The terminal face: ``ckm``.

Whatever is heavy is imported by the command that needs it, so that ``ckm --help`` is instant.
Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from typer.core import TyperGroup

from concrete_kmeans import __version__

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["app", "main"]

T = TypeVar("T")

DEBUG, INTERRUPTED = "concrete_kmeans.debug", 130


class _Group(TyperGroup):
    """Turns a failure into one line on stderr and an exit code, whichever command it is from."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            typer.echo("ckm: interrupted", err=True)
            raise typer.Exit(INTERRUPTED) from None
        except (BrokenPipeError, typer.Abort):
            raise
        except Exception as error:
            if hasattr(error, "exit_code"):  # wrong usage, or an exit on purpose
                raise
            if ctx.meta.get(DEBUG):
                typer.echo(traceback.format_exc().rstrip(), err=True)
            text = " ".join(str(error).split())
            typer.echo(f"ckm: {type(error).__name__}{': ' * bool(text)}{text}", err=True)
            raise typer.Exit(1) from None


app = typer.Typer(
    cls=_Group,
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
reproduce = typer.Typer(no_args_is_help=True, help="Compute a table of the paper again.")
app.add_typer(reproduce, name="reproduce")


def main() -> None:
    """Run the command line."""
    app(prog_name="ckm")


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"ckm {__version__}")
        raise typer.Exit


def _set_debug(ctx: typer.Context, asked: bool) -> None:
    if asked:
        ctx.meta[DEBUG] = True  # shared by the contexts of all commands


Debug = Annotated[
    bool, typer.Option("--debug", callback=_set_debug, help="Show the traceback of a failure.")
]


@app.callback()
def _ckm(
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
    _debug: Debug = False,
) -> None:
    """Hard k-means trained by gradient descent, alone or inside a neural network."""


@app.command()
def demo(
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each method.")] = 5,
    out: Annotated[
        Path | None, typer.Option(dir_okay=False, help="Write the results to this JSON file.")
    ] = None,
    _debug: Debug = False,
) -> None:
    """Cluster the handwritten digits that come with scikit-learn, in a minute or two."""
    from concrete_kmeans.experiments import demo as experiment
    from concrete_kmeans.experiments import results

    with _progress(len(experiment.METHODS) * seeds) as advance:
        record = experiment.run(seeds, advance=advance)
    if out is not None:
        results.save(out, record)
    _say(experiment.to_table(record), *experiment.explanation(record))


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
        names = _checked("--datasets", lambda: experiment.dataset_names(datasets))
    place = _checked("--device", lambda: str(resolve_device(device, None)))
    try:
        with _progress(len(names) * len(experiment.METHODS) * seeds) as advance:
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
        _say(experiment.to_table(record), *experiment.verdict(record), written)


def _checked(option: str, check: Callable[[], T]) -> T:
    """Call a check whose ValueError is a wrong usage of an option."""
    try:
        return check()
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from None


@contextmanager
def _progress(total: int) -> Iterator[Callable[[str, int], None]]:
    """Bar on stderr when that is a terminal, else nothing; yields what moves it."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.progress import TimeElapsedColumn as Elapsed

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), Elapsed())
    with Progress(
        *columns, console=Console(stderr=True), disable=not sys.stderr.isatty(), transient=True
    ) as bar:
        task = bar.add_task("loading", total=total)
        yield lambda text, fits: bar.update(task, advance=fits, description=text)


def _say(table: Table, *sentences: str) -> None:
    from rich.console import Console

    # Nobody's window is 80 columns wide when the output goes to a file or a pipe.
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
    console.print(table)
    for sentence in sentences:
        console.print(sentence, markup=False, soft_wrap=not console.is_terminal)
