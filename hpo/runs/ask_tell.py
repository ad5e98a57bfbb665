"""Ask and tell on the user's own storage: the Python interface without a server."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from pathlib import Path

from hpo.ask_and_tell.messages import LEASE_SECONDS, Asked, ReportVerdict
from hpo.ask_and_tell.trial import AskTell
from hpo.errors import StorageUnavailableError, TuningError
from hpo.runs.ask_tell_study import AskTellStudy
from hpo.runs.lease import lease_holder_name
from hpo.runs.repository import DEFAULT_STORAGE, enter_study, open_store
from hpo.study.jobs import search_path
from hpo.study.spec import StudySpec, load_study
from storage.errors import Conflict, StoreError
from trainers.report import ConvergencePoint, TrainingOutcome


class _LocalChannel:
    """A study in this process, as a :class:`hpo.ask_and_tell.messages.Channel`."""

    def __init__(self, study: AskTellStudy) -> None:
        self._study = study

    def ask(self, key: str, holder: str, lease_seconds: float) -> Asked:
        """See :class:`Channel`."""
        try:
            return self._study.ask(key, holder, lease_seconds)
        except Conflict as error:
            raise TuningError(str(error)) from error
        except StoreError as error:
            raise StorageUnavailableError(str(error)) from error

    def report(
        self, number: int, key: str, points: Sequence[ConvergencePoint], lease_seconds: float
    ) -> ReportVerdict:
        """See :class:`Channel`."""
        return self._study.report(number, key, points, lease_seconds)

    def end(
        self,
        number: int,
        key: str,
        points: Sequence[ConvergencePoint],
        *,
        outcome: TrainingOutcome | None,
        state: str | None,
        reason: str,
    ) -> str:
        """See :class:`Channel`."""
        return str(
            self._study.end(number, key, points, outcome=outcome, state=state, reason=reason).state
        )

    def release(self, number: int, key: str) -> None:
        """See :class:`Channel`."""
        self._study.release(number, key)


def ask_tell(
    spec: StudySpec | str | Path,
    storage: str = DEFAULT_STORAGE,
    *,
    lease_seconds: float = LEASE_SECONDS,
) -> AskTell:
    """Open a study whose trials this process asks for, trains in its own loop, and reports.

    ::

        with hpo.ask_tell("study.yaml") as study:
            while (trial := study.ask()) is not None:
                with trial:
                    for epoch, top1 in my_training(trial.settings, trial.global_batch_size, trial.seed):
                        if not trial.report(epochs=epoch, metric=top1, steps=...):
                            break

    The trials are the same as those of ``hpo run``, with the ladder, sampler, repetitions, stopping rules and budget of
    the study. Any number of threads and processes may ask at once. A trial whose process dies is handed out again once
    its lease of ``lease_seconds`` has expired. Close the study after use, or use it as a context manager. Raises
    :class:`SpecError` for an invalid study, and :class:`TuningError` if a worker runs the study.
    """
    spec = spec if isinstance(spec, StudySpec) else load_study(spec)
    with contextlib.ExitStack() as stack:
        store = stack.enter_context(open_store(storage))
        study = enter_study(store, spec)
        store.update_spec(study.id, spec.text, search_path(spec), spec.budget.asked_trials)
        asked = AskTellStudy(store, store.study_by_id(study.id))
        asked.reopen()
        opened = stack.pop_all()
    return AskTell(
        _LocalChannel(asked),
        f"{lease_holder_name()}:{threading.get_ident()}",
        lease_seconds=lease_seconds,
        close=opened.close,
    )
