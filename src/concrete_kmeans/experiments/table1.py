"""Table 1 of the paper: shallow CKM solves k-means as well as k-means does, or not.

:func:`run` fills a JSON file cell by cell and goes on from whatever of it is finished.
:func:`to_markdown` and :func:`to_latex` read that file's content and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

import concrete_kmeans
from concrete_kmeans import datasets, metrics
from concrete_kmeans.data import resolve_device
from concrete_kmeans.experiments import cells, results, shallow, tables
from concrete_kmeans.experiments.results import Record

__all__ = [
    "DATASETS",
    "METHODS",
    "PAPER",
    "compare",
    "dataset_names",
    "run",
    "to_latex",
    "to_markdown",
    "to_table",
    "verdict",
]

METHODS = ("ckm", "km")
SCORES = ("nmi", "ari", "acc")
PROTOCOL = {
    "features": "raw, float64",
    "n_clusters": "number of classes",
    "init": "sklearn.cluster.kmeans_plusplus(X, n_clusters, random_state=seed), for both methods",
    "selection": "none: one run a seed, and every seed counts",
    "inertia": "sum of squared distances to the centre of the label, in float64",
}
FORMAT = 1
#: Two inertias closer than this, in ratio, are called equal.
EQUAL = 1e-6

#: The paper's figures: NMI, ARI and ACC of shallow CKM, then of k-means++, as mean and deviation.
PAPER = {
    "pendigits": ".50 .04  .33 .05  .49 .05   .51 .04  .34 .05  .49 .05",
    "dig44": ".33 .04  .20 .05  .40 .05   .33 .04  .20 .05  .40 .05",
    "vehicle": ".15 .03  .09 .03  .40 .03   .15 .03  .09 .03  .40 .03",
    "letter": ".35 .01  .13 .01  .26 .01   .35 .01  .13 .01  .25 .01",
    "segment": ".41 .05  .27 .05  .46 .04   .41 .05  .27 .05  .46 .04",
    "waveform": ".35 .04  .27 .04  .57 .05   .36 .01  .25 .01  .52 .02",
    "vowel": ".41 .01  .21 .01  .36 .02   .42 .01  .21 .01  .36 .02",
    "spambase": ".10 .03  .09 .05  .66 .04   .10 .03  .09 .05  .66 .04",
    "twonorm": ".84 .00  .91 .00  .98 .00   .84 .01  .91 .01  .98 .00",
    "satimage": ".58 .05  .48 .08  .64 .07   .58 .05  .48 .08  .64 .07",
}
DATASETS = (*PAPER, "digits")
#: How the paper writes a name, where that differs.
IN_PAPER = {"satimage": "sat"}


def dataset_names(text: str) -> tuple[str, ...]:
    """Names of data sets, separated by commas, in the order of the table.

    >>> dataset_names("sat,vowel")
    ('vowel', 'satimage')
    """
    aliases = {alias: name for name, alias in IN_PAPER.items()}
    asked = [aliases.get(part.strip(), part.strip()) for part in text.split(",")]
    return cells.pick(",".join(asked), DATASETS, "data sets of table 1")


# --------------------------------------------------------------------------------------------------
# running


@dataclass(frozen=True)
class _Run:
    """What one call of :func:`run` was asked for, resolved."""

    seeds: tuple[int, ...]
    device: str
    data_home: Path | None
    force: bool
    advance: Callable[[str, int], None]

    def config(self, method: str) -> Record:
        return {
            "protocol": PROTOCOL,
            "seeds": list(self.seeds),
            "method": method,
            "parameters": shallow.parameters(method, self.device),
            "concrete_kmeans": concrete_kmeans.__version__,
        }


def run(
    out: Path,
    *,
    names: Sequence[str] = DATASETS,
    n_seeds: int = 15,
    data_home: Path | None = None,
    device: str = "auto",
    force: bool = False,
    advance: Callable[[str, int], None] = lambda _text, _fits: None,
) -> Record:
    """Fill ``table1.json`` in the folder ``out``, and write the same as Markdown and LaTeX.

    A cell, one method on one data set, is in the file as soon as it is finished. Cells of the same
    configuration and data are taken as they are; rows that were not asked for stay.

    Parameters
    ----------
    out : Path
        Folder of the results.
    names : sequence of str
        Data sets to run, of :data:`DATASETS`.
    n_seeds : int
        Seeds 0 to ``n_seeds - 1``.
    data_home : Path or None
        As in :func:`concrete_kmeans.datasets.load`.
    device : str
        Where CKM runs.
    force : bool
        Compute finished cells again.
    advance : callable
        Told what goes on and how many fits are done since it was last told.

    Returns
    -------
    dict
        What the JSON file holds.
    """
    asked = _Run(
        tuple(range(n_seeds)), str(resolve_device(device, None)), data_home, force, advance
    )
    record = cells.open_table(out / "table1.json", "table 1", FORMAT)
    configs = {method: asked.config(method) for method in METHODS}
    digests = {method: results.digest(config) for method, config in configs.items()}
    machine = results.environment()
    record["current"] = digests
    record["configs"] |= {digests[method]: config for method, config in configs.items()}
    record["environments"] |= {results.digest(machine): machine}
    for name in names:
        for row in _fill(name, record["rows"].get(name), asked, digests, results.digest(machine)):
            record["rows"][name] = row
            _publish(out, record)
    return _publish(out, record)


def _fill(
    name: str, old: Record | None, asked: _Run, digests: dict[str, str], machine: str
) -> Iterator[Record]:
    """Yield the row each time that it holds one more finished cell."""
    done = {} if old is None or asked.force else dict(old["methods"])
    row: Record = {"paper": _paper(name), "data": None, "missing": None, "compared": None}
    row["methods"] = done
    asked.advance(f"{name}: loading", 0)
    try:
        X, y, row["data"] = _data(name, asked.data_home)
    except datasets.DataNotFoundError:
        asked.advance(f"{name}: no data", len(METHODS) * len(asked.seeds))
        if old is not None and done:
            return  # finished when the data were there
        # Not the error's own text: that one names folders of this machine.
        row["missing"] = (
            f"{name} is not publicly distributed: the row fills when a copy, {name}.csv.gz or "
            f"{name}.csv, is in the data folder"
        )
        yield row
        return
    if old is not None and old["data"] != row["data"]:
        done.clear()
    for method in METHODS:
        what = f"{name}: {shallow.TITLES[method]}"
        if done.get(method, {}).get("config") == digests[method]:
            asked.advance(f"{what}, finished before", len(asked.seeds))
            continue
        asked.advance(what, 0)
        runs = []
        for seed in asked.seeds:
            runs.append(shallow.run(method, X, y, row["data"]["n_clusters"], seed, asked.device))
            asked.advance(what, 1)
        done[method] = {
            "config": digests[method],
            "environment": machine,
            "finished": results.now(),
            "summary": {
                key: value._asdict()
                for key, value in metrics.summarize(runs).items()
                if key != "seed"
            },
            "runs": runs,
        }
        row["methods"] = {key: done[key] for key in METHODS if key in done}
        row["compared"] = compare(row)
        yield row


def _data(name: str, data_home: Path | None) -> tuple[Any, Any, Record]:
    """Points, classes, and what tells whether later data are the same."""
    loaded = datasets.load(name, data_home)
    X, y = np.ascontiguousarray(loaded.data, dtype=np.float64), loaded.target
    n_samples, n_features = X.shape
    return (
        X,
        y,
        {
            "n_samples": n_samples,
            "n_features": n_features,
            "n_clusters": loaded.n_classes,
            "sha256": cells.content_digest(X, y),
        },
    )


def _paper(name: str) -> Record | None:
    if name not in PAPER:
        return None
    figures = iter(map(float, PAPER[name].split()))
    return {
        method: {score: {"mean": next(figures), "std": next(figures)} for score in SCORES}
        for method in METHODS
    }


def compare(row: Record) -> Record | None:
    """Inertia of CKM over that of k-means; None unless both ran the same seeds."""
    runs = [row["methods"].get(method, {}).get("runs", []) for method in METHODS]
    seeds = [[run["seed"] for run in cell] for cell in runs]
    if not seeds[0] or seeds[0] != seeds[1]:
        return None
    ckm, km = (np.array([run["inertia"] for run in cell]) for cell in runs)
    ratios = _ratio(ckm, km)
    return {
        "ratio_of_means": float(_ratio(ckm.mean(), km.mean())),
        "best_seed": float(ratios.min()),
        "worst_seed": float(ratios.max()),
        "seeds_lower": int((ratios < 1 - EQUAL).sum()),
        "seeds_equal": int((abs(ratios - 1) <= EQUAL).sum()),
        "seeds_higher": int((ratios > 1 + EQUAL).sum()),
    }


def _ratio(a: Any, b: Any) -> Any:
    """Ratio of a to b, 1 where both are zero (as many clusters as distinct points)."""
    tiny = np.finfo(np.float64).tiny
    return np.maximum(a, tiny) / np.maximum(b, tiny)


def _publish(out: Path, record: Record) -> Record:
    """Write the three files, without configurations and environments that no cell has any more."""
    rows = {name: record["rows"][name] for name in DATASETS if name in record["rows"]}
    finished = (cell for row in rows.values() for cell in row["methods"].values())
    current = record["current"].values()
    kept = cells.without_unused({**record, "rows": rows}, finished, *current)
    results.save(out / "table1.json", kept)
    results.write_text(out / "table1.md", to_markdown(kept))
    results.write_text(out / "table1.tex", to_latex(kept))
    return kept


# --------------------------------------------------------------------------------------------------
# rendering: from the record alone


def score_table(record: Record, digits: int = 3) -> tables.Cells:
    """Header and rows of the scores, two rows a data set, next to the paper's figures."""
    header = ["data set", "method", "seeds", "NMI", "ARI", "ACC", "purity"]
    header += [f"paper {score.upper()}" for score in SCORES]
    rows = []
    for name, row in record["rows"].items():
        for method in METHODS:
            cell = row["methods"].get(method)
            ours = ["—"] * 5
            if cell is not None:
                scores = (cell["summary"][key] for key in (*SCORES, "purity"))
                ours = [
                    str(len(cell["runs"])),
                    *(tables.spread(s["mean"], s["std"], digits) for s in scores),
                ]
            theirs = ["—"] * 3
            if row["paper"] is not None:
                scores = (row["paper"][method][score] for score in SCORES)
                theirs = [tables.spread(s["mean"], s["std"], 2) for s in scores]
            label = _label(record, name) if method == METHODS[0] else ""
            rows.append([label, shallow.TITLES[method], *ours, *theirs])
    return header, rows


