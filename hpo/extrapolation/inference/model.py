"""The joint model: the prior, and the likelihood of trials and table rows over all unknowns at once.

log epochs = log E_min + log growth(B) + residual(configuration) + cost of suboptimal settings + scatter. The
residual is a Gaussian process over log B: part of it is shared by neighbouring rungs, and part is
specific to each configuration, because recipes change from rung to rung. Rows of a table are tuned configurations:
their settings add no cost, but scatter around the best ones.

If the evidence has a fixed budget, ``log epochs`` stands for the logarithm of the shortfall after it, and the effects
of the batch and the settings are multiplied by an exponent (:mod:`hpo.extrapolation.laws.fixed_budget`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from hpo.extrapolation.evidence.evidence import (
    LEAST_RUNS_OF_A_RECIPE,
    AggregateRow,
    Evidence,
    TrainingObservation,
)
from hpo.extrapolation.inference.rows import TableRows, make_table_rows
from hpo.extrapolation.inference.trials import SEED_RATIO, TrialArrays, make_trials
from hpo.extrapolation.laws import fixed_budget
from hpo.extrapolation.laws.adam_law import adam_epochs_parameters, is_adam, log_excess
from hpo.extrapolation.laws.configurations import Configurations, settings_outlook
from hpo.extrapolation.laws.descent import EXPONENT, DescentLaw
from hpo.extrapolation.laws.fixed_budget import MOST_FEEDBACK, FixedBudget, log_shortening
from hpo.extrapolation.laws.laws import log_growth
from hpo.extrapolation.laws.make_laws import (
    make_descent_law,
    make_laws,
    make_scales,
    make_warmup_law,
)
from hpo.extrapolation.laws.parameters import LawParameter, ParticleLayout
from hpo.extrapolation.laws.priors import AdamPriors, LawPriors, NormalPrior
from hpo.extrapolation.laws.rate_law import RateLaw
from hpo.extrapolation.laws.scales import Scales
from hpo.extrapolation.laws.setting_laws import RATE, SettingLaw
from hpo.extrapolation.laws.warmup_law import WARMUP, WarmupLaw

Array: TypeAlias = NDArray[np.float64]
Values: TypeAlias = Mapping[str, Array]

# the measured noise scale predicts the critical batch, and the batch where the best rate levels off, to within an order
# of magnitude (arXiv:1812.06162, section 4): on noisy quadratics it is 0.3 to 3.5 times the critical batch
MEASURED_NOISE, MEASURED_NOISE_OF_RATE = 1.2, 1.0
SHOWN = NormalPrior(
    1.0, 1.5
)  # logit of the share of lost runs that diverge; the others continue without progress
SLOWER = 0.1  # of a log factor on the epochs, for the slope of the shortfall
TRIAL_SCATTER = NormalPrior(float(np.log(0.09)), 0.7)
BAD, FAR_HALF = 0.9, 0.5
# relative error of the cost of suboptimal settings: smaller if the law of descent gives that cost
FAR_MISS, FAR_MISS_OF_DESCENT = (
    NormalPrior(float(np.log(0.12)), 0.6),
    NormalPrior(float(np.log(0.06)), 0.7),
)


@dataclass(frozen=True)
class PosteriorModel:
    """Everything that the likelihood needs; the sampler calls :meth:`log_likelihood`.

    ``apart`` holds one layout of unknowns for each setting of table rows that shares no unknowns with the other parts
    of the model: the joint density is a product of these densities, so they are sampled separately.
    """

    layout: ParticleLayout
    apart: Mapping[str, ParticleLayout]
    laws: Sequence[SettingLaw]
    rows: TableRows
    trials: TrialArrays
    log_noise_scale: float | None
    descent: DescentLaw | None = None
    warmup: WarmupLaw | None = None
    budget: FixedBudget | None = None
    scales: Scales = field(default_factory=Scales)

    def gain(self, values: Values, log_batch: Array, away: Array | None = None) -> Array:
        """Return the slope of the log need against the log factor on the epochs: (particles, 1 or places).

        It is 1 without a fixed budget. ``away`` (places, directions) is 0, the full scale, by default.
        """
        if self.budget is None:
            return np.ones((1, 1))
        if not self.scales.shows_length(values):
            return self.budget.gain(values)[:, None]
        away = np.zeros((len(log_batch), len(self.scales.names))) if away is None else away
        shorter, _ = self._shorter(values, self.scales.log_batch(values, log_batch, away))
        return self._gain_of_shorter(values, away, shorter)

    def log_likelihood(self, particles: Array) -> Array:
        """Return the log likelihood (count,) of whitened ``particles`` (count, dimension)."""
        values = self.layout.values(particles)
        total = np.zeros(len(particles))
        if len(self.rows.log_batch):
            total += self.rows.log_likelihood(values, self.mean_of_rows(values), self.laws)
        if len(self.trials):
            mean, gain = self._mean_and_gain_of_trials(values)
            total += self.trials.log_likelihood(
                values, mean, self.laws, self.warmup, self.budget, gain
            )
        if self.log_noise_scale is not None:
            total += self._log_likelihood_of_noise_scale(values)
        return np.asarray(total)

    def _log_likelihood_of_noise_scale(self, values: Values) -> Array:
        """Return the log likelihood of the noise scale, given B_crit and the batch where the best rate levels off.

        The noise scale is measured without momentum, which raises B_crit by its full speed-up on a quadratic and by
        less elsewhere.
        """
        expected, doubt = self.log_noise_scale or 0.0, 0.0
        if self.descent is not None:
            expected, doubt = expected + self.descent.log_speedup, self.descent.log_speedup / 2
        predicted = [(values["log_critical"], MEASURED_NOISE)]
        predicted += [
            (law.log_noise(values), MEASURED_NOISE_OF_RATE)
            for law in self.laws
            if isinstance(law, RateLaw)
        ]
        total = np.zeros(len(values["log_critical"]))
        for value, sd in predicted:
            wide = np.hypot(sd, doubt)
            total -= 0.5 * ((value - expected) / wide) ** 2 + np.log(wide)
        return total

    def log_likelihood_apart(self, name: str, particles: Array) -> Array:
        """Return the log likelihood of the unknowns of one setting in ``apart``: (count,)."""
        values = self.apart[name].values(particles)
        total = np.zeros(len(particles))
        for law, seen in zip(self.laws, self.rows.settings, strict=True):
            if law.name == name:
                total += self.rows.log_likelihood_of_settings(values, law, seen)
        return np.asarray(total)

    def mean_of_rows(self, values: Values) -> Array:
        """Return the log epochs of the best settings at each row's batch size, by the law alone: (particles, rows)."""
        return self.mean_at(values, self.rows.log_batch, self.rows.away)

    def mean_at(self, values: Values, log_batch: Array, away: Array) -> Array:
        """Return the log epochs of the best settings by the law alone: (particles, places).

        ``away`` (places, directions) is how far the sizes are from the full scale.
        """
        if not self.scales:
            return self.mean(values, log_batch)
        log_batch = self.scales.log_batch(values, log_batch, away)
        if self.scales.shows_length(values):
            return self._mean_of_shorter(values, away, self._shorter(values, log_batch)[0])
        return self.mean(values, log_batch) + self.scales.level(values, away) - self._level(values)

    def _mean_and_gain_of_trials(self, values: Values) -> tuple[Array, Array]:
        """Return ``mean_at`` and ``gain`` at the rungs of the trials, which share the solution for the shorter run."""
        log_batch, away = self.trials.rung_log_batch, self.trials.configurations.away
        if not self.scales.shows_length(values):
            return self.mean_at(values, log_batch, away), self.gain(values, log_batch, away)
        shorter, _ = self._shorter(values, self.scales.log_batch(values, log_batch, away))
        return (
            self._mean_of_shorter(values, away, shorter),
            self._gain_of_shorter(values, away, shorter),
        )

    def _mean_of_shorter(self, values: Values, away: Array, shorter: Array) -> Array:
        return np.asarray(
            values["log_min_epochs"][:, None] + self.scales.level(values, away, shorter)
        )

    def _gain_of_shorter(self, values: Values, away: Array, shorter: Array) -> Array:
        less, more = (self.scales.level(values, away, shorter + step) for step in (-SLOWER, SLOWER))
        return (more - less) / (2 * SLOWER)

    def mean(self, values: Values, log_batch: Array) -> Array:
        """Return the log epochs of the best settings at full scale by the law alone: (particles, batches)."""
        if self.descent is not None:
            log_batch = np.asarray(log_batch)
            lags = (
                self.descent.best_lags(values, log_batch)
                if self.descent.tuned
                else self.descent.lags
            )
            grown = self.descent.log_growth(values, log_batch, lags)
            return np.asarray(
                values["log_min_epochs"][:, None] + np.exp(values["log_exponent"])[:, None] * grown
            )
        if self.scales.shows_length(values):
            here = np.zeros((len(np.atleast_1d(log_batch)), len(self.scales.names)))
            return self.mean_at(values, log_batch, here)
        level = values["log_min_epochs"][:, None] + self._level(values)
        return np.asarray(
            level + self.gain(values, log_batch) * self._log_growth(values, log_batch)
        )

    def _shorter(self, values: Values, log_batch: Array) -> tuple[Array, Array]:
        """Return the log factor by which the batch size shortens a run, and the log batch size that the shorter run
        counts as: (particles, places) each.
        """
        most = MOST_FEEDBACK / np.exp(values["log_exponent"])
        power = np.minimum(self.scales.critical_by_length(values), most)
        shorter = log_shortening(lambda at: self._log_growth(values, at), log_batch, power)
        return shorter, np.atleast_2d(log_batch) + power[:, None] * shorter

    def _log_growth(self, values: Values, log_batch: Array) -> Array:
        """Return the log factor on the epochs due to the batch size: (particles, places)."""
        growth = log_growth(
            np.atleast_2d(log_batch),
            values["log_critical"][:, None],
            np.exp(values["log_sharpness"])[:, None],
            np.exp(values["log_exponent"])[:, None],
        )
        return np.asarray(growth + log_excess(values, np.asarray(log_batch)))

    def missed(self, values: Values, configurations: Configurations) -> Array:
        """Return the log factor on the epochs due to suboptimal settings: (particles, places)."""
        return settings_outlook(values, self.laws, self.warmup, configurations).cost

    def log_min(self, values: Values) -> Array:
        """Return the log epochs far below the critical batch, at full scale: (particles,)."""
        return np.asarray((values["log_min_epochs"][:, None] + self._level(values))[:, 0])

    def _level(self, values: Values) -> Array | float:
        """Return what the full scale adds to the log epochs: (particles, 1)."""
        here = np.zeros((1, len(self.scales.names)))
        return self.scales.level(values, here) if self.scales else 0.0

    def slope(self, values: Values, log_batch: float) -> Array:
        """Return d log E / d log B with the best settings, where E is the epochs that a batch needs."""
        at = np.array([log_batch])
        if self.scales.shows_length(values):
            _, seen = self._shorter(values, at)
            ends = [self._log_growth(values, seen + step)[:, 0] for step in (-0.05, 0.05)]
        else:
            gain = self.gain(values, at)[:, 0]
            ends = [self.mean(values, at + step)[:, 0] / gain for step in (-0.05, 0.05)]
        return np.asarray((ends[1] - ends[0]) / 0.1)

    def turn(self, values: Values) -> Array:
        """Return the unknown by which laws that fit the rungs equally well differ beyond the rungs: (particles,)."""
        return values["log_sharpness"] if self.descent is None else values["descent.log_wall"]


