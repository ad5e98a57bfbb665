"""The contract on SQLite, and what can go wrong with a file."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from store_contract import StoreContract
from store_samples import make_points, make_study, make_trials, python, submit

from storage.errors import (
    Conflict,
    InvalidRecord,
    NotFound,
    SchemaTooNew,
    StoreError,
    StoreUnavailable,
)
from storage.records import NewToken
from storage.store import Store


class TestSqliteStore(StoreContract):
    @pytest.fixture
    def url(self, tmp_path):
        return f"sqlite:///{tmp_path / 'hpo.db'}"


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "hpo.db"


def refused(url: str, **options: float) -> str:
    with pytest.raises(StoreUnavailable) as caught:
        Store.open(url, **options)
    assert isinstance(caught.value, StoreError)
    return str(caught.value)


def test_a_bare_path_is_sqlite(path, monkeypatch):
    with Store.open(str(path)) as store:
        assert store.url == f"sqlite:///{path}"
        make_study(store)
    monkeypatch.chdir(path.parent)
    with Store.open("hpo.db") as store:
        assert store.study("digits")
    monkeypatch.setenv("HOME", str(path.parent))
    with Store.open("~/hpo.db") as store:
        assert store.study("digits")


def test_missing_folder(tmp_path):
    message = refused(f"sqlite:///{tmp_path}/no/such/hpo.db")
    assert f"sqlite:///{tmp_path}/no/such/hpo.db" in message
    assert (
        f"the folder {tmp_path}/no/such does not exist; create it: mkdir -p {tmp_path}/no/such"
        in message
    )
    assert not (tmp_path / "no").exists()


def test_folder_instead_of_a_file(tmp_path):
    assert f"the path is a folder; give a file in it, such as {tmp_path}/hpo.db" in refused(
        str(tmp_path)
    )


def test_file_that_is_no_database(path):
    path.write_text("name: digits\n" * 1000)
    assert "file is not a database; give the path of a new file" in refused(str(path))
    assert path.read_text() == "name: digits\n" * 1000


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("", "the URL is empty; give a path"),
        ("sqlite://", "in memory cannot be shared .* give the path of a file"),
        ("sqlite:///:memory:", "in memory cannot be shared"),
        (
            "mysql://host/db",
            "'mysql' is not supported; the supported databases are sqlite and postgresql",
        ),
        ("sqlite+nothing:///hpo.db", "no driver 'sqlite.nothing'"),
        ("://", "not a database URL; write sqlite:///PATH"),
        ("postgresql://ann@host:port/db", "not a database URL"),
    ],
)
def test_urls_that_cannot_work(url, message):
    with pytest.raises(StoreUnavailable, match=message):
        Store.open(url)


@pytest.mark.parametrize(
    ("driver", "package"), [("psycopg", r"'psycopg\[binary\]'"), ("pg8000", "pg8000")]
)
def test_driver_that_is_not_installed(monkeypatch, driver, package):
    monkeypatch.setitem(sys.modules, driver, None)
    with pytest.raises(
        StoreUnavailable, match=f"{driver!r} cannot be loaded .* pip install {package}"
    ):
        Store.open(f"postgresql+{driver}://host/db")


@pytest.mark.parametrize(
    "url",
    [
        "mysql://ann:secret@host/db",
        "mysql://host/db?user=ann&password=secret&x=1",
        "postgresql+nothing://ann:se/cr@et@host/db",
        "postgresql://ann:se/cr@et@host:port/db",
    ],
)
def test_passwords_are_hidden(url):
    message = refused(url)
    assert "***" in message
    assert "secret" not in message
    assert "cr@et" not in message


@pytest.fixture
def open_folder():
    """A folder that every user can enter, unlike pytest's own."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.mark.medium
