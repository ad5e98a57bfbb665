"""Which settings to use at a batch: those with the least expected epochs over all that the evidence leaves open."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from hpo.extrapolation.inference.posterior import Posterior
from hpo.extrapolation.laws.response import Response
from hpo.extrapolation.laws.setting_laws import MOMENTUM, RATE, SettingLaw
from hpo.intervals import LEVELS, Interval

Array: TypeAlias = NDArray[np.float64]
# a run that diverges, or needs more than three times the epochs, is ended and counts as the loss of three
LOST = 3.0
LOOKS, GRID = 2, 101
# no law is better than this: values that cost no more than a hundredth of the epochs serve alike; the recommended one
# must do so in expectation, over all that is not known, and is held to less
ALIKE, ALIKE_IN_EXPECTATION = 0.01, 0.002
AWAY = np.array([0.0, 0.03, 0.06, 0.1, 0.15, 0.2, 0.3, 0.4, 0.55, 0.7, 1.0])     # from the best: where it is looked


@dataclass(frozen=True)
class Choice:
    """The value to use: its ``coordinate``, and with the interval of the best value in the setting's own unit."""

    coordinate: float
    interval: Interval


@dataclass(frozen=True)
class Choices(Mapping[str, Choice]):
    """The choice of each tuned setting at one batch."""

    log_batch: float
    chosen: Mapping[str, Choice]

    def __getitem__(self, name: str) -> Choice:
        return self.chosen[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.chosen)

    def __len__(self) -> int:
        return len(self.chosen)

    @property
    def momentum(self) -> float | None:
        """The chosen momentum; None where it was not tuned."""
        return self.chosen[MOMENTUM].interval.median if MOMENTUM in self.chosen else None

    def cost(self, posterior: Posterior, rate_factor: float = 1.0) -> Array:
        """Logarithm of what missing the best settings costs in epochs, with the rate off by a factor: (particles,)."""
        total = np.zeros(len(posterior.residuals))
        for name, choice in self.chosen.items():
            if posterior.knows_cost(name):
                response = response_at(posterior, posterior.law(name), self.log_batch, self.momentum)
                off = float(np.log(rate_factor)) if name == RATE else 0.0
                total = total + response.cost(np.array([choice.coordinate + off]))[:, 0]
        return np.minimum(total, np.log(LOST))

    def risk(self, posterior: Posterior, rate_factor: float = 1.0) -> Array:
        """Probability of divergence with the rate off by a factor: (particles,)."""
        if RATE not in self.chosen or not posterior.knows_cost(RATE):
            return np.zeros(len(posterior.residuals))
        response = response_at(posterior, posterior.law(RATE), self.log_batch, self.momentum)
        risk = response.risk(np.array([self.chosen[RATE].coordinate + float(np.log(rate_factor))]))
        return np.zeros(len(posterior.residuals)) if risk is None else risk[:, 0]


def recommend(posterior: Posterior, log_batch: float) -> Choices:
    """The settings to use at a batch. The momentum is chosen first: the best learning rate depends on it."""
    chosen: dict[str, Choice] = {}
    for law in sorted(posterior.model.laws, key=lambda law: law.name != MOMENTUM):
        chosen[law.name] = _choose(posterior, law, log_batch, Choices(log_batch, chosen).momentum)
    return Choices(log_batch, {law.name: chosen[law.name] for law in posterior.model.laws})


def response_at(posterior: Posterior, law: SettingLaw, log_batch: float, momentum: float | None) -> Response:
    """What a setting costs at one batch (and momentum)."""
    return law.response(posterior.values, np.array([log_batch]), None if momentum is None else np.array([momentum]))


def serve_alike(response: Response) -> tuple[float, float]:
    """The 90 % interval of the coordinates that are the best or serve alike."""
    found = []
    for side, furthest, level in ((-1, np.min, LEVELS[1]), (1, np.max, LEVELS[2])):
        beyond = response.best + side * AWAY * response.unit
        alike = np.logical_and.accumulate(response.cost(beyond) <= ALIKE, axis=1)
        found.append(float(np.quantile(furthest(np.where(alike, beyond, response.best), axis=1), level)))
    return found[0], found[1]


def _choose(posterior: Posterior, law: SettingLaw, log_batch: float, momentum: float | None) -> Choice:
    best = law.best(posterior.values, np.array([log_batch]), None if momentum is None else np.array([momentum]))[:, 0]
    choice, low, high = (float(value) for value in np.quantile(best, LEVELS))
    if posterior.knows_cost(law.name) and high > low:
        response = response_at(posterior, law, log_batch, momentum)
        choice = _least_expected(response, low, high)
        low, high = serve_alike(response)
    choice = float(np.clip(choice, *_sane(law, log_batch)))
    ends = (choice, min(low, choice), max(high, choice))
    return Choice(choice, Interval(*(float(law.value(np.array(end))) for end in ends)))


def _least_expected(response: Response, low: float, high: float) -> float:
    """The coordinate with the least expected factor on the epochs, between ``low`` (for a rate less) and ``high``.

    Of learning rates that serve alike it is the lowest: less is lost if the bound of stability is nearer than thought.
    """
    low = low - float(np.log(LOST)) if response.risk(np.array([low])) is not None else low
    choice, least = low, float("inf")
    for _ in range(LOOKS):
        grid = np.linspace(low, high, GRID)
        lost = np.minimum(np.exp(response.cost(grid)), LOST)
        risk = response.risk(grid)
        if risk is not None:
            lost += (LOST - lost) * risk
        expected = lost.mean(axis=0)
        least = min(least, float(expected.min()))
        at = int(np.argmin(expected if risk is None else expected > (1 + ALIKE_IN_EXPECTATION) * least))
        choice, low, high = float(grid[at]), float(grid[max(at - 2, 0)]), float(grid[min(at + 2, GRID - 1)])
    return choice


def _sane(law: SettingLaw, log_batch: float) -> tuple[float, float]:
    """Beyond the values tried only as far as the batch is beyond those seen: the linear rule is the limit."""
    beyond = max(log_batch - law.log_anchor, 0.0)
    low, high = law.tried
    if law.is_log:
        return low - np.log(2) - beyond, high + np.log(2) + beyond
    slack = 0.25 * abs(high)
    return low - slack, (high + slack) * float(np.exp(beyond))
