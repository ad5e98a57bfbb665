"""FusedTrainings: training runs of one model that are computed together, from evaluation to evaluation.

A run joins at its start, or from a checkpoint at any of its evaluations, and may leave at any evaluation. Its report is
the same as if it had trained alone, up to rounding, since a batched matrix product sums in a different order. Its
``seconds`` are its share of the time that all runs took together.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from search_spaces.settings import TrainingSettings
from trainers.errors import JobError
from trainers.fused.batches import StackedBatch, stacked_batch_layout, stacked_batches
from trainers.fused.fusable import check_fusable, check_fusable_model, fusion_key
from trainers.fused.memory import StackedMemory, group_optimizer_of
from trainers.fused.rules import FusedRule, has_fused_rule
from trainers.loop.replica import Replica, evaluate_replica, metrics_of_counts
from trainers.loop.synchronous import SynchronousTraining
from trainers.numerics.normalization import GhostBatchNorm
from trainers.report import ConvergencePoint
from trainers.schedules.learning_rate import learning_rate
from trainers.schedules.noise_scale import SquaredNorms
from trainers.workloads.training_run import TrainingSegment
from trainers.workloads.workload import Batch, Workload


@dataclass
class _Member:
    """A training run, and the results of its updates since its last evaluation."""

    training: SynchronousTraining
    step: int
    losses: list[float] = field(default_factory=list)
    rate: float = float("nan")
    seconds: float = 0.0

    @property
    def updates_left(self) -> int:
        """The number of updates until its next evaluation."""
        schedule = self.training.batch_schedule
        return schedule.next_evaluation(self.training.progress.step) - self.step


class FusedTrainings:
    """Training runs with the same :func:`~trainers.fused.fusable.fusion_key`, on one device, in one process.

    Use :meth:`add`, then :meth:`advance` and :meth:`remove` until none are left.
    """

    def __init__(self) -> None:
        self._members: list[_Member] = []
        self._fused: _Fused | None = None
        self._vmaps_counts = True

    @property
    def trainings(self) -> list[SynchronousTraining]:
        """The current training runs, in the order in which they joined."""
        return [member.training for member in self._members]

    def add(self, training: SynchronousTraining) -> None:
        """Add a run, at its start or with its checkpoint loaded; raise :class:`JobError` if it cannot be fused."""
        _check(training, self.trainings)
        self._dissolve()
        self._members.append(_Member(training, training.progress.step))

    def remove(self, training: SynchronousTraining) -> None:
        """Remove a run and give it its own tensors; it can continue alone only if it is at an evaluation."""
        self._dissolve()
        self._members = [each for each in self._members if each.training is not training]

    def advance(self) -> list[tuple[SynchronousTraining, ConvergencePoint]]:
        """Train all runs until at least one is due for evaluation; evaluate and return the runs that are due.

        Finished runs stay until they are removed, which must be done before the next call.
        """
        if not self._members:
            raise JobError("there are no training runs to advance; add one first")
        for training in self.trainings:
            if training.finished:
                raise JobError(f"a run has finished: {training.progress.reason}; remove it")
        if len(self._members) == 1 and not self._members[0].losses:
            return [self._advance_alone(self._members[0])]
        started = time.perf_counter()
        if self._fused is None:
            self._fused = _Fused(self._members)
        self._fused.train(min(member.updates_left for member in self._members))
        due = [member for member in self._members if member.updates_left == 0]
        with contextlib.ExitStack() as averaged:
            for member in self._members:
                averaged.enter_context(group_optimizer_of(member.training).evaluation())
            scores = self._evaluate(self._fused, due)
        share = (time.perf_counter() - started) / len(self._members)
        for member in self._members:
            member.seconds += share
        return [
            (member.training, _evaluated(member, found))
            for member, found in zip(due, scores, strict=True)
        ]

    def _advance_alone(self, member: _Member) -> tuple[SynchronousTraining, ConvergencePoint]:
        """Advance the only run without fusion, which is faster."""
        self._dissolve()
        point = member.training.advance()
        member.step = member.training.progress.step
        return member.training, point

    def close(self) -> None:
        """Remove all trainings."""
        self._dissolve()
        self._members = []

    def _dissolve(self) -> None:
        if self._fused is not None:
            self._fused.memory.release(self.trainings)
            self._fused = None
            for training in self.trainings:
                for norm in training.replica.norms:
                    norm.may_fuse = True

    def _evaluate(self, fused: _Fused, due: Sequence[_Member]) -> list[dict[str, float]]:
        """Return each run's scores, computed together if all runs are due and vmap supports the workload's counts."""
        if len(due) == len(self._members) and self._vmaps_counts:
            try:
                return fused.evaluate()
            except torch.OutOfMemoryError:
                raise
            except RuntimeError:  # an operation that vmap does not support
                self._vmaps_counts = False
        return [
            evaluate_replica(
                member.training.replica,
                member.training.communicator,
                member.training.job.micro_batch_size,
            )
            for member in due
        ]


class _Fused:
    """The members as one model, valid until a member joins or leaves."""

    def __init__(self, members: Sequence[_Member]) -> None:
        self._members = members
        self._trainings = [member.training for member in members]
        first = self._trainings[0]
        self._job, self._device = first.job, first.replica.device
        self.memory = StackedMemory(self._trainings)
        self._model = _Model(first.replica)
        self._norms = _Norms(self.memory, self._trainings, self._model)
        self._rule = FusedRule(self.memory, self._trainings) if has_fused_rule(first) else None
        clips = [training.job.settings.gradient_clip_norm for training in self._trainings]
        self._clip = (
            None
            if all(clip is None for clip in clips)
            else torch.tensor(
                [float("inf") if clip is None else clip for clip in clips], dtype=torch.float64
            ).to(self._device)
        )
        self._batches = stacked_batches(self._trainings, [member.step for member in members])

    def train(self, updates: int) -> None:
        """Do ``updates`` updates of every run; the host queues all of them before it waits for the device."""
        steps = [member.step for member in self._members]
        rates, epochs = self._schedule(updates)
        table = None if self._rule is None else self._rule.table(rates, epochs)
        self._model.train()
        losses: list[Tensor] = []
        measured: list[tuple[int, Tensor]] = []
        for update in range(updates):
            now = [step + update for step in steps]
            layout = stacked_batch_layout(self._trainings, now)
            micro_batches = [next(self._batches) for _ in range(layout.micro_batches)]
            due = [
                training.loader.measured(step) is not None
                for training, step in zip(self._trainings, now, strict=True)
            ]
            loss, chunks = self._gradients(micro_batches, measuring=any(due))
            losses.append(loss)
            self._norms.end_update(layout.global_batch_size)
            gradients = self.memory.parameters.grad
            assert gradients is not None, "a loss has gradients"
            square = None
            if chunks is not None or self._clip is not None:
                square = self.memory.squared_norms(gradients)
            if chunks is not None and square is not None:
                measured.append((update, torch.stack([chunks, square])))
            if self._clip is not None and square is not None:
                factors = (self._clip / square.sqrt()).clamp(max=1.0)
                factors = torch.where(self._clip.isinf(), 1.0, factors).to(gradients.dtype)
                gradients.mul_(self.memory.over_elements(factors))
            if self._rule is None or table is None:
                self._step_alone(gradients, rates[update], epochs[update])
            else:
                self._rule.step(gradients, table.row(update))
                for training, came in zip(self._trainings, epochs[update], strict=True):
                    group_optimizer_of(training).updates += 1
                    group_optimizer_of(training).epochs = came
            self.memory.parameters.grad = None
        self._took(updates, torch.stack(losses), rates, measured, steps)

    @torch.no_grad()
    def evaluate(self) -> list[dict[str, float]]:
        """Return the scores of every run; each batch of the evaluation set is read once for all runs."""
        self._model.eval()
        workload = self._model.workload
        largest = self._job.micro_batch_size or workload.largest_micro_batch
        totals: dict[str, Tensor] = {}
        for first in range(0, workload.evaluation_samples, largest):
            indices = torch.arange(first, min(first + largest, workload.evaluation_samples))
            copies = self._trainings[0].replica.copies
            batch = copies.receive(copies.send(workload.evaluation_batch(indices)))
            found = self._model.counts(self._stacked(), batch)
            for name, count in found.items():
                added = count.double()
                totals[name] = totals[name] + added if name in totals else added
        return [
            metrics_of_counts(workload, {name: count[number] for name, count in totals.items()})
            for number in range(len(self._trainings))
        ]

    def _stacked(self) -> dict[str, Tensor]:
        return {**self.memory.stacked(), **self.memory.fixed}

    def _schedule(self, updates: int) -> tuple[list[list[float]], list[list[float]]]:
        """Return the rates and the epochs of the next updates, by update and run."""
        epochs = [
            [member.training.batch_schedule.epochs(member.step + at) for member in self._members]
            for at in range(updates)
        ]
        jobs = [training.job for training in self._trainings]
        rates = [
            [
                learning_rate(job.settings, came, job.epochs)
                for job, came in zip(jobs, row, strict=True)
            ]
            for row in epochs
        ]
        return rates, epochs

    def _gradients(
        self, micro_batches: Sequence[StackedBatch], *, measuring: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Return each run's mean loss, ``(K,)``, and the mean squared norm over its chunks, if that is measured."""
        leaf, count = self.memory.parameters, self.memory.count
        total, squares = (
            torch.zeros(count, device=self._device, dtype=torch.float64) for _ in range(2)
        )
        gradients: Tensor | None = None
        share = 0.0
        for micro in micro_batches:
            losses = self._model.losses(self._stacked(), micro) * micro.share
            losses.sum().backward()  # type: ignore[no-untyped-call]
            total += losses.detach()
            share += micro.share
            if measuring and micro.ends_chunk:
                assert leaf.grad is not None, "a loss has gradients"
                squares += self.memory.squared_norms(leaf.grad) / share
                gradients = leaf.grad if gradients is None else gradients.add_(leaf.grad)
                leaf.grad, share = None, 0.0
        if measuring:
            leaf.grad = gradients
        return total, squares if measuring else None

    def _step_alone(
        self, gradients: Tensor, rates: Sequence[float], epochs: Sequence[float]
    ) -> None:
        """Update each run with its own optimizer, for a rule that cannot be computed for several runs at once."""
        for number, training in enumerate(self._trainings):
            training.replica.set_gradients(self.memory.of_training(gradients, number))
            training.optimizer.step(rates[number], epochs[number])
            training.replica.set_gradients(None)

    def _took(
        self,
        updates: int,
        losses: Tensor,
        rates: Sequence[Sequence[float]],
        measured: Sequence[tuple[int, Tensor]],
        steps: Sequence[int],
    ) -> None:
        """Record the updates in every member, for which the host waits for the device."""
        for update, norms in measured:
            for number, (of_chunks, of_batch) in enumerate(norms.T.tolist()):
                training = self._trainings[number]
                layout = training.loader.measured(steps[number] + update)
                if layout is not None:
                    size = layout.global_batch_size
                    training.statistics.add(
                        SquaredNorms(of_chunks, of_batch, size / layout.chunks, size)
                    )
        for member, column in zip(self._members, losses.T.tolist(), strict=True):
            member.losses += column
            member.step += updates
        for member, rate in zip(self._members, rates[-1], strict=True):
            member.rate = rate


