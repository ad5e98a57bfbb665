"""What to train next: whatever tells most about the settings for full scale, for the samples that it costs.

A step trains settings at some batch, the full-scale one among them from the first step on, for some time. It is judged
by how much it is expected to lower the regret at full scale: the log factor on the epochs that is lost because the best
settings are not known. Particles of the laws' posterior say what may come of a step, and what would be used after it
(the knowledge gradient, Frazier, Powell and Dayanik 2008, over its cost). Where the best step is worth less than it
costs, or as much has gone to short looks as is allowed, the search trains what it recommends at full scale itself to
its end; it ends when two such trainings agree.

The laws are only roughly right at one batch, so that the best rate of every batch may lie off them; and a training that
was stopped says by its curve when it would have reached the target (:mod:`hpo.tuning.acquisition.foretelling`), so that
short trainings tell as much about rates as long ones, nearly.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hpo.extrapolation.evidence.evidence import Evidence, Observation, ScaledSetting
from hpo.extrapolation.inference.posterior import Posterior, fit, taken
from hpo.extrapolation.laws.priors import Priors
from hpo.extrapolation.laws.setting_laws import RATE
from hpo.extrapolation.laws.warmup_law import WARMUP
from hpo.extrapolation.raced import after_race, went_whole
from hpo.extrapolation.recommend import Choices, price, recommend
from hpo.tuning.acquisition import gain, prediction
from hpo.tuning.acquisition.foretelling import ReferenceCurve, foretell

Array: TypeAlias = NDArray[np.float64]
Settings: TypeAlias = Mapping[str, Any]

# particles of a fit; of those the ones that steps are judged by, and those whose best settings may be used
FITTED, PARTICLES, CHOICES = 1000, 192, 64
RATE_SCATTER = 0.3  # how far the best rate of a batch lies off its law, in its logarithm
NEAR, SPREAD, WIDEN = 24, 8, 0.3  # candidates about what particles hold best, and anywhere
# a step ends after such a share of the epochs of the best settings at its batch
LENGTHS = (0.3, 0.6, 1.3)
STARTUP = 0.02  # what starting a training costs, in the same unit
# trainings at full scale that the settings are for: a step is worth its cost where it takes so much off all
WORTH = 20.0
BEGUN = 2  # trainings that stand before the laws are asked
LEAST_LOOKS = 6  # before anything is trained to its end
FIRST = 1 / 24  # of the longest training: how long these are trained at least
SHORT = 0.05  # of the longest warmup: what the first ones have
# where nothing has reached the target: the best training is taken to need so many times its epochs
AHEAD = 2.5
LOOKED_AT = 3  # so many of the largest batches: there looks tell most of full scale
# what may be spent on looks before what is recommended is trained to its end, and after every such training, as
# shares of one; and how many looks each makes room for
LOOKS, MORE, MORE_LOOKS = 0.75, 0.5, 4
# trainings there that reached the target: with what is recommended, and in all
CONFIRMED, MOST_CONFIRMED = 2, 4
ALIKE = 0.35  # rates apart by less, in their logarithm, confirm each other
# who has not arrived by such a share of what it may train is no short look; a rate so near to its own is lowered
TRIED, TOO_NEAR, LOWER = 1 / 8, 0.8, 0.5
STILL = 0.05  # it is stuck where its second half adds no more than that of all that it has gained
PATIENT = 2.0  # a confirming training has so many times the epochs that it is expected to need
# where nothing has reached the target, so much of what it may train
UNKNOWN = 0.5


@dataclass(frozen=True)
class Seen:
    """One training so far: ``epochs`` and ``metric`` of its evaluations.

    ``state`` is "reached" (after ``epochs_to_target``), "diverged", "censored" by what it may train at most, "paused"
    (or stopped), or "running".
    """

    number: int
    global_batch_size: int
    settings: Settings
    seed: int
    epochs: Sequence[float]
    metric: Sequence[float]
    state: str
    epochs_to_target: float | None = None


@dataclass(frozen=True)
class SearchStep:
    """Train these settings at this batch until so many epochs; ``reason`` says why in one line."""

    global_batch_size: int
    settings: dict[str, float]
    until_epochs: float
    reason: str


class Search:
    """One study's search; every answer follows from the trainings alone.

    ``rungs`` are the batch sizes that may be trained at, ``target`` the one that the settings are for, among them or
    not. ``tuned`` are the settings that are searched, each between its bounds, ``fixed`` the others.
    ``resolution`` are the epochs between evaluations, ``most_epochs`` what one training may take.
    """

    def __init__(
        self,
        rungs: Sequence[int],
        target: int,
        tuned: Sequence[ScaledSetting],
        *,
        most_epochs: float,
        resolution: float,
        fixed: Settings | None = None,
        samples_per_epoch: float | None = None,
        higher_is_better: bool = True,
        seed: int = 0,
        worth: float = WORTH,
    ) -> None:
        self._rungs, self._target, self._tuned = tuple(sorted(set(rungs))), target, tuple(tuned)
        below = [batch for batch in self._rungs if batch < target]
        self._first_batch = (below or self._rungs)[-1]
        self._most, self._resolution = most_epochs, resolution
        self._fixed, self.samples_per_epoch = dict(fixed or {}), samples_per_epoch
        self._sign = 1.0 if higher_is_better else -1.0
        self._seed, self._worth = seed, worth
        self._fitted: tuple[str, Posterior] | None = None

    def next(self, seen: Sequence[Seen], others: Settings | None = None) -> SearchStep | None:
        """The step that is worth most for its cost, with ``others`` as the settings that are not searched here.

        None where nothing is worth its cost, or where that depends on trainings that run.
        """
        ended, running = _apart(seen)
        fixed = {**self._fixed, **(others or {})}
        if not self._ready(ended):
            return self._begin(len(seen))
        step = None
        if len(seen) < LEAST_LOOKS or self._may_look(ended, len(seen)):
            step = self._best_step(ended, running, fixed)
        return step or self._confirm(ended, running, fixed)

    def _may_look(self, ended: Sequence[Seen], begun: int) -> bool:
        """Whether another short look is allowed, by their samples and their number.

        Every training of what is recommended that has arrived at the largest batch makes room for more.
        """
        arrived = [
            each.epochs_to_target
            for each in ended
            if each.global_batch_size == self._rungs[-1] and each.epochs_to_target
        ]
        spent = math.fsum(each.epochs[-1] for each in ended if len(each.epochs))
        room = LOOKS * _usual(self.posterior(ended), self._rungs[-1])
        return spent < room + (1 + MORE) * math.fsum(arrived) and begun < LEAST_LOOKS + (
            1 + MORE_LOOKS
        ) * len(arrived)

    def recommendation(self, seen: Sequence[Seen]) -> dict[str, float]:
        """The settings to use at full scale, by what is known now."""
        ended, _ = _apart(seen)
        if not self._ready(ended):
            return {setting.name: _place(setting, 0.4) for setting in self._tuned}
        posterior = self.posterior(ended)
        choices = recommend(posterior, math.log(self._target))
        whole = self._whole(ended)
        if whole:
            choices, _ = after_race(posterior, choices, self._target, whole)
        return self._values(choices)

    def _values(self, choices: Choices) -> dict[str, float]:
        return {
            setting.name: float(np.clip(choices[setting.name].interval.median, *_bounds(setting)))
            for setting in self._tuned
            if setting.name in choices
        }

    def _whole(self, ended: Sequence[Seen]) -> list[Observation]:
        """The trainings at full scale that went as far as the quickest, or to their end."""
        there = [each for each in ended if each.global_batch_size == self._target]
        if not any(each.epochs_to_target for each in there):
            return []
        return went_whole(
            [dataclasses.replace(each, foretold=None) for each in self._observations(there)]
        )

    def limit_epochs(self, seen: Sequence[Seen], global_batch_size: int) -> float:
        """Epochs after which a training at a batch has told what it can."""
        ended, _ = _apart(seen)
        if not self._ready(ended):
            return self._most
        known = prediction.log_best_epochs(self.posterior(ended), global_batch_size)
        return min(PATIENT * float(np.exp(np.median(known))), self._most)

    def posterior(self, ended: Sequence[Seen]) -> Posterior:
        """The laws fitted to the trainings that have ended."""
        observations = tuple(self._observations(ended))
        key = repr(observations)
        if self._fitted is None or self._fitted[0] != key:
            evidence = Evidence(
                observations=observations,
                tuned=self._tuned,
                samples_per_epoch=self.samples_per_epoch,
            )
            found = fit(
                evidence,
                rng=np.random.default_rng(self._seed),
                priors=Priors(rate_scatter=RATE_SCATTER, by_bounds=True),
                most_particles=FITTED,
            )
            self._fitted = key, found
        return self._fitted[1]

    def _observations(self, ended: Sequence[Seen]) -> Iterable[Observation]:
        references = self._references(ended)
        relative = not any(each.epochs_to_target for each in ended)
        for each in ended:
            if each.state != "diverged" and not (each.epochs or each.epochs_to_target):
                continue
            trained = each.epochs_to_target or (each.epochs[-1] if each.epochs else 0.0)
            foretold = None
            if each.state in ("paused", "censored"):
                foretold = foretell(each.epochs, self._scores(each), references, relative=relative)
            yield Observation(
                each.global_batch_size,
                "pruned" if each.state == "paused" else each.state,
                trained,
                {**self._fixed, **each.settings},
                each.seed,
                min(self._resolution, trained),
                foretold=foretold,
            )

    def _references(self, ended: Sequence[Seen]) -> list[ReferenceCurve]:
        """Those that reached the target; before any has, the best one, as if it were to at some later time.

        How far it has gone is then anybody's guess; but all are measured by the same one, which tells settings apart.
        """
        standing = [each for each in ended if each.state != "diverged" and len(each.metric)]
        reached = [
            ReferenceCurve(each.epochs, self._scores(each), each.epochs_to_target)
            for each in standing
            if each.epochs_to_target
        ]
        if reached or not standing:
            return reached
        best = max(standing, key=lambda each: max(self._scores(each)))
        return [ReferenceCurve(best.epochs, self._scores(best), AHEAD * best.epochs[-1])]

    def _scores(self, each: Seen) -> list[float]:
        return [self._sign * value for value in each.metric]

    def _ready(self, ended: Sequence[Seen]) -> bool:
        """Whether there is enough to ask the laws."""
        standing = sum(each.state != "diverged" and len(each.metric) > 0 for each in ended)
        return standing >= BEGUN or any(each.state == "reached" for each in ended)

    def _begin(self, begun: int) -> SearchStep:
        from hpo.tuning.sampler import halton

        places = halton(begun + 1, len(self._tuned))[-1]
        settings = {
            setting.name: _place(setting, SHORT if setting.name == WARMUP else unit)
            for setting, unit in zip(self._tuned, places, strict=True)
        }
        until = min(max(2 * self._resolution, FIRST * self._most), self._most)
        return SearchStep(
            self._first_batch, settings, until, "to begin with, spread over the bounds"
        )

    def _best_step(
        self, ended: Sequence[Seen], running: Sequence[Seen], fixed: Settings
    ) -> SearchStep | None:
        rng = np.random.default_rng((self._seed, len(ended), len(running)))
        full = self.posterior(ended)
        order = rng.permutation(len(full.residuals))
        posterior = taken(full, order[:PARTICLES])
        regret = self._regret(posterior, taken(full, order[PARTICLES : PARTICLES + CHOICES]), fixed)
        weights = np.full(len(regret), 1 / len(regret))
        for each in running:
            weights = self._after(posterior, weights, each, fixed, rng)
        now = float(gain.regret_left(weights, regret))
        at_target = _usual(posterior, self._target)
        few = len(ended) + len(running) < LEAST_LOOKS
        best: tuple[float, SearchStep] | None = None
        for batch in self._rungs[-LOOKED_AT:]:
            usual = _usual(posterior, batch)
            candidates = self._candidates(posterior, batch, rng)
            trials = prediction.predict(
                posterior, batch, [{**fixed, **each} for each in candidates]
            )
            for length in LENGTHS:
                shortest = FIRST * self._most if few else 2 * self._resolution
                limit = min(max(length * usual, shortest), self._most)
                after = gain.expected_regret(
                    trials, weights, regret, math.log(limit), np.random.default_rng(self._seed)
                )
                epochs = STARTUP * usual + gain.expected_epochs(
                    trials, weights, math.log(limit), self._resolution
                )
                rate = (now - after) / epochs
                at = int(np.argmax(rate))
                if best is None or rate[at] > best[0]:
                    reason = (
                        f"at {batch}: the regret left at {self._target} is expected to fall from {now:.3f} to "
                        f"{after[at]:.3f}, for {epochs[at]:.3g} epochs"
                    )
                    best = float(rate[at]), SearchStep(batch, candidates[at], limit, reason)
        assert best is not None, "a search has rungs"
        return best[1] if few or best[0] * at_target * self._worth >= 1 else None

    def _confirm(
        self, ended: Sequence[Seen], running: Sequence[Seen], fixed: Settings
    ) -> SearchStep | None:
        """What is recommended, at the largest batch that may be trained, until that has been seen to arrive."""
        posterior, batch = self.posterior(ended), self._rungs[-1]
        settings = self._values(recommend(posterior, math.log(batch)))
        arrived = [
            each
            for each in (*ended, *running)
            if each.global_batch_size == batch and each.state in ("reached", "running")
        ]
        settings = self._less_bold(ended, batch, settings)
        alike = [each for each in arrived if _alike(each.settings, settings)]
        if len(alike) >= CONFIRMED or len(arrived) >= MOST_CONFIRMED:
            return None
        expected = prediction.predict(posterior, batch, [{**fixed, **settings}]).log_epochs
        known = any(each.epochs_to_target for each in ended)
        patient = PATIENT * float(np.exp(np.median(expected)))
        if not known:  # those that were given up were so too early
            longest = max((each.epochs[-1] for each in ended if len(each.epochs)), default=0.0)
            patient = max(UNKNOWN * self._most, PATIENT * longest)
        return SearchStep(
            batch,
            settings,
            min(patient, self._most),
            f"what is recommended, at {batch} itself, to its end",
        )

    def _less_bold(
        self, ended: Sequence[Seen], batch: int, settings: dict[str, float]
    ) -> dict[str, float]:
        """The settings, unless a rate like theirs or a lower one was lost at a batch: it diverged, or got nowhere.

        Then the rate is halfway, in its logarithm, between the lowest that was lost and the highest below it that
        arrived. Where none has arrived, what has come further than the lost ones, in less time even, shows the way;
        else the rate is lower. One that was only slow counts for the laws alone: it says that the rate may be higher.
        """
        there = [e for e in ended if e.global_batch_size == batch and RATE in e.settings]
        lost = [each for each in there if self._lost(each)]
        if not lost or RATE not in settings:
            return settings
        lowest = min(float(each.settings[RATE]) for each in lost)
        arrived = [
            float(each.settings[RATE])
            for each in there
            if each.state == "reached" and each.settings[RATE] < lowest
        ]
        standing = [each for each in there if each not in lost and len(each.metric)]
        ahead = max(standing, key=self._best_score, default=None)
        if not arrived and ahead and self._best_score(ahead) > max(map(self._best_score, lost)):
            return {setting.name: float(ahead.settings[setting.name]) for setting in self._tuned}
        if settings[RATE] < TOO_NEAR * lowest:
            return settings
        rate = math.sqrt(lowest * max(arrived)) if arrived else LOWER * lowest
        bounds = next(_bounds(setting) for setting in self._tuned if setting.name == RATE)
        return {**settings, RATE: float(np.clip(rate, *bounds))}

    def _lost(self, each: Seen) -> bool:
        """Whether it diverged, or trained for long without adding much in its second half."""
        if each.state in ("diverged", "reached"):
            return each.state == "diverged"
        if each.epochs[-1] < TRIED * self._most or not len(each.metric):
            return False
        risen = np.maximum.accumulate(self._scores(each))
        first, half, last = float(risen[0]), float(risen[len(risen) // 2]), float(risen[-1])
        return last - half <= STILL * (last - first)

    def _best_score(self, each: Seen) -> float:
        return max(self._scores(each), default=-math.inf)

    def _after(
        self,
        posterior: Posterior,
        weights: Array,
        each: Seen,
        fixed: Settings,
        rng: np.random.Generator,
    ) -> Array:
        """Weights after a training that runs, for one simulated outcome of it: those that run together differ."""
        trial = prediction.predict(
            posterior, each.global_batch_size, [{**fixed, **_tuned_of(each.settings, self._tuned)}]
        )
        log_limit = math.log(LENGTHS[-1] * _usual(posterior, each.global_batch_size))
        outcomes = gain.simulate(trial, weights, log_limit, rng)[0]
        return np.asarray(outcomes[rng.integers(len(outcomes))])

    def _regret(self, posterior: Posterior, others: Posterior, fixed: Settings) -> Array:
        """The log factor lost where settings (columns) are used and a particle (rows) is the truth.

        The settings are those that ``others`` hold best: a particle that could choose its own would know too much.
        """

        def held_best(by: Posterior) -> list[dict[str, Any]]:
            return [
                {**fixed, **{setting.name: _clipped(setting, each) for setting in self._tuned}}
                for each in prediction.best_settings(by, self._target)
            ]

        loss = price(*prediction.miss(posterior, self._target, held_best(others)))
        own = np.diagonal(price(*prediction.miss(posterior, self._target, held_best(posterior))))
        return np.asarray(loss - np.minimum(own, loss.min(axis=1))[:, None])

    def _candidates(
        self, posterior: Posterior, batch: int, rng: np.random.Generator
    ) -> list[dict[str, float]]:
        few = taken(posterior, rng.choice(len(posterior.residuals), NEAR, replace=False))
        return [
            {
                setting.name: _moved(setting, held_best.get(setting.name), rng)
                for setting in self._tuned
            }
            for held_best in prediction.best_settings(few, batch)
        ] + [
            {setting.name: _place(setting, float(rng.random())) for setting in self._tuned}
            for _ in range(SPREAD)
        ]


def _apart(seen: Sequence[Seen]) -> tuple[list[Seen], list[Seen]]:
    """Trainings that have ended, and those that run."""
    return (
        [each for each in seen if each.state != "running"],
        [each for each in seen if each.state == "running"],
    )


def _usual(posterior: Posterior, batch: int) -> float:
    """Epochs of the best settings at a batch."""
    return float(np.exp(np.median(prediction.log_best_epochs(posterior, batch))))


def _tuned_of(settings: Settings, tuned: Sequence[ScaledSetting]) -> dict[str, Any]:
    return {setting.name: settings[setting.name] for setting in tuned if setting.name in settings}


def _alike(one: Settings, other: Settings) -> bool:
    rates = one.get(RATE), other.get(RATE)
    return None in rates or abs(math.log(rates[0] / rates[1])) < ALIKE  # type: ignore[operator]


def _moved(setting: ScaledSetting, value: float | None, rng: np.random.Generator) -> float:
    """About what a particle holds best."""
    if value is None:
        return _place(setting, float(rng.random()))
    low, high = _bounds(setting)
    away = WIDEN * float(rng.standard_normal())
    moved = value * math.exp(away) if value > 0 else value + 0.3 * away * (high - low)
    return float(np.clip(moved, low, high))


def _clipped(setting: ScaledSetting, settings: Settings) -> float | None:
    value = settings.get(setting.name)
    return None if value is None else float(np.clip(value, *_bounds(setting)))


def _place(setting: ScaledSetting, unit: float) -> float:
    low, high = _bounds(setting)
    if setting.scale == "log":
        return float(np.clip(low * (high / low) ** unit, low, high))
    return low + unit * (high - low)


def _bounds(setting: ScaledSetting) -> tuple[float, float]:
    low, high = setting.low, setting.high
    assert low is not None and high is not None, "a searched setting has bounds"
    return low, high
