"""Colours that stay apart for the colour-blind, on white and on black."""

from __future__ import annotations

__all__ = ["COLORS", "SHAPES", "color"]

#: The first six are Okabe and Ito's. Each of the others is as far as can be from all before it, in
#: OKLab, for whichever of three viewers tells them apart worst: with normal vision, protanopia or
#: deuteranopia (Machado et al. 2009).
COLORS = (
    "#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9", "#78e4a8", "#904848",
    "#9078fc", "#f0cc00", "#9cd8f0", "#9cb484", "#a83c84", "#3c54cc", "#18ccc0", "#e4606c",
    "#c03c0c", "#7890d8", "#ccc06c", "#546ce4", "#d8843c", "#006c84", "#a86054", "#9cc0fc",
    "#0060a8", "#fc9cc0", "#00a8fc", "#7878d8", "#f0b430", "#f09060",
)  # fmt: skip
#: Thirty colours are more than anybody tells apart: every ten have a shape of their own.
SHAPES = ("disc", "square", "diamond")


def color(number: int) -> str:
    """Colour of a cluster or class; they come again after thirty.

    >>> color(0), color(30)
    ('#0072b2', '#0072b2')
    """
    return COLORS[number % len(COLORS)]
