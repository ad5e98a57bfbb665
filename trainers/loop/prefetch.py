"""Prepare the next items of an iterator in a background thread while the current one is used."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")


def prefetched(items: Iterator[Item], depth: int) -> Iterator[Item]:
    """The same items in order, up to ``depth`` of them prepared ahead; an error arrives with its item."""
    if depth < 1:
        yield from items
        return
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="prefetch") as thread:
        ahead: deque[Future[Item]] = deque(thread.submit(next, items) for _ in range(depth))
        while True:
            ahead.append(thread.submit(next, items))
            try:
                yield ahead.popleft().result()
            except StopIteration:
                return
