"""A replica, which takes weights, computes the gradient of its next global batch, and submits it."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from typing import Protocol

from trainers.asynchronous.clocks import worker_share
from trainers.asynchronous.messages import (
    ActorSetup,
    EpochUpdates,
    GradientPush,
    ServerWeights,
    copy_into,
    pack_tensors,
)
from trainers.asynchronous.setup import build_actor_parts
from trainers.distributed.reducer import COMPRESSIONS
from trainers.distributed.single import SingleProcessCommunicator
from trainers.loop.gradients import GradientComputation
from trainers.loop.micro_batches import MicroBatch, MicroBatchLoader


class ServerHandle(Protocol):
    """The parameter server as seen by a replica; each call blocks until the server answers."""

    def pull(self, epoch: int, worker: int) -> ServerWeights | None:
        """See :meth:`trainers.asynchronous.server.ParameterServer.pull`."""

    def push(self, push: GradientPush) -> bool:
        """See :meth:`trainers.asynchronous.server.ParameterServer.push`."""


class AsynchronousReplica:
    """One replica, numbered from 0, with its own loss scale and its own data."""

    def __init__(self, setup: ActorSetup, number: int, server: ServerHandle) -> None:
        self._number, self._workers, self._server = number, setup.workers, server
        built = build_actor_parts(setup, number)
        self._job, self._replica = built.job, built.replica
        alone = SingleProcessCommunicator(self._replica.device)
        self._loader = MicroBatchLoader(
            built.workload, self._job, built.batch_schedule, alone, self._replica
        )
        self._gradients = GradientComputation(self._replica, self._job.settings, alone)
        self._compression = COMPRESSIONS[self._job.settings.gradient_compression]
        self._micro_batches: Iterator[MicroBatch] = iter(())
        self._next_step = -1

    def process_id(self) -> int:
        """Return the process ID of this replica once it has been built."""
        return os.getpid()

    def train(self, epoch: EpochUpdates) -> None:
        """Do this replica's share of an epoch, or as much of it as possible before the other replicas end the epoch."""
        self._replica.model.train()
        for done, step in enumerate(
            worker_share(epoch.first_step, epoch.last_step, self._number, self._workers)
        ):
            weights = self._server.pull(epoch.number, self._number)
            if weights is None:
                return
            copy_into(self._replica.parameters, weights.parameters)
            if done == 0:  # afterwards each replica updates its own, until the server averages them
                copy_into(self._replica.statistics, weights.statistics)
            if not self._server.push(self._compute(epoch.number, step, weights.version)):
                return

    def _compute(self, epoch: int, step: int, version: int) -> GradientPush:
        layout = self._loader.layout(step)
        micro_batches = itertools.islice(self._batches_from(step), layout.micro_batches)
        self._replica.seed_generators(step, 0)
        loss, arrived = self._gradients.compute(micro_batches, self._loader.measured(step))
        self._replica.end_update(layout.global_batch_size)
        gradient = (
            None
            if arrived.overflowed is not None and arrived.overflowed
            else pack_tensors(self._replica.gradients(), self._compression)
        )
        self._replica.set_gradients(None)
        return GradientPush(
            epoch,
            self._number,
            version,
            float(loss),
            gradient,
            pack_tensors(self._replica.statistics),
            None if arrived.measured is None else arrived.measured.read(),
        )

    def _batches_from(self, step: int) -> Iterator[MicroBatch]:
        """Return this replica's micro batches from ``step``, restarted if the last epoch skipped part of its share."""
        if step != self._next_step:
            self._micro_batches = self._loader.micro_batches(step, every=self._workers)
        self._next_step = step + self._workers
        return self._micro_batches
