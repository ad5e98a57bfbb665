"""Forecasts at 4 and 16 times the largest rung against the truth: python -m benchmarks.noisy_quadratic [--problems 16].

Random noisy quadratics (trainers.workloads.noisy_quadratic) have known best settings and fewest epochs at every
batch. Each is swept on the same ladder from 16 to 256 by a simple sampler; critical batch sizes are drawn between 2^4
and 2^14, so that some ladders end far below theirs and some are above. The scores are the true epochs of the
recommended settings over those of the best ones, compared with three rules of thumb from the best of the top rung, and
how often the 90 % intervals hold.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.random_problem import random_problem
from hpo.extrapolation.evidence.evidence import Evidence, ScaledSetting, TrainingObservation
from hpo.extrapolation.forecast import Forecast, forecast
from hpo.extrapolation.inference.posterior import fit
from trainers.workloads.noisy_quadratic.dynamics import (
    apply_affine_map,
    initial_quadratic_moments,
    make_quadratic_update,
    many_steps,
    stability_limit,
)
from trainers.workloads.noisy_quadratic.optimum import epochs_to_target, quadratic_optimum
from trainers.workloads.noisy_quadratic.problem import QuadraticProblem

LADDER = (16, 32, 64, 128, 256)
DISTANCES = (4, 16)
TRIALS, REPEATS = (
    14,
    2,
)  # settings of a rung, and how many of the best are trained again with another seed
MOMENTA = (0.0, 0.5, 0.9)
SEED_SCATTER = 0.03
EVALUATIONS_PER_EPOCH = 4
RULES = {"none": 0.0, "square root": 0.5, "linear": 1.0}  # powers of the batch
LOST = 25.0  # times the fewest epochs: assigned to settings that never reach the target
BUDGET = 4.0  # times the fewest epochs at the largest rung


@dataclass(frozen=True)
class Ladder:
    """One problem with its sweep; if ``momentum`` is None, it is tuned too."""

    problem: QuadraticProblem
    target_loss: float
    momentum: float | None
    evidence: Evidence

    def epochs(self, batch: int, learning_rate: float, momentum: float) -> float:
        """Return the true epochs of these settings; inf if they never reach the target."""
        return float(
            epochs_to_target(
                self.problem,
                self.target_loss,
                learning_rate=learning_rate,
                global_batch_size=batch,
                momentum=momentum,
            )
        )


@dataclass(frozen=True)
class Case:
    """One forecast beside the truth."""

    ladder: Ladder
    forecast: Forecast
    best_epochs: float
    best_rate: float
    epochs: float
    by_rule: dict[str, float]  # epochs of the settings of each rule of thumb

    @property
    def loss(self) -> float:
        """Epochs of the recommended settings over those of the best ones."""
        return self.epochs / self.best_epochs

    def regret(self, epochs: float) -> float:
        """Return the logarithm of these epochs over those of the best settings."""
        return float(np.log(min(epochs / self.best_epochs, LOST)))

    @property
    def epochs_inside(self) -> bool:
        """Whether the interval holds the epochs of the recommended settings."""
        interval = self.forecast.epochs_to_target
        return interval.low <= self.epochs <= interval.high

    @property
    def rate_inside(self) -> bool:
        """Whether the interval holds the best learning rate."""
        interval = self.forecast.settings["learning_rate"]
        return interval.low <= self.best_rate <= interval.high


def make_ladder(seed: int, momentum: float | None) -> Ladder:
    """Return a random problem and its sweep, with a range of rates that an expert of the workload would search."""
    rng = np.random.default_rng((seed, int(100 * (momentum if momentum is not None else 0.99))))
    problem, target = random_problem(rng, momentum=momentum or 0.0)
    typical = 0.9 if momentum is None else momentum
    first = quadratic_optimum(problem, target, LADDER[0], momentum=typical).learning_rate
    budget = BUDGET * quadratic_optimum(problem, target, LADDER[-1], momentum=typical).epochs
    limit = float(stability_limit(problem.curvature, momentum=typical))
    low, high = first / rng.uniform(2, 10), limit * rng.uniform(1.2, 4)
    trials = [
        trial
        for batch in LADDER
        for trial in _rung(problem, target, batch, momentum, (low, high), budget, rng)
    ]
    tuned = [ScaledSetting("learning_rate", "log", low, high)]
    if momentum is None:
        tuned.append(ScaledSetting("momentum", "linear", 0.0, 0.99))
    return Ladder(
        problem,
        target,
        momentum,
        Evidence(observations=trials, samples_per_epoch=problem.train_samples, tuned=tuned),
    )


def _rung(
    problem: QuadraticProblem,
    target: float,
    batch: int,
    momentum: float | None,
    bounds: tuple[float, float],
    budget: float,
    rng: np.random.Generator,
) -> list[TrainingObservation]:
    """Sample half of the settings anywhere in the range, half near the best so far, and repeat the best ones."""
    found: list[TrainingObservation] = []
    for number in range(TRIALS):
        reached = [trial for trial in found if trial.state == "reached"]
        best = (
            min(reached, key=lambda trial: trial.epochs)
            if reached and number >= TRIALS // 2
            else None
        )
        log_rate = (
            rng.uniform(*np.log(bounds))
            if best is None
            else np.clip(
                np.log(best.settings["learning_rate"]) + 0.4 * rng.standard_normal(),
                *np.log(bounds),
            )
        )
        lag = _log_lag(momentum, best, rng)
        found.append(
            _trial(
                problem,
                target,
                batch,
                float(np.exp(log_rate)),
                float(1 - np.exp(lag)),
                number,
                budget,
                rng,
            )
        )
    reached = sorted(
        (trial for trial in found if trial.state == "reached"), key=lambda trial: trial.epochs
    )
    return found + [
        _trial(
            problem,
            target,
            batch,
            trial.settings["learning_rate"],
            trial.settings["momentum"],
            TRIALS + number,
            budget,
            rng,
        )
        for number, trial in enumerate(reached[:REPEATS])
    ]


def _log_lag(
    momentum: float | None, best: TrainingObservation | None, rng: np.random.Generator
) -> float:
    if momentum is not None:
        return float(np.log1p(-momentum))
    if best is None:
        return float(rng.uniform(np.log(0.01), 0.0))
    near = np.log1p(-best.settings["momentum"]) + 0.5 * rng.standard_normal()
    return float(np.clip(near, np.log(0.01), 0.0))


def _trial(
    problem: QuadraticProblem,
    target: float,
    batch: int,
    rate: float,
    momentum: float,
    seed: int,
    budget: float,
    rng: np.random.Generator,
) -> TrainingObservation:
    settings = {"optimizer": "sgd", "learning_rate": rate, "momentum": momentum}
    if rate >= stability_limit(problem.curvature, momentum=momentum):
        return TrainingObservation(batch, "diverged", 1 / EVALUATIONS_PER_EPOCH, settings, seed)
    exact = float(
        epochs_to_target(
            problem, target, learning_rate=rate, global_batch_size=batch, momentum=momentum
        )
    )
    epochs = (
        np.ceil(exact * np.exp(SEED_SCATTER * rng.standard_normal()) * EVALUATIONS_PER_EPOCH)
        / EVALUATIONS_PER_EPOCH
    )
    if not epochs <= budget:
        return TrainingObservation(batch, "censored", budget, settings, seed)
    steps = round(exact * problem.train_samples / batch)
    return TrainingObservation(
        batch,
        "reached",
        float(epochs),
        settings,
        seed,
        1 / EVALUATIONS_PER_EPOCH,
        _noise_scale(problem, batch, rate, momentum, steps),
    )


def _noise_scale(
    problem: QuadraticProblem, batch: int, rate: float, momentum: float, steps: int
) -> float:
    """Return the gradient noise scale at the target, as the workload records it."""
    update = make_quadratic_update(
        problem.curvature,
        problem.noise,
        learning_rate=rate,
        global_batch_size=batch,
        momentum=momentum,
    )
    moments, _ = apply_affine_map(
        many_steps(update, max(steps, 1)), initial_quadratic_moments(problem.initial_squares)
    )
    return float(problem.noise.sum() / (moments[0] @ problem.curvature**2))


def cases(ladder: Ladder) -> Iterator[Case]:
    """Yield the forecasts of one ladder."""
    posterior = fit(ladder.evidence, rng=np.random.default_rng(0))
    for distance in DISTANCES:
        batch = distance * LADDER[-1]
        found = forecast(posterior, batch)
        momentum = (
            ladder.momentum if ladder.momentum is not None else found.settings["momentum"].median
        )
        best = quadratic_optimum(
            ladder.problem, ladder.target_loss, batch, momentum=ladder.momentum
        )
        epochs = ladder.epochs(batch, found.settings["learning_rate"].median, momentum)
        yield Case(
            ladder, found, best.epochs, best.learning_rate, epochs, _by_rule(ladder, distance)
        )


def _by_rule(ladder: Ladder, distance: int) -> dict[str, float]:
    """Return the epochs at ``distance`` times the top rung, with its best rate scaled by each rule of thumb.

    The best are the repeated settings with the fewest mean epochs: the fewest of single trainings would be lucky.
    """
    seen: dict[tuple[float, float], list[float]] = {}
    for trial in ladder.evidence.observations:
        if trial.global_batch_size == LADDER[-1] and trial.state == "reached":
            key = trial.settings["learning_rate"], trial.settings["momentum"]
            seen.setdefault(key, []).append(trial.epochs)
    if not seen:
        return {rule: float("inf") for rule in RULES}
    most = max(map(len, seen.values()))
    rate, momentum = min(
        (key for key, epochs in seen.items() if len(epochs) == most), key=lambda key: sum(seen[key])
    )
    return {
        rule: ladder.epochs(distance * LADDER[-1], rate * distance**power, momentum)
        for rule, power in RULES.items()
    }


def line(name: str, found: Sequence[Case]) -> str:
    """Return a row of the table."""
    losses: NDArray[np.float64] = np.array([case.loss for case in found])
    errors = [abs(np.log(case.epochs / case.forecast.epochs_to_target.median)) for case in found]
    widths = [
        case.forecast.epochs_to_target.high / case.forecast.epochs_to_target.low for case in found
    ]
    return (
        f"| {name} | {len(found)} | {np.median(losses):.2f} | {np.quantile(losses, 0.95, method='lower'):.2f} "
        f"| {np.exp(np.median(errors)) - 1:.0%} | {np.mean([case.epochs_inside for case in found]):.0%} "
        f"| {np.median(widths):.2f} | {np.mean([case.rate_inside for case in found]):.0%} |"
    )


def regrets(name: str, found: Sequence[Case]) -> str:
    """Return a row of the table of regrets: means and standard errors."""
    columns = [
        [case.regret(case.epochs) for case in found],
        *([case.regret(case.by_rule[rule]) for case in found] for rule in RULES),
    ]
    told = (
        f"{np.mean(values):.2f} +- {np.std(values) / max(len(values) - 1, 1) ** 0.5:.2f}"
        for values in columns
    )
    return f"| {name} | {len(found)} | {' | '.join(told)} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--problems", type=int, default=16, help="random problems for each momentum"
    )
    parser.add_argument(
        "--first-seed",
        type=int,
        default=200,
        help="of the problems; priors were chosen with a look at those below 116",
    )
    parser.add_argument("--cases", action="store_true", help="also print every forecast")
    arguments = parser.parse_args()
    begun, found = time.process_time(), []
    for momentum in (*MOMENTA, None):
        for seed in range(arguments.first_seed, arguments.first_seed + arguments.problems):
            found += cases(make_ladder(seed, momentum))
    print(
        "| forecast at | cases | epochs over the best: median | 95th percentile | error of the epochs "
        "| intervals of the epochs hold | width | intervals of the rate hold |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for distance in DISTANCES:
        here = [case for case in found if case.forecast.global_batch_size == distance * LADDER[-1]]
        print(
            line(
                f"{distance} x, momentum fixed",
                [case for case in here if case.ladder.momentum is not None],
            )
        )
        for momentum in (*MOMENTA, None):
            name = "tuned" if momentum is None else f"{momentum:g}"
            print(
                line(
                    f"... momentum {name}",
                    [case for case in here if case.ladder.momentum == momentum],
                )
            )
    print(f"\n| regret at | cases | forecast | {' | '.join(RULES)} |\n|---|---|---|---|---|---|")
    for distance in DISTANCES:
        here = [case for case in found if case.forecast.global_batch_size == distance * LADDER[-1]]
        for name, tuned in (("fixed", False), ("tuned", True)):
            print(
                regrets(
                    f"{distance} x, momentum {name}",
                    [case for case in here if (case.ladder.momentum is None) == tuned],
                )
            )
    print(f"{time.process_time() - begun:.0f} s of one core")
    if arguments.cases:
        for case in found:
            print(
                case.ladder.momentum,
                case.forecast.global_batch_size,
                f"loss {case.loss:.2f}",
                case.forecast.settings["learning_rate"],
                f"best {case.best_rate:.4g}",
                case.forecast.epochs_to_target,
                f"needs {case.epochs:.4g}",
            )


if __name__ == "__main__":
    main()
