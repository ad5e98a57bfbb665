"""How long a plan takes on this machine, from the throughput of one worker that the sweep itself measured."""

from __future__ import annotations

from hpo.extrapolation.forecast import Interval

LEAST_EFFICIENCY = 0.25
"""Assumed worst parallel efficiency of a few workers on one machine, where a small model waits for its all-reduces and
others use the cores too; the best is 1."""


def seconds_to_target(epochs: Interval, train_samples: int, rate: float, workers: int) -> Interval:
    """Seconds of training for ``epochs``, on ``workers`` that each do ``rate`` samples a second alone.

    seconds = epochs * train_samples / (workers * rate * efficiency), the efficiency between LEAST_EFFICIENCY and
    1; the median takes the middle of the two.
    """
    ideal = train_samples / (workers * rate)
    spread = 1.0 if workers == 1 else LEAST_EFFICIENCY
    return Interval(epochs.median * ideal / ((1 + spread) / 2), epochs.low * ideal, epochs.high * ideal / spread)
