"""How much training runs reveal about the full scale: the expected interval and regret after a number of runs.

The laws are linearized about a particle of the posterior. In whitened unknowns z, whose prior is normal with unit
variance, a run at rung r observes log need = J_r z + residual_r + scatter. So after n_r runs at each rung:

    precision = 1 + sum over r of n_r share J_r' J_r / R        variance of anything with gradient g = g precision^-1 g'

(Chaloner and Verdinelli 1995, Statistical Science 10, sections 2 and 4: the expected gain of a design in the linear
normal model, and its mean over a posterior where the model is not linear). The expected information never decreases
with more runs. J_r is averaged over settings on both sides of the rung's best, as a sampler tries them; R is the
variance of Student's t with the scatter of runs, from its Fisher information; ``share`` is the share of runs that are
trained to the end. The regret is the expected cost of suboptimal settings at full scale: half the curvature of that
cost times the variance.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from hpo.errors import EvidenceError
from hpo.extrapolation.inference.posterior import TYPICAL_RUNS, Posterior, thin_posterior
from hpo.extrapolation.inference.residual import residual_correlation
from hpo.extrapolation.inference.trials import (
    WITNESSES,
    expected_needs,
    least_scatter,
    trial_scale,
)
from hpo.extrapolation.laws.configurations import Configurations
from hpo.extrapolation.laws.rate_law import anchor_momentum
from hpo.extrapolation.laws.setting_laws import MOMENTUM, RATE

Array: TypeAlias = NDArray[np.float64]
Values: TypeAlias = Mapping[str, Array]

PARTICLES = 24  # number of particles about which the laws are linearized
STEP = 0.05  # step in a whitened unknown for the slopes
TRIED = (
    -0.7,
    0.0,
    0.7,
)  # offsets from the best at which a sampler tries a setting, in units of its coordinate
# variance over squared scale of Student's t with 3 degrees of freedom, from its Fisher information
STUDENT = 1.5
MOST_TIMES = 5.0  # factor by which the linearization may under- or overestimate the regret
MOST_REGRET = float(np.log(3.0))  # a run is given up at three times the epochs
OF_RUNGS = (
    "rungs",
    "seeds",
)  # unknowns of single rungs and seeds, handled separately from the laws


@dataclass(frozen=True)
class TrainingInformation:
    """What a run at each rung reveals about the full scale; arrays are (particles, rungs or unknowns, unknowns).

    ``prior`` is the precision before any run, ``told`` the precision that one run at each rung adds, and ``forecast``
    the slope of the log need at full scale. For each tuned setting, ``missed`` holds the slope of its best coordinate
    at full scale and the curvature of the cost of a deviation from it. ``run_variance`` is the variance of the mean of
    a few runs. ``regret_times`` is the ratio of the regret to the linearized regret.
    """

    prior: Array
    told: Array
    forecast: Array
    missed: Sequence[tuple[Array, Array]]
    run_variance: Array
    regret_times: float = 1.0

    def scaled(self, counts: Sequence[float], regret: float) -> TrainingInformation:
        """Return a copy scaled so that the regret after ``counts`` runs is ``regret``, as the posterior expects.

        A linearization about the best settings underestimates costs far from them.
        """
        linear = self.regret(counts)
        times = float(np.clip(regret / linear, 1 / MOST_TIMES, MOST_TIMES)) if linear > 0 else 1.0
        return dataclasses.replace(self, regret_times=times)

    def spread(self, counts: Sequence[float]) -> float:
        """Return the standard deviation of the log need at full scale after ``counts`` runs at the rungs."""
        variance = self._variance(self._covariance(counts), self.forecast) + self.run_variance
        return float(np.sqrt(variance.mean()))

    def regret(self, counts: Sequence[float]) -> float:
        """Return the expected log factor on the full-scale epochs of settings chosen after ``counts`` runs."""
        covariance, total = self._covariance(counts), np.zeros(len(self.prior))
        for slope, curvature in self.missed:
            total += 0.5 * curvature * self._variance(covariance, slope)
        return float(np.minimum(self.regret_times * total, MOST_REGRET).mean())

    def _covariance(self, counts: Sequence[float]) -> Array:
        many = np.asarray(counts, dtype=float)
        if many.shape != (self.told.shape[1],) or not (np.isfinite(many) & (many >= 0)).all():
            raise EvidenceError(
                f"counts must hold a number of runs, 0 or more, for each of {self.told.shape[1]} rungs, but got "
                f"{list(counts)}"
            )
        witnesses = many / (1 + many / WITNESSES)  # the laws are only roughly right
        return np.linalg.inv(self.prior + np.einsum("r,pruv->puv", witnesses, self.told))

    @staticmethod
    def _variance(covariance: Array, slope: Array) -> Array:
        return np.asarray(np.einsum("pu,puv,pv->p", slope, covariance, slope))


def training_information(
    posterior: Posterior,
    global_batch_size: float,
    rungs: Sequence[tuple[int, Mapping[str, float]]],
    share: float = 1.0,
) -> TrainingInformation:
    """Return what runs at ``rungs`` (batch size, sizes) reveal about ``global_batch_size`` at full scale.

    ``share`` (0 to 1) is the share of runs that are trained to the end. Raises :class:`EvidenceError` without trials.
    """
    if not len(posterior.model.trials):
        raise EvidenceError(
            "what more runs would gain is computed from single runs, but the evidence holds "
            "means over runs; give one row per run"
        )
    laws = _Linearised(
        thin_posterior(posterior, PARTICLES), float(np.log(global_batch_size)), rungs
    )
    return laws.information(share)


class _Linearised:
    """The laws, linearized about a few particles: values at a rung and at full scale, and their slopes."""

    def __init__(
        self,
        posterior: Posterior,
        log_batch: float,
        rungs: Sequence[tuple[int, Mapping[str, float]]],
    ) -> None:
        self._model, self._values = posterior.model, posterior.values
        self._laws = [law for law in self._model.laws if posterior.knows_cost(law.name)]
        self._full = np.array([log_batch])
        scales = self._model.scales
        self._rung_log_batch = np.log([float(batch) for batch, _ in rungs])
        self._away = scales.away([sizes for _, sizes in rungs])
        self._unknowns = [
            each for each in self._model.layout.parameters if each.name not in OF_RUNGS
        ]
        self._tries = self._tried()

    def information(self, share: float) -> TrainingInformation:
        places = np.column_stack([self._rung_log_batch, self._away])
        full = np.zeros((1, places.shape[1]))
        full[0, 0] = self._full[0]
        everywhere = np.unique(np.concatenate([places, full]), axis=0)
        of_rung, of_full = (_index(everywhere, each) for each in (places, full))
        slopes = self._slopes()
        particles, unknowns, total = len(slopes), slopes.shape[2], len(everywhere)
        own = unknowns + total

        def with_residual(slope: Array, place: int | None) -> Array:
            whole = np.zeros((particles, own))
            whole[:, :unknowns] = slope
            if place is not None:
                whole[:, unknowns + place] = 1.0
            return whole

        tries, rungs = len(TRIED), len(places)
        scale = STUDENT * self._scatter() ** 2  # (particles, tries x rungs)
        told = np.zeros((particles, rungs, own, own))
        for rung in range(rungs):
            for each in range(tries):
                column = each * rungs + rung
                slope = with_residual(slopes[:, column], int(of_rung[rung]))
                told[:, rung] += np.einsum(
                    "pu,pv,p->puv", slope, slope, share / tries / scale[:, column]
                )
        prior = np.zeros((particles, own, own))
        prior[:, :unknowns, :unknowns] = np.eye(unknowns)
        residual = np.exp(2 * self._values["log_recipe_scatter"])
        prior[:, unknowns:, unknowns:] = (
            np.linalg.inv(residual_correlation(everywhere)) / residual[:, None, None]
        )
        at = tries * rungs
        missed = [
            (with_residual(slopes[:, at + 1 + index], None), self._curvature(index))
            for index in range(len(self._laws))
        ]
        runs = (
            np.exp(2 * self._values["log_trial_scatter"]) + least_scatter(self._model.budget) ** 2
        ) / TYPICAL_RUNS
        return TrainingInformation(
            prior, told, with_residual(slopes[:, at], int(of_full[0])), missed, np.asarray(runs)
        )

    def _slopes(self) -> Array:
        """Return the slopes: (particles, tried places then full scale then best coordinates, unknowns)."""
        found = []
        for parameter in self._unknowns:
            for index in range(parameter.size):
                up, down = (self._shifted(parameter.name, index, sign) for sign in (1, -1))
                change = self._all(up) - self._all(down)
                found.append(change / (2 * STEP))
        return np.stack(found, axis=2)

    def _shifted(self, name: str, index: int, sign: int) -> Values:
        parameter = next(each for each in self._unknowns if each.name == name)
        value = self._values[name].copy()
        moved = sign * STEP * parameter.sd
        if parameter.size == 1:
            value = value + moved
        else:
            value[:, index] += moved
        return {**self._values, name: value}

    def _all(self, values: Values) -> Array:
        needs, _ = self._needs(values)
        bests = [law.best(values, self._full)[:, :1] for law in self._laws]
        return np.concatenate([needs, self._model.mean(values, self._full), *bests], axis=1)

    def _needs(self, values: Values) -> tuple[Array, Array]:
        """Return the log need at every tried place, and the part due to the settings: (particles, tries x rungs)."""
        model = self._model
        level = model.mean_at(values, self._rung_log_batch, self._away)[:, self._tries.at]
        cost = model.missed(values, self._tries)
        gain = model.gain(values, self._rung_log_batch, self._away)
        return expected_needs(values, level, cost, self._tries, model.warmup, model.budget, gain)

    def _scatter(self) -> Array:
        return trial_scale(self._values, self._needs(self._values)[1], self._model.budget)

    def _tried(self) -> Configurations:
        """Return settings around each rung's best settings, which are medians over particles."""
        model, values = self._model, self._values
        rungs = len(self._rung_log_batch)
        at = np.tile(np.arange(rungs, dtype=np.intp), len(TRIED))
        off = np.repeat(np.array(TRIED), rungs)
        seen_batch = model.scales.log_batch(values, self._rung_log_batch, self._away)
        coordinates = []
        momentum = np.full(len(at), anchor_momentum(model.laws))
        for law in model.laws:
            moved = model.scales.shift(values, law.name, self._away) if model.scales else 0.0
            best = np.median(law.best(values, seen_batch) + moved, axis=0)
            step = (1.0 if law.is_log else law.spread) if law.name == RATE else 0.0
            coordinates.append(best[at] + off * step)
            if law.name == MOMENTUM:
                momentum = law.value(best[at])
        warmups = (
            None
            if model.warmup is None
            else model.warmup.warmups(np.full(len(at), np.nan), self._rung_log_batch[at])
        )
        return Configurations(
            self._rung_log_batch, at, coordinates, momentum, warmups, model.scales, self._away
        )

    def _curvature(self, index: int) -> Array:
        """Return the second derivative of the cost of a setting at its best value at full scale: (particles,)."""
        law, step = self._laws[index], 0.5
        response = law.response(self._values, self._full)
        unit = response.unit
        ends = [response.cost(response.best + sign * step * unit)[:, 0] for sign in (-1.0, 1.0)]
        return np.asarray((ends[0] + ends[1]) / (step * unit) ** 2)


def _index(everywhere: Array, places: Array) -> NDArray[np.intp]:
    near = np.isclose(everywhere[None, :, :], places[:, None, :]).all(axis=2)
    return np.asarray(near.argmax(axis=1), dtype=np.intp)
