"""Order the tests, limit the cost of each, and provide what they share: a private PostgreSQL and a Ray instance.

Marks state the cost of a test; ``postgres`` and ``browser`` are set from its fixtures. At the end, a run lists the
tests without a mark that took more than :data:`DEAR_SECONDS` of processor time. Such a test fails if it took more than
:data:`MOST_SECONDS`, which a short test does not reach even on a busy machine.
"""

from __future__ import annotations

import os

# the processes of a run share the cores, and processes started by tests should not recompile the project each time
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

import functools
import gc
import re
import ssl
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from benchmarks.private_postgres import PrivatePostgres, private_postgres
from search_spaces.plugins import TAKEN
from storage.store import Store

# this also affects processes that tests start, as tests compare with numbers computed on the CPU
os.environ["CUDA_VISIBLE_DEVICES"] = ""

# the time an example takes depends on the machine, and on whether coverage is measured
hypothesis.settings.register_profile("no deadline", deadline=None)
hypothesis.settings.load_profile("no deadline")

MARKS = ("slow", "medium", "fit", "postgres", "processes", "browser")
DEAR_SECONDS, MOST_SECONDS = 2.0, 30.0
"""Limits on the processor time of an unmarked test and its child processes; most tests take a tenth of a second."""


ONE_RAY_PROGRAMS = (
    "interfaces/test_program_examples.py",
    "interfaces/test_own_workload.py",
    "tuning/test_program_sweep.py",
)
ONE_RAY_TRAININGS = (
    "trainers/test_asynchronous_training.py",
    "tuning/test_sweeps.py",
    "tuning/test_trial_workers.py",
)
BROWSER = (
    "dashboard/test_browser_path.py",
    "dashboard/test_browser_access.py",
    "dashboard/test_browser_live.py",
)
COSTLY = {
    BROWSER[:2]: 60,
    ONE_RAY_TRAININGS: 50,
    ("storage/test_store_sqlite.py",): 38,
    ("dashboard/test_report.py",): 38,
    ("interfaces/test_plan_command.py",): 36,
    ("tuning/test_race.py",): 31,
    ("storage/test_bounds_of_figures.py",): 31,
    ("dashboard/test_page_routes.py",): 26,
    ("service/test_client.py",): 24,
    ("extrapolation/test_descent.py",): 22,
    ("trainers/test_parametrization.py",): 22,
    ("test_documents.py",): 22,
    ("service/test_client_faults.py",): 21,
    ("test_site.py",): 25,
    ("storage/test_backups.py",): 22,
    ("storage/test_migrations.py",): 22,
    ("service/test_api_trials.py",): 21,
    ("service/test_damaged_rows.py",): 21,
    ("extrapolation/test_raced.py",): 21,
    ("extrapolation/test_forecast_recovery.py",): 21,
    ("planning/test_launchers_loop.py",): 19,
    ("planning/test_sweep_scripts.py",): 19,
    ("interfaces/test_python_api.py",): 17,
}
"""Seconds that the slowest test files take in `make test` with three processes on two cores; these files run first.

Files listed together share one Ray instance (:func:`one_ray`) or one server if one process runs them.
"""
COSTLY_IF_SLOW = {
    ONE_RAY_PROGRAMS: 380,
    ("test_documents.py",): 230,
    ONE_RAY_TRAININGS: 180,
    BROWSER: 150,
    ("interfaces/test_plugin_example.py",): 120,
    ("interfaces/test_strangers_programs.py",): 110,
    ("test_distribution.py",): 100,
    ("storage/test_store_postgresql.py",): 90,
    ("planning/test_launch_restarts.py",): 70,
    ("planning/test_launchers_training.py",): 70,
    ("service/test_fault_workers.py",): 70,
    ("tuning/test_killed_sweep.py",): 70,
    ("service/test_damaged_rows.py",): 60,
    ("trainers/test_shared_optimizers.py",): 60,
    ("trainers/test_workers.py",): 50,
    ("service/test_plain_install.py",): 50,
    ("extrapolation/test_extrapolation_score.py",): 50,
    ("planning/test_sweep_scripts.py",): 50,
    ("tuning/test_ray_session.py",): 45,
    ("interfaces/test_hydra_sweeper.py",): 40,
    ("interfaces/test_study_folder.py",): 40,
    ("trainers/test_framework_callbacks.py",): 40,
    ("trainers/test_lost_workers.py",): 40,
    ("extrapolation/test_forecast_recovery.py",): 40,
    ("service/test_stop_heard.py",): 40,
    ("service/test_study_limits.py",): 40,
    ("service/test_agents.py",): 35,
    ("planning/test_throughput_score.py",): 35,
    ("trainers/test_program_memory.py",): 30,
    ("trainers/test_reducer.py",): 30,
    ("interfaces/test_assistant_tools.py",): 25,
    ("past_runs/test_trackers_beside.py",): 25,
    ("service/test_openapi.py",): 25,
    ("service/test_fit_process.py",): 20,
    ("interfaces/test_python_api.py",): 20,
    ("interfaces/test_coming_from.py",): 20,
    ("interfaces/test_sample_images_of_a_launch.py",): 15,
    ("extrapolation/test_warmup_law.py",): 15,
}
"""The same for the tests that are marked slow."""


