"""Learns the priors of the throughput model from published series of measurements.

    python -m benchmarks.throughput.learn [TABLE.csv]

Empirical Bayes: fit every series with the current priors, take for each parameter the mean over series and the spread
between and within series, and repeat. The initial prior counts as much as ``START_COUNTS`` series.
The standard deviations of the competing model, linear scaling, come from marginal likelihood.

The table holds facts from public result logs: MLPerf Training v0.6 to v2.0 and MLPerf HPC v1.0 and v2.0
(github.com/mlcommons/training_results_*, hpc_results_*; Apache-2.0), families with at least two numbers of accelerators
as ``benchmarks.throughput.families`` forms them; and the DLPerf reports of August 2020 and May 2021
(github.com/Oneflow-Inc/DLPerf).
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from benchmarks.pooled_beliefs import pool_all
from hpo.extrapolation.laws.priors import NormalPrior
from hpo.planning.throughput.linear import log_evidence
from hpo.planning.throughput.posterior import fit_steps
from hpo.planning.throughput.priors import StepPriors, ThroughputPriors, WalkPriors
from hpo.planning.throughput.rows import Measurement

FACTS = Path(__file__).with_name("reference_throughputs.csv")
START = StepPriors(
    log_fixed=NormalPrior(-3.0, 1.5),
    fixed_logit=NormalPrior(-1.0, 1.0),
    log_intra=NormalPrior(-3.0, 1.5),
    log_inter=NormalPrior(-3.0, 1.5),
    log_latency=NormalPrior(-4.0, 1.5),
    log_straggler=NormalPrior(-5.0, 1.5),
    log_shared=NormalPrior(-8.0, 2.0),
    log_scatter=NormalPrior(-3.9, 0.5),
)
START_OF_WALK = WalkPriors(-3.0, -2.0, -3.5)
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
    """Return the series of reference_throughputs.csv, or of another table of the same format."""
    text = (path or FACTS).read_text(encoding="utf-8")
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


def learn(series: Sequence[ThroughputSeries], *, rng: np.random.Generator) -> ThroughputPriors:
    """Learn priors from ``series``."""
    priors = START
    for _ in range(ROUNDS):
        priors = pool_all(START, [_believed(one, priors, rng) for one in series], START_COUNTS)
    step = StepPriors(
        **{one.name: _spread(one.name, getattr(priors, one.name)) for one in fields(StepPriors)}
    )
    return ThroughputPriors(step, learn_walk([one.rows for one in series]))


def learn_walk(series: Sequence[Sequence[Measurement]]) -> WalkPriors:
    """Maximize the posterior of the standard deviations over ``series``; the prior is normal, with sd 1."""
    start = np.array(astuple(START_OF_WALK))

    def loss(values: NDArray[np.float64]) -> float:
        walk = WalkPriors(*(float(value) for value in values))
        return 0.5 * float(((values - start) ** 2).sum()) - sum(
            log_evidence(rows, walk) for rows in series
        )

    found = minimize(loss, start, method="Nelder-Mead", options={"xatol": 1e-3, "fatol": 1e-3}).x
    return WalkPriors(*(float(value) for value in found))


def _spread(name: str, belief: NormalPrior) -> NormalPrior:
    # the mean of exp(normal) is exp(mean + variance / 2)
    lower = 0.5 * (SPREAD**2 - 1.0) * belief.sd**2 if name in GROWING else 0.0
    return NormalPrior(belief.mean - lower, SPREAD * belief.sd)


def _believed(
    series: ThroughputSeries, priors: StepPriors, rng: np.random.Generator
) -> dict[str, NormalPrior]:
    values = fit_steps(series.rows, None, priors, rng, particles=PARTICLES).values
    return {
        one.name: NormalPrior(float(values[one.name].mean()), float(values[one.name].std()))
        for one in fields(StepPriors)
    }


def main() -> None:
    """Print the priors learnt from a table, to be copied into priors.py."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "table", type=Path, nargs="?", help="the default is reference_throughputs.csv"
    )
    beliefs = learn(
        read_reference_throughputs(parser.parse_args().table), rng=np.random.default_rng(0)
    )
    for one in fields(StepPriors):
        belief: NormalPrior = getattr(beliefs.step, one.name)
        print(f"{one.name}: Normal({belief.mean:.2f}, {belief.sd:.2f})")
    walk = beliefs.walk
    found = walk.log_accelerators, walk.log_local_batch, walk.log_scatter
    print(f"WalkPriors({', '.join(f'{each:.2f}' for each in found)})")


if __name__ == "__main__":
    main()
