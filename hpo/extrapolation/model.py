"""The joint model: the prior, and the likelihood of trials and table rows over all unknowns at once.

log epochs = log E_min + log growth(B) + residual(configuration) + cost of the settings' misses + scatter. The
residual is a Gaussian process over log B: part of it is shared by neighbouring rungs, part is each
configuration's own, because recipes change from rung to rung. Rows of a table are tuned configurations:
they miss nothing, but their settings scatter around the best ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from hpo.extrapolation.evidence import Aggregate, Evidence, Observation
from hpo.extrapolation.laws import log_growth
from hpo.extrapolation.parameters import Layout, Parameter
from hpo.extrapolation.priors import Priors
from hpo.extrapolation.rate_law import RateLaw, make_laws
from hpo.extrapolation.rows import Rows, make_rows
from hpo.extrapolation.setting_laws import RATE, SettingLaw
from hpo.extrapolation.trials import Trials, make_trials

Array: TypeAlias = NDArray[np.float64]
Values: TypeAlias = Mapping[str, Array]

# the measured noise scale predicts the critical batch, and the batch where the best rate turns flat, to an order of
# magnitude (arXiv:1812.06162, section 4): on noisy quadratics it is 0.3 to 3.5 times the former
MEASURED_NOISE, MEASURED_NOISE_OF_RATE = 1.2, 1.5
TRIAL_SCATTER = (float(np.log(0.12)), 0.6)
FAR_MISS = (float(np.log(0.12)), 0.6)       # by what share of its cost the cost of a miss is itself wrong


@dataclass(frozen=True)
class Model:
    """Everything that the likelihood needs; :meth:`log_posterior` is what the sampler sees.

    ``apart`` holds the unknowns of settings of table rows that share none with the rest, one layout by setting:
    the joint density is the product, so they are sampled one by one.
    """

    layout: Layout
    apart: Mapping[str, Layout]
    laws: Sequence[SettingLaw]
    rows: Rows
    trials: Trials
    log_noise_scale: float | None

    def log_posterior(self, particles: Array) -> Array:
        """Log posterior density of whitened ``particles`` (count, dimension), up to a constant: (count,)."""
        values = self.layout.values(particles)
        total = -0.5 * (particles**2).sum(axis=1)
        if len(self.rows.log_batch):
            total += self.rows.log_likelihood(values, self.mean(values, self.rows.log_batch), self.laws)
        if len(self.trials):
            mean = self.mean(values, self.trials.rung_log_batch)
            total += self.trials.log_likelihood(values, mean, self.laws)
        if self.log_noise_scale is not None:
            total -= 0.5 * ((values["log_critical"] - self.log_noise_scale) / MEASURED_NOISE) ** 2
            for law in self.laws:
                if isinstance(law, RateLaw):
                    total -= 0.5 * ((law.log_noise(values) - self.log_noise_scale) / MEASURED_NOISE_OF_RATE) ** 2
        return np.asarray(total)

    def log_posterior_apart(self, name: str, particles: Array) -> Array:
        """The same for the unknowns of one setting that stands apart."""
        values = self.apart[name].values(particles)
        total = -0.5 * (particles**2).sum(axis=1)
        for law, seen in zip(self.laws, self.rows.settings, strict=True):
            if law.name == name:
                total += self.rows.log_likelihood_of_settings(values, law, seen)
        return np.asarray(total)

    def guesses(self, count: int, rng: np.random.Generator) -> Array:
        """Particles (count, dimension) around the prior's mean, at the settings that did best at the largest rung."""
        found = 0.5 * rng.standard_normal((count, self.layout.dimension))
        for law, value in self.trials.best_settings(self.laws):
            found[:, self.layout.index(f"{law.name}.anchor")] = \
                (value - law.centre) / law.spread + 0.2 / law.spread * rng.standard_normal(count)
        return found

    def mean(self, values: Values, log_batch: Array) -> Array:
        """Log epochs of the best settings by the law alone: (particles, batches)."""
        growth = log_growth(np.asarray(log_batch)[None, :], values["log_critical"][:, None],
                            np.exp(values["log_sharpness"])[:, None], np.exp(values["log_exponent"])[:, None])
        return np.asarray(values["log_min_epochs"][:, None] + growth)


def make_model(evidence: Evidence, priors: Priors) -> Model:
    """The model of one body of evidence; a table that is a sweep is read as trials."""
    aggregates, observations = list(evidence.aggregates), list(evidence.observations)
    if _is_sweep(aggregates):
        observations += [Observation(row.global_batch_size, "reached", row.epochs_to_target, row.settings)
                         for row in aggregates]
        aggregates = []
    laws = make_laws(evidence)
    rows, trials = make_rows(aggregates, laws), make_trials(observations, laws)
    start = float(np.log(evidence.batches[0]))
    critical, scatter = priors.log_critical_over_first, priors.log_recipe_scatter
    parameters = [Parameter("log_min_epochs", *_guess_of_min_epochs(rows, trials)),
                  Parameter("log_critical", start + critical.mean, critical.sd),
                  Parameter("log_sharpness", priors.log_sharpness.mean, priors.log_sharpness.sd),
                  Parameter("log_exponent", priors.log_exponent.mean, priors.log_exponent.sd),
                  Parameter("log_recipe_scatter", scatter.mean, scatter.sd)]
    apart = {} if observations else {law.name: Layout(law.parameters(response=False)) for law in laws
                                     if law.name != RATE}
    for law in laws:
        if law.name not in apart:
            parameters += law.parameters(response=bool(observations))
    if observations:
        parameters += [Parameter("log_far_miss", *FAR_MISS)] if laws else []
        parameters += [Parameter("log_trial_scatter", *TRIAL_SCATTER),
                       Parameter("rungs", 0.0, 1.0, size=len(trials.rung_log_batch))]
    return Model(Layout(parameters), apart, laws, rows, trials, _log_noise_scale(observations))


def _is_sweep(aggregates: Sequence[Aggregate]) -> bool:
    """Whether most batches stand in the table three times or more, with different settings."""
    if not aggregates:
        return False
    batches = [row.global_batch_size for row in aggregates]
    recipes = {repr(sorted(row.settings.items())) for row in aggregates}
    return len(recipes) > 1 and float(np.median([batches.count(batch) for batch in set(batches)])) >= 3


def _guess_of_min_epochs(rows: Rows, trials: Trials) -> tuple[float, float]:
    best = [*rows.log_epochs, *trials.log_epochs[:trials.cut[1]]]
    if best:
        return float(min(best)), 1.0
    # nothing reached the target: it lies beyond what was trained, nobody knows how far
    return float(np.max(trials.log_epochs)) + 1.0, 1.5


def _log_noise_scale(observations: Sequence[Observation]) -> float | None:
    seen = [item.gradient_noise_scale for item in observations]
    measured = [np.log(value) for value in seen if value is not None and np.isfinite(value) and value > 0]
    return float(np.median(measured)) if measured else None
