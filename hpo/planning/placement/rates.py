"""How fast a placement trains: as measured there, as the machine's figures say, or as the sweep itself measured."""

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
others use the cores too; the best is 1."""


@dataclass(frozen=True)
class Rate:
    """Samples per second of a whole placement, with its 90 % interval.

    ``limited_by`` is compute, network, input or control, "" where that is not known; ``shares`` how the time of a step
    is spent on each, of a sum of 1, empty where not known. ``source`` says in words where the figure comes from.
    ``evaluation_seconds`` is what one evaluation takes; 0 where ``samples_per_second`` has evaluations in it, and where
    nothing is known of them.
    """

    samples_per_second: Interval
    limited_by: str = ""
    shares: Mapping[str, float] = field(default_factory=dict)
    source: str = ""
    evaluation_seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "samples_per_second": self.samples_per_second.to_dict(),
            "limited_by": self.limited_by,
            "shares": dict(self.shares),
            "source": self.source,
            "evaluation_seconds": self.evaluation_seconds,
        }


Rates: TypeAlias = Callable[[Placement], Rate]
"""Source of the rate of any placement on one machine."""


@dataclass(frozen=True)
class ModelledRates:
    """Rates from the figures of the machine and of the workload; see :mod:`hpo.planning.timing.step_time`."""

    machine: Machine
    cost: WorkloadCost
    options: StepOptions

    def __call__(self, placement: Placement) -> Rate:
        """The rate of one placement."""
        step, batch = self.step(placement), placement.global_batch_size
        total = step.total
        rate = Interval(batch / total.median, batch / total.high, batch / total.low)
        source = f"the time model of {self.machine.name}"
        return Rate(
            rate, step.limited_by, _shares(step), source, self.evaluation_seconds(placement)
        )

    def evaluation_seconds(self, placement: Placement) -> float:
        """What one evaluation takes, at the median figures."""
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
        """The time of one update, part by part, in seconds."""
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

    ``modelled`` tells what an evaluation takes, where the throughputs are of training alone and the cost is known.
    """

    model: ThroughputModel
    source: str
    modelled: ModelledRates | None = None

    def __call__(self, placement: Placement) -> Rate:
        """The rate of one placement."""
        found = self.model.at(placement.workers, placement.global_batch_size)
        evaluation = self.modelled.evaluation_seconds(placement) if self.modelled else 0.0
        return Rate(found.samples_per_second, found.limited_by, {}, self.source, evaluation)


@dataclass(frozen=True)
class SweepRates:
    """Rates from what one worker of the sweep did alone, in samples per second; for this machine.

    ``host_seconds`` are those of a core for one sample, up to a ready batch, and ``cores`` what the worker had: what of
    their time goes to the input is known, how the rest is spent is not.
    """

    samples_per_second: float
    host_seconds: float = 0.0
    cores: float = 1.0

    def __call__(self, placement: Placement) -> Rate:
        """workers * rate * efficiency, the efficiency between LEAST_EFFICIENCY and 1."""
        ideal = placement.workers * self.samples_per_second
        least = 1.0 if placement.workers == 1 else LEAST_EFFICIENCY
        return Rate(
            Interval(ideal * (1 + least) / 2, ideal * least, ideal),
            "input" if self.input_share > 0.5 else "",
            {"input": self.input_share, "compute": 1 - self.input_share}
            if self.host_seconds
            else {},
            "the sweep's own trainings",
        )

    @property
    def input_share(self) -> float:
        """Of the time of the worker's cores, what decoding and augmenting its samples took; at most 1."""
        return min(1.0, self.host_seconds * self.samples_per_second / self.cores)


def measured_rates(
    rows: Sequence[Throughput], machine: Machine, modelled: ModelledRates | None = None
) -> MeasuredRates | None:
    """A law through what was measured on a machine; None unless that was on different numbers of accelerators.

    Throughputs of outcomes have evaluations in them, published ones are of training alone: ``modelled`` adds them.
    """
    from hpo.planning.throughput import fit_throughput

    if len({row.accelerators for row in rows}) < 2:
        return None
    source = f"{len(rows)} throughputs measured on {machine.name}"
    if any(row.source.startswith("outcome ") for row in rows):
        modelled = None
    return MeasuredRates(fit_throughput(rows, machine), source, modelled)


def step_options(settings: TrainingSettings) -> StepOptions:
    """What of the settings decides the time of a step: precision, the bytes of a gradient that travel, its lag."""
    from hpo.planning.timing.step_time import StepOptions

    return StepOptions(
        precision=settings.precision,
        gradient_lag=settings.gradient_lag,
        gradient_bytes=4 if settings.gradient_compression == "none" else 2,
    )


def seconds_to_target(epochs: Interval, train_samples: int, rate: Interval) -> Interval:
    """Seconds of training for ``epochs`` at ``rate`` samples a second, the ends of both intervals taken together.

    For a rate of which nothing but the ends is known: seconds = epochs * train_samples / rate.
    """
    return Interval(
        epochs.median * train_samples / rate.median,
        epochs.low * train_samples / rate.high,
        epochs.high * train_samples / rate.low,
    )


def _shares(step: StepTime) -> dict[str, float]:
    """Parts of a step: what waits for other ranks, stragglers among them, counts as network."""
    parts = {
        "compute": step.compute,
        "network": step.exposed_communication + step.straggler,
        "input": step.input,
        "control": step.control,
    }
    whole = sum(parts.values())
    return {name: part / whole for name, part in parts.items()} if whole else {}
