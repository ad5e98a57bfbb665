"""The client without a network: which requests are repeated and when, errors of responses, streams of events."""

import itertools
import json
import random
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from hpo import errors
from hpo.client import calls
from hpo.client.address import server_address
from hpo.client.calls import WaitPolicy
from hpo.client.errors import error_of_response
from hpo.client.event_stream import EventStream
from hpo.client.protocol import ClientPause, ClientRequest, NoResponse, ServerResponse, get_request
from hpo.client.retries import LONGEST_RETRY_AFTER, RetryPolicy, ask, retry_after_seconds

READ, WRITE = get_request("studies"), ClientRequest("POST", "/studies/a/resume")
BROKEN, UNSENT = NoResponse("the connection broke"), NoResponse("refused", never_sent=True)
SPEC = """name: digits
workload: noisy_quadratic
target: {metric: loss, at_most: 0.1}
ladder: [16, 32]
search: {learning_rate: {log_uniform: [0.01, 1], role: scaled}}
budget: {trials: 4, epochs_per_trial: 2}
"""
STUDY = {
    "name": "digits",
    "state": "queued",
    "owner": "ann",
    "priority": 0,
    "workload": "noisy_quadratic",
    "message": "",
    "trials": {},
    "best_epochs_to_target": None,
    "samples": 0,
    "worker": None,
    "cancel_requested": False,
    "created_at": "2026-01-01T00:00:00Z",
    "updated_at": "2026-01-01T00:00:00Z",
}


def answer(status=200, document=None, **headers):
    return ServerResponse(
        status,
        {name.replace("_", "-"): value for name, value in headers.items()},
        json.dumps(document).encode(),
    )


def carry(steps, *came):
    """Run a call on these answers; what it sent, how long it paused, and what it returned or raised."""
    answers, sent, pauses, reply = iter(came), [], [], None
    while True:
        try:
            step = steps.send(reply)
        except StopIteration as end:
            return sent, pauses, end.value
        except errors.HpoError as error:
            return sent, pauses, error
        reply = None
        if isinstance(step, ClientPause):
            pauses.append(step.seconds)
        else:
            sent.append(step)
            reply = next(answers)


@pytest.mark.parametrize(
    "came", [BROKEN, UNSENT, *(answer(status) for status in (429, 502, 503, 504))]
)
def test_a_request_that_reads_is_sent_again(came):
    sent, pauses, result = carry(ask(READ, RetryPolicy()), came, came, answer(document=[1]))
    assert (len(sent), len(pauses), result.document) == (3, 2, [1])


@pytest.mark.parametrize(
    ("came", "times"),
    [
        (BROKEN, 1),
        (answer(502), 1),
        (answer(503), 1),
        (answer(500), 1),
        (UNSENT, 6),
        (answer(429), 6),
    ],
)
def test_a_request_that_may_have_arrived_is_not(came, times):
    sent, _, result = carry(ask(WRITE, RetryPolicy()), *[came] * 6)
    assert len(sent) == times
    assert isinstance(result, errors.ServiceError)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 413, 422, 500])
def test_an_answer_that_will_not_change_is_final(status):
    sent, pauses, result = carry(ask(READ, RetryPolicy()), answer(status))
    assert (len(sent), pauses) == (1, [])
    assert isinstance(result, errors.HpoError)


def test_pauses_double_up_to_a_limit_and_are_spread():
    retries = RetryPolicy(attempts=20, first_seconds=0.5, most_seconds=8, random=random.Random(1))
    many = [[retries.pause(attempt) for _ in range(500)] for attempt in range(1, 12)]
    for attempt, drawn in enumerate(many, 1):
        longest = min(8, 0.5 * 2 ** (attempt - 1))
        assert longest / 2 <= min(drawn) < 0.55 * longest
        assert 0.95 * longest < max(drawn) <= longest
    sent, pauses, _ = carry(ask(READ, retries), *[BROKEN] * 20)
    assert (len(sent), len(pauses)) == (20, 19)