TESTS = Path(__file__).parent


def marks_of(file: Path) -> set[str]:
    """Return the marks in a file's ``pytestmark``, which apply to all its tests, without importing the file."""
    if file.suffix != ".py" or not file.is_relative_to(TESTS):
        return set()
    line = re.search(r"^pytestmark = (.*)$", file.read_text(encoding="utf-8"), re.MULTILINE)
    return set(re.findall(r"pytest\.mark\.(\w+)", line[1])) if line else set()


def excluded(file: Path, expression: str) -> bool:
    """Whether ``-m`` excludes every test of a file: by ``not MARK``, ``not (MARK or MARK ...)`` or ``slow``.

    The first two forms are compared with the file's ``pytestmark``; ``slow`` excludes a file that never uses that mark.
    """
    if expression.strip() == "slow":
        return file.name.startswith("test_") and "mark.slow" not in file.read_text(encoding="utf-8")
    marks = re.fullmatch(r"not (?:(\w+)|\((\w+(?: or \w+)*)\))", expression.strip())
    return marks is not None and bool(marks_of(file) & set((marks[1] or marks[2]).split(" or ")))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skip the import of excluded files: with their libraries, it takes as long as many tests."""
    return excluded(collection_path, config.getoption("markexpr")) or None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests that use PostgreSQL or a browser; if there are several processes, put the expensive tests first."""
    for item in items:
        fixtures = set(getattr(item, "fixturenames", ()))
        values = item.callspec.params.values() if hasattr(item, "callspec") else ()
        if "postgres" in fixtures or "postgresql" in values:
            item.add_marker("postgres")
        if "chromium" in fixtures:
            item.add_marker("browser")
    processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if processes > 1:
        slow = any(item.get_closest_marker("slow") for item in items)
        costs = COSTLY_IF_SLOW if slow else COSTLY
        order = dealt([item.nodeid for item in items], processes, costs)
        items[:] = [items[number] for number in order]


def pytest_collection_finish() -> None:
    """Exempt the libraries and tests loaded so far from garbage collection, as they stay until the end."""
    gc.collect()
    gc.freeze()


def place_of(test: str) -> str:
    """Return the path of a test's file below this folder, from its id."""
    return test.partition("::")[0].removeprefix("tests/")


def dealt(
    tests: Sequence[str], processes: int, costs: Mapping[tuple[str, ...], float] = COSTLY
) -> list[int]:
    """Return the test order, as indices into ``tests``: expensive files first, spread evenly over the processes.

    xdist gives every process an equal contiguous part of the list, and lets a process that has finished take tests from
    the end of another process's part (``--dist worksteal``). So each part starts with its share of the expensive files,
    longest first, and the many short tests are left for other processes to take.
    """
    places = [place_of(test) for test in tests]
    costly = {place for files in costs for place in files}
    parts: list[list[int]] = [[] for _ in range(processes)]
    seconds = [0.0] * processes
    for files, cost in sorted(costs.items(), key=lambda each: -each[1]):
        numbers = [number for place in files for number, its in enumerate(places) if its == place]
        least = seconds.index(min(seconds))
        parts[least] += numbers
        seconds[least] += cost if numbers else 0
    rest = [number for number, place in enumerate(places) if place not in costly]
    left = len(tests)
    for number, part in enumerate(parts):  # matches how xdist splits the list
        size = left // (processes - number)
        missing = max(size - len(part), 0)
        part.extend(rest[:missing])
        del rest[:missing]
        left -= size
    return [number for part in parts for number in part] + rest


