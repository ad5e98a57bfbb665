"""Makes the forecast for one batch size from a study's trials."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Collection, Sequence

import numpy as np

from hpo.errors import EvidenceError, PlanError
from hpo.extrapolation.calibration import PastForecast
from hpo.extrapolation.evidence.evidence import Evidence
from hpo.extrapolation.evidence.stored import (
    observation_of_trial,
    study_evidence,
    trial_as_counted,
    trials_counted_once,
    tuned_settings_of_space,
)
from hpo.extrapolation.forecast import Forecast, check_batch_size
from hpo.extrapolation.forecast import forecast as forecast_from
from hpo.extrapolation.inference.kept import KeptConstraints, fit_constraints
from hpo.extrapolation.inference.posterior import Posterior, fit
from hpo.extrapolation.raced import whole_race_trainings
from hpo.runs.fits import fit_fingerprint
from hpo.runs.losses import (
    constraints_words,
    lost_trials_advice,
    metric_range_advice,
    outcome_words,
)
from hpo.runs.ramp import RampSaving, ramp_saving
from hpo.runs.results import (
    StudyForecast,
    StudyResult,
    SweptConfiguration,
    best_settings,
    complete_settings,
    epochs_trained,
    worker_throughput,
)
from hpo.study.sizes import (
    full_scale_sizes,
    has_full_scale_sizes,
    settings_at_full_scale,
    transferred_sizes,
)
from search_spaces.settings import TrainingSettings
from storage.records import Trial, TrialPurpose

KEPT_FITS = 8
"""Number of fits cached per process, a few megabytes each: enough for several forecasts and a plan."""

RACE_TRAININGS = 5
"""Approximate number of training runs in a race."""

SEARCH_TRAININGS = 5
"""Number of training runs after which a search at the target batch size itself ends: 4.4 in the median over 120
searches (benchmarks/search_economy).
"""


def forecast(
    result: StudyResult,
    global_batch_size: int,
    posterior: Posterior | None = None,
    *,
    budgets: Sequence[float] = (),
) -> StudyForecast:
    """Forecast the settings and the epochs to target at a batch size, from all trials of a study.

    The forecast gives the probability of reaching the target within each of ``budgets``, in epochs. Outcomes of earlier
    plans of this study count as evidence, like its trials. The accuracy of earlier forecasts, of this study or others,
    widens or narrows the interval. Outcomes of this study at the same batch size are left out, because the forecast is
    compared with them. A ``posterior`` must have been fitted without them.

    For a study that asks for the best metric within a fixed budget, the forecast predicts that metric instead of the
    epochs; ``budgets`` and earlier forecasts then do not apply.

    Raises :class:`EvidenceError` if no trial of the study reached the target or trained to the end of the budget, and
    for a batch size below 1 or above 2^31 - 1.
    """
    check_batch_size(global_batch_size)
    question = result.spec.question
    trials = result.evidence(without=[global_batch_size])
    best = best_settings(trials, question)
    if best is None:
        raise _nothing_to_start_from(result)
    posterior = posterior or fit_posterior(result, [global_batch_size])
    past = past_forecasts(result, global_batch_size)

    def is_there(trial: Trial) -> bool:
        same_batch = trial.global_batch_size == global_batch_size
        return same_batch and has_full_scale_sizes(result.spec, trial.settings)

    there = [t for t in trials_counted_once([*result.searched, *result.raced]) if is_there(t)]
    raced = (
        [observation_of_trial(trial_as_counted(trial, question)) for trial in there]
        if not question.fixed
        else []
    )
    numbers = forecast_from(
        posterior,
        global_batch_size,
        budgets=budgets,
        past=past,
        race=whole_race_trainings([each for each in raced if each is not None]),
        searched=any(is_there(trial) for trial in result.searched),
        kept=kept_constraints(result),
    )
    settings = settings_at_full_scale(
        result.spec, complete_settings(best.settings, numbers, result.spec.search)
    )
    ramp = _ramp(result, numbers, settings)
    said = (
        numbers.reason,
        _left_out(trials, best),
        "" if ramp is None else str(ramp),
        _advice(result, numbers, posterior),
    )
    numbers = dataclasses.replace(numbers, reason=" ".join(filter(None, said)))
    return StudyForecast(
        spec=result.spec,
        study_id=result.study.id,
        numbers=numbers,
        settings=settings,
        train_samples=result.train_samples,
        samples_per_second=worker_throughput(result.trials, result.train_samples, result.spec),
        storage=result.storage,
        ramp=ramp,
        posterior=posterior,
        source=dataclasses.replace(result, forecast=None),
    )


def _nothing_to_start_from(result: StudyResult) -> EvidenceError:
    question, trials = result.spec.question, result.trials
    return EvidenceError(
        f"no trial of study {result.study.name!r} {outcome_words(question, trials)}"
        f"{constraints_words(trials, question)}, so there are no settings to start from; "
        f"{lost_trials_advice(question, trials)}"
    )


def kept_constraints(result: StudyResult) -> KeptConstraints | None:
    """Return the evidence from the trials on the study's constraints; None if it has no constraints."""
    spec = result.spec
    if not spec.constraints:
        return None
    return fit_constraints(result.trials, spec.question, tuned_settings_of_space(spec.search))


