"""A server's studies in ask-and-tell mode, each created when it is first requested."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable

from hpo.runs.ask_tell_study import AskTellStudy
from storage.records import Study
from storage.store import Store

MOST_STUDIES = 100
"""Number of AskTellStudy objects in memory; an evicted object is rebuilt from the database when it is needed."""


class AskTellStudies:
    """Thread-safe cache of ask-and-tell studies by id. It rebuilds a study whose file has changed."""

    def __init__(self, open_store: Callable[[], Store]) -> None:
        self._open_store = open_store
        self._kept: OrderedDict[int, AskTellStudy] = OrderedDict()
        self._making: dict[int, threading.Lock] = {}
        self._lock = threading.Lock()

    def of(self, study: Study) -> AskTellStudy:
        """Return the study in ask-and-tell mode. Concurrent requests wait while the first one creates it."""
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
