"""The cost of a placement: distributions of the time, accelerator hours and energy to the target."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hpo.extrapolation.inference.intervals import LEVELS, Interval
from hpo.planning.machines import Machine
from hpo.planning.placement.epochs import EpochsForecast, EpochsLaw, epoch_quantiles
from hpo.planning.placement.placements import AcceleratorMemory, Placement
from hpo.planning.placement.rates import Rates, ThroughputRate
from hpo.planning.timing.failures import NodeFailures

Array: TypeAlias = NDArray[np.float64]

RATE_VALUES = 31  # equally likely throughputs that represent their distribution
HOUR = 3600.0


@dataclass(frozen=True)
class PlanningContext:
    """The inputs to the choice of a placement: the machine, the epochs, the rates, and the constraints on a batch.

    ``unit`` is the normalization batch size in samples. ``memory`` is None if the workload's needs are unknown.
    ``overhead_seconds`` is the time in a slot before the first update, for starting and staging. If ``failures`` is
    None, failures are ignored. ``evaluations_per_epoch`` is how often a training run is evaluated;
    ``saves_at_evaluations`` says that it saves its checkpoints only then.
    """

    machine: Machine
    law: EpochsLaw
    rates: Rates
    train_samples: int
    unit: int
    memory: AcceleratorMemory | None = None
    overhead_seconds: float = 0.0
    failures: NodeFailures | None = None
    evaluations_per_epoch: float = 0.0
    saves_at_evaluations: bool = False

    @property
    def power_watts(self) -> float | None:
        """The power of one accelerator; None if the machine's description lacks it."""
        return self.machine.accelerator.power_watts if self.machine.accelerator else None

    @property
    def largest_micro_batch(self) -> int:
        """The most samples per forward pass; unlimited if the memory needs are unknown."""
        return self.memory.largest_micro_batch if self.memory else 10**9

    def accelerators(self, placement: Placement) -> int:
        """Return the number of allocated accelerators: those of whole nodes, or one per worker on the local machine."""
        if self.machine.name == "local":
            return placement.workers
        return placement.nodes * self.machine.accelerators_per_node

    def candidate(self, placement: Placement, *, exact: bool = False) -> PlacementCandidate:
        """Return a placement with its cost; ``exact`` computes the epochs at exactly this batch size."""
        epochs, rate = self.law.at if exact else self.law.near, self.rates(placement)
        evaluating, saving = self._evaluating(placement, rate), self._saving(placement, rate)
        return PlacementCandidate(
            placement,
            rate,
            epochs(placement.global_batch_size),
            self.train_samples,
            self.accelerators(placement),
            self.power_watts,
            self.overhead_seconds,
            self.failures.slowdown(placement.nodes, saving) if self.failures else 1.0,
            evaluating,
            saving,
        )

    def _evaluations(self, placement: Placement) -> float:
        """Return the evaluations per epoch, with at most one after each update."""
        return min(self.evaluations_per_epoch, self.train_samples / placement.global_batch_size)

    def _evaluating(self, placement: Placement, rate: ThroughputRate) -> float:
        """Return the factor by which evaluations lengthen an epoch."""
        epoch = self.train_samples / rate.samples_per_second.median
        return 1.0 + self._evaluations(placement) * rate.evaluation_seconds / epoch

    def _saving(self, placement: Placement, rate: ThroughputRate) -> float:
        """Return the seconds between two checkpoints; infinite without failures, which need none."""
        if self.failures is None:
            return math.inf
        number, between = self._evaluations(placement), 0.0
        if self.saves_at_evaluations and number:
            epoch = self.train_samples / rate.samples_per_second.median
            between = epoch / number + rate.evaluation_seconds
        return self.failures.saving_interval(placement.nodes, between)


@dataclass(frozen=True)
class PlacementCandidate:
    """A placement with its rate and the epochs at its batch size; the two are independent of each other.

    seconds = epochs * train_samples / samples_per_second * evaluating * slowdown, for one training run that reaches the
    target; ``slowdown`` is the factor for checkpoints and restarts after failures, ``evaluating`` the factor for
    evaluations. ``saving_seconds`` is the time between two checkpoints.
    """

    placement: Placement
    rate: ThroughputRate
    epochs: EpochsForecast
    train_samples: int
    accelerators: int
    power_watts: float | None
    overhead_seconds: float = 0.0
    slowdown: float = 1.0
    evaluating: float = 1.0
    saving_seconds: float = math.inf

    @cached_property
    def seconds_values(self) -> Array:
        """Equally likely values of the seconds to target, of shape (values of the epochs, RATE_VALUES)."""
        rates = epoch_quantiles(self.rate.samples_per_second, RATE_VALUES)
        return np.outer(self.epochs.values * self.train_samples * self._longer, 1 / rates)

    @cached_property
    def expected_seconds(self) -> float:
        """Mean seconds of a run that is abandoned at the end of its budget; see :attr:`EpochsForecast.expected`."""
        per_sample = np.mean(1 / epoch_quantiles(self.rate.samples_per_second, RATE_VALUES))
        return float(self.epochs.expected * self.train_samples * per_sample * self._longer)

    @property
    def _longer(self) -> float:
        return self.slowdown * self.evaluating

    @property
    def expected_hours(self) -> float:
        """Mean accelerator hours."""
        return self.accelerators * self.expected_seconds / HOUR

    @property
    def expected_kwh(self) -> float | None:
        """Mean energy of the accelerators at their rated power, in kWh; None if the power is unknown."""
        return None if self.power_watts is None else self.expected_hours * self.power_watts / 1000

    @property
    def seconds(self) -> Interval:
        """Median and 90 % interval of the time to target; infinite if failures leave no time for progress."""
        if math.isinf(self.slowdown):
            return Interval(math.inf, math.inf, math.inf)
        return Interval(*(float(value) for value in np.quantile(self.seconds_values, LEVELS)))

    @property
    def accelerator_hours(self) -> Interval:
        """Median and 90 % interval of the accelerator hours."""
        return scale_interval(self.seconds, self.accelerators / HOUR)

    @property
    def energy_kwh(self) -> Interval | None:
        """Median and 90 % interval of the energy in kWh; None if the power is unknown."""
        return (
            None
            if self.power_watts is None
            else scale_interval(self.accelerator_hours, self.power_watts / 1000)
        )

    def chance_within(self, seconds: float) -> float:
        """Return the probability that one run, including its start-up, reaches the target within ``seconds``."""
        return float((self.seconds_values <= seconds - self.overhead_seconds).mean()) * (
            1 - self.epochs.divergence
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the candidate as a row of a table."""
        place = self.placement
        return {
            "nodes": place.nodes,
            "ranks_per_node": place.ranks_per_node,
            "global_batch_size": place.global_batch_size,
            "local_batch_size": place.local_batch_size,
            "micro_batch_size": place.micro_batch_size,
            "seconds_to_target": self.seconds.to_dict(),
            "accelerator_hours": self.accelerator_hours.median,
            "energy_kwh": self.energy_kwh.median if self.energy_kwh else None,
            "epochs_to_target": self.epochs.interval.to_dict(),
        }


def scale_interval(interval: Interval, factor: float) -> Interval:
    """Return the interval multiplied by ``factor``."""
    return Interval(interval.median * factor, interval.low * factor, interval.high * factor)
