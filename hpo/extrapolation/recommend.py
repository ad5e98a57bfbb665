"""Recommends the settings to use at a batch size: those with the fewest expected epochs over the posterior.

Learning rate and warmup are chosen together, because a short warmup lowers the rate that a run tolerates. A lost run
costs far more than a slow one, so a recommendation stays away from settings that may lose the run. The recommendation
is the middle of all settings that are about equally good, so that a repeated study gets about the same recommendation.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from hpo.extrapolation.inference.intervals import LEVELS, Interval
from hpo.extrapolation.inference.kept import ConstraintOutlook, KeptConstraints
from hpo.extrapolation.inference.posterior import Posterior, thin_posterior
from hpo.extrapolation.laws.configurations import Configurations, log_epochs, settings_outlook
from hpo.extrapolation.laws.rate_law import anchor_momentum
from hpo.extrapolation.laws.response import SettingResponse
from hpo.extrapolation.laws.setting_laws import MOMENTUM, RATE, SettingLaw
from hpo.extrapolation.laws.warmup_law import WARMUP, WarmupLaw

Array: TypeAlias = NDArray[np.float64]
# a run that needs more than three times the epochs is given up; a lost run costs its slot on the full machine, as much
# as 25 times the epochs
SLOW, LOST = 3.0, 25.0
GRID = 101
# values that cost no more than a hundredth of the epochs are equally good: no law is more accurate than this
ALIKE = 0.01
SOFT = 0.006  # a place whose log factor exceeds the lowest by this much has 1/e of the weight
AWAY = np.array(
    [0.0, 0.03, 0.06, 0.1, 0.15, 0.2, 0.3, 0.4, 0.55, 0.7, 1.0]
)  # distances from the best that are searched
PARTICLES = 800  # number of particles for which a grid of rates and warmups is evaluated
STEP = 0.06  # grid step in log rate
WIDER = 2.0  # the search extends this many times as far if settings may violate a constraint
WARMUPS = 20  # size of the grid of warmups, evenly spaced in the log of the updates
LONGEST = 1.0  # largest share of the epochs that a warmup may take


@dataclass(frozen=True)
class RecommendedSetting:
    """The value to use: its ``coordinate``, and the value with the interval of the best value in the setting's unit."""

    coordinate: float
    interval: Interval


@dataclass(frozen=True)
class RecommendedSettings(Mapping[str, RecommendedSetting]):
    """The chosen value of each tuned setting at one batch; ``warmup_epochs`` is the warmup, chosen or usual.

    ``log_shift`` corrects the laws' log epochs, and ``risk_factor`` multiplies the laws' risk, based on runs with
    exactly these settings.
    """

    log_batch: float
    chosen: Mapping[str, RecommendedSetting]
    warmup_epochs: float | None = None
    log_shift: float = 0.0
    risk_factor: float = 1.0

    def __getitem__(self, name: str) -> RecommendedSetting:
        return self.chosen[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.chosen)

    def __len__(self) -> int:
        return len(self.chosen)

    @property
    def momentum(self) -> float | None:
        """The chosen momentum; None if it was not tuned."""
        return self.chosen[MOMENTUM].interval.median if MOMENTUM in self.chosen else None

    def cost(self, posterior: Posterior, rate_factor: float = 1.0) -> Array:
        """Return the log ratio to the epochs of the best settings at the full rate throughout: (particles,).

        The ratio includes the warmup and the cost of suboptimal settings, with the rate off by a factor. With a fixed
        budget, it is the ratio of shortfalls.
        """
        return self.cost_and_risk(posterior, rate_factor)[0]

    def risk(self, posterior: Posterior, rate_factor: float = 1.0) -> Array:
        """Return the probability that a run is lost, with the rate off by a factor: (particles,)."""
        return self.cost_and_risk(posterior, rate_factor)[1]

    def cost_and_risk(self, posterior: Posterior, rate_factor: float = 1.0) -> tuple[Array, Array]:
        """Return ``cost`` and ``risk`` together, from one evaluation of the laws."""
        model, here = posterior.model, self._configuration(posterior, rate_factor)
        seen = settings_outlook(posterior.values, model.laws, model.warmup, here)
        level = posterior.log_needed(self.log_batch)
        needed = log_epochs(posterior.values, model.warmup, here, level[:, None] + seen.cost)[:, 0]
        slowed = np.minimum(needed - level, np.log(SLOW))
        gain = model.gain(posterior.values, np.array([self.log_batch]))[:, 0]
        cost = gain * slowed + self.log_shift
        if seen.risk is None:
            return cost, np.zeros(len(posterior.residuals))
        return cost, seen.risk[:, 0] * self.risk_factor

    def _configuration(self, posterior: Posterior, rate_factor: float) -> Configurations:
        """Return the chosen settings as one configuration; settings without a known cost are left out."""
        model = posterior.model
        places = [
            np.array(
                [
                    self.chosen[law.name].coordinate
                    + (np.log(rate_factor) if law.name == RATE else 0.0)
                    if law.name in self.chosen and posterior.knows_cost(law.name)
                    else np.nan
                ]
            )
            for law in model.laws
        ]
        warmups = (
            None
            if model.warmup is None or self.warmup_epochs is None
            else model.warmup.warmups(np.array([self.warmup_epochs]), self.log_batch)
        )
        return Configurations(
            np.array([self.log_batch]),
            np.zeros(1, dtype=np.intp),
            places,
            np.array([_momentum_used(posterior, self)]),
            warmups,
        )


