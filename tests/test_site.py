"""The documentation site: built strictly, complete, and without anything from other sites."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from hpo.cli.main import main

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[1]


def build(folder: Path, docs: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """`make docs`, into another folder; a proxy that is not there makes every call to the network fail."""
    nowhere = dict.fromkeys(
        ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9"
    )
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=docs,
        env={**os.environ, **nowhere, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("material", reason="the site is built by mkdocs: pip install '.[docs]'")
    folder = tmp_path_factory.mktemp("site")
    done = build(folder)
    assert done.returncode == 0, done.stderr
    return folder


class Loaded(HTMLParser):
    """The addresses that a page loads when it is opened."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag in ("script", "img", "iframe") and values.get("src"):
            self.addresses.append(str(values["src"]))
        if tag == "link" and values.get("rel") in ("stylesheet", "icon", "preload", "preconnect"):
            self.addresses.append(str(values["href"]))


def test_every_page_is_there(site: Path) -> None:
    made = {path.relative_to(site).with_suffix("").as_posix() for path in site.rglob("*.html")}
    wanted = {
        path.relative_to(ROOT / "docs").with_suffix("").as_posix()
        for path in (ROOT / "docs").rglob("*.md")
    }
    benchmarks = {
        path.relative_to(ROOT).with_suffix("").as_posix()
        for path in (ROOT / "benchmarks").rglob("*.md")
    }
    # a README is the page of its folder
    benchmarks = {name.replace("README", "index") for name in benchmarks}
    assert len(wanted) > 30 and len(benchmarks) > 15
    assert wanted | benchmarks | {"reference/cli", "reference/rest", "reference/machines"} <= made


def test_a_page_loads_nothing_from_elsewhere(site: Path) -> None:
    for page in sorted(
        {*site.rglob("*.html")} - {site / "404.html"}
    ):  # which a server shows at any path
        loaded = Loaded()
        loaded.feed(page.read_text("utf-8"))
        assert loaded.addresses
        for address in loaded.addresses:
            assert not re.match(r"(https?:)?//", address), (page, address)
            assert (page.parent / address.partition("?")[0].partition("#")[0]).exists(), (
                page,
                address,
            )
    for style in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?(https?:)?//", style.read_text("utf-8")), style


def test_every_command_is_in_the_reference(site: Path) -> None:
    page = (site / "reference" / "cli.html").read_text("utf-8")
    for name in main.commands:
        assert f"hpo {name}" in page, name


def test_a_link_that_leads_nowhere_fails_the_build(tmp_path: Path) -> None:
    """By the rules of the site, on a site of one page."""
    pytest.importorskip("material")
    rules = (ROOT / "mkdocs.yml").read_text("utf-8").partition("\nnav:")[0]
    (tmp_path / "mkdocs.yml").write_text(re.sub(r"(?m)^(hooks|not_in_nav):.*$", "", rules))
    (tmp_path / "docs").mkdir()
    for link, fails in (("index.md", False), ("guides/nowhere.md", True)):
        (tmp_path / "docs" / "index.md").write_text(f"# Start\n\n[somewhere]({link})\n")
        done = build(tmp_path / "site", tmp_path)
        assert (done.returncode != 0) == fails, done.stderr
    assert "nowhere.md" in done.stderr
