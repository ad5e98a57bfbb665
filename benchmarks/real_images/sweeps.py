"""The sweeps on the ladder, run by the service itself, and its recommendations after them."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import hpo
from benchmarks.real_images.cases import Case
from hpo.runs.results import StudyForecast, StudyResult, epochs_trained


@dataclass(frozen=True)
class Sweep:
    """A finished sweep and its forecast at the target batch; ``samples`` were spent on it."""

    result: StudyResult
    forecast: StudyForecast

    @property
    def name(self) -> str:
        """The study's name."""
        return self.result.spec.name

    @property
    def samples(self) -> float:
        """Samples of all its trials, including those that diverged or were stopped."""
        return samples_of(self.result, len(self.result.trials))

    @property
    def rate(self) -> float:
        """The recommended learning rate, rounded as it is trained."""
        return rounded(self.forecast)


def run(case: Case, samplers: Sequence[str], folder: Path) -> None:
    """Run or continue every sweep of the samplers, one trial at a time."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False)
    try:
        for spec in case.specs(samplers):
            result = hpo.run_study(spec, _storage(folder), folder=folder / "work")
            spent = samples_of(result, len(result.trials))
            print(f"{spec.name}: {len(result.trials)} trials, {spent:.4g} samples", flush=True)
    finally:
        ray.shutdown()


def read(case: Case, folder: Path) -> list[Sweep]:
    """Return the finished sweeps of a case with their forecasts, recomputed from the stored trials."""
    names = {study.name for study in hpo.studies(_storage(folder))}
    results = [
        hpo.read_study(spec.name, _storage(folder)) for spec in case.specs() if spec.name in names
    ]
    return [
        Sweep(result, hpo.forecast(result, case.batch)) for result in results if result.complete
    ]


def after(sweep: Sweep, trials: int) -> StudyForecast | None:
    """Return the forecast after the first ``trials`` trials; None if none of them had reached the target."""
    earlier = dataclasses.replace(sweep.result, trials=sweep.result.trials[:trials])
    try:
        return hpo.forecast(earlier, sweep.forecast.global_batch_size)
    except hpo.EvidenceError:
        return None


def rounded(forecast: StudyForecast) -> float:
    """Return the recommended learning rate to three digits."""
    return float(f"{forecast.settings.learning_rate:.3g}")


def samples_of(result: StudyResult, trials: int) -> float:
    """Return the samples that the first ``trials`` trials were trained on."""
    return epochs_trained(result.trials[:trials]) * result.train_samples


def _storage(folder: Path) -> str:
    return f"sqlite:///{folder / 'real_images.db'}"
