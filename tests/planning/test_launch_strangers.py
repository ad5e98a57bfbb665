"""Who can reach a launched run: no one on another machine, and no foreign code."""

import base64
import contextlib
import dataclasses
import hashlib
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest
from torch.distributed import HashStore, TCPStore  # type: ignore[attr-defined]
from torch.distributed.elastic.rendezvous import RendezvousStateError

from hpo.errors import LaunchError
from hpo.planning.launchers.launch import run_plan_locally
from hpo.planning.launchers.local import has_horovod
from tests.planning.launch_samples import ROOT, small_job, small_plan
from tests.planning.run_processes import (
    is_loopback,
    listening_addresses,
    processes_of,
    ranks_of,
    wait_for,
)
from trainers import agents
from trainers.distributed.listening import network_address_of, outward_address, serve_tcp_store

BACKENDS = [
    pytest.param(
        "horovod", marks=pytest.mark.skipif(not has_horovod(), reason="Horovod is not installed")
    ),
    "torch",
]


class Marks:
    """Runs code where it is unpickled: it makes a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_run_here_listens_on_the_loopback_interface_alone(tmp_path, backend):
    plan = small_plan(
        small_job(tmp_path, delay=0.1), machine="local", launcher="local", nodes=1, ranks=2
    )
    seen, running = set(), threading.Event()

    def look(_=None):
        running.set()
        seen.update(listening_addresses(processes_of(tmp_path)))
        if len(heard) > 2:
            raise InterruptedError

    heard = []
    with pytest.raises(InterruptedError):
        run_plan_locally(plan, tmp_path, backend=backend, seed=1, on_point=heard.append, check=look)
    assert seen, "the workers have connections among them"
    assert [address for address in seen if not is_loopback(address)] == []


def test_a_store_of_a_run_listens_at_the_address_of_its_host_alone():
    store = serve_tcp_store("localhost", 0, 5.0)
    found = [
        each
        for each in listening_addresses([os.getpid()])
        if int(each.rpartition(":")[2], 16) == store.port
    ]
    assert found and all(map(is_loopback, found))
    client = TCPStore("localhost", store.port, is_master=False)
    client.set("key", "value")
    assert store.get("key") == b"value"
    elsewhere = outward_address()
    if elsewhere and elsewhere != "127.0.0.1":
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((elsewhere, store.port), timeout=2)


def test_a_name_for_the_loopback_interface_is_taken_at_its_word_and_a_host_s_is_not(monkeypatch):
    assert (
        network_address_of("localhost") == "127.0.0.1"
        and network_address_of("127.0.0.9") == "127.0.0.9"
    )
    debian = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.1.1", 0))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: debian)
    assert network_address_of("node7") == (outward_address() or "127.0.1.1")


# the agents of a job on several nodes


def secret_in(folder):
    file = folder / "secret"
    file.write_text("s" * 64)
    file.chmod(0o600)
    return file


def test_what_a_stranger_writes_into_the_store_is_not_unpickled(tmp_path):
    """The payload of the attack: a pickle under the key of torchrun's meeting."""
    store, run = HashStore(), "job.1"
    ours = agents.SignedBackend(store, run, b"s" * 64)
    assert ours.get_state() is None
    state, token, stored = ours.set_state(b"ours")
    assert (state, stored) == (b"ours", True)
    assert ours.get_state() == (b"ours", token)
    assert agents.SignedBackend(store, run, b"s" * 64).get_state() == (b"ours", token)
    evil = pickle.dumps(Marks(tmp_path / "mark"))
    for written in (evil, hashlib.sha256(evil).digest() + evil, b""):
        store.set(f"torch.rendezvous.{run}", base64.b64encode(written).decode())
        for act in (ours.get_state, lambda: ours.set_state(b"more", token)):
            with pytest.raises(RendezvousStateError, match="that none of its agents wrote"):
                act()
    with pytest.raises(RendezvousStateError):
        agents.SignedBackend(HashStoreOf(store, run, b"other" * 20), run, b"s" * 64).get_state()
    assert not (tmp_path / "mark").exists()


def HashStoreOf(store, run, secret):  # noqa: N802  stands for a store
    """The store with a state by agents of another secret."""
    other = HashStore()
    agents.SignedBackend(other, run, secret).set_state(b"theirs")
    return other


def test_a_state_of_another_meeting_does_not_count(tmp_path):
    """What was written for one start of a job cannot be played back in the next."""
    store = HashStore()
    agents.SignedBackend(store, "job.1", b"s" * 64).set_state(b"ours")
    store.set("torch.rendezvous.job.2", store.get("torch.rendezvous.job.1"))
    with pytest.raises(RendezvousStateError):
        agents.SignedBackend(store, "job.2", b"s" * 64).get_state()


