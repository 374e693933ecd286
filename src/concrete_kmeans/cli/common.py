"""What all commands share: the application, its errors and exit codes, what is shown."""

from __future__ import annotations

import json
import logging
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import typer
from typer.core import TyperGroup

from concrete_kmeans import __version__

if TYPE_CHECKING:
    from rich.table import Table

__all__ = [
    "INTERRUPTED",
    "AsJson",
    "Debug",
    "Format",
    "Quiet",
    "RunFolder",
    "Trusted",
    "app",
    "as_json",
    "checked",
    "printable",
    "progress",
    "say",
    "warnings_told",
]

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
            typer.echo(f"ckm: {_one_line(error)}", err=True)
            raise typer.Exit(1) from None


def _one_line(error: Exception) -> str:
    """What went wrong; the class is named where the text may not say enough by itself."""
    text = str(error)
    if isinstance(error, OSError) and error.strerror:
        text = error.strerror + (f": {error.filename}" if error.filename else "")
    text = printable(" ".join(text.split()))
    if text and isinstance(error, ValueError | OSError | ModuleNotFoundError):
        return f"error: {text}"
    return f"{type(error).__name__}{': ' * bool(text)}{text}"


app = typer.Typer(
    cls=_Group,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


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


Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="Show neither progress nor the summary.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON, for machines.")]
Format = Annotated[
    Literal["npy", "npz", "csv", "tsv", "parquet", "h5", "images", "txt", "jsonl"] | None,
    typer.Option("--format", help="What the input is, where its name does not tell."),
]
Trusted = Annotated[
    str | None,
    typer.Option(
        "--embed",
        metavar="MODEL",
        help="The sentence-transformers model of a run that has one: say so if you trust it.",
    ),
]
RunFolder = Annotated[
    Path, typer.Argument(metavar="RUN", show_default=False, help="Folder that ckm fit has written.")
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


def checked(option: str, check: Callable[[], T]) -> T:
    """Call a check whose ValueError is a wrong usage of an option."""
    try:
        return check()
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from None


def printable(text: str) -> str:
    r"""Text with what a terminal would act on, or cannot show, written as an escape.

    >>> printable("naïve \x1b[31m.png")
    'naïve \\x1b[31m.png'
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def as_json(value: Any) -> str:
    """One line of JSON, all ASCII: whatever a terminal's encoding is, it can be printed."""
    return json.dumps(value, allow_nan=False)


@contextmanager
def warnings_told(*, show: bool = True) -> Iterator[list[str]]:
    """Collect the texts of warnings, each once, and show them as lines on stderr at the end.

    What the package logs meanwhile says the same and is not shown.
    """
    told: list[str] = []
    logger = logging.getLogger("concrete_kmeans")
    level = logger.level
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecations in libraries are not the user's to read
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = lambda message, *_, **__: told.append(str(message))
        logger.setLevel(logging.ERROR)
        try:
            yield told
        finally:
            logger.setLevel(level)
            told[:] = dict.fromkeys(printable(" ".join(text.split())) for text in told)
            for text in told if show else ():
                typer.echo(f"ckm: warning: {text}", err=True)


@contextmanager
def progress(total: int) -> Iterator[Callable[[str, int], None]]:
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


def say(table: Table, *sentences: str) -> None:
    """Show a table, and sentences under it, on stdout."""
    from rich.console import Console

    # Nobody's window is 80 columns wide when the output goes to a file or a pipe.
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
    console.print(table)
    for sentence in sentences:
        console.print(sentence, markup=False, soft_wrap=not console.is_terminal)
