"""The tables of docs/results/README.md, from the committed results alone.

``make results`` writes the parts of the page between the marks; a part whose results do not exist
yet is left as it is. ``tests/test_docs.py`` holds the page to what this file makes of the files.
"""

from __future__ import annotations

from pathlib import Path

from concrete_kmeans.experiments import results, runtime, table2_report
from concrete_kmeans.experiments.results import Record

FOLDER = Path(__file__).parent / "results"
PAGE = FOLDER / "README.md"
LEVEL = 3  # of headings inside a section of the page


def table2(record: Record) -> str:
    """Picture and tables."""
    picture = "![ACC of every seed of every method, beside the paper's](table2.svg)"
    return f"{picture}\n\n{table2_report.sections(record, level=LEVEL)}"


PARTS = {"table2": table2, "runtime": runtime.sections}


def made(text: str) -> str:
    """The page with its parts made again."""
    for name, make in PARTS.items():
        record = results.load(FOLDER / f"{name}.json")
        if record is not None:
            begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
            head, rest = text.split(begin)
            text = f"{head}{begin}\n\n{make(record)}\n{end}{rest.split(end)[1]}"
    return text


if __name__ == "__main__":
    results.write_text(PAGE, made(PAGE.read_text("utf-8")))