def recommend(
    posterior: Posterior, log_batch: float, kept: KeptConstraints | None = None
) -> RecommendedSettings:
    """Return the settings to use at a batch.

    The momentum is chosen first, because the best learning rate depends on it; the rate and the warmup are chosen last,
    together. According to ``kept``, settings that would violate a constraint of the study count as likely to lose the
    run.
    """
    model, chosen = posterior.model, dict[str, RecommendedSetting]()
    kept = kept if kept is not None and kept.fits else None
    together = (
        model.warmup is not None
        and any(law.name == RATE for law in model.laws)
        and posterior.knows_cost(RATE)
    )
    for law in sorted(model.laws, key=lambda law: (law.name != MOMENTUM, law.name == RATE)):
        if law.name != RATE or not together:
            chosen[law.name] = _choose(
                posterior,
                law,
                log_batch,
                RecommendedSettings(log_batch, chosen).momentum,
                None
                if kept is None
                else ConstraintRisk(kept, log_batch, _usual(posterior, log_batch, chosen)),
            )
    if model.warmup is None:
        return RecommendedSettings(log_batch, {law.name: chosen[law.name] for law in model.laws})
    if not together:
        epochs = model.warmup.usual
        if model.warmup.tuned:
            # without a learning rate nothing tells what a shorter warmup would cost: any of those tried may be the best
            chosen[WARMUP] = RecommendedSetting(epochs, Interval(epochs, *model.warmup.tried))
        return RecommendedSettings(log_batch, chosen, epochs)
    return _start(posterior, RecommendedSettings(log_batch, chosen), kept)


def _momentum_used(posterior: Posterior, choices: RecommendedSettings) -> float:
    """Return the chosen momentum, or else the one for which the learning rate was chosen."""
    chosen = choices.momentum
    return anchor_momentum(posterior.model.laws) if chosen is None else chosen


def scale_recommended_rate(choices: RecommendedSettings, factor: float) -> RecommendedSettings:
    """Return the choices with a learning rate ``factor`` times as high, or unchanged if no rate was tuned."""
    if RATE not in choices:
        return choices
    rate = choices[RATE]
    ends = (each * factor for each in (rate.interval.median, rate.interval.low, rate.interval.high))
    moved = RecommendedSetting(rate.coordinate + float(np.log(factor)), Interval(*ends))
    return dataclasses.replace(choices, chosen={**choices.chosen, RATE: moved})


def constraint_outlooks(
    kept: KeptConstraints, choices: RecommendedSettings
) -> tuple[ConstraintOutlook, ...]:
    """Return the prediction for each constraint with the chosen settings."""
    used = {name: each.interval.median for name, each in choices.items()}
    if WARMUP not in used and choices.warmup_epochs is not None:
        used[WARMUP] = choices.warmup_epochs
    return kept.outlooks(choices.log_batch, used)


def recommendation_regret(posterior: Posterior, global_batch_size: float) -> float:
    """Return the expected log ratio of the epochs with the settings recommended at a batch to those with the best ones.

    The expectation is over the posterior; a run that takes more than ``SLOW`` times the epochs is given up.
    """
    log_batch = np.array([np.log(global_batch_size)])
    choices, total = recommend(posterior, float(log_batch[0])), np.zeros(len(posterior.residuals))
    for law in posterior.model.laws:
        if law.name in choices and posterior.knows_cost(law.name):
            response = law.response(posterior.values, log_batch)
            total += response.cost(np.array([choices[law.name].coordinate]))[:, 0]
    return float(np.minimum(total, np.log(SLOW)).mean())


