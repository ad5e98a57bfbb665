"""The effect of a race at the batch size itself: which settings to use there, and what to expect from them.

The race's runs are ordinary evidence, and the laws are fitted to them. But the laws are only roughly right at any one
batch size. So the recommended settings, the raced ones, and others around them are compared by the laws' prediction
plus the observed deviation from it, shrunk according to the scatter of runs and seeds
(:mod:`hpo.extrapolation.discrepancy`). A single run, lucky or not, decides nothing, and no settings are used that are
bolder (a higher rate, a shorter warmup) than those that the sweep recommended or that two runs survived. A lost run
counts against its settings, against those with a rate at least as high and a warmup at most as long, and, if none of
these survived, against nearby settings. A run that was not lost counts in favour of its own settings and those with a
lower rate and a longer warmup.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hpo.extrapolation.discrepancy import correct_by_trials, counted
from hpo.extrapolation.evidence.evidence import TrainingObservation
from hpo.extrapolation.inference.intervals import Interval
from hpo.extrapolation.inference.posterior import Posterior, thin_posterior
from hpo.extrapolation.laws.setting_laws import RATE, setting_coordinates
from hpo.extrapolation.laws.warmup_law import WARMUP
from hpo.extrapolation.recommend import PARTICLES, RecommendedSetting, RecommendedSettings, price

Array: TypeAlias = NDArray[np.float64]

# weight of the laws' prediction of a risk, in runs: usually all seeds of one configuration are lost or none is, so one
# run that was not lost says much about the next
RISK_COUNTS = 2.0
# share of the surviving runs that are dropped for being too far behind: this tells a lost run from a slow one
DROPPED = 0.25
# log error of the laws' stability limit, with the weights of both ends and the middle
OFF, OFF_WEIGHTS = np.array([-0.35, 0.0, 0.35]), np.array([1.0, 4.0, 1.0]) / 6
BOLD = 2  # runs with these or bolder settings that must reach the target before these settings are trusted
WARMUP_LENGTH = 0.4  # a warmup e times as long is as far away as a rate 1.5 times as high
BELOW_A_LOSS = 0.7  # rates below this share of a lost run's rate are no longer close to it
SAME = 1e-6  # settings that differ by less count as the same
# other settings around the recommended ones: factors on their rate and warmup
RATES, WARMUPS = np.exp(np.linspace(-0.75, 0.75, 13)), np.exp(np.linspace(-1.4, 1.4, 9))


@dataclass(frozen=True)
class RaceEvidence:
    """The race at a batch size: how many configurations and runs it had, and how the runs ended.

    ``reached`` counts the runs that reached their target, ``lost`` those that were lost; the others were dropped for
    being too far behind. ``runs`` counts the runs of the settings to use, 0 if these were not raced. Runs that
    ``searched`` for settings at the batch size count like those of a race.
    """

    global_batch_size: int
    configurations: int
    trainings: int
    reached: int
    lost: int
    runs: int = 0
    searched: bool = False

    def told(self) -> str:
        """Return a summary in words."""
        ways = [
            f"{self.reached} reached the target",
            *([f"{self.lost} lost"] if self.lost else []),
            *(
                [f"{behind} dropped"]
                if (behind := self.trainings - self.reached - self.lost)
                else []
            ),
        ]
        done = "searched" if self.searched else "raced"
        return (
            f"{done} at {self.global_batch_size}: {_counted(self.configurations, 'configuration')}, "
            f"{_counted(self.trainings, 'training')} ({', '.join(ways)})"
        )


@dataclass(frozen=True)
class _Place:
    """One configuration: its settings, what the laws predict for them, and its runs.

    ``cost`` is the expected log factor on the epochs of the best settings, ``risk`` the probability that a run is lost,
    allowing for an error of the laws.
    """

    choices: RecommendedSettings
    rate: float
    warmup: float
    cost: float
    risk: float
    trainings: tuple[TrainingObservation, ...] = ()

    @property
    def stood(self) -> int:
        """The number of its runs that reached the target."""
        return sum(item.state == "reached" for item in self.trainings)

    def beyond(self, other: _Place) -> bool:
        """Return whether this rate is no lower and this warmup no longer, so that it is lost if the other is."""
        return (
            self.rate >= other.rate * (1 - SAME) and self.warmup <= other.warmup * (1 + SAME) + SAME
        )

    def lost_with(self, other: _Place) -> bool:
        """Return whether a loss of the other counts here: this one is bolder, or close to it without a survivor."""
        near = self.rate > BELOW_A_LOSS * other.rate and self.warmup < other.warmup / BELOW_A_LOSS
        return self.beyond(other) or (near and not self.stood)


def whole_race_trainings(trainings: Sequence[TrainingObservation]) -> list[TrainingObservation]:
    """Return the runs that were trained to the end, or for as long as the fastest run that reached the target.

    A short run does not count against its settings.
    """
    fewest = min((item.epochs for item in trainings if item.state == "reached"), default=math.inf)
    return [item for item in trainings if item.state != "pruned" or item.epochs >= fewest]


def settings_after_race(
    posterior: Posterior,
    choices: RecommendedSettings,
    global_batch_size: int,
    trainings: Sequence[TrainingObservation],
    *,
    searched: bool = False,
) -> tuple[RecommendedSettings, RaceEvidence | None]:
    """Return the settings to use after a race, from those raced and ``choices`` (the laws' best), and the race.

    ``trainings`` are the runs of the race at ``global_batch_size``, which are part of the posterior's evidence. If
    there are none, or no learning rate was tuned, the choices are unchanged. If the settings were ``searched`` at this
    batch size itself, only settings that reached the target there are used.
    """
    if not trainings or RATE not in choices or not posterior.knows_cost(RATE):
        return choices, None
    full, posterior = posterior, thin_posterior(posterior, PARTICLES)
    held = _place(posterior, choices, choices[RATE].interval.median, choices.warmup_epochs or 0.0)
    raced = _places(posterior, choices, trainings)
    states = [item.state for item in trainings]
    told = RaceEvidence(
        global_batch_size,
        len(raced),
        len(states),
        states.count("reached"),
        states.count("diverged"),
        searched=searched,
    )
    if searched and "reached" in states:
        places = [place for place in raced if place.stood]
    elif "reached" in states or "diverged" not in states:
        # a race starts with the settings that the sweep recommended
        bold = [raced[0], *(place for place in raced if _stood_beyond(place, raced) >= BOLD)]
        places = [
            place
            for place in (held, *raced, *_about(posterior, held, global_batch_size))
            if any(each.beyond(place) for each in bold)
        ]
    else:
        rate = BELOW_A_LOSS * min(place.rate for place in raced)
        warmup = max(held.warmup, *(place.warmup for place in raced))
        places = [_moved(posterior, choices, rate, warmup)]
    cost, risk, shift = _judged(posterior, places, raced)
    at = int(np.argmin(price(cost, risk)))
    used = places[at]
    by_laws = float(used.choices.risk(full).mean())
    found = dataclasses.replace(
        used.choices,
        log_shift=float(shift[at]),
        risk_factor=float(risk[at]) / by_laws if by_laws > 0 else 1.0,
    )
    runs = sum(len(place.trainings) for place in raced if place.beyond(used) and used.beyond(place))
    return found, dataclasses.replace(told, runs=runs)


def _stood_beyond(place: _Place, raced: Sequence[_Place]) -> int:
    """Count the runs that reached the target with these settings or bolder ones."""
    return sum(other.stood for other in raced if other.beyond(place))


def _scatter(posterior: Posterior) -> float:
    return float(np.exp(posterior.values["log_trial_scatter"]).mean())


def _about(posterior: Posterior, held: _Place, global_batch_size: int) -> list[_Place]:
    """Return settings around the recommended ones, with at least one update of warmup."""
    if WARMUP not in held.choices or posterior.model.warmup is None:
        warmups = np.array([held.warmup])
    else:
        shortest = posterior.model.warmup.shortest(np.log(global_batch_size))
        warmups = np.unique(np.maximum(WARMUPS * held.warmup, shortest))
    return [
        _moved(posterior, held.choices, rate, warmup)
        for rate in (float(each) for each in RATES * held.rate)
        for warmup in (float(each) for each in warmups)
    ]


def _places(
    posterior: Posterior, choices: RecommendedSettings, trainings: Sequence[TrainingObservation]
) -> list[_Place]:
    groups: dict[tuple[float, float], list[TrainingObservation]] = {}
    for item in trainings:
        warmup = item.settings.get(WARMUP)
        key = (
            float(item.settings[RATE]),
            choices.warmup_epochs or 0.0 if warmup is None else float(warmup),
        )
        groups.setdefault(key, []).append(item)
    return [_moved(posterior, choices, *key, tuple(group)) for key, group in groups.items()]


def _judged(
    posterior: Posterior, places: Sequence[_Place], raced: Sequence[_Place]
) -> tuple[Array, Array, Array]:
    """Return the expected log factor on the epochs, the risk, and the race's correction to log epochs: (places,) each.

    The overall level of the epochs comes from the laws, which are fitted to the race and its seeds.
    """
    runs = [(place, item) for place in raced for item in place.trainings]
    every = [*places, *(place for place, _ in runs)]
    by_laws = np.array([place.cost for place in every])
    level = float(posterior.log_epochs(places[0].choices.log_batch)[0].mean())
    prior, count = level + by_laws - by_laws.min(), len(places)
    risk = _risk(places, raced)
    reached = np.array([item.state == "reached" for _, item in runs])
    if not reached.any():
        return (prior - prior[:count].min())[:count], risk, np.zeros(count)
    fewest = min(item.epochs for _, item in runs if item.state == "reached")
    seen = np.log([counted(item.state, item.epochs, fewest) for _, item in runs])
    # a run that did not reach the target needed at least this much: the laws may predict more
    usual = float(np.median((seen - prior[count:])[reached]))
    seen = np.where(reached, seen, np.maximum(seen, prior[count:] + usual))
    where = np.stack([_coordinates(posterior, place) for place in every])
    corrected = correct_by_trials(
        prior,
        where,
        where[count:],
        prior[count:],
        seen,
        _scatter(posterior),
        [item.seed for _, item in runs],
    )
    log_epochs = corrected.mean[:count]
    return log_epochs - log_epochs.min(), risk, corrected.bend[:count]


def _risk(places: Sequence[_Place], raced: Sequence[_Place]) -> Array:
    """Return the laws' risk, updated with which runs were lost by beta-binomial models: (places,).

    A run that was dropped may have been lost or slow: it counts as lost with the probability that the laws give, and as
    slow if these settings or bolder ones reached the target.
    """
    lost = []
    for place in raced:
        lost_or_slow = place.risk + (1 - place.risk) * DROPPED
        chance = 0.0 if _stood_beyond(place, raced) else place.risk / lost_or_slow
        lost.append(
            sum(
                1.0 if item.state == "diverged" else chance
                for item in place.trainings
                if item.state != "reached"
            )
        )
    found = []
    for place in places:
        hits = sum(each for each, other in zip(lost, raced, strict=True) if place.lost_with(other))
        stood = _stood_beyond(place, raced)
        found.append((RISK_COUNTS * place.risk + hits) / (RISK_COUNTS + hits + stood))
    return np.array(found)


def _coordinates(posterior: Posterior, place: _Place) -> Array:
    settings: list[Mapping[str, Any]] = [
        {**{name: each.interval.median for name, each in place.choices.items()}, RATE: place.rate}
    ]
    found = [float(setting_coordinates(law, settings)[0]) for law in posterior.model.laws]
    found.append(WARMUP_LENGTH * float(np.log(max(place.warmup, 1e-3))))
    return np.asarray(np.nan_to_num(np.array(found)))


def _moved(
    posterior: Posterior,
    choices: RecommendedSettings,
    rate: float,
    warmup: float,
    trainings: tuple[TrainingObservation, ...] = (),
) -> _Place:
    """Return the choices with another learning rate and warmup."""
    law, chosen = posterior.law(RATE), dict(choices.chosen)
    chosen[RATE] = RecommendedSetting(
        float(setting_coordinates(law, [{RATE: rate}])[0]), _around(rate, chosen[RATE].interval)
    )
    if WARMUP in chosen:
        chosen[WARMUP] = RecommendedSetting(warmup, _around(warmup, chosen[WARMUP].interval))
    moved = dataclasses.replace(
        choices, chosen=chosen, warmup_epochs=None if choices.warmup_epochs is None else warmup
    )
    return _place(posterior, moved, rate, warmup, trainings)


def _place(
    posterior: Posterior,
    choices: RecommendedSettings,
    rate: float,
    warmup: float,
    trainings: tuple[TrainingObservation, ...] = (),
) -> _Place:
    """Return a configuration with the laws' prediction for it."""
    seen = [choices.cost_and_risk(posterior, float(np.exp(off))) for off in OFF]
    risk = float(OFF_WEIGHTS @ [each.mean() for _, each in seen])
    return _Place(choices, rate, warmup, float(seen[1][0].mean()), risk, trainings)


def _around(value: float, interval: Interval) -> Interval:
    return Interval(value, min(value, interval.low), max(value, interval.high))


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
