"""Forecasts of a larger model from sweeps of small ones.

    python -m benchmarks.growing_models FOLDER [--only NAME ...] [--images CIFAR10]

``standard`` and ``mup``: language models with AdamW. Each sweep trains widths 32 and 64 at batches 16 to 64 for an
eighth and a half of the samples, and forecasts the loss of width 128 at batch 128 for all of them; mup has base width
32. ``lamb``: the same in the standard parametrization with LAMB. ``large``, ``large-mup`` and ``large-lamb``: widths 32
to 128 at batches 16 to 128 for a twelfth and a third of the samples forecast width 256 at batch 1024. ``resnet`` and
``resnet-mup``: residual networks on digits with SGD. Each sweep trains widths 4 and 8 at batches 32 to 128, and
forecasts the epochs of width 32 at batch 256 to an accuracy of 0.96; mup has base width 4. ``cifar`` and
``cifar-mup``: the same on 2,560 images of CIFAR-10 in the folder CIFAR10 (train and test, a folder for each class).

The truth is a grid of rates at the full scale, each with several seeds, that no sweep sees; ``regret`` is how far
the loss or the epochs of a rate, on the curve through the grid's means, exceed the minimum. The curve of losses is a
cubic in the logarithms, that of epochs is piecewise linear, and a training that missed the target counts its whole
budget. The forecast is compared with the unchanged rate of the best trial of the largest and longest models at the
largest batch, that rate scaled by the square root of the batch and, for SGD, by linear scaling, for language models by
Step Law (arXiv:2503.04715). ``cost`` is that of a sweep in full-scale trainings at the best rate. FOLDER keeps
the trainings; a second call continues.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import hpo
from benchmarks.real_panel.cases import cifar_subset, image_data
from hpo.study.jobs import training_job
from hpo.study.sizes import full_scale_sizes, relative_cost, sizes_of_settings
from hpo.study.spec import StudySpec
from search_spaces.settings import TrainingSettings
from storage.records import Trial

_LANGUAGE: Mapping[str, Any] = {
    "workload": "language",
    "data": {
        "source": "python",
        "sequence_length": 64,
        "train_samples": 2048,
        "evaluation_samples": 64,
    },
    "target": {"metric": "loss", "best_within": {"samples": 16384}},
    "ladder": {"global_batch_size": [16, 32, 64], "width": [32, 64], "samples": [2048, 8192]},
    "full_scale": {"global_batch_size": 128, "width": 128, "samples": 16384},
    "search": {
        "optimizer": "adamw",
        "learning_rate": {"log_uniform": [0.0005, 0.1], "role": "scaled"},
    },
    "budget": {"trials": 48},
}
_LARGE: Mapping[str, Any] = {
    **_LANGUAGE,
    "data": {
        "source": "python",
        "sequence_length": 32,
        "train_samples": 16384,
        "evaluation_samples": 128,
    },
    "target": {"metric": "loss", "best_within": {"samples": 49152}},
    "ladder": {
        "global_batch_size": [16, 32, 64, 128],
        "width": [32, 64, 128],
        "samples": [4096, 16384],
    },
    "full_scale": {"global_batch_size": 1024, "width": 256, "samples": 49152},
}
_RESNET: Mapping[str, Any] = {
    "workload": "resnet",
    "data": {"source": "digits"},
    "target": {"metric": "top1", "at_least": 0.96},
    "ladder": {"global_batch_size": [32, 64, 128], "width": [4, 8]},
    "full_scale": {"global_batch_size": 256, "width": 32},
    "search": {
        "optimizer": "sgd",
        "momentum": 0.9,
        "warmup_epochs": 1.0,
        "learning_rate": {"log_uniform": [0.005, 2.0], "role": "scaled"},
    },
    "budget": {"trials": 30, "epochs_per_trial": 40},
}


@dataclass(frozen=True)
class Case:
    """Sweeps of one kind: ``values`` are those of the study; ``rates`` and ``seeds`` those of the grid."""

    name: str
    values: Mapping[str, Any]
    rates: tuple[float, ...]
    seeds: tuple[int, ...]
    sweeps: int

    def study(self, number: int = 0) -> StudySpec:
        """Return one sweep; its name contains its number, and seeds the sampler."""
        return StudySpec.from_dict({**self.values, "name": f"{self.name}-{number}"})

    @property
    def how_soon(self) -> bool:
        """Whether the question is how soon the target is reached, not how good the metric becomes."""
        return "best_within" not in self.values["target"]


def _with(values: Mapping[str, Any], section: str, **others: Any) -> dict[str, Any]:
    return {**values, section: {**values[section], **others}}


_RATES = (0.001, 0.002, 0.004, 0.007, 0.012, 0.02, 0.035)
CIFAR_TARGET = 0.36  # of 16x16 pixels; a width of 4 reaches it within a dozen epochs
_OF_RESNET = (0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6)
_CASES = (
    Case("standard", _LANGUAGE, _RATES, (100, 101), 5),
    Case(
        "mup",
        _with(_LANGUAGE, "data", parametrization="mup", base_width=32),
        _RATES,
        (100, 101),
        5,
    ),
    Case("resnet", _RESNET, _OF_RESNET, (100, 101, 102, 103), 4),
    Case(
        "resnet-mup",
        _with(_RESNET, "data", parametrization="mup", base_width=4),
        _OF_RESNET,
        (100, 101, 102, 103),
        4,
    ),
    Case(
        "lamb",
        _with(
            _LANGUAGE,
            "search",
            optimizer="lamb",
            learning_rate={"log_uniform": [0.002, 0.4], "role": "scaled"},
        ),
        (0.004, 0.008, 0.016, 0.03, 0.06, 0.12),
        (100, 101),
        5,
    ),
    Case("large", _LARGE, (0.00025, 0.0005, 0.001, 0.002, 0.004), (100,), 5),
    Case(
        "large-lamb",
        _with(
            _LARGE,
            "search",
            optimizer="lamb",
            learning_rate={"log_uniform": [0.001, 0.4], "role": "scaled"},
        ),
        (0.002, 0.004, 0.008, 0.016, 0.032),
        (100,),
        5,
    ),
    Case(
        "large-mup",
        _with(_LARGE, "data", parametrization="mup", base_width=32),
        (0.002, 0.004, 0.008, 0.016, 0.032),
        (100,),
        5,
    ),
)


def cases(images: Path | None) -> tuple[Case, ...]:
    """Return all cases, including CIFAR-10 if ``images`` is the folder of its subset."""
    if images is None:
        return _CASES
    values = {
        **_with(_RESNET, "budget", epochs_per_trial=20),
        "data": image_data(images),
        "target": {"metric": "top1", "at_least": CIFAR_TARGET},
    }
    mup = _with(values, "data", parametrization="mup", base_width=4)
    return (
        *_CASES,
        Case("cifar", values, _OF_RESNET, (100, 101), 3),
        Case("cifar-mup", mup, _OF_RESNET, (100, 101), 3),
    )


def trained(case: Case, rate: float, seed: int) -> float:
    """Return the best loss of one training at the full scale, or its epochs to the target (its budget if it missed)."""
    import torch

    from trainers.begin import begin_training

    torch.set_num_threads(1)
    spec = case.study()
    settings = TrainingSettings.from_dict({**spec.search.fixed, "learning_rate": rate})
    job = training_job(spec, settings, spec.full_scale.global_batch_size, seed)
    training = begin_training(job)
    points = []
    while not training.finished:
        points.append(training.advance())
    training.close()
    metrics = [
        float(point.metric) for point in points if point is not None and math.isfinite(point.metric)
    ]
    if not case.how_soon:
        return min(metrics, default=math.inf)
    arrived = metrics and metrics[-1] >= case.values["target"]["at_least"]
    return float(points[-1].epochs if arrived else spec.budget.epochs_per_trial)


@dataclass(frozen=True)
class Curve:
    """The mean need at the full scale over the rate, and the rate at its minimum."""

    need: Callable[[float], float]
    best: float


def curve(case: Case, needs: Sequence[float]) -> Curve:
    """Return the curve through the needs at the grid's rates, constant beyond its ends."""
    logs, values = np.log(case.rates), np.log(needs)
    fitted = (
        (lambda at: np.interp(at, logs, values))
        if case.how_soon
        else np.polynomial.Polynomial.fit(logs, values, 3)
    )
    grid = np.linspace(logs[0], logs[-1], 400)
    return Curve(
        lambda rate: float(np.exp(fitted(min(max(math.log(rate), logs[0]), logs[-1])))),
        float(np.exp(grid[np.argmin(fitted(grid))])),
    )


