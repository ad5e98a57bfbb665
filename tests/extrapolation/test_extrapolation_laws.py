"""Every law against its published limits."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpo.extrapolation.laws import laws

BATCHES = np.geomspace(1, 1e6, 61)
positive = st.floats(0.1, 1e5)
shape = st.floats(0.5, 2.0)


def test_hyperbola_doubles_at_the_critical_batch():
    assert laws.epochs_hyperbola(300.0, 7.0, 300.0) == pytest.approx(14.0)
    assert laws.epochs_hyperbola(1e-9, 7.0, 300.0) == pytest.approx(7.0)


def test_hyperbola_obeys_mccandlish_equation():
    # (S / S_min - 1) (E / E_min - 1) = 1 with S = E / B and S_min = E_min / B_crit: arXiv:1812.06162, equation 2.11
    epochs = laws.epochs_hyperbola(BATCHES, 7.0, 300.0)
    steps = epochs / BATCHES
    np.testing.assert_allclose((steps / (7.0 / 300.0) - 1) * (epochs / 7.0 - 1), 1.0)


@given(positive, positive)
def test_generalised_hyperbola_holds_the_hyperbola(min_epochs, critical):
    np.testing.assert_allclose(
        laws.epochs_generalised(BATCHES, min_epochs, critical),
        laws.epochs_hyperbola(BATCHES, min_epochs, critical),
    )


@given(positive, shape, shape)
def test_generalised_hyperbola_grows_and_bends_upwards(critical, sharpness, exponent):
    growth = laws.log_growth(np.log(BATCHES), np.log(critical), sharpness, exponent)
    assert (np.diff(growth) > -1e-12).all()
    assert (np.diff(growth, 2) > -1e-12).all()
    assert (growth >= exponent * np.maximum(np.log(BATCHES / critical), 0) - 1e-12).all()


def test_growth_does_not_overflow():
    assert laws.log_growth(800.0, 0.0, 2.0, 1.0) == pytest.approx(800.0)


def test_power_law_is_a_straight_line_in_logarithms():
    assert laws.epochs_power(8.0, 3.0, 2.0 / 3.0) == pytest.approx(12.0)


def test_learning_rate_rules_of_thumb():
    assert laws.learning_rate_linear(8192, 0.1, 256) == pytest.approx(3.2)
    assert laws.learning_rate_sqrt(1024, 0.1, 256) == pytest.approx(0.2)


def test_saturating_rate_is_linear_far_below_the_noise_scale_and_flat_far_above():
    assert laws.learning_rate_saturating(2e-3, 1.0, 1e3) / laws.learning_rate_saturating(
        1e-3, 1.0, 1e3
    ) == pytest.approx(2.0, rel=1e-5)
    assert laws.learning_rate_saturating(1e9, 0.7, 1e3) == pytest.approx(0.7, rel=1e-5)
    assert laws.learning_rate_saturating(1e3, 0.7, 1e3) == pytest.approx(0.35)
    assert laws.learning_rate_saturating(4e-3, 1.0, 1e3, 0.5) / laws.learning_rate_saturating(
        1e-3, 1.0, 1e3, 0.5
    ) == pytest.approx(2.0, rel=1e-5)


def test_surge_peaks_at_the_noise_scale_and_is_sqrt_below():
    rates = laws.learning_rate_surge(BATCHES, 0.5, 1e3)
    assert BATCHES[np.argmax(rates)] == pytest.approx(1e3)
    assert rates.max() == pytest.approx(0.5)
    small = laws.learning_rate_surge(np.array([1e-4, 4e-4]), 1.0, 1e3)
    assert small[1] / small[0] == pytest.approx(2, rel=1e-4)


def test_warmup_keeps_updates_or_epochs():
    assert laws.warmup_power(512, 2.0, 128) / 512 == pytest.approx(2.0 / 128)
    assert laws.warmup_power(512, 2.0, 128, 0.0) == pytest.approx(2.0)