def make_posterior_models(evidence: Evidence, priors: LawPriors) -> list[PosteriorModel]:
    """Return the models that suit the evidence.

    There is always the general model; for trials of SGD there is also one with the law of descent, and for Adam and
    AdamW one with their own law. A table that holds a sweep is read as trials. The law of descent gives the updates to
    target on one quadratic: it applies neither to a fixed budget nor to runs of several sizes, which amount to several
    quadratics.
    """
    aggregates, observations = list(evidence.aggregates), list(evidence.observations)
    if _is_sweep(aggregates, list(evidence.full_scale)):
        observations += [
            TrainingObservation(
                row.global_batch_size, "reached", row.epochs_to_target, row.settings
            )
            for row in aggregates
        ]
        aggregates = []
    if evidence.question is not None:
        observations = censor_stuck_trainings(observations, list(evidence.full_scale))
    plain = evidence.question is None and not evidence.full_scale
    descent = make_descent_law(evidence, observations) if plain else None
    found = [_make_model(evidence, aggregates, observations, priors)]
    if descent is not None:
        found.append(_make_model(evidence, aggregates, observations, priors, descent=descent))
    if _is_adams(evidence) and observations:
        # Adam's law was learned from trials; it does not apply to tuned rows, whose rate may be the same at all batches
        found.append(_make_model(evidence, aggregates, observations, priors, adam=priors.adam))
    return found


