"""What a stranger or a malicious user may try; each attempt is refused with its status, none with a 5xx."""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
import uvicorn
from api_server import Api, served, spec_of
from starlette.responses import Response, StreamingResponse
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from hpo.cli.own_arguments import storage_with_password
from hpo.service import checking
from hpo.service.app import create_app
from hpo.service.auth import create_token
from hpo.service.checking import CheckerPool
from hpo.service.config import ServerConfig
from hpo.service.connections import PIPELINED
from hpo.service.context import allowed_hosts
from hpo.service.refusal import RefusedError
from hpo.service.serving import _uvicorn, server_socket, worker_command
from hpo.service.submission import faults_of_submitted_data
from search_spaces.settings import TrainingSettings
from storage.records import NewTrial
from trainers.workloads.described import WORKLOADS


@dataclass
class Place:
    """A server that allows data in one folder, which holds a link out of itself."""

    api: Any
    inside: Any
    outside: Any


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("server")
    inside, outside = folder / "data", folder / "data-secret"
    for each in (inside / "cells", outside):
        each.mkdir(parents=True)
    (inside / "link").symlink_to(outside)
    (inside / "loop").symlink_to(inside / "loop")
    with served(folder, data_folders=[str(inside)], limits={"burst": 100_000}) as api:
        assert api.submit("victim", owner="bob").status_code == 201
        yield Place(api, inside, outside)


# who is not let in

AUTHORIZATIONS = {
    "no token": None,
    "nothing": "",
    "bearer alone": "Bearer",
    "basic": "Basic YTpi",
    "unknown": "Bearer lb_" + "A" * 43,
    "not one of ours": "Bearer eyJhbGciOiJub25lIn0.e30.",
    "very long": "Bearer lb_" + "A" * 20_000,
    "sql": "Bearer lb_' OR 1=1 --" + "A" * 30,
    "two": "Bearer lb_a, Bearer lb_b",
    "latin": b"Bearer lb_\xff\xfe" + b"A" * 40,
    "digest": "Bearer " + "a" * 64,
}
ADDRESSES = [
    ("GET", "/studies"),
    ("POST", "/studies"),
    ("GET", "/studies/victim"),
    ("POST", "/studies/victim/cancel"),
    ("DELETE", "/studies/victim"),
    ("GET", "/studies/victim/trials"),
    ("GET", "/studies/victim/convergence"),
    ("GET", "/studies/victim/forecast"),
    ("POST", "/studies/victim/plans"),
    ("GET", "/plans/1/script"),
    ("GET", "/events"),
    ("GET", "/studies/victim/events"),
    ("GET", "/studies/victim/logs"),
    ("GET", "/workers"),
    ("GET", "/machines"),
    ("GET", "/calibration"),
    ("GET", "/tokens"),
    ("POST", "/tokens"),
    ("DELETE", "/tokens/1"),
    ("GET", "/me"),
]


@pytest.mark.medium
@pytest.mark.parametrize("authorization", AUTHORIZATIONS.values(), ids=AUTHORIZATIONS.keys())
def test_without_a_token_that_counts(place, authorization):
    place.api.app.state.context.strangers._left.clear()
    headers = {} if authorization is None else {"Authorization": authorization}
    for method, path in (
        ADDRESSES if authorization in (None, AUTHORIZATIONS["unknown"]) else ADDRESSES[:1]
    ):
        answer = place.api.client.request(method, f"/api/v1{path}", headers=headers)
        assert answer.status_code == 401, (method, path, answer.text)
        assert answer.headers["WWW-Authenticate"] == "Bearer"
        assert answer.json()["error"]["kind"] == "unauthorized"
    assert place.api.client.get("/metrics", headers=headers).status_code == 401


@pytest.mark.parametrize("revoked", [True, False], ids=["revoked", "expired"])
def test_with_a_token_that_counts_no_more(place, revoked):
    headers = {"Authorization": f"Bearer {place.api.ended_token(revoked=revoked)}"}
    for method, path in ADDRESSES:
        assert (
            place.api.client.request(method, f"/api/v1{path}", headers=headers).status_code == 401
        )


def test_every_address_under_api_needs_a_token(place):
    document = place.api.client.get("/openapi.json").json()
    addresses = [
        (method.upper(), path) for path, methods in document["paths"].items() for method in methods
    ]
    assert len(addresses) > 25
    for method, path in addresses:
        filled = path.replace("{name}", "victim").replace("{number}", "1")
        status = place.api.client.request(method, filled).status_code
        assert status == (200 if path in ("/health", "/ready") else 401), (method, path)


def test_a_scope_that_does_not_suffice(place):
    for method, path in (
        ("POST", "/studies"),
        ("POST", "/studies/victim/cancel"),
        ("POST", "/studies/victim/resume"),
        ("DELETE", "/studies/victim"),
        ("POST", "/studies/victim/plans"),
    ):
        answer = place.api.call(
            method, path, scope="read", json={"spec": spec_of("x")} if path == "/studies" else None
        )
        assert answer.status_code == 403, (method, path, answer.text)
    body = {"owner": "ada", "scope": "admin"}
    assert place.api.call("POST", "/tokens", json=body).status_code == 403
    assert place.api.call("DELETE", "/tokens/1", owner="eve").status_code == 404


def test_another_s_study(place):
    for method, path in (
        ("POST", "/cancel"),
        ("POST", "/resume"),
        ("DELETE", ""),
        ("POST", "/plans"),
    ):
        assert place.api.call(method, f"/studies/victim{path}").status_code == 403
    assert (
        place.api.call(
            "POST", "/studies/victim/resume", json={"spec": spec_of("victim")}
        ).status_code
        == 403
    )
    assert place.api.store.study("victim").state == "queued"


# what a study file may not say

BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]\n"
    for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)
