"""A study's options for a program: how it is started, what it reports, and how long it may report nothing."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from search_spaces.names import nearest_or_all
from search_spaces.own_settings import RESERVED
from search_spaces.techniques.parametrizations import MODEL_SIZES
from trainers.errors import JobError, WorkloadError
from trainers.workloads.program.command import command_placeholders, own_placeholders
from trainers.workloads.program.formula import SIZES, CostFormula, parse_cost

PROGRESS = ("epochs", "samples", "steps")
"""The keys by which a report may give the training progress; any one of them suffices."""
OTHER_VALUES = (
    "train_loss",
    "learning_rate",
    "seconds",
    "gradient_noise_scale",
    "global_batch_size",
    "memory_gb",
)
"""Keys of a report other than the progress and the metrics."""
MOST_SAMPLES = 10**15
MOST_PATTERN_CHARACTERS = 1000


@dataclass(frozen=True)
class ProgramReportOptions:
    """Options for a program's reports; ``metrics`` maps each metric to whether a higher value is better.

    Reports are lines of JSON in a file, written by ``hpo.report``, or the output lines that match ``pattern``, whose
    named groups give the values. A program that reports nothing for ``timeout_seconds`` after its start or its last
    report is ended.
    """

    metrics: Mapping[str, bool]
    pattern: str | None = None
    timeout_seconds: float = 3600.0


@dataclass(frozen=True)
class OutOfMemoryOptions:
    """The signs by which a failed program shows that a micro batch did not fit in memory; either sign suffices.

    ``exit_code`` is the command's exit code (128 + N if signal N ended it), and ``pattern`` is a regular expression
    that matches a line of its output. The training run then starts over with half the micro batch.
    """

    exit_code: int | None = None
    pattern: str | None = None


@dataclass(frozen=True, kw_only=True)
class ProgramOptions:
    """A training program; ``command`` is a list of words with placeholders (:mod:`trainers.workloads.program.command`).

    ``train_samples`` is the size of an epoch. ``environment`` holds the program's additional environment variables.
    ``largest_micro_batch`` is the largest number of samples per forward pass of a worker. ``out_of_memory`` describes
    how the program shows that fewer fit in memory. ``stop_seconds`` is how long the program may take to exit when
    asked, and again after SIGTERM. ``reads_trial`` is true if the program reads its settings with ``hpo.trial()``, and
    not only from its command. ``cost`` holds the figures that a plan needs (:class:`trainers.cost.WorkloadCost`), by
    name or, if the model grows, as formulas in its sizes (:mod:`trainers.workloads.program.formula`). It may also be a
    single formula for the cost of a sample, in any unit, or, with ``{samples}``, of a training run.
    """

    command: tuple[str, ...]
    train_samples: int
    report: ProgramReportOptions
    environment: Mapping[str, str] = field(default_factory=dict)
    largest_micro_batch: int | None = None
    out_of_memory: OutOfMemoryOptions | None = None
    stop_seconds: float = 10.0
    reads_trial: bool = False
    cost: Mapping[str, float | str] | str | None = None

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> ProgramOptions:
        """Create options from a job's plain values; raises :class:`WorkloadError` for an unknown or missing key."""
        plain = _known(cls, values, "program")
        plain["report"] = ProgramReportOptions(
            **_known(ProgramReportOptions, plain["report"], "program.report")
        )
        if plain.get("out_of_memory") is not None:
            plain["out_of_memory"] = OutOfMemoryOptions(
                **_known(OutOfMemoryOptions, plain["out_of_memory"], "program.out_of_memory")
            )
        plain["command"] = tuple(plain["command"])
        return cls(**plain)

    @property
    def words(self) -> tuple[str, ...]:
        """All words of the command and the environment, which may contain placeholders."""
        return *self.command, *self.environment.values()

    @property
    def metrics(self) -> dict[str, bool]:
        """The reported metrics, including the loss that every workload has."""
        return {"loss": False, **self.report.metrics}

    @property
    def own_settings(self) -> Collection[str] | None:
        """The program's own settings among its placeholders; None if only the program knows its settings."""
        return None if self.reads_trial else own_placeholders(self.words)

    @property
    def accumulates(self) -> bool:
        """Whether the program gets the micro batch size or the number of micro batches per update, so that it can use
        any batch size.
        """
        return self.reads_trial or bool(
            {"micro_batch_size", "accumulation"} & set(command_placeholders(self.words))
        )

    @property
    def every_node(self) -> bool:
        """Whether the program is started on every node, rather than once for all nodes."""
        return "node_rank" in command_placeholders(self.words)

    def split(
        self, global_batch_size: int, workers: int, micro_batch_size: int | None
    ) -> dict[str, int]:
        """Split the batch over the workers: global = workers x local, local = accumulation x micro, all in samples."""
        if global_batch_size % workers:
            raise JobError(
                f"a global batch size of {global_batch_size} cannot be split over {workers} "
                f"workers; use batch sizes that are multiples of {workers}"
            )
        local = global_batch_size // workers
        limits = (local, self.largest_micro_batch, micro_batch_size)
        most = min(limit for limit in limits if limit)
        micro = next(size for size in range(most, 0, -1) if local % size == 0)
        return {
            "global_batch_size": global_batch_size,
            "local_batch_size": local,
            "micro_batch_size": micro,
            "accumulation": local // micro,
        }

    def check(self) -> None:
        """Raise :class:`WorkloadError` for the first invalid option."""
        for _, fault in self.faults():
            raise WorkloadError(f"program: {fault}")

    def faults(self) -> Iterator[tuple[tuple[str | int, ...], str]]:
        """Yield an error for each invalid option or combination of options, with its path in the section."""
        if not self.command or not all(isinstance(word, str) and word for word in self.command):
            yield (
                ("command",),
                "command must be a list of non-empty words, the program first",
            )
            return
        try:
            command_placeholders(self.words)
        except WorkloadError as error:
            yield ("command",), str(error)
            return
        if not 1 <= self.train_samples <= MOST_SAMPLES:
            yield (
                ("train_samples",),
                f"train_samples must be at least 1, but got {self.train_samples}",
            )
        if self.largest_micro_batch is not None and not self.accumulates:
            yield (
                ("largest_micro_batch",),
                "largest_micro_batch has no effect, because the command contains neither "
                "{accumulation} nor {micro_batch_size}; put one of them where the program "
                "expects it",
            )
        yield from self._faults_of_cost()
        yield from self._faults_of_report()
        yield from self._faults_of_out_of_memory()

    def formula(self) -> CostFormula | None:
        """Return the cost of a run, or of a sample, as a function of the sizes; None if the study gives no formula."""
        if isinstance(self.cost, str):
            return parse_cost(self.cost)
        flops = (self.cost or {}).get("flops_per_sample")
        return parse_cost(flops, MODEL_SIZES) if isinstance(flops, str) else None

    def figures(self, sizes: Mapping[str, float]) -> dict[str, float] | None:
        """Return the figures in ``cost`` for a model of these sizes; None if ``cost`` is unset or a single formula."""
        if self.cost is None or isinstance(self.cost, str):
            return None
        return {
            name: parse_cost(each, MODEL_SIZES).value(sizes) if isinstance(each, str) else each
            for name, each in self.cost.items()
        }

    def _faults_of_cost(self) -> Iterator[tuple[tuple[str | int, ...], str]]:
        one = isinstance(self.cost, str)
        formulas = {"": self.cost} if one else dict(self.cost or {})  # type: ignore[arg-type]
        for name, formula in formulas.items():
            if not isinstance(formula, str):
                continue
            try:
                parse_cost(formula, SIZES if one else MODEL_SIZES)
            except WorkloadError as error:
                yield ("cost", *([name] if name else [])), str(error)

    def _faults_of_out_of_memory(self) -> Iterator[tuple[tuple[str | int, ...], str]]:
        signs, place = self.out_of_memory, ("out_of_memory",)
        if signs is None:
            return
        if "micro_batch_size" not in command_placeholders(self.words) and not self.reads_trial:
            yield (
                place,
                "out_of_memory halves the micro batch, but the command does not contain "
                "{micro_batch_size}; put it where the program expects it",
            )
        if signs.exit_code is None and signs.pattern is None:
            yield (
                place,
                "out_of_memory needs an exit_code, a pattern, or both: how the program reports "
                "that it ran out of memory",
            )
        if signs.exit_code is not None and not 1 <= signs.exit_code <= 255:
            yield (
                (*place, "exit_code"),
                f"exit_code must lie between 1 and 255, but got {signs.exit_code}",
            )
        if signs.pattern is not None:
            fault = _fault_of_pattern(signs.pattern)
            if fault:
                yield (*place, "pattern"), fault

    def _faults_of_report(self) -> Iterator[tuple[tuple[str | int, ...], str]]:
        report = self.report
        for name in report.metrics:
            if name in (RESERVED - {"loss"}) | {*PROGRESS, *OTHER_VALUES}:
                yield (
                    ("report", "metrics"),
                    f"a metric must not be called {name!r}: that is a key of every report",
                )
        if report.metrics.get("loss"):
            yield ("report", "metrics"), "the loss is better when lower; write loss: false"
        if not (report.timeout_seconds > 0 and math.isfinite(report.timeout_seconds)):
            yield ("report", "timeout_seconds"), "timeout_seconds must be a positive number"
        if report.pattern is None:
            return
        if fault := _fault_of_pattern(report.pattern):
            yield ("report", "pattern"), fault
            return
        groups = re.compile(report.pattern).groupindex
        known = (*PROGRESS, *self.metrics, *OTHER_VALUES)
        for name in groups:
            if name not in known:
                yield (
                    ("report", "pattern"),
                    f"pattern has a group {name!r}{nearest_or_all(name, known)}",
                )
        if not set(PROGRESS) & set(groups) or not set(self.metrics) & set(groups):
            yield (
                ("report", "pattern"),
                "pattern must have a named group for the progress ((?P<epochs>...), samples or steps) and one for a "
                f"metric, but got the groups {', '.join(groups) or 'none'}",
            )


def _fault_of_pattern(pattern: str) -> str:
    if len(pattern) > MOST_PATTERN_CHARACTERS:
        return f"pattern must have at most {MOST_PATTERN_CHARACTERS} characters, but has {len(pattern)}"
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        return f"pattern must be a regular expression, but {error}"
    return ""


def _known(kind: type, values: Any, where: str) -> dict[str, Any]:
    if not isinstance(values, Mapping):
        raise WorkloadError(f"{where} must be a mapping of names to values, but got {values!r}")
    names = {knob.name for knob in dataclasses.fields(kind)}
    for name in values:
        if name not in names:
            raise WorkloadError(f"there is no key {where}.{name}{nearest_or_all(str(name), names)}")
    for knob in dataclasses.fields(kind):
        required = knob.default is knob.default_factory is dataclasses.MISSING
        if required and knob.name not in values:
            raise WorkloadError(f"{where} needs the key {knob.name}")
    return dict(values)
