"""Trains several trials of a sweep at once, as one model, in this process (:mod:`trainers.fused`).

Trials that can be computed together share a model. Other trials, such as those of the next rung, start a new model, and
the models take turns. When a trial ends or is stopped, it leaves its model and the next trial takes its slot. The
sweep, the stopping rules and the record of a trial's end are the same as in :mod:`hpo.tuning.tuner`.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from hpo.tuning.generation.strategy import SweepDone
from hpo.tuning.interrupt import Interrupter, WorkInterrupted
from hpo.tuning.result_handler import ResultHandler
from hpo.tuning.stopping import CurveStopping, LadderASHA, RunningTrial
from hpo.tuning.trainings import StudyTrainings
from hpo.tuning.trial_run import TrialRun

if TYPE_CHECKING:
    from trainers.fused import FusedTrainings


def train_fused(sweep: StudyTrainings, rule: LadderASHA | CurveStopping, slots: int) -> None:
    """Train up to ``slots`` trials at once, until the sweep has nothing left to start or is interrupted."""
    handler, fused, number = ResultHandler(sweep, rule), FusedRuns(), 0
    running: dict[str, RunningTrial] = {}
    with Interrupter(lambda: sweep.interrupted) as interrupter:
        try:
            while not sweep.interrupted:
                while len(running) < slots:
                    config = sweep.next_config(str(number))
                    if config is None or isinstance(config, SweepDone):
                        break
                    trial = RunningTrial(str(number), config)
                    running[trial.trial_id] = trial
                    number += 1
                    rule.begins(trial)
                    with interrupter.region():
                        fused.begin(trial.trial_id, config)
                if not running:
                    return
                with interrupter.region():
                    results = fused.advance()
                for trial_id, found in results.items():
                    trial, result = running[trial_id], {**found, "trial_id": trial_id}
                    if _take(trial, result, handler, rule):
                        fused.end(trial_id)
                        del running[trial_id]
        except WorkInterrupted:
            pass
    for trial in running.values():  # the next run resumes these trials
        rule.ended(trial, trial.last_result)
        handler.end(trial)


def _take(
    trial: RunningTrial,
    result: dict[str, Any],
    handler: ResultHandler,
    rule: LadderASHA | CurveStopping,
) -> bool:
    """Record one evaluation, in the order of Tune's own loop; return whether the trial has ended."""
    ended = bool(result.get("done")) or rule.stops(trial, result)
    handler.result(trial, result)
    trial.last_result = result
    if ended:
        rule.ended(trial, result)
        handler.end(trial)
    return ended


class FusedRuns:
    """The trials of this process, by id; their results have the same form as in
    :class:`~hpo.tuning.trial_run.TrialRun`.
    """

    def __init__(self) -> None:
        self._workloads: dict[str, Any] = {}
        self._runs: dict[str, TrialRun] = {}
        self._models: dict[str, FusedTrainings] = {}
        self._turns: deque[str] = deque()
        self._ready: dict[str, dict[str, Any]] = {}

    def begin(self, trial_id: str, config: dict[str, Any]) -> None:
        """Build a trial's training, or resume its checkpoint, and add it to a compatible model."""
        from trainers.errors import JobError
        from trainers.fused import FusedTrainings, fusion_key
        from trainers.loop.synchronous import SynchronousTraining

        run = self._runs[trial_id] = TrialRun(workloads=self._workloads)
        run.begin(config)
        training = run.training
        if training is None:
            self._ready[trial_id] = run.advance()  # returns the failure as a result
            return
        if training.finished:  # the checkpoint was written when the trial ended
            self._ready[trial_id] = run.told(None)
            return
        try:
            if not isinstance(training, SynchronousTraining):
                raise JobError(
                    "fused trials need a workload with a model that largebatch itself trains, "
                    "but got "
                    f"{training.job.workload!r}; leave resources.fused_trials out"
                )
            key = fusion_key(training.job)
            model = self._models.get(key) or FusedTrainings()
            model.add(training)
        except JobError as error:
            self._ready[trial_id] = _failed(error)
            return
        if key not in self._models:
            self._models[key] = model
            self._turns.append(key)

    def advance(self) -> dict[str, dict[str, Any]]:
        """Train one of the models until its next evaluation; return the results of the evaluated trials, by id."""
        if self._ready:
            ready, self._ready = self._ready, {}
            return ready
        key = self._turns[0]
        self._turns.rotate(-1)
        ids = {id(run.training): trial_id for trial_id, run in self._runs.items()}
        model = self._models[key]
        try:
            found = model.advance()
            return {
                ids[id(training)]: self._runs[ids[id(training)]].told(point)
                for training, point in found
            }
        except Exception as error:
            return {ids[id(training)]: _failed(error) for training in model.trainings}

    def end(self, trial_id: str) -> None:
        """Remove a trial."""
        run = self._runs.pop(trial_id)
        for key, model in list(self._models.items()):
            for training in model.trainings:
                if training is run.training:
                    model.remove(training)
            if not model.trainings:
                del self._models[key]
                self._turns.remove(key)
        run.close()


def _failed(error: Exception) -> dict[str, Any]:
    return {"state": "failed", "reason": f"{type(error).__name__}: {error}", "done": True}
