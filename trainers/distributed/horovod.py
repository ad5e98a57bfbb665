"""Workers started by horovodrun (or horovod.runner)."""

from __future__ import annotations

import heapq
import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from typing import Any

import torch
from torch import Tensor

from trainers.distributed.adasum import adasum_
from trainers.distributed.all_reduce import sum_all_reduce_parts
from trainers.distributed.background import BackgroundThread
from trainers.distributed.bucketed import BucketedCommunicator
from trainers.distributed.communicator import CollectiveWork
from trainers.distributed.device import choose_device, claim_gpu
from trainers.distributed.listening import serve_tcp_store
from trainers.distributed.monitor import (
    HeartbeatMonitor,
    heartbeat_seconds,
    lost_worker_finding_seconds,
)
from trainers.errors import CommunicationError

_FLAGS = {
    "default": (),
    "torus": ("HOROVOD_TORUS_ALLREDUCE",),
    "hierarchical": ("HOROVOD_HIERARCHICAL_ALLREDUCE", "HOROVOD_HIERARCHICAL_ALLGATHER"),
}


_LONGEST_HOST = 300
"""The number of bytes for a port and a host name of at most 253 bytes."""


class HorovodCommunicator(BucketedCommunicator):
    """A communicator over Horovod (Sergeev and Del Balso, arXiv:1802.05799).

    ``fusion_megabytes`` is how much Horovod fuses into one operation and ``cycle_milliseconds`` is how long it waits
    for more; the defaults are the settings of horovodrun, or Horovod's 128 MB and 1 ms. The torus and hierarchical
    all-reduces are Horovod's own, with NCCL between GPUs.
    """

    def __init__(
        self,
        timeout_seconds: float,
        all_reduce: str = "default",
        *,
        fusion_megabytes: float | None = None,
        cycle_milliseconds: float | None = None,
        device: str = "auto",
    ) -> None:
        self._hvd = _import_horovod()
        self._choose(all_reduce)
        if fusion_megabytes is not None:
            os.environ["HOROVOD_FUSION_THRESHOLD"] = str(round(fusion_megabytes * 2**20))
        if cycle_milliseconds is not None:
            os.environ["HOROVOD_CYCLE_TIME"] = str(cycle_milliseconds)
        self._timeout_seconds = timeout_seconds - lost_worker_finding_seconds(timeout_seconds)
        seconds = str(max(1, round(self._timeout_seconds)))
        os.environ.setdefault("HOROVOD_GLOO_TIMEOUT_SECONDS", seconds)
        os.environ.setdefault(
            "HOROVOD_STALL_CHECK_TIME_SECONDS", str(min(60, int(seconds)))
        )  # without the check there is no shutdown
        os.environ.setdefault("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", seconds)
        self._monitor: HeartbeatMonitor | None = None
        with self._peer_errors():
            self._hvd.init()
        self.rank: int = self._hvd.rank()
        self.size: int = self._hvd.size()
        self.device = choose_device(self._hvd.local_rank(), self._hvd.local_size(), device)
        check_carries(self._hvd, self.device)
        self._names = _Names()
        self._background = BackgroundThread(self.device)
        with self._peer_errors():
            self._monitor = _monitor(self._hvd, timeout_seconds, self.device)

    def start_sum_(self, flat: Tensor) -> CollectiveWork:
        """Start replacing ``flat`` with its sum over the workers."""
        self._begin()
        if flat.dtype == torch.bfloat16:  # Horovod 0.28.1 has no bfloat16 for PyTorch
            return self._background.start(self._guarded(self._sum_of_bfloat16_), flat)
        return self._started(
            "sum", flat, partial(self._hvd.allreduce_async_, flat, op=self._hvd.Sum)
        )

    def start_adasum_(self, flat: Tensor, sizes: Sequence[int]) -> CollectiveWork:
        """Start combining ``flat`` over the workers by Adasum."""
        self._begin()
        exchange = _HorovodExchange(self._hvd, self._wait)
        return self._background.start(
            self._guarded(partial(adasum_, sizes=list(sizes), exchange=exchange)), flat
        )

    def close(self) -> None:
        """Leave the group."""
        self._background.close()
        if self._monitor is not None:
            self._monitor.close()
        self._hvd.shutdown()

    def _start_broadcast_(self, flat: Tensor, root: int) -> CollectiveWork:
        self._begin()
        bits = _bits(flat)
        return self._started(
            "broadcast", bits, partial(self._hvd.broadcast_async_, bits, root_rank=root)
        )

    def _choose(self, all_reduce: str) -> None:
        if all_reduce not in _FLAGS:
            raise CommunicationError(
                f"Horovod has no all-reduce {all_reduce!r}; it has {', '.join(_FLAGS)}, and "
                "--backend torch has more"
            )
        if all_reduce != "default" and not self._hvd.nccl_built():
            raise CommunicationError(
                f"Horovod's {all_reduce} all-reduce needs NCCL, but Horovod was built without it "
                "here; use --all-reduce default, or --backend torch"
            )
        for flag in _FLAGS[all_reduce]:
            os.environ[flag] = "1"

    def _begin(self) -> None:
        if self._monitor is not None:
            self._monitor.begin()

    def _started(self, kind: str, flat: Tensor, operation: Callable[..., int]) -> CollectiveWork:
        slot = self._names.take()
        with self._peer_errors():
            return _HorovodWork(
                self, operation(name=f"{kind}.{slot}.{flat.dtype}.{flat.numel()}"), slot
            )

    def _guarded(self, operation: Callable[[Tensor], None]) -> Callable[[Tensor], None]:
        def run(flat: Tensor) -> None:
            with self._peer_errors():
                operation(flat)

        return run

    def _sum_of_bfloat16_(self, flat: Tensor) -> None:
        exchange = _HorovodExchange(self._hvd, self._wait)
        padded = torch.nn.functional.pad(flat, (0, -len(flat) % self.size))
        flat.copy_(
            exchange.all_gather(sum_all_reduce_parts(exchange.all_to_all(padded)))[: len(flat)]
        )

    def _wait(self, handle: int) -> Any:
        """Return the result of an operation; raise if a survivor reports a lost worker or the timeout passes.

        Even with its stall check and shutdown on, Horovod 0.28.1 waited forever for a worker that was alive but did not
        join in. Horovod's own wait also polls once per millisecond.
        """
        deadline = time.monotonic() + self._timeout_seconds
        while not self._hvd.poll(handle):
            if self._monitor is not None:
                self._monitor.check()
            if time.monotonic() > deadline:
                raise self._lost(
                    TimeoutError(f"waited {self._timeout_seconds:.3g} s for the other workers")
                )
            time.sleep(0.0005)
        return self._hvd.synchronize(handle)

    def _lost(self, error: BaseException) -> CommunicationError:
        if self._monitor is not None:
            return self._monitor.lost(error)
        return CommunicationError(f"a worker is gone or silent: {error}")

    @contextmanager
    def _peer_errors(self) -> Iterator[None]:
        from horovod.common.exceptions import HorovodInternalError

        try:
            yield
        except HorovodInternalError as error:
            raise self._lost(error) from error


