"""Trains a sweep's trials one after the other in this process, for workloads that are simulated in milliseconds.

A Ray actor takes a second to start, and every evaluation takes a round trip; a simulated trial takes less time than
either (see the measurement in ``benchmarks/faults.md``). The sweep, the stopping rules and the record of a trial's end
are the same as in :mod:`hpo.tuning.tuner`.
"""

from __future__ import annotations

from hpo.tuning.generation.strategy import SweepDone
from hpo.tuning.interrupt import Interrupter, WorkInterrupted
from hpo.tuning.result_handler import ResultHandler
from hpo.tuning.stopping import CurveStopping, LadderASHA, RunningTrial
from hpo.tuning.trainings import StudyTrainings
from hpo.tuning.trial_run import TrialRun


def train_in_process(sweep: StudyTrainings, rule: LadderASHA | CurveStopping) -> None:
    """Train until the sweep has nothing left to start or is interrupted."""
    handler, run, number = ResultHandler(sweep, rule), TrialRun(), 0
    with Interrupter(lambda: sweep.interrupted) as interrupter:
        while True:
            config = sweep.next_config(str(number))
            if isinstance(config, SweepDone):
                return
            assert config is not None, "a sweep waits only for running trials, and none is running"
            trial = RunningTrial(str(number), config)
            _train(trial, run, handler, rule, sweep, interrupter)
            number += 1


def _train(
    trial: RunningTrial,
    run: TrialRun,
    handler: ResultHandler,
    rule: LadderASHA | CurveStopping,
    sweep: StudyTrainings,
    interrupter: Interrupter,
) -> None:
    """Train one trial with the same steps as Tune's loop, in the same order; an interrupted trial does not count as
    ended.
    """
    rule.begins(trial)
    ended = False
    try:
        with interrupter.region():
            run.begin(trial.config)
    except WorkInterrupted:
        ended = True
    while not (ended or sweep.interrupted):
        try:
            with interrupter.region():
                result = {**run.advance(), "trial_id": trial.trial_id}
        except WorkInterrupted:
            break
        ended = bool(result.get("done")) or rule.stops(trial, result)
        handler.result(trial, result)
        trial.last_result = result
    rule.ended(trial, trial.last_result)
    handler.end(trial)
