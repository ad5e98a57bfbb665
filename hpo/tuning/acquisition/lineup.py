"""Which settings to race at the full-scale batch, and whether that is worth its price.

Candidates are the recommended settings with other learning rates and warmups. The laws are only roughly right, so each
particle of the posterior is taken to be off by a factor of its own in both. Of such particles each holds one candidate
to be the best: chosen are the recommended settings, where those are risky a candidate that is safe if the laws
underrate the risk, and then, one by one, whatever lowers most what the best of those chosen is expected to lose. What
the whole lineup lowers it by is the expected value of perfect information among them (Raiffa and Schlaifer 1961): no
race is worth more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from hpo.extrapolation.inference.posterior import Posterior, thinned
from hpo.extrapolation.laws.configurations import log_epochs, make_configurations, outlook
from hpo.extrapolation.laws.setting_laws import RATE
from hpo.extrapolation.laws.warmup_law import WARMUP
from hpo.extrapolation.prospects import log_epochs_samples
from hpo.extrapolation.recommend import LOST, SLOW, recommend

Array: TypeAlias = NDArray[np.float64]

PARTICLES = 256
LEAST_RISK = 1e-3
RATES, RATE_STEP = 17, 0.125  # candidates: from e^-1 to e times the recommended rate
WARMUPS, WARMUP_STEP = 9, 0.35  # from a quarter to four times the recommended warmup
RATE_OFF, WARMUP_OFF = (
    0.35,
    0.5,
)  # by how much, in log units, a particle is taken to be off (standard deviation)
APART = 2  # steps at least between two of a lineup, in rate or in warmup
RISKY = 0.03  # the risk of the recommended settings from which on a safe candidate is raced
SAFE = 20.0  # times more than the laws say is what the safe one is chosen for
FEWEST, MOST = 3, 5  # configurations of a lineup
HOPELESS = 0.95  # quantile of the epochs expected: a training that needs more than LIMIT times it
LIMIT = 1.25  # is given up
# so many trainings here are worth the settings of a training at full scale: as many as a lost one costs
TRAININGS = LOST


@dataclass(frozen=True)
class Lineup:
    """Settings to race, the recommended ones first, each with the tuned ``learning_rate`` and ``warmup_epochs``.

    ``gain`` is by how much knowing the best of the lineup lowers the expected factor on the epochs of a training, with
    a lost one counted in full; ``epochs`` is what a training is expected to need, ``limit_epochs`` where one is given
    up.
    """

    settings: tuple[dict[str, float], ...]
    gain: float
    epochs: float
    limit_epochs: float

    @property
    def worth_epochs(self) -> float:
        """What the race may save at most, in epochs here."""
        return TRAININGS * self.gain * self.epochs


def choose_lineup(
    posterior: Posterior, global_batch_size: int, most_epochs: float
) -> Lineup | None:
    """The settings to race within ``most_epochs``, which all trainings together may take; the same every time.

    None where the evidence does not tell what missing the best learning rate costs: then there is nothing to choose by.
    """
    if not any(law.name == RATE for law in posterior.model.laws) or not posterior.knows_cost(RATE):
        return None
    choices = recommend(posterior, float(np.log(global_batch_size)))
    samples = log_epochs_samples(posterior, choices, 1, 1.0)
    epochs = float(np.exp(min(np.median(samples), 50.0)))
    limit = LIMIT * float(np.exp(min(np.quantile(samples, HOPELESS), 50.0)))
    centre = {name: choice.interval.median for name, choice in choices.items()}
    tuned = WARMUP in centre and centre[WARMUP] > 0
    rates = np.exp(RATE_STEP * (np.arange(RATES) - RATES // 2)) * centre[RATE]
    warmups = np.zeros(1)
    if tuned and posterior.model.warmup is not None:
        warmups = np.maximum(
            np.exp(WARMUP_STEP * (np.arange(WARMUPS) - WARMUPS // 2)) * centre[WARMUP],
            posterior.model.warmup.shortest(np.log(global_batch_size)),
        )
    grid = [
        {**centre, RATE: float(rate), **({WARMUP: float(warmup)} if tuned else {})}
        for rate in rates
        for warmup in warmups
    ]
    few = thinned(posterior, PARTICLES)
    missed, risk = _missed(few, float(np.log(global_batch_size)), grid)
    factor = np.minimum(np.exp(np.minimum(missed, 10.0)), SLOW)
    shape = (-1, len(rates), len(warmups))
    loss = _off((factor + (LOST - factor) * risk).reshape(shape))
    taken = [(len(rates) // 2, len(warmups) // 2)]
    centre_row, centre_column = taken[0]
    if float(risk[:, centre_row * len(warmups) + centre_column].mean()) >= RISKY:
        taken += _safe(factor, risk, len(rates), warmups)
    count = int(np.clip(most_epochs / epochs - 2, FEWEST, MOST))
    while len(taken) < count:
        best = np.min([loss[:, row, column] for row, column in taken], axis=0)
        after = np.minimum(loss, best[:, None, None]).mean(axis=0)
        free = [
            (float(after[row, column]), row, column)
            for row in range(len(rates))
            for column in range(len(warmups))
            if _apart((row, column), taken, warmups)
        ]
        taken.append(min(free)[1:])
    now = float(loss[:, taken[0][0], taken[0][1]].mean())
    known = float(np.min([loss[:, row, column] for row, column in taken], axis=0).mean())
    return Lineup(
        tuple(grid[row * len(warmups) + column] for row, column in taken),
        now - known,
        epochs,
        limit,
    )


def _safe(factor: Array, risk: Array, rates: int, warmups: Array) -> list[tuple[int, int]]:
    """The best place if the risk were much larger: slower in its rate than the middle, or longer in its warmup."""
    loss = (factor + (LOST - factor) * np.minimum(SAFE * risk, 1.0)).mean(axis=0)
    middle = (rates // 2, len(warmups) // 2)
    safest = loss.reshape(rates, len(warmups))[: middle[0] + 1, middle[1] :]
    for at in np.argsort(safest, axis=None):
        row, column = np.unravel_index(at, safest.shape)
        place = (int(row), int(column) + middle[1])
        if _apart(place, [middle], warmups):
            return [place]
    return []


def _missed(
    posterior: Posterior, log_batch: float, settings: Sequence[Mapping[str, object]]
) -> tuple[Array, Array]:
    """Log factor on the epochs of the best at the full rate, and risk of a loss: (particles, settings)."""
    model, values = posterior.model, posterior.values
    here = make_configurations(
        np.array([log_batch]),
        np.zeros(len(settings), dtype=np.intp),
        settings,
        model.laws,
        model.warmup,
    )
    seen = outlook(values, model.laws, model.warmup, here)
    level = posterior.log_epochs(log_batch)[0][:, None]
    risk = np.zeros_like(seen.cost) if seen.risk is None else seen.risk
    return log_epochs(values, model.warmup, here, level + seen.cost) - level, np.clip(
        risk, LEAST_RISK, 1 - LEAST_RISK
    )


def _off(loss: Array) -> Array:
    """The loss (particles, rates, warmups) where every particle is off by whole steps of its own; evenly so."""
    rng = np.random.default_rng(0)
    particles, rates, warmups = loss.shape
    of_rate = np.rint(rng.normal(0.0, RATE_OFF / RATE_STEP, particles)).astype(int)
    of_warmup = np.rint(rng.normal(0.0, WARMUP_OFF / WARMUP_STEP, particles)).astype(int)
    rows = np.clip(np.arange(rates)[None, :] + of_rate[:, None], 0, rates - 1)
    columns = np.clip(np.arange(warmups)[None, :] + of_warmup[:, None], 0, warmups - 1)
    return np.asarray(
        loss[np.arange(particles)[:, None, None], rows[:, :, None], columns[:, None, :]]
    )


def _apart(place: tuple[int, int], taken: list[tuple[int, int]], warmups: Array) -> bool:
    """Whether a place is far enough from all that are taken; the shortest warmup may fill several columns."""
    return all(
        abs(place[0] - row) >= APART
        or (abs(place[1] - column) >= APART and warmups[place[1]] != warmups[column])
        for row, column in taken
    )
