"""Callables that the server hands to the dashboard, so that neither imports the other."""

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
class Access:
    """``reader`` is a dependency that admits those who may read; the others may raise the server's answer.

    ``study(request, who, name)`` is the study that the address means. ``laws(request, study)`` and
    ``forecast(request, study, batch)`` may take seconds, and raise :class:`EvidenceError` where the trials say nothing.
    ``result(request, study)`` is the study without a fit. ``kept(request, study, what, make)`` is an answer in JSON
    that was kept for the study as it is, else as ``make`` makes it.
    ``compute(request, who, work)`` does what may take seconds in a thread, where each user has one at a time.
    ``calibration(request, who)`` holds the launched plans that may be seen.
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
