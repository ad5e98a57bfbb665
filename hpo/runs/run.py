"""Runs a study that is held by a lease: sweep, race, forecast, plan, validation.

Both `hpo run` and `hpo worker` use it. However a run ends, the next one can continue the study: its running trials go
back into the queue, and its finished trials are kept.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpo.errors import HpoError, PlanError, TuningError
from hpo.planning.launchers.launch import LaunchReport, choose_launch_backend, run_plan_locally
from hpo.planning.plan import Plan, folder_name
from hpo.runs import repository
from hpo.runs.checks import check_full_scale, check_workload
from hpo.runs.exports.beside import trackers_beside
from hpo.runs.formatting import KIND_NAMES
from hpo.runs.lease import HeldLease, take_lease
from hpo.runs.losses import (
    is_lost_study,
    losses_in_words,
    lost_trials_advice,
    outcome_words,
    trial_ends_in_words,
)
from hpo.runs.notebook import notebook_progress
from hpo.runs.plan_run import held_plan_run
from hpo.runs.price import study_price
from hpo.runs.progress import Progress
from hpo.runs.race import plan_race
from hpo.runs.race import run_race_plan as run_plan_of_race
from hpo.runs.repository import DEFAULT_FOLDER, DEFAULT_STORAGE, compared_spec, open_store
from hpo.runs.results import StudyForecast, StudyResult, best_settings
from hpo.runs.study_changes import retry_message, starts_otherwise
from hpo.runs.study_forecast import direct_search, forecast, with_forecast
from hpo.runs.study_limits import LimitWatch, StudyLimits
from hpo.runs.study_plan import baseline_plans, make_plan
from hpo.study.jobs import search_path
from hpo.study.sizes import has_full_scale_sizes
from hpo.study.spec import StudySpec
from storage.errors import StoreError
from storage.records import Study, StudyState, Trial, TrialPurpose, TrialState
from trainers.errors import TrainerError
from trainers.report import ConvergencePoint

if TYPE_CHECKING:
    from hpo.tuning.retry import StorageRetry
    from hpo.tuning.tuner import RayOptions

LEAST_SEEDS = 5
"""Minimum number of runs of each validated plan: the mean of fewer is too noisy."""

EVENT_SECONDS = 5.0
"""Minimum number of seconds between two entries in a study's log that count its trials."""


@dataclass(frozen=True)
class RunOptions:
    """Options for running a study here.

    ``folder`` holds plans and checkpoints of running trials. An unavailable database is retried for
    ``storage_retry_seconds``. ``stop`` is called often; once it returns true, the study is left in ``stopped_state``.
    ``check`` first tests whether the study can run here at all. A study that exceeds the memory or disk limits in
    ``limits`` fails.
    """

    folder: Path
    storage_retry_seconds: float
    ray: RayOptions
    stop: Callable[[], bool] = lambda: False
    stopped_state: StudyState = StudyState.INTERRUPTED
    stopped_message: str = "run it again to continue"
    progress: Progress = field(default_factory=Progress)
    check: bool = False
    limits: StudyLimits | None = None


@dataclass(frozen=True)
class RunEnd:
    """The state in which a run left its study, and the forecast that the run made."""

    study: Study
    forecast: StudyForecast | None = None


class _Stopped(Exception):  # noqa: N818  (it is not an error)
    """Raised when a run finds that it must stop."""


