"""The parameter server, which holds the weights and the optimizer, and applies each gradient as it arrives."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Mapping
from typing import Any

import torch

from trainers.asynchronous.clocks import WorkerClocks, worker_share
from trainers.asynchronous.messages import (
    ActorSetup,
    EpochResult,
    EpochUpdates,
    GradientPush,
    ServerWeights,
    pack_tensors,
    unpack_tensors,
)
from trainers.asynchronous.setup import build_actor_parts
from trainers.distributed.reducer import COMPRESSIONS
from trainers.loop.checkpoint import load_model
from trainers.numerics.precision import zero_gradient
from trainers.schedules.learning_rate import learning_rate
from trainers.schedules.noise_scale import SMOOTHING, GradientStatistics
from trainers.schedules.weight_decay import with_weight_decay


class ParameterServer:
    """The server actor: replicas call ``pull`` and ``push``, the training process calls the other methods.

    Calls interleave between updates.
    """

    def __init__(self, setup: ActorSetup) -> None:
        self._built = build_actor_parts(setup, number=0)
        self._settings, self._replica = self._built.job.settings, self._built.replica
        self._workers = setup.workers
        self._optimizer = self._replica.optimizer(
            with_weight_decay(
                self._settings,
                self._built.job.global_batch_size,
                self._built.workload.train_samples,
            )
        )
        self._like_gradients = [zero_gradient(parameter) for parameter in self._replica.parameters]
        self._travels_as = COMPRESSIONS[self._settings.gradient_compression]
        self._statistics = GradientStatistics(SMOOTHING)
        self._changed = asyncio.Condition()
        self._version = 0
        self._packed: ServerWeights | None = None
        self._begin(EpochUpdates(-1, 0, 0))

    async def begin(self, epoch: EpochUpdates) -> None:
        """Let the replicas start an epoch."""
        self._begin(epoch)

    async def pull(self, epoch: int, worker: int) -> ServerWeights | None:
        """Return the weights for a worker's next update once it may start; None when the epoch is over."""
        self._waiting.add(worker)
        async with self._changed:
            await self._changed.wait_for(
                lambda: self._closed(epoch) or self._clocks.may_begin(worker)
            )
        self._waiting.discard(worker)
        self._heard[worker] = time.monotonic()
        if self._closed(epoch):
            return None
        self._clocks.begin(worker)
        return self._weights()

    async def push(self, push: GradientPush) -> bool:
        """Apply a gradient; return False, without applying it, when its epoch is over."""
        self._heard[push.worker] = time.monotonic()
        if self._closed(push.epoch):
            return False
        self._apply(push)
        async with self._changed:
            self._changed.notify_all()
        return not self._closed(push.epoch)

    async def result(self) -> EpochResult:
        """Wait until the epoch is over, and average the workers' normalization statistics."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._clocks.over)
        self._average_statistics()
        return EpochResult(
            list(self._losses), self._rate, self._statistics.noise_scale, self._clocks.measured()
        )

    async def silences(self) -> dict[int, float]:
        """Return the seconds since the last call of each worker that is neither finished nor held back."""
        now = time.monotonic()
        return {
            worker: now - heard
            for worker, heard in enumerate(self._heard)
            if worker not in self._waiting and not self._clocks.finished(worker)
        }

    async def weights(self) -> ServerWeights:
        """Return the current parameters and statistics."""
        return self._weights()

    async def state_dict(self) -> dict[str, Any]:
        """Return the state of the model, the optimizer and the noise scale averages."""
        return {
            "model": self._replica.model.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "statistics": self._statistics.state_dict(),
        }

    async def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state returned by :meth:`state_dict`."""
        load_model(self._replica.model, state["model"])
        self._optimizer.load_state_dict(state["optimizer"])
        self._statistics.load_state_dict(state["statistics"])
        self._packed = None

    def _begin(self, epoch: EpochUpdates) -> None:
        bounded = self._settings.update_mode == "stale_synchronous"
        shares = [
            len(worker_share(epoch.first_step, epoch.last_step, worker, self._workers))
            for worker in range(self._workers)
        ]
        self._epoch = epoch
        self._clocks = WorkerClocks(
            shares,
            self._settings.staleness_bound if bounded else None,
            1.0 if bounded else self._settings.epoch_quorum,
        )
        self._losses: list[float] = []
        self._rate = math.nan
        self._worker_statistics: dict[int, list[torch.Tensor]] = {}
        self._heard = [time.monotonic()] * self._workers
        self._waiting: set[int] = set()

    def _closed(self, epoch: int) -> bool:
        return epoch != self._epoch.number or self._clocks.over

    def _apply(self, push: GradientPush) -> None:
        epochs = self._built.batch_schedule.epochs(self._epoch.first_step + len(self._losses))
        self._rate = learning_rate(self._settings, epochs, self._built.job.epochs)
        if push.gradient is not None:
            self._replica.set_gradients(
                unpack_tensors(push.gradient, self._like_gradients, self._travels_as)
            )
            self._optimizer.step(self._rate, epochs)
            self._replica.set_gradients(None)
        if push.measured is not None:
            self._statistics.add(push.measured)
        self._clocks.end(push.worker, self._version - push.version)
        self._losses.append(push.loss)
        self._worker_statistics[push.worker] = unpack_tensors(
            push.statistics, self._replica.statistics
        )
        self._version += 1
        self._packed = None

    def _average_statistics(self) -> None:
        seen = list(self._worker_statistics.values())
        if seen:
            for at, mine in enumerate(self._replica.statistics):
                mine.copy_(
                    torch.stack([each[at] for each in seen]).mean(0)
                    if len(seen) > 1
                    else seen[0][at]
                )
            self._worker_statistics = {}
            self._packed = None

    def _weights(self) -> ServerWeights:
        if self._packed is None:
            self._packed = ServerWeights(
                self._version,
                pack_tensors(self._replica.parameters),
                pack_tensors(self._replica.statistics),
            )
        return self._packed
