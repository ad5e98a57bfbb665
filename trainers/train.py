"""The training loop: one job, on any number of workers, to its target or to the end of its budget.

Every random number is a function of the seed and of a position in the stream of samples, so a training that
is resumed from a checkpoint goes on as if it had never stopped.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trainers import checkpoint as checkpoints
from trainers.distributed.communicator import Communicator
from trainers.errors import CheckpointError, JobError, WorkloadError, nearest
from trainers.job import TrainingJob
from trainers.normalization import common_group_size, end_update, ghost_batch_norms, persistent_statistics
from trainers.optimizers import make_optimizer
from trainers.prefetch import prefetched
from trainers.random_numbers import mixed_seed
from trainers.report import ConvergencePoint, TrainingOutcome
from trainers.sampling import SampleStream, batch_layout
from trainers.schedules import learning_rate
from trainers.workloads import Batch, Workload, load_workload

DIVERGENCE_FACTOR = 3.0
"""A training has diverged when its mean loss between two evaluations exceeds so many times its first loss."""


def train(job: TrainingJob, communicator: Communicator, report: Callable[[ConvergencePoint], None], *,
          checkpoint: Path | None = None) -> TrainingOutcome:
    """Train to the end; worker 0 reports each evaluation and then saves the checkpoint.

    Where ``checkpoint`` exists the training goes on from there. All workers must see the same file.
    """
    training = Training(job, communicator)
    if checkpoint is not None:
        resume(training, checkpoint)
    return finish(training, report, checkpoint=checkpoint)


def resume(training: Training, checkpoint: Path) -> None:
    """Load ``checkpoint`` if it exists, on every worker or on none."""
    found = torch.tensor([float(checkpoint.exists())], device=training.device)
    training.communicator.all_reduce_mean_([found])
    if 0 < float(found) < 1:
        raise CheckpointError(f"only some of the workers see the checkpoint {checkpoint}; it must lie on a "
                              "shared file system")
    if float(found) == 1:
        training.load_state_dict(checkpoints.load(checkpoint))


def finish(training: Training, report: Callable[[ConvergencePoint], None], *,
           checkpoint: Path | None = None) -> TrainingOutcome:
    """Advance to the end; worker 0 reports each evaluation and then saves the checkpoint."""
    while not training.finished:
        point = training.advance()
        if training.communicator.rank == 0:
            report(point)
            if checkpoint is not None:
                checkpoints.save(checkpoint, training.state_dict())
    return training.outcome


@dataclass
class Progress:
    """How far a training has come; plain numbers, so that a checkpoint holds it as it is."""

    step: int = 0
    seconds: float = 0.0
    first_loss: float = math.nan
    best_metric: float = math.nan
    final_metric: float = math.nan
    state: str = "running"
    reason: str = ""


class Training:
    """One training in progress; ``advance`` goes to the next evaluation until ``finished``."""

    def __init__(self, job: TrainingJob, communicator: Communicator, *,
                 workload: Workload | None = None) -> None:
        self.job = job
        self.communicator = communicator
        self.device = communicator.device
        self.workload = workload or load_workload(job.workload, job.data, job.search_path)
        _check_target(job, self.workload)
        self.progress = Progress()
        self._build_model()
        self._lay_out_batches()
        self.optimizer = make_optimizer(self.model.parameters(), job.settings)
        self._batches = self._training_batches(0)

    @property
    def finished(self) -> bool:
        """Whether the target was reached, the budget ended, or the training diverged."""
        return self.progress.state != "running"

    @property
    def outcome(self) -> TrainingOutcome:
        """How the training ended; only once it is ``finished``."""
        if not self.finished:
            raise JobError("a training has an outcome only once it is finished; call advance() until it is")
        at = self.progress
        epochs = self._epochs(at.step)
        return TrainingOutcome(
            state=at.state, epochs_to_target=epochs if at.state == "reached" else None, epochs=epochs, steps=at.step,
            seconds=at.seconds, best_metric=at.best_metric, final_metric=at.final_metric, reason=at.reason)

    def advance(self) -> ConvergencePoint:
        """Train to the next evaluation, evaluate, and decide whether the training goes on."""
        if self.finished:
            raise JobError(f"the training is finished: {self.progress.reason}")
        started = time.perf_counter()
        with torch.random.fork_rng(devices=[self.device] if self.device.type == "cuda" else []):
            train_loss, rate = self._train_to_next_evaluation()
            scores = self._evaluate()
        self.progress.seconds += time.perf_counter() - started
        self._decide(train_loss, scores[self.job.target.metric])
        return self._point(train_loss, scores, rate)

    def state_dict(self) -> dict[str, Any]:
        """Everything that a resumed training needs, as tensors and plain values; the same on every worker."""
        return {"job": _identity(self.job), "model": self.model.state_dict(),
                "optimizer": self.optimizer.state_dict(), "progress": dataclasses.asdict(self.progress)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what :meth:`state_dict` gave, with any number of workers and any micro batch."""
        _check_same_job(state, self.job)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.progress = Progress(**state["progress"])
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
        steps_per_epoch = self.workload.train_samples / job.global_batch_size
        self.total_steps = max(1, math.ceil(job.epochs * steps_per_epoch - 1e-9))
        self.steps_per_evaluation = max(1, round(steps_per_epoch / job.evaluations_per_epoch))

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

    def _train_to_next_evaluation(self) -> tuple[float, float]:
        """The mean loss over the updates, and the learning rate of the last one."""
        self.model.train()
        evaluations = self.progress.step // self.steps_per_evaluation
        last = min(self.total_steps, (evaluations + 1) * self.steps_per_evaluation)
        losses, rate = [], math.nan
        for step in range(self.progress.step, last):
            rate = learning_rate(self.job.settings, self._epochs(step), self.job.epochs)
            losses.append(self._update(step, rate))
        self.progress.step = last
        means = torch.stack(losses).double()
        self.communicator.all_reduce_mean_([means])
        if math.isnan(self.progress.first_loss):
            self.progress.first_loss = float(means[0])
        return float(means.mean()), rate

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

    def _decide(self, train_loss: float, metric: float) -> None:
        at, target = self.progress, self.job.target
        at.best_metric, at.final_metric = target.better(at.best_metric, metric), metric
        limit = at.first_loss + (DIVERGENCE_FACTOR - 1) * abs(at.first_loss)
        if not (math.isfinite(train_loss) and train_loss <= limit):
            at.state = "diverged"
            at.reason = (f"the mean training loss over the updates up to {at.step} was {train_loss:.4g}, not finite "
                         f"or above {DIVERGENCE_FACTOR:g} times the first update's {at.first_loss:.4g}")
        elif target.reached(metric):
            at.state = "reached"
            at.reason = f"{target.metric} {metric:.4g} reached the target {target}"
        elif at.step >= self.total_steps:
            at.state = "censored"
            at.reason = (f"the budget of {self.job.epochs:g} epochs ended before the target {target}; "
                         f"the best was {at.best_metric:.4g}")

    def _point(self, train_loss: float, scores: Mapping[str, float], rate: float) -> ConvergencePoint:
        at = self.progress
        return ConvergencePoint(
            step=at.step, samples=at.step * self.job.global_batch_size, epochs=self._epochs(at.step),
            seconds=at.seconds, train_loss=train_loss, loss=scores["loss"],
            metric=scores[self.job.target.metric], learning_rate=rate,
            global_batch_size=self.job.global_batch_size)

    def _epochs(self, step: int) -> float:
        return step * self.job.global_batch_size / self.workload.train_samples


