"""Every law against its published limits."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpo.extrapolation.laws import laws

BATCHES = np.geomspace(1, 1e6, 61)
positive = st.floats(0.1, 1e5)
shape = st.floats(0.5, 2.0)


@given(positive, positive)
def test_the_hyperbola_obeys_mccandlish_and_doubles_at_the_critical_batch(min_epochs, critical):
    """(S / S_min - 1) (E / E_min - 1) = 1, S = E / B and S_min = E_min / B_crit: arXiv:1812.06162, equation 2.11."""
    epochs = laws.epochs_generalised(BATCHES, min_epochs, critical)
    steps = epochs / BATCHES
    product = (steps * critical / min_epochs - 1) * (epochs / min_epochs - 1)
    np.testing.assert_allclose(product, 1.0, rtol=1e-6)
    assert laws.epochs_generalised(critical, 7.0, critical) == pytest.approx(14.0)
    assert laws.epochs_generalised(critical * 1e-9, 7.0, critical) == pytest.approx(7.0)


@given(positive, shape, shape)
def test_generalised_hyperbola_grows_and_bends_upwards(critical, sharpness, exponent):
    growth = laws.log_growth(np.log(BATCHES), np.log(critical), sharpness, exponent)
    assert (np.diff(growth) > -1e-12).all()
    assert (np.diff(growth, 2) > -1e-12).all()
    assert (growth >= exponent * np.maximum(np.log(BATCHES / critical), 0) - 1e-12).all()


def test_growth_does_not_overflow():
    assert laws.log_growth(800.0, 0.0, 2.0, 1.0) == pytest.approx(800.0)


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