@dataclass(frozen=True)
class Scored:
    """One sweep's forecast; ``regrets`` are those of its rate and of the others, in loss or in epochs."""

    name: str
    told: float
    low: float
    high: float
    truth: float
    rate: float
    rate_held: bool
    cost: float
    regrets: Mapping[str, float]

    @property
    def held(self) -> bool:
        """Whether the interval contains the result of the rate."""
        return self.low <= self.truth <= self.high


def score(case: Case, number: int, folder: Path, needs: Sequence[float]) -> Scored:
    """Score the forecast of one sweep against the grid's ``needs``."""
    spec = case.study(number)
    result = hpo.run_study(spec, f"sqlite:///{folder / 'sweeps.db'}", folder=folder)
    made = result.forecast
    assert made is not None
    ends = made.numbers.epochs_to_target
    if not case.how_soon:
        assert made.numbers.best is not None
        ends = made.numbers.best.interval
    truth = curve(case, needs)
    rate, least = made.numbers.settings["learning_rate"], truth.need(truth.best)
    return Scored(
        case.name,
        ends.median,
        ends.low,
        ends.high,
        truth.need(rate.median),
        rate.median,
        rate.low <= truth.best <= rate.high,
        cost(case, spec, result.trials, least),
        {
            rule: truth.need(each) / least - 1
            for rule, each in {
                "forecast": rate.median,
                **others(case, spec, result.trials),
            }.items()
        },
    )


