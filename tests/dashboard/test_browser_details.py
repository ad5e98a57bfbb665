"""What the pages find and keep: filters, figures, the log, the keyboard focus, links, texts and the session."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks.dashboard_browser import Server
from search_spaces.settings import TrainingSettings
from storage.records import NewTrial, StudyState, TrialState
from storage.store import Store
from tests.dashboard.browser_samples import until
from tests.dashboard.dashboard_samples import ended, make_points, make_study, reached
from tests.sized_study import SIZED

DECAYS = ("constant", "cosine", "polynomial")
BETAS = (0.9, 0.95, 0.99, 0.999)
SEEDS = range(12)
ADAMW = {
    "optimizer": "adamw",
    "learning_rate": {"log_uniform": [0.001, 1.0], "role": "scaled"},
    "beta2": {"uniform": [0.9, 0.999]},
    "decay": {"choice": list(DECAYS)},
    "bias_correction": {"choice": [True, False]},
    "warmup_epochs": {"choice": [0, 1, 2]},
}


def add(store: Store, study: int, batch: int, seeds: Sequence[int]) -> None:
    """Add trials that reached the target."""
    for seed in seeds:
        settings = TrainingSettings(
            optimizer="adamw",
            learning_rate=0.01 * (1 + seed),
            beta2=BETAS[seed % 4],
            decay=DECAYS[seed % 3],
            warmup_epochs=seed % 3,
        ).to_dict()
        [trial] = store.add_trials(
            study, [NewTrial(global_batch_size=batch, seed=seed, settings=settings)]
        )
        store.start_trials([trial.id])
        store.finish_trial(trial.id, reached(5.0 + seed), make_points(batch, 5.0 + seed))


@pytest.fixture(scope="module")
def adamw(server: Server) -> str:
    """The address of a study with five tuned settings, three of them choices; 12 trials at each of two batch sizes."""
    with Store.open(server.storage) as store:
        study = make_study(store, name="adamw", search=ADAMW)
        for batch in (16, 32):
            add(store, study, batch, SEEDS)
    return f"{server.address}/studies/adamw"


def counted(page: Any) -> str:
    return str(page.inner_text("#table_count"))


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("beta2 > 0.95", 12),  # a name with a digit
        ("Beta2 > 0.95", 12),
        ("batch = 32", 12),  # the title of a column, not its name
        ("trial < 5", 5),
        ("decay = cosine", 8),
        ("purpose = sweep", 24),  # not in the table
    ],
)
def test_a_comparison_names_any_column(page: Any, adamw: str, text: str, count: int) -> None:
    page.goto(adamw)
    page.wait_for_selector("#table tbody a")
    page.fill("#filter_text", text)
    assert counted(page) == f"{count} of 24"


def test_a_drag_along_the_axis_of_a_choice_keeps_its_trials(page: Any, adamw: str) -> None:
    """Few trials remain, which shortens the page and moves the canvas while the pointer is down."""
    page.goto(adamw)
    page.wait_for_selector("#table tbody a")
    page.evaluate("scrollTo(0, document.documentElement.scrollHeight)")
    page.locator("#parallel").scroll_into_view_if_needed()
    box = page.locator("#parallel").bounding_box()
    axes = ["global_batch_size", *(name for name in ADAMW if name != "optimizer")]
    gap = (box["width"] - 2 * 56) / (len(axes) + 1)  # and two results
    x, bottom = box["x"] + 56 + gap * axes.index("decay"), box["y"] + box["height"]
    page.mouse.move(x, bottom - 60)
    page.mouse.down()
    for y in (50, 30, 10, 2):
        page.mouse.move(x, bottom - y)
    page.mouse.up()
    assert counted(page) == "8 of 24"  # the first in alphabetical order: constant
    page.click("#clear")
    assert counted(page) == "24 of 24"


@pytest.mark.slow  # the report fits the laws
def test_slices_of_many_settings_stay_in_their_card(
    page: Any, adamw: str, server: Server, tmp_path: Path
) -> None:
    """Optuna's figure is 300 pixels wide for each setting; the card scrolls, on the page and in the report."""
    wide = "each => each.scrollWidth > each.clientWidth + 100"
    page.goto(adamw)
    page.locator("#slice").scroll_into_view_if_needed()
    page.wait_for_selector("#slice .main-svg")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.locator("#slice").evaluate(wide)
    assert page.locator("#slice").evaluate("each => getComputedStyle(each).overflowX") == "auto"

    with server.client() as client:
        (tmp_path / "report.html").write_text(client.get("/api/v1/studies/adamw/report").text)
    page.goto(f"file://{tmp_path}/report.html")
    card = page.locator(".card:has(#figure-slices, #figure-slice)")
    assert card.evaluate(wide)
    assert card.evaluate("each => getComputedStyle(each).overflowX") == "auto"


