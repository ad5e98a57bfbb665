"""A page that stays open: points appear as they are stored, and it survives a restart of the server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from benchmarks.dashboard_browser import Server, serving
from search_spaces.settings import TrainingSettings
from storage.records import (
    ConvergencePoint,
    NewStudy,
    NewTrial,
    StudyState,
    TrialResult,
    TrialState,
)
from storage.store import Store
from tests.dashboard.browser_samples import STUDY, until


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server without a worker: the tests store what one would."""
    with serving(tmp_path_factory.mktemp("quiet"), worker=False) as running:
        yield running


def running_trial(store: Store, name: str) -> int:
    """A study that runs, with one trial that trains; returns the trial's id."""
    study = store.create_study(
        NewStudy(
            name=name,
            workload="noisy_quadratic",
            metric="loss",
            threshold=0.05,
            higher_is_better=False,
            spec=STUDY.format(name=name, trials=10),
        )
    )
    store.set_study_state(study.id, StudyState.RUNNING)
    settings = TrainingSettings(learning_rate=0.1).to_dict()
    trial, _ = store.add_trials(
        study.id,
        [NewTrial(global_batch_size=16, seed=seed, settings=settings) for seed in (0, 1)],
    )
    store.start_trials([trial.id])
    return trial.id


def point(step: int, loss: float) -> ConvergencePoint:
    return ConvergencePoint(
        step=step,
        samples=16 * step,
        epochs=step / 32,
        seconds=step / 10,
        train_loss=loss,
        loss=loss,
        metric=loss,
        learning_rate=0.1,
        global_batch_size=16,
    )


@pytest.mark.slow
def test_points_arrive_before_and_after_a_restart_without_a_reload(
    fresh_page: Any, quiet: Server
) -> None:
    page = fresh_page
    page.goto(quiet.link)
    with Store.open(quiet.storage) as store:
        trial = running_trial(store, "live")
        page.goto(f"{quiet.address}/studies/live")
        until(page, "() => document.getElementById('live').innerText === 'live'")
        page.evaluate("window.same = true")
        page.locator("#curves").scroll_into_view_if_needed()
        page.wait_for_selector("#curves .main-svg")
        store.record({trial: [point(32, 0.9), point(64, 0.777)]})
        until(page, "() => document.getElementById('newest').innerText.includes('0.777')")
        until(page, "() => document.getElementById('curves').data[0].y.at(-1) === 0.777")

        quiet.stop()
        until(page, "() => document.getElementById('live').innerText !== 'live'")
        store.record({trial: [point(96, 0.555)]})
        quiet.start()
        until(page, "() => document.getElementById('newest').innerText.includes('0.555')")
        until(page, "() => document.getElementById('curves').data[0].y.at(-1) === 0.555")
        store.record({trial: [point(128, 0.04)]})
        until(page, "() => document.getElementById('newest').innerText.includes('0.04')")
        store.finish_trial(
            trial,
            TrialResult(
                state=TrialState.REACHED,
                epochs_to_target=4.0,
                epochs=4.0,
                steps=128,
                seconds=12.8,
                best_metric=0.04,
                final_metric=0.04,
                resolution_epochs=1,
            ),
        )
        page.wait_for_selector("#table .reached")
        assert page.evaluate("window.same")


@pytest.mark.slow
def test_a_study_that_only_diverged_and_an_empty_one_say_what_to_do(
    fresh_page: Any, quiet: Server
) -> None:
    page = fresh_page
    with Store.open(quiet.storage) as store:
        trial = running_trial(store, "wild")
        study = store.study("wild").id
        store.finish_trial(
            trial,
            TrialResult(
                state=TrialState.DIVERGED,
                epochs=1.0,
                steps=32,
                seconds=1.0,
                reason="the loss is not a number",
            ),
        )
        store.set_study_state(study, StudyState.FINISHED)
    quiet.submit(STUDY.format(name="alone", trials=10))
    page.goto(quiet.link)
    page.goto(f"{quiet.address}/studies/wild")
    until(
        page,
        "() => document.getElementById('headline').innerText.includes('Every trial diverged')",
    )
    assert "learning rates" in page.inner_text("#headline")
    page.wait_for_selector("#ladder .main-svg")
    assert page.locator("#table .diverged").count() == 1
    page.goto(f"{quiet.address}/studies/alone")
    until(
        page, "() => document.getElementById('headline').innerText.includes('There is no worker')"
    )
    assert "hpo worker" in page.inner_text("#headline")
    assert not page.is_visible("#evidence")
    assert not page.is_visible("#forecast")
    page.goto(f"{quiet.address}/studies/wild/forecast")
    page.wait_for_selector("#said .notice")  # why there is none, and no empty figures beside it
    assert not page.is_visible("#details")
    page.goto(f"{quiet.address}/studies/nobody")
    page.wait_for_selector("#headline .notice")
    assert "nobody" in page.inner_text("#headline")
    page.goto(f"{quiet.address}/workers")
    page.wait_for_selector("#workers .empty")
