"""A cache of forecasts: laws are fitted once for each set of trials of a study, then cached.

A fit takes seconds of processor time, so concurrent requests for the same study share its result. The
response with the laws on a study's page is also stored in the database, so that after a restart the server needs
neither a fit nor a forecast for it.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import TYPE_CHECKING

from hpo.runs import repository
from hpo.runs.designs import Designs
from hpo.runs.fits import find_fit, keep_fit
from hpo.runs.results import StudyForecast, StudyResult
from hpo.runs.study_forecast import evidence_of_study
from hpo.service import fit_process
from hpo.service.study_facts import study_facts
from storage.errors import StoreError
from storage.records import Study
from storage.store import Store

if TYPE_CHECKING:
    from hpo.runs.api import Posterior

FORM = 5
"""Version of the stored answers; increase it whenever their content changes."""
LARGEST = 2_000_000
"""Maximum length of a stored answer, in characters."""
MOST_STUDIES = 16
MOST_FORECASTS = 256  # per state of a study


@dataclass
class FittedStudy:
    """A study, the laws fitted to it, and the forecasts that were made from them.

    For a batch size that was launched, the laws are fitted without its launches, so that the forecast can be compared
    with them.
    """

    result: StudyResult
    posteriors: dict[int | None, Posterior] = field(default_factory=dict)
    made: dict[Hashable, StudyForecast] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)


class ForecastCache:
    """Caches the fits of the most recently requested studies."""

    def __init__(self) -> None:
        self._fitted: OrderedDict[Hashable, FittedStudy] = OrderedDict()
        self._lock = threading.Lock()

    def remembered(
        self, store: Store, study: Study, batches: Sequence[int], budgets: Sequence[float]
    ) -> list[StudyForecast] | None:
        """Return the forecasts if all of them are cached, else None; never fits laws."""
        with self._lock:
            fitted = self._fitted.get(_state(store, study))
        found = [fitted.made.get((batch, *budgets)) for batch in batches] if fitted else []
        return [each for each in found if each] if found and all(found) else None

    def make(
        self, store: Store, study: Study, batches: Sequence[int], budgets: Sequence[float] = ()
    ) -> list[StudyForecast]:
        """Return the forecasts at these batch sizes; raise EvidenceError if that is impossible. May take seconds."""
        fitted = self.fitted(store, study)
        forecasts = []
        for batch in batches:
            key = (batch, *budgets)
            if key not in fitted.made:
                if len(fitted.made) >= MOST_FORECASTS:
                    fitted.made.clear()
                posterior = _posterior(store, fitted, batch)
                fitted.made[key] = fit_process.forecast(fitted.result, batch, posterior, budgets)
            forecasts.append(fitted.made[key])
        return forecasts

    def designs(self, store: Store, study: Study) -> Designs:
        """Return the study's possible designs for its full-scale batch; may raise EvidenceError and take seconds."""
        batch = study_facts(study.spec).full_scale_batch
        assert batch is not None
        (made,) = self.make(store, study, [batch])
        return fit_process.designs(self.fitted(store, study).result, made)

    def kept(
        self,
        store: Store,
        study: Study,
        what: str,
        make: Callable[[], bytes | None] = lambda: None,
    ) -> bytes | None:
        """Return the JSON answer stored in the database for the study's current state, or the result of ``make``.

        Results are stored; ``what`` distinguishes the answers of one study. If storing fails, the next
        request computes it again.
        """
        text = f"{FORM} {version('largebatch')} {what} {_state(store, study)}"
        key = hashlib.sha256(text.encode()).hexdigest()
        found = store.fit(study.id, key)
        if found is not None:
            return found.encode()
        made = make()
        if made is not None and len(made) <= LARGEST:
            with contextlib.suppress(StoreError):
                store.keep_fit(study.id, key, made.decode())
        return made

    def fitted(self, store: Store, study: Study) -> FittedStudy:
        """Return the study with the laws fitted to it."""
        state = _state(store, study)
        with self._lock:
            found = self._fitted.get(state)
            if found is not None:
                self._fitted.move_to_end(state)
                return found
        result = repository.read_result(store, study.name, store.url)
        made = FittedStudy(result)
        with self._lock:
            self._fitted[state] = made
            while len(self._fitted) > MOST_STUDIES:
                self._fitted.popitem(last=False)
        return made

    def laws(self, store: Store, study: Study) -> tuple[StudyResult, Posterior]:
        """Return a study and its laws without its full-scale launches; may raise EvidenceError and take seconds."""
        fitted = self.fitted(store, study)
        batch = study_facts(study.spec).full_scale_batch or 0
        return fitted.result, _posterior(store, fitted, batch)


def _posterior(store: Store, fitted: FittedStudy, batch: int) -> Posterior:
    launched = any(
        run.outcomes and run.plan.global_batch_size == batch for run in fitted.result.runs
    )
    left_out = batch if launched else None
    with fitted.lock:  # a page requests several figures at once: they wait for one fit
        if left_out not in fitted.posteriors:
            batches = [] if left_out is None else [left_out]
            evidence = evidence_of_study(fitted.result, batches)
            found = find_fit(store, fitted.result.study.id, evidence)
            if found is None:
                found = fit_process.fit(fitted.result, batches)
                keep_fit(store, fitted.result.study.id, found)
            fitted.posteriors[left_out] = found
        return fitted.posteriors[left_out]


def _state(store: Store, study: Study) -> Hashable:
    """Return the inputs of a forecast: the study's file, its finished trials, and the outcomes of earlier plans.

    The time of creation tells a study from a deleted one, whose id SQLite may give to the next study.
    """
    finished = tuple(
        sorted(
            (batch, str(state), count)
            for batch, states in store.counts(study.id).items()
            for state, count in states.items()
            if state.finished
        )
    )
    past = tuple((row.plan_id, row.runs, row.reached) for row in store.calibration())
    file = hashlib.sha256(f"{study.folder} {study.spec}".encode()).hexdigest()
    return study.id, study.created_at, file, finished, past
