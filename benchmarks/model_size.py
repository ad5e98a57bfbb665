"""Small models for large ones: python -m benchmarks.model_size [--over depth] [--trainings FILE] [--write FOLDER].

Decoder-only transformers over the bytes of Python's own sources. Over the width, of 2 blocks in the parametrizations
``standard`` and ``mup`` with the base width 32; with ``--over depth``, of width 32 in ``standard`` and ``completep``
with the base depth 2. At the base both are the same.

Coordinate check (Yang et al., arXiv:2203.03466, section D.1): the root mean square of the output of each part of the
network, and of its change over the first 4 updates, at widths of 32 to 512 or depths of 2 to 32.

Best rate: the held-out loss after 256 updates (over the depth 128) of 32 sequences of 32 bytes with AdamW, at seven
rates and four sizes; warmup over a tenth, linear decay to zero, no weight decay, one seed. The best rate is the vertex
of the parabola through the lowest loss and its two neighbours, over the logarithm of the rate.

Trainings in FILE, one JSON object per line, are not repeated. ``--write`` writes the pictures and the table.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.extrapolation.svg import Picture
from search_spaces.settings import TrainingSettings
from search_spaces.techniques.parametrizations import PARAMETRIZATIONS
from trainers.begin import begin_training
from trainers.job import Target, TrainingJob
from trainers.loop.synchronous import SynchronousTraining

BATCH = 32
CHECKED: Mapping[str, Mapping[str, Any]] = {
    "sgd": {"learning_rate": 0.1},
    "lars": {"learning_rate": 0.5, "trust_coefficient": 0.02},
    "adamw": {"learning_rate": 0.003},
    "lion": {"learning_rate": 0.001},
    "lamb": {"learning_rate": 0.02},
}
"""Optimizers of the coordinate check, with rates at which the narrow network learns."""
CHECKED_DATA = {"sequence_length": 16, "evaluation_samples": 16, "train_samples": 4 * BATCH}
"""Four updates to the first evaluation."""
RATES = tuple(0.001 * 2**power for power in range(7))
SEEDS = (1,)
LOST = 10.0
"""Loss in nats per byte assigned to a diverged training; uniform guessing has 5.5."""
COLOURS = ("#1f77b4", "#2ca02c", "#ff7f0e", "#d62728")


@dataclass(frozen=True)
class Direction:
    """The growing dimension: ``sizes`` are trained and ``checked`` are checked, with the first as the base; ``updates``
    are those of a training, and ``parametrizations`` the standard one and the one for this direction.
    """

    name: str
    parametrizations: tuple[str, str]
    sizes: tuple[int, ...]
    checked: tuple[int, ...]
    updates: int
    page: str

    @property
    def base(self) -> int:
        """The size at which both parametrizations are the same."""
        return self.sizes[0]

    def data(self, parametrization: str, size: int, **others: Any) -> dict[str, Any]:
        """Return the data section of a language model of this size; ``others`` may include ``width`` or ``depth``."""
        return options(parametrization, **{**others, self.name: size})


WIDTH = Direction(
    "width", ("standard", "mup"), (32, 64, 128, 256), (32, 64, 128, 256, 512), 256, "model_size"
)
DEPTH = Direction(
    "depth", ("standard", "completep"), (2, 4, 8, 16), (2, 4, 8, 16, 32), 128, "model_depth"
)


@dataclass(frozen=True, order=True)
class SmallTraining:
    """One training of the sweep over rates; ``size`` is its width or its depth."""

    parametrization: str
    size: int
    rate: float
    seed: int


@dataclass(frozen=True)
class Size:
    """Root mean square of the output of a part of the network, and of its change over the first updates."""

    value: float
    change: float


def options(parametrization: str, width: int = 32, **others: Any) -> dict[str, Any]:
    """Return the data section of a language model, by default of 2 blocks, with base width 32 and base depth 2."""
    base = {
        f"base_{size}": {"width": 32, "depth": 2}[size]
        for size in PARAMETRIZATIONS[parametrization]
    }
    named = {"parametrization": parametrization} if base else {}
    return {"width": width, "depth": 2, **named, **base, **others}


def coordinates(
    data: Mapping[str, Any],
    workload: str,
    parts: Callable[[Any], Mapping[str, nn.Module]],
    settings: TrainingSettings,
    *,
    evaluations_per_epoch: int = 1,
) -> dict[str, Size]:
    """Return the sizes of each of ``parts`` of a model on 16 evaluation samples, up to the first evaluation."""
    job = _job(workload, data, settings, seed=3)
    training = begin_training(replace(job, evaluations_per_epoch=evaluations_per_epoch))
    assert isinstance(training, SynchronousTraining)
    seen: dict[str, Tensor] = {}
    for name, module in parts(training.model).items():
        module.register_forward_hook(
            lambda _, __, output, name=name: seen.update({name: output.detach().clone()})
        )
    samples = training.workload.prepare(training.workload.evaluation_batch(torch.arange(16)))

    def given() -> dict[str, Tensor]:
        training.model.eval()
        with torch.no_grad():
            training.workload.score(training.model, samples)
        return dict(seen)

    before = given()
    training.advance()
    after = given()
    return {name: Size(_rms(before[name]), _rms(after[name] - before[name])) for name in before}


def parts_of_decoder(model: Any) -> dict[str, nn.Module]:
    """Return the checked parts of a language model: those of its last block, and the logits."""
    block = model.blocks[-1]
    return {
        "queries, keys, values": block.queries_keys_values,
        "hidden layer": block.network_input,
        "stream": block,
        "scores": model,
    }


def check(over: Direction, optimizer: str, parametrization: str) -> dict[int, dict[str, Size]]:
    """Run the coordinate check of one optimizer, by size."""
    settings = TrainingSettings(optimizer=optimizer, weight_decay=0.0, **CHECKED[optimizer])
    return {
        size: coordinates(
            over.data(parametrization, size, **CHECKED_DATA), "language", parts_of_decoder, settings
        )
        for size in over.checked
    }


def loss_of(over: Direction, training: SmallTraining) -> float:
    """Return the final held-out loss in nats per byte; LOST if the training diverged."""
    data = over.data(
        training.parametrization,
        training.size,
        sequence_length=32,
        train_samples=over.updates * BATCH,
        evaluation_samples=512,
    )
    settings = TrainingSettings(
        optimizer="adamw",
        learning_rate=training.rate,
        warmup_epochs=0.1,
        decay="linear",
        weight_decay=0.0,
    )
    run = begin_training(_job("language", data, settings, seed=training.seed))
    loss = LOST
    while not run.finished:
        point = run.advance()
        loss = point.loss if np.isfinite(point.loss) else LOST
    run.close()
    return min(loss, LOST)


def wanted(over: Direction) -> list[SmallTraining]:
    """Return every training of the sweep, seed by seed, the most expensive first.

    At the base both parametrizations coincide, and are trained once.
    """
    return sorted(
        (
            SmallTraining(parametrization, size, rate, seed)
            for parametrization in over.parametrizations
            for size in over.sizes
            for rate in RATES
            for seed in SEEDS
            if parametrization == "standard" or size != over.base
        ),
        key=lambda each: (each.seed, -each.size, each),
    )


def losses(over: Direction, file: Path, processes: int) -> dict[SmallTraining, float]:
    """Return the losses of all trainings, from the file if present."""
    found: dict[SmallTraining, float] = {}
    if file.exists():
        for line in file.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            found[SmallTraining(**row["training"])] = row["loss"]
    left = [each for each in wanted(over) if each not in found]
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        for training, loss in pool.imap_unordered(partial(_trained, over), left):
            found[training] = loss
            with file.open("a", encoding="utf-8") as lines:
                lines.write(json.dumps({"training": asdict(training), "loss": loss}) + "\n")
            print(training, f"{loss:.3f}", flush=True)
    for training in [each for each in found if each.size == over.base]:
        found[replace(training, parametrization=over.parametrizations[1])] = found[training]
    return found


def curves(found: Mapping[SmallTraining, float]) -> dict[tuple[str, int], np.ndarray[Any, Any]]:
    """Return the mean loss over the seeds at each rate, ``(rates,)``, by parametrization and size."""
    sums: dict[tuple[str, int], dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
    for training, loss in found.items():
        sums[training.parametrization, training.size][training.rate].append(loss)
    return {
        key: np.array([np.mean(of_rates[rate]) for rate in RATES]) for key, of_rates in sums.items()
    }


def best_rate(curve: Sequence[float] | np.ndarray[Any, Any]) -> float:
    """Return the best rate by the losses at RATES: the vertex of the parabola through the lowest and its neighbours."""
    at = int(np.argmin(curve))
    if at in (0, len(RATES) - 1):
        return RATES[at]
    below, lowest, above = (float(curve[each]) for each in (at - 1, at, at + 1))
    return float(RATES[at] * 2 ** (0.5 * (below - above) / (below - 2 * lowest + above)))


def check_picture(
    over: Direction, checks: Mapping[str, Mapping[int, Mapping[str, Size]]]
) -> Picture:
    """Draw the change of three parts with AdamW, over the size."""
    parts = ("queries, keys, values", "stream", "scores")
    sizes = [
        its.change for check in checks.values() for of in check.values() for its in of.values()
    ]
    picture = Picture(
        over.name,
        "change over 4 updates",
        (0.875 * over.checked[0], 1.18 * over.checked[-1]),
        (0.7 * min(sizes), 1.4 * max(sizes)),
    )
    for name, its in checks.items():
        for part, colour in zip(parts, COLOURS, strict=False):
            changes = [its[size][part].change for size in over.checked]
            label = f"{part}, {name}"
            picture.line(over.checked, changes, colour, label, dashed=name == "standard")
    return picture


def rate_picture(
    over: Direction,
    by_size: Mapping[tuple[str, int], np.ndarray[Any, Any]],
    parametrization: str,
) -> Picture:
    """Draw loss over rate, a line for each size, and the best rate of each."""
    lowest = min(float(curve.min()) for curve in by_size.values())
    picture = Picture(
        f"learning rate, {parametrization}",
        "held-out loss, nats a byte",
        (RATES[0] * 0.9, RATES[-1] * 1.1),
        (lowest * 0.95, lowest * 1.5),
    )
    for size, colour in zip(over.sizes, COLOURS, strict=True):
        curve = by_size[parametrization, size]
        best = best_rate(curve)
        picture.line(RATES, curve, colour, f"{over.name} {size}")
        picture.line([best, best], [lowest * 0.95, float(curve.min())], colour, "", dashed=True)
    return picture


def tables(
    over: Direction,
    checks: Mapping[tuple[str, str], Mapping[int, Mapping[str, Size]]],
    by_size: Mapping[tuple[str, int], np.ndarray[Any, Any]],
) -> Iterator[str]:
    """Return the tables, in Markdown."""
    parts = ("queries, keys, values", "hidden layer", "stream", "scores")
    largest = over.checked[-1]
    yield (
        f"| change at {over.name} {largest}, relative to {over.name} {over.base} | parametrization | "
        f"{' | '.join(parts)} |"
    )
    yield "|---|---|" + "--:|" * len(parts)
    for (optimizer, parametrization), check in checks.items():
        grown = [check[largest][part].change / check[over.base][part].change for part in parts]
        shown = " | ".join(f"{each:.2g}" for each in grown)
        yield f"| {optimizer} | {parametrization} | {shown} |"
    yield ""
    yield (
        f"| {over.name} | parametrization | best rate | loss with it | rate of {over.name} {over.base} "
        "| loss with that | cost of the small model's rate |"
    )
    yield "|--:|---|--:|--:|--:|--:|--:|"
    taken = best_rate(by_size["standard", over.base])
    for size in over.sizes:
        for parametrization in over.parametrizations:
            curve = by_size[parametrization, size]
            with_it = float(np.interp(np.log(taken), np.log(RATES), curve))
            yield (
                f"| {size} | {parametrization} | {best_rate(curve):.2g} | {curve.min():.3f} | {taken:.2g} | "
                f"{with_it:.3f} | {with_it - curve.min():.3f} |"
            )


PAGE = """# {title}

