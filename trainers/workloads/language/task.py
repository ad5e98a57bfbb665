"""Language modelling: a decoder-only transformer over the bytes of text.

Data options: ``source`` (python or text), ``path``, ``sequence_length``, ``train_samples``, ``evaluation_samples``,
``width``, ``depth``, ``head_size``, ``parametrization``, ``base_width``, ``base_depth``, ``base_head_size``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from search_spaces.settings import TrainingSettings
from trainers.errors import DataError, JobError
from trainers.numerics.parametrization import attention_scale, base_sizes
from trainers.workloads.language.model import (
    INITIALIZATION,
    RESIDUAL_OUTPUTS,
    TransformerDecoder,
)
from trainers.workloads.language.text import ByteWindows, read_text
from trainers.workloads.workload import Batch, Workload, check_options

_OPTIONS = (
    "source",
    "path",
    "sequence_length",
    "train_samples",
    "evaluation_samples",
    "width",
    "depth",
    "head_size",
    "parametrization",
    "base_width",
    "base_depth",
    "base_head_size",
)
_BYTES = 256
_MOST_EVALUATED = 512


class LanguageWorkload(Workload):
    """Predicts the next byte of a text; a sample is a sequence. The loss is in nats per byte, ``bits_per_byte`` in
    bits.
    """

    metrics: ClassVar[Mapping[str, bool]] = {"bits_per_byte": False, "loss": False}
    largest_micro_batch = 64
    initialization = INITIALIZATION
    residual_outputs = RESIDUAL_OUTPUTS

    def __init__(self, data: Mapping[str, Any]) -> None:
        check_options(data, _OPTIONS)
        self.sequence_length = _whole(data, "sequence_length", 128)
        self.width, self.depth = _whole(data, "width", 64), _whole(data, "depth", 2)
        self.head_size = _whole(data, "head_size", 16)
        self.heads = _heads(self.width, self.head_size, "")
        self.base = base_sizes(data)
        self.base_head_size = _whole(data, "base_head_size", self.head_size)
        if self.base is not None:
            _heads(self.base.width, self.base_head_size, "base_")
        elif "base_head_size" in data:
            raise DataError(
                "base_head_size needs parametrization 'mup' or 'completep', but got "
                f"{self.base_head_size} with parametrization 'standard'; leave it out, or set parametrization: mup"
            )
        training, held_out = read_text(data)
        self.training = ByteWindows(
            training,
            self.sequence_length,
            _whole(data, "train_samples", None),
            what="training",
            option="train_samples",
        )
        evaluated = _whole(data, "evaluation_samples", None)
        self.held_out = ByteWindows(
            held_out,
            self.sequence_length,
            evaluated,
            what="held-out",
            option="evaluation_samples",
        )
        if evaluated is None:
            self.held_out.samples = min(self.held_out.available, _MOST_EVALUATED)
        self.train_samples = self.training.samples
        self.evaluation_samples = self.held_out.samples

    def build_model(self, settings: TrainingSettings) -> nn.Module:
        """Build the decoder with the width, depth and sequence length from the data options."""
        if settings.class_weighting != "none":
            raise JobError(
                "class_weighting is a setting of segmentation, whose classes differ in frequency, but got "
                f"{settings.class_weighting!r} for the workload language; set class_weighting to 'none'"
            )
        return self._decoder(
            self.width,
            self.depth,
            self.heads,
            attention_scale(self.head_size, self.base_head_size),
        )

    def base_model(self, settings: TrainingSettings) -> nn.Module | None:  # noqa: ARG002
        """Build the decoder at ``base_width`` (and ``base_depth`` with ``completep``); None with ``standard``."""
        if self.base is None:
            return None
        return self._decoder(
            self.base.width,
            self.base.depth or self.depth,
            self.base.width // self.base_head_size,
            attention_scale(self.base_head_size, self.base_head_size),
        )

    def _decoder(self, width: int, depth: int, heads: int, scale: float) -> TransformerDecoder:
        return TransformerDecoder(
            width=width,
            depth=depth,
            initial_depth=(self.base and self.base.depth) or depth,
            heads=heads,
            positions=self.sequence_length,
            tokens=_BYTES,
            attention_scale=scale,
        )

    def parameter_kinds(self, model: nn.Module) -> Mapping[str, str]:  # noqa: ARG002
        """Classify the output layer as an embedding, one row per byte, which Muon leaves to AdamW."""
        return {"head.weight": "embedding"}

    def training_batch(self, indices: Tensor, epochs: Tensor, seed: int) -> Batch:  # noqa: ARG002
        """Return sequences ``(n, sequence_length)`` and their next bytes, in the same shape, both uint8."""
        return _pair(self.training.take(indices))

    def evaluation_batch(self, indices: Tensor) -> Batch:
        """Return held-out sequences ``(n, sequence_length)`` and their next bytes, in the same shape, both uint8."""
        return _pair(self.held_out.take(indices))

    def prepare(self, batch: Batch) -> Batch:
        """Convert the bytes to int64 indices."""
        return tuple(each.long() for each in batch)

    def loss(self, model: nn.Module, batch: Batch, settings: TrainingSettings) -> Tensor:
        """Return the cross entropy in nats per byte, with label smoothing."""
        sequences, following = batch
        return F.cross_entropy(
            model(sequences).flatten(0, 1),
            following.flatten(),
            label_smoothing=settings.label_smoothing,
        )

    def score(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        """Return the cross entropy of each sequence without smoothing, in nats and in bits per byte."""
        sequences, following = batch
        scores = model(sequences).transpose(1, 2)
        losses = F.cross_entropy(scores, following, reduction="none").mean(1)
        return {"bits_per_byte": losses / math.log(2), "loss": losses}


def _pair(windows: Tensor) -> Batch:
    return windows[:, :-1], windows[:, 1:]


def _heads(width: int, head_size: int, beginning: str) -> int:
    if width % head_size:
        raise DataError(
            f"{beginning}width must be a multiple of {beginning}head_size, {head_size}, because every attention head "
            f"has that many channels, but got {width}; {max(1, width // head_size) * head_size} is one, or set "
            f"{beginning}head_size"
        )
    return width // head_size


def _whole(data: Mapping[str, Any], name: str, default: int | None) -> Any:
    value = data.get(name, default)
    if value is default:
        return value
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise DataError(f"{name} must be a whole number of at least 1, but got {value!r}")
    return value
