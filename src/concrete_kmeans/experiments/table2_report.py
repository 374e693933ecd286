"""Table 2 as Markdown, LaTeX, a picture and a table for the terminal, from its record alone."""

from __future__ import annotations

from collections.abc import Iterator

from rich.table import Table

from concrete_kmeans.experiments import cells, dots, tables
from concrete_kmeans.experiments.config import SCORES
from concrete_kmeans.experiments.results import Record

__all__ = ["sections", "to_latex", "to_markdown", "to_svg", "to_table", "verdict"]

NONE = "—"


def score_table(record: Record, name: str) -> tables.Cells:
    """Header and rows of one data set, next to the paper's figures."""
    header = ["method", *map(str.upper, SCORES), "kept: NMI / ARI / ACC", "runs", "seconds"]
    header += [f"paper {score.upper()}" for score in SCORES]
    row = record["rows"][name]
    lines = []
    for method, cell in row["methods"].items():
        kept = NONE
        if "kept" in cell and len(cell["runs"]) > 1:
            run = cell["runs"][cell["kept"]]
            kept = " / ".join(f"{100 * run[score]:.1f}" for score in SCORES)
        lines.append(
            [
                _label(record, method, cell),
                *(_percent(cell["summary"][score]) for score in SCORES),
                kept,
                str(len(cell["runs"])),
                f"{cell['seconds']:.0f}" if cell["seconds"] >= 10 else f"{cell['seconds']:.1f}",
                *_paper(row, method),
            ]
        )
    return header, lines


def target_table(record: Record) -> tables.Cells:
    """Header and rows of what was to be reached, and whether it was."""
    lines = []
    for target in record["targets"]:
        cell = record["rows"].get(target["dataset"], {}).get("methods", {}).get(target["method"])
        line = [target["title"]]
        for score in SCORES:
            wanted = f"≥ {target[score]:.1f}"
            if cell is None:
                line.append(f"{NONE} ({wanted})")
                continue
            found = 100 * cell["summary"][score]["mean"]
            by = target[score] - found
            how = "reached" if by <= 0 else f"missed by {by:.2f}"
            line.append(f"{found:.1f} ({wanted}: {how})")
        lines.append([*line, NONE if cell is None else str(len(cell["runs"]))])
    return ["target", *map(str.upper, SCORES), "runs"], lines


def verdict(record: Record) -> list[str]:
    """Sentences that count where our method is ahead and where it is not."""
    counted, titles = record["counted"], record["titles"]
    if not counted:
        return []
    ours, said = counted["method"], []
    best = [
        (_where(record, name, score), _mean(record, name, ours, score) - most)
        for name, score in _counted(record, ours)
        if (most := _best_of_paper(record["rows"][name], score)) is not None
    ]
    said += _count(f"{titles[ours]} against the best figure of any method in the paper", best)
    for other in counted["against"]:
        gaps = [
            (
                _where(record, name, score),
                _mean(record, name, ours, score) - _mean(record, name, other, score),
            )
            for name, score in _counted(record, ours, other)
        ]
        said += _count(f"{titles[ours]} against our own {titles[other]}", gaps)
    for other in counted["against"]:
        gaps = [
            (
                _where(record, name, score),
                _mean(record, name, other, score) - paper[other][score]["mean"] / 100,
            )
            for name, score in _counted(record, other)
            if other in (paper := record["rows"][name]["paper"])
        ]
        said += _count(f"Our {titles[other]} against the paper's", gaps)
    return said


def _count(what: str, gaps: list[tuple[str, float]]) -> list[str]:
    if not gaps:
        return []
    ahead = sum(gap > 0 for _, gap in gaps)
    behind = [f"{where} by {-100 * gap:.1f}" for where, gap in gaps if gap <= 0]
    text = f"{what}: ahead in {ahead} of {len(gaps)} cells"
    return [f"{text}; behind in {', '.join(behind)}." if behind else f"{text}."]


def _counted(record: Record, *methods: str) -> Iterator[tuple[str, str]]:
    """Data sets that count and hold all these methods, each with each score."""
    for name in record["counted"]["datasets"]:
        if set(methods) <= record["rows"].get(name, {}).get("methods", {}).keys():
            for score in SCORES:
                yield name, score


def _where(record: Record, name: str, score: str) -> str:
    return f"{record['rows'][name]['title'].partition(',')[0]} {score.upper()}"


def _mean(record: Record, name: str, method: str, score: str) -> float:
    return float(record["rows"][name]["methods"][method]["summary"][score]["mean"])


def _best_of_paper(row: Record, score: str) -> float | None:
    found = [figures[score]["mean"] / 100 for figures in row["paper"].values()]
    return max(found) if found else None


# --------------------------------------------------------------------------------------------------
# pages