def test_no_permission(open_folder):
    """Root has every right, so the process that opens the file becomes nobody first."""
    path = open_folder / "hpo.db"
    Store.open(str(path)).close()
    path.chmod(0o444)
    open_folder.chmod(0o555)
    code = (
        "import os, sqlite3, sys; from storage.store import Store\n"
        "if os.geteuid() == 0: os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "try: Store.open(sys.argv[1]).set_study_state(1, 'failed')\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    message, _ = python("-c", code, str(path)).communicate(timeout=60)
    open_folder.chmod(0o755)
    assert message.startswith(f"StoreUnavailable cannot use the database sqlite:///{path}: ")
    assert "file and its folder writable" in message


def test_locked_by_another_process(path):
    with Store.open(str(path), timeout_seconds=0.1) as store:
        other = sqlite3.connect(path)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(
            StoreUnavailable, match="database is locked; another process is writing"
        ):
            make_study(store)
        assert store.studies() == []  # readers go on
        other.rollback()
        other.close()
        make_study(store)


def test_a_worker_that_finds_nothing_and_a_token_in_use_take_no_lock(path):
    with Store.open(str(path), timeout_seconds=0.1) as store:
        submit(store, "running")
        assert store.claim_study("first", lease_seconds=60) is not None
        token = store.add_token(
            NewToken(name="n", owner="ann", digest="d", scopes=frozenset({"read"}))
        )
        store.touch_token(token.id)
        other = sqlite3.connect(path)
        other.execute("BEGIN IMMEDIATE")
        assert store.claim_study("second", lease_seconds=60) is None
        store.touch_token(token.id)
        other.rollback()
        other.close()


@pytest.mark.slow
@pytest.mark.processes
def test_first_opened_by_many_processes_at_once(path):
    code = "import sys; from storage.store import Store; Store.open(sys.argv[1]).close()"
    workers = [python("-c", code, str(path), stderr=subprocess.PIPE) for _ in range(2)]
    assert [worker.communicate(timeout=60)[1] for worker in workers] == [""] * 2
    with Store.open(str(path)) as store:
        assert store.studies() == []


def test_connections_are_safe_and_do_not_wait_for_the_disk(path):
    with Store.open(str(path), timeout_seconds=7) as store, store._database.read() as connection:

        def pragma(name):
            return connection.exec_driver_sql(f"PRAGMA {name}").scalar()

        assert pragma("journal_mode") == "wal"
        assert pragma("foreign_keys") == 1
        assert pragma("synchronous") == 1  # NORMAL
        assert pragma("busy_timeout") == 7000


def test_a_disk_that_is_full(path):
    with Store.open(str(path)) as store:
        with store._database.read() as connection:
            pages = connection.exec_driver_sql("PRAGMA page_count").scalar()
            connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(StoreUnavailable, match="full; free some space"):
            make_study(store, spec="x" * 1_000_000)
        assert store.studies() == []


def run_on_a_disk_of_15_mb(folder: Path, *arguments: str) -> dict[str, Any]:
    """Run the program on a disk in memory, which only the process sees."""
    program = Path(__file__).with_name("full_disk_program.py")
    paths = os.pathsep.join([str(program.parent), *filter(None, sys.path)])
    mount = f'mount -t tmpfs -o size=15m tmpfs {folder} && exec "$@"'
    done = subprocess.run(
        [
            *("unshare", "-m", "-r", "sh", "-c", mount, "sh"),
            *(sys.executable, str(program), str(folder), *arguments),
        ],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


needs_a_small_disk = pytest.mark.skipif(
    subprocess.run(["unshare", "-m", "-r", "true"], capture_output=True, check=False).returncode
    != 0
    if shutil.which("unshare")
    else True,
    reason="needs a small disk, by a mount of its own",
)


@pytest.mark.medium
@needs_a_small_disk
def test_a_disk_that_is_full_and_has_room_again(tmp_path):
    found = run_on_a_disk_of_15_mb(tmp_path)
    assert (
        "database or disk is full; free some space, or give a path on another disk"
        in found["message"]
    )
    assert found["written"] > 10
    assert (found["kept"], found["after"], found["ended"]) == (True, True, "censored")


@pytest.mark.slow
@needs_a_small_disk
def test_a_study_can_be_deleted_on_a_full_disk_where_a_server_kept_some_room(tmp_path):
    kept = run_on_a_disk_of_15_mb(tmp_path, "spare")
    assert kept == {"said": "", "studies": 1}
    assert "full" in run_on_a_disk_of_15_mb(tmp_path, "none")["said"]


@pytest.mark.medium
def test_a_file_that_may_not_grow(path):
    """A limit to the size of files, as batch systems and quotas set, comes as an error of input and output."""
    with Store.open(str(path)) as store:
        (trial,) = make_trials(store, make_study(store), 16)
    code = (
        "import resource, signal, sys\n"
        "from storage.store import Store; from store_samples import make_points\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "store = Store.open(sys.argv[1]); resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))\n"
        f"try: store.record({{{trial.id}: make_points(50_000)}})\n"
        "except Exception as error: print(type(error).__name__, error)\n"
        f"store.record({{{trial.id}: make_points(10)}}); store.close()"
    )
    message, _ = python("-c", code, str(path)).communicate(timeout=60)
    assert message.startswith("StoreUnavailable")
    assert "check that the disk is healthy and has space" in message
    with Store.open(str(path)) as store:
        assert store.points(trial.id) == make_points(10)


def test_a_reader_makes_no_database(path):
    with pytest.raises(
        StoreUnavailable, match=f"there is no file {path}; check the path or URL; running"
    ):
        Store.open(str(path), create=False)
    assert not path.exists()
    path.touch()
    with pytest.raises(StoreUnavailable, match="nothing is stored in it yet; check the path"):
        Store.open(str(path), create=False)
    Store.open(str(path)).close()
    with Store.open(str(path), create=False) as store:
        assert store.studies() == []


def test_a_damaged_file(path):
    Store.open(str(path)).close()
    content = bytearray(path.read_bytes())
    content[100:4096] = os.urandom(3996)
    path.write_bytes(content)
    assert "the file is damaged" in refused(str(path))


def test_one_exception_tree():
    for kind in (StoreUnavailable, NotFound, Conflict, InvalidRecord, SchemaTooNew):
        assert issubclass(kind, StoreError)
    assert issubclass(InvalidRecord, ValueError)
