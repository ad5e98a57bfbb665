"""The registry of samplers that a study may name; each sampler is described without being imported."""

from __future__ import annotations

from dataclasses import dataclass

from hpo.study.faults import shown_value
from search_spaces.plugins import PluginError, PluginRegistry, plugin_instance_of


@dataclass(frozen=True, kw_only=True)
class SamplerDescription:
    """A sampler: ``about`` says briefly how it picks settings, and ``source`` where it was published.

    ``rule`` is ``module:attribute``, imported when a sweep starts. Called with a seed, it returns an Optuna sampler
    (``optuna.samplers.BaseSampler``); every rung of a ladder gets its own. If the sampler ``chooses_rung``, ``rule`` is
    called with the study and the number of its earlier trials instead, and returns a
    :class:`hpo.tuning.generation.samplers.Sampler`, which also picks the batch size. Its trials are stopped by their
    learning curves, as no rung has enough trials to compare. If the sampler ``takes_constraints``, a trial reports how
    far it violates each constraint of the study (``optuna.trial.Trial.set_constraint``); for other samplers, a
    violation counts as missing the target.
    """

    rule: str
    about: str
    source: str
    chooses_rung: bool = False
    takes_constraints: bool = False


_OPTUNA = "hpo.tuning.generation.samplers"

SAMPLERS: PluginRegistry[SamplerDescription] = PluginRegistry(
    "samplers",
    {
        "tpe": SamplerDescription(
            rule=f"{_OPTUNA}:tpe",
            about="tree-structured Parzen estimator",
            source="Bergstra et al., NeurIPS 2011",
            takes_constraints=True,
        ),
        "gp": SamplerDescription(
            rule=f"{_OPTUNA}:gp",
            about="Gaussian process with expected improvement in its logarithm",
            source="arXiv:2310.20708",
            takes_constraints=True,
        ),
        "cmaes": SamplerDescription(
            rule=f"{_OPTUNA}:cmaes",
            about="CMA-ES, an evolution strategy",
            source="arXiv:1604.00772",
        ),
        "qmc": SamplerDescription(
            rule=f"{_OPTUNA}:qmc",
            about="a scrambled Sobol sequence",
            source="Bergstra and Bengio, JMLR 13, 2012",
        ),
        "random": SamplerDescription(
            rule=f"{_OPTUNA}:random",
            about="independent draws",
            source="Bergstra and Bengio, JMLR 13, 2012",
        ),
        "forecast": SamplerDescription(
            rule="hpo.tuning.generation.search_sampler:ForecastSampler",
            about="a search over all batch sizes that stops by itself",
            source="docs/concepts/extrapolation.md",
            chooses_rung=True,
        ),
    },
    plugin_instance_of(SamplerDescription),
)


def check_sampler(name: str) -> str:
    """Return ``name`` if there is a sampler with that name; otherwise raise ValueError."""
    if name not in SAMPLERS:
        *names, last = SAMPLERS
        raise ValueError(
            f"must be one of {', '.join(names)} or {last}, but got {shown_value(name)}{SAMPLERS.explain(name)}"
        )
    try:
        SAMPLERS[name]
    except PluginError as error:
        raise ValueError(f"{shown_value(name)} cannot be used: {error}") from error
    return name
