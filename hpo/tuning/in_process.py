"""Trains a sweep's trials one after the other in this process: for workloads that are simulated in milliseconds.

An actor of Ray takes a second to start and every evaluation a round trip; a simulated training takes less than either
(``benchmarks/faults.md`` has the measurement). The sweep, the rules that stop a trial and the record of its end
are those of :mod:`hpo.tuning.tuner`.
"""

from __future__ import annotations

from typing import Any

from hpo.tuning.agenda import Done
from hpo.tuning.callbacks import Recording
from hpo.tuning.interrupt import Interrupter, WorkInterrupted
from hpo.tuning.stopping import CurveStopping, LadderASHA
from hpo.tuning.trainings import Trainings
from hpo.tuning.trial_run import TrialRun


class OwnTrial:
    """What the scheduler and the callback look at of a trial."""

    def __init__(self, trial_id: str, config: dict[str, Any]) -> None:
        self.trial_id, self.config = trial_id, config
        self.last_result: dict[str, Any] = {}


class NoController:
    """What the scheduler asks of Tune; the loop below looks at the sweep itself."""

    def request_stop_experiment(self) -> None:
        """Nothing: see the class."""


def train_all(sweep: Trainings, scheduler: LadderASHA | CurveStopping) -> None:
    """Train until the sweep has nothing left to start, or is interrupted."""
    recording, run, number = Recording(sweep, scheduler), TrialRun(), 0
    with Interrupter(lambda: sweep.interrupted) as interrupter:
        while True:
            config = sweep.next_config(str(number))
            if isinstance(config, Done):
                return
            assert config is not None, "a sweep waits only for trials that run, and none does"
            trial = OwnTrial(str(number), config)
            _train(trial, run, recording, scheduler, sweep, interrupter)
            number += 1


def _train(
    trial: OwnTrial,
    run: TrialRun,
    recording: Recording,
    scheduler: LadderASHA | CurveStopping,
    sweep: Trainings,
    interrupter: Interrupter,
) -> None:
    """The steps of Tune's own loop for one trial, in its order; a trial that is interrupted has not ended."""
    controller = NoController()
    scheduler.on_trial_add(controller, trial)
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
        ended = (
            bool(result.get("done"))
            or scheduler.on_trial_result(controller, trial, result) == scheduler.STOP
        )
        recording.on_trial_result(0, [], trial, result)
        trial.last_result = result
    scheduler.on_trial_complete(controller, trial, trial.last_result)
    recording.on_trial_complete(0, [], trial)
