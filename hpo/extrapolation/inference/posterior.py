"""Fits the joint model: particles of every unknown, and their predictions for other batch sizes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from hpo.errors import EvidenceError
from hpo.extrapolation.evidence.evidence import Evidence
from hpo.extrapolation.inference.model import PosteriorModel, make_posterior_models
from hpo.extrapolation.inference.residual import residual_correlation, residual_cross_correlation
from hpo.extrapolation.inference.sampler import ParticleSample, sample_by_tempering
from hpo.extrapolation.inference.trials import least_scatter
from hpo.extrapolation.laws.priors import LawPriors
from hpo.extrapolation.laws.setting_laws import SettingLaw
from hpo.extrapolation.laws.warmup_law import WARMUP

Array: TypeAlias = NDArray[np.float64]

MOST_PARTICLES = 4000
WORK = 160_000  # particles times trials and rows: the most that one step of the sampler may cost,
ENOUGH_PARTICLES = 1250  # unless this leaves fewer particles than these,
MOST_WORK, LEAST_PARTICLES = 500_000, 300  # for which it may cost more
SAMPLING_ERROR = 0.5  # of a log marginal likelihood
TYPICAL_RUNS = 5  # runs over which the mean of a new configuration is taken


@dataclass(frozen=True)
class Posterior:
    """Equally weighted particles of the unknowns; ``note`` explains a fit that is wider than it should be.

    ``values`` holds each parameter by name, shape (particles,). ``residuals`` holds the residual of every configuration
    seen, in log epochs, shape (particles, configurations). ``residual_places`` (configurations, 1 + directions) holds
    the log batch size of each configuration, then how far its model size and training length are from the full scale.
    """

    evidence: Evidence
    model: PosteriorModel
    values: Mapping[str, Array]
    residual_places: Array
    residuals: Array
    note: str = ""

    @property
    def tuned(self) -> list[str]:
        """The settings that a forecast contains."""
        warmup = self.model.warmup
        return [law.name for law in self.model.laws] + (
            [WARMUP] if warmup is not None and warmup.tuned else []
        )

    def law(self, name: str) -> SettingLaw:
        """Return the law of one tuned setting; raise :class:`EvidenceError` if the evidence holds no value of it."""
        for law in self.model.laws:
            if law.name == name:
                return law
        known = ", ".join(self.tuned) or "none"
        raise EvidenceError(
            f"{name!r} was not tuned in this evidence; the tuned settings are: {known}"
        )

    def log_epochs(
        self, log_batch: float, runs: float = TYPICAL_RUNS, away: Array | None = None
    ) -> tuple[Array, Array]:
        """Return the mean and standard deviation of the log epochs of a new configuration, (particles,) each.

        They describe the mean of ``runs`` runs with the best settings; the residual is predicted from neighbouring
        rungs. With a fixed budget, the log shortfall takes the place of the log epochs. ``away`` (directions,) is how
        far model size and training length are from the full scale, by default 0.
        """
        places = self.residual_places
        place = np.zeros((1, places.shape[1]))
        place[0, 0] = log_batch
        if away is not None:
            place[0, 1:] = away
        mean = self.model.mean_at(self.values, place[:, 0], place[:, 1:])[:, 0]
        known = np.isclose(places, place).all(axis=1)
        if len(self.model.trials) and known.any():  # a batch that was run: same recipe
            return mean + self.residuals[:, known].mean(axis=1), np.sqrt(
                self._run_variance(runs) + np.zeros(len(mean))
            )
        near = residual_cross_correlation(places, place)[:, 0]
        weight = np.linalg.solve(residual_correlation(places), near)
        left = 1.0 - float(near @ weight)
        variance = left * np.exp(2 * self.values["log_recipe_scatter"]) + self._run_variance(runs)
        return mean + self.residuals @ weight, np.sqrt(variance)

    def log_needed(self, log_batch: float) -> Array:
        """Return the log epochs to target with the best settings, or the log epochs of a fixed budget: (particles,)."""
        level = self.log_epochs(log_batch)[0]
        budget = self.model.budget
        return level if budget is None else np.full(len(level), budget.log_epochs)

    def knows_cost(self, name: str) -> bool:
        """Return whether the evidence shows what suboptimal values cost: trials show it, tuned rows do not."""
        return not self.law(name).has_scatter(self.values)

    def _run_variance(self, runs: float) -> Array | float:
        if "log_trial_scatter" in self.values:
            return np.asarray(
                (
                    np.exp(2 * self.values["log_trial_scatter"])
                    + least_scatter(self.model.budget) ** 2
                )
                / runs
            )
        return self.model.rows.error_of_mean(runs) ** 2


def thin_posterior(posterior: Posterior, count: int) -> Posterior:
    """Return the posterior with ``count`` of its particles, evenly spaced."""
    total = len(posterior.residuals)
    if total <= count:
        return posterior
    taken = np.linspace(0, total - 1, count).astype(np.intp)
    return dataclasses.replace(
        posterior,
        values={name: value[taken] for name, value in posterior.values.items()},
        residuals=posterior.residuals[taken],
    )


def fit(
    evidence: Evidence, *, rng: np.random.Generator, priors: LawPriors | None = None
) -> Posterior:
    """Return the posterior of the joint model; deterministic given ``rng``.

    If several models are possible, the one with the largest marginal likelihood is used; one with more specific laws
    than the general model's must be better by more than the sampler's error. If the sampler does not reach the
    posterior, the particles remain wider than the posterior, and ``note`` says so. Raises :class:`EvidenceError` if
    nothing is known of the metric after a fixed budget.
    """
    asked = evidence.question
    reached = evidence.aggregates or any(each.state == "reached" for each in evidence.observations)
    if asked is not None and not reached:
        raise EvidenceError(
            f"at least one run must train to the end of the budget, but none of {len(evidence.observations)} did, so "
            f"nothing is known of {asked.target.metric}; train longer, or with lower learning rates"
        )
    models = make_posterior_models(evidence, priors or LawPriors())
    samples = [
        _sample(model, own) for model, own in zip(models, rng.spawn(len(models)), strict=True)
    ]
    # the first model is the general one; a sampler that stopped early yields no likelihood
    likelihood = [sample.log_evidence for sample in samples]
    likelihood[0] += SAMPLING_ERROR
    best = likelihood.index(max(likelihood))
    return _posterior(evidence, models[best], samples[best], rng)


def _sample(model: PosteriorModel, rng: np.random.Generator) -> ParticleSample:
    most = (
        MOST_PARTICLES if model.descent is None else MOST_PARTICLES // 2
    )  # with the law of descent, a particle takes twice the time
    work = len(model.trials) + len(model.rows.log_batch)
    least = np.clip(MOST_WORK / work, LEAST_PARTICLES, ENOUGH_PARTICLES)
    count = int(np.clip(WORK / work, least, most))
    return sample_by_tempering(model.log_likelihood, model.layout.dimension, count, rng)


def _posterior(
    evidence: Evidence, model: PosteriorModel, sample: ParticleSample, rng: np.random.Generator
) -> Posterior:
    values = dict(model.layout.values(sample.particles))
    for name, layout in model.apart.items():
        values |= layout.values(_sample_apart(model, name, len(sample.particles), rng))
    blocks, places = [], []
    if len(model.rows.log_batch):
        blocks.append(model.rows.draw_residuals(values, model.mean_of_rows(values), rng))
        places.append(model.rows.places)
    if len(model.trials):
        blocks.append(model.trials.residuals(values))
        places.append(model.trials.places)
    note = (
        ""
        if sample.temperature >= 1
        else (
            f"the sampler used only {sample.temperature:.0%} of the evidence, so the intervals "
            f"are wider"
        )
    )
    return Posterior(
        evidence, model, values, np.concatenate(places), np.concatenate(blocks, axis=1), note
    )


def _sample_apart(model: PosteriorModel, name: str, count: int, rng: np.random.Generator) -> Array:
    return sample_by_tempering(
        lambda particles: model.log_likelihood_apart(name, particles),
        model.apart[name].dimension,
        count,
        rng,
    ).particles
