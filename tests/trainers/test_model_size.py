"""What ``python -m benchmarks.model_size`` computes from its trainings."""

import numpy as np
import pytest

from benchmarks.model_size import (
    DEPTH,
    RATES,
    SEEDS,
    WIDTH,
    Direction,
    Size,
    best_rate,
    check_picture,
    curves,
    page,
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


@pytest.mark.parametrize("over", [WIDTH, DEPTH])
def test_every_training_is_there_once(over: Direction) -> None:
    pairs = 2 * len(over.sizes) - 1  # at the base both are one
    assert len(wanted(over)) == len(set(wanted(over))) == pairs * len(RATES) * len(SEEDS)


@pytest.mark.parametrize("over", [WIDTH, DEPTH])
def test_the_tables_tell_what_the_small_models_rate_costs(over: Direction) -> None:
    following = over.parametrizations[1]
    by_size = {
        (name, size): made(0.016 if name == following else 0.016 * over.base / size)
        for name in over.parametrizations
        for size in over.sizes
    }
    checks = {
        ("adamw", name): {
            size: {
                part: Size(1.0, 1.0 if name == following else size / over.base) for part in PARTS
            }
            for size in over.checked
        }
        for name in over.parametrizations
    }
    rows = list(tables(over, checks, by_size))
    assert "| adamw | standard | 16 | 16 | 16 | 16 |" in rows
    assert f"| adamw | {following} | 1 | 1 | 1 | 1 |" in rows
    # three doublings away on the made parabola: 0.1 * 3^2
    largest = over.sizes[-1]
    assert f"| {largest} | standard | 0.002 | 2.000 | 0.016 | 2.900 | 0.900 |" in rows
    assert f"| {largest} | {following} | 0.016 | 2.000 | 0.016 | 2.000 | 0.000 |" in rows
    assert f"{over.name} {largest}" in rate_picture(over, by_size, following).text()
    of_adamw = {name: checks["adamw", name] for name in over.parametrizations}
    assert f"scores, {following}" in check_picture(over, of_adamw).text()
    assert f"`{following}` is {over.name} {over.base}." in page(over, "\n".join(rows))


def test_the_seeds_are_averaged() -> None:
    losses = {each: float(each.seed + each.size) for each in wanted(WIDTH)}
    mean = sum(SEEDS) / len(SEEDS)
    assert np.allclose(curves(losses)["mup", 64], 64 + mean)