def others(case: Case, spec: StudySpec, trials: Sequence[Trial]) -> dict[str, float]:
    """Return the rates of the rules of thumb."""
    largest = {point: size[-1] for point, size in spec.sizes.items()}
    batch = spec.ladder[-1]
    evidence = [
        (need, trial)
        for trial in trials
        if (need := spec.question.need(trial)) is not None
        and trial.global_batch_size == batch
        and [size for _, size in sizes_of_settings(spec, trial.settings)] == list(largest.values())
    ]
    _, best = min(evidence, key=lambda each: each[0])
    alone = float(best.settings["learning_rate"])
    times = spec.full_scale.global_batch_size / batch
    found = {"left alone": alone, "square root of the batch": alone * math.sqrt(times)}
    if case.how_soon:
        return {**found, "linear scaling": alone * times}
    model = (spec.full_scale.width / largest["width"]) ** 2
    length = spec.full_scale.samples / largest["samples"]
    return {**found, "Step Law": alone * model**-0.713 * length**0.307}


def cost(case: Case, spec: StudySpec, trials: Sequence[Trial], least: float) -> float:
    """Return a sweep's cost in trainings at the full scale; ``least`` is the need of the best one (epochs or loss)."""
    full = dict(full_scale_sizes(spec))
    samples = least * case_samples(case) if case.how_soon else full["training_samples"]
    per_sample = relative_cost(full_scale_sizes(spec)) / full.get("training_samples", 1)
    return math.fsum(
        relative_cost(sizes_of_settings(spec, trial.settings))
        / trial.settings.get("training_samples", 1)
        * (trial.samples or 0)
        / per_sample
        / samples
        for trial in trials
    )


def case_samples(case: Case) -> int:
    """Return the samples of an epoch."""
    from trainers.workloads import load_workload

    return load_workload(case.values["workload"], case.values["data"]).train_samples


