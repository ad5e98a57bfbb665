"""Learns the priors from series of published reference points.

    python -m benchmarks.extrapolation.learn [TABLE.csv]

Empirical Bayes: fit every series with the current priors, take for each unknown the mean over series and the spread
between and within series, and repeat. As there are few series, the initial prior counts as much as ``START_COUNTS`` of
them.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.pooled_beliefs import names, pool_all
from hpo.extrapolation.evidence.evidence import AggregateRow, Evidence
from hpo.extrapolation.inference.posterior import fit
from hpo.extrapolation.laws.adam_law import UNKNOWN
from hpo.extrapolation.laws.priors import AdamPriors, LawPriors, NormalPrior

FACTS = Path(__file__).with_name("reference_points.csv")
# The transition is a little sharper than the hyperbola's, and the epochs of retuned recipes grow a little less than in
# proportion to B.
# On held-out series, the error is flat from a sharpness of 1 and an exponent of 0.9 to 1.6 and 0.7; this prior is close
# to the hyperbola's end of that valley. How far below B_crit a ladder starts is its owner's choice: long flat ladders
# exist, and must not imply growth just beyond their end.
START = LawPriors(
    log_critical_over_first=NormalPrior(3.0, 2.0),
    log_sharpness=NormalPrior(0.2, 0.25),
    log_exponent=NormalPrior(-0.15, 0.12),
    log_recipe_scatter=NormalPrior(-3.1, 0.4),
)
START_COUNTS = 10.0
# For Adam, the power of the rate lies between 1/2 and 1 (arXiv:1812.06162), an update has less effect than its rate
# suggests, and N is within a factor of 1.6 of the batch size with the fewest epochs. Beyond N, the rate is flat: over
# six grids of AdamW, the marginal likelihood is e^10 times as large as with a fall of 0 +- 0.35, e^40 times as large as
# with the surge, and e^150 times as large as with a continued power law, and each model size alone confirms this.
START_OF_ADAM = AdamPriors(
    growth_log_sharpness=NormalPrior(0.2, 0.3),
    growth_log_exponent=NormalPrior(-0.15, 0.15),
    log_low_over_critical=NormalPrior(-3.0, 1.2),
    log_low_power=NormalPrior(-0.25, 0.3),
    exponent=NormalPrior(0.75, 0.25),
    log_noise_over_best_batch=NormalPrior(0.0, 0.5),
    log_sharpness=NormalPrior(0.3, 0.4),
    fall=NormalPrior(0.0, 0.1),
    log_below=NormalPrior(-0.7, 0.5),
    log_above=NormalPrior(-0.3, 0.5),
    log_round=NormalPrior(-0.7, 0.5),
    log_margin=NormalPrior(0.0, 0.8),
    follow=NormalPrior(-1.5, 1.5),
    log_divergence_width=NormalPrior(-2.0, 0.8),
)
START_COUNTS_OF_ADAM, ROUNDS_OF_ADAM = 2.0, 2
ROUNDS = 3
SETTINGS = (
    "learning_rate",
    "warmup_epochs",
    "momentum",
    "weight_decay",
    "normalization_batch_size",
)


@dataclass(frozen=True)
class Series:
    """The reference points of one workload."""

    name: str
    rows: Sequence[AggregateRow]


def read_reference_points(path: Path | None = None) -> list[Series]:
    """Return the series of reference_points.csv, or of another table of the same format."""
    text = (path or FACTS).read_text(encoding="utf-8")
    return group(csv.DictReader(text.splitlines()))


def group(rows: Iterable[Mapping[str, str]]) -> list[Series]:
    """Group rows that have the columns of the table of facts into series."""
    found: dict[str, list[AggregateRow]] = {}
    for row in rows:
        settings = {name: float(row[name]) for name in SETTINGS if row.get(name)}
        found.setdefault(row["series"], []).append(
            AggregateRow(
                int(row["global_batch_size"]),
                float(row["epochs_to_target"]),
                int(row["runs"]) if row.get("runs") else None,
                float(row["sd"]) if row.get("sd") else None,
                settings,
            )
        )
    return [Series(name, members) for name, members in found.items()]


def learn(series: Sequence[Series], *, rng: np.random.Generator) -> LawPriors:
    """Learn priors from ``series``."""
    priors = START
    for _ in range(ROUNDS):
        priors = pool_all(START, [_believed(one, priors, rng) for one in series], START_COUNTS)
    return priors


def _believed(
    series: Series, priors: LawPriors, rng: np.random.Generator
) -> dict[str, NormalPrior]:
    values = dict(fit(Evidence(aggregates=series.rows), rng=rng, priors=priors).values)
    first = min(row.global_batch_size for row in series.rows)
    values["log_critical_over_first"] = values["log_critical"] - np.log(first)
    return {
        name: NormalPrior(float(values[name].mean()), float(values[name].std()))
        for name in names(START)
    }


def learn_adam(
    sweeps: Sequence[Evidence], *, rng: np.random.Generator, rounds: int = ROUNDS_OF_ADAM
) -> AdamPriors:
    """Learn priors for the law of Adam in the same way, from sweeps with Adam, each on one workload."""
    found = START_OF_ADAM
    for _ in range(rounds):
        believed = []
        for sweep in sweeps:
            values = fit(sweep, rng=rng, priors=replace(START, adam=found)).values
            if not set(UNKNOWN.values()) <= values.keys():
                continue  # the general law explains this sweep better, so it is uninformative about Adam's law
            believed.append(
                {
                    name: NormalPrior(float(values[unknown].mean()), float(values[unknown].std()))
                    for name, unknown in UNKNOWN.items()
                }
            )
        found = pool_all(START_OF_ADAM, believed, START_COUNTS_OF_ADAM)
    return found


def main() -> None:
    """Print the priors learnt from a table, to be copied into priors.py."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("table", type=Path, nargs="?", help="the default is reference_points.csv")
    priors = learn(read_reference_points(parser.parse_args().table), rng=np.random.default_rng(0))
    for name in names(priors):
        belief: NormalPrior = getattr(priors, name)
        print(f"{name}: Normal({belief.mean:.2f}, {belief.sd:.2f})")


if __name__ == "__main__":
    main()