FILES = {
    "module of the system": spec_of("m", workload="os:system"),
    "module with a path": spec_of("m", workload="../../evil:Workload"),
    "class of the project": spec_of("m", workload="trainers.workloads.resnet.task:ResNetWorkload"),
    "dotted": spec_of("m", workload="subprocess.Popen"),
    "python tag": "name: !!python/object/apply:os.system ['true']\n",
    "python tag within": spec_of("m") + "data: !!python/name:os.system {}\n",
    "aliases that swell": BOMB,
    "aliases that swell within": spec_of("m")
    + "data:\n"
    + "".join(f"  {line}\n" for line in BOMB.splitlines()),
    "deep lists": "[" * 100_000,
    "deep mappings": spec_of("m") + "data: " + "{a: " * 1000 + "1" + "}" * 1000,
    "deep indentation": "\n".join(" " * depth + "a:" for depth in range(900)),
    "very many keys": "\n".join(f"k{number}: 1" for number in range(100_000)),
    "a text of a megabyte": "name: " + "x" * 1_100_000,
    "an anchor to itself": "a: &a [*a]",
    "NUL": "name: \x00",
    "escaped NUL": spec_of("m").replace('"m"', '"m\\0"'),
    "NUL in a path": spec_of("m") + 'data: {path: "/data\\0/x"}\n',
    "half a pair": spec_of("m").replace('"m"', '"\\ud800"'),
    "line break in the name": spec_of("a\r\nSet-Cookie: x=y"),
    "a huge number": spec_of("m").replace("trials: 30", f"trials: {'9' * 5000}"),
    "infinity": spec_of("m").replace("at_most: 0.1", "at_most: .inf"),
    "more trials than a server takes": spec_of(
        "m", budget={"trials": 10**9, "epochs_per_trial": 1}
    ),
    "processes by the thousand": spec_of(
        "m", full_scale={"global_batch_size": 2048, "workers": 2048, "validate": True}
    ),
    "a machine that is a file": spec_of(
        "m", full_scale={"global_batch_size": 64, "machine": "/etc/passwd"}
    ),
    "a machine up the path": spec_of(
        "m", full_scale={"global_batch_size": 64, "machine": "../machines/local"}
    ),
    "a recipe that is a file": spec_of("m", recipe="../../../etc/passwd"),
    "global batches that no column holds": spec_of("m", ladder=[10**12]),
    "a batch that is a huge prime": spec_of(
        "m", full_scale={"global_batch_size": 2305843009213693951, "workers": 2}
    ),
    "a prime as large as a batch may be": spec_of(
        "m", ladder=[2**31 - 1], budget={"trials": 2, "epochs_per_trial": 1}
    ).replace("normalization_batch_size: 1", "normalization_batch_size: 2"),
    "a core for everyone": spec_of("m", resources={"cpus_per_worker": 10**9}),
    "more GPUs than were made": spec_of("m", resources={"gpus_per_worker": 10**6}),
    "a data option of a megabyte": spec_of("m", data={"a" * 900_000: 1}),
    "a path of a megabyte": spec_of("m", data={"path": "/a" * 450_000}),
    "a path through many folders": spec_of("m", data={"path": "/tmp/.." * 120_000}),
    "a path of 4,097 characters": spec_of("m", data={"path": "/" + "a" * 4096}),
    "more files than anybody has": spec_of("m", data={f"x{n}": "/x" for n in range(9_000)}),
    "very many faults": spec_of("m", ladder=["x"] * 18_000),
    "very many faults of one key": spec_of("m") + "name: x\n" * 9_000,
    "very many unknown keys": "\n".join(f"kk{number}x: 1" for number in range(9_000)),
    "very many rungs": spec_of(
        "m", ladder=[*range(1, 18_000)], budget={"trials": 18_000, "epochs_per_trial": 1}
    ),
    "a metric of a megabyte": spec_of("m", target={"metric": "x" * 900_000, "at_most": 1}),
    "a recipe of a megabyte": spec_of("m", recipe="x" * 900_000),
    "samples without end": spec_of("m", data={"train_samples": 10**15}),
    "modes without end": spec_of("m", data={"modes": 10**12}),
    "modes that are no number": spec_of("m", data={"modes": 10**400}),
    "epochs without end": spec_of("m", budget={"trials": 30, "epochs_per_trial": 1e300}),
    "updates without end": spec_of(
        "m", budget={"trials": 30, "epochs_per_trial": 90_000}, data={"train_samples": 10**8}
    ),
    "evaluations without end": spec_of(
        "m", budget={"trials": 30, "epochs_per_trial": 10_000, "evaluations_per_epoch": 10_000}
    ),
    "points without end": spec_of(
        "m", budget={"trials": 100_000, "epochs_per_trial": 1000, "evaluations_per_epoch": 10}
    ),
    "seeds without end": spec_of("m", seeds=10**9),
    "terabytes of generated fields": spec_of(
        "m",
        workload="segmentation",
        data={"samples": 10**6, "height": 768, "width": 1152},
        target={"metric": "iou", "at_least": 0.5},
    ),
    "generated samples without end": spec_of(
        "m",
        workload="segmentation",
        data={"samples": 10**18, "height": 24, "width": 36},
        target={"metric": "iou", "at_least": 0.5},
    ),
    "a field as large as a continent": spec_of(
        "m",
        workload="segmentation",
        data={"samples": 1, "height": 10**9, "width": 10**9},
        target={"metric": "iou", "at_least": 0.5},
    ),
    "more processes than the machine has cores": spec_of(
        "m",
        full_scale={
            "global_batch_size": 64 * (os.cpu_count() + 1),
            "workers": os.cpu_count() + 1,
            "validate": True,
        },
    ),
    "not YAML": "\t{]",
    "nothing": " ",
}