def response_at(
    posterior: Posterior, law: SettingLaw, log_batch: float, momentum: float | None
) -> SettingResponse:
    """Return the response of a setting at one batch (and momentum)."""
    return law.response(
        posterior.values, np.array([log_batch]), None if momentum is None else np.array([momentum])
    )


def serve_alike(response: SettingResponse) -> tuple[float, float]:
    """Return the 90 % interval of the coordinates that are best or equally good."""
    found = []
    for side, furthest, level in ((-1, np.min, LEVELS[1]), (1, np.max, LEVELS[2])):
        beyond = response.best + side * AWAY * response.unit
        alike = np.logical_and.accumulate(response.cost(beyond) <= ALIKE, axis=1)
        found.append(
            float(np.quantile(furthest(np.where(alike, beyond, response.best), axis=1), level))
        )
    return found[0], found[1]


def expected_cost(cost: Array, risk: Array | None) -> Array:
    """Return the expected log factor on the epochs (places,) of configurations whose costs are (particles, places).

    A run that needs more than ``SLOW`` times the epochs is given up; a lost run counts as ``LOST`` times the epochs.
    Because the logarithm is averaged, the loss in the rare bad case and the savings in the other cases are weighed as
    factors.
    """
    return np.asarray(price(cost, risk).mean(axis=0))


def price(cost: Array, risk: Array | None) -> Array:
    """Return the expected log factor on the epochs for every particle: (particles, places)."""
    capped = np.minimum(cost, np.log(SLOW))
    return np.asarray(capped if risk is None else capped + (np.log(LOST) - capped) * risk)


def warmups_tried(warmup: WarmupLaw, log_batch: float, level: Array) -> Array:
    """Return candidate warmups in epochs at a batch, from one update up; ``level`` is the log epochs, (particles,)."""
    shortest = warmup.shortest(log_batch)
    longest = max(LONGEST * float(np.exp(min(np.median(level), 50.0))), 2 * shortest)
    return np.geomspace(shortest, longest, WARMUPS)


def _start(
    posterior: Posterior, others: RecommendedSettings, kept: KeptConstraints | None
) -> RecommendedSettings:
    """Choose the learning rate and the warmup, given the other settings."""
    full, posterior = posterior, thin_posterior(posterior, PARTICLES)
    model, log_batch = posterior.model, others.log_batch
    law, warmup = full.law(RATE), model.warmup
    assert warmup is not None
    momentum = None if others.momentum is None else np.array([others.momentum])
    response = response_at(full, law, log_batch, others.momentum)
    best = law.best(full.values, np.array([log_batch]), momentum)[:, 0]
    low, high = (float(end) for end in np.quantile(best, LEVELS[1:]))
    least, most = _sane(law, log_batch)
    below, above = (WIDER * np.log(SLOW), np.log(SLOW)) if kept else (np.log(SLOW), 0.0)
    rates = np.clip(np.arange(low - below, high + above + STEP, STEP), least, most)
    level = posterior.log_needed(log_batch)
    epochs = np.array([warmup.usual])
    if warmup.tuned:
        epochs = warmups_tried(warmup, log_batch, level)
    at_rate, at_epochs = (grid.ravel() for grid in np.meshgrid(rates, epochs, indexing="ij"))
    places = [
        at_rate
        if one.name == RATE
        else np.full(
            len(at_rate), others[one.name].coordinate if posterior.knows_cost(one.name) else np.nan
        )
        for one in model.laws
    ]
    grid = Configurations(
        np.array([log_batch]),
        np.zeros(len(at_rate), dtype=np.intp),
        places,
        np.full(len(at_rate), _momentum_used(posterior, others)),
        warmup.warmups(at_epochs, log_batch),
    )
    seen = settings_outlook(posterior.values, model.laws, warmup, grid)
    cost = log_epochs(posterior.values, warmup, grid, level[:, None] + seen.cost) - level[:, None]
    risk = seen.risk
    if kept is not None:
        breaking = ConstraintRisk(kept, log_batch, _usual(posterior, log_batch, others))
        tried = {RATE: np.asarray(law.value(at_rate)), WARMUP: at_epochs}
        risk = breaking.joined(risk, tried, cost)
    expected = expected_cost(cost, risk)
    weight = _soft_weight(expected)
    rate = float(at_rate @ weight)
    low, high = serve_alike(response)
    found = {RATE: RecommendedSetting(rate, _within(law, rate, low, high))}
    chosen_epochs = float(np.exp(np.log(at_epochs) @ weight))
    if warmup.tuned:
        by_particle = price(cost, risk).reshape(len(cost), len(rates), len(epochs))
        at = by_particle[:, int(np.argmin(np.abs(rates - rate)))].argmin(axis=1)
        ends = np.quantile(epochs[at], LEVELS[1:])
        found[WARMUP] = RecommendedSetting(
            chosen_epochs,
            Interval(
                chosen_epochs,
                float(min(ends[0], chosen_epochs)),
                float(max(ends[1], chosen_epochs)),
            ),
        )
    return RecommendedSettings(log_batch, {**others.chosen, **found}, chosen_epochs)


