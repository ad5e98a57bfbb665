"""What a person does on the pages, done in a real browser on a real server with a worker."""

from __future__ import annotations

import json
from typing import Any

from benchmarks.dashboard_browser import Server
from tests.dashboard.browser_samples import STUDY, until

FINISHED = "#state .finished"


def test_a_study_is_submitted_watched_compared_planned_and_taken_along(fresh_page: Any, server: Server) -> None:
    page = fresh_page
    page.goto(f"{server.address}/submit")
    page.wait_for_url("**/login?next=*")                    # whoever is not logged in comes back where they wanted to
    page.fill("input[name=token]", server.secret)
    page.click("button")
    page.wait_for_url("**/submit")

    page.fill("#spec", STUDY.format(name="by form", trials=12).replace("momentum:", "momentun:"))
    page.click("#send")
    page.wait_for_selector("#lines .fault")
    line = STUDY[:STUDY.index("momentum")].count("\n") + 1
    assert page.inner_text("#lines .fault") == str(line)
    assert "momentum" in page.inner_text("#faults")         # what was meant
    page.fill("#spec", STUDY.format(name="by form", trials=12))
    page.press("#spec", "Control+Enter")

    page.wait_for_url("**/studies/by%20form")
    page.evaluate("window.same = true")
    page.wait_for_selector(FINISHED, timeout=60_000)        # live: nobody reloaded the page
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
    assert [each.inner_text() for each in page.locator("#facts thead a").all()[:2]] == ["trial 0", "trial 3"]

    page.goto(f"{server.address}/studies/by%20form/forecast")
    page.wait_for_selector("#tiles .tile")
    before = page.inner_text("#tiles")
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


def test_a_study_is_cancelled_and_the_next_in_the_queue_says_what_it_waits_for(page: Any, server: Server) -> None:
    server.submit(STUDY.format(name="endless", trials=5000).replace("epochs_per_trial: 40", "epochs_per_trial: 4000"))
    server.wait("endless", "running")
    server.submit(STUDY.format(name="behind it", trials=10))
    page.goto(f"{server.address}/studies/behind%20it")
    until(page, "() => document.getElementById('headline').innerText.includes('busy')")
    assert "waits for a worker" in page.inner_text("#headline")
    page.click("#cancel")
    page.wait_for_selector("#state .cancelled")
    until(page, "() => document.getElementById('headline').innerText.includes('resuming goes on')")

    page.goto(f"{server.address}/studies/endless")
    page.wait_for_selector("#newest li")                    # what trains now, with its newest point
    page.goto(server.address)
    page.wait_for_selector("tr:has-text('endless') .running")
    page.click("text=endless")
    page.wait_for_selector("#state .running")
    page.click("#cancel")
    page.wait_for_selector("#state .cancelled", timeout=60_000)
    assert page.is_visible("#resume")


def test_trials_are_filtered_sorted_and_selected(page: Any, server: Server) -> None:
    page.goto(f"{server.address}/studies/done")
    page.wait_for_selector("#table tbody a")
    with server.client() as client:
        trials = client.get("/api/v1/studies/done/columns").json()
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
    assert page.evaluate("document.activeElement.dataset.column") == "momentum"     # the focus stays on the heading
    page.select_option("#filter_batch", "32")
    shown = {int(each) for each in page.locator("#table tbody a").all_inner_texts()}
    assert shown == {n for n, batch in enumerate(trials["columns"]["global_batch_size"]) if batch == 32}


def test_a_report_is_downloaded_and_stands_alone(page: Any, server: Server) -> None:
    page.goto(f"{server.address}/studies/done")
    page.wait_for_selector("#report:visible")
    with page.expect_download() as download:
        page.click("#report")
    assert download.value.suggested_filename == "done.html"
    text = download.value.path().read_text()
    assert "Epochs to target against batch size" in text
    assert server.storage not in text                       # a reader of the server need not know where it stores


def test_a_name_with_markup_is_text_everywhere(page: Any, server: Server) -> None:
    name = '<img src=x onerror="document.title=1">&amp; <b>bold</b>'
    server.submit(STUDY.format(name=json.dumps(name), trials=5).replace("ladder: [16, 32, 64]", "ladder: [16]"))
    page.goto(server.address)
    page.wait_for_selector(f"a:text-is({json.dumps(name)})")
    page.click(f"a:text-is({json.dumps(name)})")
    page.wait_for_selector("#state .finished, #state .failed", timeout=60_000)
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