@pytest.mark.medium
@pytest.mark.parametrize("text", FILES.values(), ids=FILES.keys())
def test_a_study_file_that_means_harm(place, text):
    began, used = time.process_time(), time.monotonic()
    answer = place.api.submit(spec=text)
    assert answer.status_code == 422, answer.text[:500]
    error = answer.json()["error"]
    assert error["kind"] in ("spec", "invalid")
    assert len(error["message"]) < 5_000
    assert len(error.get("faults", ())) <= 21
    assert time.process_time() - began < 2  # a bomb would not end at all
    assert time.monotonic() - used < 15
    assert [study.name for study in place.api.store.studies()] == ["victim"]


def test_no_module_is_imported_by_a_name_from_the_network(place, monkeypatch, tmp_path):
    marker = tmp_path / "imported"
    (tmp_path / "evil.py").write_text(f"open({str(marker)!r}, 'w')\nclass Workload: pass\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    assert place.api.submit(spec=spec_of("m", workload="evil:Workload")).status_code == 422
    assert not marker.exists()


def test_the_allowed_workloads_are_the_built_in_ones(place):
    # a program is any command: it takes an administrator to allow them
    assert set(place.api.app.state.context.config.workloads) == set(WORKLOADS.built_in) - {
        "program"
    }


PATHS = {
    "absolute": "/etc",
    "up": "{inside}/../data-secret",
    "beside, with the same beginning": "{outside}",
    "through a link": "{inside}/link",
    "below a link": "{inside}/link/more",
    "a loop of links": "{inside}/loop/x",
    "relative": "cells",
    "relative and up": "../../etc",
    "home": "~/x",
    "home of root": "~root",
    "empty": "",
    "file URL": "file:///etc/passwd",
    "back slashes": "..\\..\\etc",
    "the root": "/",
    "process": "/proc/self/environ",
    "double slash": "//etc/passwd",
    "up within": "{inside}/cells/../../data-secret",
}


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS.keys())
@pytest.mark.parametrize(
    "data",
    [
        {"source": "image_folder", "path": "PATH"},
        {"folder": "PATH"},
        {"source": "deepcam", "path": ["PATH"]},
        {"options": {"path": "PATH"}},
    ],
)
def test_data_outside_of_the_server_s_folders(place, data, path):
    path = path.format(inside=place.inside, outside=place.outside)

    def filled(value):
        return (
            {
                key: path if entry == "PATH" else [path] if entry == ["PATH"] else filled(entry)
                for key, entry in value.items()
            }
            if isinstance(value, dict)
            else value
        )

    answer = place.api.submit(
        spec=spec_of(
            "m", workload="resnet", data=filled(data), target={"metric": "top1", "at_least": 0.9}
        )
    )
    assert answer.status_code == 422
    assert answer.json()["error"]["faults"][0]["key"].startswith("data")


def test_data_inside_is_taken(place):
    assert not list(
        faults_of_submitted_data(
            {"source": "image_folder", "path": f"{place.inside}/cells"}, [place.inside]
        )
    )
    assert not list(
        faults_of_submitted_data(
            {"path": str(place.inside / "not" / "there" / "yet")}, [place.inside]
        )
    )
    assert list(faults_of_submitted_data({"path": f"{place.inside}/cells"}, []))


# requests that are too large, too many, too odd


def test_a_body_of_100_megabytes_is_refused_before_it_is_read(place):
    sent = 0

    def chunks():
        nonlocal sent
        for _ in range(100):
            sent += 1 << 20
            yield b"x" * (1 << 20)

    for headers in ({"Content-Length": str(100 << 20)}, {}):  # with its length told, and in chunks
        sent = 0
        answer = place.api.call("POST", "/studies", content=chunks(), headers=headers)
        assert (answer.status_code, answer.json()["error"]["kind"]) == (413, "too_large")
        assert sent < 50 << 20
    answer = place.api.client.post("/login", content=chunks())
    assert answer.status_code == 413


RAW = {
    "length that lies": ("Content-Length: 99999999999999999999", (400, 413)),
    "negative length": ("Content-Length: -1", (400,)),
    "length that is a word": ("Content-Length: many", (400,)),
    "header without a name": (": x", (400,)),
    "space before the colon": ("X-A : b", (400, 401)),
    "a header of 200 kB": ("X-A: " + "a" * 200_000, (400, 401, 431)),
    "two lengths": ("Content-Length: 1\r\nContent-Length: 2", (400,)),
    "NUL in a header": ("X-A: a\x00b", (400,)),
    "a second host": ("Host: evil.example", (400,)),
}


@pytest.mark.parametrize(("line", "statuses"), RAW.values(), ids=RAW.keys())
def test_raw_requests(place, line, statuses):
    assert (
        raw_status(
            place, f"POST /api/v1/studies HTTP/1.1\r\nHost: localhost\r\n{line}\r\n\r\n".encode()
        )
        in statuses
    )
    assert place.api.client.get("/health").status_code == 200


def test_a_slow_body_is_given_up(tmp_path):
    with served(tmp_path, limits={"body_seconds": 0.3}) as api:
        head = f"POST /api/v1/studies HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {api.token('ada')}\r\n"
        request = f"{head}Content-Length: 100\r\n\r\n{{".encode()
        assert raw_status(Place(api, None, None), request) == 408


def raw_status(place: Place, request: bytes) -> int:
    address = place.api.client.base_url
    with socket.create_connection((address.host, address.port), timeout=10) as connection:
        connection.sendall(request)
        first = connection.makefile("rb").readline()
    return int(first.split()[1])


ODD = {
    "name with a line break": "/studies/a%0d%0aSet-Cookie:%20x=y",
    "name with NUL": "/studies/a%00b",
    "name that is no UTF-8": "/studies/%ff%fe",
    "name of 10,000 characters": "/studies/" + "a" * 10_000,
    "sql in a name": "/studies/'%20OR%20'1'='1",
    "the stand-in for a slash": "/studies/%EE%80%80",
    "up": "/studies/%2e%2e/%2e%2e/etc/passwd",
    "up, encoded": "/studies/..%2f..%2fetc%2fpasswd",
    "up, encoded twice": "/studies/..%252f..%252fetc",
    "trial below zero": "/studies/victim/trials/-1",
    "huge trial": f"/studies/victim/trials/{10**30}",
    "trial that is a word": "/studies/victim/trials/x",
    "huge plan": f"/plans/{10**30}",
    "plan 0": "/plans/0",
}


