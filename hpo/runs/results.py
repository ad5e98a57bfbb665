"""Results that the service returns: a study with all its data, and a forecast for one of its batch sizes."""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hpo.extrapolation.evidence.stored import trials_counted_once
from hpo.extrapolation.forecast import Forecast
from hpo.extrapolation.inference.intervals import Interval
from hpo.extrapolation.inference.posterior import Posterior
from hpo.extrapolation.prospects import Chance, Sensitivity
from hpo.planning.plan import Plan
from hpo.runs.notebook import forecast_html, study_html
from hpo.runs.ramp import Array, RampSaving
from hpo.study.jobs import model_sizes_of_job
from hpo.study.sizes import (
    Point,
    costly_samples,
    full_scale_sizes,
    named_sizes,
    points,
    sample_cost_share,
    sizes_of_settings,
)
from hpo.study.spec import StudySpec
from search_spaces.domains import Int
from search_spaces.settings import TrainingSettings
from search_spaces.space import SearchSpace
from storage.records import (
    CalibrationRow,
    Outcome,
    PlanKind,
    Study,
    StudyState,
    Throughput,
    Trial,
    TrialPurpose,
    TrialState,
)
from storage.statements.calibration import is_inside
from trainers.cost import WorkloadCost
from trainers.job import HOW_SOON, NEVER, Constraint, Question

RULES_OF_THUMB = (PlanKind.LINEAR_SCALING, PlanKind.SQRT_SCALING, PlanKind.NO_SCALING)

SHARE_OF_SWEEP = 0.25
"""Default budget of a race, in samples of the full-scale model, as a share of the sweep's cost."""


@dataclass(frozen=True)
class SweptConfiguration:
    """One configuration at one batch size, with the results of all its seeds.

    ``need`` is the geometric mean over its training runs of :meth:`trainers.job.Question.need`: the epochs to the
    target, or the metric's shortfall after a fixed budget.
    """

    settings: TrainingSettings
    global_batch_size: int
    need: float
    runs: int


