"""Deletes or renames a study that is not running, or queues its failed trials again."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hpo.errors import TuningError
from hpo.runs.lease import is_lease_holder_gone, take_lease
from hpo.runs.repository import open_store, stored_spec
from hpo.study.jobs import agent_folder
from storage.errors import Conflict
from storage.records import Study, StudyState, Trial
from storage.store import Store


@dataclass(frozen=True)
class DeletedStudy:
    """The result of deleting a study; ``kept`` lists the folders of its plans that were not deleted."""

    name: str
    trials: int
    forecasts: int
    plans: int
    outcomes: int
    folders: tuple[str, ...]
    kept: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)


def delete_study(name: str, storage: str, *, folder: Path | str | None = None) -> DeletedStudy:
    """Remove a study from a storage with its trials, curves, forecasts, plans, outcomes and events.

    ``folder`` is the folder in which the study was run: its checkpoints, its programs' files and the plans there are
    removed, and plans written elsewhere are kept. Raises :class:`StudyNotFoundError`, and :class:`TuningError` while
    the study is running.
    """
    with _resting(storage, name) as (store, study):
        trials, forecasts, plans = (
            len(store.trials(study.id)),
            len(store.forecasts(study.id)),
            store.plans(study.id),
        )
        outcomes = sum(len(store.outcomes(plan.id)) for plan in plans)
        store.delete_study(study.id)
    written = {Path(plan.directory) for plan in plans if plan.directory}
    gone = []
    if folder is not None:
        place = Path(folder).absolute()
        of_agents = agent_folder(place, name)
        own = [
            *(place / part / str(study.id) for part in ("checkpoints", "trials")),
            of_agents,
            place / f"study-{study.id}.lock",
            *(path for path in written if _is_inside(path, place / "plans")),
        ]
        if (
            not name.isdecimal()
        ):  # agents of earlier versions; a number is the folder of the study with that id
            own.append(place / "trials" / of_agents.name)
        gone = [path for path in own if path.exists() and _is_inside(path, path.parent)]
        for path in gone:
            _remove(path)
    kept = sorted(str(path) for path in written.difference(gone) if path.is_dir())
    return DeletedStudy(
        name,
        trials,
        forecasts,
        len(plans),
        outcomes,
        tuple(str(path) for path in gone if path.suffix != ".lock"),
        tuple(kept),
    )


def rename_study(name: str, new: str, storage: str) -> Study:
    """Rename a study in a storage and in its stored file; its old name becomes available again.

    Raises :class:`StudyNotFoundError`, :class:`SpecError` for an invalid name, and :class:`TuningError` if the name is
    taken or the study is running.
    """
    with _resting(storage, name) as (store, study):
        renamed = store.rename_study(study.id, new, renamed_study_text(study, new))
        store.add_event(study.id, "renamed", f"{name!r} is now named {new!r}")
        return renamed


def renamed_study_text(study: Study, new: str) -> str:
    """Return a stored study's file with the name replaced; raise :class:`SpecError` for an invalid name."""
    return stored_spec(study).renamed(new).text


def starts_otherwise(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    """Return whether the second of two study files, given as plain values, starts a different program, or the same one
    in a different way.
    """
    return _start(before) != _start(after)


def retry_message(again: Sequence[Trial]) -> str:
    """Return the message about trials that were queued again."""
    count = "a trial" if len(again) == 1 else f"{len(again)} trials"
    return f"{count} that failed wait{'s' if len(again) == 1 else ''} to be trained again"


def _start(spec: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in (spec.get("program") or {}).items() if key != "cost"}


@contextlib.contextmanager
def _resting(storage: str, name: str) -> Iterator[tuple[Store, Study]]:
    """Open a study that is not running; a study whose process on this machine has ended counts as not running."""
    with open_store(storage, create=False) as store:
        study = store.study(name)
        if study.lease_worker is not None and is_lease_holder_gone(study.lease_worker):
            store.release_study(
                take_lease(store, study), StudyState.INTERRUPTED, "its process has ended"
            )
        elif study.state is StudyState.RUNNING and study.for_agents and not _trained(store, study):
            store.set_study_state(
                study.id, StudyState.INTERRUPTED, "its trials are not being trained any more"
            )
        try:
            yield store, study
        except Conflict as error:
            raise TuningError(str(error)) from error


def _trained(store: Store, study: Study) -> bool:
    """Return whether a client holds a trial of an ask-and-tell study."""
    now = datetime.now(UTC)
    return any(held.expires_at > now for held in store.leased_trials(study.id))


def _is_inside(path: Path, parent: Path) -> bool:
    """Return whether a path, with its links and dots resolved, lies below ``parent`` and is not ``parent`` itself."""
    return parent.resolve() in path.resolve().parents


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