class _HorovodWork:
    def __init__(self, communicator: HorovodCommunicator, handle: int, slot: int) -> None:
        self._communicator, self._handle, self._slot = communicator, handle, slot

    def wait(self) -> None:
        with self._communicator._peer_errors():
            self._communicator._wait(self._handle)
        self._communicator._names.give_back(self._slot)


class _Names:
    """Numbers that name the running operations: workers match operations by name, and Horovod caches by name."""

    def __init__(self) -> None:
        self._free: list[int] = []
        self._taken = 0

    def take(self) -> int:
        if self._free:
            return heapq.heappop(self._free)
        self._taken += 1
        return self._taken - 1

    def give_back(self, slot: int) -> None:
        heapq.heappush(self._free, slot)


class _HorovodExchange:
    """The exchange for Adasum and bfloat16 sums; only the background thread calls it, so names can be reused."""

    def __init__(self, hvd: Any, wait: Callable[[int], Any]) -> None:
        self._hvd, self._wait = hvd, wait
        self.rank: int = hvd.rank()
        self.size: int = hvd.size()

    def all_to_all(self, flat: Tensor) -> Tensor:
        return self._moved(flat, self._hvd.alltoall_async, "all_to_all").view(self.size, -1)

    def all_gather(self, part: Tensor) -> Tensor:
        return self._moved(part, self._hvd.allgather_async, "all_gather")

    def sum_(self, small: Tensor) -> None:
        self._wait(
            self._hvd.allreduce_async_(
                small, op=self._hvd.Sum, name=f"background.sum.{small.numel()}"
            )
        )

    def _moved(self, flat: Tensor, operation: Callable[..., int], kind: str) -> Tensor:
        as_bits = _bits(flat)
        handle = operation(
            as_bits.contiguous(), name=f"background.{kind}.{as_bits.dtype}.{len(flat)}"
        )
        moved = self._wait(handle)
        received: Tensor = (
            moved[0] if isinstance(moved, tuple) else moved
        )  # some operations also return the sizes of the parts
        return received.view(flat.dtype)