@dataclass(frozen=True)
class ConstraintCount:
    """How many of the trials that reached the target or budget satisfy a constraint, violate it, or do not report
    it.
    """

    constraint: Constraint
    kept: int
    broken: int
    untold: int

    def __str__(self) -> str:
        untold = f", {self.untold} did not report it" if self.untold else ""
        return (
            f"{self.constraint}: kept by {self.kept} of "
            f"{self.kept + self.broken + self.untold} trials that ran to their end, broken "
            f"by {self.broken}{untold}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        each = self.constraint
        return {
            "name": each.name,
            "at_most" if each.at_most else "at_least": each.bound,
            "kept": self.kept,
            "broken": self.broken,
            "untold": self.untold,
        }


_TELLING = (TrialState.REACHED, TrialState.CENSORED)


def _counted(constraint: Constraint, trials: Sequence[Trial]) -> ConstraintCount:
    told = [value for trial in trials if (value := constraint.value(trial)) is not None]
    kept = sum(constraint.excess(value) <= 0 for value in told)
    return ConstraintCount(constraint, kept, len(told) - kept, len(trials) - len(told))


@dataclass(frozen=True)
class StudyForecast:
    """A forecast together with what a plan needs: the study, and all settings, including those that do not change.

    ``posterior`` and ``source`` are the fitted laws and the study that it was made from; they allow forecasts at other
    batch sizes.
    """

    spec: StudySpec
    study_id: int
    numbers: Forecast
    settings: TrainingSettings
    train_samples: int
    samples_per_second: float | None
    storage: str
    id: int | None = None
    ramp: RampSaving | None = None
    posterior: Posterior | None = field(default=None, repr=False, compare=False)
    source: StudyResult | None = field(default=None, repr=False, compare=False)

    @property
    def global_batch_size(self) -> int:
        """The batch size of the forecast."""
        return int(self.numbers.global_batch_size)

    @property
    def epochs_to_target(self) -> Interval:
        """The 90 % interval of the epochs to target, averaged over a few runs."""
        return self.numbers.epochs_to_target

    @property
    def trust(self) -> str:
        """The level of trust in the forecast: high, medium or low."""
        return self.numbers.trust

    @property
    def reason(self) -> str:
        """The reason for the level of trust."""
        return self.numbers.reason

    @property
    def chances(self) -> tuple[Chance, ...]:
        """The probability of reaching the target within budgets of epochs."""
        return self.numbers.chances

    @property
    def sensitivity(self) -> tuple[Sensitivity, ...]:
        """The cost of using half or twice the learning rate."""
        return self.numbers.sensitivity

    def to_dict(self) -> dict[str, Any]:
        """Return the forecast as plain values: the output of ``hpo extrapolate``, with sizes, laws and complete
        settings.
        """
        return {
            **self.numbers.to_dict(),
            **({"sizes": named_sizes(full_scale_sizes(self.spec))} if self.spec.sizes else {}),
            "laws": self.numbers.laws_dict(),
            "complete_settings": self.settings.to_dict(),
            **({} if self.ramp is None else {"ramp": self.ramp.to_dict()}),
        }

    def _repr_html_(self) -> str:
        """Return the forecast as HTML for a notebook."""
        return forecast_html(self.to_dict())


@dataclass(frozen=True)
class PlannedRun:
    """A plan and the outcomes of its launches so far.

    ``sample_images`` holds images generated by the trained models, by outcome id; see ``trainers.loop.sample_images``.
    """

    plan: Plan
    outcomes: tuple[Outcome, ...]
    sample_images: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def reached(self) -> tuple[float, ...]:
        """The epochs to target of the launches that reached the target."""
        return tuple(
            outcome.epochs_to_target
            for outcome in self.outcomes
            if outcome.epochs_to_target is not None
        )

    @property
    def question(self) -> Question:
        """The question that the plan answers."""
        return self.plan.job.question

    @property
    def needs(self) -> tuple[float, ...]:
        """The results of the launches that answered the question: epochs, or the metric's shortfall."""
        found = [self.question.need(outcome) for outcome in self.outcomes]
        return tuple(need for need in found if need is not None)

    @property
    def observed_best(self) -> float | None:
        """The mean of the best metric after a fixed budget; None unless every launch so far ran to its end."""
        if not self.question.fixed or not self.outcomes or len(self.needs) < len(self.outcomes):
            return None
        return statistics.fmean(self.question.told(need) for need in self.needs)

    @property
    def observed_epochs(self) -> float | None:
        """The mean epochs to target; None unless every launch so far reached the target."""
        if not self.outcomes or len(self.reached) < len(self.outcomes):
            return None
        return math.fsum(self.reached) / len(self.reached)

    @property
    def inside(self) -> bool | None:
        """Whether the launches confirmed the forecast, judged as in the calibration; None if unknown."""
        if self.question.fixed:
            best, seen = self.plan.best, self.observed_best
            if best is None or seen is None:
                return None
            return best.interval.low <= seen <= best.interval.high
        low, high = (
            (self.plan.epochs.low, self.plan.epochs.high) if self.plan.epochs else (None, None)
        )
        return is_inside(
            low, high, [(each.state, each.epochs_to_target, each.epochs) for each in self.outcomes]
        )

    def references(self, outcome: Outcome) -> dict[str, float]:
        """Return the target metric of each reference that an outcome's model must beat, by name; empty if the workload
        has no references.
        """
        return dict(self.sample_images.get(outcome.id, {}).get("references", {}))

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "plan": self.plan.to_dict(),
            "observed_epochs_to_target": self.observed_epochs,
            **({"observed_best": self.observed_best} if self.question.fixed else {}),
            "outcomes": [
                {
                    "seed": o.seed,
                    "backend": o.backend,
                    "workers": o.workers,
                    "state": str(o.state),
                    "epochs_to_target": o.epochs_to_target,
                    "epochs": o.epochs,
                    "seconds": o.seconds,
                    "best_metric": o.best_metric,
                    "references": self.references(o) or None,
                    "reason": o.reason,
                }
                for o in self.outcomes
            ],
        }


