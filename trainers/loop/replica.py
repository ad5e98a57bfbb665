"""Replica: one worker's copy of the model, its loss and its scores, in the precision of the settings."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from search_spaces.settings import TrainingSettings
from trainers.distributed.communicator import Communicator
from trainers.errors import WorkloadError
from trainers.numerics.normalization import (
    common_group_size,
    end_update,
    ghost_batch_norms,
    persistent_statistics,
)
from trainers.numerics.precision import computing, store_reduced, zero_gradient
from trainers.numerics.random_numbers import mixed_seed
from trainers.optimizers import parameter_kinds
from trainers.workloads.workload import Batch, Workload


class Replica:
    """A workload's model on a device; the same initial weights wherever it is built with the same seed.

    Attributes:
        model: the module. parameters: those that are trained. kinds: what each parameter is. norms: its ghost batch
        norms, and ``group_size`` their normalization batch size. statistics: buffers that workers average before an
        evaluation. computing: the context of every forward pass, which sets its precision.
    """

    def __init__(
        self, workload: Workload, settings: TrainingSettings, seed: int, device: torch.device
    ) -> None:
        self.workload, self.settings, self.seed, self.device = workload, settings, seed, device
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(mixed_seed(seed, 1))
            self.model = workload.build_model(settings).to(device)
        store_reduced(self.model, settings)
        self.parameters = [
            parameter for parameter in self.model.parameters() if parameter.requires_grad
        ]
        self.kinds = parameter_kinds(self.model, workload.parameter_kinds(self.model))
        self.norms = ghost_batch_norms(self.model)
        self.group_size = common_group_size(self.norms)
        self.statistics = persistent_statistics(self.model)
        self.computing = computing(settings, device)

    def seed_generators(self, step: int, rank: int) -> None:
        """Seed what dropout draws from, so that a checkpoint need not hold a generator's state."""
        seed = mixed_seed(self.seed, 2, step, rank)
        torch.default_generator.manual_seed(
            seed
        )  # torch.manual_seed also visits every other device, at 0.1 ms
        if self.device.type == "cuda":
            torch.cuda.manual_seed(seed)

    def loss(self, batch: Batch) -> Tensor:
        """The mean training loss over a batch on any device, a scalar with its graph."""
        with self.computing:
            return self.workload.loss(self.model, self.here(batch), self.settings)

    def counts(self, batch: Batch) -> dict[str, Tensor]:
        """What the workload adds up over the evaluation set, of a batch on any device."""
        with self.computing:
            return self.workload.counts(self.model, self.here(batch))

    def gradients(self) -> list[Tensor]:
        """The gradient of each parameter; zeros where the loss did not depend on it."""
        for parameter in self.parameters:
            if parameter.grad is None:
                parameter.grad = zero_gradient(parameter)
        return [parameter.grad for parameter in self.parameters if parameter.grad is not None]

    def set_gradients(self, gradients: list[Tensor] | None) -> None:
        """Put these in the place of the present gradients; None: none at all."""
        for at, parameter in enumerate(self.parameters):
            parameter.grad = None if gradients is None else gradients[at]

    def end_update(self, global_batch_size: int) -> None:
        """Move the running statistics of normalization by the update of so many samples over all workers."""
        end_update(self.norms, global_batch_size // self.group_size)

    def here(self, batch: Batch) -> Batch:
        """A batch on any device, on the replica's."""
        if self.device.type == "cpu":
            return batch
        return tree_map(lambda tensor: tensor.to(self.device, non_blocking=True), batch)


@torch.no_grad()
def evaluate(
    replica: Replica, communicator: Communicator, micro_batch_size: int | None
) -> dict[str, float]:
    """Every metric over all evaluation samples, each worker counting its share.

    ``micro_batch_size`` is the most samples per forward pass (None: the workload's own limit). Averages the
    statistics of normalization over the workers first, and leaves the model in evaluation mode.
    """
    communicator.all_reduce_mean_(replica.statistics)
    replica.model.eval()
    workload = replica.workload
    largest = micro_batch_size or workload.largest_micro_batch
    rank, size, samples = communicator.rank, communicator.size, workload.evaluation_samples
    mine = torch.arange(samples * rank // size, samples * (rank + 1) // size)
    totals: dict[str, Tensor] = {}
    for first in range(0, max(1, len(mine)), largest):
        batch = mine[first : first + largest]
        counts = replica.counts(workload.evaluation_batch(batch if len(mine) else torch.arange(1)))
        for name, count in counts.items():
            added = count.double() if len(mine) else torch.zeros_like(count, dtype=torch.float64)
            totals[name] = totals[name] + added if name in totals else added
    flat = torch.cat([totals[name].reshape(-1) for name in sorted(totals)])
    communicator.all_reduce_sum_([flat])
    parts = torch.split(flat, [totals[name].numel() for name in sorted(totals)])
    found = {
        name: part.reshape(totals[name].shape)
        for name, part in zip(sorted(totals), parts, strict=True)
    }
    return metrics_of_counts(workload, found)


def metrics_of_counts(workload: Workload, counts: dict[str, Tensor]) -> dict[str, float]:
    """Every metric, from what was counted over the whole evaluation set."""
    metrics = workload.metrics_from(counts, workload.evaluation_samples)
    missing = [name for name in workload.metrics if name not in metrics]
    if missing:
        raise WorkloadError(
            f"{type(workload).__name__}.metrics_from must give every metric, but gave no {', '.join(missing)}"
        )
    return {name: float(metrics[name]) for name in workload.metrics}