@pytest.mark.parametrize("path", ODD.values(), ids=ODD.keys())
def test_odd_addresses(place, path):
    answer = place.api.call("GET", path)
    assert answer.status_code in (404, 422), answer.text
    assert answer.json()["error"]["kind"] in ("not_found", "invalid")
    assert "set-cookie" not in answer.headers


QUERIES = {
    "no limit": "limit=0",
    "limit below zero": "limit=-1",
    "huge limit": "limit=1000000000000000000000000",
    "limit that is a word": "limit=all",
    "after below zero": "after=-1",
    "huge after": f"after={2**63}",
    "NUL in the search": "search=%00",
    "line break in the search": "search=a%0d%0ab",
    "unknown state": "state=gone",
    "long search": "search=" + "a" * 101,
    "owner with NUL": "owner=%00",
}


@pytest.mark.parametrize("query", QUERIES.values(), ids=QUERIES.keys())
def test_odd_queries(place, query):
    answer = place.api.call("GET", f"/studies?{query}")
    assert answer.status_code == 422
    assert answer.json()["error"]["faults"]


SEARCHES = [
    "' OR '1'='1",
    "'; DROP TABLE studies; --",
    "%",
    "v_ctim",
    "\\",
    "victim' UNION SELECT digest FROM tokens --",
    '"',
    "*",
]


@pytest.mark.parametrize("search", SEARCHES)
def test_sql_in_a_search_is_text(place, search):
    for parameter in ("search", "owner"):
        answer = place.api.call("GET", "/studies", params={parameter: search})
        assert (answer.status_code, answer.json()["studies"]) == (200, [])
    assert place.api.store.study("victim").name == "victim"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"x"',
        b'{"spec": 1}',
        b'{"spec": "x", "more": 1}',
        b"\xff",
        b"{}",
        b'{"spec": "' + b"\\ud800" + b'"}',
        b"[" * 100_000,
        b'{"spec": ""}',
        b'{"spec": "x", "priority": 1e999}',
        b'{"spec": "x", "max_samples": -1}',
        b'{"spec": "x", "max_accelerator_hours": NaN}',
        b'{"spec": "x", "priority": "1"}',
    ],
)
def test_odd_bodies(place, body):
    answer = place.api.call(
        "POST", "/studies", content=body, headers={"Content-Type": "application/json"}
    )
    assert answer.status_code in (400, 422), answer.text
    assert answer.json()["error"]["message"]


@pytest.mark.parametrize("key", ["a b", "x" * 201, "\u00fc"])
def test_odd_keys(place, key):
    answer = place.api.call(
        "POST",
        "/studies",
        json={"spec": spec_of("k")},
        headers={"Idempotency-Key": key.encode("latin-1")},
    )
    assert answer.status_code == 422


def test_a_request_id_is_taken_over_only_where_it_is_plain(place):
    assert (
        place.api.client.get("/health", headers={"X-Request-ID": "run-7"}).headers["X-Request-ID"]
        == "run-7"
    )
    for odd in ("a b", "a" * 65, "{}"):
        assert (
            place.api.client.get("/health", headers={"X-Request-ID": odd}).headers["X-Request-ID"]
            != odd
        )


def test_an_error_tells_neither_the_database_nor_a_traceback(tmp_path):
    (tmp_path / "gone").mkdir()
    with served(tmp_path, storage=f"sqlite:///{tmp_path}/gone/hpo.db") as api:
        token = api.token("ada")
        api.app.state.context.close()
        (tmp_path / "gone").rename(tmp_path / "away")
        api.app.state.context.tokens.forget()
        answer = api.client.get("/api/v1/studies", headers={"Authorization": f"Bearer {token}"})
        assert answer.status_code == 503
        assert int(answer.headers["Retry-After"]) >= 1
        assert "sqlite" not in answer.text
        assert "Traceback" not in answer.text
        assert os.sep + "gone" not in answer.text


# strangers: connections, heads, names, sessions


@contextlib.contextmanager
def as_hpo_serve(folder, **limits):
    """The server as `hpo serve` runs it."""
    values = {"storage": f"sqlite:///{folder}/hpo.db", "folder": folder / ".hpo", "limits": limits}
    config = ServerConfig.model_validate(values)
    app = create_app(config)
    server = uvicorn.Server(_uvicorn(config.model_copy(update={"port": 0}), app))
    sock = server_socket(config.model_copy(update={"port": 0}))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    address = f"http://127.0.0.1:{sock.getsockname()[1]}"
    try:
        app.state.context.open_store()
        with httpx.Client(base_url=address, timeout=60) as client:
            yield Api(app, client)
    finally:
        app.state.context.live.close()
        server.should_exit = True
        thread.join(10)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    """It with short times."""
    folder = tmp_path_factory.mktemp("guarded")
    with as_hpo_serve(
        folder, head_seconds=0.5, connections_per_address=12, send_seconds=0.5
    ) as api:
        yield api


def port_of(api):
    return api.client.base_url.port


def test_a_valid_token_is_let_in_from_an_address_that_guesses(place):
    place.api.token("ada")
    strangers = place.api.app.state.context.strangers
    while strangers.left("127.0.0.1") >= 1:
        strangers.wait("127.0.0.1")
    strangers.rate = 0.0  # it does not fill up meanwhile
    try:
        guess = {"Authorization": "Bearer lb_" + "A" * 43}
        assert place.api.client.get("/api/v1/me", headers=guess).status_code == 429
        place.api.app.state.context.tokens.forget()
        assert place.api.call("GET", "/me").status_code == 200
    finally:
        strangers.rate = 10.0
        strangers._left.clear()


