"""One worker's replica of the model, with its loss and its scores, in the precision of the settings."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from search_spaces.settings import TrainingSettings
from trainers.distributed.communicator import Communicator
from trainers.distributed.device import configure_gpu
from trainers.errors import WorkloadError
from trainers.feed.device_copies import DeviceCopies, SentBatch
from trainers.feed.streams import Part, samples_in_batch
from trainers.loop.compiled import compiled_model, compiler_errors, wanted_compiler
from trainers.loop.prefetch import prefetch_results
from trainers.loop.streamed import check_evaluated
from trainers.numerics.normalization import (
    common_group_size,
    ghost_batch_norms,
    persistent_statistics,
    update_running_statistics,
)
from trainers.numerics.parametrization import maximal_update_
from trainers.numerics.precision import precision_context, store_reduced, zero_gradient
from trainers.numerics.random_numbers import mixed_seed
from trainers.optimizers import Optimizer, make_optimizer, parameter_kinds
from trainers.workloads.workload import Batch, Workload, some_samples


class Replica:
    """A workload's model on a device; the same seed gives the same initial weights everywhere.

    Attributes:
        model: the module. trained: the same module, compiled if requested, used to compute losses. parameters: the
        trained parameters. kinds: the kind of each parameter. growths: the growth of each parameter from its base
        shape, if the workload has a base model. norms: the model's ghost batch norms. group_size: their normalization
        batch size. statistics: buffers that workers average before an evaluation. computing: the context of every
        forward pass, which sets its precision. copies: moves batches to the device.
    """

    def __init__(
        self, workload: Workload, settings: TrainingSettings, seed: int, device: torch.device
    ) -> None:
        self.workload, self.settings, self.seed, self.device = workload, settings, seed, device
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(mixed_seed(seed, 1))
            self.model = workload.build_model(settings).to(device)
            base = workload.base_model(settings)
        for module in self.model.modules():  # reductions, norms and updates need dense gradients
            if isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
                module.sparse = False
        self.growths = (
            {}
            if base is None
            else maximal_update_(
                self.model, base, workload.initialization, workload.residual_outputs
            )
        )
        store_reduced(self.model, settings)
        self.parameters = [
            parameter for parameter in self.model.parameters() if parameter.requires_grad
        ]
        self.kinds = parameter_kinds(self.model, workload.parameter_kinds(self.model))
        self.norms = ghost_batch_norms(self.model)
        self.trained = self.model
        self._compiling: Callable[[], AbstractContextManager[None]] = nullcontext
        if (compiler := wanted_compiler()) != "none":
            self.trained, self._compiling = (
                compiled_model(self.model, device, compiler),
                compiler_errors,
            )
            for norm in self.norms:
                norm.count_on_device()
        self.group_size = common_group_size(self.norms)
        self.statistics = persistent_statistics(self.model)
        self.computing = precision_context(settings, device)
        configure_gpu(device, settings.precision)
        self.copies = DeviceCopies(device, workload.prepare)
        workload.use_device(device)

    def optimizer(
        self, settings: TrainingSettings, communicator: Communicator | None = None
    ) -> Optimizer:
        """Create an optimizer for the parameters; it may divide its work among the workers of ``communicator``."""
        return make_optimizer(
            self.model.parameters(), settings, self.kinds, communicator, self.growths
        )

    def seed_generators(self, step: int, rank: int) -> None:
        """Seed the generators that dropout uses, so that a checkpoint need not hold a generator's state."""
        seed = mixed_seed(self.seed, 2, step, rank)
        torch.default_generator.manual_seed(
            seed
        )  # torch.manual_seed also seeds all other devices, which takes 0.1 ms
        if self.device.type == "cuda":
            torch.cuda.manual_seed(seed)

    def loss(self, batch: Batch) -> Tensor:
        """Return the mean training loss over a prepared batch on any device, a scalar with its autograd graph."""
        with self.computing, self._compiling():
            return self.workload.loss(self.trained, self.here(batch), self.settings)

    def counts(self, batch: Batch) -> dict[str, Tensor]:
        """Return a prepared batch's parts of the sums over the evaluation set: tensors of any shape, by name."""
        with self.computing:
            return self.workload.counts(self.model, self.here(batch))

    def gradients(self) -> list[Tensor]:
        """Return the gradient of each parameter, in the parameter's shape; zeros if the loss does not depend on it."""
        for parameter in self.parameters:
            if parameter.grad is None:
                parameter.grad = zero_gradient(parameter)
        return [parameter.grad for parameter in self.parameters if parameter.grad is not None]

    def set_gradients(self, gradients: list[Tensor] | None) -> None:
        """Replace the current gradients by ``gradients``, one per parameter, in its shape; None clears them."""
        for at, parameter in enumerate(self.parameters):
            parameter.grad = None if gradients is None else gradients[at]

    def end_update(self, global_batch_size: int) -> None:
        """Update the running statistics of normalization after an update of this many samples over all workers."""
        update_running_statistics(self.norms, global_batch_size // self.group_size)

    def here(self, batch: Batch) -> Batch:
        """Move a batch from any device to the replica's."""
        if self.device.type == "cpu":
            return batch
        return tree_map(lambda tensor: tensor.to(self.device, non_blocking=True), batch)


@torch.no_grad()
def evaluate_replica(
    replica: Replica, communicator: Communicator, micro_batch_size: int | None
) -> dict[str, float]:
    """Compute every metric over all evaluation samples; each worker evaluates its share.

    ``micro_batch_size`` is the largest number of samples per forward pass (None: the workload's own limit). The
    normalization statistics are first averaged over the workers, and the model is left in evaluation mode.
    """
    communicator.all_reduce_mean_(replica.statistics)
    replica.model.eval()
    workload = replica.workload
    largest = micro_batch_size or workload.largest_micro_batch
    part = Part(communicator.rank, communicator.size)
    totals: dict[str, Tensor] = {}
    counted = 0
    prepared = prefetch_results(
        _evaluation_batches(replica, part, largest),
        workload.prefetched_batches,
        1 if workload.streamed else workload.concurrent_batches,
    )
    for batch in prepared:
        if batch is None:
            break
        for name, count in replica.counts(replica.copies.receive(batch.sent)).items():
            added = count.to(replica.device, torch.float64)  # scores may be on any device
            totals[name] = totals[name] + added if name in totals else added
        counted += batch.samples
    if not counted:  # a worker without samples uses any one, for names and shapes
        one = replica.copies.send(some_samples(workload, 1, evaluation=True))
        for name, count in replica.counts(replica.copies.receive(one)).items():
            totals[name] = torch.zeros_like(count, dtype=torch.float64, device=replica.device)
    told = torch.tensor([counted], dtype=torch.float64, device=replica.device)
    flat = torch.cat([told, *(totals[name].reshape(-1) for name in sorted(totals))])
    communicator.all_reduce_sum_([flat])
    sums = torch.split(flat, [1, *(totals[name].numel() for name in sorted(totals))])
    if workload.streamed:
        check_evaluated(workload, int(sums[0]))
    found = {
        name: each.reshape(totals[name].shape)
        for name, each in zip(sorted(totals), sums[1:], strict=True)
    }
    return metrics_of_counts(workload, found)


def metrics_of_counts(workload: Workload, counts: dict[str, Tensor]) -> dict[str, float]:
    """Compute every metric from the counts over the whole evaluation set: tensors of any shape, by name.

    Raises :class:`WorkloadError` if ``metrics_from`` omits one.
    """
    metrics = workload.metrics_from(counts, workload.evaluation_samples)
    missing = [name for name in workload.metrics if name not in metrics]
    if missing:
        raise WorkloadError(
            f"{type(workload).__name__}.metrics_from must return every metric, but lacks "
            f"{', '.join(missing)}"
        )
    return {name: float(metrics[name]) for name in workload.metrics}


@dataclass(frozen=True)
class _EvaluationBatch:
    sent: SentBatch
    samples: int


def _evaluation_batches(
    replica: Replica, part: Part, largest: int
) -> Iterator[Callable[[], _EvaluationBatch | None]]:
    """Yield functions that prepare the batches of a worker's share. For a stream, the functions never end, but return
    None after the last batch.
    """
    workload = replica.workload
    if workload.streamed:
        batches = iter(workload.evaluation_stream(part))

        def following() -> _EvaluationBatch | None:
            batch = next(batches, None)
            if batch is None:
                return None
            return _EvaluationBatch(replica.copies.send(batch), samples_in_batch(batch))

        yield from itertools.repeat(following)

    def of(indices: Tensor) -> _EvaluationBatch:
        return _EvaluationBatch(
            replica.copies.send(workload.evaluation_batch(indices)), len(indices)
        )

    samples, rank, size = workload.evaluation_samples, part.rank, part.size
    mine = torch.arange(samples * rank // size, samples * (rank + 1) // size)
    yield from (partial(of, indices) for indices in torch.split(mine, largest) if len(indices))
