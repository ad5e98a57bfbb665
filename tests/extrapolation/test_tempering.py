"""The sampler and the distributions of the model against closed forms."""

import numpy as np
import pytest
from scipy.stats import norm, t

from hpo.extrapolation.inference.residual import (
    log_student,
    residual_correlation,
    residual_cross_correlation,
    student_cdf,
)
from hpo.extrapolation.inference.sampler import (
    sample_by_tempering,
    standard_normal_start,
    start_near_mode,
)

pytestmark = pytest.mark.fit


def _gaussian(mean, covariance):
    precision = np.linalg.inv(covariance)
    return lambda points: -0.5 * np.einsum("ni,ij,nj->n", points - mean, precision, points - mean)


@pytest.mark.parametrize(
    "start", [lambda density: standard_normal_start(2), lambda density: start_near_mode(density, 2)]
)
def test_tempering_finds_mean_and_covariance_of_a_narrow_gaussian(start):
    mean, covariance = np.array([1.5, -0.5]), np.array([[0.04, 0.018], [0.018, 0.01]])
    density = _gaussian(mean, covariance)
    sample = sample_by_tempering(start(density), density, 4000, np.random.default_rng(0))
    assert sample.temperature == 1.0
    np.testing.assert_allclose(sample.particles.mean(axis=0), mean, atol=0.02)
    np.testing.assert_allclose(np.cov(sample.particles.T), covariance, rtol=0.15)


@pytest.mark.parametrize(
    "start", [lambda density: standard_normal_start(2), lambda density: start_near_mode(density, 2)]
)
def test_the_evidence_is_the_marginal_likelihood(start):
    """A standard normal prior, and a normal likelihood of observations at 1 and -2 with sd 0.3: closed form."""
    seen, sd = np.array([1.0, -2.0]), 0.3

    def density(points):
        likelihood = -0.5 * (((points - seen) / sd) ** 2).sum(axis=1) - 2 * np.log(
            sd * np.sqrt(2 * np.pi)
        )
        return likelihood - 0.5 * (points**2).sum(axis=1)

    exact = norm.logpdf(seen, 0.0, np.hypot(1.0, sd)).sum()
    found = sample_by_tempering(start(density), density, 4000, np.random.default_rng(0))
    assert found.log_evidence == pytest.approx(exact, abs=0.15)


def test_the_highest_of_several_modes_is_found():
    def density(points):
        return np.logaddexp(
            -0.5 * ((points[:, 0] - 3) / 0.1) ** 2, -0.5 * ((points[:, 0] + 3) / 0.1) ** 2 - 5
        )

    guesses = np.array([[-3.0], [2.9], [-2.9]])
    assert start_near_mode(density, 1, guesses=guesses[::2], searches=2).mean[0] == pytest.approx(
        -3.0, abs=0.01
    )
    assert start_near_mode(density, 1, guesses=guesses, searches=3).mean[0] == pytest.approx(
        3.0, abs=0.01
    )


def test_tempering_finds_both_modes():
    def density(points):
        return np.logaddexp(
            -0.5 * ((points[:, 0] - 1.5) / 0.1) ** 2,
            np.log(2) - 0.5 * ((points[:, 0] + 1) / 0.1) ** 2,
        )

    sample = sample_by_tempering(standard_normal_start(1), density, 4000, np.random.default_rng(0))
    assert (sample.particles > 0).mean() == pytest.approx(1 / 3, abs=0.06)


def test_student_matches_scipy():
    points = np.linspace(-30, 30, 121)
    np.testing.assert_allclose(log_student(points), t.logpdf(points, 3), atol=1e-9)
    np.testing.assert_allclose(student_cdf(points), t.cdf(points, 3), atol=1e-12)


def test_residuals_of_near_configurations_are_alike_but_not_the_same():
    batches = np.log([100.0, 110.0, 10_000.0])
    matrix = residual_correlation(batches)
    np.testing.assert_allclose(np.diag(matrix), 1.0)
    assert 1 > matrix[0, 1] > 10 * matrix[0, 2] > 0
    assert np.linalg.eigvalsh(matrix).min() > 0
    assert residual_cross_correlation(batches, batches[:1])[0, 0] < 1