def test_the_server_says_when_to_come_back():
    _, pauses, _ = carry(ask(READ, RetryPolicy()), answer(429, retry_after="7"), answer())
    assert pauses == [7]
    now = datetime(2026, 1, 1, tzinfo=UTC)
    assert (
        retry_after_seconds(
            {"retry-after": format_datetime(now + timedelta(seconds=90), usegmt=True)}, now
        )
        == 90
    )
    for text, seconds in {
        "": 0,
        "soon": 0,
        "-3": 0,
        "nan": 0,
        "inf": LONGEST_RETRY_AFTER,
        "1e9": LONGEST_RETRY_AFTER,
        "2.5": 2.5,
    }.items():
        assert retry_after_seconds({"retry-after": text}) == seconds


def test_no_answer_says_so_and_whether_it_may_have_arrived():
    _, _, read = carry(ask(READ, RetryPolicy(attempts=2)), BROKEN, BROKEN)
    assert str(read) == "GET /studies: the connection broke (2 attempts)"
    _, _, write = carry(ask(WRITE, RetryPolicy()), BROKEN)
    assert str(write).endswith(
        "(1 attempt); it may have arrived, so it was not sent again: check with `hpo status`"
    )


KINDS = {
    "unauthorized": (401, errors.AuthenticationError),
    "forbidden": (403, errors.NotAllowedError),
    "not_found": (404, errors.StudyNotFoundError),
    "conflict": (409, errors.ConflictError),
    "no_evidence": (409, errors.EvidenceError),
    "too_large": (413, errors.RequestError),
    "invalid": (422, errors.RequestError),
    "bad_request": (400, errors.RequestError),
    "too_many_requests": (429, errors.UnreachableError),
    "unavailable": (503, errors.UnreachableError),
    "internal": (500, errors.ServiceError),
    "of a later release": (418, errors.ServiceError),
}


@pytest.mark.parametrize("kind", KINDS)
def test_errors_are_those_of_the_library(kind):
    status, expected = KINDS[kind]
    told = {"kind": kind, "message": "it is so", "way_out": "do that"}
    error = error_of_response(answer(status, {"error": told}, x_request_id="r1"))
    assert type(error) is expected
    assert str(error) == (
        "it is so (request r1); do that" if status >= 500 else "it is so; do that"
    )
    if isinstance(error, errors.ServiceError):
        assert (error.status, error.request_id) == (status, "r1")


def test_a_study_that_breaks_rules_keeps_its_lines():
    faults = [
        {"message": "trials must be positive", "line": 6, "key": "budget.trials"},
        {"message": "no such workload", "line": None, "key": None},
    ]
    error = error_of_response(
        answer(422, {"error": {"kind": "spec", "message": "2 faults", "faults": faults}})
    )
    assert isinstance(error, errors.SpecError)
    assert (error.line, error.key, len(error.faults)) == (6, "budget.trials", 2)
    assert str(error) == "study, line 6: trials must be positive\nstudy: no such workload"


@pytest.mark.parametrize(
    "content", [b"<html>Bad Gateway</html>", b"", b"\xff\xfe", b"[]", b'{"error": "text"}']
)
def test_an_answer_of_something_else(content):
    error = error_of_response(ServerResponse(404, {}, content))
    assert type(error) is errors.RequestError
    assert "answered 404" in str(error)
    assert "is this the address of `hpo serve`?" in str(error)


def test_a_submission_is_one_however_often_it_is_sent():
    sent, _, status = carry(
        calls.submit(RetryPolicy(), SPEC), BROKEN, answer(503), answer(201, STUDY)
    )
    assert status.name == "digits"
    assert len({request.headers["Idempotency-Key"] for request in sent}) == 1
    (again, *_), _, _ = carry(calls.submit(RetryPolicy(), SPEC), answer(200, STUDY))
    assert again.headers == sent[0].headers
    (other, *_), _, _ = carry(calls.submit(RetryPolicy(), SPEC, priority=3), answer(200, STUDY))
    assert other.headers != sent[0].headers
    (own, *_), _, _ = carry(
        calls.submit(RetryPolicy(), SPEC, idempotency_key="mine"), answer(200, STUDY)
    )
    assert own.headers == {"Idempotency-Key": "mine"}
    assert own.body == {"spec": SPEC, "priority": 0}


