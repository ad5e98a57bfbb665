"""The desks of a server: one for every study whose trials are asked for, made when it is first needed."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable

from hpo.runs.desk import Desk
from storage.records import Study
from storage.store import Store

MOST_DESKS = 100
"""Desks that are kept; one that was dropped is made anew from the database."""


class Desks:
    """Desks by study; threads may share them. A study whose file has changed gets a new one."""

    def __init__(self, open_store: Callable[[], Store]) -> None:
        self._open_store = open_store
        self._desks: OrderedDict[int, Desk] = OrderedDict()
        self._making: dict[int, threading.Lock] = {}
        self._lock = threading.Lock()

    def of(self, study: Study) -> Desk:
        """The desk of a study. Several requests that need a new one wait for the one that makes it."""
        with self._lock:
            making = self._making.setdefault(study.id, threading.Lock())
        with making:
            desk = self._desks.get(study.id)
            if desk is None or not _same(desk.study, study):
                desk = Desk(self._open_store(), study)
            with self._lock:
                self._desks[study.id] = desk
                self._desks.move_to_end(study.id)
                while len(self._desks) > MOST_DESKS:
                    dropped, _ = self._desks.popitem(last=False)
                    self._making.pop(dropped, None)
        return desk


def _same(one: Study, other: Study) -> bool:
    return (one.spec, one.created_at, one.max_samples, one.max_accelerator_hours) == (
        other.spec,
        other.created_at,
        other.max_samples,
        other.max_accelerator_hours,
    )
