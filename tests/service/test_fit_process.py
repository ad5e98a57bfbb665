"""A fit in a process of its own gives what a fit in this one gives, its refusals too."""

from __future__ import annotations

import base64
import dataclasses
import io
from pathlib import Path

import numpy as np
import pytest

from hpo.errors import EvidenceError
from hpo.runs import fits
from hpo.runs.forecasts import evidence_of, fit_posterior, forecast
from hpo.service import fit_process
from tests.dashboard.dashboard_samples import full_view


def test_the_laws_are_the_same(tmp_path: Path) -> None:
    result = full_view(tmp_path).result
    own, other = fit_posterior(result, [256]), fit_process.fit(result, [256])
    assert own.values.keys() == other.values.keys()
    for name, values in own.values.items():
        assert np.array_equal(values, other.values[name]), name


def test_a_stored_fit_is_the_fit(tmp_path: Path) -> None:
    result = full_view(tmp_path).result
    made = fit_posterior(result, [256])
    again = fits.unpack(fits.pack(made), evidence_of(result, [256]))
    assert again is not None and again.note == made.note
    assert type(again.model.descent) is type(made.model.descent)
    assert again.values.keys() == made.values.keys()
    assert all(np.array_equal(made.values[name], again.values[name]) for name in made.values)
    assert np.array_equal(made.residuals, again.residuals)
    one, two = (forecast(result, 512, each).to_dict() for each in (made, again))
    assert one == two


@pytest.mark.parametrize("content", ["", "no base64 !", "AAAA"])
def test_what_is_no_fit_is_none(tmp_path: Path, content: str) -> None:
    assert fits.unpack(content, evidence_of(full_view(tmp_path).result, [256])) is None


def test_a_pickle_in_the_place_of_a_fit_is_not_run(tmp_path: Path) -> None:
    file = io.BytesIO()
    np.savez(file, allow_pickle=True, **{"=model": np.array([Marks(tmp_path / "mark")], object)})
    content = base64.b64encode(file.getvalue()).decode()
    assert fits.unpack(content, evidence_of(full_view(tmp_path).result, [256])) is None
    assert not (tmp_path / "mark").exists()


class Marks:
    """Makes a file where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return open, (str(self.path), "w")


def test_a_refusal_crosses_over(tmp_path: Path) -> None:
    nothing = dataclasses.replace(full_view(tmp_path).result, trials=(), runs=())
    with pytest.raises(EvidenceError) as here:
        fit_posterior(nothing, [])
    with pytest.raises(EvidenceError) as there:
        fit_process.fit(nothing, [])
    assert str(here.value) == str(there.value)
