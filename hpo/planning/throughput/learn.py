"""Learns the beliefs on the terms of a step from published series of measured throughput.

    python -m hpo.planning.throughput.learn [TABLE.csv]

Empirical Bayes: fit every series with the present beliefs, take the mean over series of what it says on each parameter
and the spread between and within series, and repeat. A start belief counts as much as ``START_COUNTS`` series.

The shipped table holds facts from public result logs: MLPerf Training v0.6 to v2.0 and MLPerf HPC v1.0 and v2.0
(github.com/mlcommons/training_results_*, hpc_results_*; Apache-2.0), families with at least two numbers of accelerators
as ``benchmarks.throughput.families`` forms them; and the DLPerf reports of August 2020 and May 2021
(github.com/Oneflow-Inc/DLPerf).
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Sequence
from dataclasses import dataclass, fields
from importlib import resources
from pathlib import Path

import numpy as np

from hpo.extrapolation.laws.priors import Normal, pool_all
from hpo.planning.throughput.posterior import fit_steps
from hpo.planning.throughput.priors import StepPriors
from hpo.planning.throughput.rows import Measurement

START = StepPriors(log_fixed=Normal(-3.0, 1.5), fixed_logit=Normal(-1.0, 1.0), log_intra=Normal(-3.0, 1.5),
                   log_inter=Normal(-3.0, 1.5), log_latency=Normal(-4.0, 1.5), log_straggler=Normal(-5.0, 1.5),
                   log_shared=Normal(-8.0, 2.0), log_scatter=Normal(-3.9, 0.5))
START_COUNTS = 6.0
ROUNDS = 3
PARTICLES = 800
# Machines and workloads to come differ more than those of the table do: beliefs are spread by this factor. With 1.15
# the 90 % intervals for rounds left out hold in 91 % of the cases, with 1 in 87 %.
SPREAD = 1.15


@dataclass(frozen=True)
class Series:
    """Measured rows of one workload on one kind of accelerator; ``origin`` is the round or report they are from."""

    name: str
    origin: str
    rows: Sequence[Measurement]


def read_reference_throughputs(path: Path | None = None) -> list[Series]:
    """The series of the shipped table of facts, or of another table of its form."""
    shipped = resources.files("hpo.planning.throughput").joinpath("reference_throughputs.csv")
    text = shipped.read_text(encoding="utf-8") if path is None else path.read_text(encoding="utf-8")
    found: dict[tuple[str, str], list[Measurement]] = {}
    for row in csv.DictReader(text.splitlines()):
        found.setdefault((row["series"], row["origin"]), []).append(Measurement(
            int(row["accelerators"]), int(row["global_batch_size"]), float(row["samples_per_second"]),
            int(row["nodes"]) if row["nodes"] else None, runs=int(row["runs"])))
    return [Series(name, origin, rows) for (name, origin), rows in found.items()]


def learn(series: Sequence[Series], *, rng: np.random.Generator) -> StepPriors:
    """Beliefs from ``series``."""
    priors = START
    for _ in range(ROUNDS):
        priors = pool_all(START, [_believed(one, priors, rng) for one in series], START_COUNTS)
    return StepPriors(**{one.name: _spread(getattr(priors, one.name)) for one in fields(StepPriors)})


def _spread(belief: Normal) -> Normal:
    return Normal(belief.mean, SPREAD * belief.sd)


def _believed(series: Series, priors: StepPriors, rng: np.random.Generator) -> dict[str, Normal]:
    values = fit_steps(series.rows, None, priors, rng, particles=PARTICLES).values
    return {one.name: Normal(float(values[one.name].mean()), float(values[one.name].std()))
            for one in fields(StepPriors)}


def main() -> None:
    """Print the beliefs that a table gives, to be written into priors.py."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path, nargs="?", help="the default is the shipped table of facts")
    priors = learn(read_reference_throughputs(parser.parse_args().table), rng=np.random.default_rng(0))
    for one in fields(StepPriors):
        belief: Normal = getattr(priors, one.name)
        print(f"{one.name}: Normal({belief.mean:.2f}, {belief.sd:.2f})")  # noqa: T201


if __name__ == "__main__":
    main()
