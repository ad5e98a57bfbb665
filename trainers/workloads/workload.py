"""The class that says what is trained: data, model, loss and metrics.

A workload of one's own is a subclass of :class:`Workload` in any importable file, named
``package.module:Class`` in the study. Importing this does not import torch; a workload that trains a model does.
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
    """The base of every workload: metrics and a number of samples. Subclass one of the two classes below.

    Attributes:
        metrics: every score that an evaluation gives, and whether a higher value is better; it holds
        "loss": False. train_samples: size of the training set, the unit of an epoch. simulated: whether a
        training is computed in milliseconds and without torch, so that a sweep needs no other process for it.
        own_settings: names of settings of its own, which a study may then fix or tune and the workload finds in
        ``settings.own``. data_options: the data options that :func:`trainers.workloads.load_workload` opened it with,
        which on a machine may name a folder of the node's own disk.
    """

    metrics: ClassVar[Mapping[str, bool]]
    simulated: ClassVar[bool] = False
    own_settings: ClassVar[Collection[str]] = ()
    train_samples: int
    data_options: Mapping[str, Any] | None = None

    @abstractmethod
    def __init__(self, data: Mapping[str, Any]) -> None:
        """Open the data that the study names; raises :class:`~trainers.errors.DataError` where that fails."""

    @classmethod
    def metrics_of(cls, data: Mapping[str, Any]) -> Mapping[str, bool]:  # noqa: ARG003 - for the program
        """The metrics with these data options."""
        return cls.metrics

    @classmethod
    def own_settings_of(cls, data: Mapping[str, Any]) -> Collection[str] | None:  # noqa: ARG003
        """The settings of its own with these data options; None where only what it runs knows them."""
        return cls.own_settings


class CustomLoopWorkload(AnyWorkload):
    """A workload with a training loop of its own, such as one that simulates its trainings."""

    @abstractmethod
    def begin(self, job: TrainingJob, communicator: Communicator | None) -> TrainingRun:
        """A training of this workload, at its first update; None stands for a process that works alone."""


class Workload(AnyWorkload):
    """A model that is trained, by :mod:`trainers.loop` or :mod:`trainers.asynchronous`.

    Everything a worker needs follows from ``data``, so every worker builds its own.

    Attributes:
        evaluation_samples: size of the evaluation set. largest_micro_batch: the most samples per forward
        pass, where a job does not say. prefetched_batches: micro batches that are prepared ahead in the
        background; for data that are slow to read. concurrent_batches: how many of them at the same time, each by a
        thread of its own; more than 1 only where ``training_batch`` and ``evaluation_batch`` may be called by several
        threads at once. streamed: whether the samples come in an order of their own, by ``training_stream`` and
        ``evaluation_stream``, rather than by index; see :class:`StreamWorkload`. initialization: how the initial values
        of ``build_model`` move with the width, by the beginnings of parameters' names, where they are not PyTorch's
        (:func:`~trainers.numerics.parametrization.maximal_update_`). residual_outputs: the modules of a residual block
        whose outputs are added to the stream, by their names in it, where ``base_model`` has another number of blocks.
        The others are those of every workload.

    A workload may also define ``sample_images(model) -> dict``: pictures of its predictions for the report, and
    predictors to compare with, as plain JSON values. The model is in evaluation mode, without gradients.
    """

    evaluation_samples: int
    largest_micro_batch: int = 1024
    prefetched_batches: int = 0
    concurrent_batches: int = 1
    initialization: Mapping[str, InitialLaw] = MappingProxyType({})
    residual_outputs: Collection[str] = ()
    streamed: bool = False

    def use_device(self, device: torch.device) -> None:
        """The device on which the model is trained; said before the first batch. A data set may be kept there."""

    @abstractmethod
    def build_model(self, settings: TrainingSettings) -> nn.Module:
        """A fresh model; PyTorch's default generator has been seeded with the job's seed.

        For a training that does not depend on the number of workers its batch norm is
        :class:`~trainers.numerics.normalization.GhostBatchNorm` over ``settings.normalization_batch_size`` samples.
        """

    def base_model(self, settings: TrainingSettings) -> nn.Module | None:  # noqa: ARG002 - for subclasses
        """The same model at the size at which its settings were chosen, of which only the shapes are read.

        With one, the training is in the maximal update parametrization (:mod:`trainers.numerics.parametrization`), so
        that settings which are good at the base width are good at this one. Where it has another number of blocks it is
        in CompleteP, which carries them over the depth too. None: the standard parametrization.
        """
        return None

    def parameter_kinds(self, model: nn.Module) -> Mapping[str, str]:  # noqa: ARG002 - for subclasses
        """The kinds of parameters that :mod:`trainers.optimizers.parameter_kinds` would take for something else.

        By their names in ``model.named_parameters()``: "weight"; "normalization" or "bias", which the settings leave
        out of weight decay and of layer-wise adaptation; "embedding", a weight that is no matrix of features.
        """
        return {}

    @abstractmethod
    def training_batch(self, indices: Tensor, epochs: Tensor, seed: int) -> Batch:
        """The training samples ``indices``, each augmented as its epoch and the seed say; all ``(n,)`` int64.

        :func:`~trainers.numerics.random_numbers.sample_uniforms` gives random numbers that depend on nothing else.
        """

    def training_stream(self, epoch: int, seed: int, part: Part) -> Iterable[Batch]:
        """One worker's training samples of an epoch, in batches of any size: as :class:`StreamWorkload` says."""
        raise NotImplementedError(
            f"{type(self).__name__} is streamed and must define training_stream"
        )

    def evaluation_stream(self, part: Part) -> Iterable[Batch]:
        """One worker's evaluation samples, in batches of any size, each sample once over all workers."""
        raise NotImplementedError(
            f"{type(self).__name__} is streamed and must define evaluation_stream"
        )

    def prepare(self, batch: Batch) -> Batch:
        """The input of :meth:`loss`, :meth:`score` and :meth:`counts` for a training or evaluation batch.

        Called when the batch is on the device; on a CPU in the background, where batches are prefetched. So batches may
        be small (bytes as they are stored), and what is done to all of a batch alike (conversion, normalization,
        layout) is done there. By default the batch as it is.
        """
        return batch

    @abstractmethod
    def loss(self, model: nn.Module, batch: Batch, settings: TrainingSettings) -> Tensor:
        """The mean training loss over the batch's samples, a scalar with its graph."""

    @abstractmethod
    def evaluation_batch(self, indices: Tensor) -> Batch:
        """The evaluation samples ``indices``, ``(n,)`` int64, without augmentation."""

    def score(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        """Each metric of each sample, shape ``(n,)``; an evaluation is the mean over all samples.

        A metric that is no mean over samples (IoU or F1 of the whole set, AUC, perplexity by tokens) needs
        :meth:`counts` and :meth:`metrics_from` instead.
        """
        raise NotImplementedError(
            f"{type(self).__name__} must define score, or counts and metrics_from"
        )

    def counts(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        """The sums over the evaluation set, by name: tensors of any shape, the same for every batch.

        By default the sum of each metric over the samples. True positives, sums over tokens or histograms of scores
        are others.
        """
        return {name: each.double().sum() for name, each in self.score(model, batch).items()}

    def metrics_from(self, counts: Mapping[str, Tensor], samples: int) -> Mapping[str, float]:
        """Every metric of ``metrics``, from the sums of all batches of all workers, in float64.

        ``counts`` are tensors by name, of the shapes that :meth:`counts` gives. By default the means over the
        ``samples``.
        """
        return {name: float(counts[name]) / samples for name in self.metrics}


class StreamWorkload(Workload):
    """A model that is trained on samples as they come: from tar shards, a DataLoader, a DALI pipeline, any iterable.

    ``train_samples`` and ``evaluation_samples`` are declared; an epoch of worker r of n is its n-th part of
    ``train_samples`` (a stream that ends before begins again, what it gives beyond is left out). The order has to
    follow from ``seed`` and ``epoch``: then a training can be repeated, and is resumed where it was, by leaving out
    what was processed. Which samples meet in a batch depends on the number of workers, so trainings with other numbers
    of workers agree in distribution only; samples that are addressed by index have no such limit.
    """

    streamed = True
    prefetched_batches = 2

    @abstractmethod
    def training_stream(self, epoch: int, seed: int, part: Part) -> Iterable[Batch]:
        """One worker's training samples of an epoch, in batches of any size and in an order drawn from both numbers.

        The workers' parts must not overlap, and should be of about the same length.
        """

    @abstractmethod
    def evaluation_stream(self, part: Part) -> Iterable[Batch]:
        """One worker's evaluation samples, in batches of any size, each sample once over all workers."""

    def training_batch(self, indices: Tensor, epochs: Tensor, seed: int) -> Batch:  # noqa: ARG002
        """Samples of a stream have no index."""
        raise WorkloadError(f"the samples of {type(self).__name__} come as a stream, not by index")

    def evaluation_batch(self, indices: Tensor) -> Batch:  # noqa: ARG002
        """Samples of a stream have no index."""
        raise WorkloadError(f"the samples of {type(self).__name__} come as a stream, not by index")


def some_samples(workload: Workload, count: int, *, evaluation: bool = False) -> Batch:
    """A batch of ``count`` samples, whichever, to measure with; a training or evaluation set holds as many."""
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
