"""AsynchronousTraining: the parameter server and its replicas train the epochs, and this process evaluates."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from trainers.asynchronous.actors import AsynchronousActors
from trainers.asynchronous.clocks import Staleness
from trainers.asynchronous.messages import ActorSetup, EpochUpdates
from trainers.distributed.communicator import Communicator
from trainers.distributed.single import SingleProcessCommunicator
from trainers.errors import JobError
from trainers.job import TrainingJob
from trainers.loop.checkpoint import load_model
from trainers.loop.micro_batches import MicroBatchLoader
from trainers.loop.replica import Replica, evaluate_replica
from trainers.loop.sample_images import sample_images_of
from trainers.report import ConvergencePoint
from trainers.schedules.noise_scale import SMOOTHING, GradientStatistics
from trainers.schedules.weight_decay import with_weight_decay
from trainers.workloads import Workload
from trainers.workloads.training_run import TrainingRun, TrainingSegment

_LOG = logging.getLogger(__name__)


class AsynchronousTraining(TrainingRun):
    """A training run in update mode ``asynchronous`` or ``stale_synchronous``; see ``trainers.asynchronous``.

    Each replica opens the job's workload with the data options of ``workload``, so that all replicas read the folder
    that was staged to the node. Updates that a quorum skipped count as done, both in ``step`` and in the schedules,
    because their samples belonged to the epoch. A checkpoint holds the server's state. Because the replicas race, a
    resumed run is not bit-for-bit identical to an uninterrupted one.

    Attributes:
        staleness: the staleness measurements of each epoch, in order, since this object was created.
        timeout_seconds: how long a replica may be silent before an error is raised.
    """

    def __init__(
        self,
        job: TrainingJob,
        communicator: Communicator,
        *,
        workload: Workload,
        timeout_seconds: float = 600.0,
    ) -> None:
        super().__init__(job, workload.metrics, workload.train_samples)
        if communicator.size > 1:
            raise JobError(
                f"update_mode {job.settings.update_mode!r} starts its own replicas (asynchronous_workers), "
                f"but {communicator.size} workers were started; start a single process"
            )
        self.workload, self.communicator, self.timeout_seconds = (
            workload,
            communicator,
            timeout_seconds,
        )
        self.replica = Replica(workload, job.settings, job.seed, communicator.device)
        # a layout that does not fit is rejected here, before any actor starts
        MicroBatchLoader(
            workload,
            job,
            self.batch_schedule,
            SingleProcessCommunicator(communicator.device),
            self.replica,
        )
        self.staleness: list[Staleness] = []
        settings = with_weight_decay(job.settings, job.global_batch_size, self.train_samples)
        self._state: dict[str, Any] | None = {
            "model": self.model.state_dict(),
            "optimizer": self.replica.optimizer(settings).state_dict(),
            "statistics": GradientStatistics(SMOOTHING).state_dict(),
        }
        self._actors: AsynchronousActors | None = None

    @property
    def model(self) -> nn.Module:
        """The model with the server's weights at the last evaluation."""
        return self.replica.model

    def advance(self) -> ConvergencePoint:
        """Train up to the next evaluation and evaluate; stop the actors when training ends or fails."""
        try:
            point = super().advance()
            if self.finished:
                self._state = self._weights()
                self.close()
        except BaseException:
            self.close()
            raise
        return point

    def close(self) -> None:
        """Stop the server and the replicas; their work since the last evaluation is lost."""
        if self._actors is not None:
            self._actors.close()
            self._actors = None

    def sample_images(self) -> dict[str, Any] | None:
        """Return the workload's sample images of the current model; see :mod:`trainers.loop.sample_images`."""
        return sample_images_of(self.replica)

    def _train(self, first_step: int, last_step: int) -> TrainingSegment:
        actors = self._started()
        started = time.perf_counter()
        self._state = None
        result = actors.run(EpochUpdates(len(self.staleness), first_step, last_step))
        self._record(result.staleness)
        actors.copy_weights(self.replica.parameters, self.replica.statistics)
        scores = evaluate_replica(self.replica, self.communicator, self.job.micro_batch_size)
        losses = torch.tensor(result.losses, dtype=torch.float64)
        return TrainingSegment(
            train_loss=float(losses.mean()),
            first_loss=float(losses[0]),
            learning_rate=result.learning_rate,
            scores=scores,
            seconds=time.perf_counter() - started,
            gradient_noise_scale=result.noise_scale,
        )

    def _started(self) -> AsynchronousActors:
        if self._actors is None:
            workers = self.job.settings.asynchronous_workers
            options = self.workload.data_options
            job = (
                self.job.to_dict()
                if options is None
                else {**self.job.to_dict(), "data": dict(options)}
            )
            setup = ActorSetup(
                job=job,
                workers=workers,
                threads=max(1, torch.get_num_threads() // workers),
                visible_devices=os.environ.get("CUDA_VISIBLE_DEVICES"),
            )
            self._actors = AsynchronousActors(setup, self.timeout_seconds)
            if self._state is not None:
                self._actors.load_state_dict(self._state)
        return self._actors

    def _record(self, measured: Staleness) -> None:
        self.staleness.append(measured)
        _LOG.info(
            "%d updates, %d skipped; staleness %.2f on average, %d at most; lead %d at most",
            measured.updates,
            measured.skipped,
            measured.mean,
            measured.maximum,
            measured.lead,
        )

    def _weights(self) -> dict[str, Any]:
        if self._state is None:
            if self._actors is None:
                raise JobError(
                    "the asynchronous training failed and its weights are lost; restart it "
                    "from its last checkpoint"
                )
            self._state = self._actors.state_dict()
        return self._state

    def _load_weights(self, state: Mapping[str, Any]) -> None:
        load_model(self.model, state["model"])
        self._state = {name: state[name] for name in ("model", "optimizer", "statistics")}
        if self._actors is not None:
            self._actors.load_state_dict(self._state)
