"""Prepare the next items of a sequence in background threads while the current one is used."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

Item = TypeVar("Item")


def prefetch_results(
    calls: Iterator[Callable[[], Item]], depth: int, concurrent: int = 1
) -> Generator[Item, None, None]:
    """Yield the results of the calls in order, with up to ``depth`` prepared ahead; a call's error is raised when its
    result is due.

    ``concurrent`` threads prepare that many items at the same time. With a ``depth`` of 0, each call is made when its
    result is requested.
    """
    if depth < 1:
        for call in calls:
            yield call()
        return
    threads = ThreadPoolExecutor(min(concurrent, depth), thread_name_prefix="prefetch")
    try:
        ahead: deque[Future[Item]] = deque(threads.submit(call) for call in islice(calls, depth))
        while ahead:
            ahead.extend(threads.submit(call) for call in islice(calls, 1))
            yield ahead.popleft().result()
    finally:
        threads.shutdown(wait=True, cancel_futures=True)
