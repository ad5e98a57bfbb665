"""The race of a study: trains a few candidate settings at the full-scale batch size itself and compares the results."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from hpo.errors import EvidenceError
from hpo.runs import repository
from hpo.runs.formatting import format_number
from hpo.runs.lease import HeldLease, take_lease
from hpo.runs.notebook import notebook_progress
from hpo.runs.progress import Progress
from hpo.runs.repository import DEFAULT_FOLDER, open_store
from hpo.runs.results import StudyForecast, StudyResult
from hpo.runs.study_forecast import forecast, forecast_without_race
from hpo.study.sizes import full_scale_sizes, has_full_scale_sizes, rung_in_words
from storage.errors import StoreError

if TYPE_CHECKING:
    from hpo.tuning.generation.race import RaceCourse
    from hpo.tuning.tuner import RayOptions, SweepEnd


@dataclasses.dataclass(frozen=True)
class RacePlan:
    """A planned race (None if there is none), the message to show before it starts, and the forecast without it."""

    course: RaceCourse | None
    message: str
    forecast: StudyForecast


def plan_race(
    result: StudyResult, global_batch_size: int, samples: int | None = None, *, forced: bool = False
) -> RacePlan:
    """Choose the configurations to race at a batch size. Evidence from a race there is ignored, so that repeated calls
    agree.

    ``samples`` is the maximum number of samples that the race may process with the full-scale model. By default it is
    the study's ``budget.race``, or else a quarter of the cost of its sweep. There is no race if that is too few for two
    training runs, or if the race would cost more than it can save (unless it is ``forced`` or has already started).
    Raises :class:`EvidenceError` if no trial of the study reached its target.
    """
    from hpo.tuning.generation.race import FINALISTS, LEAST_RUNS, RaceCourse, choose_candidates

    most = result.race_samples if samples is None else samples
    made = forecast_without_race(result, global_batch_size)
    assert made.posterior is not None, "a new forecast always has its fitted laws"
    begun = any(
        trial.global_batch_size == global_batch_size
        and has_full_scale_sizes(result.spec, trial.settings)
        for trial in result.raced
    )
    most_epochs = most / result.train_samples if result.train_samples else 0.0
    candidates = choose_candidates(made.posterior, global_batch_size, most_epochs)
    at = f"at {rung_in_words(global_batch_size, full_scale_sizes(result.spec))}"
    if candidates is None:
        return RacePlan(
            None,
            f"no race {at}: the study tunes no learning rate, so there is nothing to race",
            made,
        )
    if most_epochs < LEAST_RUNS * candidates.epochs:
        return RacePlan(
            None,
            f"no race {at}: its budget of {format_number(float(most))} samples is {most_epochs:.3g} "
            f"epochs, too few for two training runs of {candidates.epochs:.3g} epochs; raise "
            f"budget.race",
            made,
        )
    price = min((len(candidates.settings) + FINALISTS) * candidates.epochs, most_epochs)
    if candidates.worth_epochs < price and not (forced or begun):
        return RacePlan(
            None,
            f"no race {at}: it would cost {price:.3g} epochs, but the best settings there "
            f"would save at most {candidates.worth_epochs:.3g}",
            made,
        )
    fields = made.settings.to_dict()
    course = RaceCourse(
        global_batch_size,
        tuple({**fields, **settings} for settings in candidates.settings),
        candidates.epochs,
        candidates.limit_epochs,
        most_epochs,
    )
    return RacePlan(
        course,
        f"racing {len(candidates.settings)} configurations {at} within {most_epochs:.3g} epochs"
        + (f", {most / result.swept_samples:.0%} of the sweep's cost" if result.spec.sizes else ""),
        made,
    )


def run_race_plan(
    plan: RacePlan,
    result: StudyResult,
    holding: HeldLease,
    *,
    folder: Path,
    progress: Progress,
    ray: RayOptions | None = None,
    storage_retry_seconds: float = 300.0,
    stop: Callable[[], bool] = lambda: False,
) -> SweepEnd | None:
    """Train the remaining runs of a planned race under the study's lease; return None if there is no race."""
    from hpo.tuning.retry import StorageRetry
    from hpo.tuning.tuner import run_race

    progress.message(plan.message)
    if plan.course is None:
        return None
    retry = StorageRetry(
        storage_retry_seconds, progress.message, stopped=lambda: bool(holding.lost) or stop()
    )
    end = run_race(
        result.spec,
        holding.study,
        holding.store,
        plan.course,
        folder=folder,
        progress=progress.race,
        ray=ray,
        retry=retry,
        stop=stop,
    )
    if end.message:
        progress.message(end.message)
    return end


def race(
    result: StudyResult,
    global_batch_size: int | None = None,
    *,
    samples: int | None = None,
    folder: Path | str = DEFAULT_FOLDER,
    progress: Progress | None = None,
    ray_address: str | None = None,
    storage_retry_seconds: float = 300.0,
    stop: Callable[[], bool] = lambda: False,
) -> StudyResult:
    """Race candidate settings of a study at a batch size (default: full scale); return the study with its new trials
    and forecast.

    Calling it again continues an interrupted race; a finished race is not repeated. ``samples`` is the race's budget
    (default: the study's own). Raises :class:`EvidenceError` if no trial reached the target or there is nothing to
    race, and whatever :func:`hpo.run_study` raises.
    """
    from hpo.tuning.tuner import RayOptions, hold_study_lock

    full = result.spec.full_scale
    if global_batch_size is None and full is None:
        raise EvidenceError(
            f"a race needs a batch size, but study {result.study.name!r} has no full_scale; "
            f"give global_batch_size"
        )
    batch = (
        global_batch_size
        if global_batch_size is not None
        else full.global_batch_size
        if full
        else 0
    )
    plan = plan_race(result, batch, samples, forced=True)
    if plan.course is None:
        raise EvidenceError(plan.message)
    progress, folder = progress or notebook_progress(), Path(folder).absolute()
    with open_store(result.storage) as store, contextlib.ExitStack() as stack:
        study = store.study(result.study.name)
        before = study.state, study.message
        stack.enter_context(hold_study_lock(folder, study))
        holding = stack.enter_context(
            HeldLease(store, take_lease(store, study), on_warning=progress.message)
        )
        try:
            run_race_plan(
                plan,
                result,
                holding,
                folder=folder,
                progress=progress,
                ray=RayOptions(ray_address),
                storage_retry_seconds=storage_retry_seconds,
                stop=lambda: holding.stopping or stop(),
            )
        except StoreError:
            raise
        except BaseException:
            holding.release(*before)
            raise
        holding.release(*before)
        found = repository.read_result(store, study.name, result.storage, result.spec)
    return dataclasses.replace(found, forecast=forecast(found, batch))
