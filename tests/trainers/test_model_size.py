"""What ``python -m benchmarks.model_size`` computes from its trainings."""

import numpy as np
import pytest

from benchmarks.model_size import (
    BASE,
    PARAMETRIZATIONS,
    RATES,
    SEEDS,
    WIDTHS,
    Size,
    best_rate,
    check_picture,
    curves,
    rate_picture,
    tables,
    wanted,
)

PARTS = ("queries, keys, values", "hidden layer", "stream", "scores")


def made(best: float) -> "np.ndarray":
    """Losses whose logarithmic parabola is lowest, at 2, at a known rate."""
    return 2.0 + 0.1 * np.log2(np.array(RATES) / best) ** 2


@pytest.mark.parametrize("best", [0.0021, 0.004, 0.0113, 0.03])
def test_the_best_rate_of_a_parabola_is_its_lowest_point(best: float) -> None:
    assert best_rate(made(best)) == pytest.approx(best)


@pytest.mark.parametrize("best", [0.0001, 1.0])
def test_beyond_the_grid_it_is_the_end(best: float) -> None:
    assert best_rate(made(best)) in (RATES[0], RATES[-1])


def test_every_training_is_there_once() -> None:
    pairs = len(PARAMETRIZATIONS) * len(WIDTHS) - 1  # at the base width both are one
    assert len(wanted()) == len(set(wanted())) == pairs * len(RATES) * len(SEEDS)


def test_the_tables_tell_what_the_small_models_rate_costs() -> None:
    by_width = {
        (name, width): made(0.016 if name == "mup" else 0.016 * BASE / width)
        for name in PARAMETRIZATIONS
        for width in WIDTHS
    }
    checks = {
        ("adamw", name): {
            width: {part: Size(1.0, 1.0 if name == "mup" else width / BASE) for part in PARTS}
            for width in (32, 64, 128, 256, 512)
        }
        for name in PARAMETRIZATIONS
    }
    rows = list(tables(checks, by_width))
    assert "| adamw | standard | 16 | 16 | 16 | 16 |" in rows
    assert "| adamw | mup | 1 | 1 | 1 | 1 |" in rows
    # three doublings away on the made parabola: 0.1 * 3^2
    assert "| 256 | standard | 0.002 | 2.000 | 0.016 | 2.900 | 0.900 |" in rows
    assert "| 256 | mup | 0.016 | 2.000 | 0.016 | 2.000 | 0.000 |" in rows
    assert "width 256" in rate_picture(by_width, "mup").text()
    assert (
        "scores, mup"
        in check_picture({name: checks["adamw", name] for name in PARAMETRIZATIONS}).text()
    )


def test_the_seeds_are_averaged() -> None:
    losses = {each: float(each.seed + each.width) for each in wanted()}
    mean = sum(SEEDS) / len(SEEDS)
    assert np.allclose(curves(losses)["mup", 64], 64 + mean)
