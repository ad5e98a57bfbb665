"""The sweeps on the ladder and the races at the target batches, run by the service itself."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import hpo
from benchmarks.real_panel.cases import Case
from benchmarks.real_panel.recommendations import with_race_at
from hpo.errors import EvidenceError
from hpo.runs.results import StudyResult, epochs_trained
from storage.records import StudyState


def run(cases: Sequence[Case], folder: Path, most: int | None = None) -> None:
    """Run or continue every sweep, ``most`` per case: the first of each case, then the second of each, and so on."""
    specs = [list(case.specs())[:most] for case in cases]
    for number in range(max(map(len, specs), default=0)):
        for spec in (each[number] for each in specs if number < len(each)):
            if spec.name not in finished(folder):
                result = hpo.run_study(spec, storage(folder), folder=folder / "work")
                spent = epochs_trained(result.trials)
                print(f"{spec.name}: {len(result.trials)} trials, {spent:.4g} epochs", flush=True)


def race(cases: Sequence[Case], folder: Path) -> None:
    """Run or continue the race of every finished sweep at every target batch; each uses only its own batch."""
    for case in cases:
        for result in read(case, folder):
            for batch in case.batches:
                if not with_race_at(result, batch).raced:
                    try:
                        hpo.race(with_race_at(result, batch), batch, folder=folder / "work")
                    except EvidenceError as error:
                        print(f"{result.spec.name}: {error}", flush=True)


def read(case: Case, folder: Path) -> list[StudyResult]:
    """Return the finished sweeps of a case."""
    done = finished(folder)
    return [
        hpo.read_study(spec.name, storage(folder)) for spec in case.specs() if spec.name in done
    ]


def finished(folder: Path) -> set[str]:
    """Return the names of the complete sweeps."""
    if not (folder / "sweeps.db").exists():
        return set()
    return {
        study.name for study in hpo.studies(storage(folder)) if study.state is StudyState.FINISHED
    }


def storage(folder: Path) -> str:
    """Return the database of the sweeps."""
    return f"sqlite:///{folder / 'sweeps.db'}"
