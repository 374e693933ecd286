"""A picture of runs: a panel a data set, a line a method, a dot a run. SVG as text."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

__all__ = ["Line", "Panel", "picture"]

WIDTH, LEFT, RIGHT, TOP, STEP, GAP = 760, 210, 24, 48, 22, 58
INK, GREY, RULE, DOT, BAR = "#1b1f24", "#5a6470", "#d5dae0", "#1f6feb", "#0b3d91"
#: Ticks of an axis are as many units apart as one of these, or ten times as many, and so on.
TICKS, MAX_TICKS = (1, 2, 5), 8


@dataclass(frozen=True)
class Line:
    """One method: its runs, and the figure to compare with, if there is one."""

    title: str
    values: Sequence[float]
    reference: float | None = None


@dataclass(frozen=True)
class Panel:
    """One data set."""

    title: str
    lines: Sequence[Line]


def picture(title: str, panels: Sequence[Panel]) -> str:
    """An SVG of all panels, one under another, each with an axis of its own."""
    height = TOP + sum(GAP + STEP * len(panel.lines) for panel in panels) + 8
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        'font-family="Helvetica, Arial, sans-serif" font-size="13">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        _text(16, 24, title, size=15, weight="bold"),
    ]
    top = TOP
    for panel in panels:
        parts += _panel(panel, top)
        top += GAP + STEP * len(panel.lines)
    return "\n".join([*parts, "</svg>", ""])


def ticks(low: float, high: float) -> list[float]:
    """Round numbers, few, that enclose a range.

    >>> ticks(41.0, 57.5)
    [40, 45, 50, 55, 60]
    """
    step = next(
        unit * 10**power
        for power in range(-6, 7)
        for unit in TICKS
        if math.ceil(high / (unit * 10**power)) - math.floor(low / (unit * 10**power)) < MAX_TICKS
    )
    first, last = math.floor(low / step), max(math.ceil(high / step), math.floor(low / step) + 1)
    return [i * step for i in range(first, last + 1)]


def _panel(panel: Panel, top: int) -> list[str]:
    shown = [v for line in panel.lines for v in (*line.values, line.reference) if v is not None]
    axis = ticks(min(shown), max(shown))
    first, bottom = top + 30, top + 24 + STEP * len(panel.lines)

    def x(value: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (value - axis[0]) / (axis[-1] - axis[0])

    parts = [_text(16, top + 12, panel.title, weight="bold")]
    for tick in axis:
        parts += [
            f'<line x1="{x(tick):.1f}" y1="{top + 20}" x2="{x(tick):.1f}" y2="{bottom}" '
            f'stroke="{RULE}"/>',
            _text(x(tick), bottom + 15, f"{tick:g}", anchor="middle", fill=GREY, size=11),
        ]
    for i, line in enumerate(panel.lines):
        y = first + STEP * i
        parts.append(_text(LEFT - 12, y + 4, line.title, anchor="end"))
        parts += [
            f'<circle cx="{x(value):.1f}" cy="{y}" r="4.5" fill="{DOT}" fill-opacity="0.35"/>'
            for value in line.values
        ]
        middle = x(statistics.fmean(line.values))
        parts.append(
            f'<line x1="{middle:.1f}" y1="{y - 8}" x2="{middle:.1f}" y2="{y + 8}" '
            f'stroke="{BAR}" stroke-width="3"/>'
        )
        if line.reference is not None:
            parts.append(
                f'<circle cx="{x(line.reference):.1f}" cy="{y}" r="6" fill="none" '
                f'stroke="{INK}" stroke-width="1.5"/>'
            )
    return parts


def _text(
    x: float,
    y: float,
    text: str,
    *,
    anchor: str = "start",
    fill: str = INK,
    size: int = 13,
    weight: str = "normal",
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y}" text-anchor="{anchor}" fill="{fill}" font-size="{size}" '
        f'font-weight="{weight}">{escape(text)}</text>'
    )
