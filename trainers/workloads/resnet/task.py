"""Image classification with residual networks.

Data options: ``source`` (digits, image_folder or tar_shards), ``path``, ``image_size``, ``augment``, ``decoder``,
``decoding_threads``, ``classes``, ``train_samples``, ``evaluation_samples`` (of tar shards), ``model``, ``width``,
``parametrization``, ``base_width``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from search_spaces.names import nearest_or_all
from search_spaces.settings import TrainingSettings
from trainers.errors import DataError, JobError
from trainers.feed.streams import Part
from trainers.numerics.parametrization import base_sizes
from trainers.workloads.resnet.data import SOURCE_OPTIONS, open_images
from trainers.workloads.resnet.model import (
    NAMES,
    SMALL_NETWORKS,
    build_resnet,
    resnet_initialization,
)
from trainers.workloads.workload import Batch, Workload, check_options

_OPTIONS = ("source", "augment", "model", "width", "parametrization", "base_width")


class ResNetWorkload(Workload):
    """A residual network on images; top1 and top5 are whether the class is among the first 1 or 5 predictions."""

    metrics: ClassVar[Mapping[str, bool]] = {"top1": True, "top5": True, "loss": False}

    def __init__(self, data: Mapping[str, Any]) -> None:
        base = base_sizes(data, depth="the depth of workload 'resnet' is that of its model's name")
        check_options(data, (*_OPTIONS, *SOURCE_OPTIONS))
        self.images = open_images(data)
        self.train_samples = self.images.train_samples
        self.evaluation_samples = self.images.evaluation_samples
        self.largest_micro_batch = self.images.largest_micro_batch
        self.prefetched_batches = self.images.prefetched_batches
        self.concurrent_batches = self.images.concurrent_batches
        self.streamed = self.images.streamed
        self.model_name = _model_name(data.get("model"), self.images.size)
        self.width = _width(data.get("width"), self.model_name)
        self.base_width = None if base is None else base.width
        self.initialization = resnet_initialization(self.model_name)

    def build_model(self, settings: TrainingSettings) -> nn.Module:
        """Build the network that the data options name, by default one chosen by the image size."""
        if settings.class_weighting != "none":
            raise JobError(
                "class_weighting is a setting of segmentation, whose classes differ in frequency, but got "
                f"{settings.class_weighting!r} for the workload resnet; set class_weighting to 'none'"
            )
        return self._network(self.width, settings)

    def base_model(self, settings: TrainingSettings) -> nn.Module | None:
        """Build the network at ``base_width`` with parametrization ``mup``; return None with ``standard``."""
        return None if self.base_width is None else self._network(self.base_width, settings)

    def _network(self, width: int, settings: TrainingSettings) -> nn.Module:
        return build_resnet(
            self.model_name,
            self.images.channels,
            self.images.classes,
            width,
            settings.normalization_batch_size,
            momentum=settings.normalization_momentum,
            zero_gamma=settings.zero_gamma,
        )

    def use_device(self, device: torch.device) -> None:
        """Set the device that uses the batches."""
        self.images.use_device(device)

    def training_batch(self, indices: Tensor, epochs: Tensor, seed: int) -> Batch:
        """Return images ``(n, channels, size, size)``, uint8, and their classes ``(n,)``."""
        return self.images.training_batch(indices, epochs, seed)

    def loss(self, model: nn.Module, batch: Batch, settings: TrainingSettings) -> Tensor:
        """Return the cross entropy, with label smoothing (Szegedy et al., arXiv:1512.00567)."""
        images, classes = batch
        return F.cross_entropy(model(images), classes, label_smoothing=settings.label_smoothing)

    def evaluation_batch(self, indices: Tensor) -> Batch:
        """Return images ``(n, channels, size, size)``, uint8, and their classes ``(n,)``."""
        return self.images.evaluation_batch(indices)

    def training_stream(self, epoch: int, seed: int, part: Part) -> Iterable[Batch]:
        """Yield the training images as a stream, from tar files."""
        return self.images.training_stream(epoch, seed, part)

    def evaluation_stream(self, part: Part) -> Iterable[Batch]:
        """Yield the evaluation images as a stream, from tar files."""
        return self.images.evaluation_stream(part)

    def prepare(self, batch: Batch) -> Batch:
        """Normalize the images to floating point."""
        return self.images.prepare(batch)

    def score(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        """Return the unsmoothed cross entropy, and whether the class is among the top 1 and the top 5."""
        images, classes = batch
        scores = model(images)
        hits = scores.topk(min(5, scores.shape[1])).indices == classes[:, None]
        losses = F.cross_entropy(scores, classes, reduction="none")
        return {"top1": hits[:, 0], "top5": hits.any(1), "loss": losses}


def _model_name(name: Any, image_size: int) -> str:
    if name is None:
        return "resnet8" if image_size <= 16 else "resnet20" if image_size <= 64 else "resnet50"
    if name not in NAMES:
        raise DataError(f"there is no model {name!r}{nearest_or_all(str(name), NAMES)}")
    return str(name)


def _width(width: Any, model_name: str) -> int:
    if width is None:
        return 8 if model_name == "resnet8" else 16 if model_name in SMALL_NETWORKS else 64
    if isinstance(width, bool) or not isinstance(width, int) or width < 1:
        raise DataError(
            f"width must be a whole number of channels of at least 1, but got {width!r}"
        )
    return width
