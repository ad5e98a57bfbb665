"""The training loop: train one job on any number of workers, to its target or the end of its budget.

Every random number is a function of the seed and of a position in the stream of samples, so a run that is
resumed from a checkpoint continues as if it had never stopped.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from search_spaces.settings import TrainingSettings
from trainers.distributed.communicator import Communicator
from trainers.errors import JobError
from trainers.job import TrainingJob
from trainers.loop.checkpoint import load_model
from trainers.loop.gradients import GradientComputation, MeasuredNorms
from trainers.loop.memory_limit import limited_by_memory
from trainers.loop.micro_batches import MicroBatchLoader
from trainers.loop.replica import Replica, evaluate_replica
from trainers.loop.sample_images import sample_images_of
from trainers.numerics.memory import held_bytes
from trainers.schedules.adascale import AdaScale
from trainers.schedules.learning_rate import learning_rate, learning_rate_by
from trainers.schedules.noise_scale import SMOOTHING, GradientStatistics
from trainers.schedules.weight_decay import with_weight_decay
from trainers.workloads import Workload, load_model_workload
from trainers.workloads.training_run import TrainingRun, TrainingSegment


class SynchronousTraining(TrainingRun):
    """A run that trains a model on the workers' devices; ``seconds`` is wall-clock time."""

    def __init__(
        self, job: TrainingJob, communicator: Communicator, *, workload: Workload | None = None
    ) -> None:
        self.workload = workload or load_model_workload(job)
        super().__init__(job, self.workload.metrics, self.workload.train_samples)
        if communicator.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(communicator.device)
        _check_settings(job.settings)
        self.communicator = communicator
        self.replica = Replica(self.workload, job.settings, job.seed, communicator.device)
        communicator.broadcast_(self.replica.parameters)
        self.job = job = limited_by_memory(job, self.replica, communicator)
        self.loader = MicroBatchLoader(
            self.workload, job, self.batch_schedule, communicator, self.replica
        )
        self.gradients = GradientComputation(self.replica, job.settings, communicator)
        settings = with_weight_decay(job.settings, job.global_batch_size, self.train_samples)
        self.optimizer = self.replica.optimizer(settings, communicator)
        self.statistics = GradientStatistics(SMOOTHING)
        self.adascale = (
            None
            if job.settings.adascale_batch_size is None
            else AdaScale(
                job.settings.adascale_batch_size,
                job.global_batch_size,
                self.train_samples,
                communicator.device,
            )
        )
        self._micro_batches, self._loaded_to = self.loader.micro_batches(0), 0
        self._measured: list[MeasuredNorms] = []

    @property
    def model(self) -> nn.Module:
        """The model that is being trained."""
        return self.replica.model

    def sample_images(self) -> dict[str, Any] | None:
        """Return the workload's sample images of the current model; see :mod:`trainers.loop.sample_images`."""
        with self.optimizer.evaluation():
            return sample_images_of(self.replica)

    def _train(self, first_step: int, last_step: int) -> TrainingSegment:
        started = time.perf_counter()
        if first_step != self._loaded_to:  # other code did the updates, such as trainers.fused
            self._go_to(first_step)
        self._loaded_to = last_step
        with torch.random.fork_rng(
            devices=[self.replica.device] if self.replica.device.type == "cuda" else []
        ):
            losses, rate = self._updates(first_step, last_step)
            with self.optimizer.evaluation():
                scores = evaluate_replica(
                    self.replica, self.communicator, self.job.micro_batch_size
                )
        return TrainingSegment(
            train_loss=float(losses.mean()),
            first_loss=float(losses[0]),
            learning_rate=rate,
            scores=scores,
            seconds=time.perf_counter() - started,
            gradient_noise_scale=self.statistics.noise_scale,
            memory_bytes=held_bytes(self.replica.device),
        )

    def _follow_batches(self) -> None:
        self.loader.follow(self.batch_schedule)
        self._loaded_to = -1  # prefetched micro batches were cut for other updates

    def _go_to(self, step: int) -> None:
        """Continue with the micro batches of update ``step``."""
        self._micro_batches, self._loaded_to = self.loader.micro_batches(step), step

    def _updates(self, first_step: int, last_step: int) -> tuple[Tensor, float]:
        """Return the mean loss of each update over all workers, shape ``(updates,)``, and the last learning rate."""
        self.model.train()
        losses: list[Tensor] = []
        rate: float | Tensor = math.nan
        for step in range(first_step, last_step):
            loss, rate = self._update(step)
            losses.append(loss)
        self.gradients.settle()
        for measured in self._measured:
            self.statistics.add(measured.read())
        self._measured.clear()
        means = torch.stack(losses).double()
        self.communicator.all_reduce_mean_([means])
        return means, float(rate)

    def _update(self, step: int) -> tuple[Tensor, float | Tensor]:
        """Do one update without waiting for an accelerator; return this worker's mean loss and the learning rate."""
        self.replica.seed_generators(step, self.communicator.rank)
        layout = self.loader.layout(step)
        micro_batches = itertools.islice(self._micro_batches, layout.micro_batches)
        loss, arrived = self.gradients.compute(micro_batches, self.loader.measured(step))
        self.replica.end_update(layout.global_batch_size)
        if (measured := arrived.measured) is not None:
            self._measured.append(measured)
            if self.adascale is not None:
                self.adascale.add(
                    measured.norms, measured.chunk_samples, measured.global_batch_size
                )
        rate = self._step_optimizer(step, arrived.overflowed)
        self.replica.set_gradients(None)
        return loss, rate

    def _step_optimizer(self, step: int, overflowed: Tensor | None) -> float | Tensor:
        """Update the weights with the gradients, unless one overflowed; return the learning rate."""
        settings, scale = self.scheduled, self.adascale
        epochs: float | Tensor
        rate: float | Tensor
        if scale is None:
            epochs = self.batch_schedule.epochs(step)
            rate = learning_rate(settings, epochs, self.job.epochs)
            self.optimizer.step(rate, epochs, overflowed)
            return rate
        epochs = scale.epochs
        rate = scale.gain * learning_rate_by(scale.arithmetic, settings, epochs, self.job.epochs)
        self.optimizer.step(rate, epochs, overflowed)
        scale.advance(overflowed)
        return rate

    def gather(self) -> None:
        """Copy the parts of the optimizer's state that only some workers keep to every worker."""
        self.optimizer.gather()

    def _weights(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "gradients": self.gradients.state_dict(),
            "statistics": self.statistics.state_dict(),
            "adascale": self.adascale.state_dict() if self.adascale else {},
        }

    def _load_weights(self, state: Mapping[str, Any]) -> None:
        load_model(self.model, state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.gradients.load_state_dict(state["gradients"])
        self.statistics.load_state_dict(state["statistics"])
        if self.adascale is not None:
            self.adascale.load_state_dict(state["adascale"])
        self._go_to(self.progress.step)


def _check_settings(settings: TrainingSettings) -> None:
    if settings.adascale_batch_size is not None and settings.gradient_reduction != "mean":
        raise JobError(
            "AdaScale (adascale_batch_size) compares gradients with their mean and needs "
            f"gradient_reduction 'mean', but got {settings.gradient_reduction!r}"
        )
