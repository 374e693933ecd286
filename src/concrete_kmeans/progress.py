"""A progress bar for the training loop, on a terminal only."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

from concrete_kmeans.training import Callback, Event

__all__ = ["progress_bar"]


@contextlib.contextmanager
def progress_bar(verbose: int, phase: str, n_steps: int) -> Iterator[list[Callback]]:
    """Callbacks that draw a bar on standard error; none if it is not a terminal or not wanted."""
    if not verbose or not sys.stderr.isatty():
        yield []
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = [
        TextColumn("{task.description:>9}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total} steps"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[loss]}"),
    ]
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(phase, total=n_steps, loss="")

        def draw(event: Event) -> None:
            losses = event.losses["loss"]
            loss = f"loss {sum(losses) / len(losses):.4g}"
            progress.update(task, completed=event.step, loss=loss)

        yield [draw]
