"""Prometheus' alerts and Grafana's dashboard use only metrics, labels and values that a server has."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from storage.records import StudyState, TrialState
from tests.service.api_server import add_trials, served

promql = pytest.importorskip("promql_parser")

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy" / "prometheus" / "rules.yaml"
DASHBOARD: dict[str, Any] = json.loads((ROOT / "deploy/grafana/largebatch.json").read_text("utf-8"))
ALERTS = {
    each["alert"]: each
    for group in yaml.safe_load(RULES.read_text("utf-8"))["groups"]
    for each in group["rules"]
}
EXPRESSIONS = {
    **{name: each["expr"] for name, each in ALERTS.items()},
    **{
        f"{panel['title']} {target['refId']}": target["expr"]
        for panel in DASHBOARD["panels"]
        for target in panel["targets"]
    },
}
OF_PROMETHEUS = {"up"}
STATES = {
    "hpo_studies": {str(each) for each in StudyState},
    "hpo_trials": {str(each) for each in TrialState},
}


def selectors(expression: str) -> list[Any]:
    """The vector selectors of an expression, Grafana's variables replaced."""
    found: list[Any] = []

    def look(node: Any) -> bool:
        if isinstance(node, promql.VectorSelector):
            found.append(node)
        return True

    promql.walk(promql.parse(expression.replace("$__rate_interval", "5m")), look)
    return found


@pytest.fixture(scope="module")
def families(tmp_path_factory):
    """What /metrics of a server has said after some requests: the labels of each sample, by its name."""
    with served(tmp_path_factory.mktemp("server")) as api:
        api.submit("bowl")
        add_trials(api.store, "bowl", 2)
        api.call("GET", "/studies/none")
        page = api.client.get(
            "/metrics", headers={"Authorization": f"Bearer {api.token('ada', 'read')}"}
        )
    assert page.status_code == 200
    samples: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(page.text):
        for sample in family.samples:
            samples.setdefault(sample.name, set()).update(sample.labels)
    return samples


@pytest.mark.parametrize("place", EXPRESSIONS)
def test_every_expression_asks_for_what_a_server_serves(families, place) -> None:
    found = selectors(EXPRESSIONS[place])
    assert found
    for each in found:
        if each.name in OF_PROMETHEUS:
            continue
        assert each.name in families, f"{place}: no server serves {each.name}"
        for matcher in each.matchers.matchers:
            assert matcher.name in {*families[each.name], "job", "instance"}, (place, matcher.name)
            if matcher.name == "state":
                assert set(matcher.value.split("|")) <= STATES[each.name], place


def test_every_metric_of_a_server_is_drawn(families) -> None:
    drawn = {
        each.name
        for panel in DASHBOARD["panels"]
        for target in panel["targets"]
        for each in selectors(target["expr"])
    }

    def family(name: str) -> str:
        return re.sub(r"_(total|bucket|count|sum)$", "", name)

    assert {family(name) for name in families} == {family(name) for name in drawn - OF_PROMETHEUS}


def test_a_name_that_no_server_serves_would_be_found(families) -> None:
    (absent,) = selectors("sum(rate(hpo_requests[5m]))")
    assert absent.name not in families
    assert [each.name for each in selectors("max(a) > 2 * sum(delta(b[5m])) and c == 0")] == list(
        "abc"
    )


def test_legends_name_labels_that_are_left() -> None:
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            for label in re.findall(r"{{(\w+)}}", target["legendFormat"]):
                grouped = re.search(r"by \(([\w, ]+)\)", target["expr"])
                assert grouped and label in grouped[1].split(", "), panel["title"]


def test_panels_have_names_numbers_and_places_of_their_own() -> None:
    panels = DASHBOARD["panels"]
    assert len({each["id"] for each in panels}) == len({e["title"] for e in panels}) == len(panels)
    cells = [
        (column, row)
        for place in (each["gridPos"] for each in panels)
        for column in range(place["x"], place["x"] + place["w"])
        for row in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(column for column, _ in cells) < 24
    known = {f"${each['name']}" for each in DASHBOARD["templating"]["list"]} | {"$__rate_interval"}
    used = re.findall(r"\$\w+", " ".join(EXPRESSIONS.values()))
    assert set(used) <= known
    assert "id" not in DASHBOARD  # Grafana gives one on import


def test_every_alert_says_how_bad_it_is_and_what_it_means() -> None:
    for name, each in ALERTS.items():
        assert each["labels"]["severity"] in ("critical", "warning"), name
        assert each["for"], name
        assert set(each["annotations"]) == {"summary", "description"}, name


def test_promtool_takes_the_rules_and_each_alert_fires_when_it_should(tmp_path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("there is no promtool here (Debian: prometheus)")
    checked = subprocess.run(
        [promtool, "check", "rules", RULES], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert f"{len(ALERTS)} rules found" in checked.stdout
    told = Path(__file__).with_name("rules_of_time.yaml").read_text("utf-8")
    assert {each for each in ALERTS if told.count(f"alertname: {each}\n        exp_alerts")} == set(
        ALERTS
    )
    (tmp_path / "tests.yaml").write_text(told.replace("RULES", str(RULES)))
    tried = subprocess.run(
        [promtool, "test", "rules", tmp_path / "tests.yaml"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert tried.returncode == 0, tried.stdout + tried.stderr
    broken = RULES.read_text("utf-8").replace("== 0", "== 1")
    (tmp_path / "rules.yaml").write_text(broken)
    (tmp_path / "tests.yaml").write_text(told.replace("RULES", str(tmp_path / "rules.yaml")))
    tried = subprocess.run(
        [promtool, "test", "rules", tmp_path / "tests.yaml"], capture_output=True, check=False
    )
    assert tried.returncode == 1
