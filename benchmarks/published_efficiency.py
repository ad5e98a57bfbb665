"""Predicted against published scaling and speed, from the machine files and one set of assumptions.

    python -m benchmarks.published_efficiency

Prints the tables of ``published_efficiency.md``. No row is fitted: it has the paper's data on its run (nodes, local
batch, precision, all-reduce); everything else comes from ``hpo/planning/machines`` and from
``costs.yaml`` and ``assumptions.py`` of ``hpo/planning/timing``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hpo.extrapolation.inference.intervals import Interval
from hpo.planning.machines import load_machine
from hpo.planning.timing.costs import home_cost
from hpo.planning.timing.step_time import StepOptions, scaling_efficiency, step_time
from trainers.cost import WorkloadCost

IMAGES = 1_281_167
FOUR_CHANNELS = 3.703e12
"""FLOP per sample of Tiramisu with the four channels that Kurth et al. used on Piz Daint (table 1)."""

FP16 = {"precision": "fp16", "gradient_bytes": 2}
NO_CONTROL = {"control_plane": "none"}
KURTH = {"all_reduce": "hybrid", "gradient_lag": 1}


@dataclass(frozen=True)
class Run:
    """One published run. ``published`` is an efficiency against ``base`` nodes, or samples per second."""

    who: str
    machine: str
    workload: str
    nodes: int
    local_batch_size: int
    published: float
    source: str
    options: Mapping[str, object]
    base: tuple[int, int] = (1, 0)  # nodes, and ranks of each; 0: all
    flops_per_sample: float | None = None

    @property
    def ranks(self) -> int:
        """Accelerators of the run."""
        return self.nodes * load_machine(self.machine).accelerators_per_node

    @property
    def cost(self) -> WorkloadCost:
        """The published cost of its samples."""
        cost = home_cost(self.workload)
        return (
            cost
            if self.flops_per_sample is None
            else dataclasses.replace(
                cost, flops_per_sample=self.flops_per_sample, sample_bytes=cost.sample_bytes / 4
            )
        )


GOYAL = {"all_reduce": "halving_doubling", **NO_CONTROL}
MIKAMI = {"all_reduce": "torus", **FP16, **NO_CONTROL}
JIA = {"all_reduce": "hierarchical", **FP16, **NO_CONTROL}

EFFICIENCIES: Sequence[Run] = (
    Run(
        "Goyal et al. 2017",
        "big_basin",
        "resnet50",
        32,
        32,
        0.90,
        "abstract: about 90 % from 8 to 256",
        GOYAL,
    ),
    Run(
        "Goyal et al. 2017",
        "big_basin",
        "resnet50",
        44,
        32,
        0.89,
        "a step is 12 % longer than with 8",
        GOYAL,
    ),
    Run(
        "IBM DDL 2017",
        "minsky",
        "resnet50",
        64,
        32,
        0.95,
        "abstract of arXiv:1708.02188",
        {"all_reduce": "torus", **NO_CONTROL},
    ),
    Run("Jia et al. 2018", "tencent", "resnet50", 128, 64, 0.879, "as Mikami et al. cite it", JIA),
    Run("Mikami et al. v1", "abci", "resnet50", 272, 32, 0.9162, "article on version 1", MIKAMI),
    Run("Mikami et al. v2", "abci", "resnet50", 256, 32, 0.8475, "table 6, recalled", MIKAMI),
    Run("Mikami et al. v2", "abci", "resnet50", 512, 32, 0.8310, "table 6, recalled", MIKAMI),
    Run("Mikami et al. v1", "abci", "resnet50", 544, 32, 0.66, "article on version 1", MIKAMI),
    Run("Mikami et al. v2", "abci", "resnet50", 864, 32, 0.7408, "table 6, recalled", MIKAMI),
    Run(
        "Yamazaki et al. 2019",
        "abci",
        "resnet50",
        512,
        40,
        0.77,
        "recalled",
        {**FP16, **NO_CONTROL},
    ),
    Run(
        "Kurth et al. 2018",
        "piz_daint",
        "tiramisu",
        5300,
        1,
        0.790,
        "abstract",
        KURTH,
        (1, 1),
        FOUR_CHANNELS,
    ),
    Run("Kurth et al. 2018", "summit", "tiramisu", 4096, 1, 0.90, "recalled", KURTH, (1, 1)),
    Run("Kurth et al. 2018", "summit", "deeplabv3plus", 4560, 1, 0.907, "abstract", KURTH, (1, 1)),
)

SUMMIT = Run(
    "Kurth et al. 2018", "summit", "deeplabv3plus", 4560, 2, 0.949, "", {**KURTH, **FP16}, (1, 1)
)
WITHOUT: Sequence[tuple[str, Mapping[str, object]]] = (
    ("as it was run", {}),
    ("without gradient lag", {"gradient_lag": 0}),
    ("without gradient lag and overlap", {"gradient_lag": 0, "overlap": False}),
    ("one ring over all ranks, without lag", {"gradient_lag": 0, "all_reduce": "ring"}),
    ("one ring over all ranks, with lag", {"all_reduce": "ring"}),
    ("a flat control plane", {"control_plane": "flat"}),
    ("samples not staged", {"staged": False}),
)
"""The optimizations of Kurth et al. for the full Summit, each removed in turn."""

SPEEDS: Sequence[Run] = (
    Run(
        "Goyal et al. 2017",
        "big_basin",
        "resnet50",
        32,
        32,
        90 * IMAGES / 3600,
        "90 epochs in an hour",
        GOYAL,
    ),
    Run(
        "IBM DDL 2017",
        "minsky",
        "resnet50",
        64,
        32,
        90 * IMAGES / 3000,
        "90 epochs in 50 minutes",
        {"all_reduce": "torus", **NO_CONTROL},
    ),
    Run(
        "Jia et al. 2018",
        "tencent",
        "resnet50",
        256,
        32,
        90 * IMAGES / 396,
        "90 epochs in 6.6 minutes",
        JIA,
    ),
    Run("Mikami et al. v2", "abci", "resnet50", 256, 32, 556_522, "table 6, recalled", MIKAMI),
    Run("Mikami et al. v2", "abci", "resnet50", 864, 32, 1_641_853, "table 6, recalled", MIKAMI),
    Run(
        "Yamazaki et al. 2019",
        "abci",
        "resnet50",
        512,
        40,
        1.73e6,
        "press article",
        {**FP16, **NO_CONTROL},
    ),
    Run(
        "Ying et al. 2018",
        "tpu_v3_pod",
        "resnet50",
        256,
        32,
        1.05e6,
        "recalled",
        {"all_reduce": "torus", "precision": "bf16", **NO_CONTROL},
    ),
    Run(
        "MLPerf v0.7, NVIDIA",
        "superpod",
        "resnet50",
        96,
        45,
        59 * IMAGES / 63.4,
        "59 epochs in 1.057 minutes",
        {**FP16, **NO_CONTROL},
    ),
    Run(
        "Kurth et al. 2018",
        "piz_daint",
        "tiramisu",
        5300,
        1,
        21.0e15 / FOUR_CHANNELS,
        "21.0 PF/s",
        KURTH,
        (1, 1),
        FOUR_CHANNELS,
    ),
    Run(
        "Kurth et al. 2018",
        "summit",
        "deeplabv3plus",
        4560,
        1,
        325.8e15 / 14.41e12,
        "325.8 PF/s",
        KURTH,
    ),
    Run(
        "Kurth et al. 2018",
        "summit",
        "deeplabv3plus",
        4560,
        2,
        999.0e15 / 14.41e12,
        "999.0 PF/s",
        {**KURTH, **FP16},
    ),
    Run(
        "Kurth et al. 2018",
        "summit",
        "tiramisu",
        4096,
        1,
        176.8e15 / 4.188e12,
        "176.8 PF/s, recalled",
        KURTH,
    ),
    Run(
        "Kurth et al. 2018",
        "summit",
        "tiramisu",
        4096,
        2,
        492.2e15 / 4.188e12,
        "492.2 PF/s, recalled",
        {**KURTH, **FP16},
    ),
)


def predicted_efficiency(run: Run) -> Interval:
    """Return the predicted efficiency of the run against its base."""
    machine = load_machine(run.machine)
    nodes, ranks = run.base
    return scaling_efficiency(
        machine,
        run.cost,
        nodes=run.nodes,
        ranks_per_node=machine.accelerators_per_node,
        base_nodes=nodes,
        base_ranks_per_node=ranks or machine.accelerators_per_node,
        local_batch_size=run.local_batch_size,
        micro_batch_size=run.local_batch_size,
        options=StepOptions(**run.options),
    )  # type: ignore[arg-type]


def predicted_speed(run: Run) -> Interval:
    """Return the predicted samples per second of the run."""
    machine = load_machine(run.machine)
    total = step_time(
        machine,
        run.cost,
        nodes=run.nodes,
        ranks_per_node=machine.accelerators_per_node,
        local_batch_size=run.local_batch_size,
        micro_batch_size=run.local_batch_size,
        options=StepOptions(**run.options),
    ).total  # type: ignore[arg-type]
    batch = run.ranks * run.local_batch_size
    return Interval(batch / total.median, batch / total.high, batch / total.low)


def holds(found: Interval, published: float) -> bool:
    """Whether the interval holds the published value."""
    return found.low <= published <= found.high


def summary(runs: Sequence[Run], found: Sequence[Interval]) -> tuple[int, float, float, Run]:
    """Return the number of intervals that hold, the median and largest relative error, and the run with the latter."""
    errors = [abs(each.median / run.published - 1) for run, each in zip(runs, found, strict=True)]
    held = sum(holds(each, run.published) for run, each in zip(runs, found, strict=True))
    return held, float(np.median(errors)), max(errors), runs[int(np.argmax(errors))]


def tables() -> str:
    """Return all tables as Markdown, each with its summary."""
    efficiencies = [predicted_efficiency(run) for run in EFFICIENCIES]
    speeds = [predicted_speed(run) for run in SPEEDS]
    return "\n".join(
        (
            _table(EFFICIENCIES, efficiencies, "efficiency", lambda value: f"{value:.0%}"),
            "",
            _told(EFFICIENCIES, efficiencies),
            "",
            _table(SPEEDS, speeds, "samples/s", lambda value: f"{float(f'{value:.3g}'):,.0f}"),
            "",
            _told(SPEEDS, speeds),
            "",
            _taken_away(),
            "",
        )
    )


def _taken_away() -> str:
    lines = [
        "| DeepLabv3+ in fp16 on 27,360 GPUs of Summit | efficiency | 90 % interval |",
        "|---|---|---|",
    ]
    for words, options in WITHOUT:
        found = predicted_efficiency(
            dataclasses.replace(SUMMIT, options={**SUMMIT.options, **options})
        )
        lines.append(f"| {words} | {found.median:.0%} | {found.low:.0%} to {found.high:.0%} |")
    return "\n".join(lines)


def _table(
    runs: Sequence[Run], found: Sequence[Interval], what: str, shown: Callable[[float], str]
) -> str:
    lines = [
        f"| run | machine | workload | accelerators | published {what} | predicted | 90 % interval | holds | "
        "source |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for run, each in zip(runs, found, strict=True):
        held = "yes" if holds(each, run.published) else "no"
        precision = run.options.get("precision", "fp32")
        lines.append(
            f"| {run.who} | {run.machine} | {run.workload}, {precision} | {run.ranks:,} | "
            f"{shown(run.published)} | {shown(each.median)} | {shown(each.low)} to {shown(each.high)} | "
            f"{held} | {run.source} |"
        )
    return "\n".join(lines)


def _told(runs: Sequence[Run], found: Sequence[Interval]) -> str:
    held, median, largest, run = summary(runs, found)
    return (
        f"{held} of {len(runs)} intervals hold; median error {median:.0%}, largest {largest:.0%} "
        f"({run.who}, {run.ranks:,} accelerators)."
    )


if __name__ == "__main__":
    print(tables())