def forecast_without_race(result: StudyResult, global_batch_size: int) -> StudyForecast:
    """Return the forecast from all training runs except those of a race at that batch size."""
    others = tuple(
        trial
        for trial in result.trials
        if not (trial.purpose == TrialPurpose.RACE and trial.global_batch_size == global_batch_size)
    )
    return forecast(dataclasses.replace(result, trials=others), global_batch_size)


def _ramp(result: StudyResult, numbers: Forecast, settings: TrainingSettings) -> RampSaving | None:
    """Return what a growing batch saves; None if the batch size is constant or no run measured its noise scale."""
    critical = numbers.critical_batch
    if settings.batch_control == "constant" or not result.noise_courses or not result.train_samples:
        return None
    if critical is None or numbers.best is not None:
        return None
    return ramp_saving(
        result.noise_courses,
        settings,
        numbers.global_batch_size,
        critical,
        numbers.epochs_to_target.median,
        result.train_samples,
    )


def _advice(result: StudyResult, numbers: Forecast, posterior: Posterior) -> str:
    """Return the change that would raise a low trust the most; "" if trust is not low, or a race was made or would be
    of no use: it has nothing to race, or the settings that it would race violate a constraint.
    """
    from hpo.tuning.generation.race import LEAST_RUNS, raced_run_epochs

    batch = numbers.global_batch_size
    here = [trial for trial in result.trials if trial not in result.imported]
    if (
        numbers.trust != "low"
        or numbers.raced is not None
        or any(trial.global_batch_size == batch for trial in result.raced)  # none of them counted
        or numbers.best is not None
        or not numbers.recommended
        or (batch in result.spec.ladder and not result.spec.sizes)
        or not result.train_samples
    ):
        return ""
    one = raced_run_epochs(posterior, batch)
    if one is None:
        return ""
    rate = worker_throughput(here, result.train_samples, result.spec)

    def price(epochs: float) -> str:
        time = f", about {_duration(epochs * result.train_samples / rate)} here" if rate else ""
        return f"{math.ceil(epochs)} epochs{time}"

    whole, most = RACE_TRAININGS * one, result.race_samples / result.train_samples
    if most < LEAST_RUNS * one:
        return (
            f"A race at {batch} would raise the trust most, but its budget of {result.race_samples:,} samples is too "
            f"small for two training runs of {one:.3g} epochs: set budget.race to "
            f"{_rounded_up(whole * result.train_samples):,} samples ({price(whole)}), continue the study with hpo run, "
            f"and use hpo forecast --race."
        )
    return f"A race at {batch} (hpo forecast --race) would take {price(min(whole, most))} and raise the trust most."


def _rounded_up(samples: float) -> int:
    """Round up to two significant digits."""
    unit = int(10 ** max(math.floor(math.log10(samples)) - 1, 0))
    return math.ceil(samples / unit) * unit


def direct_search(result: StudyResult, made: StudyForecast) -> str:
    """Return a note if a search at the forecast's batch size itself would be cheaper than the sweep, or ""."""
    batch, epochs = made.global_batch_size, made.epochs_to_target.median
    if result.spec.sizes:  # in epochs of the full-scale model
        spent = result.swept_samples / result.train_samples if result.train_samples else 0.0
    else:
        spent = epochs_trained(result.swept)
    if (
        result.spec.question.fixed
        or (batch in result.spec.ladder and not result.spec.sizes)
        or spent <= SEARCH_TRAININGS * epochs
    ):
        return ""
    if result.spec.sizes:
        return (
            f"the sweep cost as much as {spent / epochs:.0f} training runs at full scale: a search "
            f"directly there, by gradient accumulation, takes about {SEARCH_TRAININGS} and is "
            f"cheaper"
        )
    return (
        f"the sweep trained {spent:.0f} epochs, as many as {spent / epochs:.0f} training runs at "
        f"{batch}: a search directly at {batch} (sampler: forecast) takes about "
        f"{SEARCH_TRAININGS} and is cheaper"
    )


