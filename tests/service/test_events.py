"""Server-sent events: what is stored arrives within a second, and a client that reconnects misses nothing."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import threading
import time
from dataclasses import dataclass, field

import httpx
import pytest
from api_server import add_trials, points_of, served, spec_of

from hpo.service import live
from hpo.service.live import QUEUE, EventListener, EventMessage, EventReader
from hpo.service.progress import read_study_progress
from search_spaces.settings import TrainingSettings
from storage.errors import StoreUnavailable
from storage.records import NewStudy, NewTrial, StudyState
from storage.store import Store

pytestmark = pytest.mark.medium


@pytest.fixture
def api(tmp_path):
    with served(tmp_path) as api:
        api.submit()
        yield api


@dataclass
class Stream:
    """What arrived, as (event, id, data, time)."""

    messages: list = field(default_factory=list)
    ended: bool = False

    def wait(self, wanted, seconds=10.0):
        """The first message that ``wanted`` accepts."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            for message in list(self.messages):
                if wanted(message):
                    return message
            time.sleep(0.01)
        raise AssertionError(f"nothing came: {self.messages}")

    def logs(self):
        return [message[2]["message"] for message in self.messages if message[0] == "log"]


@contextlib.contextmanager
def stream(api, path, *, owner="ada", scope="read", headers=(), seconds=20):
    """Follow a stream in a thread."""
    found = Stream()
    opened = threading.Event()
    stop = threading.Event()
    token = api.token(owner, scope)

    def read():
        # the server may end it in the middle of a line, as it stops
        asked = api.client.stream(
            "GET",
            f"/api/v1{path}",
            timeout=seconds,
            headers={"Authorization": f"Bearer {token}", **dict(headers)},
        )
        with contextlib.suppress(httpx.HTTPError, httpx.StreamError), asked as answer:
            assert answer.status_code == 200, answer.read()
            assert answer.headers["content-type"].startswith("text/event-stream")
            kind, number, data = "message", None, ""
            for line in answer.iter_lines():
                if stop.is_set():
                    return
                if line.startswith(("retry:", ":")):
                    opened.set()
                elif line.startswith("event: "):
                    kind = line[7:]
                elif line.startswith("id: "):
                    number = int(line[4:])
                elif line.startswith("data: "):
                    data = line[6:]
                elif not line and data:
                    found.messages.append((kind, number, json.loads(data), time.monotonic()))
                    kind, number, data = "message", None, ""
        found.ended = True

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    assert opened.wait(10)
    try:
        yield found
    finally:
        stop.set()


def test_an_event_of_another_process_arrives_soon(api):
    with stream(api, "/studies/bowl/events") as found:
        found.wait(lambda message: message[0] == "progress")
        with Store.open(api.app.state.context.config.storage) as elsewhere:  # as a worker's
            elsewhere.add_event(
                elsewhere.study("bowl").id, "note", "fitted\nin two lines", {"x": 1}
            )
        kind, number, data, _ = found.wait(lambda message: message[0] == "log")
        assert (kind, data["message"], data["data"], data["study"]) == (
            "log",
            "fitted\nin two lines",
            {"x": 1},
            "bowl",
        )
        assert number == data["id"] == api.store.last_event_id()


def test_progress_reads_no_whole_curve(api, monkeypatch):
    """One reader serves the streams of all users, so a user's long curves must not hold it up."""

    def read(*_):
        raise AssertionError("a whole curve was read")

    study = api.store.study("bowl")
    settings = TrainingSettings(normalization_batch_size=1).to_dict()
    [trial] = api.store.add_trials(
        study.id, [NewTrial(global_batch_size=16, seed=0, settings=settings)]
    )
    api.store.start_trials([trial.id])
    api.store.record({trial.id: points_of(4)})
    monkeypatch.setattr(Store, "convergence", read)
    monkeypatch.setattr(Store, "points", read)
    progress = read_study_progress(api.store, "bowl", None).to_dict()
    assert progress["points"] == {0: 4}
    assert [point["step"] for point in progress["newest"]] == [40]


def test_a_study_whose_progress_takes_long_is_read_seldom(api, monkeypatch):
    api.submit("long")
    read, slow, quick = [], api.store.study("long"), api.store.study("bowl")

    def progress(store, name, before):
        read.append(name)
        time.sleep(0.02 if name == "long" else 0)

    monkeypatch.setattr(live, "read_study_progress", progress)
    monkeypatch.setattr(live, "SLOW_SECONDS", 0.01)
    monkeypatch.setattr(live, "PAUSE", 1000)
    reader = EventReader(lambda: api.store)
    for _ in range(4):
        reader._poll([slow, quick], everything=False)
    assert read.count("long") == 1
    assert read.count("bowl") == 4


