"""Tables for Markdown, LaTeX and the terminal, of cells that are text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from rich import box
from rich.table import Table

__all__ = ["Cells", "escape", "into_page", "latex", "markdown", "spread", "terminal"]

#: A header, and rows of as many cells.
Cells: TypeAlias = tuple[list[str], list[list[str]]]

_LATEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "#": r"\#",
    "_": r"\_",
    "±": r"$\pm$",
    "—": "---",
    "†": r"$\dagger$",
    "‡": r"$\ddagger$",
    "§": r"\S{}",
    "<": r"$<$",
    ">": r"$>$",
    "≥": r"$\ge$",
}


def spread(mean: float, std: float, digits: int = 3) -> str:
    """Mean and standard deviation as the paper prints them.

    >>> spread(0.70711, 0.05)
    '0.707±0.050'
    """
    return f"{mean:.{digits}f}±{std:.{digits}f}"


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1) -> str:
    """Markdown table, padded to be read as text; the first ``left`` columns are left-aligned."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    rule = ["-" * w if i < left else "-" * (w - 1) + ":" for i, w in enumerate(widths)]
    lines = []
    for row in [header, rule, *rows]:
        padded = [
            cell.ljust(width) if i < left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append(f"| {' | '.join(padded)} |\n")
    return "".join(lines)


def into_page(text: str, name: str, content: str) -> str:
    """A page with other content between the marks of a part of it.

    >>> page = "Scores: <!-- scores: begin -->old<!-- scores: end --> of 2026."
    >>> into_page(page, "scores", "new")
    'Scores: <!-- scores: begin -->new<!-- scores: end --> of 2026.'
    """
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    head, rest = text.split(begin)
    return f"{head}{begin}{content}{end}{rest.split(end)[1]}"


def latex(header: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1) -> str:
    """LaTeX tabular with the rules of booktabs; the first ``left`` columns are left-aligned."""
    first, *body = [" & ".join(map(escape, row)) + " \\\\\n" for row in [header, *rows]]
    columns = "l" * left + "r" * (len(header) - left)
    return (
        f"\\begin{{tabular}}{{{columns}}}\n\\toprule\n{first}\\midrule\n{''.join(body)}"
        "\\bottomrule\n\\end{tabular}\n"
    )


def terminal(title: str, header: Sequence[str], *, left: int = 1) -> Table:
    """Table for the terminal, without rows; the first ``left`` columns are left-aligned."""
    table = Table(title=title, box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.padding = (0, 1, 0, 0)
    table.title_justify = table.caption_justify = "left"
    for i, column in enumerate(header):
        table.add_column(column, justify="left" if i < left else "right", no_wrap=True)
    return table


def escape(text: str) -> str:
    """Text for LaTeX."""
    return "".join(_LATEX.get(character, character) for character in text)