def _bits(flat: Tensor) -> Tensor:
    """View bfloat16, which Horovod 0.28.1 does not support for PyTorch, as integers; return other tensors unchanged."""
    return flat.view(torch.int16) if flat.dtype == torch.bfloat16 else flat


def check_carries(hvd: Any, device: torch.device) -> None:
    """Raise :class:`CommunicationError` if this build of Horovod cannot sum tensors on the device.

    Gloo handles only main memory; GPU tensors need NCCL, or MPI built with CUDA support.
    """
    if device.type != "cuda" or hvd.nccl_built() or (hvd.mpi_built() and hvd.cuda_built()):
        return
    raise CommunicationError(
        "Horovod was built without NCCL here and cannot reduce tensors on a GPU; use --backend "
        "torch, build it with HOROVOD_GPU_OPERATIONS=NCCL hpo install-horovod, or "
        "train on the CPU with --device cpu"
    )


def _monitor(hvd: Any, timeout_seconds: float, device: torch.device) -> HeartbeatMonitor | None:
    """Create the monitor over a store held by worker 0; return None if a worker cannot reach the store."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    host, server = os.environ.get("HOROVOD_HOSTNAME", socket.gethostname()), None
    if hvd.rank() == 0:
        with suppress(RuntimeError, OSError):
            server = serve_tcp_store(host, 0, timeout_seconds)
    host, port = _told(hvd, host, server.port if server else 0)
    store = server
    if hvd.rank() != 0 and port:
        with suppress(RuntimeError):
            store = TCPStore(
                host, port, is_master=False, timeout=timedelta(seconds=timeout_seconds)
            )
    reached = torch.tensor([float(store is not None)])
    hvd.allreduce_(reached, op=hvd.Sum, name="monitor.reached")
    if store is None or int(reached) < hvd.size():
        return None
    claim_gpu(store, device, hvd.rank())
    return HeartbeatMonitor(
        store,
        hvd.rank(),
        hvd.size(),
        beat_seconds=heartbeat_seconds(timeout_seconds),
        holder="worker 0",
        holds_store=hvd.rank() == 0,
    )


def _told(hvd: Any, host: str, port: int) -> tuple[str, int]:
    """Broadcast worker 0's host and port as bytes: ``broadcast_object`` would unpickle what a peer sends."""
    text = torch.zeros(_LONGEST_HOST, dtype=torch.uint8)
    words = f"{port} {host}".encode()[:_LONGEST_HOST]
    text[: len(words)] = torch.frombuffer(bytearray(words), dtype=torch.uint8)
    hvd.broadcast_(text, root_rank=0, name="monitor")
    number, _, name = bytes(text.tolist()).rstrip(b"\0").decode().partition(" ")
    return name, int(number)


def _import_horovod() -> Any:
    try:
        import horovod.torch
    except ImportError as error:
        raise CommunicationError(
            f"Horovod is not installed for PyTorch here ({error}); use --backend torch"
        ) from error
    return horovod.torch
