"""``ckm fit``: a file or a folder in, clusters out."""

from __future__ import annotations

import csv
import signal
import sys
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from concrete_kmeans.cli.common import (
    AsJson,
    Debug,
    Format,
    Quiet,
    app,
    as_json,
    checked,
    printable,
    say,
    warnings_told,
)

if TYPE_CHECKING:
    from concrete_kmeans.cli.fitting import Fitted, Request
    from concrete_kmeans.training import Event

__all__ = ["MethodName", "PresetName", "fit"]

MethodName = Literal["ckm", "ae+km", "dec", "idec", "dcn", "dkm", "concrete", "km"]
PresetName = Literal["tabular", "image", "text", "embeddings"]
#: What ``--encoder`` may say besides widths.
ENCODERS = ("auto", "mlp", "residual", "conv")
#: Width of a progress bar's line without the losses.
BESIDE_LOSSES = 68
#: Numbers of clusters that ``-k auto`` tries.
K_RANGE = "2:20"


def _set_config(ctx: typer.Context, path: Path | None) -> Path | None:
    """Let the values of a file stand for options that are not on the command line."""
    if path is not None:
        ctx.default_map = checked("--config", lambda: _config(path, ctx.command.params))
    return path


def _config(path: Path, parameters: list[Any]) -> dict[str, Any]:
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:  # TOML and UTF-8 alike
        raise ValueError(f"{path} is not TOML: {error}") from None
    options = {
        name.removeprefix("--"): parameter
        for parameter in parameters
        for name in parameter.opts
        if name.startswith("--") and name not in ("--config", "--help")
    }
    found = {}
    for key, value in values.items():
        if key not in options:
            known = ", ".join(sorted(options))
            raise ValueError(f"{path}: {key!r} is not an option; known are {known}")
        if isinstance(value, dict) or isinstance(value, list) != options[key].multiple:
            wanted = "a list" if options[key].multiple else "one value"
            raise ValueError(f"{path}: {key} must be {wanted}, got {value!r}")
        found[options[key].name] = value
    return found