def test_trials_and_their_points_show_while_they_run(api):
    study = api.store.study("bowl")
    with stream(api, "/studies/bowl/events") as found:
        [trial] = api.store.add_trials(
            study.id,
            [
                NewTrial(
                    global_batch_size=16,
                    seed=0,
                    settings=TrainingSettings(normalization_batch_size=1).to_dict(),
                )
            ],
        )
        api.store.start_trials([trial.id])
        api.store.record({trial.id: points_of(2)})
        progress = found.wait(lambda message: message[2].get("points") == {"0": 2})[2]
        assert progress["trials"] == {"running": 1}
        assert (
            progress["newest"][0] | {"loss": 0.5, "metric": 0.5, "step": 20, "trial": 0}
            == progress["newest"][0]
        )
        api.store.record({trial.id: points_of(3)})
        found.wait(lambda message: message[2].get("points") == {"0": 3})
        add_trials(api.store, "bowl", 2)
        ended = found.wait(lambda message: message[2].get("trials", {}).get("reached") == 2)[2]
        assert {
            changed["number"]
            for message in found.messages
            for changed in message[2].get("changed", [])
        } == {1, 2}
        assert "settings" not in ended


def test_whoever_comes_back_gets_what_was_missed_once_and_in_order(api):
    study_id = api.store.study("bowl").id
    first = api.store.add_event(study_id, "note", "0")
    api.submit("other")
    for number in range(1, 4):
        api.store.add_event(study_id, "note", str(number))
    with stream(api, "/studies/bowl/events", headers={"Last-Event-ID": str(first.id)}) as found:
        for number in range(4, 8):
            api.store.add_event(study_id, "note", str(number))
        found.wait(lambda message: message[2].get("message") == "7")
        assert found.logs() == [str(number) for number in range(1, 8)]
    with stream(api, f"/studies/bowl/events?after={first.id}") as again:
        again.wait(lambda message: message[2].get("message") == "7")
        assert again.logs() == [str(number) for number in range(1, 8)]


def test_nothing_is_lost_between_what_was_stored_and_what_comes(api):
    """Events are written all the time while streams open at random moments: each gets all from its start on."""
    study_id, stop = api.store.study("bowl").id, threading.Event()
    start = api.store.last_event_id()

    def write():
        number = 0
        while not stop.is_set():
            api.store.add_event(study_id, "note", str(number))
            number += 1

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(4):
            with stream(
                api, "/studies/bowl/events", headers={"Last-Event-ID": str(start)}
            ) as found:
                seen = len(api.store.events(after=start, limit=10_000))
                found.wait(
                    lambda message, seen=seen: message[2].get("message") == str(seen + 20),
                    seconds=20,
                )
                logs = found.logs()
                assert logs == [str(number) for number in range(len(logs))]
    finally:
        stop.set()
        writer.join()


def test_a_stream_ends_with_its_study_where_that_is_asked(api):
    study_id = api.store.study("bowl").id
    with stream(api, "/studies/bowl/events?until_end=true") as found:
        found.wait(lambda message: message[0] == "progress")
        api.store.add_event(study_id, "note", "almost")
        api.store.set_study_state(study_id, StudyState.FINISHED)
        api.store.add_event(study_id, "finished", "the end")
        found.wait(lambda message: message[0] == "end")
        assert found.logs() == ["almost", "the end"]
        assert [message[2]["state"] for message in found.messages if message[0] == "progress"][
            -1
        ] == "finished"
    with stream(api, "/studies/bowl/events?until_end=true") as found:  # it rests already
        found.wait(lambda message: message[0] == "end")


def test_all_studies_in_one_stream(api):
    with stream(api, "/events") as found:
        api.submit("second")
        found.wait(lambda message: message[0] == "log" and message[2]["study"] == "second")
        lease = api.store.claim_study("worker", lease_seconds=60)
        running = found.wait(lambda message: message[2].get("state") == "running")[2]
        assert running["study"] == lease.study.name
        api.store.release_study(lease, StudyState.FINISHED)
        found.wait(lambda message: message[2].get("state") == "finished")