@pytest.mark.parametrize("sent", [b"", b"GET /health HTT", b"GET /health HTTP/1.1\r\nHost: local"])
def test_a_head_that_does_not_come_is_given_up(guarded, sent):
    with socket.create_connection(("127.0.0.1", port_of(guarded)), timeout=10) as connection:
        connection.sendall(sent)
        began = time.monotonic()
        assert connection.recv(1000).startswith(b"HTTP/1.1 408")
        assert 0.2 < time.monotonic() - began < 9


def test_a_second_head_on_a_connection_has_its_time_too(guarded):
    with socket.create_connection(("127.0.0.1", port_of(guarded)), timeout=10) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        answer = b""
        while not answer.endswith(b"}"):  # head and body may come apart
            answer += connection.recv(4000)
        assert answer.startswith(b"HTTP/1.1 200")
        time.sleep(0.8)  # idle between two requests is no attack
        connection.sendall(b"GET /hea")
        assert b"408" in connection.recv(1000)


ENDLESS = {
    "of lines": (b"GET /health HTTP/1.1\r\n", b"X-A: b\r\n" * 10_000),
    "of one line": (b"GET /health HTTP/1.1\r\nX-A: ", b"a" * 60_000),
    "of an address": (b"GET /", b"a" * 60_000),
    "after a body": (
        b"POST /login HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n",
        b"X-A: b\r\n" * 100_000,
    ),
}


@pytest.mark.parametrize(("begins", "more"), ENDLESS.values(), ids=ENDLESS.keys())
def test_a_head_without_end_is_refused_before_it_fills_the_memory(guarded, begins, more):
    with socket.create_connection(("127.0.0.1", port_of(guarded)), timeout=30) as connection:
        connection.sendall(begins)
        with contextlib.suppress(ConnectionError):
            for _ in range(10_000_000 // len(more) + 4):
                connection.sendall(more)
            assert connection.recv(30).startswith((b"HTTP/1.1 431", b"HTTP/1.1 400"))
    assert guarded.client.get("/health").status_code == 200


def test_a_head_that_comes_with_one_read_has_its_bound_too(guarded):
    line = b"X-A: " + b"a" * 100 + b"\r\n"
    with socket.create_connection(("127.0.0.1", port_of(guarded)), timeout=30) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + line * 1000 + b"\r\n")
        assert connection.recv(30).startswith(b"HTTP/1.1 431")


@pytest.mark.parametrize("path", ["/health", "/api/v1/studies", "/static/table.js"])
def test_requests_far_ahead_of_their_answers_are_not_kept(guarded, path):
    def waiting():
        return sum(isinstance(each, RequestResponseCycle) for each in gc.get_objects())

    request = f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
    before, most = waiting(), 0
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(2)
        connection.connect(("127.0.0.1", port_of(guarded)))
        with contextlib.suppress(OSError):  # closed, or not read any more
            for _ in range(20):
                connection.sendall(request * 500)
                most = max(most, waiting() - before)
        most = max(most, waiting() - before)
    assert most < 4 * PIPELINED
    assert guarded.client.get("/health").status_code == 200