```
python -m benchmarks.model_size {option}--write docs/concepts
```

Transformers of {what} are trained on the bytes of Python's own source files; the base of parametrization
`{parametrization}` is {name} {base}. The first table compares how much the root mean square of a part's output
changes over the first 4 updates. Best learning rates are for AdamW and {updates} updates of 32 sequences of 32 bytes.
Losses are held-out losses in nats per byte with {seeds} seed. The last three columns use the best learning rate of
{name} {base}. The machine had 2 cores of a shared x86-64 virtual machine. The results are discussed in
[model size](../docs/concepts/model_size.md).

{tables}
"""


def page(over: Direction, text: str) -> str:
    """Return the page of one direction, with its tables."""
    deep = over is DEPTH
    return PAGE.format(
        title="Shallow models for deep ones" if deep else "Small models for large ones",
        option="--over depth " if deep else "",
        what="width 32" if deep else "2 blocks",
        parametrization=over.parametrizations[1],
        name=over.name,
        base=over.base,
        updates=over.updates,
        seeds=len(SEEDS),
        tables=text,
    )


def main() -> None:
    """Check, train, print the tables, and with ``--write`` write them with the pictures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--over", choices=("width", "depth"), default="width")
    parser.add_argument(
        "--trainings",
        type=Path,
        metavar="FILE",
        help="model_size.jsonl or model_depth.jsonl if not given",
    )
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument(
        "--write", type=Path, metavar="FOLDER", help="where the pictures go; writes the table too"
    )
    asked = parser.parse_args()
    torch.set_num_threads(1)
    over = DEPTH if asked.over == "depth" else WIDTH
    checks = {
        (optimizer, parametrization): check(over, optimizer, parametrization)
        for optimizer in CHECKED
        for parametrization in over.parametrizations
    }
    file = asked.trainings or Path(f"{over.page}.jsonl")
    by_size = curves(losses(over, file, asked.processes))
    text = "\n".join(tables(over, checks, by_size))
    print(text)
    if asked.write is not None:
        (Path(__file__).parent / f"{over.page}.md").write_text(page(over, text), encoding="utf-8")
        of_adamw = {each: checks["adamw", each] for each in over.parametrizations}
        pictures = {f"{over.page}-check": check_picture(over, of_adamw)}
        pictures |= {
            f"{over.page}-{each}": rate_picture(over, by_size, each)
            for each in over.parametrizations
        }
        for name, picture in pictures.items():
            (asked.write / f"{name}.svg").write_text(picture.text(), encoding="utf-8")


def _job(
    workload: str, data: Mapping[str, Any], settings: TrainingSettings, *, seed: int
) -> TrainingJob:
    return TrainingJob(
        workload=workload,
        data=data,
        seed=seed,
        target=Target("loss", 1e-9, higher_is_better=False),
        global_batch_size=BATCH,
        epochs=1.0,
        settings=settings,
    )


def _trained(over: Direction, training: SmallTraining) -> tuple[SmallTraining, float]:
    torch.set_num_threads(1)
    return training, loss_of(over, training)


def _rms(tensor: Tensor) -> float:
    return tensor.double().square().mean().sqrt().item()


if __name__ == "__main__":
    main()