def censor_stuck_trainings(
    observations: Sequence[TrainingObservation], scales: Sequence[str] = ()
) -> list[TrainingObservation]:
    """Return the runs with a fixed budget, marking those that made no progress as censored.

    The laws do not describe a run that got stuck near its start: the run was lost, though it did not diverge, and its
    shortfall depends on the task. Per batch size (and per model size and length, the settings ``scales``), the log
    distance from the best run to the bad ones (the tenth worst of a hundred) is halved. A run in the farther half is
    only known to lie there.
    """
    ended = [item for item in observations if item.state == "reached"]
    best: dict[tuple[object, ...], float] = {}

    def place(item: TrainingObservation) -> tuple[object, ...]:
        return item.global_batch_size, *(item.settings.get(name) for name in scales)

    for item in ended:
        best[place(item)] = min(item.epochs, best.get(place(item), np.inf))
    if not ended:
        return list(observations)
    behind = [np.log(item.epochs / best[place(item)]) for item in ended]
    cut = FAR_HALF * float(np.quantile(behind, BAD))
    found = []
    for item in observations:
        limit = best.get(place(item), np.inf) * np.exp(cut)
        far = item.state == "reached" and cut > 0 and item.epochs > limit
        found.append(
            dataclasses.replace(item, state="censored", epochs=float(limit)) if far else item
        )
    return found


