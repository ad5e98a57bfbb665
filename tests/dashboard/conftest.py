"""One server with a worker and one browser for all tests of the pages; skipped if there is no browser."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from benchmarks.dashboard_browser import NoBrowserError, Server, browser, serving
from tests.dashboard.browser_samples import STUDY

# what a browser says when the server is away, as a test wants it, or refuses, as a page then tells
EXPECTED_ERRORS = (
    "ERR_CONNECTION_REFUSED",
    "ERR_INCOMPLETE_CHUNKED",
    "ERR_CONNECTION_RESET",
    "ERR_EMPTY_RESPONSE",
    "status of 404",
    "status of 409",
    "status of 422",
    "status of 401",
)


@pytest.fixture(
    scope="module"
)  # no longer: while it lives, no other test of this process can run an event loop
def chromium() -> Iterator[Any]:
    try:
        with browser() as running:
            yield running
    except NoBrowserError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """`hpo serve` with its worker, and a study that has finished: ``done``."""
    with serving(tmp_path_factory.mktemp("dashboard")) as running:
        running.submit(STUDY.format(name="done", trials=16))
        running.wait("done", "finished")
        yield running


class Watched:
    """A page whose errors fail the test at its end: what it wrote to the console, and what its policy refused."""

    def __init__(self, page: Any) -> None:
        self.page, self.errors = page, list[str]()
        page.on(
            "console", lambda message: self._hear(message.text) if message.type == "error" else None
        )
        page.on("pageerror", lambda error: self._hear(str(error)))

    def _hear(self, text: str) -> None:
        if not any(each in text for each in EXPECTED_ERRORS):
            self.errors.append(text)


@pytest.fixture
def fresh_page(chromium: Any) -> Iterator[Any]:
    """A page in a browser without any stored state, 1280 x 900; every error on it fails the test."""
    context = chromium.new_context(viewport={"width": 1280, "height": 900}, accept_downloads=True)
    try:
        watched = Watched(context.new_page())
        watched.page.set_default_timeout(
            180_000
        )  # laws are fitted first; a busy machine takes its time
        yield watched.page
        assert not watched.errors
    finally:
        context.close()


@pytest.fixture
def page(fresh_page: Any, server: Server) -> Any:
    """A page that is logged in through the link."""
    fresh_page.goto(server.link)
    return fresh_page
