"""Published trainings, the larger batches hidden: python -m benchmarks.published_trainings FOLDER [--write FOLDER].

FOLDER contains, in any subfolders, any of

- ``alexnet_tuning.jsonl.gz`` and ``deberta-base_tuning.jsonl.gz``: random search over the settings of AlexNet on
  ImageNet and of DeBERTa on MultiNLI, with whole curves (github.com/nicholaslourie/opda, folder data; CC BY-SA 4.0)
- ``optimizers.csv``: language models, one setting changed at a time, with the columns ``optimizer``, ``size``,
  ``chinchilla``, ``train_batch_size``, ``loss`` and those of the settings (github.com/WhenWen/marin, branch
  kaiyue/shampoo, experiments/optimizer_sweep/Analysis/Results; arXiv:2509.02046; Apache-2.0)

None of it is shipped. From the trainings at the smaller batches, as `hpo extrapolate` reads them from a table, epochs
and learning rate are forecast at the larger one, and compared with the trainings there.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.extrapolation.svg import Picture
from hpo.extrapolation.evidence.evidence import AggregateRow, Evidence, TrainingObservation
from hpo.extrapolation.evidence.table import tuned_settings
from hpo.extrapolation.forecast import Forecast, forecast
from hpo.extrapolation.inference.posterior import fit
from search_spaces.scaling_rules import SCALING_RULES
from search_spaces.settings import TrainingSettings

FEW = 5
"""Number of fastest trainings whose geometric mean a forecast is compared with, as the fastest of many is luck."""

ALEXNET_SAMPLES, DEBERTA_SAMPLES = 1_281_167, 392_702
ALEXNET_TARGETS = (0.25, 0.3, 0.35, 0.4, 0.45, 0.5)
DEBERTA_TARGETS = (0.84, 0.85, 0.86, 0.87, 0.875, 0.88)
LOST_LOSS = 2.0
"""A language model whose final loss is this far above the lowest of all counts as lost."""

RULES = ("none", "sqrt", "linear")
COLOURS = {"AlexNet": "#1f77b4", "DeBERTa": "#ff7f0e", "language models": "#2ca02c"}


@dataclass(frozen=True)
class HiddenBatch:
    """A forecast from the smaller batches beside the trainings at a larger one.

    ``epochs`` and ``rate`` are geometric means of the few fastest trainings there, ``best`` the epochs of the fastest;
    ``as_below`` and ``line`` are the epochs by the plain rules, ``rates`` the learning rates by each rule of thumb. All
    are None if unavailable. With a tuned momentum, rates are those of an update (:func:`_update_rate`).
    """

    source: str
    case: str
    seen: str
    batch: int
    trainings: int
    found: Forecast
    epochs: float
    best: float
    as_below: float
    line: float
    rate: float | None = None
    rates: dict[str, float] | None = None

    @property
    def miss(self) -> float:
        """The log of trained over forecast epochs."""
        return math.log(self.epochs / self.found.epochs_to_target.median)

    @property
    def forecast_rate(self) -> float:
        """The forecast learning rate, divided by 1 - momentum if the momentum was tuned."""
        return _update_rate({name: one.median for name, one in self.found.settings.items()})

    @property
    def held(self) -> bool:
        """Whether the 90 % interval holds the epochs trained."""
        told = self.found.epochs_to_target
        return told.low <= self.epochs <= told.high


def alexnet(file: Path) -> Iterator[HiddenBatch]:
    """Forecast AlexNet at 512 from 128 and 256, and at 1,024 from 128 to 512, to several accuracies."""
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        published = [json.loads(line) for line in lines]
    for target in ALEXNET_TARGETS:
        trials = [_alexnet_trial(each, target) for each in published]
        for batch in (512, 1024):
            yield _random_search(
                "AlexNet",
                f"top-1 of {target:.0%}",
                trials,
                batch // 2,
                (batch, batch),
                ALEXNET_SAMPLES,
            )


def deberta(file: Path) -> Iterator[HiddenBatch]:
    """Forecast DeBERTa at batches of 56 to 64 from 16 to 32, to several accuracies."""
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        published = [json.loads(line) for line in lines]
    for target in DEBERTA_TARGETS:
        trials = [_deberta_trial(each, target) for each in published]
        yield _random_search(
            "DeBERTa", f"accuracy of {target:.1%}", trials, 32, (56, 64), DEBERTA_SAMPLES
        )


def language_models(file: Path) -> Iterator[HiddenBatch]:
    """Forecast tokens at a batch of 1,024 sequences with the rate of the smaller ones, from one run each at 128 to 512.

    A final loss is converted to tokens by the best losses of the same optimizer and model size at 1 to 16 times the
    Chinchilla tokens, with log tokens linear in the loss between them: a training with the loss of the best one of d
    tokens needs budget / d times the tokens of the best one.
    """
    with file.open(encoding="utf-8", newline="") as lines:
        published = [row for row in csv.DictReader(lines) if row["loss"]]
    least = min(float(row["loss"]) for row in published)
    published = [row for row in published if float(row["loss"]) < least + LOST_LOSS]
    by_model: dict[tuple[str, str], dict[float, float]] = {}
    for row in published:
        curve = by_model.setdefault((row["optimizer"], row["size"]), {})
        budget = float(row["chinchilla"])
        curve[budget] = min(curve.get(budget, math.inf), float(row["loss"]))
    for (optimizer, size), curve in sorted(by_model.items()):
        budgets = sorted(curve)
        for budget in budgets:
            of_budget = [
                row
                for row in published
                if (row["optimizer"], row["size"], float(row["chinchilla"]))
                == (optimizer, size, budget)
            ]
            series, rate = _batch_series(of_budget, budget, curve)
            if 1024 not in series or len(series) < 4:
                continue
            rows = [
                AggregateRow(batch, tokens, runs=1, settings={"learning_rate": rate})
                for batch, tokens in sorted(series.items())
                if batch < 1024
            ]
            posterior = fit(
                Evidence(aggregates=rows, tuned=tuned_settings(rows)), rng=np.random.default_rng(0)
            )
            yield HiddenBatch(
                "language models",
                f"{optimizer}, {size}, {budget:g} times Chinchilla",
                f"{rows[0].global_batch_size} to {rows[-1].global_batch_size}",
                1024,
                1,
                forecast(posterior, 1024),
                series[1024],
                series[1024],
                rows[-1].epochs_to_target,
                _line([(row.global_batch_size, row.epochs_to_target) for row in rows], 1024),
            )


def _batch_series(
    rows: Sequence[dict[str, str]], budget: float, curve: dict[float, float]
) -> tuple[dict[int, float], float]:
    """Return tokens over those of the best training, by batch, and the learning rate that these trainings share.

    Their settings are the best ones of the batch with most runs.
    """
    others = ("learning_rate", "warmup", "decay", "weight_decay", "beta1", "beta2", "momentum")
    by_batch: dict[int, list[dict[str, str]]] = {}
    for row in rows:
        by_batch.setdefault(int(row["train_batch_size"]), []).append(row)
    best = min(max(by_batch.values(), key=len), key=lambda row: float(row["loss"]))
    found = {}
    for batch, some in by_batch.items():
        alike = [
            row for row in some if all(row[name] == best[name] for name in others if name in row)
        ]
        if alike:
            loss = min(float(row["loss"]) for row in alike)
            found[batch] = budget / _tokens(loss, curve)
    return found, float(best["learning_rate"])


def _tokens(loss: float, curve: dict[float, float]) -> float:
    """Return the budget whose best training has this loss, extrapolating with the outer slopes beyond the ends."""
    budgets = sorted(curve)
    losses = np.array([curve[budget] for budget in budgets])
    logs = np.log(budgets)
    at = int(np.clip(np.searchsorted(-losses, -loss), 1, len(budgets) - 1))
    slope = (logs[at] - logs[at - 1]) / (losses[at] - losses[at - 1])
    return float(np.exp(logs[at - 1] + slope * (loss - losses[at - 1])))


def _alexnet_trial(training: dict[str, Any], target: float) -> TrainingObservation:
    top1 = [float(point["top_1"]) for point in training["learning_curve"]]
    reached = next((at for at, value in enumerate(top1, start=1) if value >= target), None)
    return TrainingObservation(
        int(training["batch_size"]),
        "reached" if reached else "diverged" if training["nan_train_loss"] else "censored",
        float(reached or len(top1)),
        {
            "optimizer": "sgd",
            "learning_rate": float(training["lr"]),
            "warmup_epochs": float(training["lr_peak_epoch"]),
            "decay_epochs": float(training["epochs"]),
            "momentum": float(training["momentum"]),
            "weight_decay": float(training["weight_decay"]),
            "label_smoothing": float(training["label_smoothing"]),
        },
        resolution_epochs=1.0 if reached else 0.0,
    )


def _deberta_trial(training: dict[str, Any], target: float) -> TrainingObservation:
    """Return a trial; accuracy is known every thousand updates, and the crossing is interpolated linearly."""
    steps_per_epoch = training["total_model_steps"] / training["num_train_epochs"]
    before = (0.0, 1 / 3)
    crossing = None
    for step, accuracy in training["learning_curves"]["matched"]:
        if accuracy >= target:
            share = (target - before[1]) / (accuracy - before[1])
            crossing = before[0] + share * (step - before[0])
            break
        before = (float(step), float(accuracy))
    return TrainingObservation(
        int(training["train_batch_size"]),
        "reached" if crossing else "censored",
        (crossing or training["total_model_steps"]) / steps_per_epoch,
        {
            "optimizer": "adamw",
            "learning_rate": float(training["learning_rate"]),
            "warmup_epochs": float(training["warmup_steps"]) / steps_per_epoch,
            "decay_epochs": float(training["num_train_epochs"]),
            "classifier_dropout": float(training["cls_drop_out"]),
        },
    )


def _random_search(
    source: str,
    case: str,
    trials: Sequence[TrainingObservation],
    largest_seen: int,
    hidden: tuple[int, int],
    samples: int,
) -> HiddenBatch:
    """Fit on batches up to ``largest_seen``; compare with trainings in the range of batches ``hidden``."""
    seen = [each for each in trials if each.global_batch_size <= largest_seen]
    there = [each for each in trials if hidden[0] <= each.global_batch_size <= hidden[1]]
    batch = round(math.sqrt(hidden[0] * hidden[1]))
    posterior = fit(
        Evidence(observations=seen, samples_per_epoch=samples, tuned=tuned_settings(seen)),
        rng=np.random.default_rng(0),
    )
    few = _quickest(there)[:FEW]
    groups = _groups(seen)
    below = [
        (size, _mean([each.epochs for each in _quickest(some)[:FEW]])) for size, some in groups
    ]
    top, best = groups[-1][0], _quickest(groups[-1][1])[:FEW]
    start = TrainingSettings.from_dict(
        {
            "optimizer": best[0].settings["optimizer"],
            "learning_rate": _mean([_update_rate(each.settings) for each in best]),
        }
    )
    batches = sorted({each.global_batch_size for each in seen})
    return HiddenBatch(
        source,
        case,
        f"{batches[0]} to {batches[-1]}",
        batch,
        len(there),
        forecast(posterior, batch),
        _mean([each.epochs for each in few]),
        few[0].epochs,
        below[-1][1],
        _line(below, batch),
        _mean([_update_rate(each.settings) for each in few]),
        {
            rule: float(SCALING_RULES[rule](start, round(top), batch).learning_rate)
            for rule in RULES
        },
    )


def _groups(seen: Sequence[TrainingObservation]) -> list[tuple[float, list[TrainingObservation]]]:
    """Group trials by batch within a factor of 1.3; each group has at least one that reached the target."""
    groups: list[list[TrainingObservation]] = []
    for each in sorted(seen, key=lambda trial: trial.global_batch_size):
        if groups and each.global_batch_size < 1.3 * groups[-1][0].global_batch_size:
            groups[-1].append(each)
        else:
            groups.append([each])
    return [
        (_mean([each.global_batch_size for each in group]), group)
        for group in groups
        if _quickest(group)
    ]


def _quickest(trials: Sequence[TrainingObservation]) -> list[TrainingObservation]:
    return sorted(
        (each for each in trials if each.state == "reached"), key=lambda each: each.epochs
    )


def _update_rate(settings: Mapping[str, Any]) -> float:
    """Return the learning rate over 1 - momentum, by which a gradient moves the weights in all (arXiv:1711.00489)."""
    return float(settings["learning_rate"] / (1 - settings.get("momentum", 0.0)))


def _line(points: Sequence[tuple[float, float]], batch: float) -> float:
    """Extrapolate a straight line through log epochs over log batch, like a spreadsheet's trend line."""
    if len(points) < 2:
        return points[0][1]
    logs = np.log(np.array(points))
    slope, start = np.polyfit(logs[:, 0], logs[:, 1], 1)
    return float(np.exp(start + slope * np.log(batch)))