def _make_model(
    evidence: Evidence,
    aggregates: Sequence[AggregateRow],
    observations: Sequence[TrainingObservation],
    priors: LawPriors,
    *,
    descent: DescentLaw | None = None,
    adam: AdamPriors | None = None,
) -> PosteriorModel:
    warmup = make_warmup_law(evidence, observations)
    laws = [
        law
        for law in make_laws(evidence, observations, descent, adam)
        if warmup is None or law.name != WARMUP
    ]
    asked = evidence.question
    budget = FixedBudget(asked.epochs) if asked is not None and asked.epochs else None
    scales = make_scales(evidence)
    rows = make_table_rows(aggregates, laws, scales)
    trials = make_trials(observations, laws, warmup, scales)
    start = float(np.log(evidence.batches[0]))
    critical, scatter = priors.log_critical_over_first, priors.log_recipe_scatter
    trial_scatter = TRIAL_SCATTER
    if budget is not None:
        scatter, trial_scatter = fixed_budget.RECIPE_SCATTER, fixed_budget.TRIAL_SCATTER
    away = np.concatenate([rows.away, trials.configurations.away])
    moved = scales.critical_moves()
    of_scales = scales.parameters([law.name for law in laws], away)
    shows_length = scales.shows_length({each.name: np.zeros(1) for each in of_scales})
    parameters = [
        LawParameter("log_min_epochs", *_guess_of_min_epochs(rows, trials)),
        LawParameter(
            "log_critical",
            start + critical.mean + moved.mean,
            float(np.hypot(critical.sd, moved.sd)),
        ),
        *of_scales,
        LawParameter("log_recipe_scatter", scatter.mean, scatter.sd),
        *(budget.parameters() if budget is not None and not shows_length else ()),
    ]
    turns = [("log_sharpness", priors.log_sharpness), ("log_exponent", priors.log_exponent)]
    if adam is None:
        parameters += [
            LawParameter(name, prior.mean, prior.sd)
            for name, prior in (turns if descent is None else [("log_exponent", EXPONENT)])
        ]
    else:
        parameters += adam_epochs_parameters(adam)
    apart = (
        {}
        if observations
        else {
            law.name: ParticleLayout(law.parameters(response=False))
            for law in laws
            if law.name != RATE
        }
    )
    for law in laws:
        if law.name not in apart:
            parameters += law.parameters(response=bool(observations))
    if observations:
        parameters += [
            law.scatter_parameter(response=True)
            for law, seen in zip(laws, rows.settings, strict=True)
            if np.isfinite(seen).any()
        ]
        wrong = FAR_MISS if descent is None else FAR_MISS_OF_DESCENT
        parameters += [LawParameter("log_far_miss", wrong.mean, wrong.sd)] if laws else []
        parameters += [
            LawParameter("log_trial_scatter", trial_scatter.mean, trial_scatter.sd),
            LawParameter("rungs", 0.0, 1.0, size=len(trials.rung_log_batch)),
        ]
        if trials.shared_seeds:
            parameters += [
                LawParameter("log_seed_ratio", SEED_RATIO.mean, SEED_RATIO.sd),
                LawParameter("seeds", 0.0, 1.0, size=trials.shared_seeds),
            ]
        parameters += (
            [LawParameter("diverges_when_lost", SHOWN.mean, SHOWN.sd)]
            if RATE in {law.name for law in laws}
            else []
        )
    parameters += warmup.parameters() if warmup else []
    return PosteriorModel(
        ParticleLayout(parameters),
        apart,
        laws,
        rows,
        trials,
        _log_noise_scale(observations),
        descent,
        warmup,
        budget,
        scales,
    )