@app.command()
def fit(
    source: Annotated[
        str,
        typer.Argument(
            metavar="INPUT",
            show_default=False,
            help="File (.npy .npz .csv .tsv .parquet .h5 .txt .jsonl, texts also .gz), or folder "
            "of pictures, one for all or one a class; - is standard input.",
        ),
    ],
    n_clusters: Annotated[
        str,
        typer.Option(
            "--n-clusters", "-k", metavar="K|auto", help="Number of clusters; auto chooses it."
        ),
    ],
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="RUN", help="Folder to write, a new one.")
    ],
    k_range: Annotated[
        str | None,
        typer.Option(
            metavar="A:B",
            help=f"What -k auto chooses from.  [default: {K_RANGE}, below the number of rows]",
        ),
    ] = None,
    method: Annotated[
        MethodName,
        typer.Option(
            help="ckm: deep concrete k-means; ae+km, dec, idec, dcn, dkm: other deep methods; "
            "concrete, km: without a network, by gradients or exactly."
        ),
    ] = "ckm",
    preset: Annotated[
        PresetName | None,
        typer.Option(
            help="What rows are. tabular: features in units of their own, scaled one by one if "
            "their spreads are unequal; image: pictures keep their shape; text, embeddings: one "
            "scale for all features.  [default: by the input]"
        ),
    ] = None,
    form: Format = None,
    columns: Annotated[
        list[str] | None,
        typer.Option(metavar="A,B,...", help="Features, or the name of one array.  [default: all]"),
    ] = None,
    drop: Annotated[
        list[str] | None, typer.Option(metavar="A,B,...", help="Columns to leave out.")
    ] = None,
    label_column: Annotated[
        str | None, typer.Option(metavar="NAME", help="Known classes; they only score the result.")
    ] = None,
    id_column: Annotated[
        str | None, typer.Option(metavar="NAME", help="Names of the rows.")
    ] = None,
    text_column: Annotated[
        str | None, typer.Option(metavar="NAME", help="Cluster by the text in this column.")
    ] = None,
    missing: Annotated[
        Literal["error", "mean"], typer.Option(help="What to do about missing values.")
    ] = "error",
    size: Annotated[
        str | None, typer.Option(metavar="HxW", help="Resize pictures, as 64x64.")
    ] = None,
    mode: Annotated[
        Literal["auto", "grey", "rgb"], typer.Option(help="Of pictures; auto is grey if all are.")
    ] = "auto",
    max_words: Annotated[
        int, typer.Option(min=1, help="Words that tf-idf of texts counts, the most frequent.")
    ] = 2000,
    embed: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL", help="Embed texts by this sentence-transformers model, not by tf-idf."
        ),
    ] = None,
    scale: Annotated[
        Literal["auto", "none", "global", "standard"] | None,
        typer.Option(
            help="Standardise features: each (standard), all by one number (global), or as auto "
            "decides.  [default: by the preset]"
        ),
    ] = None,
    encoder: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|WIDTHS",
            help="auto, mlp, residual, conv (pictures), or widths as 500,500,10.",
        ),
    ] = None,
    augment: Annotated[
        Literal["image", "noise", "dropout"] | None,
        typer.Option(help="Train on changed views of the rows, too."),
    ] = None,
    n_init: Annotated[
        int | None, typer.Option(min=1, help="Restarts, trained together; one is kept.")
    ] = None,
    choose: Annotated[
        Literal["agreement", "consensus"] | None,
        typer.Option(
            help="Keep the restart that agrees best with the others, or bring one to the consensus "
            "of all.  [default: agreement]"
        ),
    ] = None,
    pretrain_epochs: Annotated[
        int | None, typer.Option(min=0, help="Passes that train the autoencoder alone.")
    ] = None,
    epochs: Annotated[
        int | None, typer.Option(min=0, help="Passes of joint training, at most.")
    ] = None,
    batch_size: Annotated[int | None, typer.Option(min=1, help="Rows in a step.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the first restart.")] = 0,
    device: Annotated[str, typer.Option(help="Where to compute: auto, cpu, cuda, ...")] = "auto",
    precision: Annotated[
        Literal["float32", "tf32", "bfloat16", "float64"] | None,
        typer.Option(help="Of training.  [default: float32]"),
    ] = None,
    checkpoint_minutes: Annotated[
        float | None,
        typer.Option(metavar="MINUTES", help="Between checkpoints of a deep method.  [default: 5]"),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Go on with this fit, which was stopped, from a checkpoint."),
    ] = False,
    _config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            callback=_set_config,
            is_eager=True,
            exists=True,
            dir_okay=False,
            help="TOML file with any of these options, as n-init = 5; the command line wins.",
        ),
    ] = None,
    teams: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Under torchrun: teams of processes that share out the restarts; those of a team "
            "share the rows.  [default: as many as divide both]",
        ),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the run that is in the folder.")
    ] = False,
    report: Annotated[
        bool, typer.Option("--report", help="Write RUN/report.html, too; see ckm report.")
    ] = False,
    json_: AsJson = False,
    quiet: Quiet = False,
    _debug: Debug = False,
) -> None:
    """Cluster a file or a folder.

    Writes a folder RUN with the model, labels.csv and how the input was prepared, for ckm predict,
    ckm report, ckm info and ckm export. Ctrl-C keeps what is trained so far. A deep method that
    was stopped, in whatever way, goes on by the same command with --resume, and ends as it would
    have; its checkpoints lie in .RUN.checkpoints beside RUN until RUN is written. Under torchrun,
    as torchrun --nproc-per-node 4 -m concrete_kmeans fit ..., processes share the work, and go on
    from the checkpoint when one of them is lost (--max-restarts).

    \b
    ckm fit photos/ -k 20 -o run --size 64x64 --report
    ckm fit table.csv -k auto -o run --label-column species
    ckm fit reviews.txt -k 10 -o run
    """  # noqa: D301 - click keeps the lines that follow the backspace
    chosen = _n_clusters(n_clusters, k_range)
    given = {
        "encoder": None if encoder is None else checked("--encoder", lambda: _encoder(encoder)),
        "augment": augment,
        "scale": scale,
        "n_init": n_init,
        "choose": choose,
        "pretrain_epochs": pretrain_epochs,
        "epochs": epochs,
        "batch_size": batch_size,
        "precision": precision,
        "checkpoint_every": checkpoint_minutes,
    }
    parsed = None if size is None else checked("--size", lambda: _size(size))
    from concrete_kmeans import processes
    from concrete_kmeans.cli import fitting
    from concrete_kmeans.cli.runs import Kept
    from concrete_kmeans.data import resolve_device
    from concrete_kmeans.readers import Options
    from concrete_kmeans.validation import check_positive

    checked("--device", lambda: resolve_device(device, None))
    if checkpoint_minutes is not None:
        checked("--checkpoint-minutes", lambda: check_positive("it", checkpoint_minutes))
    options = Options(
        form,
        _names(columns),
        _names(drop),
        label_column,
        id_column,
        text_column,
        missing,
        parsed,
        mode,
        max_words,
        embed,
    )
    parameters = {name: value for name, value in given.items() if value is not None}
    parameters |= {"random_state": seed, "device": device}
    # torchrun repeats the command as it was when it starts the processes again
    resume = resume or (processes.restarted() and bool(Kept(out)))
    request = fitting.Request(
        *(source, out, chosen, method, preset, options, parameters, overwrite, report, resume),
        up_to_rows=k_range is None,
    )
    checked("--method", request.check_method)
    request.check_place()
    with processes.started(device), processes.teams(teams):  # all have passed the checks
        _run(request, json_=json_, quiet=quiet)


