"""Learns the priors of the throughput model from published series of measurements.

    python -m benchmarks.throughput.learn [TABLE.csv]

Empirical Bayes: fit every series with the current priors, take for each parameter the mean over series and the spread
between and within series, and repeat. The initial prior counts as much as ``START_COUNTS`` series.
The standard deviations of the competing model, linear scaling, come from marginal likelihood.

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
from hpo.planning.throughput.linear import learn_walk
from hpo.planning.throughput.posterior import fit_steps
from hpo.planning.throughput.priors import Beliefs, StepPriors
from hpo.planning.throughput.rows import Measurement

START = StepPriors(
    log_fixed=Normal(-3.0, 1.5),
    fixed_logit=Normal(-1.0, 1.0),
    log_intra=Normal(-3.0, 1.5),
    log_inter=Normal(-3.0, 1.5),
    log_latency=Normal(-4.0, 1.5),
    log_straggler=Normal(-5.0, 1.5),
    log_shared=Normal(-8.0, 2.0),
    log_scatter=Normal(-3.9, 0.5),
)
START_COUNTS = 6.0
ROUNDS = 3
PARTICLES = 800
# Future machines and workloads differ more than those of the table: priors are widened by this factor, and those of
# terms that grow with the accelerators keep their mean (that of the coefficient, not of its logarithm), since a
# log-normal prior that is only widened implies that the network of a newer machine is worse.
SPREAD = 1.15
GROWING = ("log_latency", "log_straggler", "log_shared")


@dataclass(frozen=True)
class ThroughputSeries:
    """Measured rows of one workload on one kind of accelerator; ``origin`` is their round or report."""

    name: str
    origin: str
    rows: Sequence[Measurement]


def read_reference_throughputs(path: Path | None = None) -> list[ThroughputSeries]:
    """Return the series of the shipped table of facts, or of another table of the same format."""
    shipped = resources.files("hpo.planning.throughput").joinpath("reference_throughputs.csv")
    text = shipped.read_text(encoding="utf-8") if path is None else path.read_text(encoding="utf-8")
    found: dict[tuple[str, str], list[Measurement]] = {}
    for row in csv.DictReader(text.splitlines()):
        found.setdefault((row["series"], row["origin"]), []).append(
            Measurement(
                int(row["accelerators"]),
                int(row["global_batch_size"]),
                float(row["samples_per_second"]),
                int(row["nodes"]) if row["nodes"] else None,
                runs=int(row["runs"]),
            )
        )
    return [ThroughputSeries(name, origin, rows) for (name, origin), rows in found.items()]


def learn(series: Sequence[ThroughputSeries], *, rng: np.random.Generator) -> Beliefs:
    """Learn priors from ``series``."""
    priors = START
    for _ in range(ROUNDS):
        priors = pool_all(START, [_believed(one, priors, rng) for one in series], START_COUNTS)
    step = StepPriors(
        **{one.name: _spread(one.name, getattr(priors, one.name)) for one in fields(StepPriors)}
    )
    return Beliefs(step, learn_walk([one.rows for one in series]))


def _spread(name: str, belief: Normal) -> Normal:
    # the mean of exp(normal) is exp(mean + variance / 2)
    lower = 0.5 * (SPREAD**2 - 1.0) * belief.sd**2 if name in GROWING else 0.0
    return Normal(belief.mean - lower, SPREAD * belief.sd)


def _believed(
    series: ThroughputSeries, priors: StepPriors, rng: np.random.Generator
) -> dict[str, Normal]:
    values = fit_steps(series.rows, None, priors, rng, particles=PARTICLES).values
    return {
        one.name: Normal(float(values[one.name].mean()), float(values[one.name].std()))
        for one in fields(StepPriors)
    }


def main() -> None:
    """Print the priors learnt from a table, to be copied into priors.py."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "table", type=Path, nargs="?", help="the default is the shipped table of facts"
    )
    beliefs = learn(
        read_reference_throughputs(parser.parse_args().table), rng=np.random.default_rng(0)
    )
    for one in fields(StepPriors):
        belief: Normal = getattr(beliefs.step, one.name)
        print(f"{one.name}: Normal({belief.mean:.2f}, {belief.sd:.2f})")
    walk = beliefs.walk
    found = walk.log_accelerators, walk.log_local_batch, walk.log_scatter
    print(f"WalkPriors({', '.join(f'{each:.2f}' for each in found)})")


if __name__ == "__main__":
    main()
