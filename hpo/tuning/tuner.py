"""Runs a sweep or a race on Ray Tune, embedded on this machine or on an existing cluster.

Trials of a simulated workload are trained in this process, without Ray.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import logging
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpo.errors import TuningError
from hpo.study.jobs import search_path
from hpo.study.restart_limits import RAY_STARTS, TRIAL_RESTARTS
from hpo.study.samplers import SAMPLERS
from hpo.study.spec import StudySpec
from hpo.tuning.generation.race import RaceCourse
from hpo.tuning.race import Race
from hpo.tuning.retry import StorageRetry
from hpo.tuning.stopping import FAR_BEHIND, CurveStopping, LadderASHA
from hpo.tuning.sweep import Sweep
from hpo.tuning.trainings import Progress, StudyTrainings, TrainingsEnding
from storage.records import Study
from storage.store import Store
from trainers.errors import CommunicationError
from trainers.private_files import (
    lock_file,
    make_private_folder,
    make_writable_folder,
    open_private,
)

_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",  # a trial that failed at the start has no metric
    "TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S": "0",
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


@dataclass(frozen=True)
class RayOptions:
    """Where the trials run: a cluster's ``address``, or this machine with ``cores`` (None for all cores).

    ``keep`` leaves Ray running for the next sweep of this process, until :func:`stop_ray` is called.
    """

    address: str | None = None
    cores: int | None = None
    keep: bool = False


@dataclass(frozen=True)
class SweepEnd:
    """How a sweep ended, with a message about it."""

    ending: TrainingsEnding
    message: str = ""


_kept: list[RayOptions] = []
"""The Ray instance that this module has started; at most one per process."""


def run_sweep(
    spec: StudySpec,
    study: Study,
    store: Store,
    *,
    folder: Path,
    progress: Progress,
    ray: RayOptions | None = None,
    retry: StorageRetry | None = None,
    stop: Callable[[], bool] = lambda: False,
    say: Callable[[str], None] = lambda text: None,  # noqa: ARG005
) -> SweepEnd:
    """Run the remaining trials of the study's budget.

    When a sweep is stopped, by ``stop`` or Ctrl-C, everything that finished is stored, and the same call resumes the
    sweep. ``folder`` holds the checkpoints of trials in flight; on a cluster it must be shared by all machines. A sweep
    that decides when to end passes each reason to continue to ``say``, as one line of text. Raises :class:`TuningError`
    if Ray cannot be started or fails as a whole, and the store's own errors if the database is unavailable for longer
    than ``retry`` allows or the study's lease is lost.
    """
    sweep = Sweep(
        spec,
        study,
        store,
        checkpoints=_checkpoints(folder, study),
        progress=progress,
        retry=retry,
        stop=stop,
        say=say,
    )
    end = _run(
        spec, sweep, lambda: stopping_rule_of_study(spec, sweep), _checkpoints(folder, study), ray
    )
    return SweepEnd(end.ending, sweep.why_ended) if end.ending is TrainingsEnding.COMPLETE else end


def run_race(
    spec: StudySpec,
    study: Study,
    store: Store,
    course: RaceCourse,
    *,
    folder: Path,
    progress: Progress,
    ray: RayOptions | None = None,
    retry: StorageRetry | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> SweepEnd:
    """Run the remaining trials of a race; everything else is as in :func:`run_sweep`."""
    race = Race(
        spec,
        study,
        store,
        course,
        checkpoints=_checkpoints(folder, study),
        progress=progress,
        retry=retry,
        stop=stop,
    )
    end = _run(
        spec,
        race,
        lambda: CurveStopping(
            spec.target.threshold,
            most=lambda: FAR_BEHIND * race.fewest_epochs,
        ),
        _checkpoints(folder, study),
        ray,
    )
    if end.ending is TrainingsEnding.COMPLETE and race.out_of_epochs:
        return SweepEnd(end.ending, "the budget of the race is spent")
    return end


def _run(
    spec: StudySpec,
    trainings: StudyTrainings,
    rule: Callable[[], LadderASHA | CurveStopping],
    checkpoints: Path,
    ray: RayOptions | None,
) -> SweepEnd:
    if not (trainings.complete or trainings.interrupted):
        try:
            _train(spec, trainings, rule, ray or RayOptions())
        except KeyboardInterrupt:
            pass  # a second Ctrl-C; stored results are safe
        finally:
            trainings.close()
    end = SweepEnd(trainings.ending, trainings.spent)
    if end.ending is TrainingsEnding.COMPLETE:
        shutil.rmtree(checkpoints, ignore_errors=True)
    return end


def _checkpoints(folder: Path, study: Study) -> Path:
    checkpoints = folder / "checkpoints" / str(study.id)
    make_private_folder(checkpoints)
    return checkpoints


def stop_ray() -> None:
    """Stop the Ray instance that :func:`run_sweep` started, if any."""
    if _kept:
        from trainers.asynchronous import ray_session

        _kept.clear()
        ray_session.stop_ray()


def prepare_folder(folder: Path) -> None:
    """Create the folder of checkpoints and plans if it is missing; raise :class:`TuningError` if nothing can be written
    to it.
    """
    try:
        make_writable_folder(folder)
    except OSError as error:
        raise TuningError(
            f"cannot write to the folder {folder}: {error.strerror or error}; give another (--folder)"
        ) from error


@contextlib.contextmanager
def hold_study_lock(folder: Path, study: Study) -> Iterator[None]:
    """Hold the study's lock in ``folder``; raise :class:`TuningError` if another process runs the study from that
    folder, or if nothing can be written to it.

    The lock is released when its process ends, for whatever reason.
    """
    prepare_folder(folder)
    with open(folder / f"study-{study.id}.lock", "w", opener=open_private) as lock:
        try:
            lock_file(lock)
        except OSError as error:
            raise TuningError(
                f"another process is running study {study.name!r} from {folder}; wait for it, or "
                "interrupt it and run the study again"
            ) from error
        yield


def _train(
    spec: StudySpec,
    trainings: StudyTrainings,
    rule: Callable[[], LadderASHA | CurveStopping],
    options: RayOptions,
) -> None:
    """Train in this process, with several trials as one model or one after the other, or on Ray."""
    if spec.resources.fused_trials > 1:
        from hpo.tuning.fused import train_fused

        train_fused(trainings, rule(), spec.resources.fused_trials)
        return
    from trainers.workloads import workload_class

    if workload_class(spec.workload, search_path(spec)).simulated:
        from hpo.tuning.in_process import train_in_process

        train_in_process(trainings, rule())
        return
    with _ray(options), tempfile.TemporaryDirectory(prefix="hpo-tune-") as scratch:
        try:
            _tune(spec, trainings, rule(), Path(scratch))
        finally:
            gc.collect()  # frees the actors of an interrupted run, which still occupy cores


def stopping_rule_of_study(spec: StudySpec, sweep: Sweep) -> LadderASHA | CurveStopping:
    """Return the early-stopping rule, initialized with the history of the trials that have ended."""
    rule: LadderASHA | CurveStopping
    if SAMPLERS[spec.sampler].chooses_rung:
        rule = CurveStopping(spec.target.threshold)
    else:
        rule = LadderASHA(
            spec.budget.epochs_per_trial,
            higher_is_better=spec.target.higher_is_better,
        )
    explored = sweep.explored
    for trial in sweep.finished_trials:
        points: list[dict[str, Any]] = [
            {"epochs": point.epochs, "metric": point.metric} for point in sweep.points(trial)
        ]
        if trial.id in explored and points:
            points[-1]["state"] = str(trial.state)
            rule.replay(f"stored-{trial.id}", sweep.rung(trial), points)
    return rule


def _tune(
    spec: StudySpec, sweep: StudyTrainings, rule: LadderASHA | CurveStopping, scratch: Path
) -> None:
    import ray
    from ray import tune

    from hpo.tuning.callbacks import RayResultCallback, RayScheduler, SweepStopper
    from hpo.tuning.resources import TrialResources, check_gpu_shares, machines_of_ray
    from hpo.tuning.searcher import SweepSearcher
    from hpo.tuning.trainable import TrialTrainable

    machines = machines_of_ray()
    resources = TrialResources.of(spec, machines)
    check_gpu_shares(resources)
    concurrent = resources.concurrent(machines)
    sweep.resources = dataclasses.asdict(resources)
    handler = RayResultCallback(sweep, rule)
    stopping = SweepStopper(sweep, handler)
    # `tune.run`, not `Tuner`: `Tuner` pickles the searcher and callbacks, which hold the open database.
    try:
        tune.run(
            TrialTrainable,
            resources_per_trial=resources.to_tune(),
            search_alg=SweepSearcher(sweep),
            scheduler=RayScheduler(sweep, rule),
            num_samples=-1,
            reuse_actors=True,
            max_concurrent_trials=concurrent,
            max_failures=TRIAL_RESTARTS,
            callbacks=[handler],
            stop=stopping,
            storage_path=str(scratch),
            name="sweep",
            verbose=0,
            raise_on_failed_trial=False,
        )
    except (tune.TuneError, ray.exceptions.RayError) as error:
        last_line = str(error).strip().splitlines()[-1]
        raise TuningError(f"Ray Tune stopped: {last_line}") from error
    finally:
        stopping.close()


@contextlib.contextmanager
def _ray(options: RayOptions) -> Iterator[None]:
    """Provide Ray: the caller's instance if one is running, a cluster's, or one for the duration of the sweep."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    import ray

    _quiet_logs()
    started = not ray.is_initialized()
    if started:
        _start_ray(options)
        _kept[:] = [options]
    else:
        _check_ray()
    try:
        yield
    except TuningError:
        if options.keep:
            stop_ray()  # the next sweep gets a new one
        raise
    finally:
        if started and not options.keep:
            stop_ray()


