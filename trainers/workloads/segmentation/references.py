"""Baselines for a model: the majority class, and a linear classifier that sees one pixel at a time.

The linear classifier is a multinomial logistic regression on the 16 standardized channels of a pixel. It is fitted with
several class weightings, and the fit with the best IoU on its training samples is used for comparison, because the IoU
favours a different balance of classes than the likelihood does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from trainers.workloads.segmentation.loss import (
    EXPONENTS,
    class_weights,
    intersection_over_union,
    pixel_losses,
)

if TYPE_CHECKING:
    from trainers.workloads.segmentation.data import ClimateSamples

Predictor = Callable[[Tensor], Tensor]
"""A function that predicts classes ``(n, height, width)`` from fields ``(n, 16, height, width)``."""

ITERATIONS = 60
"""The maximum number of L-BFGS iterations for each class weighting."""

PIXELS_TO_FIT = 120_000
"""The number of training pixels used to fit the linear classifier, from samples spread over the training set."""

PIXELS_TO_EVALUATE = 1 << 25
"""The maximum number of evaluation pixels compared: 37 samples of 768x1152, or all samples if they are small."""


def mean_iou(predict: Predictor, samples: ClimateSamples) -> float:
    """Return the IoU on the evaluation samples, or on the first few if there are many large samples."""
    total = sum(
        float(intersection_over_union(predict(fields), labels, samples.classes).double().sum())
        for fields, labels in evaluation_batches(samples)
    )
    return total / evaluated_samples(samples)


def evaluated_samples(samples: ClimateSamples) -> int:
    """Return the number of evaluation samples used for comparison."""
    return min(
        samples.evaluation_samples, max(1, PIXELS_TO_EVALUATE // (samples.height * samples.width))
    )


def evaluation_batches(samples: ClimateSamples) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the fields and labels of the evaluation samples used for comparison."""
    for indices in torch.split(
        torch.arange(evaluated_samples(samples)), samples.largest_micro_batch
    ):
        fields, labels = samples.prepare(samples.evaluation_batch(indices))
        yield fields, labels


def majority_class(samples: ClimateSamples) -> Predictor:
    """Return a predictor that assigns the most frequent class of the training pixels to every pixel."""
    frequencies = list(samples.class_frequencies)
    label = frequencies.index(max(frequencies))
    return lambda fields: torch.full((len(fields), *fields.shape[2:]), label)


@dataclass(frozen=True)
class LinearClassifier:
    """Scores each pixel by ``fields * weight + bias``; ``weight`` is ``(classes, channels)``, ``bias`` ``(classes,)``.

    ``weighting`` is the class weighting used in the fit, and ``training_iou`` is the fit's IoU on the training samples.
    """

    weight: Tensor
    bias: Tensor
    weighting: str
    training_iou: float

    def __call__(self, fields: Tensor) -> Tensor:
        """Return classes ``(n, height, width)`` for fields ``(n, channels, height, width)``."""
        return (
            torch.einsum("kc,nchw->nkhw", self.weight, fields) + self.bias.view(-1, 1, 1)
        ).argmax(1)


def linear_classifier(samples: ClimateSamples) -> LinearClassifier:
    """Fit the logistic regression whose class weighting gives the best IoU on the training samples."""
    count = min(samples.train_samples, max(1, PIXELS_TO_FIT // (samples.height * samples.width)))
    indices = torch.arange(count) * samples.train_samples // count
    fields, labels = samples.prepare(samples.training_batch(indices, torch.zeros_like(indices), 0))
    frequencies = torch.bincount(labels.flatten(), minlength=samples.classes) / labels.numel()
    pixels = fields.movedim(1, -1).flatten(0, 2)
    deviation, mean = torch.std_mean(pixels, 0)
    scale = 1 / deviation.clamp(min=1e-12)
    standardized = torch.cat(((pixels - mean) * scale, torch.ones(len(pixels), 1)), 1)
    coefficients, fitted = torch.zeros(samples.channels + 1, samples.classes), []
    for weighting in EXPONENTS:  # each fit starts where the previous one ended
        weights = _weights(frequencies, weighting)
        coefficients = _fit(
            standardized, labels.flatten(), weights / (weights * frequencies).sum(), coefficients
        )
        weight = coefficients[:-1].T * scale
        found = LinearClassifier(weight, coefficients[-1] - weight @ mean, weighting, 0.0)
        iou = intersection_over_union(found(fields), labels, samples.classes).mean()
        fitted.append(replace(found, training_iou=float(iou)))
    return max(fitted, key=lambda each: each.training_iou)


def _weights(frequencies: Tensor, weighting: str) -> Tensor:
    """Return the weights of the classes present in the pixels, and 0 for absent classes, ``(classes,)``."""
    weights = torch.zeros_like(frequencies)
    weights[frequencies > 0] = class_weights(frequencies[frequencies > 0].tolist(), weighting)
    return weights


def _fit(pixels: Tensor, labels: Tensor, class_weight: Tensor, start: Tensor) -> Tensor:
    """Minimize the weighted cross entropy and return the coefficients ``(channels + 1, classes)``."""
    coefficients = start.clone().requires_grad_()
    search = torch.optim.LBFGS(
        [coefficients],
        max_iter=ITERATIONS,
        tolerance_grad=1e-5,
        tolerance_change=1e-8,
        line_search_fn="strong_wolfe",
    )

    def objective() -> Tensor:
        search.zero_grad()
        loss = pixel_losses(pixels @ coefficients, labels, class_weight).mean()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    with torch.enable_grad():
        search.step(objective)  # type: ignore[no-untyped-call]
    return coefficients.detach()