@dataclass(frozen=True)
class StudyResult:
    """A study as stored in the database.

    ``train_samples`` is the size of the training set, 0 if it is unknown. ``noise_scales`` holds the gradient noise
    scale, in samples, that each trial measured, by trial id; ``noise_courses`` holds its course during training
    (:func:`hpo.runs.ramp.noise_course`). ``past`` holds the forecast and outcome of every launched plan in the storage,
    of this study or others. ``cost`` is the cost of a sample of the workload, or None if it was not measured.
    ``throughputs`` are all measurements in the storage, for any workload and machine.
    """

    spec: StudySpec
    study: Study
    trials: tuple[Trial, ...]
    storage: str
    train_samples: int = 0
    forecast: StudyForecast | None = None
    runs: tuple[PlannedRun, ...] = ()
    noise_scales: Mapping[int, float] = field(default_factory=dict)
    noise_courses: tuple[Array, ...] = field(default=(), compare=False, repr=False)
    past: tuple[CalibrationRow, ...] = ()
    cost: WorkloadCost | None = None
    throughputs: tuple[Throughput, ...] = ()

    @property
    def complete(self) -> bool:
        """Whether the study has done everything that its file asks for."""
        return self.study.state is StudyState.FINISHED

    @property
    def answered(self) -> bool:
        """Whether any trial reached the target, or trained to the end of a fixed budget."""
        return any(self.spec.question.need(trial) is not None for trial in self.trials)

    @property
    def swept(self) -> tuple[Trial, ...]:
        """The trials of the sweep, and the imported trials."""
        return tuple(trial for trial in self.trials if trial.purpose != TrialPurpose.RACE)

    @property
    def imported(self) -> tuple[Trial, ...]:
        """The trials that were run elsewhere and imported; they do not count towards the budget of trials."""
        return tuple(trial for trial in self.trials if trial.purpose == TrialPurpose.IMPORTED)

    @property
    def raced(self) -> tuple[Trial, ...]:
        """The trials of races at full-scale batches."""
        return tuple(trial for trial in self.trials if trial.purpose == TrialPurpose.RACE)

    @property
    def searched(self) -> tuple[Trial, ...]:
        """The trials that the sweep itself trained at the full-scale batch size, beyond the ladder."""
        return tuple(
            trial for trial in self.swept if trial.global_batch_size not in self.spec.ladder
        )

    @property
    def batches(self) -> list[int]:
        """The rungs of the ladder or, if the sweep searched the full-scale batch size itself, the batch sizes that it
        trained.
        """
        if self.searched:
            return sorted({trial.global_batch_size for trial in self.swept})
        return sorted(self.spec.ladder)

    @property
    def race_samples(self) -> int:
        """The maximum number of samples that a race may process with the full-scale model: the study's own value, or
        else a quarter of the cost of its sweep.
        """
        if self.spec.budget.race is not None:
            return self.spec.budget.race
        return int(SHARE_OF_SWEEP * self.swept_samples)

    @property
    def swept_samples(self) -> float:
        """The number of samples that the full-scale model could process for the cost of the sweep."""
        return math.fsum(
            costly_samples(self.spec, trial.samples, trial.settings) for trial in self.swept
        )

    @property
    def plan(self) -> PlannedRun | None:
        """The newest plan that uses the forecast, at the study's full-scale batch size if it has one."""
        return self._newest(PlanKind.FORECAST)

    @property
    def baselines(self) -> tuple[PlannedRun, ...]:
        """The baselines of the plan: the same run with settings by rules of thumb, the newest one for each rule."""
        found = [self._newest(kind) for kind in RULES_OF_THUMB]
        return tuple(run for run in found if run is not None)

    @property
    def launched(self) -> tuple[PlannedRun, ...]:
        """The plans that were launched, in order of creation."""
        return tuple(run for run in self.runs if run.outcomes)

    @property
    def keeping(self) -> tuple[ConstraintCount, ...]:
        """For each constraint of the study, how many of the trials that ran to their end satisfy it."""
        return tuple(
            _counted(each, [trial for trial in self.trials if trial.state in _TELLING])
            for each in self.spec.constraints
        )

    def evidence(self, without: Collection[int] = ()) -> tuple[Trial, ...]:
        """Return all runs that count as evidence: the trials, and the outcomes of launched plans in the form of trials.

        Outcomes at the batch sizes ``without`` are left out: a forecast is compared with them, so it must not use them.
        """
        return (
            *self.trials,
            *(
                _as_trial(
                    run.plan, outcome, self.study.id, model_sizes_of_job(self.spec, run.plan.job)
                )
                for run in self.launched
                if run.plan.global_batch_size not in without
                for outcome in run.outcomes
            ),
        )

    def _newest(self, kind: PlanKind) -> PlannedRun | None:
        batch = self.spec.full_scale.global_batch_size if self.spec.full_scale else None
        found = [
            run
            for run in self.runs
            if run.plan.kind is kind and batch in (None, run.plan.global_batch_size)
        ]
        return found[-1] if found else None

    def to_dict(self) -> dict[str, Any]:
        """Return one document of plain values: study, trials by state, rungs, laws, forecast, plan, outcome and
        baselines.
        """
        return {
            "study": {
                "name": self.study.name,
                "state": str(self.study.state),
                "message": self.study.message,
                "workload": self.study.workload,
                "ladder": list(self.spec.ladder),
                **({"sizes": _plain_sizes(self.spec)} if self.spec.sizes else {}),
                "target": target_values(self.study),
            },
            "trials": {"total": len(self.swept), **_states(self.swept)},
            "rungs": self._rungs(),
            **({"constraints": [each.to_dict() for each in self.keeping]} if self.keeping else {}),
            "laws": self.forecast.numbers.laws_dict() if self.forecast else None,
            "forecast": self.forecast.to_dict() if self.forecast else None,
            "plan": self.plan.plan.to_dict() if self.plan else None,
            "outcome": self.plan.to_dict() if self.plan and self.plan.outcomes else None,
            "baselines": [run.to_dict() for run in self.baselines],
        }

    def by_sizes(self) -> dict[Point, list[Trial]]:
        """Return the trials of each combination of sizes, starting with the ladder's combinations; if only the batch
        size varies, return all trials together.
        """
        found: dict[Point, list[Trial]] = {point: [] for point in points(self.spec)}
        for trial in self.trials:
            found.setdefault(sizes_of_settings(self.spec, trial.settings), []).append(trial)
        return found

    def _rungs(self) -> list[dict[str, Any]]:
        """Return the results of each batch size, and of each combination of sizes if there are several."""
        if not self.spec.sizes:
            return _rungs(self.swept, self.batches, self.spec.question)
        return [
            {"sizes": named_sizes(point), **rung}
            for point, trials in self.by_sizes().items()
            for rung in _rungs(
                [trial for trial in trials if trial.purpose != TrialPurpose.RACE],
                self.batches,
                self.spec.question,
            )
        ]

    def _repr_html_(self) -> str:
        """Return the study as HTML for a notebook: its state, ladder and forecast."""
        return study_html(self.to_dict(), self.spec.search.names)


