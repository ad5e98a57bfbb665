"""Find out which worker died or hangs, so that every survivor's error names that worker.

Each worker writes a heartbeat to a small shared store, with the number of collective operations that it has started.
When an operation fails, a survivor watches the heartbeats for a while. A worker that sends no new heartbeat is gone; a
worker that still sends heartbeats but has started fewer operations hangs elsewhere. The first finding stays in the
store and becomes the error message of every survivor. Gloo and Horovod by themselves report an address at best.
"""

from __future__ import annotations

import itertools
import os
import re
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta

from torch.distributed import FileStore, PrefixStore, Store, TCPStore  # type: ignore[attr-defined]

from trainers.distributed.listening import serve_tcp_store
from trainers.distributed.rendezvous import rendezvous_store
from trainers.errors import CommunicationError

_FINDING = "finding"
_WATCHED_BEATS = 4
_opened = itertools.count()  # a process may leave and rejoin; all workers count alike


@dataclass(frozen=True)
class _Beat:
    count: int = 0
    operations: int = 0

    @classmethod
    def parse(cls, text: bytes) -> _Beat:
        count, operations = text.decode().split()
        return cls(int(count), int(operations))


class HeartbeatMonitor:
    """Sends the heartbeats of one worker, and watches the heartbeats of the other workers.

    All workers must reach ``store``; ``beat_seconds`` is the time between heartbeats; ``holder`` names the process
    that serves the store, so that its loss can be reported too.
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        size: int,
        *,
        beat_seconds: float,
        holder: str,
        holds_store: bool = False,
    ) -> None:
        self._rank, self._size = rank, size
        self._beat_seconds = beat_seconds
        self._holder, self._holds_store = holder, holds_store
        self._store, self._thread_store = store, store.clone()  # type: ignore[attr-defined]
        self._operations = 0
        self._finding: str | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="worker monitor", daemon=True)
        self._thread.start()

    def begin(self) -> None:
        """Count one more collective operation."""
        self._operations += 1

    def check(self) -> None:
        """Raise :class:`CommunicationError` if a survivor has found a lost worker."""
        if self._finding is not None:
            raise CommunicationError(f"a worker is gone or silent: {self._finding}")

    def lost(self, error: BaseException) -> CommunicationError:
        """Return the error to raise for a failed operation; this takes at most a few heartbeats."""
        finding = self._finding or self._share(self._find())
        self._finding = finding
        with suppress(RuntimeError):
            self._store.set(f"read/{self._rank}", "")
            self._await_readers()
        return CommunicationError(f"a worker is gone or silent: {finding} ({_first_line(error)})")

    def close(self) -> None:
        """Stop the heartbeat."""
        self._stop.set()
        self._thread.join(timeout=5)

    def _beat(self) -> None:
        count = 0
        with suppress(
            RuntimeError
        ):  # the store is gone: the next operation of this worker reports it
            while True:
                count += 1
                self._thread_store.set(f"beat/{self._rank}", f"{count} {self._operations}")
                if self._finding is None and self._thread_store.check([_FINDING]):
                    self._finding = self._thread_store.get(_FINDING).decode()
                if self._finding is not None:
                    self._thread_store.set(f"read/{self._rank}", "")
                if self._stop.wait(self._beat_seconds):
                    return

    def _find(self) -> str:
        try:
            before = self._beats()
            time.sleep(_WATCHED_BEATS * self._beat_seconds)
            if self._finding is not None:
                return self._finding
            after = self._beats()
        except RuntimeError:
            return f"{self._holder} is gone, and with it the store of the workers' heartbeats"
        gone = [rank for rank in after if rank != self._rank and after[rank] == before[rank]]
        if gone:
            return (
                f"{_workers(gone)} sent no heartbeat for "
                f"{_WATCHED_BEATS * self._beat_seconds:.3g} s"
            )
        behind = [rank for rank, beat in after.items() if beat.operations < self._operations]
        if behind:
            return (
                f"{_workers(behind)} hung: it is alive, but has not reached the operation "
                f"that the others wait in"
            )
        return "every worker still sends heartbeats, so the network between them may be at fault"

    def _beats(self) -> dict[int, _Beat]:
        found = {}
        for rank in range(self._size):
            key = f"beat/{rank}"
            found[rank] = _Beat.parse(self._store.get(key)) if self._store.check([key]) else _Beat()
        return found

    def _share(self, finding: str) -> str:
        """Record the finding for the other workers; the first recorded finding stands."""
        try:
            first: bytes = self._store.compare_set(_FINDING, "", finding)
        except RuntimeError:
            return finding
        return first.decode()

    def _await_readers(self) -> None:
        """If this worker holds the store, keep it open until the survivors have read the finding, or for a few
        heartbeats.
        """
        if not self._holds_store:
            return
        deadline = time.monotonic() + _WATCHED_BEATS * self._beat_seconds
        keys = [f"read/{rank}" for rank in range(self._size)]
        while (
            time.monotonic() < deadline
            and sum(self._store.check([key]) for key in keys) < self._size - 1
        ):
            time.sleep(self._beat_seconds / 4)


def heartbeat_seconds(timeout_seconds: float) -> float:
    """Return the time between heartbeats that finds a lost worker within a quarter of the timeout."""
    return min(2.0, timeout_seconds / (4 * _WATCHED_BEATS))


def lost_worker_finding_seconds(timeout_seconds: float) -> float:
    """Return the part of the timeout, in seconds, to reserve for finding the lost worker."""
    return _WATCHED_BEATS * heartbeat_seconds(timeout_seconds)


def open_worker_store(host: str, port: int, rank: int, size: int, timeout_seconds: float) -> Store:
    """Open the store of torchrun's agent or of worker 0; return once every worker has joined.

    Raises :class:`CommunicationError` naming the workers that did not join.
    """
    try:
        if rank == 0 and not store_held_by_agent():
            server: Store = serve_tcp_store(host, port, timeout_seconds)
        else:
            server = TCPStore(
                host,
                port,
                is_master=False,
                wait_for_workers=False,
                timeout=timedelta(seconds=timeout_seconds),
            )
    except (RuntimeError, OSError) as error:
        raise CommunicationError(
            f"a worker is gone or silent: worker {rank} found no store at {host}:{port} within "
            f"{timeout_seconds:g} s ({_first_line(error)})"
        ) from error
    return rendezvous_store(
        PrefixStore(f"trainers/{next(_opened)}", server), rank, size, timeout_seconds
    )


def open_worker_file_store(path: str, rank: int, size: int, timeout_seconds: float) -> Store:
    """Do the same as :func:`open_worker_store`, but with a file that all workers on this machine can access."""
    store = FileStore(path, size)
    store.set_timeout(timedelta(seconds=timeout_seconds))
    return rendezvous_store(
        PrefixStore(f"trainers/{next(_opened)}", store), rank, size, timeout_seconds
    )


def store_held_by_agent() -> bool:
    """Return whether torchrun's agent, not worker 0, serves the store."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def _workers(ranks: list[int]) -> str:
    return f"worker {ranks[0]}" if len(ranks) == 1 else f"workers {', '.join(map(str, ranks))}"


def _first_line(error: BaseException) -> str:
    """Return Gloo's message without its source location and advice."""
    line = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return re.sub(r"^\[\S+:\d+\] ", "", line).split(". This is typically")[0]