def _mean(values: Sequence[float]) -> float:
    return float(np.exp(np.mean(np.log(values))))


def tables(found: Sequence[HiddenBatch]) -> Iterator[str]:
    """A summary by source, then every forecast, in Markdown."""
    yield (
        "| trainings | forecasts | median error of the epochs | ... unchanged | ... straight line "
        "| forecasts within 15 % / 30 % | 90 % intervals that held | their width "
        "| rate within a factor of 1.5 / 2 | none, sqrt, linear within a factor of 1.5 |"
    )
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for source in dict.fromkeys(each.source for each in found):
        yield _summary(source, [each for each in found if each.source == source])
    for source in dict.fromkeys(each.source for each in found):
        own = [each for each in found if each.source == source]
        rated = own[0].rate is not None
        rate = "rate / (1 - m)" if "momentum" in own[0].found.settings else "rate"
        yield ""
        yield (
            f"| {source} | seen | at | forecast epochs (90 %) | trained: mean of the best {FEW} | best | "
            f"unchanged | straight line | trust | forecast {rate} | {rate} of the best | none / sqrt / linear |"
            if rated
            else f"| {source} | seen | at | forecast tokens (90 %) | trained | unchanged | straight line | trust |"
        )
        yield f"|---|---|---|---|---|---|---|---|{'---|---|---|---|' if rated else ''}"
        for each in own:
            yield _row(each)