class _Model(nn.Module):
    """The loss and counts of one model, called with the tensors of all runs."""

    def __init__(self, replica: Replica) -> None:
        super().__init__()
        self.model = replica.model
        self.workload: Workload = replica.workload
        self._settings: TrainingSettings = replica.settings
        self._replica = replica

    def forward(self, compute: Callable[[nn.Module, Batch], Any], batch: Batch) -> Any:
        """Return ``compute`` applied to the model, whose tensors :func:`functional_call` has replaced."""
        return compute(self.model, batch)

    def losses(self, tensors: Mapping[str, Tensor], micro: StackedBatch) -> Tensor:
        """Return the mean loss of each run, ``(K,)``, with its graph."""

        def loss(model: nn.Module, batch: Batch) -> Tensor:
            return self.workload.loss(model, batch, self._settings)

        try:
            losses: Tensor = self._mapped(loss, tensors, micro.batch, shared=micro.shared)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            raise JobError(
                f"the model and the loss of fused training runs must work with torch.func.vmap, "
                f"without random numbers, but vmap reports: "
                f"{str(error).strip().splitlines()[0]}; leave resources.fused_trials out"
            ) from error
        return losses

    def counts(self, tensors: Mapping[str, Tensor], batch: Batch) -> dict[str, Tensor]:
        """Return the workload's sums over the evaluation set for each run, ``(K, ...)``."""
        counts: dict[str, Tensor] = self._mapped(self.workload.counts, tensors, batch, shared=True)
        return counts

    def _mapped(
        self,
        compute: Callable[[nn.Module, Batch], Any],
        tensors: Mapping[str, Tensor],
        batch: Batch,
        *,
        shared: bool,
    ) -> Any:
        def of_one(own: dict[str, Tensor], samples: Batch) -> Any:
            return functional_call(self, own, (compute, samples))

        named = {f"model.{name}": tensor for name, tensor in tensors.items()}
        # the kernels of flash attention cannot be mapped over runs
        with self._replica.computing, sdpa_kernel(SDPBackend.MATH):
            return vmap(of_one, in_dims=(0, None if shared else 0))(named, batch)


