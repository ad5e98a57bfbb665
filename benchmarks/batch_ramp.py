"""Samples saved by a batch that grows with the noise scale: python -m benchmarks.batch_ramp [quadratic | digits].

``quadratic``: noisy gradient descent on a quadratic of 100 modes, computed exactly, at a constant rate. With T
updates at the rate r the expected loss is the shrunk initial loss plus sum_t w_t / B_t, where an update's weight is
w_t = sum_i h_i / 2 r^2 c_i (1 - r h_i)^(2 (T - 1 - t)). So of all batch schedules that reach a target in T updates the
one with the fewest samples has B_t proportional to sqrt(w_t) and takes (sum_t sqrt(w_t))^2 / (target - shrunk); a
constant batch takes T sum_t w_t / (target - shrunk). The output is the fewest updates for a number of samples, each at
its best rate: for that optimum, for batches that follow the noise scale (also at their best ratio and first batch),
and for a constant batch.

``digits``: real trainings of a small network to a top-1 of 94 %, first batch 32: a constant batch and one that follows
its measured noise scale, each at the best of four rates, chosen with two other seeds, then with five seeds; compared
with the saving predicted from the constant trainings alone.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from benchmarks.real_panel.workloads import Images
from hpo.extrapolation.inference.intervals import Interval
from hpo.runs.ramp import PIECES, ramp_saving
from search_spaces.settings import TrainingSettings
from trainers import Target, TrainingJob
from trainers.begin import begin_training
from trainers.report import ConvergencePoint
from trainers.schedules.batch_size import BatchByNoise
from trainers.workloads.noisy_quadratic.dynamics import Array
from trainers.workloads.noisy_quadratic.problem import QuadraticProblem

PROBLEM = QuadraticProblem(modes=100, noise_scale=32.0)
TARGET_SHARE = 0.05
"""The target as a share of the initial loss."""
RATES = np.geomspace(0.02, 1.0, 40)
"""Learning rates, in units of the inverse of the largest curvature."""
MOST_UPDATES = 4096
BUDGETS = (2.6, 2.8, 3.0, 3.5, 4.0, 6.0)
"""Numbers of samples, in units of the fewest that any schedule takes."""
FIRST, LIMIT = 32, 8.0
SEEDS, TRIED_SEEDS = range(100, 105), range(2)
DIGITS_RATES = (0.1, 0.2, 0.4, 0.8)
LIMITED: Mapping[str, Any] = {"batch_control": "noise_scale", "batch_limit_factor": LIMIT}
METHODS: Mapping[str, Mapping[str, Any]] = {
    "constant 32": {},
    "constant 256": {"first": 256},
    "noise scale, rate kept": {**LIMITED, "batch_rate_rule": "none"},
    "noise scale, rate by the root": {**LIMITED, "batch_rate_rule": "sqrt"},
}


@dataclass(frozen=True)
class Course:
    """Updates and samples of one batch schedule that reaches the target."""

    updates: float
    samples: float


def main() -> None:
    """Print the requested tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=("quadratic", "digits"), nargs="*")
    asked = parser.parse_args().part or ["quadratic", "digits"]
    torch.set_num_threads(1)
    for part in asked:
        print("\n".join(quadratic() if part == "quadratic" else digits()), flush=True)


def quadratic() -> Iterator[str]:
    """Yield the fewest updates for a number of samples, by each way."""
    constant, best = planned()
    least = min(each.samples for each in best)
    ramps = list(ramped(BUDGETS[-1] * least))
    yield "| samples, over the fewest | constant | by the noise scale | optimum | saved | of what there is to save |"
    yield "|---|---|---|---|---|---|"
    for budget in BUDGETS:
        updates = [
            min((each.updates for each in ways if each.samples <= budget * least), default=np.inf)
            for ways in (constant, ramps, best)
        ]
        saved, most = 1 - updates[1] / updates[0], 1 - updates[2] / updates[0]
        yield (
            f"| {budget:g} | {updates[0]:.0f} | {updates[1]:.0f} | {updates[2]:.0f} | {saved:.0%} of {most:.0%} | "
            f"{saved / most:.0%} |"
        )


def planned() -> tuple[list[Course], list[Course]]:
    """Return constant batches and the best schedules, at every rate and number of updates that can reach the target."""
    curvature, noise, squares = PROBLEM.curvature, PROBLEM.noise, PROBLEM.initial_squares
    target = TARGET_SHARE * float(PROBLEM.loss(squares))
    constant, best = [], []
    for rate in RATES / curvature.max():
        kept = (1 - rate * curvature) ** 2
        powers = kept ** np.arange(MOST_UPDATES)[:, None]  # remaining share after 0, 1, ... updates
        weights = powers @ (curvature / 2 * rate**2 * noise)
        shrunk = (powers * kept) @ (curvature / 2 * squares)
        room = target - shrunk  # after 1, 2, ... updates
        sums, roots = np.cumsum(weights), np.cumsum(np.sqrt(weights))
        for last in np.flatnonzero(room > 0):
            constant.append(Course(last + 1, (last + 1) * sums[last] / room[last]))
            best.append(Course(last + 1, roots[last] ** 2 / room[last]))
    return constant, best


