"""All data shown for one study in the report and on its live page, read and fitted once."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

from hpo.errors import EvidenceError
from hpo.extrapolation.inference.posterior import Posterior
from hpo.runs import repository
from hpo.runs.repository import open_store
from hpo.runs.results import StudyResult
from hpo.runs.study_forecast import fit_posterior, with_forecast
from storage.records import CalibrationRow, Convergence, Trial
from storage.store import Store

MOST_CURVES = 400


@dataclass(frozen=True, eq=False)
class StudyView:
    """A study with its forecast, the laws behind it, the convergence of its trials, and the accuracy of its forecasts.

    ``posterior`` is None if no trial has reached the target; ``storage`` is the URL without a password.
    """

    result: StudyResult
    posterior: Posterior | None
    convergence: Convergence
    calibration: tuple[CalibrationRow, ...]
    storage: str


def load_study_view(name: str, storage: str) -> StudyView:
    """Read a study and fit its laws; raise :class:`StudyNotFoundError` if the storage has no such study."""
    with open_store(storage, create=False) as store:
        result = repository.read_result(store, name, storage)
        fitted = None
        if result.answered:
            with contextlib.suppress(
                EvidenceError
            ):  # too few trials for a law; the trials are still shown
                fitted = fit_posterior(result)
        return make_study_view(store, result, fitted, store.url)


def make_study_view(
    store: Store, result: StudyResult, posterior: Posterior | None, storage: str
) -> StudyView:
    """Return the data of a study for its page, with the laws fitted to it, or None for the laws."""
    convergence = store.convergence([trial.id for trial in shown_curve_trials(result.trials)])
    rows = tuple(store.calibration(result.study.id))
    if posterior is not None:
        try:
            result = with_forecast(result, posterior)
        except EvidenceError:
            result, posterior = dataclasses.replace(result, forecast=None), None
    elif result.answered:
        result = dataclasses.replace(result, forecast=None)
    return StudyView(result, posterior, convergence, rows, storage)


def shown_curve_trials(trials: Sequence[Trial], most: int = MOST_CURVES) -> list[Trial]:
    """Return the trials whose learning curves are shown: all, or, if there are too many, the fastest to the target."""
    order = sorted(trials, key=lambda trial: (trial.epochs_to_target or math.inf, trial.number))
    return sorted(order[:most], key=lambda trial: trial.number)
