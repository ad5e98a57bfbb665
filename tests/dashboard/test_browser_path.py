"""What a user does on the pages, in a real browser on a real server with a worker."""

from __future__ import annotations

import json
from typing import Any

import pytest

from benchmarks.dashboard_browser import Server
from search_spaces.settings import TrainingSettings
from storage.records import NewForecast, NewOutcome, NewPlan, TrialState, Trust
from storage.store import Store
from tests.dashboard.browser_samples import STUDY, until
from tests.dashboard.dashboard_samples import make_study

FINISHED = "#state .finished"


def test_a_study_is_submitted_watched_compared_planned_and_taken_along(
    fresh_page: Any, server: Server
) -> None:
    page = fresh_page
    page.goto(f"{server.address}/submit")
    page.wait_for_url("**/login?next=*")  # whoever is not logged in comes back where they wanted to
    page.fill("input[name=token]", server.secret)
    page.click("button")
    page.wait_for_url("**/submit")

    page.fill("#spec", STUDY.format(name="by form", trials=12).replace("momentum:", "momentun:"))
    page.click("#send")
    page.wait_for_selector("#lines .fault")
    line = STUDY[: STUDY.index("momentum")].count("\n") + 1
    assert page.inner_text("#lines .fault") == str(line)
    assert "momentum" in page.inner_text("#faults")  # what was meant
    page.fill("#spec", STUDY.format(name="by form", trials=12))
    page.press("#spec", "Control+Enter")

    page.wait_for_url("**/studies/by%20form")
    page.evaluate("window.same = true")
    page.wait_for_selector(FINISHED)  # live: nobody reloaded the page
    assert page.evaluate("window.same")
    page.wait_for_selector("#headline .trust")
    assert "At global batch size 256" in page.inner_text("#headline")
    page.wait_for_selector("#ladder .main-svg")
    until(page, "() => document.querySelectorAll('#table tbody a').length > 10")

    page.click("#table tbody a >> nth=1")
    page.wait_for_selector("#metric .main-svg")
    assert page.inner_text("h1") == "Trial 1"
    assert "python -m trainers trial-1.json" in page.inner_text("#command")
    with page.expect_download() as download:
        page.click("#download")
    assert json.loads(download.value.path().read_text())["workload"] == "noisy_quadratic"
    page.go_back()

    for box in (0, 3):
        page.locator("#table tbody input").nth(box).check()
    page.click("#compare")
    page.wait_for_url("**/compare?trials=0,3")
    page.wait_for_selector("#facts tr.differs")
    assert [each.inner_text() for each in page.locator("#facts thead a").all()[:2]] == [
        "trial 0",
        "trial 3",
    ]

    page.goto(f"{server.address}/studies/by%20form/forecast")
    page.wait_for_selector("#tiles .tile")
    before = page.inner_text("#tiles")
    told = page.locator("#prospects dt").all_inner_texts()
    assert {
        "chance of reaching the target",
        "risk of divergence",
        "twice the learning rate",
    } <= set(told)
    page.focus("#batch")
    page.keyboard.press("ArrowRight")
    until(page, "text => document.getElementById('tiles').innerText !== text", before)
    assert page.inner_text("#batch_shown") == "512"
    page.wait_for_selector("#front .main-svg")
    page.click("#keep")
    page.wait_for_selector("#plans a")
    with page.expect_download() as download:
        page.click("#plans a >> text=script")
    assert download.value.path().read_text().startswith("#!")


@pytest.mark.slow
def test_a_study_is_cancelled_and_the_next_in_the_queue_says_what_it_waits_for(
    page: Any, server: Server
) -> None:
    server.submit(
        STUDY.format(name="endless", trials=2000).replace(
            "epochs_per_trial: 40", "epochs_per_trial: 4000"
        )
    )
    server.wait("endless", "running")
    server.submit(STUDY.format(name="behind it", trials=10))
    page.goto(f"{server.address}/studies/behind%20it")
    until(page, "() => document.getElementById('headline').innerText.includes('busy')")
    assert "waiting for a worker" in page.inner_text("#headline")
    page.click("#cancel")
    page.wait_for_selector("#state .cancelled")
    until(
        page,
        "() => document.getElementById('headline').innerText.includes('you can resume it')",
    )

    page.goto(f"{server.address}/studies/endless")
    page.wait_for_selector("#newest li")  # what trains now, with its newest point
    page.goto(server.address)
    page.wait_for_selector("tr:has-text('endless') .running")
    page.click("text=endless")
    page.wait_for_selector("#state .running")
    page.click("#cancel")
    page.wait_for_selector("#state .cancelled")
    assert page.is_visible("#resume")


def test_trials_are_filtered_sorted_and_selected(page: Any, server: Server) -> None:
    page.goto(f"{server.address}/studies/done")
    page.wait_for_selector("#table tbody a")
    with server.client() as client:
        trials = client.get("/api/v1/studies/done/columns").json()
    heads = page.locator("#table thead button.sort").all_inner_texts()
    assert {"Epochs to target", "Last metric"} <= {*trials["figures"].values()} <= {*heads}
    momenta = trials["settings"]["momentum"]
    wanted = sum(each > 0.8 for each in momenta)
    page.fill("#filter_text", "momentum > 0.8")
    until(page, "count => document.querySelectorAll('#table tbody a').length === count", wanted)
    assert page.inner_text("#table_count") == f"{wanted} of {len(momenta)}"
    page.click("#clear")
    page.click("button.sort >> text=momentum")
    assert page.inner_text("#table tbody a >> nth=0") == str(momenta.index(min(momenta)))
    page.focus("button.sort >> text=momentum")
    page.keyboard.press("Enter")
    assert page.inner_text("#table tbody a >> nth=0") == str(momenta.index(max(momenta)))
    assert (
        page.evaluate("document.activeElement.dataset.column") == "momentum"
    )  # the focus stays on the heading
    page.select_option("#filter_batch", "32")
    shown = {int(each) for each in page.locator("#table tbody a").all_inner_texts()}
    assert shown == {
        n for n, batch in enumerate(trials["columns"]["global_batch_size"]) if batch == 32
    }


