"""The demonstration: three ways to k-means on the digits that come with scikit-learn."""

from __future__ import annotations

from collections.abc import Callable

from rich.table import Table

from concrete_kmeans import datasets, metrics
from concrete_kmeans.data import resolve_device
from concrete_kmeans.experiments import results, shallow, tables
from concrete_kmeans.experiments.results import Record

__all__ = ["METHODS", "TITLES", "explanation", "run", "to_table"]

METHODS = ("km", "lloyd", "ckm")
TITLES = {
    "km": "KM, scikit-learn",
    "lloyd": "KM, exact Lloyd",
    "ckm": "CKM",
}


def run(
    n_seeds: int = 5, *, advance: Callable[[str, int], None] = lambda _text, _fits: None
) -> Record:
    """Cluster the digits with each method, from the same k-means++ centres in each seed."""
    digits = datasets.load("digits")
    device = str(resolve_device("auto", None))
    record: Record = {
        "data": {
            "name": digits.name,
            "n_samples": len(digits.data),
            "n_clusters": digits.n_classes,
        },
        "seeds": list(range(n_seeds)),
        "selection": "none: one run a seed, and every seed counts",
        "environment": results.environment(),
        "methods": {},
    }
    for method in METHODS:
        runs = []
        for seed in range(n_seeds):
            advance(TITLES[method], 0)
            runs.append(
                shallow.run(method, digits.data, digits.target, digits.n_classes, seed, device)
            )
            advance(TITLES[method], 1)
        summary = {key: value._asdict() for key, value in metrics.summarize(runs).items()}
        del summary["seed"]
        record["methods"][method] = {
            "parameters": shallow.parameters(method, device),
            "summary": summary,
            "runs": runs,
        }
    return record


def to_table(record: Record) -> Table:
    """Mean and spread of each method, for the terminal."""
    data, n_seeds = record["data"], len(record["seeds"])
    title = f"{data['name']}: {data['n_samples']} points, k={data['n_clusters']}, n={n_seeds} seeds"
    columns = ["mean±std", "NMI", "ARI", "ACC", "purity", "inertia", "s/fit"]
    table = tables.terminal(title, columns)
    for method, cell in record["methods"].items():
        summary = {key: (value["mean"], value["std"]) for key, value in cell["summary"].items()}
        scores = [tables.spread(*summary[key], 2) for key in ("nmi", "ari", "acc", "purity")]
        inertia = tables.spread(*summary["inertia"], 0)
        table.add_row(TITLES[method], *scores, inertia, f"{summary['seconds'][0]:.2f}")
    return table


def explanation(record: Record) -> list[str]:
    """What the table shows, how its figures were chosen, and where to read on."""
    return [
        "CKM moves the centres by gradients through sampled hard assignments and ends in hard "
        "k-means: from the same k-means++ centres, its inertia should be as low as Lloyd's, or "
        "lower.",
        f"Every seed is one run and counts (n={len(record['seeds'])}); none is selected. The two "
        "KM rows can part only where a point is equally far from two centres.",
        "Read on: README.md; `ckm reproduce table1` compares them on the data sets of the paper.",
    ]
