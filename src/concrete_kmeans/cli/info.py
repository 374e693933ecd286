"""``ckm info``: what is in a model folder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from concrete_kmeans.cli.common import AsJson, Debug, RunFolder, app, as_json, printable, say

if TYPE_CHECKING:
    from concrete_kmeans.storage import Stored

__all__ = ["info"]

#: What is shown of ``config.json``, and of the notes of a run in it.
CONFIG = ("class", "package_version", "format_version", "n_features", "feature_shape")
NOTES = (
    "method",
    "preset",
    "input",
    "seconds",
    "scores",
    "label_scores",
    "k_curve",
    "interrupted",
    "warnings",
)


@app.command()
def info(run: RunFolder, json_: AsJson = False, _debug: Debug = False) -> None:
    """Show what a run holds, and check that it is whole."""
    from concrete_kmeans import storage
    from concrete_kmeans.cli.tables import rows_in, sizes_table

    stored = storage.read(run)
    try:
        record = _record(stored)
        sentences = _sentences(record)
    except (KeyError, TypeError, AttributeError, IndexError, RuntimeError, ValueError) as error:
        raise ValueError(
            f"{run / storage.CONFIG} is damaged ({type(error).__name__}: {error})"
        ) from error
    if json_:
        typer.echo(as_json(record))
        return
    n, k = sum(record["sizes"]), record["n_clusters"]
    typer.echo(f"{printable(str(run))}: {rows_in(n, k)}")
    say(sizes_table(record["sizes"]), *map(printable, sentences))


def _record(stored: Stored) -> dict[str, Any]:
    config, tensors = stored.config, stored.tensors
    notes, K = config.get("run", {}), tensors["centers"].shape[-2]
    sizes = tensors["labels"].bincount().tolist()
    if not 1 <= len(sizes) <= K:
        raise ValueError(f"labels of {len(sizes)} clusters, and centres of {K}")
    return {
        **{name: config[name] for name in CONFIG if name in config},
        "n_clusters": K,
        "sizes": sizes + [0] * (K - len(sizes)),
        "n_restarts": len(config.get("restarts", [])),
        "parameters": config["parameters"],
        **{name: notes[name] for name in NOTES if name in notes},
        "reader": notes.get("preparation", {}).get("reader"),
    }


def _sentences(record: dict[str, Any]) -> list[str]:
    from concrete_kmeans.cli.tables import scores_line

    said = [
        f"{record['class']} of concrete-kmeans {record['package_version']}, "
        f"{record['n_features']} features, restarts: {record['n_restarts']}.",
    ]
    if record.get("input"):
        said.append(f"Fitted on {record['input']['path']} in {record['seconds']:.1f} s.")
    if record.get("interrupted"):
        said.append("The fit was interrupted.")
    if record.get("scores"):
        said.append(f"Without labels: {scores_line(record['scores'])}.")
    if record.get("label_scores"):
        said.append(f"Against the labels: {scores_line(record['label_scores'])}.")
    said += [f"Warning: {text}" for text in record.get("warnings", [])]
    return [*said, _parameters(record)]


def _parameters(record: dict[str, Any]) -> str:
    """Those that are not the defaults; all, if the class is of another version."""
    from concrete_kmeans import estimators
    from concrete_kmeans.cli.fitting import METHODS

    known = record["class"] in {method.name for method in METHODS.values()}
    defaults = getattr(estimators, record["class"])().get_params(deep=False) if known else {}
    given = {
        name: tuple(value["items"]) if isinstance(value, dict) and "items" in value else value
        for name, value in record["parameters"].items()
    }
    changed = [
        f"{name}={value}"
        for name, value in given.items()
        if name not in defaults or value != defaults[name]
    ]
    return f"Parameters besides the defaults: {', '.join(changed)}."