def test_a_few_requests_ahead_are_answered_in_their_order(guarded):
    paths = ["/health", "/nowhere", "/health"] * 8
    with socket.create_connection(("127.0.0.1", port_of(guarded)), timeout=30) as connection:
        connection.sendall(
            b"".join(f"GET {each} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode() for each in paths)
        )
        answers = b""
        while answers.count(b"HTTP/1.1 ") < len(paths):
            answers += connection.recv(100_000)
    statuses = [int(part[:3]) for part in answers.split(b"HTTP/1.1 ")[1:]]
    assert statuses == [200, 404, 200] * 8


@pytest.mark.parametrize("name", ["a" * 300, "%00", "..%2fpages.py", "a" * 5000])
def test_a_file_that_is_not_there(place, name):
    assert place.api.client.get(f"/static/{name}").status_code == 404


def not_reading(port, stack, count, path="/large", head=""):
    """Connections that ask for much and take nothing of it."""
    opened = []
    for _ in range(count):
        connection = stack.enter_context(socket.socket())
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", port))
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n{head}\r\n".encode())
        opened.append(connection)
    return opened


@pytest.mark.medium
def test_who_takes_no_answer_is_given_up(guarded):
    guarded.app.add_route("/large", large)
    with contextlib.ExitStack() as stack:
        (connection,) = not_reading(port_of(guarded), stack, 1)
        time.sleep(3)
        connection.settimeout(20)
        received = 0
        with contextlib.suppress(ConnectionError):
            while part := connection.recv(1 << 20):
                received += len(part)
        assert received < LARGE


def test_connections_that_take_nothing_shut_their_owner_out_for_less_than_one_may_last(tmp_path):
    with as_hpo_serve(tmp_path, send_seconds=20) as api, contextlib.ExitStack() as stack:
        api.app.add_route("/api/v1/large", large)
        head = f"Authorization: Bearer {api.token('ada')}\r\n"
        not_reading(port_of(api), stack, 36, "/api/v1/large", head)
        time.sleep(0.5)
        began = time.monotonic()
        assert api.call("GET", "/studies").status_code == 200
        assert time.monotonic() - began < 20


def test_who_takes_some_of_an_answer_keeps_it_for_longer(tmp_path):
    with as_hpo_serve(tmp_path, send_seconds=1.5) as api, contextlib.ExitStack() as stack:
        api.app.add_route("/large", large)
        (connection,) = not_reading(port_of(api), stack, 1)
        received, began = 0, time.monotonic()
        while time.monotonic() - began < 5:
            part = connection.recv(1 << 18)
            assert part, "it ended although some was taken"
            received += len(part)
            time.sleep(0.4)
        assert 0 < received < LARGE


def test_strangers_who_take_no_answer_keep_nobody_of_their_address_out(tmp_path):
    """Pages and the login are answered by the address, which may be that of many: of a proxy, or of a house."""
    with served(tmp_path) as api, contextlib.ExitStack() as stack:
        api.app.add_route("/large", large)
        not_reading(port_of(api), stack, 20)
        time.sleep(0.5)
        assert api.client.get("/login").status_code == 200


def test_who_takes_no_answer_has_no_more_of_them_made(tmp_path):
    """Answers that wait to be taken lie in the server's memory."""
    made = []

    def answer(_):
        made.append(1)
        return Response(bytes(LARGE))

    with served(tmp_path) as api, contextlib.ExitStack() as stack:
        api.app.add_route("/api/v1/large", answer)
        port, token = port_of(api), api.token("eve", "read")
        not_reading(port, stack, 20, "/api/v1/large", f"Authorization: Bearer {token}\r\n")
        time.sleep(1)
        assert api.call("GET", "/me").status_code == 200
        assert len(made) <= api.app.state.context.config.limits.requests_at_once


LARGE = 40_000_000


def large(_):
    return StreamingResponse(bytes(1 << 16) for _ in range(LARGE >> 16))


def test_one_address_holds_so_many_connections(guarded):
    opened = []
    try:
        for _ in range(30):
            opened.append(
                socket.create_connection(
                    ("127.0.0.1", port_of(guarded)), timeout=5, source_address=("127.0.0.2", 0)
                )
            )
    except OSError:
        pytest.skip("this machine has one loopback address")
    finally:
        answers = []
        for connection in opened[20:]:
            answers.append(connection.recv(200))
        assert guarded.client.get("/health").status_code == 200
        for connection in opened:
            connection.close()
    assert all(b"503" in answer for answer in answers)


def test_who_asks_is_found_out_before_the_body_is_read(guarded):
    """A body that never comes costs a stranger's connection nothing but its head."""
    for line, status in (("", b"401"), ("Authorization: Bearer lb_" + "A" * 43, b"401")):
        with socket.create_connection(("127.0.0.1", port_of(guarded)), timeout=10) as connection:
            head = f"POST /api/v1/studies HTTP/1.1\r\nHost: localhost\r\n{line or 'X-A: b'}\r\n"
            connection.sendall(f"{head}Content-Length: 2000000\r\n\r\n".encode())
            began = time.monotonic()
            assert status in connection.recv(1000).split(b"\r\n")[0]
            assert time.monotonic() - began < 9


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("LOCALHOST:8642", 200),
        ("127.0.0.1:1", 200),
        ("[::1]:8642", 200),
        ("evil.example", 400),
        ("localhost.evil.example", 400),
        ("127.0.0.1.evil.example:8642", 400),
        ("", 400),
        ("[::1].evil.example", 400),
        ("[::1]:8642.evil.example", 400),
        ("evil.example@localhost", 400),
        ("localhost evil.example", 400),
        ("localhost:80:80", 400),
        ("localhost:", 400),
    ],
)
def test_a_request_by_a_foreign_name_is_refused(place, host, status):
    answer = place.api.client.get("/health", headers={"Host": host})
    assert answer.status_code == status
    if status == 400:
        assert "hosts" in answer.json()["error"]["way_out"]


def test_the_names_of_a_server_are_configured(tmp_path):
    with served(tmp_path, host="0.0.0.0", hosts=["hpo.example.org"]) as api:
        for host, status in (("hpo.example.org", 200), ("localhost", 200), ("other.example", 400)):
            assert api.client.get("/health", headers={"Host": host}).status_code == status
    assert allowed_hosts(ServerConfig.model_validate({"host": "0.0.0.0"})) is None


def test_a_cookie_is_a_session_and_not_the_token(place):
    with httpx.Client(base_url=place.api.client.base_url) as browser:
        token = place.api.token("bob")
        browser.get("/login", params={"token": token})
        cookie = browser.cookies["hpo_session"]
        assert token not in cookie and cookie.startswith("ls_")
        assert browser.get("/api/v1/me").json()["owner"] == "bob"
        as_token = {"Authorization": f"Bearer {cookie}"}
        with httpx.Client(base_url=place.api.client.base_url) as other:
            assert other.get("/api/v1/me", headers=as_token).status_code == 401
            assert (
                other.get("/api/v1/me", headers={"Cookie": f"hpo_session={token}"}).status_code
                == 401
            )
            own = str(browser.base_url).rstrip("/")
            assert browser.post("/logout", headers={"Origin": own}).status_code == 303
            stolen = {"Cookie": f"hpo_session={cookie}"}
            assert other.get("/api/v1/me", headers=stolen).status_code == 401


def test_a_session_ends_with_its_token(place):
    with httpx.Client(base_url=place.api.client.base_url) as browser:
        secret, token = create_token(place.api.store, owner="eve", scope="read")
        browser.get("/login", params={"token": secret})
        assert browser.get("/api/v1/me").status_code == 200
        place.api.store.revoke_token(token.id)
        place.api.app.state.context.tokens.forget()
        assert browser.get("/api/v1/me").status_code == 401


def test_the_stream_of_a_revoked_token_ends_within_a_second(place):
    secret, token = create_token(place.api.store, owner="eve", scope="read")
    headers = {"Authorization": f"Bearer {secret}"}
    with place.api.client.stream("GET", "/api/v1/events", headers=headers) as stream:
        chunks = stream.iter_raw()
        next(chunks)
        time.sleep(0.5)
        place.api.store.revoke_token(token.id)  # as `hpo token revoke` does, in another process
        began = time.monotonic()
        for _ in chunks:
            pass
        assert time.monotonic() - began < 3  # a second, and what a busy machine takes


