"""A fit in a process of its own gives what a fit in this one gives, its refusals too."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from hpo.errors import EvidenceError
from hpo.runs.forecasts import fit_posterior
from hpo.service import fit_process
from tests.dashboard.dashboard_samples import full_view


def test_the_laws_are_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = full_view(tmp_path).result
    monkeypatch.setattr(fit_process, "FROM_TRIALS", 0)
    own, other = fit_posterior(result, [256]), fit_process.fit(result, [256])
    assert own.values.keys() == other.values.keys()
    for name, values in own.values.items():
        assert np.array_equal(values, other.values[name]), name


def test_a_refusal_crosses_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = dataclasses.replace(full_view(tmp_path).result, trials=(), runs=())
    monkeypatch.setattr(fit_process, "FROM_TRIALS", 0)
    with pytest.raises(EvidenceError) as here:
        fit_posterior(nothing, [])
    with pytest.raises(EvidenceError) as there:
        fit_process.fit(nothing, [])
    assert str(here.value) == str(there.value)
