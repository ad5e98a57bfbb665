"""Health, readiness, metrics, logs; a database that becomes unavailable and comes back."""

from __future__ import annotations

import json
import logging
import sys
import time

import httpx
import pytest
from api_server import add_trials, listening, served
from prometheus_client.parser import text_string_to_metric_families

from hpo.service.app import create_app
from hpo.service.config import ServerConfig
from hpo.service.logs import ACCESS, JsonLines, TextLines
from storage.records import WorkerBeat


@pytest.fixture
def api(tmp_path):
    with served(tmp_path) as api:
        yield api


def test_a_server_may_start_before_its_database(tmp_path):
    folder = tmp_path / "later"
    app = create_app(ServerConfig(storage=f"sqlite:///{folder}/hpo.db"))
    with listening(app) as address, httpx.Client(base_url=address) as client:
        assert client.get("/health").json() == {"status": "ok"}
        away = client.get("/ready")
        assert (away.status_code, away.headers["Retry-After"]) == (503, "2")
        refused = client.get("/api/v1/studies", headers={"Authorization": "Bearer lb_" + "A" * 43})
        assert (refused.status_code, refused.json()["error"]["kind"]) == (503, "unavailable")
        folder.mkdir()
        deadline = time.monotonic() + 10
        while client.get("/ready").status_code != 200:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert (
            client.get(
                "/api/v1/studies", headers={"Authorization": "Bearer lb_" + "A" * 43}
            ).status_code
            == 401
        )


def test_postgresql_that_restarts_is_503_and_then_back(postgres, postgres_url, tmp_path):
    with served(tmp_path, storage=postgres_url) as api:
        assert api.submit().status_code == 201
        assert api.call("GET", "/studies/bowl").status_code == 200
        postgres.stop()
        try:
            for path in ("/studies/bowl", "/studies", "/studies/bowl/trials"):
                answer = api.call("GET", path)
                assert answer.status_code == 503
                assert "Retry-After" in answer.headers
                assert "postgres" not in answer.text.lower()
            assert api.submit("more").status_code == 503
            assert api.client.get("/ready").status_code == 503
            assert api.client.get("/health").status_code == 200
        finally:
            postgres.start()
        assert api.client.get("/ready").status_code == 200
        assert api.call("GET", "/studies/bowl").status_code == 200
        assert api.submit("more").status_code == 201


def samples_of(text):
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_metrics_count_what_was_asked_and_what_the_database_holds(api):
    api.submit()
    api.submit("second")
    api.store.claim_study("worker", lease_seconds=60)
    add_trials(api.store, "bowl", 2, points=3)
    api.store.beat(WorkerBeat(name="w", host="h", pid=1, version="0", cores=2, accelerators=0))
    for _ in range(3):
        api.call("GET", "/studies/bowl")
    api.call("GET", "/studies/no-such-study")
    headers = {"Authorization": f"Bearer {api.token('prometheus', 'read')}"}
    answer = api.client.get("/metrics", headers=headers)
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    found = samples_of(answer.text)
    assert found["hpo_studies", "queued"] == 1
    assert found["hpo_studies", "running"] == 1
    assert found["hpo_trials", "reached"] == 2
    assert found["hpo_convergence_points",] == 6
    assert found["hpo_workers",] == 1
    assert 0 <= found["hpo_queue_age_seconds",] < 60
    route = next(
        key[2]
        for key in found
        if key[0] == "hpo_requests_total" and key[2].endswith("/studies/{name}")
    )
    assert found["hpo_requests_total", "GET", route, "200"] == 3
    assert found["hpo_requests_total", "GET", route, "404"] == 1
    assert found["hpo_request_seconds_count", "GET", route] == 4
    assert "no-such-study" not in answer.text


def test_workers_are_listed(api):
    api.store.beat(WorkerBeat(name="w", host="h", pid=1, version="0", cores=2, accelerators=0))
    [worker] = api.call("GET", "/workers").json()["workers"]
    assert (worker["name"], worker["host"], worker["cores"]) == ("w", "h", 2)


def test_the_log_has_one_line_for_a_request_and_no_secret(api):
    records = []
    handler = logging.Handler()
    handler.emit = records.append
    ACCESS.addHandler(handler)
    ACCESS.setLevel(logging.INFO)
    try:
        secret = api.token("ada")
        api.client.get("/login", params={"token": secret}, headers={"X-Request-ID": "r-1"})
        api.call("GET", "/studies/a%0d%0aGET%20fake?search=q")
        deadline = time.monotonic() + 5
        while len(records) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
    finally:
        ACCESS.removeHandler(handler)
    lines = [form.format(record) for form in (JsonLines(), TextLines()) for record in records]
    assert len(records) == 2
    assert not any(
        "\n" in line or "\r" in line or secret in line or "search" in line for line in lines
    )
    told = json.loads(lines[0])
    assert (told["request_id"], told["path"], told["status"], told["owner"]) == (
        "r-1",
        "/login",
        303,
        "ada",
    )
    assert json.loads(lines[1])["route"].endswith("/studies/{name}")
    assert "[r-1]" in lines[2]


def test_a_traceback_in_the_log_is_told_apart_from_events():
    record = logging.makeLogRecord({"msg": "request failed"})
    try:
        raise ValueError("one\n12:34:56 GET /fake 200 1 ms\x1b[2J")
    except ValueError:
        record.exc_info = sys.exc_info()
    first, *lines = TextLines().format(record).split("\n")
    assert first.endswith("request failed")
    assert all(line.startswith("    ") and line.isprintable() for line in lines)
    assert lines[-1].strip() == r"12:34:56 GET /fake 200 1 ms\x1b[2J"


def test_a_failure_within_is_told_without_its_inside(api, monkeypatch, caplog):
    def fail(*_, **__):
        raise RuntimeError("the secret inside")

    monkeypatch.setattr(api.store, "page_studies", fail)
    answer = api.call("GET", "/studies")
    assert (answer.status_code, answer.json()["error"]["kind"]) == (500, "internal")
    assert "inside" not in answer.text
    assert answer.headers["X-Request-ID"] in answer.text
    assert "the secret inside" in caplog.text