def test_figures_of_a_setting_are_offered_for_settings_only(page: Any, server: Server) -> None:
    """The sizes of a ladder are columns of the table, but have no figures of their own."""
    with Store.open(server.storage) as store:
        study = make_study(store, **SIZED, seeds=1)
        settings = TrainingSettings(optimizer="adamw", learning_rate=0.01).to_dict()
        own = {"width": 16, "training_samples": 1024}
        [trial] = store.add_trials(
            study, [NewTrial(global_batch_size=16, seed=0, settings={**settings, "own": own})]
        )
        store.start_trials([trial.id])
        store.finish_trial(trial.id, ended(TrialState.CENSORED, 0.5), make_points(16, 0.5))
    page.goto(f"{server.address}/studies/sized")
    page.wait_for_selector("#table tbody a")
    page.locator("#setting").scroll_into_view_if_needed()
    page.wait_for_selector("#setting .main-svg")
    assert page.locator("#tuned button").all_inner_texts() == ["learning rate"]
    assert page.inner_text("#toasts") == ""
    assert "width" in page.inner_text("#table thead")


def test_the_log_begins_with_the_newest_event(page: Any, server: Server) -> None:
    with Store.open(server.storage) as store:
        study = make_study(store, name="eventful")
        for number in range(320):
            store.add_event(study, "note", f"number {number}")
    page.route(  # pages of a hundred instead of a thousand
        "**/logs?*",
        lambda route: route.continue_(url=route.request.url.replace("limit=1000", "limit=100")),
    )
    page.goto(f"{server.address}/studies/eventful")
    until(page, "() => document.getElementById('log').innerText.includes('note: number 319')")
    texts = page.locator("#log span").all_inner_texts()
    assert texts == [f"note: number {number}" for number in range(319, 19, -1)]


def test_the_focus_stays_in_the_table_when_trials_arrive(page: Any, server: Server) -> None:
    with Store.open(server.storage) as store:
        study = make_study(store, StudyState.RUNNING, name="growing", search=ADAMW)
        add(store, study, 16, [0, 1])
        page.goto(f"{server.address}/studies/growing")
        page.wait_for_selector("#table tbody a")
        until(page, "() => document.getElementById('live').innerText === 'live'")
        page.locator("#table tbody input").nth(1).focus()
        add(store, study, 16, [2])
        until(page, "() => document.getElementById('table_count').innerText === '3 of 3'")
        assert page.evaluate("document.activeElement.dataset.trial") == "1"
        store.set_study_state(study, StudyState.FINISHED)


def test_times_are_kept_up_to_date(page: Any, server: Server) -> None:
    page.clock.install()
    page.goto(server.address)
    page.wait_for_selector("#studies time")
    page.clock.run_for(3 * 3600 * 1000)
    assert page.inner_text("#studies time >> nth=0").startswith("3 h")


def test_a_page_whose_session_has_ended_goes_to_the_login(page: Any, server: Server) -> None:
    """A stream of events does not tell why it is refused, so the page said that it was connecting."""
    page.route("**/api/v1/events*", lambda route: route.abort("connectionrefused"))
    page.goto(server.address)  # where nothing else is requested until an event arrives
    page.wait_for_selector("#studies time")
    page.context.clear_cookies()
    page.wait_for_url("**/login?next=*")


def test_a_study_file_survives_the_login(page: Any, server: Server) -> None:
    page.goto(f"{server.address}/submit")
    page.fill("#spec", "name: kept\n")
    page.context.clear_cookies()
    page.click("#send")
    page.wait_for_url("**/login?next=*submit")
    page.fill("input[name=token]", server.secret)
    page.click("button")
    page.wait_for_url("**/submit")
    assert page.input_value("#spec") == "name: kept\n"
    page.click("#send")
    page.wait_for_selector("#faults li")
    page.reload()
    assert page.input_value("#spec") == ""  # kept for the login only


def test_a_link_to_a_forecast_keeps_its_batch_size_and_nodes(page: Any, server: Server) -> None:
    page.goto(f"{server.address}/studies/done/forecast?at=100&machine=summit&nodes=3&minimise=x")
    until(page, "() => document.getElementById('batch_shown').innerText === '100'")
    assert page.inner_text("#nodes_shown") == "3"
    assert page.input_value("#minimise") == "time"

    with Store.open(server.storage) as store:
        full = {"global_batch_size": 256, "machine": "summit", "nodes": 12}
        make_study(store, name="for summit", full_scale=full)
    page.goto(f"{server.address}/studies/for%20summit/forecast")
    until(page, "() => document.getElementById('nodes_shown').innerText === '12'")  # as `hpo plan`


def test_a_command_is_selected_where_the_clipboard_is_closed(page: Any, server: Server) -> None:
    """Browsers give pages over plain HTTP no clipboard, except those of their own machine."""
    page.add_init_script(
        "Object.defineProperty(Navigator.prototype, 'clipboard', {value: undefined})"
    )
    page.goto(f"{server.address}/studies/done/trials/0")
    page.wait_for_selector("#command:not(:empty)")
    page.click("#copy")
    until(page, "() => getSelection().toString() === 'python -m trainers trial-0.json'")
    assert page.inner_text("#toasts") == ""
