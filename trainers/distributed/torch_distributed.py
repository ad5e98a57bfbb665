"""The communicator of workers started by torchrun: Gloo for CPUs, NCCL for GPUs, in flat buckets of 25 MB."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from trainers.distributed.adasum import adasum_
from trainers.distributed.all_reduce import (
    WorkerGrid,
    all_gather,
    all_reduce_function,
    all_reduce_row_size,
)
from trainers.distributed.background import BackgroundThread
from trainers.distributed.bucketed import BucketedCommunicator
from trainers.distributed.communicator import STORE_FILE, CollectiveWork
from trainers.distributed.device import choose_device, claim_gpu
from trainers.distributed.monitor import (
    HeartbeatMonitor,
    heartbeat_seconds,
    lost_worker_finding_seconds,
    open_worker_file_store,
    open_worker_store,
    store_held_by_agent,
)
from trainers.distributed.operation_watch import OperationWatch
from trainers.errors import CommunicationError
from trainers.numerics.threads import launched_local_size


class TorchCommunicator(BucketedCommunicator):
    """A communicator over torch.distributed; ``all_reduce`` is the algorithm for sums.

    ``group_size`` is the number of workers in a row of the torus or in a node (:mod:`.all_reduce`).
    """

    def __init__(
        self,
        timeout_seconds: float,
        all_reduce: str = "default",
        group_size: int | None = None,
        *,
        device: str = "auto",
    ) -> None:
        self.rank, self.size = _place()
        self.device = choose_device(
            int(os.environ.get("LOCAL_RANK", "0")), launched_local_size(os.environ) or 1, device
        )
        row = all_reduce_row_size(all_reduce, self.size, group_size)
        self._monitor = self._join(timeout_seconds)
        self._watch = (
            OperationWatch(
                timeout_seconds - lost_worker_finding_seconds(timeout_seconds),
                heartbeat_seconds(timeout_seconds),
                find=self._monitor.lost,
                check=self._monitor.check,
            )
            if self.device.type == "cuda"
            else None
        )
        self._background = BackgroundThread(self.device)
        self._exchange: _TorchExchange | None = None
        with self._peer_errors():
            self._composite = (
                None
                if all_reduce == "default"
                else all_reduce_function(all_reduce, WorkerGrid(row, wait=self._wait))
            )

    def start_sum_(self, flat: Tensor) -> CollectiveWork:
        """Start replacing ``flat`` with its sum over the workers."""
        if self._composite is not None:
            return self._background.start(self._guarded(self._composite), flat)
        return self._begin(lambda: dist.all_reduce(flat, async_op=True))

    def start_adasum_(self, flat: Tensor, sizes: Sequence[int]) -> CollectiveWork:
        """Start combining ``flat`` over the workers by Adasum."""
        with self._peer_errors():
            if (
                self._exchange is None
            ):  # a separate group, as the main thread's operations continue meanwhile
                self._exchange = _TorchExchange(self)
        return self._background.start(
            self._guarded(partial(adasum_, sizes=list(sizes), exchange=self._exchange)), flat
        )

    def close(self) -> None:
        """Leave the group."""
        self._background.close()
        if self._watch is not None:
            self._watch.close()
        self._monitor.close()
        if dist.is_initialized():
            dist.destroy_process_group()

    def _join(self, timeout_seconds: float) -> HeartbeatMonitor:
        file = os.environ.get(STORE_FILE)
        if file:
            store, holder = (
                open_worker_file_store(file, self.rank, self.size, timeout_seconds),
                "the file",
            )
        else:
            host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
            store = open_worker_store(host, port, self.rank, self.size, timeout_seconds)
            holder = f"the launcher on {host}" if store_held_by_agent() else "worker 0"
        claim_gpu(store, self.device, self.rank)
        monitor = HeartbeatMonitor(
            store,
            self.rank,
            self.size,
            beat_seconds=heartbeat_seconds(timeout_seconds),
            holder=holder,
            holds_store=self.rank == 0 and not (file or store_held_by_agent()),
        )
        on_gpu = self.device.type == "cuda"
        finding = lost_worker_finding_seconds(timeout_seconds)  # NCCL's watchdog acts after ours
        longest = timedelta(seconds=timeout_seconds + (finding if on_gpu else -finding))
        os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")
        try:
            dist.init_process_group(
                "nccl" if on_gpu else "gloo",
                store=store,
                rank=self.rank,
                world_size=self.size,
                timeout=longest,
            )
        except RuntimeError as error:
            raise monitor.lost(error) from error
        return monitor

    def _start_broadcast_(self, flat: Tensor, root: int) -> CollectiveWork:
        return self._begin(lambda: dist.broadcast(flat, src=root, async_op=True))

    def _begin(self, operation: Callable[[], dist.Work | None]) -> _TorchWork:
        self._monitor.begin()
        with self._peer_errors():
            return _TorchWork(operation(), self)

    def _guarded(self, operation: Callable[[Tensor], None]) -> Callable[[Tensor], None]:
        self._monitor.begin()
        return partial(self._guard, operation)

    def _guard(self, operation: Callable[[Tensor], None], flat: Tensor) -> None:
        with self._peer_errors():
            operation(flat)

    def _wait(self, work: dist.Work) -> None:
        """Wait for an operation, but stop waiting when a survivor reports a lost worker."""
        if self._watch is not None:
            work.wait()  # only the GPU waits; if the host blocks later, the watch ends it
            self._watch.add(work)
            return
        while True:
            try:
                work.wait(timedelta(seconds=1))
                return
            except RuntimeError:
                if work.is_completed():
                    work.wait()  # raises the error, unless it has just completed
                    return
                self._monitor.check()

    @contextmanager
    def _peer_errors(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            raise self._monitor.lost(error) from error


class _TorchWork:
    def __init__(self, work: dist.Work | None, communicator: TorchCommunicator) -> None:
        self._work = work
        self._communicator = communicator

    def wait(self) -> None:
        if self._work is not None:
            with self._communicator._peer_errors():
                self._communicator._wait(self._work)


class _TorchExchange:
    """The operations for Adasum, over a separate process group."""

    def __init__(self, communicator: TorchCommunicator) -> None:
        self.rank, self.size = communicator.rank, communicator.size
        self._group = dist.new_group()
        self._wait = communicator._wait

    def all_to_all(self, flat: Tensor) -> Tensor:
        received = torch.empty_like(flat)
        self._done(dist.all_to_all_single(received, flat, group=self._group, async_op=True))
        return received.view(self.size, -1)

    def all_gather(self, part: Tensor) -> Tensor:
        gathered = part.new_empty(self.size * len(part))
        self._done(all_gather(gathered, part, group=self._group, async_op=True))
        return gathered

    def sum_(self, small: Tensor) -> None:
        self._done(dist.all_reduce(small, group=self._group, async_op=True))

    def _done(self, work: dist.Work | None) -> None:
        if work is not None:
            self._wait(work)


def _place() -> tuple[int, int]:
    """Return this worker's rank and the number of workers, which torchrun provides."""
    needed = ["RANK", "WORLD_SIZE"]
    if STORE_FILE not in os.environ:
        needed += ["MASTER_ADDR", "MASTER_PORT"]
    missing = [name for name in needed if name not in os.environ]
    if missing:
        raise CommunicationError(
            f"the torch backend needs {', '.join(missing)} in the environment; "
            "start the workers with torchrun, or use --backend single"
        )
    return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
