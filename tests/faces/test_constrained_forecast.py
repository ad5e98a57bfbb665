"""The forecast of a study with constraints, in Python, text, JSON and on the page."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

import hpo
from hpo.cli.output.tables import show_study, show_trials, trial_rows
from hpo.dashboard import page
from hpo.runs.forecasts import with_forecast
from hpo.runs.plans import law_of
from trainers.job import Constraint

pytestmark = pytest.mark.fit


def held(study: Any, *constraints: Constraint) -> hpo.StudyResult:
    """The study of the fixture whose trainings hold 1 GB and 10 MB a sample, and lose top5 with the rate."""
    result = study.result
    spec = result.spec.model_copy(update={"constraints": constraints})
    trials = tuple(
        dataclasses.replace(
            trial,
            memory_bytes=round(1e9 + 1e7 * trial.global_batch_size),
            measures={"top5": 0.99 - 2.0 * trial.settings["learning_rate"]},
        )
        for trial in result.trials
    )
    return dataclasses.replace(result, spec=spec, trials=trials)


def test_a_batch_whose_memory_does_not_fit_is_no_recommendation(study: Any) -> None:
    result = held(study, Constraint("memory_gb", 1.4))
    fits, full = hpo.forecast(result, 32), hpo.forecast(result, 64)
    assert fits.numbers.recommended and "No recommendation" not in fits.reason
    assert not full.numbers.recommended
    assert full.trust == "low"
    assert full.reason.startswith("No recommendation at 64: memory_gb is expected to be 1.64")
    assert full.to_dict()["recommended"] is False
    (told,) = full.to_dict()["constraints"]
    assert told["at_most"] == 1.4 and told["expected"]["median"] == pytest.approx(1.64, rel=0.01)
    free = hpo.forecast(held(study), 64)
    assert "constraints" not in free.to_dict()
    assert full.settings.learning_rate == pytest.approx(free.settings.learning_rate, rel=0.01)
    assert full.epochs_to_target.median == pytest.approx(free.epochs_to_target.median, rel=0.01)


def test_a_plan_whose_batch_is_free_takes_none_that_breaks_a_constraint(study: Any) -> None:
    """1 GB and 10 MB a sample: 1.4 GB are kept by batches below 40, where the cheapest plan would take more."""
    free = hpo.plan_study(held(study), workers=1, global_batch_size="best")[1]
    plan = hpo.plan_study(
        held(study, Constraint("memory_gb", 1.4)), workers=1, global_batch_size="best"
    )[1]
    law = law_of(hpo.forecast(held(study, Constraint("memory_gb", 1.4)), 32))
    assert law.supported[0] == 4 and 30 <= law.supported[1] <= 40
    assert plan.global_batch_size <= 40
    assert free.global_batch_size <= law_of(hpo.forecast(held(study), 32)).supported[1] == 256


def test_settings_that_break_a_constraint_are_no_recommendation(study: Any) -> None:
    """The best rate at 64 is about 0.32, where top5 is 0.35; 0.85 is kept by rates up to 0.07."""
    free = hpo.forecast(held(study), 64).settings.learning_rate
    made = hpo.forecast(held(study, Constraint("top5", 0.6, at_most=False)), 64)
    assert made.settings.learning_rate < 0.8 * free
    assert 0.99 - 2.0 * made.settings.learning_rate >= 0.6
    assert made.numbers.recommended
    assert made.epochs_to_target.median > hpo.forecast(held(study), 64).epochs_to_target.median


def test_what_keeps_the_constraints_is_told_wherever_a_study_is_shown(
    study: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    result = with_forecast(held(study, Constraint("top5", 0.9, at_most=False)))
    show_study(result)
    shown = " ".join(capsys.readouterr().out.split())
    (count,) = result.keeping
    assert count.kept > 0 and count.broken > 0
    assert f"top5 at least 0.9: kept by {count.kept} of 24 trainings" in shown
    assert "kept with a chance of" in shown
    show_trials(result)
    assert "not within the constraints: top5" in " ".join(capsys.readouterr().out.split())
    assert trial_rows(result)[0]["top5"] == result.trials[0].measures["top5"]
    document = json.loads(json.dumps(result.to_dict()))
    assert document["constraints"][0]["broken"] == count.broken
    assert document["forecast"]["constraints"][0]["name"] == "top5"
    assert f"kept by {count.kept} of 24" in page.progress(result)
    reached = sum(rung["trials"] for rung in document["rungs"])
    assert reached == 24
