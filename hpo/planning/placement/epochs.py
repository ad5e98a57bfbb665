"""Epochs to target by global batch size, as a planner needs them: equally likely values for one training run."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hpo.errors import PlanError
from hpo.extrapolation.inference.intervals import LEVELS, Interval
from hpo.extrapolation.inference.kept import KeptConstraints
from hpo.extrapolation.inference.posterior import Posterior, thin_posterior
from hpo.extrapolation.prospects import log_epochs_samples
from hpo.extrapolation.recommend import (
    RecommendedSettings,
    constraint_outlooks,
    recommend,
    scale_recommended_rate,
)
from hpo.extrapolation.trust import VERY_FAR
from hpo.planning.plan import BUDGET_FACTOR

Array: TypeAlias = NDArray[np.float64]

VALUES = 200  # number of equally likely values that represent a distribution
GRID = 33  # batch sizes at which the constraints of the study are checked
FEW_PARTICLES = 600  # enough to compare batch sizes with one another
END_OF_INTERVAL = (
    1.6448536  # standard deviations from the median of a normal to the end of its 90 % interval
)


@dataclass(frozen=True)
class EpochsForecast:
    """Epochs to target of one training run at one batch size.

    ``values``, sorted and of shape (VALUES,), are equally likely for a run that does not diverge; ``divergence`` is the
    probability of divergence.
    """

    values: Array
    divergence: float = 0.0

    @property
    def interval(self) -> Interval:
        """Median and 90 % interval."""
        return Interval(*(float(value) for value in np.quantile(self.values, LEVELS)))

    @cached_property
    def expected(self) -> float:
        """Mean epochs of a run that is abandoned at BUDGET_FACTOR times the upper end of the interval."""
        return float(
            np.minimum(self.values, BUDGET_FACTOR * np.quantile(self.values, LEVELS[2])).mean()
        )


class EpochsLaw(Protocol):
    """The epochs to target, by global batch size."""

    @property
    def supported(self) -> tuple[int, int]:
        """The smallest and the largest global batch size that the evidence supports."""

    @property
    def swept(self) -> int:
        """The largest global batch size that was trained."""

    def at(self, global_batch_size: int) -> EpochsForecast:
        """Return the epochs to target of one training run with the recommended settings."""

    def near(self, global_batch_size: int) -> EpochsForecast:
        """Return an approximation of :meth:`at`, fast enough to compare many batch sizes."""

    def spread_after(self, seen: int, global_batch_size: int) -> float:
        """Return the standard deviation of the log epochs at a batch size, after observing a run at ``seen``."""


class PosteriorEpochsLaw:
    """Epochs from the fitted posterior; ``scale`` widens or narrows the intervals according to past outcomes.

    ``kept`` predicts which settings satisfy the constraints of the study, if there are any.
    """

    def __init__(
        self,
        posterior: Posterior,
        scale: float = 1.0,
        particles: int = FEW_PARTICLES,
        kept: KeptConstraints | None = None,
    ) -> None:
        self._posterior, self._scale, self._kept = thin_posterior(posterior, particles), scale, kept
        self._others: tuple[PosteriorEpochsLaw, float] | None = None
        self._chosen: dict[int, RecommendedSettings] = {}
        self._known: dict[int, EpochsForecast] = {}
        self._between: dict[int, EpochsForecast] = {}

    @cached_property
    def supported(self) -> tuple[int, int]:
        """The batch sizes likely to satisfy the constraints, from the smallest rung to the largest trusted size.

        If no batch size is likely to satisfy them, the range is not restricted, and the plan says so.
        """
        batches = self._posterior.evidence.batches
        low, high = int(batches[0]), int(VERY_FAR * batches[-1])
        if self._kept is None or not self._kept.fits:
            return low, high
        tried = sorted({round(each) for each in np.geomspace(low, high, GRID)})
        likely = [
            batch
            for batch in tried
            if all(each.likely for each in constraint_outlooks(self._kept, self._choices(batch)))
        ]
        return (likely[0], likely[-1]) if likely else (low, high)

    @property
    def swept(self) -> int:
        """The batch size of the largest rung."""
        return int(self._posterior.evidence.batches[-1])

    def at(self, global_batch_size: int) -> EpochsForecast:
        """Return the quantiles of the posterior predictive distribution of one training run."""
        if global_batch_size not in self._known:
            choices = self._choices(global_batch_size)
            samples = log_epochs_samples(self._posterior, choices, 1, self._scale)
            levels = (np.arange(VALUES) + 0.5) / VALUES
            values = np.exp(np.minimum(np.quantile(samples, levels), 200.0))
            self._known[global_batch_size] = EpochsForecast(
                values, float(choices.risk(self._posterior).mean())
            )
        return self._known[global_batch_size]

    def near(self, global_batch_size: int) -> EpochsForecast:
        """Interpolate between powers of two: log epochs against the logarithm of the batch size."""
        if global_batch_size not in self._between:
            below = 2 ** (global_batch_size.bit_length() - 1)
            low, high, share = (
                self.at(below),
                self.at(2 * below),
                math.log2(global_batch_size / below),
            )
            self._between[global_batch_size] = EpochsForecast(
                low.values ** (1 - share) * high.values**share,
                (1 - share) * low.divergence + share * high.divergence,
            )
        return self._between[global_batch_size]

    def spread_after(self, seen: int, global_batch_size: int) -> float:
        """Return the spread left after regressing the log epochs on those at ``seen``, plus the scatter of runs."""
        (x, x_scatter), (y, y_scatter) = self._log_epochs(seen), self._log_epochs(global_batch_size)
        spread = float(np.var(x)) + x_scatter
        explained = float(np.cov(x, y, bias=True)[0, 1]) ** 2 / spread if spread else 0.0
        return self._scale * math.sqrt(max(float(np.var(y)) - explained, 0.0) + y_scatter)

    def _log_epochs(self, global_batch_size: int) -> tuple[Array, float]:
        """Return each particle's expected log epochs, shape (particles,), and the mean variance of a run about them."""
        mean, sd = self._posterior.log_epochs(math.log(global_batch_size), 1)
        return mean + self._choices(global_batch_size).cost(self._posterior), float(np.mean(sd**2))

    def _choices(self, global_batch_size: int) -> RecommendedSettings:
        if global_batch_size not in self._chosen:
            if self._others is None:
                found = recommend(self._posterior, math.log(global_batch_size), self._kept)
            else:
                law, factor = self._others
                found = scale_recommended_rate(law._choices(global_batch_size), factor)
            self._chosen[global_batch_size] = found
        return self._chosen[global_batch_size]

    def at_rate(self, factor: float) -> PosteriorEpochsLaw:
        """Return the law of the same settings with a learning rate ``factor`` times as high."""
        other = PosteriorEpochsLaw(
            self._posterior, self._scale, len(self._posterior.residuals), self._kept
        )
        other._others = self, factor
        return other

    def settings(self, global_batch_size: int) -> dict[str, float]:
        """Return the tuned settings at a batch size, by name."""
        return {
            name: each.interval.median for name, each in self._choices(global_batch_size).items()
        }


