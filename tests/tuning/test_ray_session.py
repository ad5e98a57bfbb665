"""A Ray started here requires a token, keeps its files private to its user, and is refused if it cannot."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hpo.errors import TuningError
from hpo.tuning.tuner import RayOptions, _start_ray
from trainers.asynchronous import ray_session
from trainers.errors import CommunicationError

ROOT = Path(__file__).parents[2]
STARTS = """
import os, stat, sys
from pathlib import Path
from trainers.asynchronous import ray_session
ray_session.start_ray(num_cpus=1, include_dashboard=False, log_to_driver=False)
import ray
(folder,) = ray_session._folders
session = Path(ray._private.worker._global_node.get_session_dir_path())
print(session.is_relative_to(folder), oct(folder.stat().st_mode & 0o777))
print(oct((Path.home() / ".ray/auth_token").stat().st_mode & 0o777))
address = ray.get_runtime_context().gcs_address
stranger = "import ray; ray.init(address='%s', log_to_driver=False); print('let in')" % address
import subprocess
for token in ({"RAY_AUTH_MODE": "disabled"}, {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "f" * 64}):
    tried = subprocess.run([sys.executable, "-c", stranger], env={**os.environ, **token, ray_session.CLUSTER: "0"},
                           capture_output=True, text=True, timeout=100)
    print(tried.returncode != 0, "let in" in tried.stdout)
from tests.planning.run_processes import is_loopback, listening_addresses
def is_ours(pid):
    try:
        return os.getsid(pid) == os.getsid(0)
    except OSError:
        return False
ray.get(ray.remote(lambda: 1).remote())
listening = listening_addresses(filter(is_ours, (int(each.name) for each in Path("/proc").glob("[0-9]*"))))
print(len(listening) > 5, [each for each in listening if not is_loopback(each)])
ray_session.stop_ray()
print(folder.exists())
"""


@pytest.mark.slow
def test_a_ray_that_is_started_here_listens_here_alone_and_lets_nobody_in_without_its_token(
    tmp_path,
):
    done = subprocess.run(
        [sys.executable, "-c", STARTS],
        env={**os.environ, "PYTHONPATH": str(ROOT), "HOME": str(tmp_path)}
        | {"RAY_gcs_rpc_server_connect_timeout_s": "2"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        start_new_session=True,  # which tells its processes
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines() == [
        "True 0o700",
        "0o600",
        "True False",
        "True False",
        "True []",
        "False",
    ]


HOLDS = """
import sys, tempfile, time
from trainers.asynchronous import ray_session
tempfile.tempdir, ray_session.LONGEST_FOLDER = sys.argv[1], 1000
folder = ray_session._private_folder()
(folder / "session").mkdir(parents=True)
print(folder.parent, flush=True)
time.sleep(60)
"""


def test_what_a_killed_process_left_is_removed_by_the_next_and_nothing_else(tmp_path, monkeypatch):
    monkeypatch.setattr(ray_session, "LONGEST_FOLDER", 1000)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(ray_session, "_folders", {})
    command = [sys.executable, "-c", HOLDS, str(tmp_path)]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as first,
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as second,
    ):
        try:
            killed, living = (Path(each.stdout.readline().strip()) for each in (first, second))
            first.kill()
            first.wait(30)
            (tmp_path / "hpo-ray-of-before").mkdir()  # without a lock: nobody knows whose it is
            (tmp_path / "hpo-ray-link").symlink_to(living)
            assert killed.is_dir()
            own = ray_session._private_folder().parent
            kept = {own, living, tmp_path / "hpo-ray-of-before", tmp_path / "hpo-ray-link"}
            assert set(tmp_path.iterdir()) == kept
            assert (living / "ray/session").is_dir()
        finally:
            first.kill()
            second.kill()
    ray_session._private_folder()
    assert own.is_dir() and not living.exists()
    ray_session._remove_folders()
    assert not list(tmp_path.glob("hpo-ray-????????"))


@pytest.mark.parametrize("version", ["2.58.9", "2.9.3", "1.13.0"])
def test_a_ray_whose_ports_ask_for_no_token_is_refused(version):
    with pytest.raises(CommunicationError, match=r"at least 2\.59.*pip install"):
        ray_session.check_ray_version(version)
    ray_session.check_ray_version("2.59.0")
    ray_session.check_ray_version("3.0.0rc1")


@pytest.mark.parametrize("mode", ["disabled", "", "none"])
def test_a_token_that_is_turned_off_is_refused(mode, monkeypatch):
    with pytest.raises(CommunicationError, match="must be token or unset"):
        ray_session.check_mode(mode)
    ray_session.check_mode(None)
    ray_session.check_mode("token")
    monkeypatch.setenv("RAY_AUTH_MODE", mode)
    with pytest.raises(CommunicationError, match="has no token"):
        ray_session.check_running()


@pytest.mark.parametrize(
    ("address", "error", "failures", "starts"),
    [
        (None, RuntimeError("The current node timed out"), 2, 3),
        (None, RuntimeError("The current node timed out"), 3, None),
        (None, CommunicationError("no token"), 1, None),
        ("10.0.0.1:6379", ConnectionError("nobody there"), 1, None),
    ],
)
def test_a_ray_that_starts_too_slowly_here_is_started_again(
    monkeypatch, address, error, failures, starts
):
    started, ended = [], []

    def start(*_, **__):
        started.append(1)
        if len(started) <= failures:
            raise error

    monkeypatch.setattr(ray_session, "start_ray", start)
    monkeypatch.setattr(ray_session, "stop_ray", lambda: ended.append(1))
    if starts is None:
        with pytest.raises(TuningError, match=str(error)):
            _start_ray(RayOptions(address))
        assert len(started) == failures
    else:
        _start_ray(RayOptions(address))
        assert len(started) == starts
    assert len(ended) == len(started) - 1
