"""The best metric within a fixed budget, the larger batches hidden: python -m benchmarks.fixed_budget FOLDER.

FOLDER contains, in any subfolders, any of

- ``alexnet_tuning.jsonl.gz``: random search over the settings of AlexNet on ImageNet (github.com/nicholaslourie/opda,
  folder data; CC BY-SA 4.0). Trainings of similar length count as one budget, as their rate decays to their end.
- ``dense.csv``: final losses of dense language models over batch size and peak learning rate, one grid per model size
  and token budget (step-law/steplaw, arXiv:2503.04715). Priors for Adam are learnt without the grids of that size.

None of it is shipped. From all trainings at the smaller batches the best metric is forecast at 2 and 4 times the
largest of them, and compared with the trainings there: for AlexNet the mean of the five best of random search, for the
language models the best of the grid. ``regret`` is how much the loss at the grid's rate nearest the recommended
one exceeds the best loss.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import adamw_grids
from hpo.extrapolation.evidence.evidence import Evidence, ScaledSetting, TrainingObservation
from hpo.extrapolation.evidence.table import tuned_settings
from hpo.extrapolation.forecast import forecast
from hpo.extrapolation.inference.intervals import Interval
from hpo.extrapolation.inference.posterior import fit
from hpo.extrapolation.laws.priors import LawPriors
from trainers.job import Question, Target

TOP1 = Target.best("top1", higher_is_better=True)
LOSS = Target.best("loss", higher_is_better=False)
ALEXNET_SAMPLES = 1_281_167
LENGTHS = ((20, 30), (30, 42), (42, 60), (60, 80), (80, 101))
"""Ranges of epochs whose trainings count as one budget."""
ALEXNET_SPLITS = (((128, 256), 512), ((128, 256, 512), 1024), ((128, 256), 1024))
FEW = 5
"""Number of best trainings averaged, by the logarithm of their shortfall, as the single best of many is luck."""
TOPS = (128, 256, 512)
"""The largest batches of the language models that are seen, in sequences."""
LEAST_RUNS = 5
DISTANCES = ((1.0, 2.01), (2.01, 4.3))


@dataclass(frozen=True)
class HiddenBest:
    """A forecast of the best metric and the result at the hidden batch: ``told`` and ``trained``, in its unit.

    ``distance`` is the hidden batch over the largest seen; ``regret`` is None if unknown.
    """

    source: str
    case: str
    batch: int
    distance: float
    told: Interval
    trained: float
    lacks: float
    regret: float | None = None

    @property
    def held(self) -> bool:
        """Whether the 90 % interval contains the best trained metric."""
        return self.told.low <= self.trained <= self.told.high


def alexnet(file: Path) -> Iterator[HiddenBest]:
    """AlexNet's top-1 after trainings of five lengths, at 2 and 4 times the largest batch seen."""
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        published = [json.loads(line) for line in lines]
    for low, high in LENGTHS:
        question = Question(TOP1, math.sqrt(low * high))
        trials = [
            _alexnet_trial(each, question) for each in published if low <= each["epochs"] < high
        ]
        for seen, batch in ALEXNET_SPLITS:
            known = [each for each in trials if each.global_batch_size in seen]
            there = sorted(
                each.epochs
                for each in trials
                if each.global_batch_size == batch and each.state == "reached"
            )
            evidence = Evidence(
                known,
                samples_per_epoch=ALEXNET_SAMPLES,
                tuned=tuned_settings(known),
                question=question,
            )
            need = math.exp(float(np.mean(np.log(there[:FEW]))))
            told = _best(evidence, batch, LawPriors())[0]
            case = (
                f"{low} to {high - 1} epochs, {len(known)} trainings at {', '.join(map(str, seen))}"
            )
            yield HiddenBest(
                "AlexNet", case, batch, batch / max(seen), told, question.told(need), need
            )


def language_models(file: Path) -> Iterator[HiddenBest]:
    """Final losses of every grid, at 2 and 4 times 128, 256 and 512 sequences."""
    question = Question(LOSS, 1.0)
    priors = adamw_grids.learnt_priors(adamw_grids.read_grids(file))
    grids: dict[tuple[int, float], list[TrainingObservation]] = defaultdict(list)
    with file.open(encoding="utf-8", newline="") as lines:
        for row in csv.DictReader(lines):
            settings = {"optimizer": "adamw", "learning_rate": float(row["learning_rate"])}
            loss = float(row["smooth_loss"])
            if math.isfinite(loss):
                grids[int(float(row["params"])), float(row["tokens"])].append(
                    TrainingObservation(int(row["sequences_per_batch"]), "reached", loss, settings)
                )
    for (params, tokens), runs in sorted(grids.items()):
        for top in TOPS:
            yield from _of_grid(
                f"{params / 1e6:.0f}M, {tokens / 1e9:.3g}B tokens",
                runs,
                top,
                question,
                priors[params],
            )


