import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search_spaces import SCALING_RULES, SettingError, TrainingSettings

BATCH = st.integers(1, 2**20)
RULE = st.sampled_from(
    sorted(set(SCALING_RULES) - {"smith_momentum"})
)  # which has a lower end, see below
SETTINGS = TrainingSettings(
    learning_rate=0.1,
    warmup_epochs=5,
    momentum=0.9,
    nesterov=True,
    decay="step",
    decay_milestones=(30, 60, 80),
)


def test_linear_gives_the_rates_goyal_prints() -> None:
    # arXiv:1706.02677: 0.1 at 256, 3.2 at 8192; nothing else changes
    assert SCALING_RULES["linear"](SETTINGS, 256, 8192) == SETTINGS.replace(learning_rate=3.2)


def test_square_root_gives_the_rate_goyal_prints() -> None:
    # the ablation `lr_sqrt` at 8192 ran with 0.566
    scaled = SCALING_RULES["sqrt"](SETTINGS, 256, 8192)
    assert scaled.learning_rate == pytest.approx(0.566, abs=5e-4)
    assert scaled.replace(learning_rate=0.1) == SETTINGS


@pytest.mark.parametrize(
    ("batch", "rate", "warmup"),
    [
        (512, 4.0, 0.15625),
        (1024, 5.657, 0.3125),
        (4096, 11.314, 1.25),
        (8192, 16.0, 2.5),
    ],
)
def test_legw_gives_the_published_lars_table(batch: int, rate: float, warmup: float) -> None:
    # NUS-HPC-AI-Lab/LARS-ImageNet-PyTorch, ResNet-50, 90 epochs
    base = TrainingSettings(optimizer="lars", learning_rate=4.0, warmup_epochs=0.15625)
    scaled = SCALING_RULES["legw"](base, 512, batch)
    assert scaled.learning_rate == pytest.approx(rate, abs=5e-4)
    assert scaled.warmup_epochs == warmup
    assert scaled.replace(learning_rate=4.0, warmup_epochs=0.15625) == base


@given(rule=RULE, batch=BATCH)
def test_nothing_changes_at_the_same_batch(rule: str, batch: int) -> None:
    assert SCALING_RULES[rule](SETTINGS, batch, batch) == SETTINGS


@given(rule=RULE, first=BATCH, second=BATCH, third=BATCH)
def test_two_steps_are_one(rule: str, first: int, second: int, third: int) -> None:
    scale = SCALING_RULES[rule]
    once, twice = (
        scale(SETTINGS, first, third),
        scale(scale(SETTINGS, first, second), second, third),
    )
    assert twice.learning_rate == pytest.approx(once.learning_rate)
    assert twice.warmup_epochs == pytest.approx(once.warmup_epochs)


@given(first=BATCH, second=BATCH)
def test_legw_keeps_the_number_of_warmup_updates(first: int, second: int) -> None:
    scaled = SCALING_RULES["legw"](SETTINGS, first, second)
    assert scaled.warmup_epochs / second == pytest.approx(SETTINGS.warmup_epochs / first)
    assert scaled.learning_rate == pytest.approx(SETTINGS.learning_rate * math.sqrt(second / first))


@pytest.mark.parametrize("rule", sorted(SCALING_RULES))
def test_batches_must_be_positive(rule: str) -> None:
    with pytest.raises(ValueError, match="must be above 0, but got 256 and 0"):
        SCALING_RULES[rule](SETTINGS, 256, 0)


def test_a_warmup_that_outgrows_the_training_is_refused() -> None:
    with pytest.raises(SettingError, match="decay_epochs must exceed warmup_epochs"):
        SCALING_RULES["legw"](
            TrainingSettings(warmup_epochs=5, decay="cosine", decay_epochs=90), 256, 8192
        )


@given(first=BATCH, growth=st.integers(1, 8), further=st.integers(1, 8))
def test_smith_raises_the_momentum_and_keeps_the_noise_scale(
    first: int, growth: int, further: int
) -> None:
    rule, samples = SCALING_RULES["smith_momentum"], 2**40
    grown = rule(SETTINGS, first, first * growth)
    assert sgd_noise_scale(grown, first * growth, samples) == pytest.approx(
        sgd_noise_scale(SETTINGS, first, samples), rel=1e-4
    )
    assert grown.replace(momentum=0.9) == SETTINGS
    again = rule(grown, first * growth, first * growth * further)
    assert again.momentum == pytest.approx(rule(SETTINGS, first, first * growth * further).momentum)
    assert rule(SETTINGS, first, first) == SETTINGS


def test_linear_scaling_keeps_the_noise_scale_too_and_smith_has_a_lower_end() -> None:
    # arXiv:1711.00489: g = lr (N / B - 1) / (1 - m)
    assert sgd_noise_scale(SETTINGS, 256, 1_281_167) == pytest.approx(
        0.1 * (1_281_167 / 256 - 1) / 0.1
    )
    assert sgd_noise_scale(
        SCALING_RULES["linear"](SETTINGS, 256, 8192), 8192, 1_281_167
    ) == pytest.approx(sgd_noise_scale(SETTINGS, 256, 1_281_167), rel=0.01)
    with pytest.raises(SettingError, match="momentum must lie in"):
        SCALING_RULES["smith_momentum"](SETTINGS, 256, 16)


def sgd_noise_scale(settings, global_batch_size, train_samples):
    """``lr (N / B - 1) / (1 - momentum)``: trainings of one noise scale end alike (arXiv:1711.00489, where B << N)."""
    return (
        settings.learning_rate * (train_samples / global_batch_size - 1) / (1 - settings.momentum)
    )
