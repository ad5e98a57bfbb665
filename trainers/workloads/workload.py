"""The base classes of workloads, which define the data, model, loss and metrics.

Your own workload is a subclass of :class:`Workload` in any importable file, named ``package.module:Class`` in the
study. Importing this module does not import torch, but using a workload that trains a model does.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from search_spaces.names import nearest_or_all
from search_spaces.settings import TrainingSettings
from trainers.errors import DataError, WorkloadError
from trainers.feed.streams import Batch, Part, SampleQueue
from trainers.job import TrainingJob

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from trainers.distributed import Communicator
    from trainers.numerics.parametrization import InitialLaw
    from trainers.workloads.training_run import TrainingRun

__all__ = [
    "AnyWorkload",
    "Batch",
    "CustomLoopWorkload",
    "StreamWorkload",
    "Workload",
    "check_options",
    "some_samples",
]


class AnyWorkload(ABC):
    """The base class of every workload; define your own as a subclass of Workload or CustomLoopWorkload.

    Attributes:
        metrics: every score that an evaluation returns, and whether a higher value is better; it contains "loss":
        False. train_samples: size of the training set, the unit of an epoch. simulated: whether a run is computed in
        milliseconds and without torch, so that a sweep needs no separate process for it. own_settings: the names of the
        workload's own settings, which a study may then fix or tune and which the workload finds in ``settings.own``.
        data_options: the data options with which :func:`trainers.workloads.load_workload` opened the workload; on a
        cluster they may name a folder on the node's local disk.
    """

    metrics: ClassVar[Mapping[str, bool]]
    simulated: ClassVar[bool] = False
    own_settings: ClassVar[Collection[str]] = ()
    train_samples: int
    data_options: Mapping[str, Any] | None = None

    @abstractmethod
    def __init__(self, data: Mapping[str, Any]) -> None:
        """Open the data that the study names; raises :class:`~trainers.errors.DataError` if that fails."""

    @classmethod
    def metrics_of(cls, data: Mapping[str, Any]) -> Mapping[str, bool]:  # noqa: ARG003 - for the program
        """Return the metrics of the workload with these data options."""
        return cls.metrics

    @classmethod
    def own_settings_of(cls, data: Mapping[str, Any]) -> Collection[str] | None:  # noqa: ARG003
        """Return the workload's own settings with these data options; None if only its program knows them."""
        return cls.own_settings


class CustomLoopWorkload(AnyWorkload):
    """A workload with its own training loop, such as a simulation."""

    @abstractmethod
    def begin(self, job: TrainingJob, communicator: Communicator | None) -> TrainingRun:
        """Create a training run of this workload; ``communicator`` is None for a single process."""