def inertia_table(record: Record) -> tables.Cells:
    """Header and rows of the inertias, one row a data set."""
    header = ["data set", "n, d, k", "inertia CKM", "inertia k-means++", "ratio of means"]
    header += ["worst seed", "seeds lower/equal/higher", "s/fit CKM", "s/fit k-means++"]
    rows = []
    for name, row in record["rows"].items():
        line = [_label(record, name), *["—"] * (len(header) - 1)]
        if (data := row["data"]) is not None:
            line[1] = f"{data['n_samples']}, {data['n_features']}, {data['n_clusters']}"
        for i, method in enumerate(METHODS):
            if method in row["methods"]:
                summary = row["methods"][method]["summary"]
                line[2 + i] = _number(summary["inertia"]["mean"])
                line[7 + i] = f"{summary['seconds']['mean']:.2f}"
        if (compared := row["compared"]) is not None:
            line[4] = f"{compared['ratio_of_means']:.6f}"
            line[5] = f"{compared['worst_seed']:.6f}"
            line[6] = "/".join(
                str(compared[f"seeds_{which}"]) for which in ("lower", "equal", "higher")
            )
        rows.append(line)
    return header, rows


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1e5 else f"{value:.6g}"


def verdict(record: Record) -> list[str]:
    """Sentences that state plainly how the two methods compare."""
    rows = {name: row for name, row in record["rows"].items() if row["compared"] is not None}
    if not rows:
        return ["No data set has results of both methods."]
    means = [row["compared"]["ratio_of_means"] for row in rows.values()]
    lower = sum(ratio < 1 - EQUAL for ratio in means)
    higher = sum(ratio > 1 + EQUAL for ratio in means)
    equal = len(means) - lower - higher
    seeds = {
        which: sum(row["compared"][f"seeds_{which}"] for row in rows.values())
        for which in ("lower", "equal", "higher")
    }
    worst = max(rows, key=lambda name: rows[name]["compared"]["worst_seed"])
    gap, score, where = max(_score_gaps(rows), key=lambda found: abs(found[0]))
    return [
        f"Mean inertia of CKM against k-means++ on {len(rows)} data sets: lower on {lower}, "
        f"equal (to one in a million) on {equal}, higher on {higher}.",
        f"Single seeds, {sum(seeds.values())} in all: lower in {seeds['lower']}, "
        f"equal in {seeds['equal']}, higher in {seeds['higher']}; the worst ratio of any seed is "
        f"{rows[worst]['compared']['worst_seed']:.6f} ({worst}).",
        f"Largest difference between the mean scores, CKM minus k-means++: {gap:+.3f} "
        f"({score if score == 'purity' else score.upper()}, {where}).",
    ]


