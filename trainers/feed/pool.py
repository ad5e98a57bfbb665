"""A pool of threads that decode the samples of a batch.

The pool uses threads rather than processes because the decoders release the interpreter lock, and a batch then needs no
copy between processes. Each result has a fixed index in the batch, so it does not matter which thread decodes it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from trainers.errors import DataError
from trainers.numerics.threads import cores_of_process

_CHUNKS_PER_THREAD = 4
_LARGEST_CHUNK = 8


class DecodingPool:
    """A pool whose threads start with the first batch; ``threads`` None means this process's share of the cores."""

    def __init__(self, threads: int | None = None) -> None:
        self._wanted = threads
        self._executor: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()

    @property
    def threads(self) -> int:
        """The number of threads in the pool."""
        return self._wanted or cores_of_process()

    def run(self, work: Callable[[int], None], count: int) -> None:
        """Call ``work`` with 0 to ``count`` - 1 and wait for all calls; raise the error of the first failed call.

        May be called by several threads at once.
        """
        chunk = max(1, min(_LARGEST_CHUNK, count // (_CHUNKS_PER_THREAD * self.threads)))

        def run_chunk(first: int) -> None:
            for index in range(first, min(first + chunk, count)):
                work(index)

        futures = [self._started().submit(run_chunk, first) for first in range(0, count, chunk)]
        try:
            for future in futures:
                future.result()
        finally:
            for future in futures:
                future.cancel()

    def _started(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._executor is None:
                self._executor = ThreadPoolExecutor(self.threads, thread_name_prefix="decode")
            return self._executor


def checked_decoder_threads(value: Any) -> int | None:
    """Return the data option ``decoding_threads``; raises :class:`~trainers.errors.DataError` if it is invalid."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise DataError(
            f"decoding_threads must be a whole number of at least 1, but got {value!r}; leave "
            f"it out for the machine's cores divided by its workers"
        )
    return value