def test_a_bad_study_is_not_sent_at_all():
    sent, _, error = carry(calls.submit(RetryPolicy(), SPEC.replace("trials: 4", "trials: -4")))
    assert sent == []
    assert isinstance(error, errors.SpecError)
    assert error.line == 6


def test_pages_are_read_to_the_end():
    rows = [{**STUDY, "name": f"study {number}"} for number in range(5)]
    pages = [
        answer(document={"studies": rows[:2], "next": 8}),
        answer(document={"studies": rows[2:4], "next": 6}),
        BROKEN,
        answer(document={"studies": rows[4:], "next": None}),
    ]
    sent, _, found = carry(calls.studies(RetryPolicy(), owner="ann"), *pages)
    assert [study.name for study in found] == [row["name"] for row in rows]
    assert [request.parameters.get("after") for request in sent] == [None, 8, 6, 6]
    assert {request.parameters["owner"] for request in sent} == {"ann"}


@pytest.mark.parametrize("missing", STUDY)
def test_an_answer_of_another_shape_is_told(missing):
    document = {name: value for name, value in STUDY.items() if name != missing}
    _, _, error = carry(calls.status(RetryPolicy(), "digits"), answer(document=document))
    assert isinstance(error, errors.ServiceError)
    assert f"not a StudyStatus: KeyError {missing!r}" in str(error)


def test_what_a_later_server_adds_does_no_harm():
    _, _, status = carry(
        calls.status(RetryPolicy(), "digits"), answer(document={**STUDY, "colour": "green"})
    )
    assert status.document["colour"] == "green"


def waiting(*came, timeout=None, on_event=None, check=True):
    return carry(
        calls.wait(
            RetryPolicy(),
            "digits",
            timeout=timeout,
            policy=WaitPolicy(0.5),
            on_event=on_event,
            check=check,
        ),
        *came,
    )


def test_waiting_looks_until_the_end():
    running, finished = (
        answer(document={**STUDY, "state": state}) for state in ("running", "finished")
    )
    sent, pauses, status = waiting(running, BROKEN, running, finished)
    assert (len(sent), status.state) == (4, "finished")
    assert pauses[0] == pauses[2] == 0.5


@pytest.mark.parametrize("state", ["failed", "cancelled", "interrupted"])
def test_waiting_for_a_study_that_fails(state):
    ended = answer(document={**STUDY, "state": state, "message": "all 4 trials failed"})
    _, _, error = waiting(ended)
    assert isinstance(error, errors.StudyFailedError)
    assert error.state == state
    assert f"study 'digits' is {state}: all 4 trials failed; `hpo logs digits`" in str(error)
    assert waiting(ended, check=False)[2].state == state


def test_waiting_has_an_end():
    _, pauses, error = waiting(*[answer(document=STUDY)] * 3, timeout=0)
    assert isinstance(error, errors.WaitTimeoutError)
    assert "is still queued after 0 s" in str(error)
    assert pauses == []


def test_waiting_tells_each_event_once():
    def event(number):
        return {
            "id": number,
            "study": "digits",
            "at": "2026-01-01T00:00:00Z",
            "kind": "log",
            "message": str(number),
            "data": None,
        }

    told = []
    running, finished = (
        answer(document={**STUDY, "state": state}) for state in ("running", "finished")
    )
    sent, _, _ = waiting(
        running,
        answer(document={"events": [event(1), event(5)], "next": None}),
        finished,
        answer(document={"events": [event(7)], "next": None}),
        on_event=lambda each: told.append(each.id),
    )
    assert told == [1, 5, 7]
    assert [
        request.parameters.get("after") for request in sent if request.path.endswith("logs")
    ] == [None, 5]


def test_names_of_studies_go_as_they_are_into_paths():
    sent, _, _ = carry(calls.status(RetryPolicy(), "a/b ü?#%"), answer(document=STUDY))
    assert sent[0].path == "/studies/a%2Fb%20%C3%BC%3F%23%25"


