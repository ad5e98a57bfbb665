"""The savings of a growing batch, compared with updates counted one by one by the published law."""

import math
from typing import Any

import numpy as np
import pytest

from hpo.extrapolation.inference.intervals import Interval
from hpo.runs.ramp import PIECES, noise_course, ramp_saving
from search_spaces.settings import TrainingSettings
from storage.figures import Convergence
from trainers.schedules.batch_size import batch_factor

SAMPLES = 4096
RAMPS: dict[str, dict[str, Any]] = {
    "noise_scale": {"noise_scale_ratio": 1.0, "batch_limit_factor": 8.0},
    "doubling": {"doubling_epochs": 1.0, "batch_limit_factor": 8.0},
    "piecewise": {"batch_milestones": [2.0], "batch_factors": [4.0]},
}


def noise_at(share):
    return 20.0 * 30.0**share


def settings_of(control):
    return TrainingSettings.from_record({"batch_control": control, **RAMPS[control]})


def counted(settings, first, progress, *, grows=True):
    """Updates and samples until ``progress`` updates without noise are made: one update after the other."""
    done, updates, samples, factor = 0.0, 0, 0.0, 1.0
    while done < progress:
        noise = noise_at(done / progress)
        if grows and settings.batch_control == "noise_scale":
            if 2 * factor <= settings.batch_limit_factor and noise >= 2 * factor * first:
                factor *= 2
        elif grows:
            factor = batch_factor(settings, samples / SAMPLES)
        done += 1 / (1 + noise / (factor * first))
        updates += 1
        samples += factor * first
    return updates, samples


@pytest.mark.parametrize("control", RAMPS)
def test_what_a_ramp_saves_is_what_counting_its_updates_gives(control):
    settings, progress, course = (
        settings_of(control),
        800.0,
        noise_at((np.arange(PIECES) + 0.5) / PIECES),
    )
    updates, samples = counted(settings, 16, progress)
    constant, taken = counted(settings, 16, progress, grows=False)
    sure = Interval(*3 * [float(course.mean())])
    saving = ramp_saving([course], settings, 16, sure, samples / SAMPLES, SAMPLES)
    assert saving.updates.median == pytest.approx(1 - updates / constant, abs=0.01)
    assert saving.samples.median == pytest.approx(samples / taken - 1, abs=0.01)
    assert saving.updates.low == saving.updates.high == saving.updates.median > 0.2
    assert saving.largest_batch == (64 if control == "piecewise" else 128)


def test_the_interval_is_that_of_the_critical_batch():
    """A larger critical batch leaves more to save: the ends are those of the ends of its interval."""
    settings, course = settings_of("noise_scale"), noise_at((np.arange(PIECES) + 0.5) / PIECES)
    wide = Interval(100.0, 25.0, 400.0)
    found = ramp_saving([course], settings, 16, wide, 10.0, SAMPLES).updates
    for end in ("low", "median", "high"):
        exact = Interval(*3 * [getattr(wide, end)])
        alone = ramp_saving([course], settings, 16, exact, 10.0, SAMPLES).updates.median
        assert getattr(found, end) == pytest.approx(alone, abs=0.03), end
    assert found.low < found.median < found.high


def test_a_course_goes_by_progress_and_what_was_not_measured_is_left_out():
    steps = np.array([10, 20, 30, 40])
    noise = np.array([math.nan, 10.0, 30.0, 90.0])
    columns = {name: np.zeros(4) for name in Convergence.__dataclass_fields__}
    points = Convergence(
        **{
            **columns,
            "step": steps,
            "gradient_noise_scale": noise,
            "global_batch_size": np.full(4, 10),
        }
    )
    course = noise_course(points)
    # 20 updates of 1 / 2, 10 of 1 / 4, 10 of 1 / 10: progress 10, 12.5 and 13.5
    assert course[0] == pytest.approx(10.0) and 80 < course[-1] <= 90
    assert course[
        np.searchsorted((np.arange(PIECES) + 0.5) / PIECES * 13.5, 12.5)
    ] == pytest.approx(30, rel=0.05)
    assert noise_course(points.of(7)) is None
