"""Single trials: when they reached the target, or whether they missed it or diverged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from hpo.extrapolation.evidence.evidence import TrainingObservation
from hpo.extrapolation.inference.residual import log_student, residual_correlation, student_cdf
from hpo.extrapolation.laws.configurations import (
    Configurations,
    log_epochs,
    make_configurations,
    settings_outlook,
)
from hpo.extrapolation.laws.fixed_budget import LEAST_SCATTER as LEAST_SCATTER_OF_SHORTFALL
from hpo.extrapolation.laws.fixed_budget import FixedBudget
from hpo.extrapolation.laws.parameters import logistic
from hpo.extrapolation.laws.priors import NormalPrior
from hpo.extrapolation.laws.scales import Scales
from hpo.extrapolation.laws.setting_laws import SettingLaw
from hpo.extrapolation.laws.warmup_law import WarmupLaw

Array: TypeAlias = NDArray[np.float64]
Values: TypeAlias = Mapping[str, Array]

FINE = 0.02  # if evaluations are closer together than this in log epochs, the epochs count as exactly known
# the laws are only roughly right, so many trials are worth less than as many independent observations: the coarsened
# posterior of Miller and Dunson 2019 (arXiv:1506.06101) raises their likelihood to the power 1 / (1 + trials /
# witnesses). Whether a run diverges depends on fewer factors than how long it takes
WITNESSES, WITNESSES_OF_DIVERGENCE = 50.0, 250.0
LEAST_SCATTER = 0.02  # of log epochs between seeds: runs look equal if they are evaluated rarely
# standard deviation between seeds at one batch, as a multiple of the scatter of single runs: 0.75 on digits with AdamW,
# 2.5 on a network without normalization
SEED_RATIO = NormalPrior(0.0, 0.7)
LEAST = 1e-12  # smallest probability: an outlier costs no more than this


@dataclass(frozen=True)
class TrialArrays:
    """Trials as arrays, shape (trials,): first exact epochs, then intervals, then trials that missed the target.

    ``configurations`` are at the batches of the rungs; ``log_before`` is the log epochs of the last evaluation that
    missed the target; ``cut`` holds the starts of the second and third groups. ``seed`` numbers the seeds that several
    trials at one batch share, as in a race; it is -1 for a trial that shares its seed with no other.
    """

    configurations: Configurations
    log_epochs: Array
    log_before: Array
    cut: tuple[int, int]
    diverged: NDArray[np.bool_]
    seed: NDArray[np.intp]

    def __len__(self) -> int:
        return len(self.log_epochs)

    @property
    def rung_log_batch(self) -> Array:
        """Log batch of each rung: (rungs,)."""
        return self.configurations.log_batch

    @property
    def rung(self) -> NDArray[np.intp]:
        """The rung of each trial: (trials,)."""
        return self.configurations.at

    @property
    def places(self) -> Array:
        """The coordinates of the rungs: (rungs, 1 + directions)."""
        return np.column_stack([self.rung_log_batch, self.configurations.away])

    def residuals(self, values: Values) -> Array:
        """Return the residual of each rung in log epochs: (particles, rungs)."""
        white = values["rungs"].reshape(-1, len(self.rung_log_batch))
        root = np.linalg.cholesky(residual_correlation(self.places))
        return np.asarray(np.exp(values["log_recipe_scatter"])[:, None] * (white @ root.T))

    @property
    def shared_seeds(self) -> int:
        """The number of seeds that several trials at one batch size share."""
        return int(self.seed.max(initial=-1)) + 1

    def of_seeds(self, values: Values) -> Array:
        """Return the effect of the seed on each trial's log epochs: (particles, trials); 0 if the seed is not shared.

        Only call this if there are ``shared_seeds``, because otherwise the unknowns do not exist.
        """
        scale = np.exp(values["log_seed_ratio"] + values["log_trial_scatter"])[:, None]
        white = values["seeds"].reshape(len(scale), -1)
        return np.where(self.seed >= 0, scale * white[:, self.seed], 0.0)

    def log_likelihood(
        self,
        values: Values,
        rung_mean: Array,
        laws: Sequence[SettingLaw],
        warmup: WarmupLaw | None,
        budget: FixedBudget | None,
        gain: Array,
    ) -> Array:
        """Return the log likelihood (particles,) given the law's log epochs by rung, ``rung_mean`` (particles, rungs).

        log epochs = rung_mean + residual + cost of suboptimal settings + effect of the seed + scatter, plus the delay
        due to the warmup. The learning rate determines the risk that a run is lost: that it diverges, or continues
        without ever reaching its target. So a run that diverged was lost, and a run that ended before the target was
        either lost or needs longer. With a fixed ``budget``, the observation is the shortfall, which cost and warmup
        affect through the law of that budget.
        """
        level = (rung_mean + self.residuals(values))[:, self.rung]
        seen = settings_outlook(values, laws, warmup, self.configurations)
        expected, cost = expected_needs(
            values, level, seen.cost, self.configurations, warmup, budget, gain
        )
        if self.shared_seeds:
            expected = expected + self.of_seeds(values)
        scale = trial_scale(values, cost, budget)
        late = (self.log_epochs - expected) / scale
        exact, coarse, missed = slice(0, self.cut[0]), slice(*self.cut), slice(self.cut[1], None)
        total = (log_student(late[:, exact]) - np.log(scale[:, exact])).sum(axis=1)
        if self.cut[1] > self.cut[0]:
            early = (self.log_before[coarse] - expected[:, coarse]) / scale[:, coarse]
            total += _log(student_cdf(late[:, coarse]) - student_cdf(early)).sum(axis=1)
        longer, diverged = 1 - student_cdf(late[:, missed]), self.diverged[missed]
        if seen.risk is None:
            lost = np.zeros(len(total))
            total += _log(longer).sum(axis=1)
        else:
            risk, share = seen.risk[:, missed], diverging_share(values)[:, None]
            lost = np.log1p(-seen.risk[:, : self.cut[1]]).sum(axis=1) + np.log(risk * share)[
                :, diverged
            ].sum(axis=1)
            total += _log(risk * (1 - share) + (1 - risk) * longer)[:, ~diverged].sum(axis=1)
        return np.asarray(
            lost / (1 + len(self) / WITNESSES_OF_DIVERGENCE) + total / (1 + len(self) / WITNESSES)
        )


def expected_needs(
    values: Values,
    level: Array,
    cost: Array,
    configurations: Configurations,
    warmup: WarmupLaw | None,
    budget: FixedBudget | None,
    gain: Array,
) -> tuple[Array, Array]:
    """Return the expected log need (epochs or shortfall) of runs, and the part of it due to their settings.

    ``level`` is the log need of the best settings, ``cost`` the log factor on the epochs; all are (particles, places).
    ``gain`` (particles, 1 or rungs) is the slope of the log need against that factor.
    """
    if budget is None:
        return log_epochs(values, warmup, configurations, level + cost), cost
    scales, away = configurations.scales, configurations.away
    length = budget.log_epochs + scales.longer(away)[configurations.at]
    needed = log_epochs(values, warmup, configurations, length + cost)
    gain = gain if gain.shape[1] == 1 else gain[:, configurations.at]
    missed = np.asarray(gain * (needed - length))
    return level + missed, missed


def trial_scale(values: Values, cost: Array, budget: FixedBudget | None) -> Array:
    """Return the scale (particles, places) of Student's t for log epochs, given the ``cost`` of suboptimal settings."""
    far_miss = np.exp(values["log_far_miss"])[:, None] if "log_far_miss" in values else 0.0
    return np.asarray(
        np.sqrt(
            np.exp(2 * values["log_trial_scatter"])[:, None]
            + least_scatter(budget) ** 2
            + (far_miss * np.clip(cost, 0.0, 2.0)) ** 2
        )
    )


