"""What a race at the batch itself changes: which settings to use there, and what is expected of them.

The race's trainings are evidence like any, and the laws are fitted to them. But the laws are only roughly right at one
batch: so the settings that were raced, and those that the laws then hold best, are compared by what the laws predict
and what was seen beyond it, shrunk by the scatter of a training (:mod:`hpo.extrapolation.discrepancy`). Settings that
were lost, and those with a rate at least as high and a warmup at most as long, are never used; every training that was
not lost speaks for its own settings and for those with a lower rate and a longer warmup.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hpo.extrapolation.discrepancy import MOST_MISS, correct, counted
from hpo.extrapolation.evidence.evidence import Observation
from hpo.extrapolation.inference.posterior import Posterior
from hpo.extrapolation.laws.setting_laws import RATE, coordinates
from hpo.extrapolation.laws.warmup_law import WARMUP
from hpo.extrapolation.recommend import LOST, Choice, Choices
from hpo.intervals import Interval

Array: TypeAlias = NDArray[np.float64]

# what the laws say of a risk counts as much as so many trainings: seeds of one configuration are lost together or not
# at all more often than not, so that one that was not lost says much of the next
RISK_COUNTS = 2.0
WARMUP_LENGTH = 0.4  # a warmup longer by a factor e is as far as a rate higher by a factor of 1.5
BELOW_A_LOSS = 0.7  # where all else was lost: times the lowest rate that was
SAME = 1e-6  # settings that differ by less are the same


@dataclass(frozen=True)
class Raced:
    """The race at a batch: how many configurations, how many trainings, and how many of those reached their target,
    were lost, or were dropped as far behind; ``runs`` are the trainings of the settings to use, 0 where those were not
    raced.
    """

    global_batch_size: int
    configurations: int
    trainings: int
    reached: int
    lost: int
    runs: int = 0

    def told(self) -> str:
        """For people to read."""
        ways = [
            f"{self.reached} reached the target",
            *([f"{self.lost} lost"] if self.lost else []),
            *(
                [f"{behind} dropped"]
                if (behind := self.trainings - self.reached - self.lost)
                else []
            ),
        ]
        return (
            f"raced at {self.global_batch_size}: {_counted(self.configurations, 'configuration')}, "
            f"{_counted(self.trainings, 'training')} ({', '.join(ways)})"
        )


@dataclass(frozen=True)
class _Place:
    """One configuration: its settings, and the trainings of it."""

    choices: Choices
    rate: float
    warmup: float
    trainings: tuple[Observation, ...] = ()

    def beyond(self, other: _Place) -> bool:
        """Whether its rate is at least as high and its warmup at most as long: what is lost there is lost here."""
        return (
            self.rate >= other.rate * (1 - SAME) and self.warmup <= other.warmup * (1 + SAME) + SAME
        )


def after_race(
    posterior: Posterior, choices: Choices, global_batch_size: int, trainings: Sequence[Observation]
) -> tuple[Choices, Raced | None]:
    """The settings to use after a race, of those raced and of ``choices``, the best by the laws; and what it was.

    ``trainings`` are those of the race at ``global_batch_size``, which the posterior knows. Where there are none, or
    where no learning rate was tuned, the choices stand.
    """
    if not trainings or RATE not in choices or not posterior.knows_cost(RATE):
        return choices, None
    held = _Place(choices, choices[RATE].interval.median, choices.warmup_epochs or 0.0)
    raced = _places(posterior, choices, trainings)
    states = [item.state for item in trainings]
    told = Raced(
        global_batch_size,
        len(raced),
        len(states),
        states.count("reached"),
        states.count("diverged"),
    )
    lost = _lost(raced)
    usable = [
        place
        for place in [held, *raced]
        if not any(place.beyond(each) for each in lost)
        and all(item.state == "reached" for item in place.trainings)
    ]
    if not usable:
        lowest = min(lost, key=lambda place: place.rate)
        warmup = max(held.warmup, *(place.warmup for place in lost))
        usable = [
            _Place(
                _moved(posterior, choices, BELOW_A_LOSS * lowest.rate, warmup),
                BELOW_A_LOSS * lowest.rate,
                warmup,
            )
        ]
    expected, risk, shift = _judged(posterior, usable, raced)
    factor = np.exp(expected - expected.min())
    at = int(np.argmin(factor + (LOST - factor) * risk))
    used = usable[at]
    before = float(used.choices.risk(posterior).mean())
    found = dataclasses.replace(
        used.choices,
        log_shift=float(shift[at]),
        risk_factor=float(risk[at]) / before if before > 0 else 1.0,
    )
    return found, dataclasses.replace(told, runs=len(used.trainings))


def _places(
    posterior: Posterior, choices: Choices, trainings: Sequence[Observation]
) -> list[_Place]:
    groups: dict[tuple[float, float], list[Observation]] = {}
    for item in trainings:
        warmup = item.settings.get(WARMUP)
        key = (
            float(item.settings[RATE]),
            choices.warmup_epochs or 0.0 if warmup is None else float(warmup),
        )
        groups.setdefault(key, []).append(item)
    return [
        _Place(_moved(posterior, choices, *key), *key, tuple(group))
        for key, group in groups.items()
    ]


def _lost(raced: Sequence[_Place]) -> list[_Place]:
    """The configurations that were lost: diverged, or dropped while none that is beyond them reached the target."""
    reached = [place for place in raced if all(item.state == "reached" for item in place.trainings)]
    return [
        place
        for place in raced
        if any(item.state == "diverged" for item in place.trainings)
        or (
            place not in reached
            and not any(each.beyond(place) for each in reached)
            and any(place.beyond(each) for each in reached)
        )
    ]


def _judged(
    posterior: Posterior, places: Sequence[_Place], raced: Sequence[_Place]
) -> tuple[Array, Array, Array]:
    """Expected log epochs, risk, and what the race adds to the log epochs that the laws predict: (places,) each."""
    runs = [(place, item) for place in raced for item in place.trainings]
    every = [*places, *(place for place, _ in runs)]
    level = float(posterior.log_epochs(places[0].choices.log_batch)[0].mean())
    costs = [float(np.minimum(place.choices.cost(posterior), MOST_MISS).mean()) for place in every]
    prior, count = level + np.array(costs), len(places)
    risk = np.array(
        [_survived(float(place.choices.risk(posterior).mean()), place, raced) for place in places]
    )
    fewest = min((item.epochs for _, item in runs if item.state == "reached"), default=None)
    if fewest is None:
        return prior[:count], risk, np.zeros(count)
    seen = [float(np.log(counted(item.state, item.epochs, fewest))) for _, item in runs]
    where = np.stack([_coordinates(posterior, place) for place in every])
    scatter = float(np.exp(posterior.values["log_trial_scatter"]).mean())
    corrected = correct(prior, where, where[count:], prior[count:], seen, scatter)
    return corrected.mean[:count], risk, corrected.mean[:count] - prior[:count]


def _survived(risk: float, place: _Place, raced: Sequence[_Place]) -> float:
    """The risk by the laws, with the trainings that were at least as risky and were not lost (a beta-binomial)."""
    stood = sum(
        item.state == "reached" for each in raced if each.beyond(place) for item in each.trainings
    )
    return risk * RISK_COUNTS / (RISK_COUNTS + stood)


def _coordinates(posterior: Posterior, place: _Place) -> Array:
    settings: list[Mapping[str, Any]] = [
        {**{name: each.interval.median for name, each in place.choices.items()}, RATE: place.rate}
    ]
    found = [float(coordinates(law, settings)[0]) for law in posterior.model.laws]
    found.append(WARMUP_LENGTH * float(np.log(max(place.warmup, 1e-3))))
    return np.asarray(np.nan_to_num(np.array(found)))


def _moved(posterior: Posterior, choices: Choices, rate: float, warmup: float) -> Choices:
    """The choices with another learning rate and warmup."""
    law, chosen = posterior.law(RATE), dict(choices.chosen)
    chosen[RATE] = Choice(
        float(coordinates(law, [{RATE: rate}])[0]), _around(rate, chosen[RATE].interval)
    )
    if WARMUP in chosen:
        chosen[WARMUP] = Choice(warmup, _around(warmup, chosen[WARMUP].interval))
    return dataclasses.replace(
        choices, chosen=chosen, warmup_epochs=None if choices.warmup_epochs is None else warmup
    )


def _around(value: float, interval: Interval) -> Interval:
    return Interval(value, min(value, interval.low), max(value, interval.high))


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
