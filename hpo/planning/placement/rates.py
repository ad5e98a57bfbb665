"""The throughput of a placement: measured on the machine, modelled from its figures, or measured by the sweep."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from hpo.extrapolation.inference.intervals import Interval
from hpo.planning.placement.placements import Placement
from search_spaces.settings import TrainingSettings
from trainers.cost import WorkloadCost

if TYPE_CHECKING:
    from hpo.planning.machines import Machine
    from hpo.planning.throughput import ThroughputModel
    from hpo.planning.timing.step_time import StepOptions, StepTime
    from storage.records import Throughput

LEAST_EFFICIENCY = 0.25
"""Assumed worst parallel efficiency of a few workers on one machine, where a small model waits for its all-reduces and
other processes use the cores too; the best is 1."""


@dataclass(frozen=True)
class ThroughputRate:
    """Samples per second of a whole placement, with its 90 % interval.

    ``limited_by`` is compute, network, input or control, "" if unknown. ``shares`` holds the share of each in the time
    of a step; they sum to 1, and the mapping is empty if they are unknown. ``source`` says in words where the figure
    comes from. ``evaluation_seconds`` is the time of one evaluation; 0 if ``samples_per_second`` includes evaluations,
    or if it is unknown.
    """

    samples_per_second: Interval
    limited_by: str = ""
    shares: Mapping[str, float] = field(default_factory=dict)
    source: str = ""
    evaluation_seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-compatible dictionary."""
        return {
            "samples_per_second": self.samples_per_second.to_dict(),
            "limited_by": self.limited_by,
            "shares": dict(self.shares),
            "source": self.source,
            "evaluation_seconds": self.evaluation_seconds,
        }


Rates: TypeAlias = Callable[[Placement], ThroughputRate]
"""A function that returns the rate of any placement on one machine."""


@dataclass(frozen=True)
class ModelledRates:
    """Rates from the figures of the machine and of the workload; see :mod:`hpo.planning.timing.step_time`."""

    machine: Machine
    cost: WorkloadCost
    options: StepOptions

    def __call__(self, placement: Placement) -> ThroughputRate:
        """Return the rate of one placement."""
        step, batch = self.step(placement), placement.global_batch_size
        total = step.total
        rate = Interval(batch / total.median, batch / total.high, batch / total.low)
        source = f"the time model of {self.machine.name}"
        return ThroughputRate(
            rate, step.limited_by, _shares(step), source, self.evaluation_seconds(placement)
        )

    def evaluation_seconds(self, placement: Placement) -> float:
        """Return the duration of one evaluation in seconds, the median of its interval."""
        from hpo.planning.timing.step_time import evaluation_time

        return evaluation_time(
            self.machine,
            self.cost,
            nodes=placement.nodes,
            ranks_per_node=placement.ranks_per_node,
            micro_batch_size=placement.micro_batch_size,
            options=self.options,
        ).median

    def step(self, placement: Placement) -> StepTime:
        """Return the time of one update by part, in seconds."""
        from hpo.planning.timing.step_time import step_time

        return step_time(
            self.machine,
            self.cost,
            nodes=placement.nodes,
            ranks_per_node=placement.ranks_per_node,
            local_batch_size=placement.local_batch_size,
            micro_batch_size=placement.micro_batch_size,
            options=self.options,
        )


@dataclass(frozen=True)
class MeasuredRates:
    """Rates from a law fitted to measured throughputs of this workload on this machine; see ``hpo throughput``.

    ``modelled`` gives the time of an evaluation, if the throughputs do not include evaluations and the cost is known.
    """

    model: ThroughputModel
    source: str
    modelled: ModelledRates | None = None

    def __call__(self, placement: Placement) -> ThroughputRate:
        """Return the rate of one placement."""
        found = self.model.at(placement.workers, placement.global_batch_size)
        evaluation = self.modelled.evaluation_seconds(placement) if self.modelled else 0.0
        return ThroughputRate(
            found.samples_per_second, found.limited_by, {}, self.source, evaluation
        )


@dataclass(frozen=True)
class SweepRates:
    """Rates on this machine, from the throughput of a single worker of the sweep, in samples per second.

    ``host_seconds`` is the core time to read and prepare one sample, and ``cores`` is the worker's number of cores.
    They give the share of time spent on input; the breakdown of the remaining time is unknown.
    """

    samples_per_second: float
    host_seconds: float = 0.0
    cores: float = 1.0

    def __call__(self, placement: Placement) -> ThroughputRate:
        """Return workers * rate * efficiency, with an efficiency between LEAST_EFFICIENCY and 1."""
        ideal = placement.workers * self.samples_per_second
        least = 1.0 if placement.workers == 1 else LEAST_EFFICIENCY
        return ThroughputRate(
            Interval(ideal * (1 + least) / 2, ideal * least, ideal),
            "input" if self.input_share > 0.5 else "",
            {"input": self.input_share, "compute": 1 - self.input_share}
            if self.host_seconds
            else {},
            "the sweep's own training runs",
        )

    @property
    def input_share(self) -> float:
        """The share of the time of the worker's cores spent on decoding and augmenting samples; at most 1."""
        return min(1.0, self.host_seconds * self.samples_per_second / self.cores)


def measured_rates(
    rows: Sequence[Throughput], machine: Machine, modelled: ModelledRates | None = None
) -> MeasuredRates | None:
    """Fit a law to throughputs measured on a machine; return None unless they differ in the number of accelerators.

    Throughputs from outcomes include evaluations. Published throughputs are for training alone, so ``modelled`` adds
    evaluations.
    """
    from hpo.planning.throughput import fit_throughput

    if len({row.accelerators for row in rows}) < 2:
        return None
    source = f"{len(rows)} throughputs measured on {machine.name}"
    if any(row.source.startswith("outcome ") for row in rows):
        modelled = None
    return MeasuredRates(fit_throughput(rows, machine), source, modelled)


def step_options(settings: TrainingSettings) -> StepOptions:
    """Return the settings that affect the time of a step: precision, and bytes and lag of communicated gradients."""
    from hpo.planning.timing.step_time import StepOptions

    return StepOptions(
        precision=settings.precision,
        gradient_lag=settings.gradient_lag,
        gradient_bytes=4 if settings.gradient_compression == "none" else 2,
    )


def seconds_to_target(epochs: Interval, train_samples: int, rate: Interval) -> Interval:
    """Return the seconds that ``epochs`` take at ``rate`` samples per second, combining the ends of both intervals.

    This is for a rate known only by its interval: seconds = epochs * train_samples / rate.
    """
    return Interval(
        epochs.median * train_samples / rate.median,
        epochs.low * train_samples / rate.high,
        epochs.high * train_samples / rate.low,
    )


def _shares(step: StepTime) -> dict[str, float]:
    """Return the shares of a step: waiting for other ranks, including stragglers, counts as network."""
    parts = {
        "compute": step.compute,
        "network": step.exposed_communication + step.straggler,
        "input": step.input,
        "control": step.control,
    }
    whole = sum(parts.values())
    return {name: part / whole for name, part in parts.items()} if whole else {}