def fault_of_cost(seconds: float, marks: Collection[str]) -> str:
    """Return the error for a test that took too many ``seconds`` of processor time, or "" if it did not."""
    if seconds <= MOST_SECONDS or set(marks) & (set(MARKS) - {"medium"}):
        return ""
    return (
        f"a test without a cost mark may take {MOST_SECONDS:g} s of processor time, but this one took "
        f"{seconds:.1f} s: make it cheaper, or mark it as slow, fit or processes"
    )


def processor_seconds() -> float:
    """Return the processor time of this process and of its finished children."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Measure every test, and fail expensive tests without a mark, except under coverage, which doubles the time."""
    before = processor_seconds()
    yield
    spent = processor_seconds() - before
    item.user_properties.append(("processor_seconds", spent))
    fault = fault_of_cost(spent, [mark.name for mark in item.iter_markers()])
    if fault and not item.config.pluginmanager.hasplugin("_cov"):
        pytest.fail(fault, pytrace=False)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name the expensive tests that have no mark."""
    found = [
        (spent, report.nodeid)
        for report in terminalreporter.getreports("passed")
        if not set(report.keywords) & set(MARKS)
        for name, spent in report.user_properties
        if name == "processor_seconds" and spent > DEAR_SECONDS
    ]
    if found:
        terminalreporter.section("expensive tests without a cost mark")
        for spent, test in sorted(found, reverse=True)[:20]:
            terminalreporter.line(f"{spent:5.1f} s of processor time  {test}")


@pytest.fixture(scope="session", autouse=True)
def certificates_read_once() -> Iterator[None]:
    """Cache the CA certificates: every httpx client loads them, which takes longer than most tests."""
    make, kept = ssl.create_default_context, functools.cache(ssl.create_default_context)

    def context(*values: Any, **named: Any) -> ssl.SSLContext:
        return kept(**named) if not values and set(named) == {"cafile"} else make(*values, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ssl, "create_default_context", context)
        yield


@pytest.fixture(scope="module", autouse=True)
def plugins_as_before() -> Iterator[None]:
    """Restore the environment variable with the plug-ins that a server or worker in this process accepts."""
    before = os.environ.get(TAKEN)
    yield
    if before is None:
        os.environ.pop(TAKEN, None)
    else:
        os.environ[TAKEN] = before


@pytest.fixture(scope="session")
def one_ray() -> None:
    """A Ray instance with two cores for sweeps and training runs, shared by consecutive tests that use this fixture.

    Starting Ray takes seven seconds of processor time, as much as many small trials. The instance is started before the
    first of these tests and stopped after the last (:func:`pytest_runtest_setup`, :func:`pytest_runtest_teardown`), so
    that a test that starts its own Ray instance can follow.
    """


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Start the Ray instance of :func:`one_ray` if a test needs it and it is not running."""
    if "one_ray" in getattr(item, "fixturenames", ()):
        ray = pytest.importorskip("ray")
        if not ray.is_initialized():
            from trainers.asynchronous import ray_session

            ray_session.start_ray(
                num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR"
            )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """Stop the Ray instance of :func:`one_ray` if the next test does not use it."""
    yield
    if "one_ray" in getattr(item, "fixturenames", ()) and "one_ray" not in getattr(
        nextitem, "fixturenames", ()
    ):
        from trainers.asynchronous import ray_session

        ray_session.stop_ray()


@pytest.fixture(scope="session")
def postgres() -> Iterator[PrivatePostgres]:
    """A PostgreSQL server for the whole run; tests that need it are skipped if it is not installed."""
    pytest.importorskip(
        "pgserver",
        reason="PostgreSQL comes with the wheel: pip install pgserver",
        exc_type=ImportError,
    )
    with private_postgres(durable=False) as server:
        yield server


@pytest.fixture(scope="session")
def postgres_template(postgres: PrivatePostgres) -> str:
    """A database with our tables, used as a template: copying it is ten times faster than creating the tables."""
    name = postgres.new_database()
    Store.open(postgres.url(name)).close()
    return name


@pytest.fixture
def postgres_url(postgres: PrivatePostgres, postgres_template: str) -> Iterator[str]:
    """The URL of a new database with our tables."""
    name = postgres.new_database(postgres_template)
    yield postgres.url(name)
    postgres.drop(name)


@pytest.fixture
def empty_postgres_url(postgres: PrivatePostgres) -> Iterator[str]:
    """The URL of a new database without tables."""
    name = postgres.new_database()
    yield postgres.url(name)
    postgres.drop(name)
