"""Accessibility of the pages: keyboard only, screen readers by axe-core's rules, both themes, a phone."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.dashboard_browser import Server
from tests.dashboard.browser_samples import until

PAGES = {
    "studies": "/",
    "submit": "/submit",
    "calibration": "/calibration",
    "workers": "/workers",
    "study": "/studies/done",
    "forecast": "/studies/done/forecast",
    "trial": "/studies/done/trials/2",
    "compare": "/studies/done/compare?trials=0,3",
}
READY = {
    "studies": "#studies td",
    "submit": "#lines span",
    "calibration": "#verdict :not(.skeleton)",
    "workers": "#workers td",
    "study": "#ladder .main-svg",
    "forecast": "#front .main-svg",
    "trial": "#metric .main-svg",
    "compare": "#facts td",
}


@pytest.mark.parametrize("theme", ["light", pytest.param("dark", marks=pytest.mark.slow)])
def test_axe_finds_no_serious_fault(page: Any, server: Server, theme: str) -> None:
    axe = pytest.importorskip(
        "axe_playwright_python.sync_playwright", reason="pip install axe-playwright-python"
    ).Axe()
    page.emulate_media(color_scheme=theme)
    found = []
    for name, address in PAGES.items():
        page.goto(server.address + address)
        page.wait_for_selector(READY[name])
        assert page.evaluate("document.documentElement.dataset.theme") == theme
        violations = axe.run(page).response["violations"]
        found += [
            (name, each["id"], each["nodes"][0]["html"][:200])
            for each in violations
            if each["impact"] in ("serious", "critical")
        ]
    assert found == []


def test_axe_finds_no_serious_fault_in_the_login(fresh_page: Any, server: Server) -> None:
    axe = pytest.importorskip(
        "axe_playwright_python.sync_playwright", reason="pip install axe-playwright-python"
    ).Axe()
    fresh_page.goto(f"{server.address}/login")
    violations = axe.run(fresh_page).response["violations"]
    assert [each["id"] for each in violations if each["impact"] in ("serious", "critical")] == []


@pytest.mark.slow
def test_nothing_is_wider_than_a_phone(page: Any, server: Server) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    for name, address in PAGES.items():
        page.goto(server.address + address)
        page.wait_for_selector(READY[name])
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, name


OVERLAPS = """selector => {
    const labels = [...document.querySelectorAll(selector)].filter(each => each.textContent.trim());
    const boxes = labels.map(each => [each.textContent, each.getBoundingClientRect()]);
    const apart = (a, b) =>
        a.right <= b.left + 1 || b.right <= a.left + 1 || a.bottom <= b.top + 1 || b.bottom <= a.top + 1;
    const found = [];
    boxes.forEach(([one, a], index) => boxes.slice(index + 1).forEach(([other, b]) => {
        if (a.width && b.width && !apart(a, b)) found.push([one, other]);
    }));
    return found;
}"""


@pytest.mark.slow
def test_labels_of_the_ladder_do_not_overlap_on_a_phone(page: Any, server: Server) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(f"{server.address}/studies/done")
    page.wait_for_selector("#ladder .xtitle")
    labels = "#ladder .annotation-text, #ladder .xtitle, #ladder .ytitle, #ladder .legendtext"
    assert page.evaluate(OVERLAPS, labels) == []


def tab_to(page: Any, selector: str, most: int = 60) -> None:
    """Press Tab until the element has the focus, and see that the focus shows."""
    for _ in range(most):
        page.keyboard.press("Tab")
        if page.evaluate("selector => document.activeElement.matches(selector)", selector):
            outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
            assert outline != "none", f"the focus on {selector} does not show"
            return
    raise AssertionError(f"{selector} cannot be reached with Tab")


def test_the_main_path_needs_no_mouse(page: Any, server: Server) -> None:
    page.goto(server.address)
    page.wait_for_selector("#studies td")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"  # straight to the content
    tab_to(page, "a[href='/studies/done']")
    page.keyboard.press("Enter")
    page.wait_for_url("**/studies/done")
    page.wait_for_selector("#table tbody input")
    page.wait_for_selector("#forecast:visible")
    tab_to(page, "#filter_state", 100)
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "filter_text"
    page.keyboard.type("learning rate > 0.001")
    tab_to(page, "#table input[data-trial='0']", 100)
    page.keyboard.press("Space")
    assert page.evaluate("document.activeElement.dataset.trial") == "0"  # it stays where it was
    tab_to(page, "#table input[data-trial='1']")
    page.keyboard.press("Space")
    while not page.evaluate("document.activeElement.id === 'compare'"):
        page.keyboard.press("Shift+Tab")
    page.keyboard.press("Enter")
    page.wait_for_url("**/compare?trials=0,1")
    page.wait_for_selector("#facts td")

    page.goto(f"{server.address}/studies/done/forecast")
    page.wait_for_selector("#tiles .tile")
    tab_to(page, "#batch")
    before = page.inner_text("#said")
    page.keyboard.press("ArrowLeft")
    until(page, "text => document.getElementById('said').innerText !== text", before)
    tab_to(page, "#theme", 200)
    theme = page.evaluate("document.documentElement.dataset.theme")
    page.keyboard.press("Enter")
    assert page.evaluate("document.documentElement.dataset.theme") != theme
    tab_to(page, "#logout")
    page.keyboard.press("Enter")
    page.wait_for_url("**/login")
