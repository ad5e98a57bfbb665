"""Chooses the training run that gives the most information about the best full-scale settings per sample.

A step trains settings for some time, at the full-scale batch size if that may be trained, and otherwise at the largest
batch sizes allowed. Many short looks come first. A run's first evaluations, compared with the curve of the fastest run,
show how fast it is (:mod:`hpo.tuning.generation.curves`). All looks together show where the best settings lie
(:mod:`hpo.tuning.generation.surface`). Each step is the one expected to lower the epochs of the chosen settings most,
per epoch that it costs. Short looks may all be biased in the same way, so after some of them only full runs are
allowed. The search ends when no step is worth its cost and runs with the recommended settings have reached the target.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hpo.extrapolation.evidence.evidence import ScaledSetting
from hpo.extrapolation.laws.setting_laws import MOMENTUM, RATE
from hpo.extrapolation.laws.warmup_law import WARMUP
from hpo.tuning.generation.curves import SHRUNK, LearningCurve, compare_curves
from hpo.tuning.generation.shapes import ResponseShapes
from hpo.tuning.generation.surface import (
    LEAST_RAMP,
    EpochsSurface,
    SettingPlaces,
    TrainingEstimates,
    expected_fall,
    own_error,
)

Array: TypeAlias = NDArray[np.float64]
Settings: TypeAlias = Mapping[str, Any]

# lengths of a training run, as shares of the epochs of the fastest run, once those are known
LOOKS = (0.2, 0.3, 0.6, 1.0)
STARTUP = 0.02  # cost of starting a run, as such a share
# full-scale training runs that will use the settings: a step is worth its cost if it saves as much over all of them
WORTH = 4.0
# the first training runs: their positions in the ranges of rate and warmup, and their minimum length
FIRST_PLACES, FIRST_WARMUP, FIRST = (0.5, 0.75, 0.25, 0.125, 0.875, 0.375), 0.05, 1 / 32
# PROGRESS: a run below this share of the way to the target has not started to learn. LONGER: after this many runs, the
# next are twice as long. DEAD: a run at a higher rate is lost if its progress is below this share of the fastest run's
PROGRESS, LONGER, DEAD = 0.03, 3, 0.2
LOWEST = 0.05  # position in its range below which a rate is too low to make a run diverge
BEGUN = 2  # number of runs that must show progress before the surface is used
# budget of looks before the first full training run, and after each full run, in epochs of the fastest run
ROOM, MORE, LEAST_LOOKS = 1.3, 1.3, 6
# while no training run has reached the target, the share of the epochs is assumed to be the share of the metric's way
# to the target, to this power; MOST_AHEAD is an upper bound on the remaining epochs and LEAST_AHEAD a lower bound on
# all epochs, as shares of the limit on epochs
AHEAD_POWER, MOST_AHEAD, LEAST_AHEAD = 1.7, 0.4, 0.1
# log epochs of a lost training run relative to the fastest run
LOST, LOST_ERROR = 1.6, 0.3
# no rate is tried below a rate with log epochs above TOO_SLOW, if all rates with log epochs below QUICK are higher
TOO_SLOW, QUICK = 0.3, 0.15
# a training run is stuck if, after STUCK_AFTER evaluations, its second half has at most the share STILL of the gain, or
# if, after the share MOST_OF_IT of its length, it still lacks more than TOO_LITTLE times the second half's gain
STUCK_AFTER, STILL, MOST_OF_IT, TOO_LITTLE = 8, 0.02, 0.75, 2.0
UNARRIVED = 0.3  # factor on a look's share while no run has reached the target, so that the full length is unknown
IN_WARMUP = math.sqrt(2)  # factor on the error of a look that ended during warmup
STRIDE = 4.0  # the next rate lies within this factor of the rates tried so far
CANDIDATES, CHOICES = 90, 400
# length scales of the epochs: in log rate, in log warmup, and for other settings as a share of their range
RATE_LENGTH, WARMUP_LENGTH, OTHER_LENGTH = 0.75, 1.0, 0.8
# warmups below this share of a training run are treated as equal; the range of the warmups that are tried
NO_WARMUP, WARMUPS = 0.05, (0.02, 0.9)
# log error of the shapes, without and with other settings; and the number of standard deviations by which untrained
# settings must be better than the best trained ones
AMPLITUDES, CAREFUL = (0.4, 0.7), (0.0, 0.4)
RISK = 1.0  # penalty in log epochs for recommending settings that are certain to diverge
# RISK while no training run has reached the target, by the epochs spent, in units of the fastest run's: at first, rates
# too low to learn are as likely as rates that diverge, later only the latter are
SPENT, EARLY_RISKS = (1.0, 2.0), (0.4, 2.5)
MARGIN = 0.1  # lead in log epochs that a look needs over settings that reached the target
LEAST_LEFT = 0.02  # lower bound on 1 - momentum in the effective rate, if momentum is tuned
ALIKE = 0.35  # runs whose log rates differ by less than this confirm each other
PATIENT = 1.7  # a full run may take this many times its expected epochs
UNKNOWN = 0.5  # while no run has reached the target, the fastest is assumed to need this share of the limit
CONFIRMED = 2  # number of runs that must reach the target before the search ends
FAILURES = 2  # number of runs that fail with an error before settings like theirs are no longer trained to the end
TRIES = 2  # full runs reserved for a batch size at which no run has reached the target
DEPTH = 3  # number of largest batch sizes to search if full scale may not be trained
SHARED_EXPONENT = 0.5  # growth of the best rate with the batch for an unknown optimizer


@dataclass(frozen=True)
class SeenTraining:
    """One training run so far: the ``epochs``, ``metric`` and ``loss`` of its evaluations; ``loss`` is empty if
    unknown.

    ``state`` is "reached" (after ``epochs_to_target``), "diverged", "censored" by the limit on epochs, "paused" (or
    stopped), "running", or "failed" by an error, which need not be due to its settings.
    """

    number: int
    global_batch_size: int
    settings: Settings
    seed: int
    epochs: Sequence[float]
    metric: Sequence[float]
    state: str
    epochs_to_target: float | None = None
    loss: Sequence[float] = ()


UNTOLD = ("running", "failed")
"""The states of training runs that say nothing about their settings."""


@dataclass(frozen=True)
class SearchStep:
    """A step that trains these settings at this batch size up to ``until_epochs``; ``reason`` explains it in one line.

    A ``whole`` run is trained to its end; others are stopped before that.
    """

    global_batch_size: int
    settings: dict[str, float]
    until_epochs: float
    reason: str
    whole: bool = False


@dataclass(frozen=True)
class _Told:
    """The estimate from a partial training run: its log epochs relative to those of the fastest run at its
    batch size.
    """

    seen: SeenTraining
    log_epochs: float
    share: float
    own_error: float
    ended: bool


@dataclass(frozen=True)
class _Fastest:
    """The fastest training run with a curve at one batch size, with which the others are compared: its ``epochs`` to
    the target, as far as is known, and the lowest ``first`` score of all runs there.
    """

    seen: SeenTraining
    curve: LearningCurve
    epochs: float
    first: float


@dataclass(frozen=True)
class _Knowledge:
    """What is known about one batch size: the ``epochs`` of the fastest training run there, and the surface
    around it.
    """

    global_batch_size: int
    epochs: float
    told: tuple[_Told, ...]
    surface: EpochsSurface

    def here(self) -> list[_Told]:
        """Return the training runs at this batch size."""
        return [each for each in self.told if each.seen.global_batch_size == self.global_batch_size]


class SettingsSearch:
    """The search of one study; every answer depends only on the training runs.

    ``rungs`` are the batch sizes that may be trained. ``target`` is the batch size for which settings are sought; it
    need not be one of the rungs. ``tuned`` are the settings to search, each within its bounds; ``rate_exponent`` is the
    assumed growth of the best rate with the batch size. ``resolution`` is the number of epochs between evaluations,
    ``most_epochs`` the limit of one run, and ``goal`` the metric value to reach. ``worth`` is the number of runs that
    will use the settings.
    """

    def __init__(
        self,
        rungs: Sequence[int],
        target: int,
        tuned: Sequence[ScaledSetting],
        *,
        most_epochs: float,
        resolution: float,
        goal: float,
        higher_is_better: bool = True,
        rate_exponent: float = SHARED_EXPONENT,
        seed: int = 0,
        worth: float = WORTH,
    ) -> None:
        self._target, self._tuned = target, tuple(tuned)
        ordered = sorted(set(rungs), reverse=True)
        self._batches = [target] if target in ordered else ordered[:DEPTH]
        self._below = [each for each in ordered if each < target][:DEPTH]
        self._most, self._resolution = most_epochs, resolution
        self._sign = 1.0 if higher_is_better else -1.0
        self._goal, self._exponent = self._sign * goal, rate_exponent
        self._seed, self._worth = seed, worth
        others = any(each.name not in (RATE, WARMUP) for each in self._tuned)
        self._amplitude, self._careful = AMPLITUDES[others], CAREFUL[others]
        rates = [np.log(_bounds(each)) for each in self._tuned if each.name == RATE]
        self._shapes = ResponseShapes.between(*(rates[0] if rates else (0.0, 0.0)))

    def next(self, seen: Sequence[SeenTraining], left: float = math.inf) -> SearchStep | None:
        """Return the step that gains most for its cost; None if no step is worth it, or if that depends on running
        trials.

        ``left`` is the number of training runs left in the budget; the last of them are full runs.
        """
        batches = self._searched(seen)
        if left <= TRIES * len(batches) and (step := self._last(batches, seen, left)) is not None:
            return step
        for batch in sorted(batches, key=lambda each: self._spent(seen, each)):
            step = self._step(seen, batch)
            if step is not None:
                return step
        return None

    def _searched(self, seen: Sequence[SeenTraining]) -> list[int]:
        """Return the batch sizes to search: the full-scale one, or the largest ones below it if the target is too far
        away.

        It is too far away if the epochs of two full training runs have been spent at full scale and no run has reached
        it.
        """
        arrived = any(
            each.state == "reached" for each in seen if each.global_batch_size == self._target
        )
        if arrived or self._batches != [self._target] or not self._below:
            return self._batches
        too_far = self._spent(seen, self._target) >= TRIES * self._most
        return self._below if too_far else self._batches

    def _last(
        self, batches: Sequence[int], seen: Sequence[SeenTraining], left: float
    ) -> SearchStep | None:
        """Train the most promising settings to their end, at a batch size where no run has reached the target or is
        running.
        """
        waiting = []
        for batch in batches:
            states = [each.state for each in seen if each.global_batch_size == batch]
            if "reached" not in states and "running" not in states:
                waiting.append((states.count("censored"), -batch))
        for _, batch in sorted(waiting):
            known = self._known(seen, -batch)
            if known is not None and left <= TRIES * len(waiting):
                step = self._whole(known, f"the most promising, to the end: {left:.0f} runs left")
                return replace(step, until_epochs=self._most)
        return None

    def _spent(self, seen: Sequence[SeenTraining], batch: int) -> float:
        """Return the epochs trained at a batch size, to balance several of them; a training run in flight counts as a
        look.
        """
        there = [each for each in seen if each.global_batch_size == batch]
        trained = math.fsum(each.epochs[-1] for each in there if len(each.epochs))
        return trained + self._resolution * sum(each.state == "running" for each in there)

    def recommendation(self, seen: Sequence[SeenTraining]) -> dict[str, float]:
        """Return the settings to use at full scale.

        Once training runs have reached the target at full scale, these are the settings of one of those runs, or of a
        look that is better by a margin.
        """
        known = self._known(seen, self._target)
        if known is None:
            return self._begun(seen)
        here = known.here()
        arrived = [each.seen for each in here if each.seen.state == "reached"]
        if not arrived:
            spent = self._spent(seen, self._target) / known.epochs
            return self._best(known, float(np.interp(spent, SPENT, EARLY_RISKS)))
        looks = [each.seen for each in here if not each.ended]
        settings = [self._moved(each, known) for each in (*arrived, *looks)]
        places, mean, _ = self._predicted(known, settings)
        margins = np.array([0.0] * len(arrived) + [MARGIN] * len(looks))
        return settings[int(np.argmin(mean + margins + RISK * known.surface.lost(places)))]

    def forgone(self, seen: Sequence[SeenTraining]) -> SearchStep | None:
        """Return the next training run at the largest batch size if its cost did not matter; None before anything is
        known.
        """
        known = self._known(seen, self._searched(seen)[0])
        return None if known is None else self._worthwhile(known, seen, at_any_price=True)

    def limit_epochs(self, seen: Sequence[SeenTraining], global_batch_size: int) -> float:
        """Return the epochs after which a training run at this batch size gives no more information."""
        known = self._known(seen, global_batch_size)
        return self._most if known is None else min(2 * PATIENT * known.epochs, self._most)

    def _step(self, seen: Sequence[SeenTraining], batch: int) -> SearchStep | None:
        known = self._known(seen, batch)
        if known is None:
            there = sum(each.state not in ("diverged", "failed") for each in seen)
            until = max(2 * self._resolution, FIRST * self._most) * 2 ** (there // LONGER)
            return SearchStep(batch, self._first(seen), min(until, self._most), "to begin with")
        if not self._may_look(known) and not self._stood(known, self._best(known)):
            return self._whole(known, "the most promising settings, to the end")
        return self._worthwhile(known, seen) or self._confirm(known, seen)

    def _first(self, seen: Sequence[SeenTraining]) -> dict[str, float]:
        """Return settings in the middle of the ranges, with a short warmup and with rates spread over their range.

        The second rate is above the first if the first training run has started to learn, and below it otherwise. After
        lost runs, the rate is halfway between the lowest lost rate and the bottom of the range. After several runs
        without progress, the settings are random.
        """
        rng = np.random.default_rng((self._seed, len(seen)))
        middle, *outer = FIRST_PLACES
        if seen and self._progress(seen[:1])[0] < PROGRESS:
            outer[:2] = reversed(outer[:2])
        rates = (middle, *outer)
        found = {}
        for tuned in self._tuned:
            anywhere = float(rng.random())
            usual = {RATE: rates[len(seen) % len(rates)], WARMUP: FIRST_WARMUP}
            place = usual.get(tuned.name, 0.5) if len(seen) < len(rates) else anywhere
            if tuned.name == RATE:
                below = _below_lost(seen, tuned)
                place = below if below < 1 else place
            found[tuned.name] = _place(tuned, place)
        return found

    def _begun(self, seen: Sequence[SeenTraining]) -> dict[str, float]:
        """Return the settings to use before two runs have shown progress: those of the most advanced run, or the lowest
        rate.
        """
        found = self._first(())
        progress = self._progress(seen)
        if progress and max(progress) >= PROGRESS:
            best = seen[int(np.argmax(progress))].settings
            return {
                each.name: float(np.clip(best[each.name], *_bounds(each))) for each in self._tuned
            }
        for tuned in self._tuned:
            if tuned.name == RATE and seen:
                tried = np.array([float(each.settings[RATE]) for each in seen])
                place = min(float(_unit(tuned, tried).min()), _below_lost(seen, tuned))
                found[RATE] = _place(tuned, place)
        return found

    def _progress(self, seen: Sequence[SeenTraining]) -> list[float]:
        """Return the progress of each training run, as a share of the way to the target from the lowest first value.

        If the metric does not move while the loss falls, progress is the share by which the loss has fallen.
        """
        standing = [each for each in seen if _shows(each)]
        if not standing:  # a run without a curve may have reached the target all the same
            return [float(bool(each.epochs_to_target)) for each in seen]
        first = min(self._scores(each)[0] for each in standing)
        way = max(self._goal - first, 1e-12)
        gone = [
            (max(self._scores(each)) - first) / way
            if _shows(each)
            else float(bool(each.epochs_to_target))
            for each in seen
        ]
        highest = max((each.loss[0] for each in standing if len(each.loss)), default=0.0)
        if max(gone) >= PROGRESS or highest <= 0:
            return gone
        return [1 - min(each.loss) / highest if len(each.loss) else 0.0 for each in seen]

    # estimates

    def _known(self, seen: Sequence[SeenTraining], batch: int) -> _Knowledge | None:
        """Return what is known about a batch size; None before two training runs have shown progress."""
        ended = [each for each in seen if each.state not in UNTOLD]
        told: list[_Told] = []
        epochs: dict[int, float] = {}
        for each in sorted({one.global_batch_size for one in ended}):
            there = [one for one in ended if one.global_batch_size == each]
            quickest, tells = self._told(there)
            told += tells
            if quickest is not None:
                epochs[each] = quickest
        if sum(each.seen.state != "diverged" for each in told) < BEGUN:
            return None
        if max(self._progress([each.seen for each in told])) < PROGRESS:
            return None
        nearest = min(epochs, key=lambda each: abs(math.log(each / batch)))
        usual = epochs[nearest]
        surface = self._surface(told, batch, usual)
        # running and failed trials count with their expected result, so that new ones look elsewhere
        for one in (each for each in seen if each.state in UNTOLD):
            places = self._places([one.settings], [one.global_batch_size], batch, usual)
            mean, _ = surface.log_epochs(places)
            told.append(_Told(one, float(mean[0]), 1.0, float(own_error(LOOKS[0])), ended=True))
            surface = self._surface(told, batch, usual)
        return _Knowledge(batch, usual, tuple(told), surface)

    def _told(self, ended: Sequence[SeenTraining]) -> tuple[float | None, list[_Told]]:
        """Return the epochs of the fastest training run at one batch size, None if all were lost, and the estimate from
        each run.
        """
        lost = [
            _Told(each, LOST, 1.0, LOST_ERROR, ended=True)
            for each in ended
            if each.state == "diverged"
        ]
        standing = [each for each in ended if each.state != "diverged" and _shows(each)]
        arrived = [each.epochs_to_target for each in ended if each.epochs_to_target]
        if not standing and not arrived:
            return None, lost
        # a run without a curve, such as an imported one, may be the fastest, but others cannot be compared with it
        fastest = self._fastest(standing) if standing else None
        epochs, told = min(arrived, default=fastest.epochs if fastest else math.inf), []
        for each in ended:
            if each.state == "diverged":
                continue
            if each.epochs_to_target:
                quotient = math.log(each.epochs_to_target / epochs)
                told.append(_Told(each, quotient, 1.0, float(own_error(1)), ended=True))
            elif _shows(each) and fastest is not None:
                told.append(self._look(each, standing, fastest, epochs))
        return epochs, [*lost, *told]

    def _look(
        self,
        each: SeenTraining,
        standing: Sequence[SeenTraining],
        fastest: _Fastest,
        epochs: float,
    ) -> _Told:
        """Return the estimate from a partial training run, relative to the fewest ``epochs``."""
        if self._dead(each, standing, fastest):
            return _Told(each, LOST, 1.0, LOST_ERROR, ended=True)
        look = self._compared(each, fastest)
        if look.ended:  # it has failed, whatever it is compared with
            return look
        slower = look.log_epochs + math.log(fastest.epochs / epochs)
        return replace(look, log_epochs=float(np.clip(slower, -LOST, LOST)))

    def _fastest(self, standing: Sequence[SeenTraining]) -> _Fastest:
        """Return the fastest training run of those with a curve."""
        reached = [each for each in standing if each.epochs_to_target]
        first = min(self._scores(each)[0] for each in standing)
        if reached:
            seen = min(reached, key=lambda each: each.epochs_to_target or math.inf)
            epochs = float(seen.epochs_to_target or 0.0)
        else:
            seen = max(standing, key=lambda each: (max(self._scores(each)), -each.epochs[-1]))
            epochs = self._ahead(seen, first)
        return _Fastest(seen, self._curve(seen), epochs, first)

    def _dead(
        self,
        each: SeenTraining,
        standing: Sequence[SeenTraining],
        fastest: _Fastest,
    ) -> bool:
        """Return whether a training run, unlike the fastest, has hardly started to learn, at a higher rate than all
        runs that have.
        """
        first = fastest.first
        way = self._way(fastest.seen, each.epochs[-1], first)
        if each.settings.get(RATE) is None or way < PROGRESS * (self._goal - first):
            return False
        begun = [one for one in standing if self._way(one, each.epochs[-1], first) >= DEAD * way]
        higher = all(each.settings[RATE] > one.settings[RATE] for one in begun)
        return each not in begun and higher

    def _way(self, seen: SeenTraining, until: float, first: float) -> float:
        """Return how far a training run came from ``first`` within ``until`` epochs, 0 if it had not been evaluated by
        then.
        """
        scores = zip(seen.epochs, self._scores(seen), strict=True)
        return max((score for at, score in scores if at <= until), default=first) - first

    def _compared(self, each: SeenTraining, fastest: _Fastest) -> _Told:
        trained = each.epochs[-1] / fastest.epochs
        failed = each.state == "censored" or self._stuck(each, trained)
        found = None if each is fastest.seen else compare_curves(self._curve(each), fastest.curve)
        told = 0.0 if found is None else SHRUNK * found.log_quotient
        share = trained if found is None else max(found.reference_epochs / fastest.epochs, trained)
        share = 1.0 if each.state == "censored" else min(share, 1.0)
        if fastest.seen.state != "reached" and not failed:
            share *= UNARRIVED
        if failed:  # a run that was fast before it got stuck is lost; others may just be slow
            told = LOST if told < QUICK else max(told, LOST / 2)
        else:  # a run needs at least the epochs that it has trained
            told = max(told, math.log(trained)) if found is not None else told
        error = float(own_error(share))
        if each.settings.get(WARMUP, 0.0) > each.epochs[-1]:
            error *= IN_WARMUP
        return _Told(each, float(np.clip(told, -LOST, LOST)), share, error, ended=failed)

    def _stuck(self, each: SeenTraining, trained: float) -> bool:
        """Return whether the second half of a training run has added almost nothing to the gain of the first.

        If the run has ``trained`` for most of the fastest run's epochs, return whether it gains too little to reach the
        target.
        """
        if len(each.metric) < STUCK_AFTER:
            return False
        risen = np.maximum.accumulate(self._scores(each))
        gained, late = risen[-1] - risen[0], risen[-1] - risen[len(risen) // 2]
        if trained >= MOST_OF_IT and self._goal - risen[-1] > TOO_LITTLE * late:
            return True
        return bool(gained > 0 and late <= STILL * gained)

    def _ahead(self, best: SeenTraining, first: float) -> float:
        """Estimate the epochs of the best training run from its metric, while no run has reached the target.

        ``first`` is the lowest first score of all runs.
        """
        gone = (max(self._scores(best)) - first) / max(self._goal - first, 1e-12)
        now = float(best.epochs[-1])
        told = now * float(np.clip(gone, 1e-3, 1.0)) ** -AHEAD_POWER
        told = max(told, LEAST_AHEAD * self._most)
        return float(min(told, now + MOST_AHEAD * self._most))

    def _curve(self, each: SeenTraining) -> LearningCurve:
        loss = [-value for value in each.loss] if len(each.loss) else None
        return LearningCurve(each.epochs, (self._scores(each), loss))

    def _scores(self, each: SeenTraining) -> list[float]:
        return [self._sign * value for value in each.metric]

    def _surface(self, told: Sequence[_Told], batch: int, epochs: float) -> EpochsSurface:
        settings = [each.seen.settings for each in told]
        batches = [each.seen.global_batch_size for each in told]
        seen = TrainingEstimates(
            self._places(settings, batches, batch, epochs),
            np.array([each.log_epochs for each in told]),
            np.array([each.share for each in told]),
            np.array([each.own_error for each in told]),
            np.array([each.ended for each in told]),
            np.log([_ramp(each.seen) for each in told]),
        )
        return EpochsSurface(self._shapes, self._amplitude, seen)

    def _places(
        self, settings: Sequence[Settings], batches: Sequence[int], batch: int, epochs: float
    ) -> SettingPlaces:
        """Convert settings at batch sizes to points of the surface at ``batch``, where the fastest run takes
        ``epochs``.
        """
        log_batch = np.log(np.asarray(batches, dtype=float))
        columns, rates, warmup = [], np.zeros(len(settings)), np.zeros(len(settings))
        for tuned in self._tuned:
            lowest, _ = _bounds(tuned)
            values = np.array([float(each.get(tuned.name, lowest)) for each in settings])
            if tuned.name == RATE:
                rates = np.log(values) - self._exponent * (log_batch - math.log(batch))
                rates = rates + self._by_momentum(settings)
                columns.append(rates / RATE_LENGTH)
            elif tuned.name == WARMUP:
                warmup = values / epochs
                columns.append(np.log(values + NO_WARMUP * epochs) / WARMUP_LENGTH)
            else:
                columns.append(_unit(tuned, values) / OTHER_LENGTH)
        return SettingPlaces(np.stack(columns, axis=1), rates, warmup, log_batch)

    def _by_momentum(self, settings: Sequence[Settings]) -> Array:
        """Return what a tuned momentum adds to the log rate: the size of an update scales with rate / (1 -
        momentum).
        """
        for tuned in self._tuned:
            if tuned.name == MOMENTUM:
                left = 1 - np.array([float(each[MOMENTUM]) for each in settings])
                middle = 1 - sum(_bounds(tuned)) / 2
                return np.asarray(np.log(middle / np.maximum(left, LEAST_LEFT)))
        return np.zeros(len(settings))

    # steps

    def _worthwhile(
        self,
        known: _Knowledge,
        seen: Sequence[SeenTraining],
        *,
        at_any_price: bool = False,
        lengths: Sequence[float] = LOOKS,
    ) -> SearchStep | None:
        """Return the run that lowers the epochs of the chosen settings most for its cost; None if no run is worth its
        cost.
        """
        rng = np.random.default_rng((self._seed, len(seen)))
        candidates = self._candidates(known, rng, CANDIDATES)
        tried = [each.seen.settings for each in known.here()]
        places, mean, _ = self._predicted(known, [*candidates, *tried])
        looks, own = places[: len(candidates)], mean[: len(candidates)]
        now, best = float(mean.min()), None
        for share in lengths if self._may_look(known) else LOOKS[-1:]:
            fall = expected_fall(
                mean, known.surface.after(places, looks, share, float(own_error(share)))
            )
            slower = np.exp(np.clip(own, -0.7, math.log(PATIENT) if share == 1 else 0.0))
            epochs = np.maximum((share * slower + STARTUP) * known.epochs, 2 * self._resolution)
            gain = fall / epochs
            at = int(np.argmax(gain))
            if best is None or gain[at] > best[0]:
                until = epochs[at]
                if share == 1:
                    until = self._patient(known, float(own[at] - now))
                kind = "to its end" if share == 1 else "a look"
                best = (
                    float(gain[at]),
                    SearchStep(
                        known.global_batch_size,
                        candidates[at],
                        float(min(until, self._most)),
                        f"{kind}: it is expected to lower the epochs with the chosen settings "
                        f"by {-math.expm1(-fall[at]):.1%}, "
                        f"for {min(epochs[at], self._most):.3g} epochs",
                        whole=share == 1,
                    ),
                )
        assert best is not None, "there are lengths"
        arrived = any(each.seen.state == "reached" for each in known.here())
        worth = best[0] * known.epochs * self._worth
        return best[1] if worth >= 1 or not arrived or at_any_price else None

    def _may_look(self, known: _Knowledge) -> bool:
        """Return whether the budget of short looks has not been spent yet."""
        here = [each.seen for each in known.here() if each.seen.state not in UNTOLD]
        whole = [each.epochs[-1] for each in here if self._went_whole(known, each)]
        if len(here) - len(whole) < LEAST_LOOKS:
            return True
        spent = math.fsum(each.epochs[-1] for each in here if len(each.epochs))
        return spent < (ROOM + MORE * len(whole)) * known.epochs + math.fsum(whole)

    def _went_whole(self, known: _Knowledge, seen: SeenTraining) -> bool:
        """Return whether a training run was trained to its end, or for at least as long as the fastest run needs."""
        return seen.state in ("reached", "censored") or (
            seen.state == "paused" and seen.epochs[-1] >= self._needed(known)
        )

    def _needed(self, known: _Knowledge) -> float:
        """Return the epochs that the fastest run needs. While no run has reached the target, they are uncertain and are
        bounded from below.
        """
        if any(each.seen.state == "reached" for each in known.here()):
            return known.epochs
        return max(known.epochs, UNKNOWN * self._most)

    def _stood(self, known: _Knowledge, settings: Settings) -> bool:
        """Return whether a training run with similar settings has reached its end or is running, or whether several
        have failed.
        """
        alike = [each.seen for each in known.here() if _alike(each.seen.settings, settings)]
        return sum(each.state == "failed" for each in alike) >= FAILURES or any(
            each.state == "running" or self._went_whole(known, each) for each in alike
        )

    def _confirm(self, known: _Knowledge, seen: Sequence[SeenTraining]) -> SearchStep | None:
        """Train the recommended settings to the end, until enough training runs have reached the target with them."""
        arrived = [each.seen for each in known.here() if each.seen.state in ("reached", "running")]
        enough = len(arrived) >= CONFIRMED and self._stood(known, self._best(known))
        if enough or len(arrived) >= 2 * CONFIRMED:
            return None
        if any(each.state == "running" for each in seen):
            return None
        if not self._stood(known, self._best(known)):
            return self._whole(known, "the most promising settings, to the end")
        return self._worthwhile(known, seen, at_any_price=True, lengths=LOOKS[-1:])

    def _whole(self, known: _Knowledge, reason: str) -> SearchStep:
        return SearchStep(
            known.global_batch_size, self._best(known), self._patient(known), reason, whole=True
        )

    def _patient(self, known: _Knowledge, slower: float = 0.0) -> float:
        """Return the limit in epochs of a full training run; ``slower`` is its expected log epochs above the lowest."""
        epochs = PATIENT * known.epochs * math.exp(max(slower, 0.0))
        if not any(each.seen.state == "reached" for each in known.here()):
            epochs = max(epochs, UNKNOWN * self._most)
        return float(min(epochs, self._most))

    def _best(self, known: _Knowledge, risk: float = 0.0) -> dict[str, float]:
        """Return the settings with the fewest epochs according to the surface.

        If settings other than rate and warmup are tuned, trained settings are kept until untrained ones are better by a
        fraction of their error.
        """
        stood = [
            self._moved(each.seen, known)
            for each in known.told
            if each.seen.state != "failed"
            and (each.log_epochs < LOST / 2 or each.seen.state == "reached")
        ]
        rng = np.random.default_rng(self._seed)
        candidates = [*stood, *self._candidates(known, rng, CHOICES)]
        places, mean, covariance = self._predicted(known, candidates)
        mean = mean + risk * known.surface.lost(places)
        best = int(np.argmin(mean[: len(stood)])) if stood else 0
        if not stood or mean[best] > LOST / 2:
            return candidates[int(np.argmin(mean))]
        variance = np.diag(covariance)
        apart = np.sqrt(np.maximum(variance + variance[best] - 2 * covariance[:, best], 0.0))
        return candidates[int(np.argmin(mean + self._careful * apart))]

    def _moved(self, seen: SeenTraining, known: _Knowledge) -> dict[str, float]:
        """Return the settings of a training run, scaled to the batch size of ``known``."""
        found = {}
        for tuned in self._tuned:
            value = float(seen.settings[tuned.name])
            if tuned.name == RATE:
                value *= (known.global_batch_size / seen.global_batch_size) ** self._exponent
            found[tuned.name] = float(np.clip(value, *_bounds(tuned)))
        return found

    def _predicted(
        self, known: _Knowledge, settings: Sequence[Settings]
    ) -> tuple[SettingPlaces, Array, Array]:
        batch = known.global_batch_size
        places = self._places(settings, [batch] * len(settings), batch, known.epochs)
        return places, *known.surface.log_epochs(places)

    def _candidates(
        self, known: _Knowledge, rng: np.random.Generator, count: int
    ) -> list[dict[str, float]]:
        lowest, highest = self._rates(known)
        found = []
        for _ in range(count):
            settings = {}
            for tuned in self._tuned:
                low, high = _bounds(tuned)
                if tuned.name == RATE:
                    narrowed = replace(
                        tuned, low=min(max(low, lowest), high), high=max(min(high, highest), low)
                    )
                    value = _place(narrowed, float(rng.random()))
                else:
                    value = _place(tuned, float(rng.random()))
                if tuned.name == WARMUP:
                    value = known.epochs * math.exp(rng.uniform(*np.log(WARMUPS)))
                settings[tuned.name] = float(np.clip(value, low, high))
            found.append(settings)
        lost = [each.seen.settings for each in known.here() if each.log_epochs >= LOST]
        kept = [each for each in found if not any(_bolder(each, other) for other in lost)]
        return kept or found

    def _rates(self, known: _Knowledge) -> tuple[float, float]:
        """Return the range of rates to search: a step beyond the rates tried so far, but no lower than any rate that
        was too slow. Any rate will do if the rate is not tuned.
        """
        if all(each.name != RATE for each in self._tuned):
            return 0.0, math.inf
        here = [
            each
            for each in known.here() or known.told
            if each.seen.settings.get(RATE) and each.seen.state != "failed"
        ]
        if not here:
            return 0.0, math.inf
        rates = [self._moved(each.seen, known)[RATE] for each in here]
        quick = [rate for each, rate in zip(here, rates, strict=True) if each.log_epochs < QUICK]
        slow = [
            rate
            for each, rate in zip(here, rates, strict=True)
            if each.log_epochs > TOO_SLOW
            and each.seen.state != "diverged"
            and quick
            and rate < min(quick)
        ]
        return max(min(rates) / STRIDE, max(slow, default=0.0)), max(rates) * STRIDE


def _shows(seen: SeenTraining) -> bool:
    """Return whether a training run has been evaluated, with finite metrics only."""
    return len(seen.metric) > 0 and bool(np.isfinite(np.asarray(seen.metric, dtype=float)).all())


def _below_lost(seen: Sequence[SeenTraining], rate: ScaledSetting) -> float:
    """Return half the position of the lowest diverged rate in its range; 1, the upper end, if no training
    run diverged.
    """
    lost = [float(each.settings[RATE]) for each in seen if each.state == "diverged"]
    lowest = float(_unit(rate, np.array(lost)).min()) if lost else 1.0
    return lowest / 2 if lost and lowest > LOWEST else 1.0


def _ramp(seen: SeenTraining) -> float:
    """Return the share of its full learning rate that a training run has reached in a linear warmup."""
    warmup = float(seen.settings.get(WARMUP, 0.0))
    trained = seen.epochs[-1] if len(seen.epochs) else math.inf
    return max(min(trained / warmup, 1.0), LEAST_RAMP) if warmup > 0 else 1.0


def _bolder(one: Settings, other: Settings) -> bool:
    """Return whether the rate of ``one`` is at least as high and its warmup at most as long as the other's. If the
    ``other`` settings diverge, so do these.
    """
    if one.get(RATE) is None or other.get(RATE) is None:
        return False
    return bool(one[RATE] >= other[RATE] and one.get(WARMUP, 0.0) <= other.get(WARMUP, 0.0))


def _alike(one: Settings, other: Settings) -> bool:
    rates = one.get(RATE), other.get(RATE)
    return None in rates or abs(math.log(rates[0] / rates[1])) < ALIKE  # type: ignore[operator]


def _unit(tuned: ScaledSetting, values: Array) -> Array:
    low, high = _bounds(tuned)
    if tuned.scale == "log":
        return np.asarray(np.log(values / low) / math.log(high / low))
    return np.asarray((values - low) / (high - low))


def _place(tuned: ScaledSetting, unit: float) -> float:
    low, high = _bounds(tuned)
    if tuned.scale == "log":
        return float(np.clip(low * (high / low) ** unit, low, high))
    return low + unit * (high - low)


def _bounds(tuned: ScaledSetting) -> tuple[float, float]:
    low, high = tuned.low, tuned.high
    assert low is not None and high is not None, "a searched setting has bounds"
    return low, high