def _summary(source: str, own: Sequence[HiddenBatch]) -> str:
    def median_miss(told: Sequence[float]) -> str:
        misses = [abs(math.log(each.epochs / value)) for each, value in zip(own, told, strict=True)]
        return f"{math.expm1(float(np.median(misses))):.0%}"

    told = [each.found.epochs_to_target for each in own]
    near = [f"{sum(abs(each.miss) <= math.log(factor) for each in own)}" for factor in (1.15, 1.3)]
    rates = "-"
    rules = "-"
    if own[0].rate is not None:
        away = [abs(math.log(each.forecast_rate / each.rate)) for each in own if each.rate]
        within = " / ".join(
            str(sum(one <= math.log(factor) for one in away)) for factor in (1.5, 2.0)
        )
        rates = f"{within} of {len(own)}"
        rules = ", ".join(
            str(
                sum(
                    abs(math.log(each.rates[rule] / each.rate)) <= math.log(1.5)
                    for each in own
                    if each.rates and each.rate
                )
            )
            for rule in RULES
        )
    return (
        f"| {source} | {len(own)} | {median_miss([one.median for one in told])} | "
        f"{median_miss([each.as_below for each in own])} | {median_miss([each.line for each in own])} | "
        f"{' / '.join(near)} | {sum(each.held for each in own)} of {len(own)} | "
        f"{np.median([one.high / one.low for one in told]):.2f} | {rates} | {rules} |"
    )