def test_streams_asked_for_at_once_are_counted(tmp_path):
    with served(tmp_path, limits={"streams_per_token": 5}) as api:
        address, head = api.client.base_url, f"Authorization: Bearer {api.token('eve', 'read')}"
        request = f"GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\n{head}\r\n\r\n".encode()
        with contextlib.ExitStack() as stack:
            opened = [
                stack.enter_context(
                    socket.create_connection((address.host, address.port), timeout=60)
                )
                for _ in range(15)
            ]
            for connection in opened:
                connection.sendall(request)
            statuses = [connection.recv(15).split()[1] for connection in opened]
        assert (statuses.count(b"200"), statuses.count(b"429")) == (5, 10)
        live, until = api.app.state.context.live, time.monotonic() + 60
        while live.streams:  # those that were closed are given back
            assert time.monotonic() < until
            time.sleep(0.05)


@pytest.mark.medium
def test_a_cancelled_study_ends_where_its_worker_died_and_there_is_no_other(tmp_path, monkeypatch):
    monkeypatch.setattr("hpo.service.app.SETTLE_SECONDS", 0.1)
    with served(tmp_path) as api:
        assert api.submit("left").status_code == 201
        lease = api.store.claim_study("dead:1", lease_seconds=60)
        (trial,) = api.store.leased(lease).add_trials(
            lease.study.id,
            [NewTrial(global_batch_size=16, seed=0, settings=TrainingSettings().to_dict())],
        )
        api.store.leased(lease).start_trials([trial.id])
        assert api.call("POST", "/studies/left/cancel").json()["state"] == "running"
        api.store.renew_lease(lease, lease_seconds=0.01)  # its last sign of life
        until = time.monotonic() + 60
        while api.call("GET", "/studies/left").json()["state"] != "cancelled":
            assert time.monotonic() < until
            time.sleep(0.05)
        (after,) = api.call("GET", "/studies/left/trials").json()["trials"]
        assert after["state"] == "queued"  # nobody trains it; resuming the study goes on with it
        logs = api.call("GET", "/studies/left/logs").json()["events"]
        assert [event["kind"] for event in logs][-1] == "cancelled"


def test_a_quota_holds_when_a_study_is_resumed(tmp_path):
    with served(tmp_path, limits={"queued_studies": 2}) as api:
        for name in ("a", "b"):
            assert api.submit(name).status_code == 201
        assert api.submit("c").status_code == 429
        assert api.call("POST", "/studies/a/cancel").status_code == 200
        assert api.submit("c").status_code == 201
        refused = api.call("POST", "/studies/a/resume")
        assert refused.status_code == 429 and int(refused.headers["Retry-After"]) >= 1
        assert api.store.study("a").state == "cancelled"


def test_an_owner_stores_so_much(tmp_path):
    with served(tmp_path, limits={"stored_bytes": 100}) as api:
        assert api.submit("a").status_code == 201
        api.app.state.context._stored.clear()
        answer = api.submit("b")
        assert answer.status_code == 429 and "bytes" in answer.json()["error"]["message"]
        assert api.submit("b", owner="bob").status_code == 201


def test_what_is_submitted_within_a_minute_counts_at_once(tmp_path):
    """What an owner stores is counted in the database once a minute, and as it comes in between."""
    with served(tmp_path, limits={"stored_bytes": 2 * len(spec_of("a"))}) as api:
        assert [api.submit(name).status_code for name in "abc"] == [201, 201, 429]


@pytest.mark.medium
def test_points_of_agents_count_as_stored(tmp_path):
    point = {"epochs": 1.0, "seconds": 1.0, "learning_rate": 0.1, "global_batch_size": 16}
    with served(tmp_path, limits={"stored_bytes": 50_000}) as api:
        api.submit("a", for_agents=True)
        key = "k" * 16
        number = api.call("POST", "/studies/a/trials", json={"key": key}).json()["trial"]["number"]
        statuses = []
        for begin in range(1, 1001, 250):
            points = [
                {**point, "step": step, "samples": step} for step in range(begin, begin + 250)
            ]
            body = {"key": key, "points": points}
            answer = api.call("POST", f"/studies/a/trials/{number}/points", json=body)
            statuses.append(answer.status_code)
        assert statuses == [200, 200, 429, 429]
        assert api.call("POST", "/studies/a/plans").status_code == 429


def test_a_refused_resumption_changes_nothing(tmp_path):
    with served(tmp_path, limits={"queued_studies": 2}) as api:
        api.submit("a")
        api.call("POST", "/studies/a/cancel")
        for name in ("b", "c"):
            assert api.submit(name).status_code == 201
        longer = spec_of("a", budget={"trials": 60, "epochs_per_trial": 20})
        assert api.call("POST", "/studies/a/resume", json={"spec": longer}).status_code == 429
        assert api.store.study("a").spec == spec_of("a")


def test_to_ask_for_the_same_again_and_again_fills_no_log(tmp_path):
    with served(tmp_path) as api:
        api.submit("a")
        for verb in ("cancel", "resume"):
            for _ in range(5):
                assert api.call("POST", f"/studies/a/{verb}").status_code == 200
        events = api.call("GET", "/studies/a/logs").json()["events"]
        assert [event["kind"] for event in events] == ["submitted", "cancel", "resumed"]


def test_files_of_one_owner_are_checked_one_at_a_time(tmp_path, monkeypatch):
    """Else whoever submits what takes long to read has all the processes that read."""
    reading = threading.Event()

    def answer(_, text):
        if text != "slow":
            return {"refused": "quick"}
        reading.set()
        time.sleep(1)
        return {"refused": "slow"}

    monkeypatch.setattr(CheckerPool, "_answer", answer)
    with served(tmp_path) as api, ThreadPoolExecutor(5) as pool:
        began = time.monotonic()
        slow = [pool.submit(api.submit, spec="slow", owner="eve") for _ in range(3)]
        reading.wait(30)
        assert "quick" in api.submit(spec="quick", owner="ada").text
        assert not all(each.done() for each in slow)
        assert all("slow" in each.result().text for each in slow)
        assert time.monotonic() - began > 3


