"""Runs a sweep on Ray Tune: embedded on this machine, or on a cluster that is already there."""

from __future__ import annotations

import contextlib
import fcntl
import gc
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hpo.errors import TuningError
from hpo.study import StudySpec
from hpo.tuning.sweep import Progress, Sweep
from storage.records import Study
from storage.store import Store

RESTARTS = 2
"""How often a trial whose process died is started again, from its checkpoint, before it counts as failed."""

_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",     # a trial that failed at its start has no metric
    "TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S": "0",
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


def run_sweep(spec: StudySpec, study: Study, store: Store, *, folder: Path, progress: Progress,
              ray_address: str | None = None) -> bool:
    """Train what is left of the study's budget; returns whether all of it has ended.

    False means interrupted (Ctrl-C): everything finished is stored, and the same call goes on from there.
    ``folder`` takes the checkpoints of trials in flight; on a cluster it must be shared by its machines.
    Raises :class:`TuningError` where Ray cannot be started or fails as a whole.
    """
    checkpoints = folder / "checkpoints" / str(study.id)
    checkpoints.mkdir(parents=True, exist_ok=True)
    sweep = Sweep(spec, study, store, checkpoints=checkpoints, progress=progress)
    if not sweep.complete:
        with _ray(ray_address), tempfile.TemporaryDirectory(prefix="hpo-tune-") as scratch:
            try:
                _tune(spec, sweep, store, Path(scratch))
            except KeyboardInterrupt:
                pass    # a second Ctrl-C: what is stored is stored
            finally:
                sweep.close()
                gc.collect()    # frees the actors of a run that was cut off, which would keep their cores
    if sweep.complete:
        shutil.rmtree(checkpoints, ignore_errors=True)
    return sweep.complete


@contextlib.contextmanager
def only_runner(folder: Path, study: Study) -> Iterator[None]:
    """Hold the study's lock in ``folder``; :class:`TuningError` where another process runs it from there.

    The lock goes with the process that holds it, however that ends.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"study-{study.id}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise TuningError(f"another process is running study {study.name!r} from {folder}; wait for it, or "
                              "interrupt it and run the study again") from error
        yield


def _tune(spec: StudySpec, sweep: Sweep, store: Store, scratch: Path) -> None:
    import ray
    from ray import tune

    from hpo.tuning.callbacks import Recording
    from hpo.tuning.searcher import SweepSearcher
    from hpo.tuning.stopping import CurveStopping, LadderASHA
    from hpo.tuning.trainable import TrialTrainable

    scheduler: LadderASHA | CurveStopping
    if spec.sampler == "forecast":
        scheduler = CurveStopping(spec.target.threshold, interrupted=lambda: sweep.interrupted)
    else:
        scheduler = LadderASHA(sweep.batches, spec.budget.epochs_per_trial,
                               higher_is_better=spec.target.higher_is_better, interrupted=lambda: sweep.interrupted)
    for trial in sweep.finished_trials:
        points: list[dict[str, Any]] = [{"epochs": point.epochs, "metric": point.metric}
                                        for point in store.points(trial.id)]
        if trial.seed == 0 and points:
            points[-1]["state"] = str(trial.state)
            scheduler.replay(f"stored-{trial.id}", trial.global_batch_size, points)
    resources = {"cpu": 1, "gpu": 1 if ray.cluster_resources().get("GPU") else 0}
    concurrent = int(ray.cluster_resources().get("GPU") or ray.cluster_resources()["CPU"])
    # `tune.run`, not `Tuner`: the latter pickles searcher and callbacks, which hold the open database.
    try:
        tune.run(
            TrialTrainable, resources_per_trial=resources, search_alg=SweepSearcher(sweep), scheduler=scheduler,
            num_samples=-1, reuse_actors=True, max_concurrent_trials=concurrent, max_failures=RESTARTS,
            callbacks=[Recording(sweep, scheduler)], storage_path=str(scratch), name="sweep", verbose=0,
            raise_on_failed_trial=False)
    except tune.TuneError as error:
        last_line = str(error).strip().splitlines()[-1]
        raise TuningError(f"Ray Tune stopped: {last_line}") from error


@contextlib.contextmanager
def _ray(address: str | None) -> Iterator[None]:
    """A Ray to work with: the caller's own if it is running, a cluster's, or one for the time of the sweep."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    import ray

    _quiet_logs()
    if ray.is_initialized():
        yield
        return
    try:
        ray.init(address=address, include_dashboard=False if address is None else None,
                 log_to_driver=False, logging_level=logging.ERROR)
    except Exception as error:
        where = f"the cluster at {address}" if address else "Ray on this machine"
        raise TuningError(f"could not start {where}: {error}") from error
    try:
        yield
    finally:
        ray.shutdown()


def _quiet_logs() -> None:
    """Tune tells at length of failed trials, which are recorded, and of result files, which are not meant to be."""
    for name in ("ray.tune.analysis.experiment_analysis", "ray.tune.execution.tune_controller", "ray.tune.tune",
                 "ray.tune.search.searcher"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