def _row(each: HiddenBatch) -> str:
    told = each.found.epochs_to_target
    cells = [
        each.case,
        each.seen,
        f"{each.batch:,}",
        f"{told.median:.3g} ({told.low:.3g} to {told.high:.3g}){'' if each.held else ', missed'}",
        f"{each.epochs:.3g}",
    ]
    if each.rate is not None:
        cells.append(f"{each.best:.3g}")
    cells += [f"{each.as_below:.3g}", f"{each.line:.3g}", each.found.trust]
    if each.rate is not None and each.rates is not None:
        cells += [
            f"{each.forecast_rate:.2g}",
            f"{each.rate:.2g}",
            " / ".join(f"{each.rates[rule]:.2g}" for rule in RULES),
        ]
    return f"| {' | '.join(cells)} |"


def picture(found: Sequence[HiddenBatch]) -> Picture:
    """Draw forecast against trained epochs; for language models, tokens over the best."""
    values = [each.epochs for each in found] + [
        end
        for each in found
        for end in (each.found.epochs_to_target.low, each.found.epochs_to_target.high)
    ]
    ends = (0.8 * min(values), 1.25 * max(values))
    shown = Picture("forecast, with the 90 % interval", "trained at the hidden batch", ends, ends)
    shown.line(ends, ends, "#888888", "as forecast")
    for source in dict.fromkeys(each.source for each in found):
        own = [each for each in found if each.source == source]
        for each in own:
            told = each.found.epochs_to_target
            shown.line([told.low, told.high], [each.epochs] * 2, COLOURS[source], "")
        shown.points(
            [each.found.epochs_to_target.median for each in own],
            [each.epochs for each in own],
            COLOURS[source],
            source,
        )
    return shown


