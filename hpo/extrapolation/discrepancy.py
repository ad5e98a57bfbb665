"""How runs at one batch size correct the laws, which are only roughly right there.

A Gaussian process describes the epochs over the tuned settings at one batch. Its mean is the cost of suboptimal
settings that the laws expect; the deviation of runs from that mean is the discrepancy (Kennedy and O'Hagan 2000,
"Predicting the output from a complex computer code when fast approximations are available"). One lucky run moves it by
no more than the scatter of runs allows. The size of the discrepancy is also inferred from the runs: predictions are
averaged over sizes, weighted by their marginal likelihood.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[np.float64]

# candidate sizes of the discrepancy in log epochs, with their prior probabilities; OFFSET is the size of the offset
# that all settings share
AMPLITUDES, PROBABILITIES = (0.1, 0.2, 0.4, 0.8), (0.25, 0.4, 0.25, 0.1)
OFFSET = 1.0
# share of the variance between runs that is due to the seed (initial weights, sample order). With AdamW on digits at 4
# times the ladder (9 configurations, 5 seeds), the standard deviation in log epochs is 0.143, of which 0.086 is between
# seeds
SEED_SHARE = 0.4
LENGTH = 0.3  # in coordinates of the laws: a factor of 1.35 in the rate or in 1 - momentum
WORTH = 1.2  # a stopped run is assumed to need at least this many times the fewest epochs so far
LOST_FACTOR = 1.5  # a diverged run is assumed to need this many times the fewest epochs


@dataclass(frozen=True)
class CorrectedEpochs:
    """The discrepancy model given the trials: mean and standard deviation of the candidates' log epochs.

    ``bend`` is what the trials add to the laws' prediction, without the offset that all candidates share.
    """

    mean: Array
    sd: Array
    bend: Array


def counted(state: str, epochs: float, least: float) -> float:
    """Return the epochs that a trial is assumed to have needed; ``least`` is the fewest that any trial needed."""
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
    """Correct the candidates' log epochs with trials; ``noise`` is the scatter of one run in log epochs.

    If ``seeds`` are given, trials with the same seed share a part of the noise. ``prior`` is the candidates' cost in
    log epochs that the laws expect at ``coordinates`` (candidates, settings); ``prior_of_tried`` is the same for the
    trials at ``tried`` (trials, settings). ``log_epochs`` holds the log epochs that the trials needed.
    """
    alike = np.eye(len(tried))
    if seeds is not None:
        same = np.array([[one is not None and one == other for other in seeds] for one in seeds])
        alike = np.where(same, SEED_SHARE, 0.0) * (1 - alike) + alike
    # the overall level of the epochs comes from the trials themselves
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