def run_held_study(spec: StudySpec, held: HeldLease, storage: str, options: RunOptions) -> RunEnd:
    """Run a study to its end, or until it must stop, and release its lease.

    An error in the study or its trials marks the study as failed, with the reason, and is raised. Raises
    :class:`storage.errors.LeaseLost` if another process took over the study, and
    :class:`storage.errors.StoreUnavailable` if the database stays unavailable; both leave the study as it is.
    """
    from hpo.tuning.interrupt import Interrupter, WorkInterrupted
    from hpo.tuning.retry import StorageRetry

    retry = StorageRetry(
        options.storage_retry_seconds,
        options.progress.message,
        stopped=lambda: bool(held.lost) or options.stop(),
    )
    run = _Run(spec, held, storage, options, retry)
    try:
        with run.watched(), Interrupter(run.must_stop) as interrupter:
            run.region = interrupter.region
            made, state, message = run.all()
    except (_Stopped, WorkInterrupted, KeyboardInterrupt):
        held.check()
        made, (state, message) = None, run.stopped()
    except StoreError:
        raise
    except (HpoError, TrainerError) as error:
        run.release(StudyState.FAILED, str(error))
        raise
    except Exception as error:
        text = f"unexpected {type(error).__name__}: {error}"
        run.release(StudyState.FAILED, text)
        raise TuningError(f"study {spec.name!r} failed with an {text}") from error
    return RunEnd(run.release(state, message), made)


