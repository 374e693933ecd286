"""Docstrings as the docs site reads them: roles, formulas and tables of reStructuredText."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import griffe

#: A name in a role, with or without ``~`` in front of it.
ROLE = re.compile(r":(?:class|func|meth|data|mod|attr):`~?([\w.]+)`")
INLINE_MATH = re.compile(r":math:`([^`]+)`")
#: To the next empty line.
MATH = re.compile(r"^( *)\.\. math::\s*(.*?)(?=\n\s*\n|\Z)", re.DOTALL | re.MULTILINE)
TABLE = re.compile(r"^( *)=+( +=+)+\n(.*\n){2,}?\1=+( +=+)+$", re.MULTILINE)
#: Lines of a session, up to an empty one; griffe knows them in a section of examples only.
SESSION = re.compile(r"^>>> .*?(?=\n\s*\n|\Z)", re.DOTALL | re.MULTILINE)
EXAMPLES = "Examples\n--------"
#: Name and type of a parameter: code, in which no link can stand.
TYPED = re.compile(r"^ *[\w, ]+ : .*$", re.MULTILINE)
#: What follows the braces would be lost.
CHOICES = re.compile(r"^( *[\w, ]+ : (?:.*? or )?)\{([^}]*)\}", re.MULTILINE)


def to_markdown(text: str, reference: Callable[[str], str]) -> str:
    r"""Replace the few roles and directives that docstrings of this package use.

    >>> to_markdown("See :func:`~a.b`, :math:`x^2`.", str.upper)
    'See A.B, $x^2$.'
    >>> to_markdown("Is\n\n.. math:: x\n    = 1\n\nso.", str)
    'Is\n\n$$\nx\n= 1\n$$\n\nso.'
    >>> to_markdown("X : as in :meth:`fit`", str.upper)
    'X : as in fit'
    >>> to_markdown('how : {"a", "b"} or callable, default="a"', str)
    'how : one of "a", "b" or callable, default="a"'
    >>> to_markdown(">>> 1 + 1\n2", str)
    '```pycon\n>>> 1 + 1\n2\n```'
    """
    text = TYPED.sub(lambda found: ROLE.sub(r"\1", found[0]), text)
    text = ROLE.sub(lambda found: reference(found[1]), text)
    text = INLINE_MATH.sub(r"$\1$", text)
    text = MATH.sub(_display, text)
    text = CHOICES.sub(r"\1one of \2", text)
    text = TABLE.sub(r"```text\n\g<0>\n```", text)
    return text if EXAMPLES in text else SESSION.sub(r"```pycon\n\g<0>\n```", text)


def _display(found: re.Match[str]) -> str:
    lines = [line.strip() for line in found[2].splitlines()]
    return "\n".join(found[1] + line for line in ("$$", *lines, "$$"))


class Roles(griffe.Extension):
    """Changes every docstring before it is read."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite one docstring."""
        if obj.docstring is None:
            return

        def reference(name: str) -> str:
            try:
                path = obj.resolve(name)
            except griffe.NameResolutionError:
                path = name
            return f'<autoref identifier="{path}" optional>`{name}`</autoref>'

        obj.docstring.value = to_markdown(obj.docstring.value, reference)