@pytest.mark.slow
def test_agents_whose_port_a_stranger_reaches_end_without_running_its_code(tmp_path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        sys.executable,
        "-m",
        "trainers.agents",
        str(secret_in(tmp_path)),
        "--nnodes=2",
        "--nproc-per-node=1",
        "--rdzv-id=job",
        f"--rdzv-endpoint=localhost:{port}",
        "-m",
        "trainers",
        str(tmp_path / "job.json"),
        "--report",
        str(tmp_path / "out.jsonl"),
    ]
    agent = subprocess.Popen(
        command,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    )
    try:
        stranger = TCPStore("localhost", port, is_master=False)
        stranger.wait(["torch.rendezvous.job"])
        assert all(map(is_loopback, listening_addresses([agent.pid])))
        evil = base64.b64encode(pickle.dumps(Marks(tmp_path / "mark"))).decode()
        for _ in range(40):
            with contextlib.suppress(RuntimeError):  # the agent has ended, and its store with it
                stranger.set("torch.rendezvous.job", evil)
            if agent.poll() is not None:
                break
            time.sleep(0.5)
        said = agent.communicate(timeout=60)[1]
    finally:
        agent.kill()
    assert agent.returncode != 0 and "that none of its agents wrote" in said
    assert not (tmp_path / "mark").exists()


@pytest.mark.parametrize(("mode", "text"), [(0o644, "s" * 64), (0o600, "short")])
def test_a_secret_that_is_none_is_refused(tmp_path, mode, text):
    file = tmp_path / "secret"
    file.write_text(text)
    file.chmod(mode)
    with pytest.raises(ValueError, match=r"must be readable|must hold"):
        agents.read_secret(file)


# a run ends with its launcher


def launch_command(tmp_path, backend):
    program = tmp_path / "launches.py"
    program.write_text(
        "import sys\nfrom pathlib import Path\n"
        "from tests.planning.test_launch_strangers import long_run\n"
        "long_run(Path(sys.argv[1]), sys.argv[2])\n"
    )
    return [sys.executable, str(program), str(tmp_path), backend]


def long_run(folder, backend):
    plan = small_plan(
        small_job(folder, delay=0.3), machine="local", launcher="local", nodes=1, ranks=2
    )
    run_plan_locally(plan, folder, backend=backend, seed=1, on_point=lambda _: None)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=["KILL", "TERM"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_the_ranks_end_with_the_launcher(tmp_path, backend, number):
    launcher = subprocess.Popen(
        launch_command(tmp_path, backend), env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    try:
        wait_for((tmp_path / "seed-1/outcome.jsonl").exists, 90, "the training")
        ranks = ranks_of(tmp_path / "seed-1")
        assert len(ranks) >= 2
        launcher.send_signal(number)
        launcher.wait(10)
        wait_for(lambda: not processes_of(tmp_path / "seed-1"), 8, "the ranks to end")
    finally:
        for pid in (launcher.pid, *processes_of(tmp_path)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@pytest.mark.slow
def test_a_second_launch_of_a_folder_is_refused_while_the_first_runs(tmp_path, monkeypatch):
    monkeypatch.setattr("hpo.planning.launchers.launch.LOCK_SECONDS", 0.5)
    launcher = subprocess.Popen(
        launch_command(tmp_path, "torch"), env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    report = tmp_path / "seed-1/outcome.jsonl"
    try:
        wait_for(report.exists, 90, "the training")
        before = report.read_bytes()
        with pytest.raises(LaunchError, match="another run is writing to"):
            long_run(tmp_path, "torch")
        assert report.read_bytes().startswith(before)
    finally:
        launcher.kill()
        launcher.wait()
    wait_for(lambda: not ranks_of(tmp_path / "seed-1"), 8, "the ranks to end")


def test_the_files_of_a_run_are_their_user_s_alone(tmp_path):
    from hpo.planning.launchers.launch import write_plan

    plan = small_plan(small_job(tmp_path), machine="local", launcher="local", nodes=1, ranks=2)
    write_plan(dataclasses.replace(plan, id=1), tmp_path / "a" / "plan", backend="torch")
    modes = {
        path.name: path.stat().st_mode & 0o777
        for path in [tmp_path / "a", *(tmp_path / "a").rglob("*")]
    }
    assert modes == {
        "a": 0o700,
        "plan": 0o700,
        "plan.json": 0o600,
        "job.json": 0o600,
        "launch.sh": 0o700,
    }