def trial_ended_because(result: StudyResult, trial: Trial) -> str:
    """Return why a trial ended, and which constraints it violated."""
    question = result.spec.question
    if not question.constraints or trial.state not in _TELLING:
        return trial.reason
    broken = question.broken(trial)
    return f"not within the constraints: {broken}; {trial.reason}" if broken else trial.reason


def _as_trial(plan: Plan, outcome: Outcome, study_id: int, sizes: Mapping[str, int]) -> Trial:
    """Convert an outcome to a trial, with a number below those of the sweep's trials; ``sizes`` are those of the plan's
    model.
    """
    return Trial(
        id=-outcome.id,
        study_id=study_id,
        number=-outcome.id,
        state=outcome.state,
        global_batch_size=plan.global_batch_size,
        seed=outcome.seed,
        settings={**plan.job.settings.to_record(), **sizes},
        purpose=TrialPurpose.OUTCOME,
        epochs_to_target=outcome.epochs_to_target,
        epochs=outcome.epochs,
        seconds=outcome.seconds,
        best_metric=outcome.best_metric,
        reason=outcome.reason,
        started_at=None,
        finished_at=outcome.created_at,
    )


def target_values(study: Study) -> dict[str, Any]:
    """Return a study's target as plain values, without a threshold if it asks for the best metric within a fixed
    budget.
    """
    ends = abs(study.threshold) < NEVER
    return {
        "metric": study.metric,
        "threshold": study.threshold if ends else None,
        "higher_is_better": study.higher_is_better,
    }


def rung_candidates(
    trials: Sequence[Trial], global_batch_size: int, question: Question = HOW_SOON
) -> list[SweptConfiguration]:
    """Return the settings of a rung that answered the ``question`` with all of their seeds, best first.

    A run answers the question by reaching the target, or by training to the end of a fixed budget.
    """
    return [_candidate(*each) for each in _ranked(trials, global_batch_size, question)]


def _candidate(need: float, runs: Sequence[Trial]) -> SweptConfiguration:
    return SweptConfiguration(
        TrainingSettings.from_record(runs[0].settings), runs[0].global_batch_size, need, len(runs)
    )


