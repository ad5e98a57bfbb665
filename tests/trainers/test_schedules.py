import itertools
import math

import pytest
import torch

from search_spaces.settings import SettingError, TrainingSettings
from trainers.schedules.device_arithmetic import ON_DEVICE
from trainers.schedules.learning_rate import learning_rate, learning_rate_by

GOYAL = TrainingSettings(
    learning_rate=3.2,
    warmup_epochs=5.0,
    warmup_start_factor=0.1 / 3.2,
    decay="step",
    decay_milestones=(30.0, 60.0, 80.0),
    decay_factor=0.1,
)


@pytest.mark.parametrize(
    ("epochs", "printed"),
    [
        (0, 0.1),
        (2.5, 1.65),
        (5, 3.2),
        (29.99, 3.2),
        (30, 0.32),
        (59.9, 0.32),
        (60, 0.032),
        (80, 0.0032),
        (90, 0.0032),
    ],
)
def test_goyal_at_batch_8192(epochs, printed):
    assert learning_rate(GOYAL, epochs, 90) == pytest.approx(printed, rel=1e-12)


def test_goyal_adds_a_constant_each_iteration():
    per_epoch = 156  # 1,281,167 / 8,192
    rates = [learning_rate(GOYAL, step / per_epoch, 90) for step in range(5 * per_epoch + 1)]
    increments = {round(after - before, 9) for before, after in itertools.pairwise(rates)}
    assert increments == {round((3.2 - 0.1) / (5 * per_epoch), 9)}


def test_mlperf_polynomial():
    # mlcommons/training lars_util.py: rate * step / warmup steps, then power 2 over the remaining steps
    settings = TrainingSettings(
        learning_rate=17.0,
        warmup_epochs=5.0,
        decay="polynomial",
        decay_power=2.0,
        decay_epochs=42.0,
    )
    assert learning_rate(settings, 0, 90) == 0
    assert learning_rate(settings, 2.5, 90) == pytest.approx(8.5)
    assert learning_rate(settings, 5, 90) == pytest.approx(17.0)
    assert learning_rate(settings, 23.5, 90) == pytest.approx(17.0 / 4)
    assert learning_rate(settings, 42, 90) == 0 == learning_rate(settings, 50, 90)


def test_cosine_ends_with_the_budget_at_the_end_factor():
    settings = TrainingSettings(
        learning_rate=2.0, warmup_epochs=2.0, decay="cosine", end_learning_rate_factor=0.1
    )
    assert learning_rate(settings, 2, 12) == pytest.approx(2.0)
    assert learning_rate(settings, 7, 12) == pytest.approx(0.5 * (2.0 + 0.2))
    assert learning_rate(settings, 4.5, 12) == pytest.approx(0.2 + 1.8 * (1 + math.sqrt(0.5)) / 2)
    assert learning_rate(settings, 12, 12) == pytest.approx(0.2)


def test_goyal_constant_warmup_keeps_the_low_rate():
    # arXiv:1706.02677, section 2.2: "we use a low constant learning rate for the first few epochs"; 0.1 before 3.2
    settings = GOYAL.replace(warmup_shape="constant")
    assert [learning_rate(settings, epochs, 90) for epochs in (0, 2.5, 4.999)] == pytest.approx(
        [0.1] * 3
    )
    assert learning_rate(settings, 5, 90) == pytest.approx(3.2)


def test_exponential_warmup_multiplies_by_a_constant_each_update():
    settings = GOYAL.replace(warmup_shape="exponential")
    rates = [learning_rate(settings, step / 156, 90) for step in range(5 * 156 + 1)]
    assert rates[0] == pytest.approx(0.1) and rates[-1] == pytest.approx(3.2)
    factors = [after / before for before, after in itertools.pairwise(rates)]
    assert factors == pytest.approx([32 ** (1 / (5 * 156))] * len(factors))


def test_quadratic_warmup_is_the_ramp_up_of_nvcaffe():
    # sgd_solver.cpp: rate = rampup_lr + (base_lr - rampup_lr) * alpha * alpha, alpha = iter / rampup_interval
    settings = TrainingSettings(
        learning_rate=2.0, warmup_shape="quadratic", warmup_epochs=4.0, warmup_start_factor=0.25
    )
    assert [learning_rate(settings, epochs, 9) for epochs in (0, 1, 2, 4)] == pytest.approx(
        [0.5, 0.5 + 1.5 / 16, 0.5 + 1.5 / 4, 2.0]
    )


@pytest.mark.parametrize(
    ("epochs", "factor"),
    [
        (0, 0.5),
        (39.9, 0.5),
        (40, 0.075),
        (69.9, 0.075),
        (70, 0.01),
        (84.9, 0.01),
        (85, 0.001),
        (89.9, 0.001),
    ],
)
def test_akiba_slow_start(epochs, factor):
    # arXiv:1711.04325: of the base rate 0.1 * 32768 / 256, for 40, 30, 15 and 5 epochs
    settings = TrainingSettings(
        learning_rate=12.8,
        decay="piecewise",
        decay_milestones=(40.0, 70.0, 85.0),
        decay_values=(0.5, 0.075, 0.01, 0.001),
    )
    assert learning_rate(settings, epochs, 90) == pytest.approx(12.8 * factor)