def _is_adams(evidence: Evidence) -> bool:
    """Return whether everything was trained with Adam or AdamW, with a tuned learning rate."""
    return all(is_adam(settings) for settings in evidence.settings) and any(
        law.name == RATE for law in evidence.tuned
    )


def _is_sweep(aggregates: Sequence[AggregateRow], scales: Sequence[str] = ()) -> bool:
    """Return whether most rungs occur three times or more with different settings.

    Rows that are means over several runs do not form a sweep.
    """
    if not aggregates:
        return False
    batches = [
        (row.global_batch_size, *(row.settings.get(name) for name in scales)) for row in aggregates
    ]
    recipes = {repr(sorted(row.settings.items())) for row in aggregates}
    single = float(np.median([row.runs or 1 for row in aggregates])) < LEAST_RUNS_OF_A_RECIPE
    return (
        single
        and len(recipes) > 1
        and float(np.median([batches.count(batch) for batch in set(batches)])) >= 3
    )


def _guess_of_min_epochs(rows: TableRows, trials: TrialArrays) -> tuple[float, float]:
    best = [*rows.log_epochs, *trials.log_epochs[: trials.cut[1]]]
    if best:
        return float(min(best)), 1.0
    # nothing reached the target: it lies beyond what was trained, at an unknown distance
    return float(np.max(trials.log_epochs)) + 1.0, 1.5


def _log_noise_scale(observations: Sequence[TrainingObservation]) -> float | None:
    seen = [item.gradient_noise_scale for item in observations]
    measured = [
        np.log(value) for value in seen if value is not None and np.isfinite(value) and value > 0
    ]
    return float(np.median(measured)) if measured else None