def test_a_link_of_another_site_logs_nobody_in(place):
    """A page elsewhere could else have its visitors go on here as whom it likes (login CSRF)."""
    token = place.api.token("eve")
    for site, status in (("cross-site", 200), ("same-site", 200), ("none", 303), (None, 303)):
        headers = {} if site is None else {"Sec-Fetch-Site": site}
        with httpx.Client(base_url=place.api.client.base_url) as browser:
            answer = browser.get("/login", params={"token": token}, headers=headers)
            assert answer.status_code == status
            assert ("hpo_session" in browser.cookies) == (status == 303)
            assert (f'value="{token}"' in answer.text) == (status == 200)


@pytest.mark.parametrize("text", ["http://[", "//\u2100", "http://host:port["])
def test_a_malformed_address_is_of_another_site(place, text):
    with httpx.Client(base_url=place.api.client.base_url) as browser:
        sent = {"token": place.api.token("eve"), "next": text}
        answer = browser.get("/login", params=sent)
        assert (answer.status_code, answer.headers["Location"]) == (303, "/")
        cookie = f"hpo_session={browser.cookies['hpo_session']}"
        headers = {"Origin": text.encode("utf-8"), "Cookie": cookie}
        assert browser.post("/logout", headers=headers).status_code == 403


def test_a_list_reads_no_study_file(place, monkeypatch):
    def never(*_):
        raise AssertionError("a study file was read")

    monkeypatch.setattr("hpo.service.study_facts.parse_stored_study", never)
    answer = place.api.call("GET", "/studies").json()
    assert answer["studies"][-1]["budget_trials"] == 30


def test_no_password_stands_on_a_command_line():
    config = ServerConfig.model_validate({"storage": "postgresql://hpo:secret@db.example/hpo"})
    assert not any("secret" in word for word in worker_command(config))


@pytest.mark.processes
def test_a_password_is_taken_out_of_the_command_line():
    """Its own /proc/PID/cmdline is what a command shows to everybody on the machine."""
    url = "postgresql://hpo:secret@127.0.0.1:1/hpo"
    program = (
        "import sys, pathlib; from hpo.cli import own_arguments; own_arguments.hide_password(); import os; "
        "print(pathlib.Path('/proc/self/cmdline').read_text().split('\\0')[3:], os.environ['HPO_STORAGE'])"
    )
    for option in (["--storage", url], [f"--storage={url}"]):
        command = [sys.executable, "-c", program, "worker", *option, "--once"]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
        assert done.stdout == f"['worker', '--once', ''] {url}\n"
        assert "secret" not in done.stderr and "HPO_STORAGE" in done.stderr
    shows = (
        "import sys, pathlib; from hpo.cli import own_arguments; own_arguments.hide_password(); "
        "print(pathlib.Path('/proc/self/cmdline').read_text().split('\\0')[3:-1], sys.argv[1:])"
    )
    given = ["export", "--to", url, "--storage", url, "--token", "lb_x", "--token=lb_y", "a:b@c"]
    shown = [
        "export",
        "--to",
        url.replace("secret", "***"),
        "--token",
        "***",
        "--token=***",
        "a:b@c",
    ]
    done = subprocess.run(
        [sys.executable, "-c", shows, *given],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout == f"{shown} {[*given[:3], *given[5:]]}\n"
    plain = ["hpo", "worker", "--storage", "postgresql://hpo@db/hpo", "--once"]
    assert storage_with_password(plain) is None
    assert storage_with_password(["hpo", "worker", "--storage"]) is None


def test_checks_that_take_long_leave_all_threads_to_reads(tmp_path, monkeypatch):
    """More owners than the server has threads, each with a file that takes long to read."""
    free, reading = threading.Event(), threading.Semaphore(0)

    def answer(*_):
        reading.release()
        free.wait(60)
        return {"refused": "slow"}

    monkeypatch.setattr(CheckerPool, "_answer", answer)
    with (
        served(tmp_path, threads=3, limits={"check_seconds": 0.5}) as api,
        ThreadPoolExecutor(12) as pool,
    ):
        owners = [f"eve {number}" for number in range(6)]
        for owner in (*owners, "ada"):
            api.call("GET", "/studies", owner=owner)
        slow = [pool.submit(api.submit, spec="slow", owner=owner) for owner in owners]
        try:
            for _ in range(2):
                assert reading.acquire(timeout=30)
            for owner in ("ada", "eve 0", "eve 5"):
                asked = pool.submit(api.call, "GET", "/studies", owner=owner)
                assert asked.result(timeout=10).status_code == 200
            refused = itertools.islice(as_completed(slow, timeout=30), 4)
            assert [each.result().status_code for each in refused] == [503] * 4
        finally:
            free.set()
        assert sorted(each.result().status_code for each in slow) == [422] * 2 + [503] * 4


def test_a_check_that_comes_when_the_server_ends_is_answered_and_leaves_no_process(monkeypatch):
    """It would else wait for a process that nobody gives back, and keep the server from ending."""
    started, ended = [], []

    class Process:
        alive = True

        def __init__(self, _):
            started.append(self)

        def ask(self, *_):
            return {"refused": "read"}

        def end(self):
            ended.append(self)

    monkeypatch.setattr(checking, "_Process", Process)
    checker = CheckerPool(ServerConfig.model_validate({}))
    for _ in range(2):
        with pytest.raises(RefusedError, match="read"):
            checker.check("text")
    assert len(started) == 1 and not ended  # one is kept for the next
    checker.close()
    assert ended == started
    for _ in range(3):
        with pytest.raises(RefusedError, match="read"):
            checker.check("text")
    assert len(started) == 4 and ended == started
