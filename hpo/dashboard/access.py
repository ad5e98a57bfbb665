"""The functions that the server passes to the dashboard, so that neither imports the other."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import Request, Response

from hpo.extrapolation.inference.posterior import Posterior
from hpo.runs.results import StudyForecast, StudyResult
from storage.records import CalibrationRow, Study
from storage.store import Store


@dataclass(frozen=True)
class PageAccess:
    """The functions that the server provides; ``reader`` is a dependency that admits callers who may read.

    The other functions may raise the server's errors.
    ``study(request, who, name)`` returns the study named in the path. ``laws(request, study)`` and
    ``forecast(request, study, batch)`` may take seconds, and raise :class:`EvidenceError` if no trial has a result.
    ``result(request, study)`` returns the study without fitting laws.
    ``kept(request, study, what, make)`` returns the JSON answer stored for the study's current state, or the result
    of ``make``.
    ``compute(request, who, work)`` runs slow work in a thread, one at a time for each user.
    ``calibration(request, who)`` returns the launched plans that the caller may see.
    """

    reader: Callable[..., Any]
    store: Callable[[Request], Store]
    study: Callable[[Request, Any, str], Study]
    laws: Callable[[Request, Study], tuple[StudyResult, Posterior]]
    forecast: Callable[[Request, Study, int], StudyForecast]
    result: Callable[[Request, Study], StudyResult]
    kept: Callable[[Request, Study, str, Callable[[], bytes | None]], bytes | None]
    compute: Callable[[Request, Any, Callable[[], Response]], Awaitable[Response]]
    calibration: Callable[[Request, Any], Sequence[CalibrationRow]]
