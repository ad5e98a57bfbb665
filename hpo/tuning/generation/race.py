"""The race: trains a few configurations at the full-scale batch size itself, and the best two once more.

Gradient accumulation makes any batch size trainable here, though every sample must be paid for. The laws predict the
best settings only approximately, and a lost training run costs the slot on the full machine. So a few candidates around
the forecast settings are trained, candidates that are far behind are dropped, and the best two are repeated, because
the scatter between seeds makes one of them look better than it is. If the fastest candidate has the highest or lowest
learning rate of all, the optimum may lie beyond it, and the race goes one step further in that direction.

Candidates are the recommended settings with other learning rates and warmups. The laws are only approximate, so each
particle of the posterior gets a random error factor in both, and one candidate is the best for each such particle. The
race trains the recommended settings. If they are risky, it also trains a candidate that is safe even if the laws
underestimate the risk. It then adds, one by one, the candidate that most lowers the expected loss of the best candidate
chosen. The reduction by all candidates together is their expected value of perfect information (Raiffa and Schlaifer
1961): no race is worth more.

The next run depends only on the race's trials, so an interrupted race can continue. The first run of every
configuration has the same seed, and so the same initial weights and order of samples; the second runs have the next
seed. An effect that a seed has on all of them alike therefore decides nothing.
"""

from __future__ import annotations

import itertools
import math
import zlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hpo.extrapolation.evidence.stored import trials_counted_once
from hpo.extrapolation.inference.posterior import Posterior, thin_posterior
from hpo.extrapolation.laws.configurations import log_epochs, make_configurations, settings_outlook
from hpo.extrapolation.laws.setting_laws import RATE
from hpo.extrapolation.laws.warmup_law import WARMUP
from hpo.extrapolation.prospects import log_epochs_samples
from hpo.extrapolation.recommend import LOST, SLOW, recommend
from hpo.tuning.generation.strategy import SweepDone, WaitForTrainings, explorations
from storage.records import Trial, TrialState, settings_key

Array: TypeAlias = NDArray[np.float64]

PARTICLES = 256
LEAST_RISK = 1e-3
RATES, RATE_STEP = 17, 0.125  # rates from e^-1 to e times the recommended one
WARMUPS, WARMUP_STEP = 9, 0.35  # warmups from a quarter to four times the recommended one
RATE_OFF, WARMUP_OFF = (
    0.35,
    0.5,
)  # standard deviation of a particle's error, in log units
APART = 2  # minimum number of steps between two candidates, in rate or in warmup
RISKY = 0.03  # a safe candidate is added if the recommended settings have at least this risk
SAFE = 20.0  # the safe candidate is chosen as if the risk were this many times the laws' estimate
FEWEST, MOST = 3, 5  # number of candidates
HOPELESS = 0.95  # quantile of the expected epochs: a run is stopped once it exceeds
LIMIT = 1.25  # this multiple of the quantile
# settings for a full-scale run are worth this many runs here: as many as the cost of a lost one
TRAININGS = LOST
LEAST_RUNS = 2  # training runs that the budget of a race must allow


@dataclass(frozen=True)
class RaceCandidates:
    """Settings to race, the recommended ones first, each with the tuned ``learning_rate`` and ``warmup_epochs``.

    ``gain`` is the decrease in the expected factor on a training run's epochs once the best candidate is known, with
    the full cost of a lost run included. ``epochs`` is the expected length of a run, which is stopped at
    ``limit_epochs``.
    """

    settings: tuple[dict[str, float], ...]
    gain: float
    epochs: float
    limit_epochs: float

    @property
    def worth_epochs(self) -> float:
        """The most that the race can save, in epochs at this batch size."""
        return TRAININGS * self.gain * self.epochs


def raced_run_epochs(posterior: Posterior, global_batch_size: int) -> float | None:
    """Return the expected epochs of one training run of a race; None if :func:`choose_candidates` has no candidates."""
    if not _has_candidates(posterior):
        return None
    choices = recommend(posterior, float(np.log(global_batch_size)))
    return _expected_epochs(log_epochs_samples(posterior, choices, 1, 1.0))