def _run(request: Request, *, json_: bool, quiet: bool) -> None:
    """Fit and show; of many processes, only the first shows anything."""
    from concrete_kmeans import processes
    from concrete_kmeans.cli import fitting

    first, out = processes.first(), request.out
    try:
        with (
            _terminable(),
            warnings_told(show=first) as warnings,
            _progress(show=first and not quiet) as (tell, callback),
        ):
            fitted = fitting.run(request, tell=tell, callback=callback, warnings=warnings)
    except KeyboardInterrupt as stop:  # before there was anything to write
        number = getattr(stop, "signal", signal.SIGINT)
        raise _stopped(number, goes_on=bool(request.kept), show=first) from None
    if fitted is None:
        return
    if json_:
        typer.echo(as_json(_record(fitted, out)))
    elif not quiet:
        _summarise(fitted, out, report=request.report)
    if fitted.signal is not None:
        holds = f"; {printable(str(out))} holds what was trained so far"
        raise _stopped(fitted.signal, holds, goes_on=bool(request.kept))


@contextmanager
def _terminable() -> Iterator[None]:
    """While it lasts, SIGTERM is an exception, as Ctrl-C is: it leaves nothing half done."""
    from concrete_kmeans.checkpoints import Stopped

    def stop(number: int, _frame: object) -> None:
        raise Stopped(number)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _stopped(number: int, holds: str = "", *, goes_on: bool, show: bool = True) -> typer.Exit:
    """Say what is left and how to go on; the exit code is that of a process the signal ended."""
    how = "; the same command with --resume goes on" if goes_on else ""
    if show:
        typer.echo(f"ckm: interrupted{holds}{how}", err=True)
    return typer.Exit(128 + number)


# --------------------------------------------------------------------------------------------------
# options


def _n_clusters(asked: str, k_range: str | None) -> int | tuple[int, int]:
    if asked != "auto":
        if k_range is not None:
            raise typer.BadParameter("only -k auto chooses from it", param_hint="--k-range")
        if not asked.isdecimal() or int(asked) < 1:
            raise typer.BadParameter(
                f"must be a whole number of at least 1, or auto, got {asked!r}", param_hint="-k"
            )
        return int(asked)
    low, _, high = (k_range or K_RANGE).partition(":")
    if not (low.isdecimal() and high.isdecimal() and 2 <= int(low) < int(high)):
        raise typer.BadParameter(
            f"must be two numbers that rise, as 2:20, the first at least 2, got {k_range!r}",
            param_hint="--k-range",
        )
    return int(low), int(high)


def _encoder(text: str) -> str | tuple[int, ...]:
    if text in ENCODERS:
        return text
    widths = [part.strip() for part in text.split(",")]
    if not all(width.isdecimal() and int(width) for width in widths):
        raise ValueError(f"must be one of {', '.join(ENCODERS)}, or widths as 500,10, got {text!r}")
    return tuple(map(int, widths))


