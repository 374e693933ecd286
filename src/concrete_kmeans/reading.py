"""Reading on a thread of its own, while the one that asks computes."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

__all__ = ["read_ahead"]

T = TypeVar("T")


def read_ahead(source: Iterator[T]) -> Iterator[T]:
    """The items of an iterator, each computed on a thread while the one before it is used.

    Two of them exist at a time, if who asks keeps none. An error comes where its item would have
    come; who stops asking ends the thread.

    The thread does all by itself. torch would give it as many helpers as who asks has, on the same
    cores: steps on rows that are read then take a fourth to a half longer.

    Examples
    --------
    >>> list(read_ahead(iter("abc")))
    ['a', 'b', 'c']
    """
    end, count = object(), torch.get_num_threads()
    with ThreadPoolExecutor(1, "concrete-kmeans reader", torch.set_num_threads, (1,)) as pool:
        try:
            item: T | object = pool.submit(next, source, end).result()
        finally:  # it is also the number that threads yet to come begin with
            torch.set_num_threads(count)
        while item is not end:
            following = pool.submit(next, source, end)
            yield item  # type: ignore[misc]
            item = following.result()
