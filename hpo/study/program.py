"""The sections ``program`` and ``report`` of a study file, which describe a user's own training program."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from hpo.study.faults import Location, SpecFaultsError
from search_spaces.names import did_you_mean
from search_spaces.settings import names as setting_names
from search_spaces.space import SearchSpace
from trainers.workloads.program.command import (
    PLACEHOLDERS,
    command_placeholders,
    faults_of_reading,
    own_placeholders,
)
from trainers.workloads.program.options import ProgramOptions, ProgramReportOptions

PROGRAM = "program"
"""The workload that the section ``program`` describes."""


class Section(BaseModel):
    """A section of a study file: unknown keys are rejected, and values must have the right type."""

    # strict: the text "2" and the float 2.0 are not valid seeds, because a nearly valid value usually hides a mistake
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class ReportSection(Section):
    """The metrics that the program reports; see :class:`trainers.workloads.program.options.ProgramReportOptions`."""

    metrics: dict[str, bool] = Field(min_length=1)
    pattern: str | None = Field(None, min_length=1)
    timeout_seconds: float = Field(ProgramReportOptions.timeout_seconds, gt=0)


class OutOfMemorySection(Section):
    """How the program reports an out-of-memory error; see
    :class:`trainers.workloads.program.options.OutOfMemoryOptions`.
    """

    exit_code: int | None = None
    pattern: str | None = Field(None, min_length=1)


class ProgramSection(Section):
    """How the program is started; see :class:`trainers.workloads.program.options.ProgramOptions`."""

    command: Annotated[tuple[str, ...], Field(strict=False, min_length=1)]
    train_samples: int = Field(gt=0)
    report: ReportSection
    environment: dict[str, str] = Field(default_factory=dict)
    largest_micro_batch: int | None = Field(None, gt=0)
    out_of_memory: OutOfMemorySection | None = None
    stop_seconds: float = Field(ProgramOptions.stop_seconds, gt=0)
    reads_trial: bool = False
    cost: dict[str, float | str] | str | None = None

    @model_validator(mode="after")
    def _is_sound(self) -> ProgramSection:
        faults = [*self.options.faults()]
        if faults:
            raise SpecFaultsError(faults)
        return self

    def to_plain(self) -> dict[str, Any]:
        """Return the section as plain values, without defaults."""
        return self.model_dump(mode="json", exclude_defaults=True)

    @property
    def options(self) -> ProgramOptions:
        """The options that the trainer uses."""
        return ProgramOptions.from_dict(self.to_plain())


def faults_of_program(
    workload: str,
    program: ProgramSection | None,
    search: SearchSpace,
    *,
    repeated: str,
    sizes: Collection[str] = (),
) -> list[tuple[Location, str]]:
    """Yield the faults of the section, given the study's settings; ``repeated`` says why seeds vary.

    ``sizes`` are the sizes besides the batch size that vary over the ladder; every run has them as settings.
    """
    if program is None:
        if workload != PROGRAM:
            return []
        return [
            (
                (),
                "workload program needs a section `program` with command, train_samples and report",
            )
        ]
    if workload != PROGRAM:
        return [
            (
                ("program",),
                f"the section `program` needs workload: program, but the workload is {workload!r}",
            )
        ]
    options = program.options
    read = command_placeholders(options.words)
    known = (*PLACEHOLDERS, *setting_names())
    faults: list[tuple[Location, str]] = [
        (
            ("program", "command"),
            f"the command contains {{{name}}}, which is neither a placeholder nor a setting in "
            f"search"
            f"{did_you_mean(name, known) or f'; add it there with a domain or a value ({name}: ...)'}",
        )
        for name in own_placeholders(options.words)
        if name not in (*search.own_names, *sizes)
    ]
    if options.reads_trial:
        return faults
    fixed = [name for name in search.own_names if name in search.fixed]
    return faults + [
        (("program", "command"), message)
        for message in faults_of_reading(read, search.names, fixed, repeated=repeated)
    ]


def program_reads_seed(program: ProgramSection | None) -> bool:
    """Return whether repetitions receive their own seed: always without a program, and otherwise if the program's
    command contains the seed.
    """
    options = program and program.options
    return not options or options.reads_trial or "seed" in command_placeholders(options.words)
