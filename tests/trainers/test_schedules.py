import itertools
import math

import pytest

from search_spaces.settings import TrainingSettings
from trainers.schedules import learning_rate

GOYAL = TrainingSettings(learning_rate=3.2, warmup_epochs=5.0, warmup_start_factor=0.1 / 3.2, decay="step",
                         decay_milestones=(30.0, 60.0, 80.0), decay_factor=0.1)


@pytest.mark.parametrize(("epochs", "printed"), [
    (0, 0.1), (2.5, 1.65), (5, 3.2), (29.99, 3.2), (30, 0.32), (59.9, 0.32), (60, 0.032), (80, 0.0032), (90, 0.0032)])
def test_goyal_at_batch_8192(epochs, printed):
    assert learning_rate(GOYAL, epochs, 90) == pytest.approx(printed, rel=1e-12)


def test_goyal_adds_a_constant_each_iteration():
    per_epoch = 156  # 1,281,167 / 8,192
    rates = [learning_rate(GOYAL, step / per_epoch, 90) for step in range(5 * per_epoch + 1)]
    increments = {round(after - before, 9) for before, after in itertools.pairwise(rates)}
    assert increments == {round((3.2 - 0.1) / (5 * per_epoch), 9)}


def test_mlperf_polynomial():
    # mlcommons/training lars_util.py: rate * step / warmup steps, then power 2 over the remaining steps
    settings = TrainingSettings(learning_rate=17.0, warmup_epochs=5.0, decay="polynomial", decay_power=2.0,
                                decay_epochs=42.0)
    assert learning_rate(settings, 0, 90) == 0
    assert learning_rate(settings, 2.5, 90) == pytest.approx(8.5)
    assert learning_rate(settings, 5, 90) == pytest.approx(17.0)
    assert learning_rate(settings, 23.5, 90) == pytest.approx(17.0 / 4)
    assert learning_rate(settings, 42, 90) == 0 == learning_rate(settings, 50, 90)


def test_cosine_ends_with_the_budget_at_the_end_factor():
    settings = TrainingSettings(learning_rate=2.0, warmup_epochs=2.0, decay="cosine", end_learning_rate_factor=0.1)
    assert learning_rate(settings, 2, 12) == pytest.approx(2.0)
    assert learning_rate(settings, 7, 12) == pytest.approx(0.5 * (2.0 + 0.2))
    assert learning_rate(settings, 4.5, 12) == pytest.approx(0.2 + 1.8 * (1 + math.sqrt(0.5)) / 2)
    assert learning_rate(settings, 12, 12) == pytest.approx(0.2)


@pytest.mark.parametrize("decay", ["constant", "step", "polynomial", "cosine"])
def test_rates_rise_to_the_peak_and_never_after(decay):
    settings = TrainingSettings(learning_rate=0.7, warmup_epochs=3.0, decay=decay, decay_milestones=(5.0, 8.0))
    rates = [learning_rate(settings, step / 37, 10) for step in range(10 * 37 + 1)]
    assert rates[: 3 * 37 + 1] == sorted(rates[: 3 * 37 + 1])
    assert rates[3 * 37 :] == sorted(rates[3 * 37 :], reverse=True)
    assert max(rates) == rates[3 * 37] == pytest.approx(0.7)
