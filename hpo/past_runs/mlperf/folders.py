"""Reads folders of MLPerf results: ``SUBMITTER/results/SYSTEM[/strong|weak]/BENCHMARK/result_N.txt`` with
``SUBMITTER/systems/SYSTEM.json`` beside them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from hpo.errors import EvidenceError
from hpo.past_runs.mlperf.log import MLPerfLoggedRun, read_log
from hpo.past_runs.mlperf.settings import settings_of_mlperf_run
from search_spaces.settings import TrainingSettings
from storage.figures import OUTCOME_FIGURES, PLAN_FIGURES, figures_fault

_SEEDS = 2**63  # some submitters' seeds do not fit in a signed column
_ROUND = re.compile(r"(training|hpc)_results_(v\d+\.\d+)")


@dataclass(frozen=True)
class MLPerfBenchmark:
    """An MLPerf benchmark as a workload, a metric and its threshold."""

    workload: str
    metric: str
    threshold: float


BENCHMARKS = {
    "resnet": MLPerfBenchmark("resnet", "top1", 0.759),
    "deepcam": MLPerfBenchmark("segmentation", "iou", 0.82),
}
EARLIER_THRESHOLDS = {("training_v0.5", "resnet"): 0.749}


@dataclass(frozen=True)
class SubmittedRun:
    """One run in a result folder: where it ran, its settings and its log."""

    path: Path
    round: str
    submitter: str
    system: str
    benchmark: str
    division: str
    nodes: int
    accelerators: int
    global_batch_size: int
    seed: int
    settings: TrainingSettings
    run: MLPerfLoggedRun

    @property
    def source(self) -> str:
        """The outcome's origin: unique, and the same on every machine."""
        scaling = [part for part in self.path.parts[-3:-1] if part in ("strong", "weak")]
        parts = [self.round, self.submitter, self.system, *scaling, self.benchmark, self.path.stem]
        return "MLPerf " + "/".join(part for part in parts if part)

    @property
    def threshold(self) -> float:
        """The threshold of the target metric in the round."""
        return EARLIER_THRESHOLDS.get(
            (self.round, self.benchmark), BENCHMARKS[self.benchmark].threshold
        )


def results_in(path: Path, round_name: str | None = None) -> Iterator[SubmittedRun | EvidenceError]:
    """Yield every result under a folder, by path; yield (not raise) an error for each unreadable result.

    Raises :class:`EvidenceError` if there are no results. Benchmarks without a workload in this project are left out.
    """
    logs = sorted(path.rglob("result_*.txt")) if path.is_dir() else [path] if path.is_file() else []
    if not logs:
        raise EvidenceError(
            f"{path} holds no result_*.txt: give the folder of a round, a submitter or a benchmark, "
            "as in github.com/mlcommons/training_results_v2.1"
        )
    for log in logs:
        if log.parent.name in BENCHMARKS:
            try:
                yield _result(log, round_name)
            except EvidenceError as error:
                yield error if str(log) in str(error) else EvidenceError(f"{log}: {error}")
            except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
                yield EvidenceError(
                    f"{log}: a value in the log is not of the kind that its key needs ({error}); correct the line or "
                    "drop the file"
                )


def _result(log: Path, round_name: str | None) -> SubmittedRun:
    parts = log.resolve().parts
    if "results" not in parts[1:-3]:
        raise EvidenceError(f"{log} does not lie in a folder SUBMITTER/results/SYSTEM/BENCHMARK")
    place = max(index for index, part in enumerate(parts[:-3]) if part == "results")
    submitter, system = parts[place - 1], parts[place + 1]
    description = _description(Path(*parts[:place]) / "systems" / f"{system}.json")
    run = read_log(log)
    batch = run.whole("global_batch_size")
    if batch is None or batch < 1:
        raise EvidenceError("the log has no global_batch_size")
    per_node = (
        run.whole("accelerators_per_node") or _whole(description, "accelerators_per_node") or 1
    )
    nodes = run.whole("number_of_nodes") or _whole(description, "number_of_nodes") or 1
    accelerators = run.whole("number_of_ranks") or nodes * per_node
    nodes = max(1, -(-accelerators // per_node))
    sizes = SimpleNamespace(nodes=nodes, workers=accelerators, global_batch_size=batch)
    if fault := figures_fault(PLAN_FIGURES, sizes) or figures_fault(OUTCOME_FIGURES, run):
        raise EvidenceError(fault)
    return SubmittedRun(
        path=log,
        round=round_name or _round_of(log),
        submitter=submitter,
        system=system,
        benchmark=run.benchmark,
        division=str(
            run.values.get("submission_division") or description.get("division") or "closed"
        ).lower(),
        nodes=nodes,
        accelerators=accelerators,
        global_batch_size=batch,
        seed=(run.whole("seed") or 0) % _SEEDS,
        settings=settings_of_mlperf_run(run, workers=accelerators),
        run=run,
    )


def _description(path: Path) -> dict[str, Any]:
    """Return a system's description; empty if there is none, because logs of newer rounds suffice without it."""
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8", errors="replace"))
    except ValueError as error:
        raise EvidenceError(f"{path}: a system description must be JSON, but: {error}") from error
    return found if isinstance(found, dict) else {}


def _whole(description: dict[str, Any], key: str) -> int | None:
    digits = re.match(r"\s*(\d+)", str(description.get(key, "")))
    return int(digits[1]) or None if digits else None


def _round_of(log: Path) -> str:
    found = _ROUND.search(str(log.resolve()))
    return f"{found[1]}_{found[2]}" if found else ""
