"""The tables of docs/results/README.md, and the README's of them, from the committed results alone.

``make results`` writes the parts of the pages between the marks; a part whose results do not exist
yet is left as it is. ``tests/test_docs.py`` holds the pages to what this file makes of the files.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from concrete_kmeans.experiments import results, runtime, table2_report, tables
from concrete_kmeans.experiments.config import SCORES
from concrete_kmeans.experiments.results import Record

FOLDER = Path(__file__).parent / "results"
PAGE = FOLDER / "README.md"
README = Path(__file__).parents[1] / "README.md"
LEVEL = 3  # of headings inside a section of the page
#: Rows of the README's table.
SHOWN = ("km", "ae+km", "dec", "dcn", "ckm", "ckm-consensus", "ckm-conv")


def table2(record: Record) -> str:
    """Picture and tables."""
    picture = "![ACC of every seed of every method, beside the paper's](table2.svg)"
    return f"{picture}\n\n{table2_report.sections(record, level=LEVEL)}"


def in_short(record: Record) -> str:
    """Mean and spread of the methods that people ask for, on the paper's three data sets."""
    rows = [record["rows"][name] for name in record["counted"]["datasets"]]
    header = ["NMI / ARI / ACC", *(row["title"].partition(",")[0] for row in rows)]
    best = ["the paper, best of all methods"]
    for row in rows:
        most = [max(method[score]["mean"] for method in row["paper"].values()) for score in SCORES]
        best.append(" / ".join(f"{value:.1f}" for value in most))
    lines = [best]
    for method in SHOWN:
        cells = [row["methods"].get(method) for row in rows]
        lines.append([record["titles"][method], *map(_scores, cells)])
    runs = {len(cell["runs"]) for row in rows for cell in row["methods"].values()}
    said = (
        f"Mean and standard deviation over {max(runs)} seeds, the paper's networks, no labels in "
        "any fit; the consensus is one result of all seeds. Every method and seed, and what was "
        "missed: [docs/results](docs/results/README.md)."
    )
    return f"{tables.markdown(header, lines)}\n{said}\n"


def _scores(cell: Record | None) -> str:
    if cell is None:
        return "—"
    summary = [cell["summary"][score] for score in SCORES]
    if len(cell["runs"]) == 1:
        return " / ".join(f"{100 * value['mean']:.1f}" for value in summary)
    return " / ".join(tables.spread(100 * v["mean"], 100 * v["std"], 1) for v in summary)


PARTS = {"table2": table2, "runtime": runtime.sections}
README_PARTS = {"table2": in_short}


def made(text: str, parts: dict[str, Callable[[Record], str]] | None = None) -> str:
    """A page with its parts made again."""
    for name, make in (PARTS if parts is None else parts).items():
        record = results.load(FOLDER / f"{name}.json")
        if record is not None:
            text = tables.into_page(text, name, f"\n\n{make(record)}\n")
    return text


def files() -> dict[Path, str]:
    """The forms of the tables beside their JSON."""
    forms: dict[str, Callable[[Record], str]] = {
        "table2.md": table2_report.to_markdown,
        "table2.tex": table2_report.to_latex,
        "table2.svg": table2_report.to_svg,
        "runtime.md": runtime.to_markdown,
    }
    found = {name: results.load(FOLDER / f"{Path(name).stem}.json") for name in forms}
    return {FOLDER / n: forms[n](record) for n, record in found.items() if record is not None}


if __name__ == "__main__":
    for path, text in files().items():
        results.write_text(path, text)
    results.write_text(PAGE, made(PAGE.read_text("utf-8")))
    results.write_text(README, made(README.read_text("utf-8"), README_PARTS))
