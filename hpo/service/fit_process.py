"""Fits and forecasts in separate processes, because they hold the interpreter lock and would block the server.

A few persistent processes each run one computation after the other, so that a user who requests many has to wait
without slowing anyone else down. They end with the server.
"""

from __future__ import annotations

import dataclasses
import os
import threading
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any, TypeVar

from hpo.errors import EvidenceError
from hpo.runs import designs as study_designs
from hpo.runs import study_forecast
from hpo.runs.designs import Designs
from hpo.runs.results import StudyForecast, StudyResult
from hpo.service.logs import LOG
from trainers import lifeline

if TYPE_CHECKING:
    from hpo.runs.api import Posterior

PROCESSES = 2
NICE = 10
Found = TypeVar("Found")


class _Pool:
    """A pool of processes, which start on first use and are restarted if one was killed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pool: ProcessPoolExecutor | None = None
        self._ready: Future[int] | None = None

    def run(self, work: Callable[..., Found], *arguments: Any) -> Found:
        """Return the result of ``work``; if its process dies, do the work in this process."""
        try:
            return self._started().submit(work, *arguments).result()
        except (BrokenProcessPool, RuntimeError) as error:
            LOG.warning("the fit processes ended (%s); the server now runs fits itself", error)
            self.close()
            return work(*arguments)

    @property
    def warm(self) -> bool:
        """Return whether the processes have started; start them if not."""
        self._started()
        return self._ready is not None and self._ready.done() and not self._ready.cancelled()

    def close(self) -> None:
        """End the processes."""
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=False, cancel_futures=True)

    def _started(self) -> ProcessPoolExecutor:
        with self._lock:
            if self._pool is None:
                self._pool = ProcessPoolExecutor(
                    PROCESSES,
                    mp_context=get_context("spawn"),
                    initializer=_begin,
                    initargs=(lifeline.name_of_this_process(),),
                )
                self._ready = self._pool.submit(os.getpid)
            return self._pool


_pool = _Pool()
close = _pool.close


def fit(result: StudyResult, left_out: Collection[int]) -> Posterior:
    """Fit the laws of a study as :func:`hpo.runs.study_forecast.fit_posterior` does, with the same EvidenceError."""
    return _pool.run(_fit, result, tuple(left_out))


def forecast(
    result: StudyResult, batch: int, posterior: Posterior, budgets: Sequence[float]
) -> StudyForecast:
    """Make the forecast of :func:`hpo.runs.study_forecast.forecast`, with the same EvidenceError.

    A forecast takes a fraction of a second, but a process takes seconds to start: until one has started, the forecast
    runs in this process.
    """
    made = (
        _pool.run(_forecast, result, batch, posterior, tuple(budgets))
        if _pool.warm
        else _forecast(result, batch, posterior, budgets)
    )
    return dataclasses.replace(
        made, posterior=posterior, source=dataclasses.replace(result, forecast=None)
    )


def designs(result: StudyResult, made: StudyForecast) -> Designs:
    """Return the result of :func:`hpo.runs.designs.designs`, or raise its EvidenceError.

    Like a forecast, it runs in this process until another one has started.
    """
    plain = dataclasses.replace(made, source=None)
    return (
        _pool.run(_designs, result, plain) if _pool.warm else study_designs.designs(result, plain)
    )


def _begin(server: str) -> None:
    os.nice(NICE)
    os.environ[lifeline.LAUNCHER] = server
    lifeline.end_with_launcher()


def _fit(result: StudyResult, left_out: Collection[int]) -> Posterior:
    try:
        return study_forecast.fit_posterior(result, left_out)
    except EvidenceError as error:
        raise EvidenceError(str(error)) from None


def _designs(result: StudyResult, made: StudyForecast) -> Designs:
    try:
        return study_designs.designs(result, made)
    except EvidenceError as error:
        raise EvidenceError(str(error)) from None


def _forecast(
    result: StudyResult, batch: int, posterior: Posterior, budgets: Sequence[float]
) -> StudyForecast:
    made = study_forecast.forecast(result, batch, posterior, budgets=budgets)
    return dataclasses.replace(made, posterior=None, source=None)  # the server has them already
