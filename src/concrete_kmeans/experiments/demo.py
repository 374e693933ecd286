"""The demonstration: k-means, deep clustering and concrete k-means on scikit-learn's digits."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from rich.table import Table

from concrete_kmeans import datasets
from concrete_kmeans.experiments import deep, results, tables
from concrete_kmeans.experiments.results import Record

__all__ = ["METHODS", "TITLES", "explanation", "run", "to_table"]

METHODS = ("km", "ae+km", "dcn", "dec", "ckm")
TITLES = {method: deep.TITLES[method] for method in METHODS}


def run(
    n_seeds: int = 5,
    *,
    report: Path | None = None,
    advance: Callable[[str, int], None] = lambda _text, _fits: None,
) -> Record:
    """Cluster the digits with each method; the deep ones go on from the same autoencoders.

    ``report`` is a file for the report of the last, CKM.
    """
    digits = datasets.load("digits")
    X, y, k = digits.data, digits.target, digits.n_classes
    record: Record = {
        "data": {"name": digits.name, "n_samples": len(X), "n_clusters": k},
        "seeds": list(range(n_seeds)),
        "selection": "none: one run a seed, and every seed counts",
        "environment": results.environment(),
        "methods": {},
    }
    autoencoders = None
    for method in METHODS:
        title = TITLES[method]
        advance(title, 0)
        if method == "km":
            record["methods"][method] = deep.fit_kmeans(X, y, k, n_seeds)
        else:
            fitted, seconds = deep.fit(
                method,
                X,
                k,
                n_seeds,
                pretrained=autoencoders,
                advance=partial(advance, title, 0),
            )
            record["methods"][method] = deep.record_of(fitted, y, seconds)
            autoencoders = autoencoders or fitted
            if report is not None and method == METHODS[-1]:
                shape = digits.image_shape
                fitted.report(report, X, classes=y, image_shape=shape, title="Handwritten digits")
        advance(title, n_seeds)
    return record


def to_table(record: Record) -> Table:
    """Mean and spread of each method, for the terminal."""
    data, n_seeds = record["data"], len(record["seeds"])
    title = f"{data['name']}: {data['n_samples']} points, k={data['n_clusters']}, n={n_seeds} seeds"
    table = tables.terminal(title, ["mean±std", "NMI", "ARI", "ACC", "purity", "seconds"])
    for method, cell in record["methods"].items():
        summary = {key: (100 * v["mean"], 100 * v["std"]) for key, v in cell["summary"].items()}
        scores = [tables.spread(*summary[key], 1) for key in ("nmi", "ari", "acc", "purity")]
        table.add_row(TITLES[method], *scores, f"{cell['seconds']:.1f}")
    return table


def explanation(record: Record) -> list[str]:
    """What the table shows, how its figures were chosen, and where to read on."""
    n = len(record["seeds"])
    return [
        f"Seconds are for all {n} seeds, which train together; DCN, DEC and CKM go on from the "
        "autoencoders of AE+KM.",
        "Labels score these runs and have no other part in them: every seed counts "
        f"(n={n}), and none is chosen.",
        "Read on: README.md, docs/deep.md; `ckm reproduce table1` is k-means without a network.",
    ]
