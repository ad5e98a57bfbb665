"""Chooses the next trial: rung, settings and limit of epochs with the most expected gain per sample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hpo.extrapolation.evidence.evidence import Evidence, Observation, ScaledSetting
from hpo.extrapolation.inference.posterior import Posterior, fit, thinned
from hpo.tuning.acquisition import gain, prediction

Array: TypeAlias = NDArray[np.float64]
Settings: TypeAlias = Mapping[str, Any]

PARTICLES = 256  # of the posterior, on which outcomes are simulated
GUESSED, SPREAD = (
    20,
    12,
)  # candidates of a rung: near what particles hold best there, and anywhere in the domains
WIDEN = 0.35  # how far the former lie about it, in e-folds or in shares of a range
LIMITS = (1.5, 3.0)  # times the epochs of the best settings, after which a trial is stopped
STARTUP = 0.2  # what starting a trial costs, times the epochs of the best settings
ENOUGH_TRIALS, ENOUGH_REACHED = 3, 1
REFIT_SHARE = 0.12  # the posterior is fitted again when the evidence has grown by this
FEWEST_EFFECTIVE = 0.3  # or when so few of its particles are left, by their weights


@dataclass(frozen=True)
class NextTrial:
    """The next trial: train ``settings`` (the tuned ones) at ``global_batch_size``, no longer than ``limit_epochs``.

    ``gain`` is the expected fall of the uncertainty per epoch, ``uncertainty`` what it is now: the expected share of
    epochs lost at the full-scale batch.
    """

    global_batch_size: int
    settings: dict[str, float]
    limit_epochs: float
    gain: float
    uncertainty: float


class Acquisition:
    """Learns from trials and chooses the next; the same trials in the same order give the same choices.

    ``rungs`` are the batch sizes that may be trained at, ``target`` the one that the settings are for, ``resolution``
    the epochs between evaluations, ``samples_per_epoch`` None where that is not known yet.
    """

    def __init__(
        self,
        rungs: Sequence[int],
        target: int,
        tuned: Sequence[ScaledSetting],
        *,
        resolution: float,
        seed: int = 0,
        samples_per_epoch: float | None = None,
    ) -> None:
        self._rungs, self._target, self._tuned = tuple(rungs), target, tuple(tuned)
        self.samples_per_epoch = samples_per_epoch
        self._resolution, self._seed = resolution, seed
        self._observations: list[Observation] = []
        self._posterior: Posterior | None = None
        self._weights: Array = np.ones(0)
        self._told = 0
        self._at_checkpoint: tuple[int, Posterior] | None = None

    @property
    def observations(self) -> list[Observation]:
        """All trials told so far."""
        return self._observations

    @property
    def ready(self) -> bool:
        """Whether there is enough evidence to choose by."""
        reached = sum(item.state == "reached" for item in self._observations)
        return len(self._observations) >= ENOUGH_TRIALS and reached >= ENOUGH_REACHED

    def tell(self, observation: Observation) -> None:
        """Learn from a trial that has ended."""
        self._observations.append(observation)

    def choose(
        self, others: Settings | None = None, running: Sequence[tuple[int, Settings]] = ()
    ) -> NextTrial:
        """The next trial; ``others`` are the settings that are not chosen here, ``running`` the trials in flight.

        Trials in flight count as told, with an average outcome, so that trials chosen together differ.
        """
        others = others or {}
        rng = np.random.default_rng((self._seed, len(self._observations), len(running)))
        posterior, weights = self.belief()
        regret = self._regret(posterior, others)
        for batch, settings in running:
            weights = self._after(posterior, weights, batch, settings, rng)
        now, best = float(gain.uncertainty(weights, regret)), None
        for batch in self._rungs:
            candidates = self._candidates(posterior, weights, batch, rng)
            trials = prediction.predict(
                posterior, batch, [{**others, **each} for each in candidates]
            )
            usual = float(np.exp(weights @ prediction.log_best_epochs(posterior, batch)))
            for limit in (factor * usual for factor in LIMITS):
                outcomes = np.random.default_rng((self._seed, len(self._observations)))
                after = gain.expected_uncertainty(trials, weights, regret, np.log(limit), outcomes)
                epochs = (
                    gain.expected_epochs(trials, weights, np.log(limit), self._resolution)
                    + STARTUP * usual
                )
                rate = (now - after) / epochs
                at = int(np.argmax(rate))
                if best is None or rate[at] > best.gain:
                    best = NextTrial(batch, candidates[at], limit, float(rate[at]), now)
        assert best is not None
        return best

    def limit_epochs(self, global_batch_size: int) -> float | None:
        """Epochs after which a trial at this batch tells little more; None without evidence."""
        reached = [item for item in self._observations if item.state == "reached"]
        if self.ready:
            posterior, weights = self.belief()
            known = prediction.log_best_epochs(posterior, global_batch_size)
            return LIMITS[-1] * float(np.exp(weights @ known))
        return LIMITS[-1] * min(item.epochs for item in reached) if reached else None

    def belief(self) -> tuple[Posterior, Array]:
        """A fit to the trials up to the last checkpoint, and the weights of its particles by those since: (particles,).

        Where too few particles carry the weight it is fitted to all of them. A function of the trials alone, so that a
        resumed search goes on as it would have.
        """
        told = len(self._observations)
        if self._posterior is not None and told == self._told:
            return self._posterior, self._weights
        checkpoint = _checkpoint(told)
        if self._at_checkpoint is None or self._at_checkpoint[0] != checkpoint:
            self._at_checkpoint = checkpoint, self._fit(checkpoint)
        posterior = self._at_checkpoint[1]
        weights = self._reweighted(posterior, self._observations[checkpoint:])
        if 1 / float(weights @ weights) < FEWEST_EFFECTIVE * len(weights):
            posterior = self._fit(told)
            weights = self._reweighted(posterior, [])
        self._posterior, self._weights, self._told = posterior, weights, told
        return posterior, weights

    def _fit(self, count: int) -> Posterior:
        evidence = Evidence(
            observations=tuple(self._observations[:count]),
            tuned=self._tuned,
            samples_per_epoch=self.samples_per_epoch,
        )
        return thinned(fit(evidence, rng=np.random.default_rng(self._seed)), PARTICLES)

    @staticmethod
    def _reweighted(posterior: Posterior, observations: Sequence[Observation]) -> Array:
        total = np.zeros(len(posterior.residuals))
        for observation in observations:
            total += prediction.log_likelihood(posterior, observation)
        weights = np.exp(total - total.max())
        return np.asarray(weights / weights.sum())

    def _regret(self, posterior: Posterior, others: Settings) -> Array:
        choices = [{**others, **each} for each in prediction.best_settings(posterior, self._target)]
        return gain.pairwise_regret(
            prediction.lost(posterior, self._target, choices),
            prediction.log_best_epochs(posterior, self._target),
        )

    def _after(
        self,
        posterior: Posterior,
        weights: Array,
        batch: int,
        settings: Settings,
        rng: np.random.Generator,
    ) -> Array:
        """Weights after a trial in flight, for one simulated outcome of it."""
        trial = prediction.predict(posterior, batch, [settings])
        limit = float(weights @ prediction.log_best_epochs(posterior, batch)) + float(
            np.log(LIMITS[-1])
        )
        return np.asarray(gain.simulate(trial, weights, limit, rng)[0, rng.integers(gain.OUTCOMES)])

    def _candidates(
        self, posterior: Posterior, weights: Array, batch: int, rng: np.random.Generator
    ) -> list[dict[str, float]]:
        held_best = prediction.best_settings(posterior, batch)
        taken = rng.choice(len(held_best), GUESSED, p=weights)
        found = [
            {
                setting.name: self._moved(setting, held_best[index].get(setting.name), rng)
                for setting in self._tuned
            }
            for index in taken
        ]
        return found + [
            {setting.name: _place(setting, float(rng.random())) for setting in self._tuned}
            for _ in range(SPREAD)
        ]

    def _moved(
        self, setting: ScaledSetting, value: float | None, rng: np.random.Generator
    ) -> float:
        low, high = _bounds(setting)
        if value is None:
            return _place(setting, float(rng.random()))
        away = WIDEN * float(rng.standard_normal())
        moved = (
            value * float(np.exp(away))
            if setting.scale == "log"
            else value + 0.3 * away * (high - low)
        )
        return float(np.clip(moved, low, high))


def _checkpoint(told: int) -> int:
    """The last number of trials, of those at which the posterior is fitted anew, up to ``told``."""
    checkpoint = following = ENOUGH_TRIALS
    while following <= told:
        checkpoint, following = following, following + max(1, int(REFIT_SHARE * following))
    return checkpoint


def _bounds(setting: ScaledSetting) -> tuple[float, float]:
    low, high = setting.low, setting.high
    assert low is not None and high is not None, "a searched setting has bounds"
    return low, high


def _place(setting: ScaledSetting, unit: float) -> float:
    low, high = _bounds(setting)
    if setting.scale == "log":
        return float(np.clip(low * (high / low) ** unit, low, high))
    return low + unit * (high - low)
