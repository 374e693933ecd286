"""Tables and lines that several commands show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.table import Table

__all__ = ["rows_in", "scores_line", "sizes_table"]

#: Clusters that a table lists; of more, the largest.
MAX_LISTED = 20
#: Names of scores as people write them.
TITLES = {"nmi": "NMI", "ari": "ARI", "acc": "ACC"}


def rows_in(n: int, k: int) -> str:
    """How many rows, and clusters of them.

    >>> rows_in(1797, 1)
    '1,797 rows in 1 cluster'
    """
    return f"{n:,} row{'s' * (n != 1)} in {k} cluster{'s' * (k != 1)}"


def sizes_table(sizes: Sequence[int]) -> Table:
    """Clusters and their sizes, the largest first."""
    table = Table(box=None, pad_edge=False)
    for name in ("cluster", "rows", "share"):
        table.add_column(name, justify="right")
    order = sorted(range(len(sizes)), key=lambda k: -sizes[k])
    for k in order[:MAX_LISTED]:
        table.add_row(str(k), f"{sizes[k]:,}", f"{100 * sizes[k] / sum(sizes):.1f} %")
    if left := order[MAX_LISTED:]:
        rows = sum(sizes[k] for k in left)
        table.add_row(f"{len(left)} more", f"{rows:,}", f"{100 * rows / sum(sizes):.1f} %")
    return table


def scores_line(scores: Mapping[str, float]) -> str:
    """Scores with commas between.

    >>> scores_line({"nmi": 0.81234, "effective_clusters": 9.9, "inertia": 461234.5})
    'NMI 0.812, effective clusters 9.9, inertia 461,234'
    """
    return ", ".join(
        f"{TITLES.get(name, name.replace('_', ' '))} {_figure(value)}"
        for name, value in scores.items()
    )


def _figure(value: float) -> str:
    """Three digits, more of a large number; a power of ten only where there is no reading it."""
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e9 else f"{value:.3g}"
