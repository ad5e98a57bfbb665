"""The training loop: one job, on any number of workers, to its target or to the end of its budget.

Every random number is a function of the seed and of a position in the stream of samples, so a training that
is resumed from a checkpoint goes on as if it had never stopped.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trainers import checkpoint as checkpoints
from trainers.distributed.communicator import Communicator
from trainers.errors import CheckpointError, WorkloadError
from trainers.job import TrainingJob
from trainers.normalization import common_group_size, end_update, ghost_batch_norms, persistent_statistics
from trainers.optimizers import make_optimizer
from trainers.prefetch import prefetched
from trainers.random_numbers import mixed_seed
from trainers.report import ConvergencePoint, TrainingOutcome
from trainers.run import Stretch, TrainingRun
from trainers.sampling import SampleStream, batch_layout
from trainers.schedules import learning_rate
from trainers.workloads import Batch, Workload, begin_training, load_workload


def train(job: TrainingJob, communicator: Communicator, report: Callable[[ConvergencePoint], None], *,
          checkpoint: Path | None = None) -> TrainingOutcome:
    """Train to the end; worker 0 reports each evaluation and then saves the checkpoint.

    Where ``checkpoint`` exists the training goes on from there. All workers must see the same file.
    """
    training = begin_training(job, communicator)
    if checkpoint is not None:
        resume(training, communicator, checkpoint)
    return finish(training, communicator, report, checkpoint=checkpoint)


def resume(training: TrainingRun, communicator: Communicator, checkpoint: Path) -> None:
    """Load ``checkpoint`` if it exists, on every worker or on none."""
    found = torch.tensor([float(checkpoint.exists())], device=communicator.device)
    communicator.all_reduce_mean_([found])
    if 0 < float(found) < 1:
        raise CheckpointError(f"only some of the workers see the checkpoint {checkpoint}; it must lie on a "
                              "shared file system")
    if float(found) == 1:
        training.load_state_dict(checkpoints.load(checkpoint))


def finish(training: TrainingRun, communicator: Communicator, report: Callable[[ConvergencePoint], None], *,
           checkpoint: Path | None = None) -> TrainingOutcome:
    """Advance to the end; worker 0 reports each evaluation and then saves the checkpoint."""
    while not training.finished:
        point = training.advance()
        if communicator.rank == 0:
            report(point)
            if checkpoint is not None:
                checkpoints.save(checkpoint, training.state_dict())
    return training.outcome


class Training(TrainingRun):
    """A training of a model on the workers' devices; ``seconds`` are those of the wall clock."""

    def __init__(self, job: TrainingJob, communicator: Communicator, *,
                 workload: Workload | None = None) -> None:
        self.workload = workload or _load(job)
        super().__init__(job, self.workload)
        self.communicator = communicator
        self.device = communicator.device
        self._build_model()
        self._lay_out_batches()
        self.optimizer = make_optimizer(self.model.parameters(), job.settings)
        self._batches = self._training_batches(0)

    def _train(self, first_step: int, last_step: int) -> Stretch:
        started = time.perf_counter()
        with torch.random.fork_rng(devices=[self.device] if self.device.type == "cuda" else []):
            losses, rate = self._updates(first_step, last_step)
            scores = self._evaluate()
        return Stretch(train_loss=float(losses.mean()), first_loss=float(losses[0]), learning_rate=rate, scores=scores,
                       seconds=time.perf_counter() - started)

    def _weights(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def _load_weights(self, state: Mapping[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self._batches = self._training_batches(self.progress.step)

    # building

    def _build_model(self) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(mixed_seed(self.job.seed, 1))
            self.model = self.workload.build_model(self.job.settings).to(self.device)
        self.parameters = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        self.norms = ghost_batch_norms(self.model)
        self.statistics = persistent_statistics(self.model)
        self.communicator.broadcast_(self.parameters)

    def _lay_out_batches(self) -> None:
        job = self.job
        self.group_size = common_group_size(self.norms)
        largest = job.micro_batch_size or max(self.group_size, self.workload.largest_micro_batch)
        self.layout = batch_layout(job.global_batch_size, self.communicator.size, self.group_size, largest)
        self.stream = SampleStream(self.workload.train_samples, job.seed)

    def _training_batches(self, first_step: int) -> Iterator[tuple[float, Batch]]:
        """Every micro batch from update ``first_step`` on, with its share of the local batch."""
        def load(position: tuple[int, int]) -> tuple[float, Batch]:
            indices, epochs = self.stream.take(*position)
            return len(indices) / self.layout.local_batch_size, self.workload.training_batch(
                indices, epochs, self.job.seed)
        positions = itertools.chain.from_iterable(
            self.layout.positions(step, self.communicator.rank) for step in itertools.count(first_step))
        return prefetched(map(load, positions), self.workload.prefetched_batches)

    # training

    def _updates(self, first_step: int, last_step: int) -> tuple[Tensor, float]:
        """The mean loss of each update over all workers, shape ``(updates,)``, and the last learning rate."""
        self.model.train()
        losses, rate = [], math.nan
        for step in range(first_step, last_step):
            rate = learning_rate(self.job.settings, self._epochs(step), self.job.epochs)
            losses.append(self._update(step, rate))
        means = torch.stack(losses).double()
        self.communicator.all_reduce_mean_([means])
        return means, rate

    def _update(self, step: int, rate: float) -> Tensor:
        """One update; returns this worker's mean loss."""
        self._seed_generators(step)
        local_loss = torch.zeros((), device=self.device)
        for share, batch in itertools.islice(self._batches, self.layout.micro_batches):
            loss = self.workload.loss(self.model, self._on_device(batch), self.job.settings) * share
            loss.backward()  # type: ignore[no-untyped-call]
            local_loss += loss.detach()
        self.communicator.all_reduce_mean_(self._gradients())
        end_update(self.norms, self.job.global_batch_size // self.group_size)
        self.optimizer.step(rate)
        for parameter in self.parameters:
            parameter.grad = None
        return local_loss

    def _seed_generators(self, step: int) -> None:
        """Seed what dropout draws from, so that a checkpoint need not hold a generator's state."""
        seed = mixed_seed(self.job.seed, 2, step, self.communicator.rank)
        torch.default_generator.manual_seed(seed)  # torch.manual_seed also visits every other device, at 0.1 ms
        if self.device.type == "cuda":
            torch.cuda.manual_seed(seed)

    def _gradients(self) -> list[Tensor]:
        for parameter in self.parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        return [parameter.grad for parameter in self.parameters if parameter.grad is not None]

    def _on_device(self, batch: Batch) -> Batch:
        if self.device.type == "cpu":
            return batch
        return tuple(tensor.to(self.device, non_blocking=True) for tensor in batch)

    # evaluation

    @torch.no_grad()
    def _evaluate(self) -> dict[str, float]:
        """The mean of every metric over all evaluation samples, each worker scoring its share."""
        self.communicator.all_reduce_mean_(self.statistics)
        self.model.eval()
        rank, size, samples = self.communicator.rank, self.communicator.size, self.workload.evaluation_samples
        mine = torch.arange(samples * rank // size, samples * (rank + 1) // size)
        totals = torch.zeros(len(self.workload.metrics), dtype=torch.float64, device=self.device)
        largest = self.job.micro_batch_size or self.workload.largest_micro_batch
        for first in range(0, len(mine), largest):
            batch = self._on_device(self.workload.evaluation_batch(mine[first : first + largest]))
            scores = self.workload.score(self.model, batch)
            totals += torch.stack([scores[name].double().sum() for name in self.workload.metrics])
        self.communicator.all_reduce_sum_([totals])
        return dict(zip(self.workload.metrics, (totals / samples).tolist(), strict=True))


def _load(job: TrainingJob) -> Workload:
    workload = load_workload(job.workload, job.data, job.search_path)
    if not isinstance(workload, Workload):
        raise WorkloadError(f"the workload {job.workload!r} trains itself, without a model of PyTorch; begin it with "
                            "trainers.workloads.begin_training")
    return workload
