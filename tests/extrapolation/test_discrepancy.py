"""What trials at one batch say beyond the laws: against the Gaussian process by hand, its limits and its seeds."""

import math

import numpy as np
import pytest

from hpo.extrapolation import discrepancy


def test_trials_overrule_the_laws():
    places = np.linspace(-1, 1, 41)[:, None]
    prior = np.abs(places[:, 0]) * 0.2  # the laws hold 0 to be best; at 0.4 it is 20 % faster
    tried = np.array([[0.0], [0.2], [0.4], [0.6]])
    corrected = discrepancy.correct(
        prior, places, tried, np.abs(tried[:, 0]) * 0.2, np.log([100, 88, 80, 90]), 0.04
    )
    best = int(np.argmin(corrected.mean))
    assert places[best, 0] == pytest.approx(0.4, abs=0.1)
    assert corrected.mean[best] == pytest.approx(math.log(80), abs=0.05)
    assert corrected.sd[0] > corrected.sd[best]


def test_the_discrepancy_is_as_large_as_the_trials_say(monkeypatch):
    """With one size it is the Gaussian process's mean; with several it follows trials that the laws missed by far."""
    places, noise = np.array([[0.0], [1.0]]), 0.1
    monkeypatch.setattr(discrepancy, "AMPLITUDES", (0.2,))
    monkeypatch.setattr(discrepancy, "PROBABILITIES", (1.0,))
    found = discrepancy.correct(np.zeros(2), places, places, np.zeros(2), [0.3, -0.3], noise)
    near = math.exp(-0.5 / discrepancy.LENGTH**2)
    share = 0.04 * (1 - near) / (0.04 * (1 - near) + noise**2)  # of a difference, the level apart
    assert found.bend == pytest.approx([0.3 * share, -0.3 * share])
    assert found.mean == pytest.approx(found.bend, abs=1e-9)
    monkeypatch.undo()
    shares = [
        discrepancy.correct(np.zeros(2), places, places, np.zeros(2), [size, -size], noise).bend[0]
        / size
        for size in (0.05, 0.3, 1.0)
    ]
    assert shares[0] < shares[1] < shares[2] < 1
    assert shares[2] > 0.95


def test_trials_whose_seeds_are_not_told_share_none():
    places, zeros = np.array([[0.0], [1.0]]), np.zeros(2)
    means = [
        discrepancy.correct(zeros, places, places, zeros, [0.3, -0.3], 0.1, seeds).mean
        for seeds in (None, (None, None), (1, 2), (1, 1))
    ]
    assert means[0] == pytest.approx(means[1]) and means[0] == pytest.approx(means[2])
    assert means[3][0] > means[0][0]  # a difference under one seed is believed more