def test_a_study_that_asks_for_the_best_metric_has_its_answers_on_every_page(
    page: Any, server: Server
) -> None:
    """No trial reaches a target, and the forecast has no epochs to target."""
    text = STUDY.format(name="how good", trials=12)
    target = next(line for line in text.splitlines() if line.startswith("target:"))
    server.submit(text.replace(target, "target: {metric: loss, best_within: {epochs: 40}}"))
    server.wait("how good", "finished")
    page.goto(f"{server.address}/studies/how%20good")
    page.wait_for_selector("#headline .trust")
    assert "At global batch size 256: loss 0." in page.inner_text("#headline")
    assert " within 40 epochs (90 % interval " in page.inner_text("#headline")
    tiles = page.inner_text("#tiles").lower()
    assert "trained to the end" in tiles and "loss 0." in tiles
    assert page.is_visible("#report") and page.is_visible("#forecast")

    page.click("#forecast")
    page.wait_for_selector("#tiles .tile")
    assert "best loss" in page.inner_text("#tiles").lower()
    assert " within 40 epochs (90 % interval " in page.inner_text("#said")

    with Store.open(server.storage) as store:
        trials = store.trials(store.study("how good").id)
    ended = next(trial for trial in trials if trial.state is TrialState.CENSORED)
    page.goto(f"{server.address}/studies/how%20good/trials/{ended.number}")
    page.wait_for_selector("#metric .main-svg")
    assert "trained to the end of its budget" in page.inner_text("main")
    assert "not reached" not in page.inner_text("main")

    page.goto(f"{server.address}/")
    page.wait_for_selector("text=how good")
    assert "loss 0." in page.locator("tr", has_text="how good").inner_text()


@pytest.mark.slow  # test_page_routes and test_report have the rules
def test_a_report_is_downloaded_and_stands_alone(page: Any, server: Server) -> None:
    page.goto(f"{server.address}/studies/done")
    page.wait_for_selector("#report:visible")
    with page.expect_download() as download:
        page.click("#report")
    assert download.value.suggested_filename == "done.html"
    text = download.value.path().read_text()
    assert "Epochs to target against batch size" in text
    assert server.storage not in text  # a reader of the server need not know where it stores


@pytest.mark.slow
def test_the_trust_in_every_launched_forecast_is_in_sight(page: Any, server: Server) -> None:
    with Store.open(server.storage) as store:
        study = make_study(store, name="a study with quite a name")
        ends = {
            "epochs_median": 71.4,
            "epochs_low": 42.3,
            "epochs_high": 1180.0,
            "trust": Trust.MEDIUM,
        }
        forecast = store.add_forecast(
            NewForecast(study_id=study, global_batch_size=131_072, reason="", **ends)
        )
        plan = store.add_plan(
            NewPlan(
                study_id=study,
                forecast_id=forecast.id,
                machine="azure_nd_h100_v5",
                nodes=64,
                workers=512,
                global_batch_size=131_072,
                local_batch_size=256,
                settings=TrainingSettings().to_dict(),
                directory="plans",
                seconds_median=50_000.0,
                seconds_low=40_000.0,
                seconds_high=2e5,
                **ends,
            )
        )
        store.add_outcome(
            NewOutcome(
                plan_id=plan.id,
                seed=0,
                backend="torch",
                workers=512,
                state=TrialState.REACHED,
                epochs_to_target=128.0,
                epochs=128.0,
                seconds=60_000.0,
            )
        )
    page.goto(f"{server.address}/calibration")
    page.wait_for_selector("#plans td")
    assert page.inner_text("#plans tbody td >> nth=-1") == "medium"
    assert (
        page.evaluate(
            "(() => { const of = document.querySelector('#plans .scroll'); "
            "return of.scrollWidth - of.clientWidth; })()"
        )
        <= 0
    )  # at 1280 pixels


def test_a_name_with_markup_is_text_everywhere(page: Any, server: Server) -> None:
    name = '<img src=x onerror="document.title=1">&amp; <b>bold</b>'
    server.submit(
        STUDY.format(name=json.dumps(name), trials=5).replace(
            "ladder: [16, 32, 64]", "ladder: [16]"
        )
    )
    page.goto(server.address)
    page.wait_for_selector(f"a:text-is({json.dumps(name)})")
    page.click(f"a:text-is({json.dumps(name)})")
    page.wait_for_selector("#state .finished, #state .failed")
    assert page.inner_text("h1") == name
    assert name in page.title()
    assert page.locator("img, main b").count() == 0
    page.goto(page.url + "/trials/0")
    page.wait_for_selector("#metric .main-svg")
    assert page.inner_text("#up") == name
    assert page.locator("img, main b").count() == 0


def test_logging_out_ends_the_session(page: Any, server: Server) -> None:
    page.goto(f"{server.address}/workers")
    page.wait_for_selector("#workers td")
    page.click("#logout")
    page.wait_for_url("**/login")
    page.goto(f"{server.address}/workers")
    page.wait_for_url("**/login?next=*")
