"""What trials at one batch add to the laws: against a Gaussian process by hand, limits, and seeds."""

import math

import numpy as np
import pytest
import scipy.stats

from hpo.extrapolation import discrepancy


def test_trials_overrule_the_laws():
    places = np.linspace(-1, 1, 41)[:, None]
    prior = np.abs(places[:, 0]) * 0.2  # the laws hold 0 to be best; at 0.4 it is 20 % faster
    tried = np.array([[0.0], [0.2], [0.4], [0.6]])
    corrected = discrepancy.correct_by_trials(
        prior, places, tried, np.abs(tried[:, 0]) * 0.2, np.log([100, 88, 80, 90]), 0.04
    )
    best = int(np.argmin(corrected.mean))
    assert places[best, 0] == pytest.approx(0.4, abs=0.1)
    assert corrected.mean[best] == pytest.approx(math.log(80), abs=0.05)
    assert corrected.sd[0] > corrected.sd[best]


def test_it_is_the_mixture_of_gaussian_processes_over_its_sizes():
    """Two trials one length apart: each size's posterior by 2 x 2 algebra, weighted by the trials' joint density."""
    distance, noise, gap = 0.3, 0.1, np.array([0.3, -0.3])
    places = np.array([[0.0], [distance]])
    found = discrepancy.correct_by_trials(np.zeros(2), places, places, np.zeros(2), gap, noise)
    near = math.exp(-0.5)  # at the length of the kernel, 0.3
    weights, means, bends, variances = [], [], [], []
    for size, probability in ((0.1, 0.25), (0.2, 0.4), (0.4, 0.25), (0.8, 0.1)):
        same, across = 1 + size**2, 1 + size**2 * near  # with the level, of size 1
        known = np.array([[same + noise**2, across], [across, same + noise**2]])
        density = scipy.stats.multivariate_normal(cov=known).pdf(gap)
        weights.append(probability * density)
        told = np.linalg.inv(known) @ gap
        means.append(np.array([[same, across], [across, same]]) @ told)
        bends.append(size**2 * np.array([[1, near], [near, 1]]) @ told)
        row = np.array([same, across])
        variances.append(same - row @ np.linalg.inv(known) @ row)
    share = np.array(weights) / sum(weights)
    mean = share @ np.array(means)
    spread = share @ (np.array(variances)[:, None] + (np.array(means) - mean) ** 2)
    assert found.mean == pytest.approx(mean)
    assert found.bend == pytest.approx(share @ np.array(bends))
    assert found.sd == pytest.approx(np.sqrt(spread))


def test_the_discrepancy_is_as_large_as_the_trials_say():
    """It follows trials the more, the further the laws missed them."""
    places, noise = np.array([[0.0], [1.0]]), 0.1
    shares = [
        discrepancy.correct_by_trials(
            np.zeros(2), places, places, np.zeros(2), [size, -size], noise
        ).bend[0]
        / size
        for size in (0.05, 0.3, 1.0)
    ]
    assert shares[0] < shares[1] < shares[2] < 1
    assert shares[2] > 0.95


def test_trials_whose_seeds_are_not_told_share_none():
    places, zeros = np.array([[0.0], [1.0]]), np.zeros(2)
    means = [
        discrepancy.correct_by_trials(zeros, places, places, zeros, [0.3, -0.3], 0.1, seeds).mean
        for seeds in (None, (None, None), (1, 2), (1, 1))
    ]
    assert means[0] == pytest.approx(means[1]) and means[0] == pytest.approx(means[2])
    assert means[3][0] > means[0][0]  # a difference under one seed is believed more