def _score_gaps(rows: Record) -> Iterator[tuple[float, str, str]]:
    for name, row in rows.items():
        for score in (*SCORES, "purity"):
            ckm, km = (row["methods"][method]["summary"][score]["mean"] for method in METHODS)
            yield ckm - km, score, name


def to_markdown(record: Record) -> str:
    """The record as a page of Markdown."""
    parts = ["# Table 1: shallow CKM and k-means++\n", *(f"{text}\n" for text in _preface(record))]
    parts += ["## Scores\n", tables.markdown(*score_table(record), left=2)]
    parts += ["## Inertia\n", tables.markdown(*inertia_table(record))]
    parts += [f"{text}\n" for text in _footnotes(record)]
    parts += ["## Counts\n", "".join(f"- {text}\n" for text in verdict(record))]
    return "\n".join(parts)


def to_latex(record: Record) -> str:
    """The record as two LaTeX tables; needs the package booktabs."""
    notes = [*_preface(record), *_footnotes(record)]
    scores = " ".join(tables.escape(text) for text in notes)
    counts = " ".join(tables.escape(text) for text in verdict(record))
    return "\n".join(
        [
            "% Made by: ckm reproduce table1. Needs \\usepackage{booktabs}.",
            "\\begin{table*}\n\\centering\\footnotesize",
            tables.latex(*score_table(record), left=2) + f"\\caption{{{scores}}}",
            "\\end{table*}\n",
            "\\begin{table*}\n\\centering\\footnotesize",
            tables.latex(*inertia_table(record)) + f"\\caption{{{counts}}}",
            "\\end{table*}\n",
        ]
    )