class IntervalEpochsLaw:
    """A forecast at a single batch size, given only by its interval: log-normal on each side of its median."""

    def __init__(self, global_batch_size: int, interval: Interval, divergence: float = 0.0) -> None:
        self.supported, self.swept = (global_batch_size, global_batch_size), global_batch_size
        self._epochs = EpochsForecast(epoch_quantiles(interval, VALUES), divergence)

    def at(self, global_batch_size: int) -> EpochsForecast:
        """Return the epochs at the one batch size; raise :class:`PlanError` for another."""
        if global_batch_size != self.supported[0]:
            raise PlanError(
                f"this forecast is valid only for global batch size {self.supported[0]}, not "
                f"for {global_batch_size}; make another with hpo.forecast",
                {"global_batch_size": self.supported[0]},
            )
        return self._epochs

    def near(self, global_batch_size: int) -> EpochsForecast:
        """Return the same as :meth:`at`."""
        return self.at(global_batch_size)

    def spread_after(self, seen: int, global_batch_size: int) -> float:  # noqa: ARG002 (one interval is all there is)
        """Return the spread unchanged: a single interval has no correlation between batch sizes."""
        return float(np.std(np.log(self.at(global_batch_size).values)))


class EvenEpochsLaw:
    """A law with the same epochs, 1 by default, at every batch size: for a fixed budget, or if epochs do not matter.

    ``supported`` and ``swept`` are the batch sizes of the evidence, if there is any.
    """

    def __init__(
        self,
        epochs: float = 1.0,
        *,
        divergence: float = 0.0,
        supported: tuple[int, int] = (1, 10**12),
        swept: int = 1,
    ) -> None:
        self.supported, self.swept = supported, swept
        self._epochs = EpochsForecast(np.full(VALUES, epochs), divergence)

    def at(self, global_batch_size: int) -> EpochsForecast:  # noqa: ARG002
        """Return the epochs, without uncertainty."""
        return self._epochs

    near = at

    def spread_after(self, seen: int, global_batch_size: int) -> float:  # noqa: ARG002
        """Return zero: nothing is uncertain."""
        return 0.0


def epoch_quantiles(interval: Interval, count: int) -> Array:
    """Return ``count`` sorted, equally likely values with this median and 90 % interval, log-normal on each side."""
    normal = _normal(count) / END_OF_INTERVAL
    up, down = math.log(interval.high / interval.median), math.log(interval.median / interval.low)
    return np.asarray(interval.median * np.exp(np.where(normal > 0, up, down) * normal))


@functools.cache
def _normal(count: int) -> Array:
    """Return ``count`` equally likely values of the standard normal distribution."""
    return np.array([NormalDist().inv_cdf((k + 0.5) / count) for k in range(count)])
