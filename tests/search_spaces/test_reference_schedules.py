"""The recipes' rate and batch size against the published schedules: at 20 points, and around every sudden change."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.recipe_schedules import (
    MLPERF_DEEPCAM,
    Published,
    at_update,
    compared,
    planned_schedule,
    published,
    report,
)

EVERY = list(published())
TOLERANCE = 1e-3


def named(each: Published) -> str:
    return f"{each.recipe} at {each.global_batch_size}"


@pytest.mark.parametrize("each", EVERY, ids=named)
def test_at_20_points_rate_and_batch_are_the_published_ones(each: Published) -> None:
    points = compared(each)
    assert len(points) == 20 and points[-1].update == planned_schedule(each).total_steps - 1
    for point in points:
        assert point.deviation < TOLERANCE, point
        assert point.batch == point.published_batch, point


@pytest.mark.medium
@pytest.mark.parametrize(
    "each", [each for each in EVERY if each.global_batch_size >= 4096], ids=named
)
def test_every_update_has_the_published_rate(each: Published) -> None:
    planned = planned_schedule(each)
    for update in range(planned.total_steps):
        point = at_update(each, planned, update)
        assert point.deviation < TOLERANCE and point.batch == point.published_batch, point


@pytest.mark.parametrize(
    "each", [each for each in EVERY if each.recipe == "mlperf_deepcam_lamb"], ids=named
)
def test_deepcams_rate_falls_with_the_update_of_the_reference(each: Published) -> None:
    planned = planned_schedule(each)
    rates = [at_update(each, planned, update).rate for update in range(planned.total_steps)]
    falls = [update for update in range(1, len(rates)) if rates[update] < rates[update - 1] * 0.5]
    expected = {
        128: [8192, 16384],
        256: [4096, 8192],
        512: [2149, 4197],
        1024: [1301, 4297],
        2048: [1201],
    }
    assert falls == expected[each.global_batch_size]
    ((_, peak, warmup, _, _),) = [row for row in MLPERF_DEEPCAM if row[0] == each.global_batch_size]
    assert max(rates) == pytest.approx(peak * (1 - 1 / warmup if warmup else 1))


def test_the_table_of_20_points_is_what_the_command_prints() -> None:
    path = Path(__file__).parents[2] / "benchmarks" / "recipe_schedules.md"
    assert path.read_text(encoding="utf-8") == report(), (
        "python -m benchmarks.recipe_schedules > benchmarks/recipe_schedules.md"
    )
