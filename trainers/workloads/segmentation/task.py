"""Climate segmentation: label the pixels that belong to tropical cyclones and atmospheric rivers.

Data options: all options of :mod:`~trainers.workloads.segmentation.data` (``source`` and its options), ``model``,
``model_width``, ``dropout`` and ``prior_bias``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from search_spaces.names import nearest_or_all
from search_spaces.settings import TrainingSettings
from trainers.errors import DataError, JobError
from trainers.numerics.normalization import GhostBatchNorm
from trainers.workloads.segmentation.blocks import Norm, network_memory_format
from trainers.workloads.segmentation.data import OPTION_NAMES, open_samples
from trainers.workloads.segmentation.deeplab import UNITS, DeepLab
from trainers.workloads.segmentation.loss import (
    class_weights,
    intersection_over_union,
    pixel_losses,
)
from trainers.workloads.segmentation.sample_images import sample_images
from trainers.workloads.segmentation.tiramisu import LAYERS, Tiramisu
from trainers.workloads.workload import Batch, Workload, check_options

MODEL_WIDTHS = {"deeplabv3plus": 64, "tiramisu": 32, "deeplabv3plus_small": 8, "tiramisu_small": 8}
"""The networks, each with its default width: the features of DeepLab's stem, the growth rate of Tiramisu."""

MODEL_OPTIONS = ("model", "model_width", "dropout", "prior_bias")


class SegmentationWorkload(Workload):
    """DeepLabv3+ or Tiramisu on climate fields.

    ``iou`` is the intersection over union of each sample, averaged over the classes, as in DeepCAM; ``accuracy`` is the
    share of correct pixels; ``loss`` is the cross entropy per pixel without weights or smoothing.
    """

    metrics: ClassVar[Mapping[str, bool]] = {"iou": True, "accuracy": True, "loss": False}

    def __init__(self, data: Mapping[str, Any]) -> None:
        check_options(data, (*OPTION_NAMES, *MODEL_OPTIONS))
        self.model_name = _model_name(data.get("model", "deeplabv3plus"))
        self.model_width = _model_width(data.get("model_width"), self.model_name)
        self.dropout = _dropout(data.get("dropout", 0.0), self.model_name)
        self.prior_bias = _prior_bias(data.get("prior_bias", False))
        self.samples = open_samples(
            {name: value for name, value in data.items() if name not in MODEL_OPTIONS}
        )
        self.train_samples = self.samples.train_samples
        self.evaluation_samples = self.samples.evaluation_samples
        self.largest_micro_batch = self.samples.largest_micro_batch
        self.prefetched_batches = self.samples.prefetched_batches
        self._weights: dict[tuple[str, torch.device], Tensor] = {}

    def build_model(self, settings: TrainingSettings) -> nn.Module:
        """Build the network that the data options name."""
        if settings.zero_gamma:
            raise JobError(
                f"zero_gamma needs a normalization at the end of a residual branch, and {self.model_name} "
                "has none (its encoder normalizes first); leave zero_gamma unset"
            )

        def norm(features: int) -> GhostBatchNorm:
            return GhostBatchNorm(
                features,
                settings.normalization_batch_size,
                momentum=settings.normalization_momentum,
            )

        model = self._network(norm)
        if self.prior_bias:
            start_at_shares(model.classifier, self.samples.class_frequencies)
        layout = network_memory_format("cuda" if torch.cuda.is_available() else "cpu")
        return model.to(memory_format=layout)  # type: ignore[call-overload, no-any-return]

    def _network(self, norm: Norm) -> DeepLab | Tiramisu:
        channels, classes = self.samples.channels, self.samples.classes
        if self.model_name in UNITS:
            return DeepLab(self.model_name, channels, classes, self.model_width, norm)
        return Tiramisu(self.model_name, channels, classes, self.model_width, norm, self.dropout)

    def training_batch(self, indices: Tensor, epochs: Tensor, seed: int) -> Batch:
        """Return fields ``(n, height, width, 16)`` and labels ``(n, height, width)`` as stored."""
        return self.samples.training_batch(indices, epochs, seed)

    def loss(self, model: nn.Module, batch: Batch, settings: TrainingSettings) -> Tensor:
        """Return the mean cross entropy over all pixels, weighted according to ``class_weighting``."""
        fields, labels = batch
        weights = self._class_weights(settings.class_weighting, labels.device)
        return pixel_losses(model(fields), labels, weights, settings.label_smoothing).mean()

    def _class_weights(self, weighting: str, device: torch.device) -> Tensor | None:
        if weighting == "none":
            return None
        if (weighting, device) not in self._weights:
            self._weights[weighting, device] = class_weights(
                self.samples.class_frequencies, weighting
            ).to(device)
        return self._weights[weighting, device]

    def evaluation_batch(self, indices: Tensor) -> Batch:
        """Return fields ``(n, height, width, 16)`` and labels ``(n, height, width)`` as stored."""
        return self.samples.evaluation_batch(indices)

    def use_device(self, device: torch.device) -> None:
        """Set the device that uses the batches."""
        self.samples.use_device(device)

    def prepare(self, batch: Batch) -> Batch:
        """Return scaled fields ``(n, 16, height, width)`` and labels ``(n, height, width)``."""
        return self.samples.prepare(batch)

    def score(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        """Return the IoU, pixel accuracy and unweighted loss of each sample, ``(n,)``."""
        fields, labels = batch
        scores = model(fields)
        predictions = scores.argmax(1)
        return {
            "iou": intersection_over_union(predictions, labels, self.samples.classes),
            "accuracy": (predictions == labels).float().mean((1, 2)),
            "loss": pixel_losses(scores, labels).mean((1, 2)),
        }

    def sample_images(self, model: nn.Module) -> dict[str, Any]:
        """Return sample predictions of a trained model for the report, as JSON values; see :mod:`.sample_images`."""
        return sample_images(model, self.samples)


def start_at_shares(classifier: nn.Conv2d, frequencies: Sequence[float]) -> None:
    """Initialize the last convolution so that each pixel's class probabilities equal the shares in the training set.

    This follows Lin et al., arXiv:1708.02002, section 4.1 (weights N(0, 0.01)); otherwise the first epochs are spent
    learning that nearly all pixels are background.
    """
    biases = torch.tensor(frequencies, dtype=torch.float64).clamp(min=1e-6).log()
    nn.init.normal_(classifier.weight, std=0.01)
    with torch.no_grad():
        classifier.bias.copy_(biases)  # type: ignore[union-attr]


def _model_name(name: Any) -> str:
    if name not in MODEL_WIDTHS:
        raise DataError(f"there is no model {name!r}{nearest_or_all(str(name), MODEL_WIDTHS)}")
    return str(name)


def _model_width(width: Any, model_name: str) -> int:
    if width is None:
        return MODEL_WIDTHS[model_name]
    unit = 4 if model_name in UNITS else 1
    if isinstance(width, bool) or not isinstance(width, int) or width < 1 or width % unit:
        raise DataError(
            f"model_width of {model_name} must be a positive multiple of {unit}, but got {width!r}"
        )
    return width


def _prior_bias(value: Any) -> bool:
    if not isinstance(value, bool):
        raise DataError(f"prior_bias must be true or false, but got {value!r}")
    return value


def _dropout(share: Any, model_name: str) -> float:
    if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 <= share < 1:
        raise DataError(f"dropout must be a share of features in [0, 1), but got {share!r}")
    if share and model_name not in LAYERS:
        raise DataError(
            f"dropout is used only in {' and '.join(LAYERS)}, but the model is {model_name}"
        )
    return float(share)
