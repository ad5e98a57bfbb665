"""The searches that the benchmark of the search cost runs: a sweep like the service's, trials at the target batch."""

import math
from collections import Counter

import numpy as np
import pytest

from benchmarks.search_cost.confirming import confirm, improvement, recommended
from benchmarks.search_cost.simulation import LADDER, make_task
from benchmarks.search_cost.sweep import SEEDS, swept
from hpo.extrapolation.discrepancy import Corrected
from hpo.extrapolation.evidence.evidence import Observation, ScaledSetting
from hpo.tuning.acquisition.chooser import Acquisition


def test_a_simulated_sweep_spends_its_trials_evenly_and_repeats_the_best():
    found = list(swept(make_task(500, momentum=0.0), seed=0, trials=40))
    assert Counter(batch for batch, _, _ in found) == dict.fromkeys(LADDER, 40 // len(LADDER))
    for rung in LADDER:
        times = Counter(
            tuple(sorted((name, repr(value)) for name, value in settings.items()))
            for batch, settings, _ in found
            if batch == rung
        )
        assert max(times.values()) == SEEDS


def reached(batch, rate):
    """Twice the epochs at a factor 4.6 from the best rate, which grows with the square root of the batch."""
    away = math.log(rate / (0.05 * math.sqrt(batch)))
    epochs = 10 * (1 + batch / 64) * math.exp(0.3 * away**2)
    return Observation(batch, "reached", epochs, {"learning_rate": rate})


def an_acquisition():
    rates = (ScaledSetting("learning_rate", "log", 0.01, 4.0),)
    acquisition = Acquisition((16, 32, 64), 1024, rates, resolution=0.25)
    for batch, rate in ((16, 0.05), (16, 0.2), (16, 0.8), (32, 0.3)):
        acquisition.tell(reached(batch, rate))
    return acquisition


def test_confirming_starts_with_the_recommendation_and_goes_lower_where_that_diverges():
    acquisition = an_acquisition()
    first = confirm(acquisition, 1024)
    assert first.use == first.try_next == recommended(acquisition, 1024)
    assert first.gain == math.inf
    acquisition.tell(Observation(1024, "diverged", 0.25, first.try_next))
    second = confirm(acquisition, 1024)
    assert second.try_next["learning_rate"] == pytest.approx(0.7 * second.use["learning_rate"])


def test_what_was_tried_and_is_best_is_used_and_the_next_lies_elsewhere():
    acquisition = an_acquisition()
    for rate in (0.8, 1.6):
        acquisition.tell(reached(1024, rate))
    found = confirm(acquisition, 1024)
    assert 0 < found.gain < 0.3
    assert all(abs(math.log(found.try_next["learning_rate"] / rate)) > 0.01 for rate in (0.8, 1.6))


def test_expected_improvement_has_its_limits():
    """Jones, Schonlau and Welch (1998): none expected is sd / sqrt(2 pi); far better, the difference; far worse, 0."""
    means, sds = np.array([0.0, -5.0, 5.0, -0.3]), np.array([0.2, 0.2, 0.2, 0.0])
    found = improvement(Corrected(means, sds, means), 0.0)
    assert found == pytest.approx([0.2 / math.sqrt(2 * math.pi), 5.0, 0.0, 0.3], abs=1e-9)