def _duration(seconds: float) -> str:
    return f"{math.ceil(seconds)} seconds" if seconds < 100 else f"{round(seconds / 60)} minutes"


def past_forecasts(result: StudyResult, global_batch_size: int | None) -> list[PastForecast]:
    """Return the outcomes of all forecasts in the storage, except those of this study at this batch size.

    The observed value is the mean over a plan's runs, if all runs that did not crash reached the target.
    """
    own = (result.study.name, global_batch_size)
    return [
        PastForecast(
            row.predicted_epochs_median,
            row.predicted_epochs_low,
            row.predicted_epochs_high,
            row.observed_epochs_mean if row.inside or row.reached == row.runs else None,
            row.inside,
        )
        for row in result.past
        if (row.study, row.global_batch_size) != own
        and row.predicted_epochs_median
        and row.predicted_epochs_low
        and row.predicted_epochs_high
    ]


def fit_posterior(result: StudyResult, batches: Collection[int] | None = None) -> Posterior:
    """Return the laws fitted to a study's trials and outcomes, for bands and forecasts at many batch sizes.

    Outcomes at ``batches`` (default: the study's full-scale batch size) are left out, because a forecast is compared
    with them. The process caches its last few fits, so that the same evidence is not fitted twice.

    Raises :class:`EvidenceError` if the metric of every trial is outside of the range that can be forecast.
    """
    question = result.spec.question
    if metric_range_advice(result.trials, question) and not result.answered:
        raise _nothing_to_start_from(result)
    evidence = evidence_of_study(result, batches)
    return _fitted(_Fingerprinted(fit_fingerprint(evidence), evidence))


@dataclasses.dataclass(frozen=True)
class _Fingerprinted:
    """Evidence that compares equal to other evidence with the same fingerprint."""

    fingerprint: str
    evidence: Evidence = dataclasses.field(compare=False)


@functools.lru_cache(maxsize=KEPT_FITS)
def _fitted(asked: _Fingerprinted) -> Posterior:
    return fit(asked.evidence, rng=np.random.default_rng(0))


def evidence_of_study(result: StudyResult, batches: Collection[int] | None = None) -> Evidence:
    """Return the evidence that :func:`fit_posterior` uses."""
    if batches is None:
        batches = [result.spec.full_scale.global_batch_size] if result.spec.full_scale else []
    spec, trials = result.spec, result.evidence(batches)
    best = best_settings(trials, spec.question)
    return study_evidence(
        trials if best is None else _with_its_optimizer(trials, best),
        spec.search,
        result.noise_scales,
        spec.question,
        dict(full_scale_sizes(spec)),
        carried=transferred_sizes(spec),
    )


def _with_its_optimizer(trials: Sequence[Trial], best: SweptConfiguration) -> list[Trial]:
    """Return the trials with the optimizer of the best settings, because each optimizer has its own learning rates."""
    optimizer = best.settings.optimizer
    return [trial for trial in trials if trial.settings.get("optimizer", optimizer) == optimizer]


def _left_out(trials: Sequence[Trial], best: SweptConfiguration) -> str:
    """Return which trials the laws leave out because of their optimizer, "" if none."""
    others = len(trials) - len(_with_its_optimizer(trials, best))
    if not others:
        return ""
    return (
        f"The laws describe {best.settings.optimizer}, the optimizer of the best settings at the largest rung; "
        f"{others} of {len(trials)} trials with other optimizers are left out."
    )


def forecast_at(made: StudyForecast, global_batch_size: int) -> StudyForecast:
    """Return the forecast of the same study at another batch size; raise :class:`PlanError` if the forecast has no
    fitted laws.
    """
    if made.source is None:
        raise PlanError(
            f"this forecast is valid only for global batch size {made.global_batch_size}, but got "
            f"{global_batch_size}; make another with hpo.forecast",
            {"global_batch_size": made.global_batch_size},
        )
    return forecast(made.source, global_batch_size, made.posterior)


def with_forecast(result: StudyResult, posterior: Posterior | None = None) -> StudyResult:
    """Return the result with the forecast for its full-scale batch size, if the study has one and its trials allow
    it.
    """
    question = result.spec.question
    if result.spec.full_scale is None or best_settings(result.trials, question) is None:
        return result
    return dataclasses.replace(
        result, forecast=forecast(result, result.spec.full_scale.global_batch_size, posterior)
    )
