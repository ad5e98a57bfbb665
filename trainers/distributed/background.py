"""A thread that runs multi-step operations one after another in the background of the computation."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor


class BackgroundThread:
    """A thread that runs operations in the order in which they were started.

    On a GPU, operations run in their own stream, which first waits for the work that the caller has queued. The
    caller's stream waits for an operation when the caller calls ``wait``.
    """

    def __init__(self, device: torch.device) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="collectives")
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    def start(self, operation: Callable[[Tensor], object], tensor: Tensor) -> BackgroundWork:
        """Start ``operation(tensor)``, which changes the tensor in place."""
        return BackgroundWork(
            self._executor.submit(self._run, operation, tensor, _mark(self._stream))
        )

    def then(
        self, operation: Callable[[Tensor], object], tensor: Tensor
    ) -> torch.futures.Future[Tensor]:
        """Start ``operation(tensor)``; return a future for the tensor, as DDP expects."""
        promise = torch.futures.Future[Tensor](
            devices=None if self._stream is None else [tensor.device]
        )
        mark = _mark(self._stream)

        def run() -> None:
            try:
                self._run(operation, tensor, mark, promise.set_result)
            except Exception as error:
                promise.set_exception(error)  # type: ignore[arg-type]

        self._executor.submit(run)
        return promise

    def close(self) -> None:
        """Accept no more operations, but let a running operation complete."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _run(
        self,
        operation: Callable[[Tensor], object],
        tensor: Tensor,
        mark: torch.cuda.Event | None,
        done: Callable[[Tensor], object] | None = None,
    ) -> torch.cuda.Event | None:
        if self._stream is None or mark is None:
            operation(tensor)
            if done is not None:
                done(tensor)
            return None
        with torch.cuda.stream(self._stream):
            self._stream.wait_event(mark)
            operation(tensor)
            tensor.record_stream(self._stream)
            if done is not None:
                done(tensor)
            event: torch.cuda.Event = self._stream.record_event()
            return event


class BackgroundWork:
    """A running operation of a :class:`BackgroundThread`."""

    def __init__(self, future: Future[Any]) -> None:
        self._future = future

    def wait(self) -> None:
        """Return when the operation is done or, on a GPU, when the current stream is set to wait for it."""
        event = self._future.result()
        if event is not None:
            torch.cuda.current_stream().wait_event(event)


def _mark(stream: torch.cuda.Stream | None) -> torch.cuda.Event | None:
    return None if stream is None else torch.cuda.current_stream().record_event()