PAGE = """# Published training runs with the larger batches hidden

What would `hpo extrapolate` have forecast for published training runs, given only the runs with smaller batches? The
following command writes this page from files that you download yourself:

```
python -m benchmarks.published_trainings FOLDER --write docs/validation
```

![Forecast and trained epochs](published_trainings.svg)

{tables}

## What is compared

The forecast applies to the settings that it recommends. No published run used exactly these settings, so the forecast
is compared with the geometric mean of the epochs of the {few} fastest training runs at the hidden batch size, out of
{counts} runs of a random search. The column "best" shows the single fastest run, which was partly lucky. "Unchanged"
is the mean of the {few} fastest runs at the largest batch size seen. "Straight line" extrapolates a line through the
log epochs of the {few} fastest runs at each batch size against the log batch size. The forecast learning rate is
compared with the geometric mean of the learning rates of the {few} fastest runs, which vary because the other
settings were drawn at random too. For AlexNet, these include the momentum m, from 0.7 to 0.99 in the fastest runs. A
gradient moves the weights by the learning rate over 1 - m in all, so these quotients are compared. The rules of thumb
start from the corresponding mean at the largest batch size seen.

**AlexNet on ImageNet** was trained with SGD. The number of epochs (20 to 100, with the learning rate decaying linearly
to the end), the learning rate, warmup, momentum, weight decay and label smoothing were drawn at random. **DeBERTa on
MultiNLI** was trained with AdamW, with the number of epochs (1 to 4), the learning rate, warmup and dropout drawn at
random. The batch size could take any value from 16 to 64. The accuracy was recorded every thousand updates and is
interpolated in between. For both models, the epochs to target are read from the learning curves. A run that ended
before it reached the target counts as censored, and a run whose loss became NaN counts as diverged.

For the **language models**, there is one training run at each batch size, always with the settings that were best at
the batch size with the most runs. The token budget is fixed, so the final loss is converted to a number of tokens using
the best losses of the same optimizer and model size at the different budgets. The forecast is the number of tokens
needed with a batch of 1,024 sequences, as a multiple of the tokens of the best run. A forecast assumes that settings
are tuned for each batch size, which is not the case here, so a large batch does worse than it could. All batch sizes
use the same learning rate, so the trust is low.

## Sources and licences

The data for AlexNet and DeBERTa are from Nicholas Lourie's opda, <https://github.com/nicholaslourie/opda>, folder
`data`, under CC BY-SA 4.0. The tables for these models on this page are shared under the same licence. The data for the
language models are from *Fantastic Pretraining Optimizers and Where to Find Them* (arXiv:2509.02046),
<https://github.com/WhenWen/marin>, branch `kaiyue/shampoo`, under Apache-2.0. None of this data is included in this
project's packages.
"""


def page(found: Sequence[HiddenBatch]) -> str:
    """Return the page of the documentation."""
    drawn = [each.trainings for each in found if each.rate is not None]
    counts = (
        " to ".join(str(count) for count in sorted({min(drawn), max(drawn)})) if drawn else "none"
    )
    return PAGE.format(tables="\n".join(tables(found)), few=FEW, counts=counts)


def main() -> None:
    """Forecast, print the tables, and write the page if requested."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--write", type=Path, metavar="FOLDER", help="where the page is written")
    options = parser.parse_args()
    found: list[HiddenBatch] = []
    for name, read in (
        ("alexnet_tuning.jsonl.gz", alexnet),
        ("deberta-base_tuning.jsonl.gz", deberta),
        ("optimizers.csv", language_models),
    ):
        for file in sorted(options.folder.rglob(name))[:1]:
            found += read(file)
    if not found:
        parser.error(
            f"{options.folder} must hold one of the files that --help names, but holds none; fetch one first"
        )
    print("\n".join(tables(found)))
    if options.write is not None:
        (options.write / "published_trainings.md").write_text(page(found), encoding="utf-8")
        (options.write / "published_trainings.svg").write_text(
            picture(found).text(), encoding="utf-8"
        )


if __name__ == "__main__":
    main()