def tables(
    cases: Sequence[Case], found: Sequence[Scored], needs: Mapping[str, Sequence[float]]
) -> str:
    """Return the grids, every sweep, and the means, in Markdown; ``cases`` have the same rates."""
    rates = cases[0].rates
    lines = [
        f"| rate | {' | '.join(f'{rate:g}' for rate in rates)} |",
        "|---|" + "--:|" * len(rates),
    ]
    digits = 2 if cases[0].how_soon else 3
    lines += [
        f"| {case.name} | {' | '.join(f'{need:.{digits}f}' for need in needs[case.name])} |"
        for case in cases
    ]
    names = list(found[0].regrets)
    lines += [
        "",
        "| | predicted (90 %) | trained at that rate | held | rate | its interval holds the best | cost "
        f"| {' | '.join(names)} |",
        "|---|---|--:|---|--:|---|--:|" + "--:|" * len(names),
    ]
    lines += [
        f"| {each.name} | {each.told:.{digits}f} ({each.low:.{digits}f} to {each.high:.{digits}f}) "
        f"| {each.truth:.{digits}f} | {'yes' if each.held else 'no'} | {each.rate:.3g} "
        f"| {'yes' if each.rate_held else 'no'} | {each.cost:.2f} "
        f"| {' | '.join(f'{each.regrets[name]:.2%}' for name in names)} |"
        for each in found
    ]
    for case in cases:
        own = [each for each in found if each.name == case.name]
        means = " | ".join(
            f"{statistics.fmean(each.regrets[rule] for each in own):.2%}" for rule in names
        )
        lines.append(
            f"| {case.name}, mean | | | {sum(each.held for each in own)} of {len(own)} | "
            f"| {sum(each.rate_held for each in own)} of {len(own)} "
            f"| {statistics.fmean(each.cost for each in own):.2f} | {means} |"
        )
    return "\n".join(lines)


def grid_of(cases: Sequence[Case], file: Path, processes: int) -> dict[str, list[float]]:
    """Return the mean need of each rate by case: arithmetic for losses, geometric for epochs."""
    known: dict[str, float] = json.loads(file.read_text()) if file.exists() else {}
    every = [each for case in cases for each in itertools.product((case,), case.rates, case.seeds)]
    wanted = [each for each in every if _key(*each) not in known]
    with ProcessPoolExecutor(processes) as pool:
        for each, need in zip(
            wanted, pool.map(trained, *zip(*wanted, strict=True)) if wanted else (), strict=True
        ):
            known[_key(*each)] = need
            file.write_text(json.dumps(known))
    return {
        case.name: [
            (statistics.geometric_mean if case.how_soon else statistics.fmean)(
                [known[_key(case, rate, seed)] for seed in case.seeds]
            )
            for rate in case.rates
        ]
        for case in cases
    }


def _key(case: Case, rate: float, seed: int) -> str:
    return repr((case.name, rate, seed))


def main() -> None:
    """Train the grids, sweep, forecast and print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--only", nargs="+", metavar="NAME")
    parser.add_argument("--images", type=Path, metavar="CIFAR10", help="folder with train and test")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    images = arguments.images and cifar_subset(arguments.images, arguments.folder)
    known = {case.name: case for case in cases(images)}
    if unknown := set(arguments.only or ()) - set(known):
        parser.error(
            f"--only must name some of {', '.join(known)} (cifar and cifar-mup with --images), but got "
            f"{', '.join(sorted(unknown))}"
        )
    asked = [known[name] for name in arguments.only or known]
    needs = grid_of(asked, arguments.folder / "grid.json", arguments.processes)
    print({name: [round(each, 3) for each in means] for name, means in needs.items()}, flush=True)
    for rates in dict.fromkeys(case.rates for case in asked):
        alike = [case for case in asked if case.rates == rates]
        found = [
            score(case, number, arguments.folder, needs[case.name])
            for case in alike
            for number in range(case.sweeps)
        ]
        print(f"\n{tables(alike, found, needs)}", flush=True)


if __name__ == "__main__":
    main()
