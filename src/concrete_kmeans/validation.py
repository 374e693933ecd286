"""Checks of arguments; each error names the argument, its value and what is allowed."""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from typing import TypeVar

__all__ = [
    "check_choice",
    "check_not_negative",
    "check_positive",
    "check_positive_int",
    "check_whole",
    "check_sizes",
]

T = TypeVar("T", bound=str)


def check_choice(name: str, value: T, choices: tuple[str, ...]) -> T:
    """Return ``value`` if it is one of ``choices``."""
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}")
    return value


def check_positive(name: str, value: object, *, also: str = "") -> float:
    """Return ``value`` as a float if it is a positive finite number."""
    number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not number or not (math.isfinite(float(value)) and float(value) > 0.0):  # type: ignore[arg-type]
        allowed = "a positive finite number" + (f" or {also}" if also else "")
        raise ValueError(f"{name} must be {allowed}, got {value!r}")
    return float(value)  # type: ignore[arg-type]


def check_not_negative(name: str, value: object, *, also: str = "") -> float:
    """Return ``value`` as a float if it is a finite number of at least zero."""
    number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not number or not (math.isfinite(float(value)) and float(value) >= 0.0):  # type: ignore[arg-type]
        allowed = "a finite number of at least 0" + (f" or {also}" if also else "")
        raise ValueError(f"{name} must be {allowed}, got {value!r}")
    return float(value)  # type: ignore[arg-type]


def check_positive_int(name: str, value: object, *, also: str = "") -> int:
    """Return ``value`` as an int if it is a whole number of at least one."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or int(value) < 1:
        allowed = "a whole number of at least 1" + (f" or {also}" if also else "")
        raise ValueError(f"{name} must be {allowed}, got {value!r}")
    return int(value)


def check_whole(name: str, value: object, *, also: str = "") -> int:
    """Return ``value`` as an int if it is a whole number of at least zero."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or int(value) < 0:
        allowed = "a whole number of at least 0" + (f" or {also}" if also else "")
        raise ValueError(f"{name} must be {allowed}, got {value!r}")
    return int(value)


def check_sizes(name: str, sizes: object, *, least: int = 1) -> tuple[int, ...]:
    """``sizes`` as a tuple of whole numbers of at least one."""
    if not isinstance(sizes, Sequence) or isinstance(sizes, str):
        also = "" if name == "feature_shape" else ", a known name, an nn.Module or a function"
        raise TypeError(f"{name} must be a sequence of whole numbers{also}, got {sizes!r}")
    if len(sizes) < least:
        raise ValueError(f"{name} must hold at least {least} number, got {sizes!r}")
    return tuple(check_positive_int(f"{name}[{i}]", size) for i, size in enumerate(sizes))