def _of_grid(
    name: str, runs: Sequence[TrainingObservation], top: int, question: Question, priors: LawPriors
) -> Iterator[HiddenBest]:
    known = [run for run in runs if run.global_batch_size <= top]
    batches = {run.global_batch_size for run in known}
    if len(batches) < 3:
        return
    largest = max(batches)
    rates = [run.settings["learning_rate"] for run in known]
    tuned = (ScaledSetting("learning_rate", "log", min(rates), max(rates)),)
    evidence = Evidence(known, tuned=tuned, question=question)
    for batch in sorted({run.global_batch_size for run in runs}):
        there = [run for run in runs if run.global_batch_size == batch]
        if not largest < batch <= DISTANCES[-1][1] * largest or len(there) < LEAST_RUNS:
            continue
        told, rate = _best(evidence, batch, priors)
        best = min(run.epochs for run in there)
        near = min(there, key=lambda run: abs(math.log(run.settings["learning_rate"] / rate)))
        yield HiddenBest(
            "language models",
            f"{name}, {len(known)} trainings at up to {largest}",
            batch,
            batch / largest,
            told,
            best,
            best,
            near.epochs / best - 1,
        )


def _best(evidence: Evidence, batch: int, priors: LawPriors) -> tuple[Interval, float]:
    """Return the forecast of the best metric and the recommended learning rate."""
    found = forecast(fit(evidence, rng=np.random.default_rng(0), priors=priors), batch)
    assert found.best is not None
    return found.best.interval, found.settings["learning_rate"].median


def _alexnet_trial(training: dict[str, Any], question: Question) -> TrainingObservation:
    settings = {
        "optimizer": "sgd",
        "learning_rate": float(training["lr"]),
        "warmup_epochs": float(training["lr_peak_epoch"]),
        "momentum": float(training["momentum"]),
        "weight_decay": float(training["weight_decay"]),
        "label_smoothing": float(training["label_smoothing"]),
    }
    curve = [float(point["top_1"]) for point in training["learning_curve"]]
    need = question.shortfall(max(curve, default=None))
    lost = training["nan_train_loss"] or need is None
    return TrainingObservation(
        int(training["batch_size"]), "diverged" if lost else "reached", need or 0.0, settings
    )


def tables(found: Sequence[HiddenBest]) -> Iterator[str]:
    """A summary by source and distance, then every forecast, in Markdown."""
    yield (
        "| trainings | times the largest batch | forecasts | intervals that held | median error of the shortfall "
        "| median width | mean regret in loss |"
    )
    yield "|---|---|--:|--:|--:|--:|--:|"
    for source in dict.fromkeys(each.source for each in found):
        for low, high in DISTANCES:
            some = [each for each in found if each.source == source and low < each.distance <= high]
            if some:
                yield _summary(source, f"{low:.0f} to {high:.0f}", some)
    held = sum(each.held for each in found)
    yield f"| all | | {len(found)} | {held / len(found):.0%} | | | |"
    yield ""
    yield "| trainings | case | at | forecast (90 %) | trained | held |"
    yield "|---|---|--:|---|--:|---|"
    for each in found:
        ends = each.told
        yield (
            f"| {each.source} | {each.case} | {each.batch} | {ends.median:.4g} ({ends.low:.4g} to {ends.high:.4g}) "
            f"| {each.trained:.4g} | {'yes' if each.held else 'no'} |"
        )


def _summary(source: str, distance: str, some: Sequence[HiddenBest]) -> str:
    def lacks(each: HiddenBest, value: float) -> float:
        return Question(TOP1 if each.source == "AlexNet" else LOSS, 1.0).shortfall(value) or 1.0

    misses = [abs(math.log(each.lacks / lacks(each, each.told.median))) for each in some]
    widths = [
        abs(math.log(lacks(each, each.told.high) / lacks(each, each.told.low))) for each in some
    ]
    regrets = [each.regret for each in some if each.regret is not None]
    return (
        f"| {source} | {distance} | {len(some)} | {sum(each.held for each in some)} "
        f"({sum(each.held for each in some) / len(some):.0%}) | {math.expm1(float(np.median(misses))):.1%} "
        f"| {math.expm1(float(np.median(widths))):.1%} | {f'{np.mean(regrets):.2%}' if regrets else '-'} |"
    )


def main() -> None:
    """Forecast and print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    found: list[HiddenBest] = []
    for name, read in (("alexnet_tuning.jsonl.gz", alexnet), ("dense.csv", language_models)):
        for file in sorted(folder.rglob(name))[:1]:
            found += read(file)
    if not found:
        parser.error(
            f"{folder} must hold one of the files that --help names, but holds none; fetch one first"
        )
    print("\n".join(tables(found)))


if __name__ == "__main__":
    main()
