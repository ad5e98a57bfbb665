"""A simulated training of configurable duration that logs its start, used by the fault benchmarks.

Data options: those of ``noisy_quadratic``; ``seconds`` per evaluation; ``run_seconds`` per evaluation if several
processes train; ``log``, a file that gets a line of JSON for each training that begins: the process, the time, the
batch, the seed and the learning rate.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainers.distributed import Communicator
from trainers.job import TrainingJob
from trainers.workloads.noisy_quadratic.task import NoisyQuadratic, SimulatedTraining
from trainers.workloads.training_run import TrainingSegment


class Paced(NoisyQuadratic):
    """A noisy quadratic whose evaluations take ``seconds`` of real time."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        plain = dict(data)
        self.seconds, self.log = float(plain.pop("seconds", 0)), plain.pop("log", None)
        self.run_seconds = float(plain.pop("run_seconds", self.seconds))
        super().__init__(plain)

    def begin(self, job: TrainingJob, communicator: Communicator | None) -> SimulatedTraining:
        """Return a simulated training that sleeps."""
        of_several = communicator is not None and communicator.size > 1
        return _Paced(job, workload=self, pause=self.run_seconds if of_several else self.seconds)


class OnRay(Paced):
    """The same in Ray processes, as for a long training."""

    simulated = False


class _Paced(SimulatedTraining):
    def __init__(self, job: TrainingJob, *, workload: Paced, pause: float) -> None:
        super().__init__(job, workload=workload)
        self._pause, self._log = pause, workload.log

    def _train(self, first_step: int, last_step: int) -> TrainingSegment:
        if self._log is not None:
            self._say(Path(self._log))
        time.sleep(self._pause)
        return super()._train(first_step, last_step)

    def _say(self, file: Path) -> None:
        """Log at the first updates, as Tune may build a training and then give it to another process."""
        line = {
            "pid": os.getpid(),
            "at": time.time(),
            "global_batch_size": self.job.global_batch_size,
            "seed": self.job.seed,
            "learning_rate": self.job.settings.learning_rate,
        }
        with file.open("a", encoding="utf-8") as log:
            log.write(json.dumps(line) + "\n")
        self._log = None
