"""``ckm demo``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from concrete_kmeans.cli.common import Debug, app, progress, say


@app.command()
def demo(
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each method.")] = 5,
    out: Annotated[
        Path | None, typer.Option(dir_okay=False, help="Write the results to this JSON file.")
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option(dir_okay=False, help="Write a report of CKM's run to this HTML file."),
    ] = None,
    _debug: Debug = False,
) -> None:
    """Cluster the handwritten digits that come with scikit-learn, in a minute or two."""
    from concrete_kmeans.experiments import demo as experiment
    from concrete_kmeans.experiments import results

    with progress(len(experiment.METHODS) * seeds) as advance:
        record = experiment.run(seeds, report=report, advance=advance)
    if out is not None:
        results.save(out, record)
    told = [] if report is None else [f"Open {report} to see the clusters of CKM's run."]
    say(experiment.to_table(record), *experiment.explanation(record), *told)