class _Run:
    """The state that the steps of one run share."""

    def __init__(
        self,
        spec: StudySpec,
        held: HeldLease,
        storage: str,
        options: RunOptions,
        retry: StorageRetry,
    ) -> None:
        self._spec, self._held, self._storage, self._options = spec, held, storage, options
        self._store, self._progress, self._retry = held.store, options.progress, retry
        self._ended, self._told_at = -1, time.monotonic()
        self._watch: LimitWatch | None = None
        self.region: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Enforce the limits of the study within the context."""
        if self._options.limits is None:
            yield
            return
        folder, number = self._options.folder, str(self._held.study.id)
        folders = [folder / "checkpoints" / number, folder / "trials" / number]
        with LimitWatch(self._options.limits, folders) as self._watch:
            yield

    def all(self) -> tuple[StudyForecast | None, StudyState, str]:
        """Run the sweep, then conclude; return the forecast, the new state of the study, and a message."""
        from hpo.tuning.trainings import TrainingsEnding
        from hpo.tuning.tuner import run_sweep

        options = self._options
        self._ended = self._told_before()
        if options.check:
            with self.region():
                check_workload(self._spec)
                check_full_scale(self._spec)
        end = run_sweep(
            self._spec,
            self._held.study,
            self._store,
            folder=options.folder,
            progress=self._trials,
            ray=options.ray,
            retry=self._retry,
            stop=self.must_stop,
            say=self._search_goes_on,
        )
        if end.ending is TrainingsEnding.STOPPED:
            raise _Stopped
        if end.message:
            self._progress.message(end.message)
            spent = end.ending is TrainingsEnding.SPENT
            self._held.event("budget_spent" if spent else "search_ended", end.message)
        self._measure_cost()
        made, message = self._conclude(self._race())
        return made, StudyState.FINISHED, "; ".join(filter(None, (end.message, message)))

    def _race(self) -> StudyForecast | None:
        """Train a few settings at the full-scale batch size itself if the race can save more than it costs.

        If nothing was raced, return the forecast made for that decision, which then serves as the study's forecast.
        """
        from hpo.tuning.trainings import TrainingsEnding

        batch = self._spec.race_batch
        if batch is None:
            return None
        result = self._read()
        swept_there = any(
            has_full_scale_sizes(self._spec, trial.settings) for trial in result.searched
        )
        if best_settings(result.swept, self._spec.question) is None or swept_there:
            return None  # there is no evidence yet, or the sweep itself trained there
        self._progress.message(f"fitting the laws to {len(result.trials)} trials")
        with self.region():
            plan = plan_race(result, batch)
        cheaper = direct_search(result, plan.forecast)
        if cheaper:
            self._progress.message(cheaper)
            self._held.event("direct_search", cheaper)
        end = run_plan_of_race(
            plan,
            result,
            self._held,
            folder=self._options.folder,
            progress=self._progress,
            ray=self._options.ray,
            storage_retry_seconds=self._options.storage_retry_seconds,
            stop=self.must_stop,
        )
        self._held.event("race", plan.message if plan.course is None else self._raced(batch))
        if end is not None and end.ending is TrainingsEnding.STOPPED:
            raise _Stopped
        return plan.forecast if end is None and not result.raced else None

    def _raced(self, batch: int) -> str:
        trials = [trial for trial in self._read().raced if trial.global_batch_size == batch]
        states = Counter(str(trial.state) for trial in trials)
        return f"{len(trials)} runs at {batch}: {', '.join(f'{n} {state}' for state, n in sorted(states.items()))}"

    def _read(self) -> StudyResult:
        return self._retry(
            lambda: repository.read_result(self._store, self._spec.name, self._storage, self._spec)
        )

    def _measure_cost(self) -> None:
        """Measure the cost of a sample, for plans; this happens in this process, so only after a trial has shown that
        the workload can be trained.
        """
        trials = self._retry(lambda: self._store.trials(self._held.study.id))
        if any(trial.state.finished and trial.state is not TrialState.FAILED for trial in trials):
            with self.region():
                said = self._retry(
                    lambda: repository.measure_cost(self._store, self._held.study, self._spec)
                )
            if said:
                self._progress.message(said)

    def stopped(self) -> tuple[StudyState, str]:
        """Return the state for a study whose run was stopped, and a message."""
        if self._held.cancelled:
            return (
                StudyState.CANCELLED,
                "cancelled; finished trials are kept, and resuming the study continues from them",
            )
        if self._excess:
            return StudyState.FAILED, self._excess
        return self._options.stopped_state, self._options.stopped_message

    def release(self, state: StudyState, message: str) -> Study:
        """Release the study, retrying while the database is unavailable; a requested cancellation takes effect."""

        def released() -> Study | None:
            study = self._store.study(self._spec.name)
            done = study.state in (state, StudyState.CANCELLED)  # or cancelled as it was released
            return study if study.lease_worker is None and done else None

        study = self._retry(lambda: self._held.release(state, message), released)
        self._held.event(str(study.state), study.message or f"the study is {study.state}")
        return study

    def must_stop(self) -> bool:
        """Return whether the run must stop; any thread may call it."""
        return self._held.stopping or bool(self._excess) or self._options.stop()

    @property
    def _excess(self) -> str:
        return self._watch.excess if self._watch else ""

    def _check(self) -> None:
        if self.must_stop():
            raise _Stopped

    def _trials(self, trials: list[Trial], running: Mapping[int, Mapping[str, Any]]) -> None:
        """Report progress to the caller, and every few seconds to the log."""
        self._progress.sweep(self._spec, trials, running)
        if time.monotonic() - self._told_at >= EVENT_SECONDS:
            self._told_at = time.monotonic()
            self._count(trials)

    def _search_goes_on(self, why: str) -> None:
        """Report what a search that stops by itself will train next, and why."""
        self._progress.message(why)
        self._held.event("search_step", why)

    def _told_before(self) -> int:
        """Return how many trials of the sweep had ended when the run started, or -1 if none had."""
        there = self._retry(lambda: self._store.trials(self._held.study.id))
        return (
            sum(each.state.finished and each.purpose == TrialPurpose.SWEEP for each in there) or -1
        )

    def _count(self, trials: Sequence[Trial]) -> None:
        states = Counter(str(trial.state) for trial in trials if trial.state.finished)
        if states.total() != self._ended:
            self._ended = states.total()
            of_them = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
            self._held.event(
                "trials",
                f"{self._spec.budget.counted(self._ended)} have ended"
                f"{f': {of_them}' if of_them else ''}",
                **states,
            )

    def _conclude(self, known: StudyForecast | None) -> tuple[StudyForecast | None, str]:
        """Forecast, plan and validate at the full-scale batch size; return the forecast and a message.

        ``known`` is the forecast if it was already made. Raises :class:`TuningError` if failures are the reason why no
        trial reached the target.
        """
        from hpo.tuning.trainings import failed_trials_advice

        result = self._read()
        self._count([trial for trial in result.swept if trial not in result.imported])
        own = [trial for trial in result.trials if trial not in result.imported]
        losses, question = losses_in_words(own), self._spec.question
        best, nothing = (
            best_settings(result.trials, question),
            f"no trial {outcome_words(question, own)}",
        )
        if is_lost_study(own, question) and best is None:
            raise TuningError(f"{nothing}: {losses}\n{failed_trials_advice(self._spec.name)}")
        if losses:
            self._progress.message(losses)
            self._held.event("losses", losses)
        full = result.spec.full_scale
        if full is None:
            return None, ""
        if best is None:
            return (
                None,
                f"{nothing}: no forecast; {trial_ends_in_words(own)}; {lost_trials_advice(question, own)}",
            )
        if known is None:
            self._progress.message(f"fitting the laws to {len(result.trials)} trials")
        with self.region():
            known = known or forecast(result, full.global_batch_size)
        made = self._keep_forecast(known)
        with self.region():
            plan = make_plan(made, full.machine, full.nodes, full.workers)
        rules = baseline_plans(result, plan) if full.validate_plan else []
        if full.validate_plan and not rules:
            self._progress.message(
                f"no rule of thumb to compare with: no trial below {full.global_batch_size} "
                f"has settings to scale up that differ from the forecast's"
            )
        for each in (plan, *rules):
            self._check()
            directory = self._options.folder / "plans" / folder_name(each)
            kept = self._keep_plan(made, each, directory)
            if full.validate_plan:
                self._validate(kept, directory)
        return made, ""

    def _keep_forecast(self, fitted: StudyForecast) -> StudyForecast:
        made = self._retry(lambda: repository.keep_forecast(self._store, fitted))
        epochs, batch = made.numbers.epochs_to_target, made.global_batch_size
        best = made.numbers.best
        said = (
            f"the target takes {epochs.median:.4g} epochs ({epochs.low:.4g} to {epochs.high:.4g})"
            if best is None
            else f"{best.metric} reaches {best.interval.median:.4g} ({best.interval.low:.4g} to "
            f"{best.interval.high:.4g}) in {best.epochs:g} epochs"
        )
        self._held.event(
            "forecast",
            f"at global batch size {batch} {said}, trust {made.numbers.trust}",
            global_batch_size=batch,
            epochs_median=epochs.median,
        )
        return made

    def _keep_plan(self, made: StudyForecast, plan: Plan, directory: Path) -> Plan:
        kept = self._retry(
            lambda: repository.keep_plan(
                self._store,
                made,
                plan,
                directory,
                choose_launch_backend(None, plan.launcher, self._spec.workload),
            )
        )
        self._held.event(
            "plan",
            f"plan {kept.id}: {KIND_NAMES[kept.kind]} at {kept.global_batch_size} on "
            f"{kept.workers} workers of {kept.machine}",
            plan=kept.id,
        )
        return kept

    def _validate(self, plan: Plan, directory: Path) -> None:
        """Launch a plan with at least ``LEAST_SEEDS`` new seeds, skipping those that were already run."""
        plan_id = plan.id
        if plan_id is None:
            raise PlanError("a plan must be stored before it is validated")
        backend, first = choose_launch_backend(None, workload=self._spec.workload), plan.job.seed

        def done() -> set[int]:
            return {outcome.seed for outcome in self._store.outcomes(plan_id)}

        for seed in sorted(
            set(range(first, first + max(LEAST_SEEDS, self._spec.seeds))) - self._retry(done)
        ):
            self._progress.message(
                f"running {KIND_NAMES[plan.kind]} at {plan.global_batch_size} on {plan.workers} "
                f"workers, seed {seed}"
            )
            with held_plan_run(self._store, plan_id, seed):
                launched = self._retry(
                    lambda seed=seed: self._launch(plan, directory, backend, seed)  # type: ignore[misc]
                )

            def keep(seed: int = seed, launched: LaunchReport = launched) -> bool:
                repository.keep_outcome(self._store, plan_id, seed, backend, plan.workers, launched)
                return True

            self._retry(keep, lambda seed=seed: seed in done() or None)  # type: ignore[misc]
            self._held.event(
                "outcome",
                f"plan {plan_id}, seed {seed}: {launched.outcome.state} after "
                f"{launched.outcome.epochs:.4g} epochs",
                plan=plan_id,
                seed=seed,
            )

    def _launch(self, plan: Plan, directory: Path, backend: str, seed: int) -> LaunchReport:
        def on_point(point: ConvergencePoint) -> None:
            self._progress.run(plan, seed, point)

        return run_plan_locally(
            plan,
            directory,
            backend=backend,
            seed=seed,
            on_point=on_point,
            check=self._check,
            on_restart=self._progress.message,
        )


def run_study(
    spec: StudySpec,
    storage: str = DEFAULT_STORAGE,
    *,
    folder: Path | str = DEFAULT_FOLDER,
    progress: Progress | None = None,
    ray_address: str | None = None,
    storage_retry_seconds: float = 300.0,
    stop_after: float | None = None,
    price_seconds: float = 0.0,
    retry_failed: bool = False,
) -> StudyResult:
    """Sweep, extrapolate, plan and, if the study asks for it, validate; resume an existing study of this name.

    If a call is interrupted, its result is not ``complete``; the same call later resumes from the database. A lease
    ensures that no worker runs the study at the same time. An unavailable database is retried for up to
    ``storage_retry_seconds``. After ``stop_after`` seconds the run stops as if it had been interrupted, for example
    before the end of a slot. A study without trials is first timed for at most ``price_seconds``, so that ``progress``
    can show its price; 0 skips this. Failed trials are trained again if the program or its command in ``spec`` has
    changed, and always with ``retry_failed``. Raises :class:`SpecError` for a study that cannot be run, and
    :class:`LaunchError` if a validation run fails. Raises :class:`TuningError` if Ray fails, if another process runs
    the study, or if failures are the reason why no trial reached the target.
    """
    from hpo.tuning.tuner import RayOptions, hold_study_lock

    progress, folder = progress or notebook_progress(), Path(folder).absolute()
    until = None if stop_after is None else time.monotonic() + stop_after
    workload = check_workload(spec)
    check_full_scale(spec)
    with open_store(storage) as store, contextlib.ExitStack() as stack:
        study = repository.enter_study(store, spec)
        stack.enter_context(hold_study_lock(folder, study))
        held = stack.enter_context(
            HeldLease(store, take_lease(store, study), on_warning=progress.message)
        )
        if retry_failed or starts_otherwise(compared_spec(study, spec).to_dict(), spec.to_dict()):
            again = held.store.retry_failed(study.id)
            if again:
                held.event("retried", retry_message(again))
                progress.message(retry_message(again))
        held.store.update_spec(study.id, spec.text, search_path(spec), spec.budget.asked_trials)
        if price_seconds > 0 and not store.counts(study.id, TrialPurpose.SWEEP):
            progress.price(spec, study_price(spec, workload, seconds=price_seconds))
        del workload  # its data takes up memory, and the sweep's trials open their own
        stack.enter_context(
            trackers_beside(spec.trackers, study, storage, folder / "trackers", progress.message)
        )
        end = run_held_study(
            spec,
            held,
            storage,
            RunOptions(
                folder=folder,
                storage_retry_seconds=storage_retry_seconds,
                ray=RayOptions(ray_address),
                stop=lambda: until is not None and time.monotonic() >= until,
                progress=progress,
            ),
        )
        result = repository.read_result(store, study.name, storage, spec)
        return (
            dataclasses.replace(result, forecast=end.forecast)
            if end.forecast
            else with_forecast(result)
        )