def least_scatter(budget: FixedBudget | None) -> float:
    """Return the least scatter between seeds, of log epochs or of the log shortfall after a fixed budget."""
    return LEAST_SCATTER if budget is None else LEAST_SCATTER_OF_SHORTFALL


def diverging_share(values: Values) -> Array:
    """Return the share of lost runs that diverge: (particles,); the others continue without progress."""
    return logistic(values["diverges_when_lost"])


def make_trials(
    observations: Sequence[TrainingObservation],
    laws: Sequence[SettingLaw],
    warmup: WarmupLaw | None,
    scales: Scales | None = None,
) -> TrialArrays:
    """Return the observations as arrays."""
    ordered = sorted(observations, key=_group)
    groups = [_group(item) for item in ordered]
    # a run that ended at once trained for some time too short to count, in whatever unit
    shortest = min((item.epochs for item in ordered if item.epochs), default=1.0)
    epochs = np.array([item.epochs or 1e-6 * shortest for item in ordered])
    before = np.maximum(
        epochs - np.array([item.resolution_epochs for item in ordered]), 1e-3 * epochs
    )
    scales = scales or Scales()
    settings = [item.settings for item in ordered]
    log_batch = np.log([float(item.global_batch_size) for item in ordered])
    places = np.column_stack([log_batch, scales.away(settings)])
    rungs, rung = np.unique(places, axis=0, return_inverse=True)
    rung = np.asarray(rung.reshape(-1), dtype=np.intp)
    configurations = make_configurations(
        rungs[:, 0], rung, settings, laws, warmup, scales, rungs[:, 1:]
    )
    return TrialArrays(
        configurations,
        np.log(epochs),
        np.log(before),
        (groups.count(0), groups.count(0) + groups.count(1)),
        np.array([item.state == "diverged" for item in ordered], dtype=bool),
        _shared_seeds([item.seed for item in ordered], rung),
    )


def _shared_seeds(seeds: Sequence[int | None], rung: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return each trial's index among the seeds that several trials at one rung share, -1 if its seed is not shared."""
    told = list(zip(rung.tolist(), seeds, strict=True))
    shared = [each for each, count in Counter(told).items() if count > 1 and each[1] is not None]
    return np.array([shared.index(each) if each in shared else -1 for each in told], dtype=np.intp)


def _group(item: TrainingObservation) -> int:
    if item.state != "reached":
        return 2
    return int(item.resolution_epochs > FINE * item.epochs)


def _log(probability: Array) -> Array:
    return np.asarray(np.log(np.maximum(probability, LEAST)))