def _size(text: str) -> tuple[int, int]:
    height, _, width = text.lower().partition("x")
    if not (height.isdecimal() and width.isdecimal() and int(height) and int(width)):
        raise ValueError(f"must be a height and a width, as 64x48, got {text!r}")
    return int(height), int(width)


def _names(given: list[str] | None) -> list[str]:
    """Names with commas between; a name that has one stands in double quotes, as in a CSV file."""
    return [name for line in csv.reader(given or []) for name in line]


# --------------------------------------------------------------------------------------------------
# what is shown


@contextmanager
def _progress(*, show: bool) -> Iterator[tuple[Callable[[str], None], Callable[[Event], None]]]:
    """Bars on stderr when that is a terminal: what runs, how fast, how long still, its losses.

    Yields what is told the step of the work, and the callback of the training.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.progress import TimeRemainingColumn as Remaining

    columns = (
        TextColumn("{task.description:>10}"),
        BarColumn(bar_width=12),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
        Remaining(),
        TextColumn("{task.fields[losses]}"),
    )
    disable = not (show and sys.stderr.isatty())
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=disable, transient=True) as bar:
        tasks: dict[str, Any] = {}

        def begin(name: str, total: float | None) -> Any:
            for task in tasks.values():
                bar.update(task, visible=False)
            tasks[name] = bar.add_task(name, total=total, rate="", losses="")
            return tasks[name]

        def tell(step: str) -> None:
            begin(step, None)

        def draw(event: Event) -> None:
            task = tasks.get(event.phase)
            if task is None or event.step < bar.tasks[task].completed:
                task = begin(event.phase, event.n_steps)
            speed = bar.tasks[task].speed
            bar.update(
                task,
                completed=event.step,
                rate=f"{event.step}/{event.n_steps} steps" + (f", {speed:.0f}/s" if speed else ""),
                losses=_losses(event, console.width - BESIDE_LOSSES),
            )

        yield tell, draw


def _losses(event: Event, room: int) -> str:
    """Mean of each part of the loss over the restarts that still run, as many as there is room."""
    running = [r for r, runs in enumerate(event.running) if runs]
    if not running:
        return ""
    text = ""
    for name, values in event.losses.items():
        mean = sum(values[r] for r in running) / len(running)
        longer = f"{text}, {name} {mean:.4g}".removeprefix(", ")
        if len(longer) > room:
            break
        text = longer
    return text


def _record(fitted: Fitted, out: Path) -> dict[str, Any]:
    notes, estimator = fitted.notes, fitted.estimator
    return {
        "run": str(out),
        "method": notes.method,
        "preset": notes.preset,
        "n_rows": len(fitted.data.ids),
        "n_features": int(estimator.n_features_in_),
        "n_clusters": len(fitted.sizes),
        "sizes": fitted.sizes,
        "seconds": notes.seconds,
        "scores": notes.scores,
        "label_scores": notes.label_scores,
        "k_curve": notes.k_curve,
        "interrupted": notes.interrupted,
        "warnings": notes.warnings,
        "notes": fitted.data.notes,
    }


def _summarise(fitted: Fitted, out: Path, *, report: bool) -> None:
    from concrete_kmeans.cli.tables import rows_in, scores_line, sizes_table

    notes = fitted.notes
    n, k = len(fitted.data.ids), len(fitted.sizes)
    sentences = [*fitted.data.notes]
    if notes.k_curve is not None:
        sentences += notes.k_curve["reasons"]
    sentences.append(f"Without labels: {scores_line(notes.scores)}.")
    if notes.label_scores is not None:
        sentences.append(f"Against the labels: {scores_line(notes.label_scores)}.")
    files = "labels.csv, the model and report.html" if report else "labels.csv and the model"
    sentences.append(f"Written: {out} ({files}), after {notes.seconds:.1f} s of fitting.")
    typer.echo(f"{rows_in(n, k)}, by {notes.method} ({notes.preset})")
    say(sizes_table(fitted.sizes), *map(printable, sentences))