def choose_candidates(
    posterior: Posterior, global_batch_size: int, most_epochs: float
) -> RaceCandidates | None:
    """Choose the settings to race within ``most_epochs`` in total; deterministic.

    Return None if the evidence does not show what a wrong learning rate costs, because there is then no basis for a
    choice.
    """
    if not _has_candidates(posterior):
        return None
    choices = recommend(posterior, float(np.log(global_batch_size)))
    samples = log_epochs_samples(posterior, choices, 1, 1.0)
    epochs = _expected_epochs(samples)
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
    few = thin_posterior(posterior, PARTICLES)
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
    return RaceCandidates(
        tuple(grid[row * len(warmups) + column] for row, column in taken),
        now - known,
        epochs,
        limit,
    )


def _has_candidates(posterior: Posterior) -> bool:
    tuned = any(law.name == RATE for law in posterior.model.laws)
    return tuned and posterior.knows_cost(RATE)


def _expected_epochs(log_samples: Array) -> float:
    return float(np.exp(min(np.median(log_samples), 50.0)))


def _safe(factor: Array, risk: Array, rates: int, warmups: Array) -> list[tuple[int, int]]:
    """Return the best candidate in case the risk is much larger: one with a lower rate than the middle, or a longer
    warmup.
    """
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
    """Return the log factor on the epochs of the best settings at the full rate, and the risk that a run fails to
    converge, each of shape (particles, settings).
    """
    model, values = posterior.model, posterior.values
    here = make_configurations(
        np.array([log_batch]),
        np.zeros(len(settings), dtype=np.intp),
        settings,
        model.laws,
        model.warmup,
    )
    seen = settings_outlook(values, model.laws, model.warmup, here)
    level = posterior.log_epochs(log_batch)[0][:, None]
    risk = np.zeros_like(seen.cost) if seen.risk is None else seen.risk
    return log_epochs(values, model.warmup, here, level + seen.cost) - level, np.clip(
        risk, LEAST_RISK, 1 - LEAST_RISK
    )


def _off(loss: Array) -> Array:
    """Return the loss (particles, rates, warmups), shifted for each particle by its own random number of
    whole steps.
    """
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
    """Return whether a grid point is far enough from all chosen ones; the shortest warmup may fill several columns."""
    return all(
        abs(place[0] - row) >= APART
        or (abs(place[1] - column) >= APART and warmups[place[1]] != warmups[column])
        for row, column in taken
    )


# seeds from 0 upwards belong to sweeps and, after them, to plans; a race draws its seeds from here upwards
FIRST_SEED, DRAWS = 100_000, 1_000_000
# if the fastest run, by at least 3 %, has the highest or lowest rate: the maximum number of further steps, and the
# factor on the rate in each; the budget ends most races earlier
STEPS, STEP, QUICKER = 6, 1.6, 0.03
FINALISTS, SEEDS = 2, 2  # number of best configurations to repeat, and seeds for each
RESCUES = 2  # attempts with a lower rate and longer warmup if no run reached the target
LOWER_RATE, LONGER_WARMUP = 0.5, 2.0


@dataclass(frozen=True)
class RaceCourse:
    """The parameters of a race.

    ``candidates`` holds complete settings, with the forecast settings first. A training run is stopped after
    ``limit_epochs`` and is expected to need ``epochs``; all runs together may train for ``most_epochs``.
    """

    global_batch_size: int
    candidates: tuple[Mapping[str, Any], ...]
    epochs: float
    limit_epochs: float
    most_epochs: float


