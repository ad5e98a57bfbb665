"""What a race at the batch itself changes: which settings to use there, and what is expected of them.

The race's trainings are evidence like any, and the laws are fitted to them. But the laws are only roughly right at one
batch: so the recommended settings, those that were raced, and others about them are compared by what the laws predict
and what was seen beyond it, shrunk by the scatter of a training and of its seed (:mod:`hpo.extrapolation.discrepancy`):
one training, lucky or not, decides nothing, and nothing bolder is used than what the sweep recommended or two
trainings have stood. A training that was lost speaks against its settings and against those with a rate at least as
high and a warmup at most as long, and, where none of them stood, those near it; one that was not lost speaks for its
own settings and for those with a lower rate and a longer warmup.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hpo.extrapolation.discrepancy import correct, counted
from hpo.extrapolation.evidence.evidence import Observation
from hpo.extrapolation.inference.intervals import Interval
from hpo.extrapolation.inference.posterior import Posterior, thinned
from hpo.extrapolation.laws.setting_laws import RATE, coordinates
from hpo.extrapolation.laws.warmup_law import WARMUP
from hpo.extrapolation.recommend import PARTICLES, Choice, Choices, price

Array: TypeAlias = NDArray[np.float64]

# what the laws say of a risk counts as much as so many trainings: seeds of one configuration are lost together or not
# at all more often than not, so that one that was not lost says much of the next
RISK_COUNTS = 2.0
# of the trainings that are not lost, so many are dropped as far behind: what tells one that was lost from a slow one
DROPPED = 0.25
# the laws' bound of stability is right within such a factor, in its logarithm: both ends and the middle count
OFF, OFF_WEIGHTS = np.array([-0.35, 0.0, 0.35]), np.array([1.0, 4.0, 1.0]) / 6
BOLD = 2  # trainings that reached the target at settings, or at bolder ones, until they are trusted
WARMUP_LENGTH = 0.4  # a warmup longer by a factor e is as far as a rate higher by a factor of 1.5
BELOW_A_LOSS = 0.7  # times the rate of a training that was lost: what is not near it any more
SAME = 1e-6  # settings that differ by less are the same
# other settings about the recommended ones: factors of their rate and warmup
RATES, WARMUPS = np.exp(np.linspace(-0.75, 0.75, 13)), np.exp(np.linspace(-1.4, 1.4, 9))


@dataclass(frozen=True)
class Raced:
    """The race at a batch: how many configurations, how many trainings, and how many of those reached their target,
    were lost, or were dropped as far behind; ``runs`` are the trainings of the settings to use, 0 where those were not
    raced. Trainings by which the settings were ``searched`` there count like those of a race.
    """

    global_batch_size: int
    configurations: int
    trainings: int
    reached: int
    lost: int
    runs: int = 0
    searched: bool = False

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
        done = "searched" if self.searched else "raced"
        return (
            f"{done} at {self.global_batch_size}: {_counted(self.configurations, 'configuration')}, "
            f"{_counted(self.trainings, 'training')} ({', '.join(ways)})"
        )


@dataclass(frozen=True)
class _Place:
    """One configuration: its settings, what the laws say of them, and the trainings of it.

    ``cost`` is the expected log factor on the epochs of the best settings, ``risk`` the probability of a loss where the
    laws may be off.
    """

    choices: Choices
    rate: float
    warmup: float
    cost: float
    risk: float
    trainings: tuple[Observation, ...] = ()

    @property
    def stood(self) -> int:
        """How many of its trainings reached the target."""
        return sum(item.state == "reached" for item in self.trainings)

    def beyond(self, other: _Place) -> bool:
        """Whether its rate is at least as high and its warmup at most as long: what is lost there is lost here."""
        return (
            self.rate >= other.rate * (1 - SAME) and self.warmup <= other.warmup * (1 + SAME) + SAME
        )

    def lost_with(self, other: _Place) -> bool:
        """Whether a loss of the other speaks against this one: beyond it, or near it and never seen to stand."""
        near = self.rate > BELOW_A_LOSS * other.rate and self.warmup < other.warmup / BELOW_A_LOSS
        return self.beyond(other) or (near and not self.stood)


def went_whole(trainings: Sequence[Observation]) -> list[Observation]:
    """Those that came to their end, or trained for as long as the quickest of them that reached the target.

    A short look at settings is no word against them.
    """
    fewest = min((item.epochs for item in trainings if item.state == "reached"), default=math.inf)
    return [item for item in trainings if item.state != "pruned" or item.epochs >= fewest]


def after_race(
    posterior: Posterior,
    choices: Choices,
    global_batch_size: int,
    trainings: Sequence[Observation],
    *,
    searched: bool = False,
) -> tuple[Choices, Raced | None]:
    """The settings to use after a race, of those raced and of ``choices``, the best by the laws; and what it was.

    ``trainings`` are those of the race at ``global_batch_size``, which the posterior knows. Where there are none, or
    where no learning rate was tuned, the choices stand. Where the settings were ``searched`` at this very batch, what
    has reached the target there is used, and nothing that the laws alone hold better.
    """
    if not trainings or RATE not in choices or not posterior.knows_cost(RATE):
        return choices, None
    full, posterior = posterior, thinned(posterior, PARTICLES)
    held = _place(posterior, choices, choices[RATE].interval.median, choices.warmup_epochs or 0.0)
    raced = _places(posterior, choices, trainings)
    states = [item.state for item in trainings]
    told = Raced(
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
        # a race begins with what the sweep recommended
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
    """How many trainings reached the target with these settings or bolder ones."""
    return sum(other.stood for other in raced if other.beyond(place))


def _scatter(posterior: Posterior) -> float:
    return float(np.exp(posterior.values["log_trial_scatter"]).mean())


def _about(posterior: Posterior, held: _Place, global_batch_size: int) -> list[_Place]:
    """Settings about the recommended ones, with at least one update of warmup."""
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
    return [_moved(posterior, choices, *key, tuple(group)) for key, group in groups.items()]


def _judged(
    posterior: Posterior, places: Sequence[_Place], raced: Sequence[_Place]
) -> tuple[Array, Array, Array]:
    """Expected log factor on the epochs, risk, and what the race adds to the log epochs by the laws: (places,) each.

    The level of all epochs there is the laws' to tell, which know of the race and of its seeds.
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
    # one that did not reach the target needed at least so much: no word against laws that hold it slower
    usual = float(np.median((seen - prior[count:])[reached]))
    seen = np.where(reached, seen, np.maximum(seen, prior[count:] + usual))
    where = np.stack([_coordinates(posterior, place) for place in every])
    corrected = correct(
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
    """The risk by the laws, with what was lost and what was not: (places,), each a beta-binomial.

    A training that was dropped may have been lost or slow: it counts as lost by how likely the laws hold that, and as
    slow where these settings or bolder ones reached the target.
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
    found = [float(coordinates(law, settings)[0]) for law in posterior.model.laws]
    found.append(WARMUP_LENGTH * float(np.log(max(place.warmup, 1e-3))))
    return np.asarray(np.nan_to_num(np.array(found)))


def _moved(
    posterior: Posterior,
    choices: Choices,
    rate: float,
    warmup: float,
    trainings: tuple[Observation, ...] = (),
) -> _Place:
    """The choices with another learning rate and warmup."""
    law, chosen = posterior.law(RATE), dict(choices.chosen)
    chosen[RATE] = Choice(
        float(coordinates(law, [{RATE: rate}])[0]), _around(rate, chosen[RATE].interval)
    )
    if WARMUP in chosen:
        chosen[WARMUP] = Choice(warmup, _around(warmup, chosen[WARMUP].interval))
    moved = dataclasses.replace(
        choices, chosen=chosen, warmup_epochs=None if choices.warmup_epochs is None else warmup
    )
    return _place(posterior, moved, rate, warmup, trainings)


def _place(
    posterior: Posterior,
    choices: Choices,
    rate: float,
    warmup: float,
    trainings: tuple[Observation, ...] = (),
) -> _Place:
    """A configuration, with what the laws say of it."""
    seen = [choices.cost_and_risk(posterior, float(np.exp(off))) for off in OFF]
    risk = float(OFF_WEIGHTS @ [each.mean() for _, each in seen])
    return _Place(choices, rate, warmup, float(seen[1][0].mean()), risk, trainings)


def _around(value: float, interval: Interval) -> Interval:
    return Interval(value, min(value, interval.low), max(value, interval.high))


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