def ramped(most: float) -> Iterator[Course]:
    """Yield schedules that double the batch by the noise scale, checked after every update, up to ``most`` samples."""
    curvature, noise = PROBLEM.curvature, PROBLEM.noise
    target = TARGET_SHARE * float(PROBLEM.loss(PROBLEM.initial_squares))
    for rate in RATES / curvature.max():
        for ratio in np.geomspace(0.25, 64, 17).tolist():
            settings = TrainingSettings.from_record(
                {"batch_control": "noise_scale", "noise_scale_ratio": ratio}
            )
            for first in np.geomspace(8, 2048, 33).round().astype(int).tolist():
                squares, factor, samples = PROBLEM.initial_squares, 1.0, 0.0
                for update in range(1, MOST_UPDATES // 4):
                    batch = factor * first
                    squares = (1 - rate * curvature) ** 2 * squares + rate**2 * noise / batch
                    samples += batch
                    if samples > most:
                        break
                    if PROBLEM.loss(squares) <= target:
                        yield Course(update, samples)
                        break
                    measured = float(noise.sum() / (squares @ curvature**2))
                    if BatchByNoise.grows(settings, factor, first, measured):
                        factor *= 2


def digits() -> Iterator[str]:
    """Yield updates and epochs to the target over five seeds, and the prediction."""
    workload = Images({"source": "digits", "network": "normalized"})
    found: dict[str, list[list[ConvergencePoint]]] = {}
    yield "| batch | rate | updates, five seeds | mean | saved, paired (standard error) | epochs |"
    yield "|---|---|---|---|---|---|"
    for method, settings in METHODS.items():
        rate = min(
            DIGITS_RATES,
            key=lambda each: sum(
                _trained(workload, settings, each, seed)[-1].step for seed in TRIED_SEEDS
            ),
        )
        found[method] = [_trained(workload, settings, rate, seed) for seed in SEEDS]
        updates = np.array([points[-1].step for points in found[method]], dtype=float)
        base = np.array([points[-1].step for points in found["constant 32"]], dtype=float)
        logs = np.log(updates / base)
        error = logs.std(ddof=1) / len(logs) ** 0.5
        epochs = np.mean([points[-1].epochs for points in found[method]])
        yield (
            f"| {method} | {rate:g} | {', '.join(f'{each:.0f}' for each in updates)} | {updates.mean():.0f} | "
            f"{1 - np.exp(logs.mean()):.0%} ({error:.0%}) | {epochs:.2f} |"
        )
    constant = found["constant 32"]
    courses = [each for each in map(_course, constant) if each is not None]
    means = np.array([course.mean() for course in courses])
    noise = Interval(float(np.median(means)), float(means.min()), float(means.max()))
    epochs = float(np.mean([points[-1].epochs for points in constant]))
    told = ramp_saving(
        courses,
        TrainingSettings.from_record(dict(LIMITED)),
        FIRST,
        noise,
        epochs,
        workload.train_samples,
    )
    yield ""
    yield f"Told from the constant trainings, their noise scale as the critical batch: {told}"


def _trained(
    workload: Images, changes: Mapping[str, Any], rate: float, seed: int
) -> list[ConvergencePoint]:
    settings = {"momentum": 0.9, "normalization_batch_size": 16, "learning_rate": rate, **changes}
    first = settings.pop("first", FIRST)
    run = begin_training(
        TrainingJob(
            workload="benchmarks.real_panel.workloads:Images",
            data={"source": "digits", "network": "normalized"},
            target=Target("top1", 0.94),
            settings=TrainingSettings.from_record({"warmup_epochs": 0.5, **settings}),
            global_batch_size=first,
            seed=seed,
            epochs=40,
            evaluations_per_epoch=4,
        ),
        workload=workload,
    )
    points = []
    while not run.finished:
        points.append(run.advance())
    return points


def _course(points: Sequence[ConvergencePoint]) -> Array | None:
    """Return the noise scale at ``PIECES`` points of equal progress."""
    known = [(each.step, each.gradient_noise_scale) for each in points if each.gradient_noise_scale]
    if not known:
        return None
    steps, noise = (np.array(each, dtype=float) for each in zip(*known, strict=True))
    progress = np.cumsum(np.diff(steps, prepend=0) / (1 + noise / FIRST))
    places = (np.arange(PIECES) + 0.5) / PIECES * progress[-1]
    return np.asarray(np.exp(np.interp(places, progress, np.log(noise))))


if __name__ == "__main__":
    main()
