"""The studies of a server that are in ask-and-tell mode, each made when it is first asked."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable

from hpo.runs.ask_tell_study import AskTellStudy
from storage.records import Study
from storage.store import Store

MOST_STUDIES = 100
"""AskTellStudies that are kept; one that was dropped is made anew from the database."""


class AskTellStudies:
    """Ask-and-tell studies by id; threads may share them. A study whose file has changed gets a new one."""

    def __init__(self, open_store: Callable[[], Store]) -> None:
        self._open_store = open_store
        self._kept: OrderedDict[int, AskTellStudy] = OrderedDict()
        self._making: dict[int, threading.Lock] = {}
        self._lock = threading.Lock()

    def of(self, study: Study) -> AskTellStudy:
        """The study in ask-and-tell mode. Requests that need a new one wait for the one that makes it."""
        with self._lock:
            making = self._making.setdefault(study.id, threading.Lock())
        with making:
            asked = self._kept.get(study.id)
            if asked is None or not _same(asked.study, study):
                asked = AskTellStudy(self._open_store(), study)
            with self._lock:
                self._kept[study.id] = asked
                self._kept.move_to_end(study.id)
                while len(self._kept) > MOST_STUDIES:
                    dropped, _ = self._kept.popitem(last=False)
                    self._making.pop(dropped, None)
        return asked


def _same(one: Study, other: Study) -> bool:
    return (one.spec, one.created_at, one.max_samples, one.max_accelerator_hours) == (
        other.spec,
        other.created_at,
        other.max_samples,
        other.max_accelerator_hours,
    )
