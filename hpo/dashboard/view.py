"""All that the pages of one study show, read and fitted once: for the report, and for a page that refreshes."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from hpo import keeping
from hpo.errors import EvidenceError
from hpo.extrapolation.posterior import Posterior
from hpo.forecasting import fit_posterior, with_forecast
from hpo.keeping import open_store
from hpo.results import StudyResult
from storage.records import CalibrationRow, Convergence, TrialState


@dataclass(frozen=True, eq=False)
class StudyView:
    """A study with its forecast, the laws behind it, the convergence of its trials, and how its forecasts did.

    ``posterior`` is None where no trial has reached the target; ``storage`` is the URL without a password.
    """

    result: StudyResult
    posterior: Posterior | None
    convergence: Convergence
    calibration: tuple[CalibrationRow, ...]
    storage: str


def load_view(name: str, storage: str) -> StudyView:
    """Read a study and fit its laws; :class:`StudyNotFoundError` if the storage has none of this name."""
    with open_store(storage) as store:
        result = keeping.read_result(store, name, storage)
        convergence = store.convergence([trial.id for trial in result.trials])
        rows, url = tuple(store.calibration(result.study.id)), store.url
    fitted = None
    if any(trial.state is TrialState.REACHED for trial in result.trials):
        try:
            fitted = fit_posterior(result)
            result = with_forecast(result, fitted)
        except EvidenceError:       # too little for a law; the trials are shown all the same
            result = dataclasses.replace(result, forecast=None)
    return StudyView(result, fitted, convergence, rows, url)
