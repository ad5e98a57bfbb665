"""The study page in the browser: of 10,000 trials of 200 points each, and of a finished study after a restart.

``python -m benchmarks.dashboard [--trials N] [--part large|restart]`` prints a table; ``dashboard.md`` holds the last
one. The finished study is a small one that a worker swept; its page is complete once the forecast, its trust, the
table of trials and the ladder with the law's band are shown.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.dashboard_browser import Server, browser, serving
from search_spaces.settings import TrainingSettings
from storage.records import (
    Convergence,
    ConvergencePoint,
    NewStudy,
    NewTrial,
    StudyState,
    TrialResult,
    TrialState,
)
from storage.store import Store

POINTS = 200
LADDER = (16, 32, 64, 128, 256)
CHUNK = 500
SPEC = """\
name: {name}
workload: noisy_quadratic
target: {{metric: loss, at_most: 0.05}}
ladder: [16, 32, 64, 128, 256]
full_scale: {{global_batch_size: 4096, machine: local, workers: 2}}
search:
  optimizer: sgd
  learning_rate: {{log_uniform: [0.002, 2], role: scaled}}
  momentum: {{uniform: [0.5, 0.98]}}
  weight_decay: {{log_uniform: [1.0e-6, 1.0e-2]}}
budget: {{trials: 20000, epochs_per_trial: 80}}
"""


def new_study(store: Store, name: str, state: StudyState) -> int:
    """Create a study without trials; return its id."""
    study = store.create_study(
        NewStudy(
            name=name,
            workload="noisy_quadratic",
            metric="loss",
            threshold=0.05,
            higher_is_better=False,
            spec=SPEC.format(name=name),
        )
    )
    store.set_study_state(study.id, state)
    return study.id


def fill(store: Store, study_id: int, trials: int) -> None:
    """Add trials with curves whose epochs follow a law with scatter; about half of them reach the target."""
    rng = np.random.default_rng(0)
    for first in range(0, trials, CHUNK):
        new, ends = [], []
        for _ in range(min(CHUNK, trials - first)):
            batch = int(rng.choice(LADDER))
            rate = float(np.exp(rng.uniform(np.log(0.002), np.log(2))))
            miss = np.log(rate / (batch / 400)) ** 2
            ends.append(
                float(9 * (1 + batch / 300) * (1 + 0.3 * miss) * np.exp(0.05 * rng.normal()))
            )
            settings = TrainingSettings(
                learning_rate=rate,
                momentum=float(rng.uniform(0.5, 0.98)),
                weight_decay=float(np.exp(rng.uniform(np.log(1e-6), np.log(1e-2)))),
            )
            new.append(
                NewTrial(
                    global_batch_size=batch, seed=first + len(new), settings=settings.to_dict()
                )
            )
        made = store.add_trials(study_id, new)
        store.start_trials([trial.id for trial in made])
        store.record_columns(
            curves([trial.id for trial in made], [min(each, 80.0) for each in ends], rng)
        )
        for trial, end in zip(made, ends, strict=True):
            reached = end <= 80
            store.finish_trial(
                trial.id,
                TrialResult(
                    state=TrialState.REACHED if reached else TrialState.CENSORED,
                    epochs=min(end, 80.0),
                    steps=POINTS,
                    epochs_to_target=end if reached else None,
                    seconds=2.0,
                    best_metric=0.05 if reached else 0.2,
                    final_metric=0.05 if reached else 0.2,
                    resolution_epochs=0.25 if reached else None,
                ),
            )


def curves(ids: list[int], ends: list[float], rng: np.random.Generator) -> Convergence:
    """Return curves of falling losses, one row for each point."""
    share = np.tile(np.arange(1, POINTS + 1) / POINTS, len(ids))
    epochs = np.repeat(ends, POINTS) * share
    loss = 3 * 0.017**share * np.exp(0.03 * rng.normal(size=share.size))
    steps = np.tile(np.arange(1, POINTS + 1), len(ids))
    return Convergence(
        trial_id=np.repeat(ids, POINTS),
        step=steps,
        samples=64 * steps,
        epochs=epochs,
        seconds=0.01 * steps,
        train_loss=loss,
        loss=loss,
        metric=loss,
        learning_rate=np.full(share.size, 0.1),
        global_batch_size=np.full(share.size, 64),
        gradient_noise_scale=20 + 400 * share,
    )


def measure(server: Server, chromium: Any) -> dict[str, float]:
    """Return times in seconds and memory in MB, medians of five where repeatable."""
    page = chromium.new_context(viewport={"width": 1280, "height": 900}).new_page()
    page.goto(server.link)
    found = {}
    for name, wait in (("usable, server just started", 0), ("usable again", 3)):
        page.goto("about:blank")
        time.sleep(wait)
        began = time.perf_counter()
        page.goto(f"{server.address}/studies/many", wait_until="commit")
        page.wait_for_selector("#headline .forecast")
        page.wait_for_selector("#tiles .tile")
        page.wait_for_selector("#table tbody tr td a")
        page.locator("#table tbody input").first.check()  # the page responds
        found[name] = time.perf_counter() - began
        page.locator("#table tbody input").first.uncheck()
        page.wait_for_selector("#ladder .main-svg", timeout=120_000)
        found[f"ladder drawn, {name.removeprefix('usable').strip(', ')}"] = (
            time.perf_counter() - began
        )
    page.wait_for_selector("#headline .trust", timeout=300_000)
    found["forecast there"] = time.perf_counter() - began
    page.wait_for_timeout(8000)
    found["filter"] = statistics.median(
        page.evaluate(FILTER, text)
        for text in ("momentum > 0.9", "momentum > 0.6", "learning rate < 0.1", "7", "")
    )
    for place in ("#setting", "#curves", "#table", "#ladder"):
        page.locator(place).scroll_into_view_if_needed()
        page.wait_for_timeout(1500)
    page.wait_for_selector("#curves .main-svg")
    session = page.context.new_cdp_session(page)
    found["memory, MB"] = page.evaluate("performance.memory.usedJSHeapSize") / 1e6
    session.send("HeapProfiler.collectGarbage")
    found["memory after garbage, MB"] = page.evaluate("performance.memory.usedJSHeapSize") / 1e6
    page.context.close()
    return found


SHOWN = {
    "text": "step => document.getElementById('newest').innerText.includes(`after ${step} epochs`)",
    "curve": "step => document.getElementById('curves').data?.[0]?.x.at(-1) === step",
}
# from the input to the frame that shows the rows
FILTER = """async (text) => {
  const field = document.getElementById("filter_text");
  const began = performance.now();
  field.value = text;
  field.dispatchEvent(new Event("input", { bubbles: true }));
  await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
  return (performance.now() - began) / 1000;
}"""


def updates(server: Server, chromium: Any, store: Store) -> dict[str, float]:
    """Return the seconds from storing a point to showing it, before and after a restart of the server."""
    study_id = new_study(store, "live", StudyState.RUNNING)
    settings = TrainingSettings(learning_rate=0.1).to_dict()
    trial = store.add_trials(study_id, [NewTrial(global_batch_size=16, seed=0, settings=settings)])[
        0
    ].id
    store.start_trials([trial])
    page = chromium.new_context(viewport={"width": 1280, "height": 900}).new_page()
    page.goto(server.link)
    page.goto(f"{server.address}/studies/live")
    page.locator("#curves").scroll_into_view_if_needed()
    step, found = 0, {}
    for name in ("point shown", "point shown after a restart"):
        times: dict[str, list[float]] = {"text": [], "curve": []}
        for _ in range(8):
            step += 1
            loss = 1 / (1 + step)
            point = ConvergencePoint(
                step=step,
                samples=16 * step,
                epochs=float(step),
                seconds=float(step),
                train_loss=loss,
                loss=loss,
                metric=loss,
                learning_rate=0.1,
                global_batch_size=16,
            )
            store.record({trial: [point]})
            began = time.perf_counter()
            for what, there in SHOWN.items():
                while not page.evaluate(there, step):
                    if time.perf_counter() - began > 20:
                        raise TimeoutError(f"{what} of point {step} did not come")
                    time.sleep(0.01)
                times[what].append(time.perf_counter() - began)
        found |= {f"{name}, {what}": statistics.median(each) for what, each in times.items()}
        found |= {f"{name}, {what}, slowest of 8": max(each) for what, each in times.items()}
        if "restart" not in name:
            server.stop()
            server.start()
            page.wait_for_timeout(3000)
    page.context.close()
    return found


RESTARTS = 5
SWEPT = """\
name: swept
workload: noisy_quadratic
data: {modes: 50, noise_scale: 0.5, train_samples: 512}
target: {metric: loss, at_most: 0.05}
ladder: [16, 32, 64]
full_scale: {global_batch_size: 256, machine: local, workers: 2}
search:
  optimizer: sgd
  learning_rate: {log_uniform: [0.02, 2], role: scaled}
  momentum: {uniform: [0.5, 0.95]}
  weight_decay: 0
