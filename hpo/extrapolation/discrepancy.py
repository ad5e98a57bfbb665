"""What trainings at one batch say beyond the laws: the laws are only roughly right there.

What the laws expect a miss to cost is the mean of a Gaussian process over the tuned settings at one batch, and what
trainings there say beyond it is its discrepancy (Kennedy and O'Hagan 2000, "Predicting the output from a complex
computer code when fast approximations are available"). One lucky training moves it by no more than its scatter allows.
How far off the laws are is inferred from the trainings too: the discrepancy is averaged over its size, each size by its
marginal likelihood.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[np.float64]

# sizes of the discrepancy in log epochs, with their probabilities: how wrong the laws are is unknown before trainings
# at the batch; OFFSET is the size of the level common to all
AMPLITUDES, PROBABILITIES = (0.1, 0.2, 0.4, 0.8), (0.25, 0.4, 0.25, 0.1)
OFFSET = 1.0
# of the variance of a training: trainings of one seed, with the same start weights and order of samples, share it.
# AdamW on digits at 4 times the ladder, 9 configurations by 5 seeds: 0.086 of 0.143 in log epochs
SEED_SHARE = 0.4
LENGTH = 0.3  # in coordinates of the laws: a factor of 1.35 of a rate, or of 1 - momentum
WORTH = 1.2  # times the fewest epochs so far: what a training that was stopped counts as at least
LOST_FACTOR = 1.5  # a diverged training counts as needing so many times the fewest epochs


@dataclass(frozen=True)
class Corrected:
    """The discrepancy model after trials: mean and standard deviation of the log epochs of candidates.

    ``bend`` is what the trials add to the laws there beside the level that is common to all.
    """

    mean: Array
    sd: Array
    bend: Array


def counted(state: str, epochs: float, least: float) -> float:
    """Epochs that a trial counts as having needed, where ``least`` is the fewest that any did."""
    if state == "reached":
        return epochs
    return least * LOST_FACTOR if state == "diverged" else max(epochs, least * WORTH)


def correct(
    prior: Array,
    coordinates: Array,
    tried: Array,
    prior_of_tried: Array,
    log_epochs: Sequence[float] | Array,
    noise: float,
    seeds: Sequence[int | None] | None = None,
) -> Corrected:
    """The laws' log epochs of candidates, corrected by trials; ``noise`` is the scatter of one training in them.

    Trials of one of the ``seeds`` share a part of it where these are told. ``prior`` is the expected miss of candidates
    in log epochs, at ``coordinates`` (candidates, settings), ``prior_of_tried`` that of the trials at
    ``tried`` (trials, settings), ``log_epochs`` what they needed.
    """
    alike = np.eye(len(tried))
    if seeds is not None:
        same = np.array([[one is not None and one == other for other in seeds] for one in seeds])
        alike = np.where(same, SEED_SHARE, 0.0) * (1 - alike) + alike
    # the level of the epochs is the first trial's to tell
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
    return Corrected(prior + level + added, np.sqrt(variance), bend)


def _kernel(one: Array, other: Array, amplitude: float) -> Array:
    away = ((one[:, None, :] - other[None, :, :]) ** 2).sum(axis=2)
    return np.asarray(OFFSET**2 + amplitude**2 * np.exp(-0.5 * away / LENGTH**2))
