"""The forecast of a study with constraints, in Python, text, JSON and on the page."""

from __future__ import annotations

import dataclasses
import json
import sqlite3
from typing import Any

import pytest
from click.testing import CliRunner

import hpo
from hpo.cli.main import main
from hpo.cli.output.tables import show_study, show_trials, trial_rows
from hpo.dashboard import page
from hpo.dashboard.view import StudyView, load_study_view
from hpo.errors import PlanError
from hpo.runs.study_forecast import with_forecast
from hpo.runs.study_plan import law_of
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
    assert f"top5 at least 0.9: kept by {count.kept} of 24 trials" in shown
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


def with_machine(study: Any) -> None:
    """The study's full scale is a machine of one's own, which describes what a sample costs."""
    (study.folder / "six.yaml").write_text(SIX_CARDS)
    with sqlite3.connect(study.folder / "hpo.db") as database:
        (spec,) = database.execute("SELECT spec FROM studies").fetchone()
        text = spec.replace("workers: 1}", f"machine: {study.folder}/six.yaml}}")
        database.execute("UPDATE studies SET spec = ?", (text,))
        database.execute(
            "INSERT INTO workload_costs (study_id, parameters, gradient_tensors, flops_per_sample, "
            "activation_bytes_per_sample, sample_bytes) SELECT id, 1000000, 10, 3e9, 1e6, 1000 FROM studies"
        )


def test_trade_offs_are_told_in_python_text_json_and_on_the_page(
    study: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(study.folder)
    with_machine(study)
    made = hpo.forecast(study.result, 64)
    front = hpo.trade_offs(made)
    assert {mark for each in front for mark in each.marks} >= {"fastest", "cheapest"}
    fewest = next(each for each in front if "fewest epochs" in each.marks)
    assert fewest.global_batch_size == min(each.global_batch_size for each in front)
    assert fewest.seconds.median > 0 and "learning_rate" in fewest.settings
    run = CliRunner()
    told = json.loads(run.invoke(main, ["forecast", "cells", "--at", "64", "--json"]).stdout)
    assert told[0]["trade_offs"] == json.loads(json.dumps([each.to_dict() for each in front]))
    text = " ".join(run.invoke(main, ["forecast", "cells", "--at", "64"]).stdout.split())
    assert "nothing beats these in all three" in text and "fewest epochs" in text
    planned = json.loads(run.invoke(main, ["plan", "cells", "--json"]).stdout)
    assert planned["details"]["trade_offs"] == told[0]["trade_offs"]
    shown = {picture.key: picture.figure for picture in page.pictures(view_of(study))}
    drawn = shown["trade-offs"].data[0]
    assert list(drawn.x) == pytest.approx([each.accelerator_hours.median for each in front])


def test_trade_offs_of_a_machine_take_no_batch_that_breaks_a_constraint(study: Any) -> None:
    """1 GB and 10 MB a sample keep 1.4 GB up to a batch of 40; what ends first on six cards takes a larger one."""
    free = hpo.trade_offs(hpo.forecast(held(study), 32), "summit", cost="resnet50")
    assert free[0].global_batch_size > 64 and "fastest" in free[0].marks
    made = hpo.forecast(held(study, Constraint("memory_gb", 1.4)), 32)
    kept = hpo.trade_offs(made, "summit", cost="resnet50")
    assert 30 <= max(each.global_batch_size for each in kept) <= 40


def test_trade_offs_say_why_there_are_none(study: Any) -> None:
    made = hpo.forecast(study.result, 64)
    with pytest.raises(PlanError, match="is unknown, so time and cost cannot be compared"):
        hpo.trade_offs(made, "summit")
    with pytest.raises(PlanError, match="a plan has no option 'nods'"):
        hpo.trade_offs(made, nods=3)  # type: ignore[call-arg]


SIX_CARDS = """\
name: six
title: two nodes with three cards each
nodes: 2
accelerators_per_node: 3
accelerator: {name: card, memory_bytes: 16.0e+9, peak_flops: {fp32: 1.0e+13},
              achieved_fraction: {fp32: {low: 0.3, median: 0.4, high: 0.5}}, power_watts: 250}
intra_node: {name: bus, bandwidth_bytes_per_second: 1.0e+10, latency_seconds: 1.0e-6, topology: tree}
inter_node: {name: net, bandwidth_bytes_per_second: 1.0e+10, latency_seconds: 1.0e-6, topology: tree}
shared_filesystem: {name: disks, read_bytes_per_second: 1.0e+10, capacity_bytes: 1.0e+15}
scheduler: slurm
"""


def view_of(study: Any) -> StudyView:
    return load_study_view("cells", study.storage)