def test_you_at_batch_32768_is_polynomial_with_power_2():
    # tensorflow/tpu lars_util.py, batch 32768: peak 34 after 12 epochs of warmup, power 2 to 0 at epoch 90
    settings = TrainingSettings(
        optimizer="lars",
        learning_rate=34.0,
        warmup_epochs=12.0,
        decay="polynomial",
        decay_power=2.0,
    )
    assert [learning_rate(settings, epochs, 90) for epochs in (0, 6, 12, 51, 90)] == pytest.approx(
        [0.0, 17.0, 34.0, 34.0 / 4, 0.0]
    )


@pytest.mark.parametrize("decay", ["constant", "step", "polynomial", "cosine"])
def test_rates_rise_to_the_peak_and_never_after(decay):
    settings = TrainingSettings(
        learning_rate=0.7, warmup_epochs=3.0, decay=decay, decay_milestones=(5.0, 8.0)
    )
    rates = [learning_rate(settings, step / 37, 10) for step in range(10 * 37 + 1)]
    assert rates[: 3 * 37 + 1] == sorted(rates[: 3 * 37 + 1])
    assert rates[3 * 37 :] == sorted(rates[3 * 37 :], reverse=True)
    assert max(rates) == rates[3 * 37] == pytest.approx(0.7)


STEPPED = {"decay": "step", "decay_milestones": (3.0, 6.0), "decay_factor": 0.2}


@pytest.mark.parametrize(
    "changes",
    [
        {"decay": "constant"},
        {"warmup_epochs": 0.0, "decay": "cosine"},
        {"decay": "cosine", "warmup_shape": "quadratic", "end_learning_rate_factor": 0.1},
        {"decay": "polynomial", "decay_power": 1.5, "decay_epochs": 8.0},
        {"warmup_shape": "exponential", "warmup_start_factor": 0.1, **STEPPED},
        {"warmup_shape": "constant", "warmup_start_factor": 0.1, **STEPPED},
        {"decay": "piecewise", "decay_milestones": (3.0, 6.0), "decay_values": (0.5, 0.1, 0.02)},
        {"batch_control": "grow", "batch_limit_factor": 10.0, **STEPPED},
        *(
            {
                "batch_control": "piecewise",
                "batch_milestones": (1.0, 5.0),
                "batch_factors": (2.0, 3.0),
                "batch_rate_rule": rule,
            }
            for rule in ("none", "linear", "sqrt")
        ),
    ],
    ids=str,
)
def test_the_rate_by_a_progress_on_the_device_is_the_same(changes):
    settings = TrainingSettings(**{"learning_rate": 0.7, "warmup_epochs": 2.0, **changes})
    places = torch.linspace(0, 11, 45, dtype=torch.float64)  # the milestones are among them
    found = [float(learning_rate_by(ON_DEVICE, settings, epochs, 10.0)) for epochs in places]
    assert found == pytest.approx(
        [learning_rate(settings, float(epochs), 10.0) for epochs in places], rel=1e-12, abs=1e-15
    )


WARMUP, END, LAST = 1.5, 12.0, 0.05
COOLDOWNS = {
    "linear": lambda u: 1 - u,
    "cosine": lambda u: math.cos(math.pi * u / 2) ** 2,
    "one_less_sqrt": lambda u: 1 - math.sqrt(u),
}
BODIES = {
    "wsd": ({}, lambda epochs: 1.0),
    "inverse_sqrt": (
        {"inverse_sqrt_epochs": 0.7},
        lambda epochs: math.sqrt(0.7 / (0.7 + epochs - WARMUP)),
    ),
    "power": (
        {"power_start_epochs": 2.0, "power_exponent": 0.6},
        lambda epochs: min(1.0, (epochs / 2.0) ** -0.6),
    ),
}


@pytest.mark.parametrize("shape", COOLDOWNS)
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("decay", BODIES)
def test_a_cooldown_ends_a_body_over_the_last_share_of_the_training(decay, share, shape):
    """By the formulas of the sources, at twenty points after the warmup and one behind the end."""
    more, body = BODIES[decay]
    settings = TrainingSettings.from_record(
        {
            "learning_rate": 0.4,
            "warmup_epochs": WARMUP,
            "decay": decay,
            "end_learning_rate_factor": LAST,
            "cooldown_share": share,
            "cooldown_shape": shape,
            **more,
        }
    )
    start = max(WARMUP, END - share * END)
    for epochs in [*(WARMUP + (END - WARMUP) * place / 19 for place in range(20)), END + 1]:
        expected = 0.4 * body(epochs)
        if share and epochs >= start:
            u = min(1.0, (epochs - start) / (END - start))
            expected *= LAST + (1 - LAST) * COOLDOWNS[shape](u)
        assert learning_rate(settings, epochs, END) == pytest.approx(expected, rel=1e-12), epochs


def test_linear_to_zero_is_a_line_and_needs_a_budget_beyond_the_warmup():
    settings = TrainingSettings(learning_rate=0.4, warmup_epochs=2.0, decay="linear")
    places = [2 + 8 * place / 19 for place in range(20)]
    assert [learning_rate(settings, epochs, 10.0) for epochs in places] == pytest.approx(
        [0.4 * (10 - epochs) / 8 for epochs in places], abs=1e-15
    )
    with pytest.raises(SettingError, match="decay_epochs must exceed warmup_epochs"):
        TrainingSettings(decay="wsd", decay_epochs=2.0, warmup_epochs=3.0)
