"""Draws the pictures of docs/concepts/extrapolation.md from real fits: python -m benchmarks.extrapolation.pictures.

1. a published series: the forecast from its first rungs, and the held-out rungs
2. a noisy quadratic: trials of a ladder by state, the law of the best rate, the stability bound, and the truth
3. the same at 16 times the largest rung: the predicted and true cost of a rate
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.extrapolation.learn import learn, read_reference_points
from benchmarks.extrapolation.svg import Picture
from benchmarks.noisy_quadratic import LADDER, Ladder, make_ladder
from hpo.extrapolation.evidence.evidence import Evidence
from hpo.extrapolation.evidence.table import tuned_settings
from hpo.extrapolation.forecast import epochs_band, forecast
from hpo.extrapolation.inference.posterior import Posterior, fit
from hpo.extrapolation.recommend import LOST, response_at
from trainers.workloads.noisy_quadratic.dynamics import stability_limit
from trainers.workloads.noisy_quadratic.optimum import epochs_to_target, quadratic_optimum

SERIES, SEEN = "resnet", 5
SEED, MOMENTUM = 3, 0.0
FAR = 16 * LADDER[-1]
BLUE, ORANGE, RED, GREY = "#1f77b4", "#ff7f0e", "#d62728", "#888888"


def reference_points() -> Picture:
    """Draw a published series with its forecast; priors are learned from the other series."""
    series = read_reference_points()
    rows = sorted(
        next(one for one in series if one.name == SERIES).rows,
        key=lambda row: row.global_batch_size,
    )
    priors = learn([one for one in series if one.name != SERIES], rng=np.random.default_rng(0))
    evidence = Evidence(aggregates=rows[:SEEN], tuned=tuned_settings(rows[:SEEN]))
    posterior = fit(evidence, rng=np.random.default_rng(0), priors=priors)
    batches = np.geomspace(rows[0].global_batch_size, rows[-1].global_batch_size * 1.3, 40)
    band = epochs_band(posterior, batches)
    picture = Picture(
        "global batch size",
        "epochs to target",
        (batches[0] * 0.8, batches[-1]),
        (0.8 * band.low.min(), 1.1 * max(band.high.max(), rows[-1].epochs_to_target)),
    )
    picture.band(batches, band.low, band.high, BLUE)
    picture.line(batches, band.median, BLUE, f"forecast from the first {SEEN} rungs, 90 %")
    for group, colour, name in (
        (rows[:SEEN], BLUE, "rungs seen"),
        (rows[SEEN:], ORANGE, "rungs not seen"),
    ):
        picture.points(
            [row.global_batch_size for row in group],
            [row.epochs_to_target for row in group],
            colour,
            name,
        )
    return picture


def best_rate(ladder: Ladder, posterior: Posterior) -> Picture:
    """Draw the trials of the ladder, and the law of the best rate beside the truth."""
    law = posterior.law("learning_rate")
    batches = np.geomspace(LADDER[0], FAR, 40)
    response = law.response(posterior.values, np.log(batches))
    low, middle, high = np.exp(np.quantile(response.best, (0.05, 0.5, 0.95), axis=0))
    truth = [
        quadratic_optimum(ladder.problem, ladder.target_loss, float(batch)).learning_rate
        for batch in batches[::3]
    ]
    limit = float(stability_limit(ladder.problem.curvature, momentum=MOMENTUM))
    rates = [item.settings["learning_rate"] for item in ladder.evidence.observations]
    picture = Picture(
        "global batch size",
        "learning rate",
        (LADDER[0] * 0.7, FAR * 1.3),
        (0.8 * min(rates), 1.25 * max(rates)),
        "bottom right",
    )
    picture.band(batches, low, high, BLUE)
    picture.line(batches, middle, BLUE, "law of the best rate, 90 %")
    picture.line(batches[::3], truth, "black", "true best rate", dashed=True)
    picture.line(batches[[0, -1]], [limit, limit], RED, "true bound of stability", dashed=True)
    for state, colour in (("reached", BLUE), ("censored", GREY), ("diverged", RED)):
        chosen = [item for item in ladder.evidence.observations if item.state == state]
        picture.points(
            [item.global_batch_size for item in chosen],
            [item.settings["learning_rate"] for item in chosen],
            colour,
            state,
        )
    rate = forecast(posterior, FAR).settings["learning_rate"].median
    picture.points([FAR], [rate], ORANGE, "recommended")
    return picture


def price(ladder: Ladder, posterior: Posterior) -> Picture:
    """Draw the cost of each rate at 16 times the largest rung: the minimized expectation, and the truth."""
    best = quadratic_optimum(ladder.problem, ladder.target_loss, FAR, momentum=MOMENTUM)
    rates = best.learning_rate * np.geomspace(0.3, 2.0, 160)
    response = response_at(posterior, posterior.law("learning_rate"), float(np.log(FAR)), None)
    lost, risk = (
        np.minimum(np.exp(response.cost(np.log(rates))), LOST),
        response.risk(np.log(rates)),
    )
    expected = (lost + (LOST - lost) * risk).mean(axis=0)
    truth = np.minimum(
        epochs_to_target(
            ladder.problem, ladder.target_loss, learning_rate=rates, global_batch_size=FAR
        )
        / best.epochs,
        LOST,
    )
    chosen = forecast(posterior, FAR).settings["learning_rate"].median
    picture = Picture(
        f"learning rate at batch {FAR}",
        "epochs over the fewest",
        (rates[0], rates[-1]),
        (0.9, 3.3),
        "bottom left",
    )
    picture.line(rates, truth, "black", "truth (3: diverges, or given up)", dashed=True)
    picture.line(rates, expected, BLUE, "expected by the model")
    picture.points([chosen], [_at(rates, truth, chosen)], ORANGE, "recommended")
    return picture


def _at(
    rates: NDArray[np.float64], values: Sequence[float] | NDArray[np.float64], rate: float
) -> float:
    return float(np.interp(np.log(rate), np.log(rates), values))


def main() -> None:
    """Write the pictures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, default=Path("docs/concepts"))
    output = parser.parse_args().output
    ladder = make_ladder(SEED, MOMENTUM)
    posterior = fit(ladder.evidence, rng=np.random.default_rng(0))
    for name, picture in (
        ("epochs", reference_points()),
        ("rate", best_rate(ladder, posterior)),
        ("price", price(ladder, posterior)),
    ):
        (output / f"extrapolation-{name}.svg").write_text(picture.text(), encoding="utf-8")


if __name__ == "__main__":
    main()
