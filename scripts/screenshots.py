"""Take screenshots of every page of the dashboard in light mode, in dark mode and on a phone.

``python -m scripts.screenshots [FOLDER]`` starts a server with its worker on a separate database, runs four studies
of a noisy quadratic (one with its forecast launched, one in which every run diverges, one still running, one waiting),
and writes FOLDER/PAGE-light.png, -dark.png and -phone.png. The default folder is docs/screenshots.
"""

from __future__ import annotations

import argparse
import io
import sys
import tempfile
from pathlib import Path
from typing import Any

from PIL import Image

from benchmarks.dashboard_browser import Server, browser, serving

STUDY = """\
name: {name}
workload: noisy_quadratic
data: {{modes: {modes}, noise_scale: 4, train_samples: 2048}}
target: {{metric: loss, at_most: 0.05}}
ladder: {ladder}
full_scale: {{global_batch_size: {full}, machine: local, workers: 2, validate: {validate}}}
search:
  optimizer: sgd
  learning_rate: {{log_uniform: {rates}, role: scaled}}
  momentum: {{uniform: [0.5, 0.95], role: shared}}
  weight_decay: 0
budget: {{trials: {trials}, epochs_per_trial: {epochs}}}
seeds: {seeds}
sampler: tpe
"""
FULL, LADDER = 1024, "[16, 32, 64, 128, 256]"
COLOURS = 256  # per screenshot; the pages use few colours
MOST_BYTES = 200_000
LOOKS = {"light": ("light", 1280, 860), "dark": ("dark", 1280, 860), "phone": ("light", 390, 844)}
TALLEST = {"light": 2600, "dark": 2600, "phone": 2200}
# each page: its address, what must be visible, and the actions before the screenshot; transient states come first
PAGES = {
    "studies": ("/", "tr:has-text('wide sweep') .running", ""),
    "queued": ("/studies/next", "#headline .forecast", ""),
    "running": ("/studies/wide%20sweep", "#newest li", "curves"),
    "study": ("/studies/quadratic", "#headline .trust", "curves"),
    "submit": ("/submit", "#lines span", "faulty"),
    "diverged": ("/studies/too%20fast", "#ladder .main-svg", ""),
    "trial": ("/studies/quadratic/trials/{best}", "#metric .main-svg", "curves"),
    "compare": ("/studies/quadratic/compare?trials={several}", "#facts td", "curves"),
    "forecast": (
        "/studies/quadratic/forecast?at=1024&machine=summit&nodes=16&minimise=time&cost=resnet50&slot_hours=1",
        "#front .main-svg",
        "",
    ),
    "calibration": ("/calibration", "#plans td", "curves"),
    "workers": ("/workers", "#workers td", ""),
}


def study_of(
    name: str,
    *,
    rates: str = "[0.005, 2]",
    trials: int = 60,
    validate: bool = False,
    epochs: int = 60,
    ladder: str = LADDER,
    full: int = FULL,
    seeds: int = 1,
    modes: int = 200,
) -> str:
    """Return a study file."""
    return STUDY.format(
        name=name,
        rates=rates,
        trials=trials,
        validate=str(validate).lower(),
        epochs=epochs,
        ladder=ladder,
        full=full,
        seeds=seeds,
        modes=modes,
    )


def run_studies(server: Server) -> dict[str, str]:
    """Run the studies that the pages show; return the values that the URLs need."""
    for part, full in (("quadratic", FULL), ("quadratic, small", 256), ("quadratic, middle", 512)):
        ladder = "[16, 32, 64, 128]" if full < FULL else LADDER
        server.submit(
            study_of(
                f'"{part}"',
                validate=True,
                full=full,
                ladder=ladder,
                trials=80 if full == FULL else 40,
                seeds=2,
            )
        )
    server.submit(study_of("too fast", rates="[5000, 90000]", trials=12))
    for name in ("quadratic", "quadratic, small", "quadratic, middle", "too fast"):
        say(f"running {name}")
        server.wait(name, "failed" if name == "too fast" else "finished", seconds=600)
    server.submit(study_of("wide sweep", trials=250, epochs=400, modes=20_000))
    server.wait("wide sweep", "running")
    server.submit(study_of("next"))
    with server.client() as client:
        query: dict[str, str | int] = {"state": "reached", "order": "epochs_to_target", "limit": 40}
        best = client.get("/api/v1/studies/quadratic/trials", params=query).json()["trials"]
    rungs = {trial["global_batch_size"]: trial["number"] for trial in reversed(best)}
    return {
        "best": str(best[0]["number"]),
        "several": ",".join(str(number) for number in list(rungs.values())[:4]),
    }


def take(page: Any, server: Server, address: str, ready: str, before: str) -> None:
    """Open a page and prepare it for its screenshot."""
    page.goto(server.address + address)
    page.wait_for_selector(ready, timeout=120_000)
    if before == "faulty":
        page.fill(
            "#spec",
            study_of("bowl").replace("momentum:", "momentun:").replace("seeds: 1", "seeds: 0"),
        )
        page.click("#send")
        page.wait_for_selector("#faults li")
    height = page.evaluate("document.documentElement.scrollHeight")
    for top in range(0, height, 600):  # some figures are drawn only when scrolled into view
        page.evaluate("top => scrollTo(0, top)", top)
        page.wait_for_timeout(200)
    for _ in range(100):  # wait for the laws in the figures
        if page.locator(".plot .skeleton, #fitting:visible").count() == 0:
            break
        page.wait_for_timeout(300)
    page.evaluate("scrollTo(0, 0)")
    page.wait_for_timeout(2500 if before == "curves" else 800)


def write(picture: bytes, file: Path, tallest: int) -> None:
    """Write a screenshot with a reduced palette; crop it if it is too tall, and reduce it if it is too large."""
    image = Image.open(io.BytesIO(picture)).convert("RGB")
    image = image.crop((0, 0, image.width, min(image.height, tallest)))
    for colours in (COLOURS, 128, 64, 32):
        image.quantize(colours, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE).save(
            file, optimize=True
        )
        if file.stat().st_size < MOST_BYTES:
            return


def main() -> None:
    """Take all screenshots."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=Path("docs/screenshots"))
    folder: Path = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as work,
        serving(Path(work)) as server,
        browser() as chromium,
    ):
        known = run_studies(server)
        pages = {}
        for look, (theme, width, height) in LOOKS.items():
            viewport = {"width": width, "height": height}
            pages[look] = chromium.new_context(viewport=viewport, color_scheme=theme).new_page()
            pages[look].goto(server.link)
        for name, (address, ready, before) in PAGES.items():
            for look, page in pages.items():
                take(page, server, address.format(**known), ready, before)
                write(page.screenshot(full_page=True), folder / f"{name}-{look}.png", TALLEST[look])
                page.goto("about:blank")
            say(f"{folder / name}")


def say(text: str) -> None:
    """Print progress to stderr."""
    sys.stderr.write(f"{text}\n")


if __name__ == "__main__":
    main()