def _check_target(job: TrainingJob, workload: Workload) -> None:
    target = job.target
    if target.metric not in workload.metrics:
        raise WorkloadError(f"the workload {job.workload!r} has no metric {target.metric!r}"
                            f"{nearest(target.metric, workload.metrics)}")
    if target.higher_is_better != workload.metrics[target.metric]:
        better = "higher" if workload.metrics[target.metric] else "lower"
        raise JobError(f"a {better} {target.metric} is better, but the target is {target}; "
                       f"set higher_is_better to {str(not target.higher_is_better).lower()}")


def _identity(job: TrainingJob) -> dict[str, Any]:
    """What decides the weights; where the files lie and the micro batch do not."""
    incidental = ("micro_batch_size", "search_path")
    return {name: value for name, value in job.to_dict().items() if name not in incidental}


def _check_same_job(state: Mapping[str, Any], job: TrainingJob) -> None:
    if set(state) != {"job", "model", "optimizer", "progress"}:
        raise CheckpointError("the file is no checkpoint of a training; delete it to start anew")
    mine = _identity(job)
    for name, value in state["job"].items():
        if mine.get(name) != value:
            raise CheckpointError(f"the checkpoint belongs to another job: its {name} is {value!r}, but this "
                                  f"job's is {mine.get(name)!r}; delete it to start anew")
