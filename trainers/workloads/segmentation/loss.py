"""The loss per pixel, weighted by the rarity of the pixel's class, and the intersection over union.

Class weights, from the share f of pixels in a class:

    inverse_sqrt           f^(-1/2), normalized to sum 1                Kurth et al., arXiv:1810.01993
    inverse_eighth_root    f^(-1/8)                                     MLPerf HPC DeepCAM, train.py

The loss is the plain mean of the weighted cross entropies over the pixels, as in DeepCAM's losses.py. PyTorch's own
mean would divide by the sum of the weights, and a sum over the pixels, as used by Kurth et al., would make the learning
rate depend on the number of pixels.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from search_spaces.names import nearest_or_all
from trainers.errors import DataError, JobError

EXPONENTS = {"none": 0.0, "inverse_sqrt": -1 / 2, "inverse_eighth_root": -1 / 8, "inverse": -1.0}


def class_weights(frequencies: Sequence[float], weighting: str) -> Tensor:
    """Return the weight of each class, ``(classes,)`` float32, from its share of the training pixels.

    Raises :class:`~trainers.errors.DataError` for a class without pixels, unless all classes have the same weight.
    """
    if weighting not in EXPONENTS:
        raise JobError(
            f"there is no class_weighting {weighting!r}{nearest_or_all(weighting, EXPONENTS)}"
        )
    if weighting == "none":
        return torch.ones(len(frequencies))
    for label, frequency in enumerate(frequencies):
        if not frequency > 0:
            raise DataError(
                f"class_weighting {weighting!r} needs pixels of every class in the training data, but "
                f"the share of class {label} is {frequency!r}; use more samples, or class_weighting 'none'"
            )
    weights = torch.tensor(list(frequencies), dtype=torch.float64) ** EXPONENTS[weighting]
    return (weights / weights.sum() if weighting == "inverse_sqrt" else weights).float()


def pixel_losses(
    scores: Tensor, labels: Tensor, weights: Tensor | None = None, label_smoothing: float = 0.0
) -> Tensor:
    """Return the weighted cross entropy of each pixel ``(n, height, width)``, in fp32 for scores of any precision."""
    return F.cross_entropy(
        scores.float(), labels, weights, reduction="none", label_smoothing=label_smoothing
    )


def intersection_over_union(predictions: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Return the IoU of each sample ``(n,)`` float32, averaged over the classes, as in DeepCAM's metric.py.

    ``predictions`` and ``labels`` are classes ``(n, height, width)``. A class absent from both counts as 1.
    """
    total = torch.zeros(len(labels), device=labels.device)
    for label in range(classes):
        predicted, true = predictions == label, labels == label
        shared, either = (predicted & true).sum((1, 2)), (predicted | true).sum((1, 2))
        total += torch.where(either > 0, shared / either.clamp(min=1), 1.0)
    return total / classes