class _Norms:
    """The ghost batch norms, with separate running statistics for each run."""

    def __init__(
        self, memory: StackedMemory, trainings: Sequence[SynchronousTraining], model: _Model
    ) -> None:
        self._names = [
            name
            for name, module in model.model.named_modules()
            if isinstance(module, GhostBatchNorm)
        ]
        self._modules = trainings[0].replica.norms
        # one operation for several groups cannot be mapped over runs
        for module in self._modules:
            module.may_fuse = False
        self._group_size = trainings[0].replica.group_size
        self._fixed = memory.fixed
        self._keeps = [training.job.settings.normalization_momentum for training in trainings]
        self._weights: dict[int, dict[int, Tensor]] = {}

    @torch.no_grad()
    def end_update(self, global_batch_size: int) -> None:
        """Apply :func:`trainers.numerics.normalization.update_running_statistics` with each run's momentum."""
        if not self._names:
            return
        groups = global_batch_size // self._group_size
        running, seen = (
            [self._fixed[f"{name}.{kind}_{what}"] for name in self._names for what in _STATISTICS]
            for kind in ("running", "update")
        )
        if len(set(self._keeps)) == 1:
            torch._foreach_lerp_(running, seen, 1 - self._keeps[0] ** groups)
        else:
            for mine, its in zip(running, seen, strict=True):
                mine.lerp_(its, self._weight(groups, mine))
        for module in self._modules:
            module.groups = 0

    def _weight(self, groups: int, like: Tensor) -> Tensor:
        """Return the weight with which an update of ``groups`` groups enters the running statistics of each run."""
        of_rank = self._weights.setdefault(groups, {})
        if like.ndim not in of_rank:
            added = torch.tensor([1 - keep**groups for keep in self._keeps], dtype=torch.float64)
            of_rank[like.ndim] = added.to(like.device, like.dtype).view(-1, *[1] * (like.ndim - 1))
        return of_rank[like.ndim]


