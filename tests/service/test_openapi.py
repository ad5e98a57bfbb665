"""The OpenAPI document: requests generated from it get no 5xx, and only responses that it describes."""

from __future__ import annotations

import contextlib
import json
from collections import Counter

import pytest
import schemathesis
from api_server import add_trials, served
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

CHECKS = (
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
)


@pytest.fixture(scope="module")
def api(tmp_path_factory):
    with served(
        tmp_path_factory.mktemp("server"), limits={"burst": 10**6, "requests_per_second": 10**5}
    ) as api:
        yield api


@pytest.fixture(scope="module")
def document(api):
    found = schemathesis.openapi.from_dict(api.client.get("/openapi.json").json())
    found.config.update(base_url=str(api.client.base_url))
    return found.exclude(path_regex="/events$")  # streams do not end; test_events has them


@pytest.mark.slow
@pytest.mark.parametrize(
    "mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=lambda mode: mode.value
)
def test_made_up_requests(api, document, mode):
    """Those that the document allows, and those that it does not, of every operation."""
    statuses = Counter()
    for found in document.get_all_operations():
        headers = fresh_start(api)

        @settings(
            max_examples=7,
            deadline=None,
            database=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        )
        @given(case=found.ok().as_strategy(generation_mode=mode))
        def check(case):
            answer = case.call(headers=headers)  # noqa: B023  (called within the round)
            statuses[answer.status_code] += 1
            case.validate_response(answer, checks=CHECKS)

        with contextlib.suppress(Unsatisfiable):  # what takes no parameter has no wrong one
            check()
    assert statuses[200 if mode is GenerationMode.POSITIVE else 422] > 30, statuses
    assert statuses.total() > 120, statuses


def fresh_start(api):
    """A study and a token, whatever the requests before deleted and revoked."""
    api.secrets.clear()
    if api.submit("digits").status_code == 201:
        add_trials(api.store, "digits", 3)
    return {"Authorization": f"Bearer {api.token('ada', 'admin')}"}


@pytest.mark.medium
def test_the_document_is_complete(api):
    document = api.client.get("/openapi.json").json()
    tags = {tag["name"] for tag in document["tags"]}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            place = f"{method} {path}"
            assert operation["summary"], place
            assert len(operation["description"]) > 20, place
            assert set(operation["tags"]) <= tags, place
            if path not in ("/health", "/ready"):
                assert {"401", "403", "429", "503"} <= set(operation["responses"]), place
                assert operation["security"], place
            if method == "post" and "{name}" in path:
                assert "404" in operation["responses"], place
    for name, model in document["components"]["schemas"].items():
        assert (
            name == "ValidationError" or "HTTPValidationError" in name or model.get("description")
        ), name


def test_the_page_for_readers_needs_no_other_server(api):
    answer = api.client.get("/docs")
    assert answer.status_code == 200
    assert "http://" not in answer.text.replace("http://127.0.0.1", "")
    assert "https://" not in answer.text
    assert "<script" not in answer.text
    for path in (
        "/api/v1/studies/{name}/cancel",
        "/api/v1/plans/{number}/script",
        "Idempotency-Key",
    ):
        assert path.lower() in answer.text.lower()
    assert api.client.get("/").headers["location"] == "docs"


def test_the_example_study_of_the_document_is_one(api):
    fresh_start(api)
    document = api.client.get("/openapi.json").json()
    [example] = document["components"]["schemas"]["Submission"]["properties"]["spec"]["examples"]
    assert api.submit(spec=example).status_code == 201
    assert json.dumps(example) in json.dumps(document)
