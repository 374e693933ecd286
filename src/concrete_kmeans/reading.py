"""Reading while the one that asks computes: on a thread of its own, or a stream of CUDA."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch
from torch import Tensor

__all__ = ["WORTH", "read_ahead", "read_beside"]

T = TypeVar("T")

#: A read that takes less of the time that an item is used is not worth a thread: for rows that the
#: system had in memory (a fiftieth) one made ``predict`` 5 to 9 % slower on two cores.
WORTH = 0.1


def read_ahead(source: Iterator[T], *, worth: float = 0.0, busy: bool = False) -> Iterator[T]:
    """The items of an iterator, each computed on a thread while the one before it is used.

    Two of them exist at a time, if who asks keeps none. An error comes where its item would have
    come; who stops asking ends the thread.

    The thread does all by itself. torch would give it as many helpers as who asks has, on the same
    cores: steps on rows that are read then take a fourth to a half longer.

    Parameters
    ----------
    source : iterator
    worth : float
        An item is computed when it is asked for as long as that takes less than this part of the
        time that items are used. The order is the same.
    busy : bool
        Whether who asks has others beside it, one for each core: what an item computes then takes
        as long on a thread as here, and only the time that it waits, for a disk, counts.

    Examples
    --------
    >>> list(read_ahead(iter("abc")))
    ['a', 'b', 'c']
    """
    end, count = object(), torch.get_num_threads()

    def read() -> tuple[T | object, float]:
        start, worked = time.perf_counter(), time.thread_time()
        item = next(source, end)
        took = time.perf_counter() - start
        return item, took - (time.thread_time() - worked) if busy else took

    with ThreadPoolExecutor(1, "concrete-kmeans reader", torch.set_num_threads, (1,)) as pool:
        pool.submit(torch.get_num_threads).result()  # it knows its number from here on
        torch.set_num_threads(count)  # one is also the number that threads yet to come begin with
        ahead = not worth
        item, _ = pool.submit(read).result() if ahead else read()
        while item is not end:
            following = pool.submit(read) if ahead else None
            start = time.perf_counter()
            yield item  # type: ignore[misc]
            used = time.perf_counter() - start
            item = end  # what was used may go before the next is there
            item, took = read() if following is None else following.result()
            ahead = took >= worth * used


def read_beside(
    source: Iterator[tuple[int, int, Tensor]], device: torch.device
) -> Iterator[tuple[int, int, Tensor]]:
    """Pieces of rows that are brought to a CUDA device on a stream of their own.

    The host reads a piece while the device computes with the one before: nobody waits unless the
    host is two ahead. What a read waits for, whether its rows are finite say, it need not wait for
    behind what the device computes.
    """
    reading = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    using = torch.cuda.current_stream(device)
    reading.wait_stream(using)  # for what the rows are made of
    before: torch.cuda.Event | None = None
    while True:
        with torch.cuda.stream(reading):
            item = next(source, None)
        if item is None:
            return
        using.wait_stream(reading)
        item[2].record_stream(using)
        yield item
        after = using.record_event()
        if before is not None:
            before.synchronize()
        before = after
