"""The workload ``program``: a user's own training program, in any language and framework."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, ClassVar

from trainers.errors import JobError
from trainers.job import TrainingJob
from trainers.workloads.program.options import ProgramOptions
from trainers.workloads.program.training import ProgramPlace, ProgramTraining
from trainers.workloads.workload import AnyWorkload


class ProgramWorkload(AnyWorkload):
    """A program that is started for each training run; ``data`` is the study's ``program`` section."""

    metrics: ClassVar[Mapping[str, bool]] = {"loss": False}

    def __init__(self, data: Mapping[str, Any]) -> None:
        self.options = ProgramOptions.from_dict(data)
        self.options.check()
        self.train_samples = self.options.train_samples

    @classmethod
    def metrics_of(cls, data: Mapping[str, Any]) -> Mapping[str, bool]:
        """Return the metrics that the program reports, or only the loss if nothing is known about the program."""
        return ProgramOptions.from_dict(data).metrics if data else cls.metrics

    @classmethod
    def own_settings_of(cls, data: Mapping[str, Any]) -> Collection[str] | None:
        """Return the placeholders that the command reads in addition to the known settings."""
        return ProgramOptions.from_dict(data).own_settings

    def begin_program(self, job: TrainingJob, place: ProgramPlace | None) -> ProgramTraining:
        """Start the program; ``place`` must give a folder for its files."""
        if place is None:
            raise JobError(
                "a program needs a folder for its files; call begin_training(..., place=...)"
            )
        return ProgramTraining(job, self.options, place)
