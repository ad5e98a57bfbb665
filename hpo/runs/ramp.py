"""Estimates how much a batch that grows during training saves over a constant one, from the gradient noise scale.

An update with B samples makes 1 / (1 + N / B) of the progress of an update without noise (McCandlish et al.,
arXiv:1812.06162, equation 2.7). Let p be the progress in noiseless updates, and N(p) the noise scale. For any batch
size B:

    updates = integral of (1 + N / B) dp            samples = integral of (B + N) dp        (appendix D there)

For a constant batch size, these integrals give the hyperbola of the epochs, whose critical batch size is the mean of N
over p. So the measured course of N gives the shape, and the critical batch size of the fitted laws gives the scale: the
noise scale predicts only the order of magnitude (section 4 there). The batch control itself uses the measured values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hpo.extrapolation.inference.intervals import Interval
from search_spaces.settings import TrainingSettings
from storage.figures import Convergence
from trainers.schedules.batch_size import BatchByNoise, batch_factor

Array: TypeAlias = NDArray[np.float64]

PIECES = 200
"""Number of segments of equal progress over which a course is integrated."""
ROUNDS = 12
"""Number of iterations for finding the length of a run whose batch size depends on its epochs."""
QUANTILES = (-1.645, -1.28, -0.84, -0.52, -0.25, 0.0, 0.25, 0.52, 0.84, 1.28, 1.645)
"""Quantiles of the critical batch size, in standard deviations of its logarithm."""


@dataclass(frozen=True)
class RampSaving:
    """The shares of updates saved and of extra samples needed to reach the same target, with 90 % intervals."""

    updates: Interval
    samples: Interval
    largest_batch: int

    def to_dict(self) -> dict[str, Any]:
        """Return the saving as plain values."""
        return {
            "updates_saved": self.updates.to_dict(),
            "more_samples": self.samples.to_dict(),
            "largest_batch": self.largest_batch,
        }

    def __str__(self) -> str:
        updates, samples = self.updates, self.samples
        return (
            f"Growing to {self.largest_batch}, the batch size is expected to save {updates.median:.0%} "
            f"({updates.low:.0%} to {updates.high:.0%}) of the updates of a constant one, "
            f"for {samples.median:.0%} "
            f"({samples.low:.0%} to {samples.high:.0%}) more samples."
        )


def noise_course(points: Convergence) -> Array | None:
    """Return a run's measured noise scale at ``PIECES`` points of equal progress; None if not measured."""
    known = np.isfinite(points.gradient_noise_scale) & (points.gradient_noise_scale > 0)
    if not known.any():
        return None
    noise, batch = points.gradient_noise_scale[known], points.global_batch_size[known]
    updates = np.diff(points.step[known], prepend=0)
    progress = np.cumsum(updates / (1 + noise / batch))
    places = (np.arange(PIECES) + 0.5) / PIECES * progress[-1]
    return np.asarray(np.exp(np.interp(places, progress, np.log(noise))))


def ramp_saving(
    courses: Sequence[Array],
    settings: TrainingSettings,
    global_batch_size: int,
    critical_batch: Interval,
    epochs: float,
    train_samples: int,
) -> RampSaving:
    """Return what the batch control of ``settings`` saves, starting from ``global_batch_size``.

    ``courses`` come from :func:`noise_course`, and the run may follow any of them. ``epochs`` is its length.
    """
    spread = np.log(critical_batch.high / critical_batch.low) / (2 * QUANTILES[-1])
    found = [
        _walked(
            course, settings, global_batch_size, critical, epochs * train_samples, train_samples
        )
        for course in courses
        for critical in critical_batch.median * np.exp(np.array(QUANTILES) * spread)
    ]
    weights = np.exp(-0.5 * np.array(QUANTILES) ** 2).tolist() * len(courses)
    saved, more, batches = (np.array(each) for each in zip(*found, strict=True))
    return RampSaving(_interval(saved, weights), _interval(more, weights), int(np.median(batches)))


def _walked(
    noise: Array,
    settings: TrainingSettings,
    global_batch_size: int,
    critical: float,
    total_samples: float,
    train_samples: int,
) -> tuple[float, float, float]:
    """Return the shares of updates saved and of extra samples, and the final batch size."""
    true = noise * (critical / noise.mean())
    stays = (1 + true / global_batch_size).sum()
    length = total_samples / (global_batch_size * stays)  # of a segment, in noiseless updates
    for _ in range(ROUNDS):
        batches = _batches(noise, true, settings, global_batch_size, length, train_samples)
        length *= total_samples / (length * (batches + true).sum())
    updates = (1 + true / batches).sum() / stays
    samples = (batches + true).sum() / (global_batch_size * stays)
    return 1 - updates, samples - 1, float(batches[-1])


def _batches(
    noise: Array,
    true: Array,
    settings: TrainingSettings,
    global_batch_size: int,
    length: float,
    train_samples: int,
) -> Array:
    """Return the batch size in each segment of a course, as the batch control itself would choose it."""
    batches, factor, samples = np.empty(len(noise)), 1.0, 0.0
    for piece, measured in enumerate(noise):
        if settings.batch_control != "noise_scale":
            factor = batch_factor(settings, samples / train_samples)
        elif BatchByNoise.grows(settings, factor, global_batch_size, float(measured)):
            factor *= 2
        batches[piece] = factor * global_batch_size
        samples += length * (batches[piece] + true[piece])
    return batches


def _interval(values: Array, weights: Sequence[float]) -> Interval:
    order = np.argsort(values)
    share = np.cumsum(np.array(weights)[order])
    low, median, high = np.interp([0.05, 0.5, 0.95], share / share[-1], values[order])
    return Interval(float(median), float(low), float(high))
