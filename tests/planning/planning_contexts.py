"""Planning contexts whose best plan can be worked out by hand: a small machine, a known law, a simple rate."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from hpo.extrapolation.inference.intervals import Interval
from hpo.planning.machines import Accelerator, Link, Machine, Storage
from hpo.planning.placement.candidates import PlanningContext
from hpo.planning.placement.epochs import EpochsForecast, epoch_quantiles
from hpo.planning.placement.placements import AcceleratorMemory, Placement
from hpo.planning.placement.rates import ThroughputRate
from hpo.planning.timing.failures import NodeFailures

END = 1.6448536


@dataclass(frozen=True)
class KnownLaw:
    """Epochs minimum * (1 + B / critical), log-normal with one spread over all batch sizes."""

    minimum: float = 10.0
    critical: float = 64.0
    sd: float = 0.3
    divergence: float = 0.0
    supported: tuple[int, int] = (8, 256)
    swept: int = 32

    def at(self, batch: int) -> EpochsForecast:
        median = self.minimum * (1 + batch / self.critical)
        spread = math.exp(END * self.sd)
        return EpochsForecast(
            epoch_quantiles(Interval(median, median / spread, median * spread), 200),
            self.divergence,
        )

    def near(self, batch: int) -> EpochsForecast:
        return self.at(batch)

    def spread_after(self, seen: int, batch: int) -> float:
        return self.sd * abs(math.log2(batch / seen)) / 8


@dataclass(frozen=True)
class KnownRates:
    """Seconds of a step: per sample, per pass, and a wait that grows with the logarithm of the number of ranks."""

    sample: float = 0.01
    each_pass: float = 0.02
    wait: float = 0.03
    sd: float = 0.1
    node_sd: float = field(default=0.05)

    def seconds(self, placement: Placement) -> float:
        return (
            placement.local_batch_size * self.sample
            + placement.accumulation_steps * self.each_pass
            + self.wait * math.log2(placement.workers)
        )

    def __call__(self, placement: Placement) -> ThroughputRate:
        seconds = self.seconds(placement)
        rate = placement.global_batch_size / seconds
        spread = math.exp(END * (self.sd if placement.nodes > 1 else self.node_sd))
        network = self.wait * math.log2(placement.workers) / seconds
        return ThroughputRate(
            Interval(rate, rate / spread, rate * spread),
            "compute",
            {"compute": 1 - network, "network": network, "input": 0.0, "control": 0.0},
            "a formula",
        )


def a_machine(
    nodes: int = 6,
    per_node: int = 3,
    power_watts: float | None = 300.0,
    name: str = "six",
    memory_bytes: float = 16e9,
) -> Machine:
    accelerator = Accelerator(
        "card", memory_bytes, {"fp32": 1e13}, {"fp32": Interval(0.4, 0.3, 0.5)}, power_watts
    )
    link, disk = Link("link", 1e10, 1e-6, "fat tree"), Storage("disk", 1e10, 1e15)
    return Machine(name, "six nodes", nodes, per_node, accelerator, link, link, disk, disk, "slurm")


def a_context(
    *,
    machine: Machine | None = None,
    law: KnownLaw | None = None,
    rates: KnownRates | None = None,
    unit: int = 2,
    memory: AcceleratorMemory | None = None,
    train_samples: int = 1000,
    failures: NodeFailures | None = None,
) -> PlanningContext:
    return PlanningContext(
        machine or a_machine(),
        law or KnownLaw(),
        rates or KnownRates(),
        train_samples,
        unit,
        memory,
        failures=failures,
    )


def memory_of(samples: int) -> AcceleratorMemory:
    """Return the memory that holds exactly this many samples of a micro batch."""
    from hpo.planning.placement.placements import RESERVED_BYTES

    return AcceleratorMemory(
        capacity=RESERVED_BYTES + 1e9 + samples * 1e6, state=1e9, per_sample=1e6
    )


def random_context(rng: np.random.Generator) -> PlanningContext:
    law = KnownLaw(10.0, float(rng.uniform(8, 500)), float(rng.uniform(0.05, 0.5)))
    rates = KnownRates(*np.exp(rng.uniform(math.log(0.002), math.log(0.1), 3)))
    machine = a_machine(int(rng.integers(2, 7)), int(rng.integers(1, 4)))
    unit = int(rng.integers(1, 4))
    return a_context(
        machine=machine,
        law=law,
        rates=rates,
        unit=unit,
        memory=memory_of(unit * int(rng.integers(1, 9))),
    )
