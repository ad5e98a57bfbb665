"""Sample predictions of a trained model for the report, and the IoU of the baselines.

    {"title": ..., "samples": number of evaluation samples used for comparison,
     "references": {"majority class": IoU, "per-pixel linear classifier": IoU},
     "classes": [the name of each label],
     "panels": [{"name": ..., "fields": {"TMQ": rows of whole numbers 0..255, ...}, "labels": rows of labels,
                 "prediction": rows of labels}, ...]}

Rows run from north to south, columns from west to east, with at most :data:`LARGEST_WIDTH` columns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainers.workloads.segmentation.channels import CHANNELS, CLASSES
from trainers.workloads.segmentation.references import (
    evaluated_samples,
    evaluation_batches,
    linear_classifier,
    majority_class,
    mean_iou,
)

if TYPE_CHECKING:
    from trainers.workloads.segmentation.data import ClimateSamples

PANELS = 3
LARGEST_WIDTH = 160
SHOWN_CHANNELS = ("TMQ", "U850", "PSL")
"""The fields shown: moisture shows rivers, sea-level pressure shows cyclones, and wind shows both."""


@torch.no_grad()
def sample_images(model: nn.Module, samples: ClimateSamples) -> dict[str, Any]:
    """Return sample images of a model in evaluation mode, as plain, JSON-compatible values.

    The baselines are fitted and evaluated again, on the CPU.
    """
    device = next(model.parameters()).device

    def predict(fields: Tensor) -> Tensor:
        classes: Tensor = model(fields.to(device)).argmax(1)
        return classes.cpu()

    ious = {
        "majority class": mean_iou(majority_class(samples), samples),
        "per-pixel linear classifier": mean_iou(linear_classifier(samples), samples),
    }
    panels = []
    for index in shown_samples(samples):
        fields, labels = samples.prepare(samples.evaluation_batch(torch.tensor([index])))
        panels.append(
            _panel(f"evaluation sample {index}", fields[0], labels[0], predict(fields)[0])
        )
    return {
        "title": "Climate segmentation: fields, labels and prediction",
        "samples": evaluated_samples(samples),
        "references": ious,
        "classes": list(CLASSES),
        "panels": panels,
    }


def shown_samples(samples: ClimateSamples) -> list[int]:
    """Return the evaluation samples with the most of both rare classes, relative to their mean shares, best first.

    The choice depends only on the labels, so it cannot favour the model.
    """
    counts = torch.cat(
        [
            F.one_hot(labels.flatten(1), len(CLASSES)).sum(1)[:, 1:]
            for _, labels in evaluation_batches(samples)
        ]
    ).double()
    shares = counts / counts.mean(0).clamp(min=1)
    held = shares.min(1).values + 1e-3 * shares.sum(1)
    return held.argsort(descending=True)[:PANELS].tolist()


def _panel(name: str, fields: Tensor, labels: Tensor, prediction: Tensor) -> dict[str, Any]:
    step = -(-labels.shape[1] // LARGEST_WIDTH)
    shown = {channel: _grey(fields[CHANNELS.index(channel)], step) for channel in SHOWN_CHANNELS}
    return {
        "name": name,
        "fields": shown,
        "labels": _every(labels, step),
        "prediction": _every(prediction, step),
    }


def _grey(field: Tensor, step: int) -> list[list[int]]:
    """Map a field to whole numbers from 0 (its minimum) to 255 (its maximum), rows from north to south."""
    coarse = F.avg_pool2d(field[None, None], step, ceil_mode=True)[0, 0]
    low, high = coarse.min(), coarse.max()
    rows: list[list[int]] = (
        ((coarse - low) / (high - low).clamp(min=1e-12) * 255).round().int().flip(0).tolist()
    )
    return rows


def _every(labels: Tensor, step: int) -> list[list[int]]:
    rows: list[list[int]] = labels[::step, ::step].flip(0).tolist()
    return rows
