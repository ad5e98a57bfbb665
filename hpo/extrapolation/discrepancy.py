"""How trainings at one batch correct the laws, which are only roughly right there.

A Gaussian process over the tuned settings at one batch has as its mean the cost of suboptimal settings that the laws
expect; the deviation of trainings from that mean is the discrepancy (Kennedy and O'Hagan 2000, "Predicting the output
from a complex computer code when fast approximations are available"). One lucky training moves it by no more than its
scatter allows. The size of the discrepancy is inferred from the trainings too: predictions are averaged over sizes,
weighted by their marginal likelihood.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[np.float64]

# sizes of the discrepancy in log epochs, with their prior probabilities; OFFSET is the size of the level common to all
# settings
AMPLITUDES, PROBABILITIES = (0.1, 0.2, 0.4, 0.8), (0.25, 0.4, 0.25, 0.1)
OFFSET = 1.0
# share of a training's variance that all trainings with its seed have in common (same initial weights, sample order).
# AdamW on digits at 4 times the ladder, 9 configurations by 5 seeds: 0.086 of 0.143 in log epochs
SEED_SHARE = 0.4
LENGTH = 0.3  # in coordinates of the laws: a factor of 1.35 in the rate or in 1 - momentum
WORTH = 1.2  # a stopped training counts as at least this many times the fewest epochs so far
LOST_FACTOR = 1.5  # a diverged training counts as this many times the fewest epochs


@dataclass(frozen=True)
class CorrectedEpochs:
    """The discrepancy model after trials: mean and standard deviation of the log epochs of candidates.

    ``bend`` is what the trials add to the laws' prediction, without the level that is common to all.
    """

    mean: Array
    sd: Array
    bend: Array


def counted(state: str, epochs: float, least: float) -> float:
    """Return the epochs that a trial counts as having needed; ``least`` is the fewest that any trial needed."""
    if state == "reached":
        return epochs
    return least * LOST_FACTOR if state == "diverged" else max(epochs, least * WORTH)


def correct_by_trials(
    prior: Array,
    coordinates: Array,
    tried: Array,
    prior_of_tried: Array,
    log_epochs: Sequence[float] | Array,
    noise: float,
    seeds: Sequence[int | None] | None = None,
) -> CorrectedEpochs:
    """Correct the laws' log epochs of candidates by trials; ``noise`` is the scatter of one training in log epochs.

    Trials that share one of the ``seeds``, if given, share a part of the noise. ``prior`` is the expected cost of the
    candidates in log epochs, at ``coordinates`` (candidates, settings), ``prior_of_tried`` that of the trials at
    ``tried`` (trials, settings); ``log_epochs`` is what the trials needed.
    """
    alike = np.eye(len(tried))
    if seeds is not None:
        same = np.array([[one is not None and one == other for other in seeds] for one in seeds])
        alike = np.where(same, SEED_SHARE, 0.0) * (1 - alike) + alike
    # the level of the epochs comes from the trials themselves
    gap = np.asarray(log_epochs) - prior_of_tried
    level = float(np.median(gap))
    bends, variances, weights = [], [], []
    for amplitude, probability in zip(AMPLITUDES, PROBABILITIES, strict=True):
        known = _kernel(tried, tried, amplitude) + noise**2 * alike
        across = _kernel(coordinates, tried, amplitude)
        told = np.linalg.solve(known, gap - level)
        evidence = -0.5 * (gap - level) @ told - 0.5 * np.linalg.slogdet(known)[1]
        weights.append(np.log(probability) + evidence)
        bends.append([across @ told, (across - OFFSET**2) @ told])
        left = np.einsum("ij,ji->i", across, np.linalg.solve(known, across.T))
        variances.append(amplitude**2 + OFFSET**2 - left)
    share = np.exp(np.array(weights) - max(weights))
    share /= share.sum()
    added, bend = np.tensordot(share, np.array(bends), axes=1)
    apart = np.array([each[0] for each in bends]) - added
    variance = share @ (np.maximum(variances, 0.0) + apart**2)
    return CorrectedEpochs(prior + level + added, np.sqrt(variance), bend)


def _kernel(one: Array, other: Array, amplitude: float) -> Array:
    away = ((one[:, None, :] - other[None, :, :]) ** 2).sum(axis=2)
    return np.asarray(OFFSET**2 + amplitude**2 * np.exp(-0.5 * away / LENGTH**2))
