"""The sampler and the distributions of the model against closed forms."""

import numpy as np
import pytest
from scipy.stats import multivariate_normal, norm, t

from hpo.extrapolation.inference.residual import (
    log_student,
    residual_correlation,
    residual_cross_correlation,
    student_cdf,
)
from hpo.extrapolation.inference.sampler import sample_by_tempering

pytestmark = pytest.mark.fit


def test_a_normal_likelihood_with_correlated_errors():
    """The posterior of a standard normal prior is normal: closed form."""
    seen, errors = np.array([1.5, -0.5]), np.array([[0.04, 0.018], [0.018, 0.01]])
    precision = np.linalg.inv(errors)

    def log_likelihood(points):
        return -0.5 * np.einsum("ni,ij,nj->n", points - seen, precision, points - seen)

    covariance = np.linalg.inv(np.eye(2) + precision)
    mean = covariance @ precision @ seen
    sample = sample_by_tempering(log_likelihood, 2, 4000, np.random.default_rng(0))
    assert sample.temperature == 1.0
    np.testing.assert_allclose(sample.particles.mean(axis=0), mean, atol=0.02)
    np.testing.assert_allclose(np.cov(sample.particles.T), covariance, rtol=0.15)


def test_a_posterior_of_fifty_unknowns_is_reached():
    """A normal prior, and normal observations of every unknown and of the mean of all: closed forms."""
    rng, size, sd, sd_of_mean = np.random.default_rng(1), 50, 0.5, 0.01
    seen, seen_mean = rng.normal(size=size), 1.0

    def log_likelihood(points):
        return -0.5 * (
            (((points - seen) / sd) ** 2).sum(axis=1)
            + ((points.mean(axis=1) - seen_mean) / sd_of_mean) ** 2
        )

    precision = np.eye(size) * (1 + sd**-2) + np.ones((size, size)) / (size * sd_of_mean) ** 2
    covariance = np.linalg.inv(precision)
    mean = covariance @ (seen / sd**2 + seen_mean / (size * sd_of_mean**2))
    sample = sample_by_tempering(log_likelihood, size, 4000, np.random.default_rng(0))
    errors = (sample.particles.mean(axis=0) - mean) / np.sqrt(np.diag(covariance))
    assert np.sqrt((errors**2).mean()) < 0.15
    ratio = sample.particles.std(axis=0) / np.sqrt(np.diag(covariance))
    assert ratio.mean() == pytest.approx(1.0, abs=0.06)
    covariance_of_seen = np.vstack([np.eye(size), np.ones((1, size)) / size])
    noise = np.diag([sd**2] * size + [sd_of_mean**2])
    exact = multivariate_normal.logpdf(
        [*seen, seen_mean], cov=covariance_of_seen @ covariance_of_seen.T + noise
    )
    constants = size * np.log(sd * np.sqrt(2 * np.pi)) + np.log(sd_of_mean * np.sqrt(2 * np.pi))
    assert sample.log_evidence - constants == pytest.approx(exact, abs=1.0)


def test_the_evidence_is_the_marginal_likelihood():
    """A standard normal prior, and a normal likelihood of observations at 1 and -2 with sd 0.3: closed form."""
    seen, sd = np.array([1.0, -2.0]), 0.3

    def log_likelihood(points):
        return -0.5 * (((points - seen) / sd) ** 2).sum(axis=1) - 2 * np.log(
            sd * np.sqrt(2 * np.pi)
        )

    exact = norm.logpdf(seen, 0.0, np.hypot(1.0, sd)).sum()
    sample = sample_by_tempering(log_likelihood, 2, 4000, np.random.default_rng(0))
    assert sample.log_evidence == pytest.approx(exact, abs=0.15)


def test_tempering_finds_both_modes():
    seen, sd = np.array([1.5, -1.0]), 0.2

    def log_likelihood(points):
        return np.logaddexp(*(-0.5 * ((points[:, 0] - each) / sd) ** 2 for each in seen))

    # the prior's predictive density weighs the modes
    weight = norm.pdf(seen, 0.0, np.hypot(1.0, sd))
    sample = sample_by_tempering(log_likelihood, 1, 4000, np.random.default_rng(0))
    share = (sample.particles > 0).mean()
    assert share == pytest.approx(weight[0] / weight.sum(), abs=0.06)


def test_a_first_stage_that_keeps_few_states_is_left():
    """The likelihood overflows at all but one in 1400 points of the prior."""

    def log_likelihood(points):
        return np.where(points[:, 0] > 3.2, 0.0, -np.inf)

    sample = sample_by_tempering(log_likelihood, 3, 1000, np.random.default_rng(0))
    assert sample.temperature == 1.0 and (sample.particles[:, 0] > 3.2).all()


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
