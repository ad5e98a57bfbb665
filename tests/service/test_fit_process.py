"""Fits and forecasts in separate processes, and stored fits, give the same results as here; refusals too."""

from __future__ import annotations

import base64
import dataclasses
import io
from pathlib import Path

import numpy as np
import pytest

from hpo.errors import EvidenceError
from hpo.extrapolation.inference.posterior import Posterior
from hpo.runs import fits
from hpo.runs.results import StudyResult
from hpo.runs.study_forecast import evidence_of_study, fit_posterior, forecast
from hpo.service import fit_process
from tests.dashboard.dashboard_samples import full_view

pytestmark = pytest.mark.fit


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> StudyResult:
    return full_view(tmp_path_factory.mktemp("view")).result


@pytest.fixture(scope="module")
def fitted(result: StudyResult) -> Posterior:
    return fit_posterior(result, [256])


@pytest.mark.slow  # every forecast of the service comes from this process
def test_the_laws_are_the_same(result: StudyResult, fitted: Posterior) -> None:
    other = fit_process.fit(result, [256])
    assert fitted.values.keys() == other.values.keys()
    for name, values in fitted.values.items():
        assert np.array_equal(values, other.values[name]), name


def test_a_stored_fit_and_a_forecast_of_the_processes_are_the_same(
    result: StudyResult, fitted: Posterior
) -> None:
    again = fits.unpack_fit(fits.pack_fit(fitted), evidence_of_study(result, [256]))
    assert again is not None and again.note == fitted.note
    assert type(again.model.descent) is type(fitted.model.descent)
    assert again.values.keys() == fitted.values.keys()
    assert all(np.array_equal(fitted.values[name], again.values[name]) for name in fitted.values)
    assert np.array_equal(fitted.residuals, again.residuals)
    made = forecast(result, 512, fitted)
    assert made.to_dict() == fit_process.forecast(result, 512, again, ()).to_dict()


def test_other_evidence_has_another_fingerprint(result: StudyResult) -> None:
    less = dataclasses.replace(result, trials=result.trials[: len(result.trials) // 2])
    prints = [
        fits.fit_fingerprint(evidence_of_study(each, [256])) for each in (result, result, less)
    ]
    assert prints[0] == prints[1] != prints[2]


class Marks:
    """Makes a file where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return open, (str(self.path), "w")


def test_what_is_no_fit_is_none_and_a_pickle_is_not_run(
    tmp_path: Path, result: StudyResult
) -> None:
    file = io.BytesIO()
    np.savez(file, allow_pickle=True, **{"=model": np.array([Marks(tmp_path / "mark")], object)})
    evidence = evidence_of_study(result, [256])
    for content in ("", "no base64 !", "AAAA", base64.b64encode(file.getvalue()).decode()):
        assert fits.unpack_fit(content, evidence) is None
    assert not (tmp_path / "mark").exists()


def test_a_refusal_crosses_over(result: StudyResult) -> None:
    nothing = dataclasses.replace(result, trials=(), runs=())
    with pytest.raises(EvidenceError) as here:
        fit_posterior(nothing, [])
    with pytest.raises(EvidenceError) as there:
        fit_process.fit(nothing, [])
    assert str(here.value) == str(there.value)