@dataclass(frozen=True)
class ConstraintRisk:
    """The risk that settings violate a constraint of the study at a batch; ``usual`` holds the fixed settings."""

    kept: KeptConstraints
    log_batch: float
    usual: Mapping[str, float]

    def joined(self, risk: Array | None, tried: Mapping[str, Array], cost: Array) -> Array:
        """Return the risk (particles, places) that a run is lost (``risk``) or violates a constraint."""
        places = cost.shape[-1]
        settings = {name: np.full(places, value) for name, value in self.usual.items()} | dict(
            tried
        )
        broken = np.broadcast_to(self.kept.mendable(self.log_batch, settings), (places,))
        lost = np.zeros_like(cost) if risk is None else risk
        return np.asarray(lost + (1 - lost) * broken)


def _usual(
    posterior: Posterior, log_batch: float, chosen: Mapping[str, RecommendedSetting]
) -> dict[str, float]:
    """Return each tuned setting as chosen, or else its best value by the law, and the usual warmup."""
    found, model = dict[str, float](), posterior.model
    for law in model.laws:
        if law.name in chosen:
            found[law.name] = chosen[law.name].interval.median
        else:
            best = law.best(posterior.values, np.array([log_batch]), None)
            found[law.name] = float(law.value(np.array(np.median(best))))
    return found | ({WARMUP: model.warmup.usual} if model.warmup is not None else {})


def _choose(
    posterior: Posterior,
    law: SettingLaw,
    log_batch: float,
    momentum: float | None,
    breaking: ConstraintRisk | None = None,
) -> RecommendedSetting:
    best = law.best(
        posterior.values, np.array([log_batch]), None if momentum is None else np.array([momentum])
    )[:, 0]
    choice, low, high = (float(value) for value in np.quantile(best, LEVELS))
    if posterior.knows_cost(law.name) and high > low:
        response = response_at(posterior, law, log_batch, momentum)
        choice = _least_expected(response, low, high, law, breaking)
        low, high = serve_alike(response)
    choice = float(np.clip(choice, *_sane(law, log_batch)))
    return RecommendedSetting(choice, _within(law, choice, low, high))


def _within(law: SettingLaw, choice: float, low: float, high: float) -> Interval:
    return Interval(
        *(float(law.value(np.array(end))) for end in (choice, min(low, choice), max(high, choice)))
    )


def _least_expected(
    response: SettingResponse,
    low: float,
    high: float,
    law: SettingLaw,
    breaking: ConstraintRisk | None,
) -> float:
    """Return the middle of the coordinates with the lowest expected cost, between ``low`` and ``high``.

    The range extends farther down for a learning rate, and is wider if settings may violate a constraint
    (``breaking``).
    """
    low = low - float(np.log(SLOW)) if response.risk(np.array([low])) is not None else low
    if breaking is not None:
        far = WIDER * (float(np.log(SLOW)) if law.is_log else response.unit)
        low, high = low - far, high + far
    grid = np.linspace(low, high, GRID)
    cost, risk = response.cost(grid), response.risk(grid)
    if breaking is not None:
        risk = breaking.joined(risk, {law.name: np.asarray(law.value(grid))}, cost)
    expected = expected_cost(cost, risk)
    return float(grid @ _soft_weight(expected))


def _soft_weight(expected: Array) -> Array:
    """Return weights (places,) that sum to 1, larger for places with a cost closer to the lowest."""
    weight = np.exp(-(expected - expected.min()) / SOFT)
    return np.asarray(weight / weight.sum())


def _sane(law: SettingLaw, log_batch: float) -> tuple[float, float]:
    """Return bounds that exceed the tried values at most in proportion to the distance from the batches seen."""
    beyond = max(law.log_first - log_batch, log_batch - law.log_anchor, 0.0) + law.slack
    low, high = law.tried
    if law.is_log:
        return low - np.log(2) - beyond, high + np.log(2) + beyond
    slack, grow = 0.25 * abs(high), float(np.exp(beyond))
    bottom, top = low - slack, high + slack
    return bottom * grow if bottom < 0 else bottom / grow, top * grow if top > 0 else top / grow