class Workload(AnyWorkload):
    """A model that :mod:`trainers.loop` or :mod:`trainers.asynchronous` trains.

    Everything that a worker needs follows from ``data``, so every worker creates its own instance.

    Attributes:
        evaluation_samples: size of the evaluation set. largest_micro_batch: the largest number of samples per forward
        pass, if a job does not set it. prefetched_batches: the number of micro batches to prepare ahead in the
        background, for data that are slow to read. concurrent_batches: how many micro batches are prepared at the same
        time, each by its own thread; more than 1 only if several threads may call ``training_batch`` and
        ``evaluation_batch`` at once. streamed: whether the samples come in a fixed order, from ``training_stream`` and
        ``evaluation_stream``, rather than by index; see :class:`StreamWorkload`. initialization: how the initial values
        of ``build_model`` scale with the width, by parameter name prefix, if they are not PyTorch's defaults
        (:func:`~trainers.numerics.parametrization.maximal_update_`). residual_outputs: the modules of a residual block
        whose outputs are added to the residual stream, by their names in the block, if ``base_model`` has a different
        number of blocks. All workloads have the other attributes.

    A workload may also define ``sample_images(model) -> dict``, which returns pictures of its predictions and baselines
    for the report, as plain JSON values. The model is in evaluation mode, without gradients.
    """

    evaluation_samples: int
    largest_micro_batch: int = 1024
    prefetched_batches: int = 0
    concurrent_batches: int = 1
    initialization: Mapping[str, InitialLaw] = MappingProxyType({})
    residual_outputs: Collection[str] = ()
    streamed: bool = False

    def use_device(self, device: torch.device) -> None:
        """Set the device on which the model is trained, before the first batch; the data set may be kept on it."""

    @abstractmethod
    def build_model(self, settings: TrainingSettings) -> nn.Module:
        """Build a new model; PyTorch's default generator has been seeded with the job's seed.

        To make the results independent of the number of workers, use the batch norm
        :class:`~trainers.numerics.normalization.GhostBatchNorm` over ``settings.normalization_batch_size`` samples.
        """

    def base_model(self, settings: TrainingSettings) -> nn.Module | None:  # noqa: ARG002 - for subclasses
        """Build the same model at the size at which its settings were chosen; only its parameter shapes are read.

        With a base model, training uses the maximal update parametrization (:mod:`trainers.numerics.parametrization`),
        so that settings that are good at the base width are good at this width. If the base model has a different
        number of blocks, training uses CompleteP, which also transfers settings across depth. Return None for the
        standard parametrization.
        """
        return None

    def parameter_kinds(self, model: nn.Module) -> Mapping[str, str]:  # noqa: ARG002 - for subclasses
        """Return the kinds of parameters that :mod:`trainers.optimizers.parameter_kinds` would misclassify.

        The keys are names in ``model.named_parameters()``. The kinds are "weight"; "normalization" or "bias", which the
        settings exclude from weight decay and from layer-wise adaptation; and "embedding", a weight that is not a
        matrix acting on features.
        """
        return {}

    @abstractmethod
    def training_batch(self, indices: Tensor, epochs: Tensor, seed: int) -> Batch:
        """Return the training samples at ``indices``, with augmentation that depends only on index, epoch and seed.

        ``indices`` and ``epochs`` are ``(n,)`` int64. Such random numbers come from
        :func:`~trainers.numerics.random_numbers.sample_uniforms`.
        """

    def training_stream(self, epoch: int, seed: int, part: Part) -> Iterable[Batch]:
        """Yield one worker's training samples of an epoch, in batches of any size; see :class:`StreamWorkload`."""
        raise NotImplementedError(
            f"{type(self).__name__} is streamed and must define training_stream"
        )

    def evaluation_stream(self, part: Part) -> Iterable[Batch]:
        """Yield one worker's evaluation samples in batches of any size; workers share no samples."""
        raise NotImplementedError(
            f"{type(self).__name__} is streamed and must define evaluation_stream"
        )

    def prepare(self, batch: Batch) -> Batch:
        """Convert a training or evaluation batch to the input of :meth:`loss`, :meth:`score` and :meth:`counts`.

        This is called when the batch is on the device; on a CPU, it is called in the background if batches are
        prefetched. Batches can therefore be copied in a compact form (bytes as stored), and operations on a whole batch
        (conversion, normalization, layout) are done on the device. By default, return the batch unchanged.
        """
        return batch

    @abstractmethod
    def loss(self, model: nn.Module, batch: Batch, settings: TrainingSettings) -> Tensor:
        """Return the mean training loss over the batch's samples, a scalar with its autograd graph."""

    @abstractmethod
    def evaluation_batch(self, indices: Tensor) -> Batch:
        """Return the evaluation samples at ``indices``, ``(n,)`` int64, without augmentation."""

    def score(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        """Return each metric for each sample, shape ``(n,)``; an evaluation averages over all samples.

        A metric that is not a mean over samples (IoU or F1 over the whole set, AUC, perplexity per token) needs
        :meth:`counts` and :meth:`metrics_from` instead.
        """
        raise NotImplementedError(
            f"{type(self).__name__} must define score, or counts and metrics_from"
        )

    def counts(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        """Return a batch's contributions to the sums over the evaluation set, by name; each tensor must have the same
        shape for every batch.

        By default these are the sums of each metric over the samples. Other examples are true positives, sums over
        tokens and histograms of scores.
        """
        return {name: each.double().sum() for name, each in self.score(model, batch).items()}

    def metrics_from(self, counts: Mapping[str, Tensor], samples: int) -> Mapping[str, float]:
        """Compute every metric of ``metrics`` from the sums over all batches of all workers, in float64.

        ``counts`` are tensors by name, in the shapes that :meth:`counts` returns. By default, return the means over the
        ``samples``.
        """
        return {name: float(counts[name]) / samples for name in self.metrics}


class StreamWorkload(Workload):
    """A model trained on a stream of samples: from tar shards, a DataLoader, a DALI pipeline or any iterable.

    A subclass declares ``train_samples`` and ``evaluation_samples``. In an epoch, each of n workers reads 1/n of
    ``train_samples`` (a stream that ends early starts again, and samples beyond that number are skipped). ``seed`` and
    ``epoch`` must determine the order of the samples, so that a run can be repeated, and resumed by skipping the
    processed samples. Which samples share a batch depends on the number of workers, so runs with different numbers of
    workers agree only in distribution; samples addressed by index do not have this limitation.
    """

    streamed = True
    prefetched_batches = 2

    @abstractmethod
    def training_stream(self, epoch: int, seed: int, part: Part) -> Iterable[Batch]:
        """Yield one worker's training samples of an epoch, in batches of any size, in an order drawn from epoch and
        seed.

        The workers' parts must not overlap and should have about the same length.
        """

    @abstractmethod
    def evaluation_stream(self, part: Part) -> Iterable[Batch]:
        """Yield each of one worker's evaluation samples once, in batches of any size; workers share no samples."""

    def training_batch(self, indices: Tensor, epochs: Tensor, seed: int) -> Batch:  # noqa: ARG002
        """Raise :class:`~trainers.errors.WorkloadError`: the samples of a stream have no index."""
        raise WorkloadError(f"the samples of {type(self).__name__} come as a stream, not by index")

    def evaluation_batch(self, indices: Tensor) -> Batch:  # noqa: ARG002
        """Raise :class:`~trainers.errors.WorkloadError`: the samples of a stream have no index."""
        raise WorkloadError(f"the samples of {type(self).__name__} come as a stream, not by index")


def some_samples(workload: Workload, count: int, *, evaluation: bool = False) -> Batch:
    """Return a batch of any ``count`` training or evaluation samples for a measurement; the set must be as large."""
    import torch

    if workload.streamed:
        alone = Part(0, 1)
        batches = (
            workload.evaluation_stream(alone)
            if evaluation
            else workload.training_stream(0, 0, alone)
        )
        return SampleQueue(iter(batches)).take(count)
    if evaluation:
        return workload.evaluation_batch(torch.arange(count))
    return workload.training_batch(torch.arange(count), torch.zeros(count, dtype=torch.int64), 0)


def check_options(data: Mapping[str, Any], known: Iterable[str]) -> None:
    """Raise :class:`~trainers.errors.DataError`, with the nearest name, for an unknown data option."""
    known = list(known)
    for name in data:
        if name not in known:
            raise DataError(f"there is no data option {name!r}{nearest_or_all(str(name), known)}")
