"""Reads the MLPerf log of one training run: ``:::MLLOG {...}`` lines among other output of the run.

MLCommons' ``mlperf_logging/mllog/constants.py`` and the training and HPC rules define the keys and their meaning.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpo.errors import EvidenceError

TOKEN = ":::MLLOG "


@dataclass(frozen=True)
class LogLine:
    """One line of the log: a key with its value and metadata, and ``seconds`` by the submitter's clock."""

    key: str
    seconds: float
    value: Any
    metadata: Mapping[str, Any]


@dataclass(frozen=True)
class MLPerfEvaluation:
    """The metric after ``epochs``, with the ``seconds`` since the run's start and, if logged, the ``step``."""

    epochs: float
    step: int | None
    seconds: float
    metric: float


@dataclass(frozen=True)
class MLPerfLoggedRun:
    """The content of one log. ``values`` has the last value per key; ``samples_per_second`` excludes evaluations."""

    benchmark: str
    status: str
    seconds: float
    values: Mapping[str, Any]
    evaluations: tuple[MLPerfEvaluation, ...]
    samples_per_second: float | None

    @property
    def epochs(self) -> float:
        """Epochs until the last evaluation; 0 without evaluations."""
        return max((each.epochs for each in self.evaluations), default=0.0)

    def whole(self, *keys: str) -> int | None:
        """Return the value of the first of ``keys`` that the log has, as an integer."""
        return next(
            (int(self.values[key]) for key in keys if self.values.get(key) is not None), None
        )


def read_log(path: Path) -> MLPerfLoggedRun:
    """Return the run in a log file; raise :class:`EvidenceError` that names a missing key or a malformed line."""
    events = list(_events(path))
    start, stop = _one(events, "run_start", path), _one(events, "run_stop", path, last=True)
    values = {event.key: event.value for event in events if event.value is not None}
    if "submission_benchmark" not in values:
        raise EvidenceError(
            f"{path} has no submission_benchmark: it is not the log of an MLPerf training"
        )
    return MLPerfLoggedRun(
        benchmark=str(values["submission_benchmark"]),
        status=str(stop.metadata.get("status", "")),
        seconds=stop.seconds - start.seconds,
        values=values,
        evaluations=tuple(
            _evaluation(event, start.seconds)
            for event in events
            if event.key == "eval_accuracy" and "epoch_num" in event.metadata
        ),
        samples_per_second=_throughput(
            events, float(values.get("train_samples") or 0), start.seconds
        ),
    )


def _events(path: Path) -> Iterator[LogLine]:
    # some submitters' tools write their own text before the token
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        raise EvidenceError(f"cannot read {path}: {error}") from error
    for number, line in enumerate(lines, 1):
        _, token, text = line.partition(TOKEN)
        if not token:
            continue
        try:
            document = json.loads(text)
            yield LogLine(
                str(document["key"]),
                float(document["time_ms"]) / 1000,
                document["value"],
                document.get("metadata") or {},
            )
        except (ValueError, KeyError, TypeError) as error:
            raise EvidenceError(
                f"{path}, line {number}: an MLLOG line must be JSON with key, value and time_ms, "
                f"but: {error}"
            ) from error


def _one(events: list[LogLine], key: str, path: Path, *, last: bool = False) -> LogLine:
    found = [event for event in events if event.key == key]
    if not found:
        raise EvidenceError(
            f"{path} holds no {key}: the run did not end, or the file is not an MLPerf log"
        )
    return found[-1 if last else 0]


def _evaluation(event: LogLine, start: float) -> MLPerfEvaluation:
    step, epochs = event.metadata.get("step_num"), float(event.metadata["epoch_num"])
    if not 0 <= epochs < math.inf:
        raise EvidenceError(
            f"epoch_num of eval_accuracy must be finite and 0 or more, but got {epochs:g}"
        )
    return MLPerfEvaluation(
        epochs=epochs,
        step=None if step is None else int(step),
        seconds=event.seconds - start,
        metric=float(event.value),
    )


def _throughput(events: list[LogLine], train_samples: float, start: float) -> float | None:
    """Return the training samples per second: the median over the intervals between two evaluations.

    An interval lasts from the end of one evaluation to the start of the next. The first interval often includes waiting
    for data, and is left out if there are others. Throughputs in the logs are not used: if epochs are queued on the
    device, their ends and rates are logged before they are computed (ResNet-50 on 512 H100 GPUs, round 3.0: 6.9 million
    images a second by the log, but 2.1 million by the clock).
    """
    rates, began, done = list[float](), start, 0.0
    for event in events:
        epoch = float(event.metadata.get("epoch_num", done))
        # if a log lacks the start of an evaluation, the interval lasts until the result
        if event.key in ("eval_start", "eval_accuracy") and epoch > done and event.seconds > began:
            rates.append((epoch - done) * train_samples / (event.seconds - began))
            done = epoch
        if event.key in ("eval_stop", "eval_accuracy"):
            began = event.seconds
    rates = [rate for rate in rates if rate > 0]
    return statistics.median(rates[1:] if len(rates) > 2 else rates) if rates else None
