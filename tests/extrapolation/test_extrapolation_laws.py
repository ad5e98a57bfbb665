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
    epochs = min_epochs * np.exp(laws.log_growth(np.log(BATCHES), np.log(critical)))
    steps = epochs / BATCHES
    product = (steps * critical / min_epochs - 1) * (epochs / min_epochs - 1)
    np.testing.assert_allclose(product, 1.0, rtol=1e-6)
    assert np.exp(laws.log_growth(np.log(critical), np.log(critical))) == pytest.approx(2.0)
    assert np.exp(laws.log_growth(np.log(critical * 1e-9), np.log(critical))) == pytest.approx(1.0)


@given(positive, shape, shape)
def test_generalised_hyperbola_grows_and_bends_upwards(critical, sharpness, exponent):
    growth = laws.log_growth(np.log(BATCHES), np.log(critical), sharpness, exponent)
    assert (np.diff(growth) > -1e-12).all()
    assert (np.diff(growth, 2) > -1e-12).all()
    assert (growth >= exponent * np.maximum(np.log(BATCHES / critical), 0) - 1e-12).all()


def test_growth_does_not_overflow():
    assert laws.log_growth(800.0, 0.0, 2.0, 1.0) == pytest.approx(800.0)
