"""`hpo serve` and `hpo token` as a user meets them."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import pytest
from api_server import spec_of
from click.testing import CliRunner

from hpo.cli.main import main
from hpo.errors import SpecError
from hpo.service import serving as serving_module
from hpo.service.config import ServerConfig, ServiceLimits, load_server_config
from hpo.service.supervisor import WorkerProcess

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parent.parent.parent


@contextlib.contextmanager
def serving(folder, *arguments):
    """`hpo serve` in a folder; yields the process, what it said, and the link."""
    process = subprocess.Popen(
        [sys.executable, "-m", "hpo.cli.main", "serve", "--port", "0", *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
    )
    said = []
    try:
        for line in process.stdout:
            said.append(line)
            if line.startswith("Ctrl-C"):
                break
        link = re.search(r"(http://[\w.:]+)/login\?token=(\S+)", "".join(said))
        address, secret = link[1], link[2]
        deadline = time.monotonic() + 30
        while True:
            with contextlib.suppress(httpx.TransportError):
                httpx.get(f"{address}/health", timeout=60)
                break
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield process, address, secret
    finally:
        if process.poll() is None:
            process.kill()
        process.stdout.close()
        process.stderr.close()
        process.wait()


@pytest.mark.parametrize(
    ("settings", "warned"),
    [
        ({"host": "0.0.0.0"}, True),
        ({"host": "0.0.0.0", "trusted_proxies": ("127.0.0.1",)}, False),
        ({"host": "127.0.0.1"}, False),
    ],
)
def test_a_server_beyond_this_machine_without_tls_says_what_is_read_on_the_way(
    tmp_path, monkeypatch, caplog, settings, warned
):
    monkeypatch.setattr("hpo.service.logs.set_up", lambda _: None)
    monkeypatch.setattr(serving_module._Server, "run", lambda *_, **__: None)
    config = ServerConfig.model_validate(
        {"storage": f"sqlite:///{tmp_path}/hpo.db", "folder": tmp_path, "port": 0, **settings}
    )
    with caplog.at_level("WARNING"):
        serving_module.serve_until_stopped(config, worker=False, link=False, tell=lambda _: None)
    assert ("without TLS: anyone on the network path can read tokens" in caplog.text) == warned


def test_a_login_link_that_cannot_be_written_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr("hpo.service.logs.set_up", lambda _: None)
    (tmp_path / "file").write_text("not a folder")
    config = ServerConfig.model_validate(
        {
            "storage": f"sqlite:///{tmp_path}/hpo.db",
            "port": 0,
            "folder": tmp_path / "file" / "below",
        }
    )
    with pytest.raises(serving_module.ServeError, match="cannot write the token of the login link"):
        serving_module.serve_until_stopped(config, worker=True, link=True, tell=lambda _: None)


def test_a_laptop_gets_a_login_link_and_an_orderly_end(tmp_path):
    with serving(tmp_path, "--no-worker", "--log-format", "json") as (process, address, secret):
        assert stat.S_IMODE((tmp_path / ".hpo" / "login-token").stat().st_mode) == 0o600
        headers = {"Authorization": f"Bearer {secret}"}
        with httpx.Client(base_url=f"{address}/api/v1", headers=headers, timeout=60) as asked:
            assert asked.get("/me").json()["scopes"] == ["admin"]
            assert asked.post("/studies", json={"spec": spec_of()}).status_code == 201
        with httpx.stream("GET", f"{address}/api/v1/events", headers=headers, timeout=60) as stream:
            lines = stream.iter_lines()
            next(lines)
            time.sleep(0.3)
            process.send_signal(signal.SIGTERM)
            list(lines)  # an open stream is ended, and does not hold the server up
        assert process.wait(60) == 0
        entries = [json.loads(line) for line in process.stderr.read().splitlines()]
        assert {("GET", "/api/v1/me", 200), ("POST", "/api/v1/studies", 201)} <= {
            (entry.get("method"), entry.get("path"), entry.get("status")) for entry in entries
        }
        assert secret not in json.dumps(entries)
    with serving(tmp_path, "--no-worker") as (process, address, again):
        assert again == secret  # open pages stay logged in
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0


def test_a_taken_port_is_told(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        found = CliRunner().invoke(main, ["serve", "--port", str(port), "--no-worker"])
    assert found.exit_code == 2
    assert f"cannot listen on 127.0.0.1:{port}" in found.output
    assert "--port" in found.output


def test_tokens_from_the_command_line(tmp_path, monkeypatch):
    monkeypatch.setenv("HPO_STORAGE", f"sqlite:///{tmp_path}/hpo.db")

    def run(*arguments):
        found = CliRunner().invoke(main, ["token", *arguments])
        assert found.exit_code == 0, found.output
        return found

    made = run("create", "--owner", "ada", "--scope", "submit", "--expires", "30d")
    assert re.fullmatch(r"lb_[\w-]{43}\n", made.stdout)
    assert "token 1 of ada, scope submit, expires" in made.stderr
    assert (
        json.loads(run("create", "--owner", "bob", "--expires", "never", "--json").stdout)[
            "expires_at"
        ]
        is None
    )
    run("revoke", "1")
    states = {each["owner"]: each["state"] for each in json.loads(run("list", "--json").stdout)}
    assert states == {"ada": "revoked", "bob": "valid"}
    assert made.stdout.strip() not in run("list").stdout
    for wrong in (
        ["create", "--owner", "ada", "--expires", "soon"],
        ["create", "--owner", "ada", "--scope", "all"],
        ["revoke", "99"],
        ["create", "--owner", "a\nb"],
        ["create"],
    ):
        found = CliRunner().invoke(main, ["token", *wrong])
        assert found.exit_code == 2, (wrong, found.output)
        assert "Traceback" not in found.output


# configuration


def test_where_a_value_comes_from(tmp_path):
    file = tmp_path / "server.yaml"
    file.write_text(
        f"port: 1\nhost: 0.0.0.0\nstorage: a.db\ndata_folders: [{tmp_path}]\nlimits: {{burst: 7}}\n"
    )
    environment = {
        "HPO_SERVE_PORT": "2",
        "HPO_STORAGE": "b.db",
        "HPO_SERVE_WORKLOADS": "resnet,my.cells:Cells",
        "HPO_PORT": "tcp://10.0.0.1:80",
        "HPO_SERVE_SHARED_READING": "false",
    }
    config = load_server_config(file, environment, storage="c.db", host=None)
    assert (config.port, config.host, config.storage, config.limits.burst) == (
        2,
        "0.0.0.0",
        "c.db",
        7,
    )
    assert config.workloads == ("resnet", "my.cells:Cells")
    assert config.data_folders == (tmp_path,)
    assert not config.shared_reading
    assert not config.is_local
    assert load_server_config().is_local


@pytest.mark.parametrize(
    ("text", "line", "told"),
    [
        ("port: 1\nworklods: [resnet]\n", 2, "did you mean 'workloads'"),
        ("port: 70000\n", 1, "65,535"),
        ("limits:\n  brst: 1\n", 2, "did you mean 'burst'"),
        ("data_folders: [data]\n", 1, "absolute"),
        ("tls_key: x\n", None, "together"),
        ("workloads: ['os; system']\n", 1, "package.module:Class"),
        ("[", 2, "a configuration must be YAML"),
        ("a\n", None, "mapping"),
        ("log_format: xml\n", 1, "text"),
    ],
)
def test_a_configuration_that_cannot_be(tmp_path, text, line, told):
    file = tmp_path / "server.yaml"
    file.write_text(text)
    with pytest.raises(SpecError) as refused:
        load_server_config(file)
    assert told in str(refused.value)
    assert refused.value.line == line
    assert str(file) in str(refused.value)


# the worker inside


def test_a_worker_that_dies_is_started_again_and_ends_with_the_server(tmp_path):
    marks = tmp_path / "marks"
    program = f"import os, time; open({str(marks)!r}, 'a').write(str(os.getpid()) + '\\n'); time.sleep(60)"
    worker = WorkerProcess([sys.executable, "-c", program])
    worker.start()
    try:
        wait_for(lambda: marks.exists() and len(marks.read_text().split()) == 1)
        first = int(marks.read_text().split()[0])
        os.kill(first, signal.SIGKILL)
        wait_for(lambda: len(marks.read_text().split()) == 2)
    finally:
        worker.stop(5)
    assert worker.pid is None
    assert worker.starts == 2
    for pid in marks.read_text().split():
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid), 0)


def test_a_worker_that_will_not_stop_is_killed():
    program = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(60)"
    worker = WorkerProcess([sys.executable, "-c", program])
    worker.start()
    wait_for(lambda: worker.pid is not None)
    time.sleep(0.3)
    worker.stop(0.2)
    assert worker.pid is None
    assert not any(thread.name == "worker supervisor" for thread in threading.enumerate())


def test_a_worker_does_not_outlive_a_killed_server(tmp_path):
    if sys.platform != "linux":
        pytest.skip("only Linux tells a process of its parent's death")
    program = (
        "import os, sys, time; from hpo.service.supervisor import WorkerProcess\n"
        "worker = WorkerProcess([sys.executable, '-c', 'import time; time.sleep(60)']); worker.start()\n"
        "while worker.pid is None: time.sleep(0.01)\n"
        "print(worker.pid, flush=True); time.sleep(60)"
    )
    server = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    pid = int(server.stdout.readline())
    server.kill()
    server.wait()
    server.stdout.close()
    wait_for(
        lambda: (
            not Path(f"/proc/{pid}").exists()
            or "Z" in Path(f"/proc/{pid}/stat").read_text().split()[2]
        )
    )


def wait_for(held, seconds=20):
    deadline = time.monotonic() + seconds
    while not held():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_the_manual_names_every_key():
    manual = (ROOT / "docs" / "guides" / "service.md").read_text()
    keys = [name for name in ServerConfig.model_fields if name != "limits"]
    assert [key for key in keys if f"`{key}`" not in manual] == []
    assert [key for key in ServiceLimits.model_fields if f"`limits.{key}`" not in manual] == []