def _ranked(
    trials: Sequence[Trial], global_batch_size: int, question: Question
) -> list[tuple[float, list[Trial]]]:
    """Return the mean need and the runs of each configuration that answered the question with every seed, best first.

    Runs that were stopped before any run could have reached the target do not count.
    """
    runs: dict[str, list[Trial]] = defaultdict(list)
    here = [trial for trial in trials if trial.global_batch_size == global_batch_size]
    for trial in trials_counted_once(here):
        if trial.state is not TrialState.FAILED:
            runs[trial.settings_key].append(trial)
    fewest = question.epochs or min(
        (trial.epochs_to_target for trial in here if trial.epochs_to_target), default=0.0
    )
    found = []
    for every in runs.values():
        group = [
            trial
            for trial in every
            if trial.state is not TrialState.PRUNED or (trial.epochs or 0.0) >= fewest
        ]
        needs = [need for trial in group if (need := question.need(trial)) is not None]
        if needs and len(needs) == len(group):
            mean = math.exp(math.fsum(map(math.log, needs)) / len(needs))
            found.append((mean, group))
    return sorted(found, key=lambda each: each[0])


def best_of_rungs(
    trials: Sequence[Trial], ladder: Sequence[int], question: Question = HOW_SOON
) -> dict[int, SweptConfiguration]:
    """Return the best candidate of every rung that has a candidate, by batch size."""
    return {
        batch: _candidate(*found[0])
        for batch in ladder
        if (found := _ranked(trials, batch, question))
    }


def best_settings(
    trials: Sequence[Trial], question: Question = HOW_SOON
) -> SweptConfiguration | None:
    """Return the best settings of the largest rung with an answer, preferring settings with several seeds over a single
    lucky run.
    """
    for batch in sorted({trial.global_batch_size for trial in trials}, reverse=True):
        found = _ranked(trials, batch, question)
        if found:
            most = max(len(runs) for _, runs in found)
            return _candidate(*next(each for each in found if len(each[1]) == most))
    return None


def complete_settings(
    best: TrainingSettings, numbers: Forecast, space: SearchSpace
) -> TrainingSettings:
    """Return the best settings with every scaled setting moved to its forecast, clipped to its allowed values."""
    moved = {
        name: numbers.settings[name].median for name in space.scaled if name in numbers.settings
    }
    whole = {
        name: round(value) for name, value in moved.items() if isinstance(space.domains[name], Int)
    }
    return best.replace(**{**moved, **whole})


def epochs_trained(trials: Iterable[Trial]) -> float:
    """Return the total number of epochs that the trials trained; unfinished trials count as 0."""
    return math.fsum(trial.epochs or 0.0 for trial in trials)


def worker_throughput(
    trials: Sequence[Trial], train_samples: int, spec: StudySpec | None = None
) -> float | None:
    """Return one worker's samples per second, including evaluation: the median at the largest batch size that was
    timed.

    If the sizes of ``spec`` vary, the speed of the largest timed model is converted to full scale by the cost of a
    sample (:func:`hpo.study.sizes.sample_cost_share`).
    """
    if spec is not None and spec.sizes:
        timed = [trial for trial in trials if trial.epochs and trial.seconds]
        shares = [
            sample_cost_share(spec, sizes_of_settings(spec, trial.settings)) for trial in timed
        ]
        largest = max(shares, default=1.0)
        chosen = [trial for trial, share in zip(timed, shares, strict=True) if share == largest]
        rate = worker_throughput(chosen, train_samples)
        return None if rate is None else rate * largest
    for batch in sorted({trial.global_batch_size for trial in trials}, reverse=True):
        rates = [
            trial.epochs * train_samples / trial.seconds
            for trial in trials
            if trial.global_batch_size == batch and trial.epochs and trial.seconds
        ]
        if rates:
            return statistics.median(rates)
    return None


def _plain_sizes(spec: StudySpec) -> dict[str, list[int]]:
    return {name: list(sizes) for name, sizes in spec.sizes.items()}


def _states(trials: Sequence[Trial]) -> dict[str, int]:
    counts = Counter(str(trial.state) for trial in trials)
    return {str(state): counts[str(state)] for state in TrialState}


def _rungs(
    trials: Sequence[Trial], ladder: Sequence[int], question: Question
) -> list[dict[str, Any]]:
    best = best_of_rungs(trials, ladder, question)
    states = {
        batch: [trial.state for trial in trials if trial.global_batch_size == batch]
        for batch in ladder
    }
    return [
        {
            "global_batch_size": batch,
            "trials": len(states[batch]),
            "reached": states[batch].count(TrialState.REACHED),
            "best_epochs_to_target": best[batch].need
            if batch in best and not question.fixed
            else None,
            **(
                {
                    "to_the_end": states[batch].count(TrialState.CENSORED),
                    "best_metric": question.told(best[batch].need) if batch in best else None,
                }
                if question.fixed
                else {}
            ),
            "best_settings": best[batch].settings.to_dict() if batch in best else None,
        }
        for batch in ladder
    ]
