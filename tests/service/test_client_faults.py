"""What a client survives: a server that dies at the worst moment, or repeatedly, and is restarted."""

import contextlib
import random
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from api_server import spec_of
from client_kinds import client_of

import hpo
from hpo.client.retries import RetryPolicy
from hpo.service.auth import create_token
from storage.records import StudyState
from storage.store import Store

pytestmark = pytest.mark.processes

PROGRAM = Path(__file__).with_name("faulty_server.py")
STUDIES, KILLS = 12, 3
PATIENT = RetryPolicy(attempts=60, first_seconds=0.1, most_seconds=0.5)


class Server:
    """Processes that serve one database at one port, one after the other."""

    def __init__(self, folder):
        self.folder = folder
        with Store.open(f"sqlite:///{folder}/hpo.db") as store:
            self.token, _ = create_token(store, owner="ada", scope="submit")
        self.port = free_port()
        self.process = None

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def start(self, *how):
        self.process = subprocess.Popen(
            [sys.executable, str(PROGRAM), str(self.port), str(self.folder), *how]
        )

    def wait_until_up(self):
        for _ in range(600):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port)):
                return
            time.sleep(0.05)
        raise TimeoutError("the server did not start")

    def kill(self):
        self.process.kill()
        self.process.wait()

    def store(self):
        return Store.open(f"sqlite:///{self.folder}/hpo.db")


def free_port():
    """A port below those of outgoing connections: one of these could take it while the server is away."""
    for port in random.SystemRandom().sample(range(20_000, 32_000), 100):
        with socket.socket() as sock, contextlib.suppress(OSError):
            sock.bind(("127.0.0.1", port))
            return port
    raise RuntimeError("no port is free")


@pytest.fixture
def server(tmp_path):
    server = Server(tmp_path)
    yield server
    if server.process is not None:
        server.kill()


@pytest.mark.parametrize(
    ("kind", "when"),
    [
        ("sync", "die-after"),
        pytest.param("async", "die-after", marks=pytest.mark.slow),  # by the same steps
        ("sync", "die-before"),
    ],
)
def test_a_submit_whose_answer_never_came_is_one_study(server, kind, when):
    server.start(when)
    server.wait_until_up()
    died = threading.Event()

    def start_anew():
        server.process.wait(60)
        with server.store() as store:
            stored.extend(study.name for study in store.studies())
        died.set()
        server.start()

    stored = []
    starter = threading.Thread(target=start_anew)
    starter.start()
    try:
        with client_of(kind, server.url, server.token, retries=PATIENT) as client:
            study = client.submit(spec_of("bowl"))
            assert study.status().state == "queued"
    finally:
        starter.join()
    assert died.is_set()
    assert stored == (
        ["bowl"] if when == "die-after" else []
    )  # the death came where it was meant to
    with server.store() as store:
        assert [study.name for study in store.studies()] == ["bowl"]
        assert [event.kind for event in store.events()] == ["submitted"]


@pytest.mark.slow
def test_clients_at_work_while_the_server_is_killed_again_and_again(server):
    server.start()
    server.wait_until_up()
    stop, moments = threading.Event(), random.Random(5)

    def kill():
        for _ in range(KILLS):
            if stop.wait(moments.uniform(0.1, 2.0)):
                break
            server.kill()
            server.start()
            server.wait_until_up()

    failures = []

    def submit(first):
        try:
            with hpo.Client(server.url, server.token, retries=PATIENT) as client:
                for number in range(first, STUDIES, 3):
                    study = client.submit(spec_of(f"study {number}"), priority=number % 3)
                    assert study.status().name == f"study {number}"
                    assert study.name in [each.name for each in client.studies(search=study.name)]
        except Exception as error:
            failures.append(error)

    killer = threading.Thread(target=kill)
    workers = [threading.Thread(target=submit, args=(first,)) for first in range(3)]
    for thread in (killer, *workers):
        thread.start()
    for thread in workers:
        thread.join()
    stop.set()
    killer.join()
    assert failures == []
    with server.store() as store:
        assert sorted(study.name for study in store.studies()) == sorted(
            f"study {number}" for number in range(STUDIES)
        )
        assert [event.kind for event in store.events()] == ["submitted"] * STUDIES


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_events_go_on_where_a_dead_server_left_off(server, kind):
    server.start()
    server.wait_until_up()

    def play():
        with server.store() as store:
            study = store.study("bowl")
            for number in range(40):
                store.add_event(study.id, "noted", str(number))
                time.sleep(0.03)
                if number in (10, 25):
                    server.kill()
                    server.start()
            store.set_study_state(study.id, StudyState.FINISHED)

    with client_of(kind, server.url, server.token, retries=PATIENT) as client:
        study = client.submit(spec_of("bowl"))
        player = threading.Thread(target=play)
        player.start()
        events = list(study.events())
        player.join()
        assert study.wait(timeout=60).state == "finished"
    assert [event.message for event in events if event.kind == "noted"] == [
        str(number) for number in range(40)
    ]