def sections(record: Record, *, level: int = 2) -> str:
    """Tables, targets, counts and footnotes, under headings of a level."""
    mark = "#" * level
    parts = []
    for name, row in record["rows"].items():
        parts += [f"{mark} {row['title']}\n", f"{_about(row)}\n"]
        parts += [tables.markdown(*score_table(record, name))]
    if record["targets"]:
        parts += [f"{mark} Targets\n", tables.markdown(*target_table(record))]
    if said := verdict(record):
        parts += [f"{mark} Counts\n", "".join(f"- {text}\n" for text in said)]
    parts += [f"{text}\n" for text in (*_footnotes(record), *_made_by(record))]
    return "\n".join(parts)


def to_markdown(record: Record) -> str:
    """The record as a page of Markdown."""
    parts = [
        "# Table 2: deep clustering\n",
        f"{_preface()}\n",
        "![ACC of every seed](table2.svg)\n",
    ]
    return "\n".join([*parts, sections(record)])


def to_latex(record: Record) -> str:
    """The record as LaTeX tables, one a data set; needs the package booktabs."""
    parts = ["% Made by: ckm reproduce table2. Needs \\usepackage{booktabs}."]
    shown = [
        (score_table(record, name), f"{row['title']}. {_about(row)}")
        for name, row in record["rows"].items()
    ]
    notes = " ".join([_preface(), *_footnotes(record), *verdict(record)])
    if record["targets"]:
        shown.append((target_table(record), f"Targets. {notes}"))
    for table, caption in shown:
        parts += [
            "\\begin{table*}\n\\centering\\footnotesize",
            tables.latex(*table) + f"\\caption{{{tables.escape(caption)}}}",
            "\\end{table*}\n",
        ]
    return "\n".join(parts)


def to_table(record: Record) -> Table:
    """Mean and spread of each method, for the terminal."""
    header = ["", *map(str.upper, SCORES), "runs", "s", *(f"paper {s.upper()}" for s in SCORES)]
    table = tables.terminal("Table 2", header)
    for i, (name, row) in enumerate(record["rows"].items()):
        if i:
            table.add_row("")
        table.add_row(row["title"])
        for label, nmi, ari, acc, _kept, *rest in score_table(record, name)[1]:
            table.add_row(f"  {label}", nmi, ari, acc, *rest)
    table.caption = "\n".join(["mean±std over the seeds, in percent", *_footnotes(record)])
    return table


def to_svg(record: Record) -> str:
    """A dot a seed: ACC of every method on every data set, with the paper's mean."""
    panels = []
    for row in record["rows"].values():
        lines = [
            dots.Line(
                record["titles"].get(method, method),
                [100 * run["acc"] for run in cell["runs"]],
                row["paper"].get(method, {}).get("acc", {}).get("mean"),
            )
            for method, cell in row["methods"].items()
        ]
        panels.append(dots.Panel(row["title"], lines))
    return dots.picture(
        "ACC in percent: a dot a seed, a bar their mean, a ring the paper's", panels
    )


def _preface() -> str:
    return (
        'Mean ± standard deviation over the seeds, in percent; every seed counts. "kept" is the '
        "run that the estimator chose without labels. Seconds are for all seeds, which train "
        "together; pretraining counts for AE+KM, whose autoencoders the others go on from. ACC "
        "matches clusters to classes one to one."
    )


def _about(row: Record) -> str:
    data = row["data"]
    widths = "-".join(map(str, row["encoder"]))
    return f"{data['n_features']} features, k = {data['n_clusters']}, encoder {widths}."


def _made_by(record: Record) -> list[str]:
    settings = record["current"]
    total = sum(c["seconds"] for row in record["rows"].values() for c in row["methods"].values())
    return [
        f"Computed on {settings['device']} in {settings['precision']}, {total:.0f} seconds of "
        "fitting in all.",
        *(f"Computed with {words}." for words in cells.machines(record)),
    ]


def _percent(value: Record) -> str:
    if value["n"] == 1:
        return f"{100 * value['mean']:.1f}"
    return tables.spread(100 * value["mean"], 100 * value["std"], 1)


def _paper(row: Record, method: str) -> list[str]:
    figures = row["paper"].get(method)
    if figures is None:
        return [NONE] * len(SCORES)
    return [tables.spread(figures[score]["mean"], figures[score]["std"], 1) for score in SCORES]


def _label(record: Record, method: str, cell: Record) -> str:
    title = record["titles"].get(method, method)
    return " ".join([title, *(mark for mark, _ in _marks(record, cell))])


def _marks(record: Record, cell: Record) -> Iterator[tuple[str, str]]:
    """Marks of a cell and what they stand for."""
    if any(run.get("status", "done") != "done" for run in cell["runs"]):
        yield "†", "some seeds collapsed or failed; the last good state of each counts"
    if record["configs"][cell["config"]]["run"] != record["current"]:
        yield "§", "of other seeds, device, precision or version than the rest; see the JSON file"


def _footnotes(record: Record) -> list[str]:
    found = [c for row in record["rows"].values() for c in row["methods"].values()]
    marks = dict.fromkeys(mark for cell in found for mark in _marks(record, cell))
    return [f"{mark} {text}." for mark, text in marks]