def next_race_entry(
    course: RaceCourse, trials: Sequence[Trial]
) -> Mapping[str, Any] | WaitForTrainings | SweepDone:
    """Return the settings to train next in a race, given its ``trials`` in every state."""
    trials, trained = trials_counted_once(trials), defaultdict[str, list[Trial]](list)
    for trial in trials:
        trained[trial.settings_key].append(trial)
    fresh = [settings for settings in course.candidates if settings_key(settings) not in trained]
    if fresh and len(trained) < len(course.candidates):
        return fresh[0]
    if not all(trial.state.finished for trial in trials):
        return WaitForTrainings()
    further = _further(explorations(trials))
    if further is not None and len(trained) < len(course.candidates) + STEPS:
        return further
    ranked = sorted(
        (_mean_log_epochs(runs), runs[0].settings_key, runs)
        for runs in trained.values()
        if all(run.state is TrialState.REACHED for run in runs)
    )
    for _, _, runs in ranked[:FINALISTS]:
        if len(runs) < SEEDS:
            return runs[0].settings
    if not ranked and len(trained) < len(course.candidates) + RESCUES:
        return _rescue(explorations(trials))
    return SweepDone()


def race_epochs_left(
    course: RaceCourse, trials: Sequence[Trial], reserved: Mapping[int, float]
) -> float:
    """Return how many epochs a race may still train; ``reserved`` are the epochs allotted to running trials, by id.

    Exact repetitions of a training run, including its seed, do not count; a race from an older release may contain
    some.
    """
    return course.most_epochs - math.fsum(
        (trial.epochs or 0.0) if trial.state.finished else reserved.get(trial.id, 0.0)
        for trial in trials_counted_once(trials)
    )


def first_race_seed(study: str, global_batch_size: int) -> int:
    """Return the first seed of a study's race; deterministic.

    Each study has a different seed, because a single seed that slows all training runs would slow every race of a
    workload.
    """
    return FIRST_SEED + zlib.crc32(f"{study} at {global_batch_size}".encode()) % DRAWS


def next_race_seed(settings: Mapping[str, Any], trials: Sequence[Trial], first: int) -> int:
    """Return the seed for the next training run of these settings: the first one that they have not been trained with.

    Seeds count from the seed of the race's earliest run, or from ``first`` if the race has no runs.
    """
    begun, key = min((trial.seed for trial in trials), default=first), settings_key(settings)
    taken = {trial.seed for trial in trials if trial.settings_key == key}
    return next(seed for seed in itertools.count(begun) if seed not in taken)


def _further(tried: Sequence[Trial]) -> dict[str, Any] | None:
    """Return the fastest settings, with the rate one step up if it is the highest tried, or one step down if it is the
    lowest.

    Return None if it is neither, or if these settings are not clearly the fastest; dropped or lost runs count as
    slower.
    """
    reached = sorted(
        (trial for trial in tried if trial.epochs_to_target),
        key=lambda trial: trial.epochs_to_target or math.inf,
    )
    if not reached or len(tried) < 2:
        return None
    quickest, *slower = reached
    if slower and (quickest.epochs_to_target or 0.0) > (1 - QUICKER) * (
        slower[0].epochs_to_target or 0.0
    ):
        return None
    rate = float(quickest.settings["learning_rate"])
    others = [float(trial.settings["learning_rate"]) for trial in tried if trial is not quickest]
    if min(others) <= rate <= max(others):
        return None
    return {
        **quickest.settings,
        "learning_rate": rate * STEP if rate > max(others) else rate / STEP,
    }


def _rescue(tried: Sequence[Trial]) -> dict[str, Any]:
    """Return the tried settings that are least likely to diverge, with a lower rate and a longer warmup."""
    rates = [float(trial.settings["learning_rate"]) for trial in tried]
    warmups = [float(trial.settings.get("warmup_epochs") or 0.0) for trial in tried]
    return {
        **tried[rates.index(min(rates))].settings,
        "learning_rate": LOWER_RATE * min(rates),
        "warmup_epochs": LONGER_WARMUP * max(warmups),
    }


def _mean_log_epochs(runs: Sequence[Trial]) -> float:
    return math.fsum(math.log(run.epochs_to_target) for run in runs if run.epochs_to_target) / len(
        runs
    )
