"""The effects of warmup: it keeps the first updates below a rate at which they would diverge, and it costs time.

    lowered(U) = D / (1 + U / U_0)                                            U = w N / B updates of warmup
    E = E_full + w k / (k + 1)          where the target is reached after the warmup of w epochs,
    E = ((k + 1) E_full w^k)^(1 / (k + 1))                                    where it is reached within it

A network starts in a region of high curvature, where it tolerates a lower learning rate; updates at a low rate move it
to flatter regions (Gilmer et al. 2021, arXiv:2110.04369; Kalra and Barkeshli 2024, arXiv:2406.09405). The log of the
rate that a run tolerates is lower by D without a warmup, and by D / 2 with a warmup of U_0 updates. Updates matter, not
epochs, so a warmup with a fixed number of epochs has less effect at a larger batch.

The highest rate that a run tolerates and the rate above which it needs more epochs are two different limits. A short
warmup lowers the second limit by a share h (0 to 1) of the reduction of the first.

During a linear warmup, progress is proportional to (rate / peak rate)^k: with k = 1, progress is proportional to the
rate and a warmup costs half its length; with k = 0, where noise limits the rate, it costs nothing. E_full is the number
of epochs that the same settings need at the full rate from the first update on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from hpo.extrapolation.laws.parameters import LawParameter
from hpo.extrapolation.laws.priors import NormalPrior

Array: TypeAlias = NDArray[np.float64]
Values: TypeAlias = Mapping[str, Array]

WARMUP = "warmup_epochs"
HARDNESS = NormalPrior(
    float(np.log(1.0)), 0.7
)  # log D: nearly no effect with normalization, a factor of 3 or more without it
UPDATES = NormalPrior(float(np.log(30.0)), 0.7)  # log U_0
UPDATES_UNTOLD = 3.0  # sd of log U_0 if the number of updates per epoch is unknown
DELAY = NormalPrior(float(np.log(0.5)), 0.5)  # log k
SLOWED = NormalPrior(0.0, 1.5)  # logit of h


@dataclass(frozen=True)
class WarmupValues:
    """The warmups of some configurations: ``epochs`` and ``updates``, each (places,)."""

    epochs: Array
    updates: Array


@dataclass(frozen=True)
class WarmupLaw:
    """The law of the warmup; ``samples_per_epoch`` is None if unknown.

    ``tuned`` says whether studies may choose the warmup; otherwise every batch has ``usual`` epochs of warmup.
    ``tried`` holds the shortest and the longest warmup of the trials.
    """

    samples_per_epoch: float | None
    log_last_batch: float
    tuned: bool
    usual: float
    tried: tuple[float, float]

    def parameters(self) -> list[LawParameter]:
        """Return the parameters log D, log U_0, log k and the logit of h."""
        spread = UPDATES.sd if self.samples_per_epoch else UPDATES_UNTOLD
        return [
            LawParameter("warmup.log_hardness", HARDNESS.mean, HARDNESS.sd),
            LawParameter("warmup.log_updates", UPDATES.mean, spread),
            LawParameter("warmup.log_delay", DELAY.mean, DELAY.sd),
            LawParameter("warmup.slowed", SLOWED.mean, SLOWED.sd),
        ]

    def updates_per_epoch(self, log_batch: Array | float) -> Array:
        """Return the updates per epoch at each batch; if samples per epoch are unknown, 100 at the largest rung."""
        log_samples = (
            np.log(self.samples_per_epoch)
            if self.samples_per_epoch
            else self.log_last_batch + np.log(100.0)
        )
        return np.asarray(np.exp(log_samples - np.asarray(log_batch)))

    def shortest(self, log_batch: float) -> float:
        """Return the shortest warmup at a batch size, which is one update, in epochs."""
        return 1 / float(self.updates_per_epoch(log_batch))

    def warmups(self, epochs: Array, log_batch: Array | float) -> WarmupValues:
        """Return warmups of ``epochs`` (places,) at each batch; the usual warmup where ``epochs`` is NaN."""
        epochs = np.where(np.isfinite(epochs), epochs, self.usual)
        return WarmupValues(epochs, epochs * self.updates_per_epoch(log_batch))

    def lowered(self, values: Values, warmups: WarmupValues) -> Array:
        """Return how much lower the log of the tolerated rate is than with a long warmup: (particles, places).

        The difference is D without a warmup, and it shrinks as the warmup gets longer.
        """
        share = warmups.updates[None, :] / np.exp(values["warmup.log_updates"])[:, None]
        return np.asarray(np.exp(values["warmup.log_hardness"])[:, None] / (1 + share))

    def slowed(self, values: Values, lowered: Array) -> Array:
        """Return how much a warmup lowers the log of the rate at which runs slow down: a share h of ``lowered``."""
        return np.asarray(lowered / (1 + np.exp(-values["warmup.slowed"]))[:, None])

    def log_delayed(self, values: Values, log_epochs: Array, warmups: WarmupValues) -> Array:
        """Return log epochs (particles, places) with the warmup, given those at the full rate throughout."""
        delay = np.exp(values["warmup.log_delay"])[:, None]
        log_warmup = np.log(np.maximum(warmups.epochs, 1e-9))[None, :]
        after = np.logaddexp(log_epochs, log_warmup + np.log(delay / (1 + delay)))
        within = (np.log1p(delay) + log_epochs + delay * log_warmup) / (1 + delay)
        return np.asarray(np.where(log_epochs < log_warmup - np.log1p(delay), within, after))