def to_table(record: Record) -> Table:
    """Scores and ratios of inertia, for a terminal of 80 columns."""
    columns = ["data set", "method", "NMI", "ARI", "ACC", "purity", "ratio", "worst"]
    table = tables.terminal("Table 1", columns, left=2)
    compared = iter(row["compared"] for row in record["rows"].values())
    for label, method, _seeds, *scores in score_table(record, digits=2)[1]:
        ratios = ["", ""]
        if label:
            found = next(compared)
            keys = ("ratio_of_means", "worst_seed")
            ratios = ["—" if found is None else f"{found[key]:.4f}" for key in keys]
        table.add_row(label, method, *scores[:4], *ratios)
    ratio = (
        "ratio, worst: inertia of CKM over that of k-means++, of the means and of the worst seed"
    )
    table.caption = "\n".join(["mean±std over the seeds", ratio, *_footnotes(record)])
    return table


def _preface(record: Record) -> list[str]:
    return [
        "Shallow CKM (ConcreteKMeans) and scikit-learn's KMeans (n_init=1) on raw features in "
        "float64, k the number of classes. In each seed both start from the same k-means++ "
        "centres. Mean ± standard deviation over the seeds; every seed counts, none is selected.",
        "ACC matches clusters to classes one to one; in purity several clusters may share a "
        "class. The paper calls its ACC purity. It does not state its preprocessing, so its "
        "figures need not appear on raw features: the claim to reproduce is that, on the same "
        "data and protocol, CKM and k-means++ agree.",
        *(f"Computed with {words}." for words in cells.machines(record)),
    ]


def _label(record: Record, name: str) -> str:
    return " ".join([IN_PAPER.get(name, name), *(mark for mark, _ in _marks(record, name))])


def _marks(record: Record, name: str) -> Iterator[tuple[str, str]]:
    """Marks of a row and what they stand for."""
    row = record["rows"][name]
    if row["missing"] is not None:
        yield "†", row["missing"]
    if row["paper"] is None:
        yield "‡", "not in the paper"
    current = record["current"]
    if any(cell["config"] != current[method] for method, cell in row["methods"].items()):
        yield "§", "of another configuration than the rest of the table; see the JSON file"


def _footnotes(record: Record) -> list[str]:
    marks = dict.fromkeys(mark for name in record["rows"] for mark in _marks(record, name))
    return [f"{mark} {text}." for mark, text in marks]