budget: {trials: 48, epochs_per_trial: 40}
"""
FIRST = "complete, the first view of all"
COMPLETE = {
    "forecast": "() => document.querySelector('#headline .forecast .trust, #headline .trust') !== null",
    "trials": "() => document.querySelector('#table tbody tr td a') !== null",
    "law": "() => (document.getElementById('ladder')?.data ?? []).some(each => each.name === '90 % band')",
}


def after_restart(folder: Path, chromium: Any) -> dict[str, float]:
    """Return the seconds until each part of a finished study's page is shown, at its first view after a restart.

    These are the median and maximum over ``RESTARTS``, and the very first view, with an empty browser cache and only
    the fit stored. Later views have a browser that visited the page before, like a returning user.
    """
    times: dict[str, list[float]] = {}
    with serving(folder) as server:
        server.submit(SWEPT)
        server.wait("swept", "finished", seconds=600)
        server.worker = False
        context = chromium.new_context(viewport={"width": 1280, "height": 900})
        page = context.new_page()
        page.goto(server.link)
        for restart in range(RESTARTS + 1):
            server.stop()
            server.start()
            page.goto("about:blank")
            began = time.perf_counter()
            page.goto(f"{server.address}/studies/swept", wait_until="commit")
            left = dict(COMPLETE)
            while left:
                for what, there in list(left.items()):
                    if page.evaluate(there):
                        del left[what]
                        if restart:
                            times.setdefault(what, []).append(time.perf_counter() - began)
                if time.perf_counter() - began > 300:
                    raise TimeoutError(f"{', '.join(left)} did not come")
                time.sleep(0.01)
            complete = "complete" if restart else FIRST
            times.setdefault(complete, []).append(time.perf_counter() - began)
        context.close()
    found = {f"after a restart, {what}": statistics.median(each) for what, each in times.items()}
    return found | {"after a restart, complete, the longest": max(times["complete"])}


def main() -> None:
    """Measure and print the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=10_000)
    parser.add_argument("--part", choices=["large", "restart"], help="one part of it; all if none")
    given = parser.parse_args()
    if given.part != "restart":
        _large(given.trials)
    if given.part != "large":
        with tempfile.TemporaryDirectory() as folder, browser() as chromium:
            _print(after_restart(Path(folder), chromium))


def _large(trials: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        server = Server(Path(folder), worker=False)
        with Store.open(server.storage) as store:
            began = time.perf_counter()
            fill(store, new_study(store, "many", StudyState.FINISHED), trials)
            print(
                f"{trials:,} trials x {POINTS} points written in {time.perf_counter() - began:.0f} s",
                flush=True,
            )
            with serving(Path(folder), worker=False) as running, browser() as chromium:
                for part in (
                    lambda: measure(running, chromium),
                    lambda: updates(running, chromium, store),
                ):
                    _print(part())


def _print(found: dict[str, float]) -> None:
    for name, value in found.items():
        print(f"| {name} | {value:.3g}{'' if 'MB' in name else ' s'} |", flush=True)


if __name__ == "__main__":
    main()