EVENT = json.dumps(
    {
        "id": 3,
        "study": "digits",
        "at": "2026-01-01T00:00:00Z",
        "kind": "started",
        "data": {"n": 1},
        "message": "line \u2028 separator, é",
    },
    ensure_ascii=False,
)
PROGRESS = json.dumps({"study": "digits", "state": "running", "trials": {"reached": 3}})


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("size", [1, 2, 7, 10_000])
def test_events_come_whole_however_the_stream_is_cut(end, size):
    stream = end.join(
        [
            ": hello",
            "event: log",
            "id: 3",
            f"data: {EVENT}",
            "",
            "event: progress",
            f"data:{PROGRESS}",
            "",
            ": heartbeat",
            "event: end",
            "data: {}",
            "",
            "x",
        ]
    ).encode()
    feed = EventStream("/events", RetryPolicy(), progress=True)
    found = list(
        itertools.chain.from_iterable(
            feed.take(stream[first : first + size]) for first in range(0, len(stream), size)
        )
    )
    assert [event.kind for event in found] == ["started", "progress"]
    assert found[0].message == "line \u2028 separator, é"
    assert (found[0].id, found[0].data, found[1].id, found[1].data["state"]) == (
        3,
        {"n": 1},
        None,
        "running",
    )
    assert feed.ended


def test_a_feed_goes_on_where_it_broke():
    feed = EventStream("/events", RetryPolicy(attempts=3))
    assert feed.request.headers["Last-Event-ID"] == "0"
    feed.take(f"event: log\nid: 3\ndata: {EVENT}\n\nevent: log\nid: 4\ndata: ".encode())
    assert 0 < feed.broken(BROKEN) <= 0.25
    assert feed.request.headers["Last-Event-ID"] == "3"  # the event that was cut off comes again
    assert feed.take(f"event: progress\ndata: {PROGRESS}\n\n".encode()) == []
    feed.broken(answer(503))
    feed.broken(BROKEN)
    with pytest.raises(errors.UnreachableError, match="3 attempts"):
        feed.broken(BROKEN)
    with pytest.raises(errors.AuthenticationError):
        EventStream("/events", RetryPolicy()).broken(answer(401))


def test_a_feed_of_something_else():
    with pytest.raises(
        errors.ServiceError, match="must stream events, but the server sent text/html"
    ):
        EventStream("/events", RetryPolicy()).check(answer(content_type="text/html"))
    with pytest.raises(errors.ServiceError, match="an event must be JSON"):
        EventStream("/events", RetryPolicy()).take(b"event: log\ndata: {\n\n")


def test_the_address_comes_from_the_environment_and_hides_the_token(monkeypatch):
    monkeypatch.setenv("HPO_SERVER", "https://hpo.example.org/largebatch/")
    monkeypatch.setenv("HPO_TOKEN", "lb_secret\n")
    found = server_address(None, None)
    assert found.root == "https://hpo.example.org/largebatch/api/v1"
    assert found.headers["Authorization"] == "Bearer lb_secret"
    assert "secret" not in repr(found)
    assert server_address("localhost:8642", "lb_other").url == "http://localhost:8642"


@pytest.mark.parametrize(
    ("url", "token", "kind", "message"),
    [
        ("", "t", errors.RequestError, "no server given; give its URL, or set HPO_SERVER"),
        ("ftp://host", "t", errors.RequestError, "must look like https://host:8642"),
        ("https://", "t", errors.RequestError, "must look like https://host:8642"),
        ("https://[", "t", errors.RequestError, "must look like https://host:8642"),
        ("https://host:port", "t", errors.RequestError, "must look like https://host:8642"),
        (
            "https://host",
            "",
            errors.AuthenticationError,
            "no token for host; give one, or set HPO_TOKEN",
        ),
        ("https://host", "lb_ü", errors.AuthenticationError, "only visible ASCII"),
        ("https://host", "lb a", errors.AuthenticationError, "only visible ASCII"),
    ],
)
def test_addresses_that_cannot_be(monkeypatch, url, token, kind, message):
    monkeypatch.delenv("HPO_SERVER", raising=False)
    monkeypatch.delenv("HPO_TOKEN", raising=False)
    with pytest.raises(kind, match=message):
        server_address(url, token)