def test_private_reading_shows_one_s_own_alone(tmp_path):
    with served(tmp_path, shared_reading=False) as api:
        api.submit("hers")
        api.submit("his", owner="bob")
        with stream(api, "/events?after=0", owner="bob") as found:
            for name in ("hers", "his", "hers", "his"):
                api.store.add_event(api.store.study(name).id, "note", name)
            api.store.add_event(None, "note", "all")
            found.wait(lambda message: message[2].get("message") == "all")
            assert {message[2].get("study") for message in found.messages} == {"his", None}


def test_a_stream_ends_when_its_token_does(api, monkeypatch):
    monkeypatch.setattr("hpo.service.routes.events.HEARTBEAT_SECONDS", 0.2)
    with stream(api, "/studies/bowl/events", owner="eve") as found:
        found.wait(lambda message: message[0] == "progress")
        api.store.revoke_token(api.store.tokens("eve")[0].id)
        deadline = time.monotonic() + 10
        while not found.ended:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_streams_are_counted(tmp_path):
    with served(tmp_path, limits={"streams_per_token": 1}) as api:
        api.submit()
        with stream(api, "/studies/bowl/events", owner="eve") as found:
            found.wait(lambda message: message[0] == "progress")
            refused = api.call("GET", "/studies/bowl/events", owner="eve", scope="read")
            assert refused.status_code == 429
            assert "Retry-After" in refused.headers


@pytest.fixture
def store(tmp_path):
    with Store.open(str(tmp_path / "hpo.db")) as store:
        yield store


def submitted(store, name, owner):
    return store.submit_study(
        NewStudy(
            name=name,
            workload="noisy_quadratic",
            metric="loss",
            threshold=0.1,
            higher_is_better=False,
            spec=spec_of(name),
            owner=owner,
        ),
        event=f"submitted by {owner}",
    ).study


def test_what_was_read_while_the_database_failed_comes_later(store, monkeypatch):
    study = submitted(store, "bowl", "ada")
    reader, failures = EventReader(lambda: store), [StoreUnavailable("x", "it is locked", "wait")]

    def counts(study_id, read=store.counts):
        if failures:
            raise failures.pop()
        return read(study_id)

    monkeypatch.setattr(store, "counts", counts)
    with pytest.raises(StoreUnavailable):
        reader._poll([study], everything=False)
    assert [message.kind for message in reader._poll([study], everything=False)] == [
        "log",
        "progress",
    ]
    assert reader._poll([study], everything=False) == []


@pytest.mark.parametrize("name", ["bowl", "other"])
def test_the_next_study_with_the_id_of_a_deleted_one_is_its_owner_s(store, name):
    old, reader = submitted(store, "bowl", "ada"), EventReader(lambda: store)
    reader._poll([old], everything=True)
    store.set_study_state(old.id, StudyState.FINISHED)
    assert {message.owner for message in reader._poll([old], everything=True)} == {"ada"}
    store.delete_study(old.id)
    new = submitted(store, name, "bob")
    assert new.id == old.id
    assert {message.owner for message in reader._poll([], everything=True)} == {"bob"}


def test_a_damaged_study_holds_up_no_other_stream(store, tmp_path):
    bad, good = submitted(store, "bad", "ada"), submitted(store, "good", "ada")
    with contextlib.closing(sqlite3.connect(tmp_path / "hpo.db")) as connection:
        connection.execute("UPDATE studies SET priority = 'high' WHERE name = 'bad'")
        connection.commit()
    found = EventReader(lambda: store)._poll([bad, good], everything=True)
    assert [(message.kind, message.study_id) for message in found] == [
        ("log", bad.id),
        ("log", good.id),
        ("progress", good.id),
    ]


def test_one_who_is_too_slow_is_dropped():
    listener = EventListener(None, 1)
    for number in range(QUEUE + 1):
        listener.put(EventMessage("log", b"{}", event_id=number))
    assert listener.dropped
    assert listener.queue.get_nowait() is None


def test_logs_as_text_and_in_pages(api):
    study_id = api.store.study("bowl").id
    for number in range(5):
        api.store.add_event(study_id, "note", f"line {number}\nmore")
    text = api.call("GET", "/studies/bowl/logs?format=text").text
    assert text.count("\n    more\n") == 5
    first = api.call("GET", "/studies/bowl/logs?limit=4").json()
    rest = api.call("GET", f"/studies/bowl/logs?limit=4&after={first['next']}").json()
    assert [event["message"] for event in first["events"] + rest["events"]] == [
        "submitted by ada",
        *(f"line {number}\nmore" for number in range(5)),
    ]
    assert rest["next"] is None