def _check_ray() -> None:
    from trainers.asynchronous import ray_session

    try:
        ray_session.check_running()
    except CommunicationError as error:
        raise TuningError(str(error)) from error


def _start_ray(options: RayOptions) -> None:
    from trainers.asynchronous import ray_session

    address = options.address
    attempts = 1 if address else RAY_STARTS
    for attempt in range(attempts):
        try:
            with _own_signals():
                ray_session.start_ray(
                    address,
                    include_dashboard=None if address else False,
                    log_to_driver=False,
                    num_cpus=None if address else options.cores,
                    logging_level=logging.ERROR,
                )
            return
        except Exception as error:
            if attempt == attempts - 1 or isinstance(error, CommunicationError):
                where = f"the cluster at {address}" if address else "Ray on this machine"
                raise TuningError(f"could not start {where}: {error}") from error
            ray_session.stop_ray()  # stop a partial start


@contextlib.contextmanager
def _own_signals() -> Iterator[None]:
    """Restore the caller's SIGTERM handler, which Ray replaces with a handler that exits immediately."""
    main = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGTERM) if main else None
    try:
        yield
    finally:
        if callable(handler):
            signal.signal(signal.SIGTERM, handler)


def _quiet_logs() -> None:
    """Suppress Tune's long messages about failed trials, which are recorded anyway, and about result files, which are
    unused.
    """
    for name in (
        "ray.tune.analysis.experiment_analysis",
        "ray.tune.execution.tune_controller",
        "ray.tune.tune",
        "ray.tune.search.searcher",
    ):
        logging.getLogger(name).setLevel(logging.CRITICAL)