_STATISTICS = ("mean", "var", "weight")


def _evaluated(member: _Member, scores: Mapping[str, float]) -> ConvergencePoint:
    training, losses = member.training, torch.tensor(member.losses, dtype=torch.float64)
    point = training.evaluated(
        TrainingSegment(
            train_loss=float(losses.mean()),
            first_loss=member.losses[0],
            learning_rate=member.rate,
            scores=scores,
            seconds=member.seconds,
            gradient_noise_scale=training.statistics.noise_scale,
        ),
        member.step,
    )
    member.losses, member.seconds = [], 0.0
    return point


def _check(training: SynchronousTraining, others: Sequence[SynchronousTraining]) -> None:
    check_fusable(training.job.settings)
    if training.replica.trained is not training.model:
        raise JobError(
            "a fused training run must not be compiled, because it uses torch.func, but got "
            "--compile or HPO_COMPILE; leave that out, or leave resources.fused_trials out"
        )
    check_fusable_model(training.model)
    if training.workload.streamed:
        raise JobError(
            "a fused training run must take its samples by index, but the samples of "
            f"{type(training.workload).__name__} come as a stream; leave resources.fused_trials out"
        )
    if training.communicator.size != 1:
        raise JobError(
            f"a fused training run must have one worker, but got {training.communicator.size}; set "
            "resources.workers_per_node and nodes to 1, or leave resources.fused_trials out"
        )
    if others and fusion_key(training.job) != fusion_key(others[0].job):
        raise JobError(
            "fused training runs must have the same workload, global batch size and settings of "
            "the model and the update rule, but these runs do not; compare their "
            "trainers.fused.fusion_key"
        )
