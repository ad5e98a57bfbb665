"""How each optimizer's best rate moves with the batch: python -m benchmarks.optimizer_priors FILE.

The file holds final losses of language models with one setting changed at a time, by optimizer, model size and tokens
(Wen et al., Fantastic Pretraining Optimizers, arXiv:2509.02046; columns ``optimizer``, ``size``, ``chinchilla``,
``train_batch_size``, ``learning_rate``, ``loss`` and the other settings). It is not shipped.

Rate and batch were never tuned together there: rates were tried only at the best batch, and other batches only at the
best rate. So within one size and number of tokens there is no best rate at two batches; the information comes from the
best batch differing between them. All best rates of one optimizer are fitted by

    log rate = c + a log batch + b log tokens + d log size + scatter

with c and a per optimizer, b and d common to all (tokens change the best rate at any batch), by Bayesian linear
regression: a ~ N(0.5, 0.5), b and d ~ N(0, 1), c wide; the scatter is 0.2 plus that of the grid, which steps by 2. The
table shows the posterior of a, and its width relative to the prior.
"""

from __future__ import annotations

import argparse
import csv
import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

VARIED = ("train_batch_size", "learning_rate", "loss")
SIZES = {"130m": 130e6, "300m": 300e6, "520m": 520e6}
NAMES = {"soape": "soap"}
EXPONENT, TREND = (0.5, 0.5), (0.0, 1.0)
SCATTER = 0.2
LOST = 0.5
"""A training is lost if its loss is this far above the lowest over its rates, in nats."""
TELLS = 0.8
"""Share of the prior width below which the runs count as informative."""


@dataclass(frozen=True)
class Best:
    """The best rate of one optimizer, size and number of tokens at the batch where rates were tried."""

    optimizer: str
    log_batch: float
    log_tokens: float
    log_size: float
    log_rate: float
    sd: float


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path)
    with parser.parse_args().file.open(encoding="utf-8", newline="") as lines:
        found = list(best_rates(list(csv.DictReader(lines))))
    print(
        "| optimizer | best rates | batches | a, rate ~ batch^a | width over that before | tells |"
    )
    print("|---|---|---|---|---|---|")
    exponents = fitted(found)
    for optimizer, (mean, sd) in exponents.items():
        own = [each for each in found if each.optimizer == optimizer]
        batches = Counter(round(math.exp(each.log_batch)) for each in own)
        shown = ", ".join(f"{batch}: {count}" for batch, count in sorted(batches.items()))
        share = sd / EXPONENT[1]
        print(
            f"| {optimizer} | {len(own)} | {shown} | {mean:.2f} +- {sd:.2f} | {share:.2f} | "
            f"{'yes' if share <= TELLS else 'no'} |"
        )


def best_rates(rows: Sequence[Mapping[str, str]]) -> Iterator[Best]:
    """Yield the best rate of each group with at least two rates at one batch and equal other settings."""
    groups: defaultdict[tuple[str, str, str], list[Mapping[str, str]]] = defaultdict(list)
    for row in rows:
        if row["loss"] and math.isfinite(float(row["loss"])):
            groups[row["optimizer"], row["size"], row["chinchilla"]].append(row)
    for (optimizer, size, times), group in groups.items():
        others = [name for name in group[0] if name not in VARIED]
        alike = Counter(tuple(row[name] for name in others) for row in group).most_common(1)[0][0]
        losses: defaultdict[int, dict[float, float]] = defaultdict(dict)
        for row in group:
            if tuple(row[name] for name in others) == alike:
                at, rate = losses[int(row["train_batch_size"])], float(row["learning_rate"])
                at[rate] = min(float(row["loss"]), at.get(rate, math.inf))
        for batch, at in losses.items():
            if len(at) > 1:
                log_rate, sd = lowest(at)
                tokens = float(times) * 20 * SIZES[size]
                yield Best(
                    NAMES.get(optimizer, optimizer),
                    math.log(batch),
                    math.log(tokens),
                    math.log(SIZES[size]),
                    log_rate,
                    sd,
                )


def lowest(losses: Mapping[float, float]) -> tuple[float, float]:
    """Return log best rate and standard deviation: the vertex of a parabola through the best and its neighbours, or
    the best of the grid if a neighbour is missing or lost.
    """
    rates = sorted(losses)
    at = min(range(len(rates)), key=lambda index: losses[rates[index]])
    step = math.log(2)
    if 0 < at < len(rates) - 1:
        three = [rates[at - 1], rates[at], rates[at + 1]]
        heights = [losses[each] for each in three]
        if max(heights) < heights[1] + LOST:
            a, b, _ = np.polyfit(np.log(three), heights, 2)
            return float(-b / (2 * a)), step / 4
        return math.log(rates[at]), step / 12**0.5
    return math.log(rates[at]), step / 3**0.5


def fitted(found: Sequence[Best]) -> dict[str, tuple[float, float]]:
    """Return mean and standard deviation of a, by optimizer."""
    optimizers = sorted({each.optimizer for each in found})
    means = np.array([0.0] * len(optimizers) + [EXPONENT[0]] * len(optimizers) + [TREND[0]] * 2)
    widths = np.array([10.0] * len(optimizers) + [EXPONENT[1]] * len(optimizers) + [TREND[1]] * 2)
    design = np.zeros((len(found), len(means)))
    centre = [
        np.mean([getattr(each, name) for each in found])
        for name in ("log_batch", "log_tokens", "log_size")
    ]
    for row, each in zip(design, found, strict=True):
        at = optimizers.index(each.optimizer)
        row[at] = 1.0
        row[len(optimizers) + at] = each.log_batch - centre[0]
        row[-2:] = each.log_tokens - centre[1], each.log_size - centre[2]
    variance = np.array([each.sd**2 + SCATTER**2 for each in found])
    rates = np.array([each.log_rate for each in found])
    precision = design.T @ (design / variance[:, None]) + np.diag(widths**-2)
    covariance = np.linalg.inv(precision)
    posterior = covariance @ (design.T @ (rates / variance) + means / widths**2)
    first = len(optimizers)
    return {
        optimizer: (float(posterior[first + at]), float(covariance[first + at, first + at] ** 0.5))
        for at, optimizer in enumerate(optimizers)
    }


if __name__ == "__main__":
    main()
