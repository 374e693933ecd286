"""Checks of arguments; each error names the argument, its value and what is allowed."""

from __future__ import annotations

import math
import numbers
import types
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

__all__ = [
    "check_choice",
    "check_not_negative",
    "check_positive",
    "check_positive_int",
    "check_whole",
    "check_sizes",
    "check_sparse",
    "check_types",
    "is_auto",
    "shown",
]

T = TypeVar("T", bound=str)

#: Characters of a value in a message.
MAX_SHOWN = 100
#: Above what torch can count to.
MAX_INT = 2**63


def shown(value: object) -> str:
    """A value as a message names it: on one line, not too long.

    >>> shown([0.5, "a"]), len(shown("x" * 1000))
    ("[0.5, 'a']", 100)
    """
    text = repr(value)
    if "\n" in text:
        text = " ".join(text.split())
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 3]}..."


def is_auto(value: object) -> bool:
    """Whether a value is the text ``"auto"``; of an array, ``==`` would be one answer for each."""
    return isinstance(value, str) and value == "auto"


def check_choice(name: str, value: T, choices: tuple[str, ...]) -> T:
    """Return ``value`` if it is one of ``choices``."""
    if not isinstance(value, str) or value not in choices:
        raise ValueError(
            f"{name} must be one of {', '.join(map(repr, choices))}, got {shown(value)}"
        )
    return value


def check_positive(name: str, value: object, *, also: str = "") -> float:
    """Return ``value`` as a float if it is a positive finite number."""
    number = _finite(value)
    if number is None or number <= 0.0:
        allowed = "a positive finite number" + (f" or {also}" if also else "")
        raise ValueError(f"{name} must be {allowed}, got {shown(value)}")
    return number


def check_not_negative(name: str, value: object, *, also: str = "") -> float:
    """Return ``value`` as a float if it is a finite number of at least zero."""
    number = _finite(value)
    if number is None or number < 0.0:
        allowed = "a finite number of at least 0" + (f" or {also}" if also else "")
        raise ValueError(f"{name} must be {allowed}, got {shown(value)}")
    return number


def _finite(value: object) -> float | None:
    """A real number as a float; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return None
    try:
        number = float(value)
    except OverflowError:  # of an int with hundreds of digits
        return None
    return number if math.isfinite(number) else None


def check_positive_int(name: str, value: object, *, also: str = "") -> int:
    """Return ``value`` as an int if it is a whole number of at least one."""
    return _whole_from(1, name, value, also)


def check_whole(name: str, value: object, *, also: str = "") -> int:
    """Return ``value`` as an int if it is a whole number of at least zero."""
    return _whole_from(0, name, value, also)


def _whole_from(least: int, name: str, value: object, also: str) -> int:
    whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if not whole or not least <= int(value) < MAX_INT:  # type: ignore[call-overload]
        below = " and below 2**63" if whole and int(value) >= MAX_INT else ""  # type: ignore[call-overload]
        allowed = f"a whole number of at least {least}{below}" + (f" or {also}" if also else "")
        raise ValueError(f"{name} must be {allowed}, got {shown(value)}")
    return int(value)  # type: ignore[call-overload, no-any-return]


def check_sizes(name: str, sizes: object, *, least: int = 1) -> tuple[int, ...]:
    """``sizes`` as a tuple of whole numbers of at least one."""
    if not isinstance(sizes, Sequence) or isinstance(sizes, str | bytes):
        also = "" if name == "feature_shape" else ", a known name, an nn.Module or a function"
        raise TypeError(f"{name} must be a sequence of whole numbers{also}, got {shown(sizes)}")
    if len(sizes) < least:
        raise ValueError(f"{name} must hold at least {least} number, got {shown(sizes)}")
    return tuple(check_positive_int(f"{name}[{i}]", size) for i, size in enumerate(sizes))


def check_sparse(name: str, X: Any) -> None:
    """Refuse a scipy sparse matrix whose parts do not go together.

    Compiled code trusts them: it would read and write past the end of memory.
    """
    whole = True
    if X.format in ("csr", "csc", "bsr"):
        block = X.blocksize if X.format == "bsr" else (1, 1)
        n_rows, n_columns = (size // each for size, each in zip(X.shape, block, strict=True))
        major, minor = (n_columns, n_rows) if X.format == "csc" else (n_rows, n_columns)
        starts = X.indptr
        whole = (
            starts.shape == (major + 1,)
            and starts[0] == 0
            and bool((starts[1:] >= starts[:-1]).all())
            and len(X.indices) == len(X.data) >= starts[-1]
            and _are_below(X.indices, minor)
        )
    elif X.format == "coo":
        whole = all(
            len(places) == len(X.data) and _are_below(places, size)
            for places, size in zip(X.coords, X.shape, strict=True)
        )
    if not whole:
        raise ValueError(
            f"{name} must be a whole sparse matrix: indices or pointers of this "
            f"{X.format} of shape {tuple(X.shape)} lie outside of it"
        )


def _are_below(places: Any, size: int) -> bool:
    whole = places.ndim == 1 and places.dtype.kind in "iu"
    return whole and (not len(places) or (int(places.min()) >= 0 and int(places.max()) < size))


def check_types(cls: type, values: Mapping[str, Any]) -> None:
    """Refuse values, as they come out of a JSON file, that are not what the fields of a class say.

    >>> import dataclasses
    >>> cls = dataclasses.make_dataclass("Point", [("x", float), ("names", list[str])])
    >>> check_types(cls, {"x": 1, "names": ["a"]})
    >>> check_types(cls, {"x": 1, "names": "a"})
    Traceback (most recent call last):
    TypeError: names must be list[str], got 'a'
    """
    hints = get_type_hints(cls)
    for name, value in values.items():
        if name not in hints:
            raise TypeError(f"there is no {shown(name)}")
        if not _is_a(value, hints[name]):
            hint = hints[name]
            said = hint.__name__ if type(hint) is type else str(hint)
            raise TypeError(f"{name} must be {said.replace('typing.', '')}, got {shown(value)}")


def _is_a(value: Any, hint: Any) -> bool:
    origin, of = get_origin(hint), get_args(hint)
    if hint is Any:
        return True
    if origin in (Union, types.UnionType):
        return any(_is_a(value, one) for one in of)
    if origin is Literal:
        return isinstance(value, str) and value in of
    if origin in (list, Sequence):
        return isinstance(value, list | tuple) and all(_is_a(item, of[0]) for item in value)
    if origin in (dict, Mapping):
        return isinstance(value, dict) and all(_is_a(item, of[1]) for item in value.values())
    if hint in (int, float):
        numbers_ = int if hint is int else (int, float)
        return isinstance(value, numbers_) and not isinstance(value, bool)
    return isinstance(value, hint)
