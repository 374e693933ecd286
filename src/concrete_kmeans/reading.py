"""Reading on a thread of its own, while the one that asks computes."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

__all__ = ["read_ahead"]

T = TypeVar("T")


def read_ahead(source: Iterator[T]) -> Iterator[T]:
    """The items of an iterator, each computed on a thread while the one before it is used.

    Two of them exist at a time, if who asks keeps none. An error comes where its item would have
    come; who stops asking ends the thread.

    Examples
    --------
    >>> list(read_ahead(iter("abc")))
    ['a', 'b', 'c']
    """
    end = object()
    with ThreadPoolExecutor(1, "concrete-kmeans reader") as pool:
        item: T | object = pool.submit(next, source, end).result()
        while item is not end:
            following = pool.submit(next, source, end)
            yield item  # type: ignore[misc]
            item = following.result()
