"""Marks that say what a test costs; a private PostgreSQL, started with the first test that needs it.

``postgres`` and ``browser`` follow from the fixtures of a test; those of the other marks are listed here. One that
takes more than :data:`MOST_SECONDS` of processor time and has no mark fails, and those that take more than a fifth of
that are named at the end of a run.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator
from pathlib import Path

import hypothesis
import pytest

from benchmarks.private_postgres import PrivatePostgres, private_postgres
from storage.store import Store

# also in the processes that tests start: they compare numbers with those of the processor
os.environ["CUDA_VISIBLE_DEVICES"] = ""

# how long an example takes depends on the machine, and on whether its lines are counted
hypothesis.settings.register_profile("no deadline", deadline=None)
hypothesis.settings.load_profile("no deadline")

MARKS = ("slow", "fit", "postgres", "processes", "browser")
MOST_SECONDS = 10.0
"""Processor time of a test without a mark, that of its child processes included; most take a tenth of a second."""

SLOW = (
    "faces/test_program_examples.py",
    "tuning/test_program_sweep.py",
    "tuning/test_trial_workers.py",
    "trainers/test_noisy_quadratic_dynamics.py",
    "service/test_openapi.py::test_made_up_requests",
    "trainers/test_precision.py::test_reduced_precision_trains_almost_as_fp32_does",
)
"""Tests that take more than ten seconds of a core, as do those that say so themselves."""

FIT = (
    "asking/test_ask_tell.py::test_a_desk_that_is_made_anew_before_every_call_changes_nothing",
    "asking/test_ask_tell.py::test_one_that_asks_trains_the_very_trials_of_the_sweep",
    "extrapolation/test_adam_law.py::test_a_known_answer",
    "extrapolation/test_adam_law.py::test_learning_moves_the_belief_to_what_sweeps_say_and_narrows_it",
    "extrapolation/test_adam_law.py::test_only_adam_and_adamw_with_a_tuned_rate_get_the_law",
    "extrapolation/test_degenerate_evidence.py",
    "extrapolation/test_descent.py",
    "extrapolation/test_extrapolation_score.py",
    "extrapolation/test_forecast_recovery.py",
    "extrapolation/test_prospects.py",
    "extrapolation/test_raced.py",
    "extrapolation/test_tempering.py",
    "extrapolation/test_warmup_law.py::test_a_hard_start_is_given_the_updates_that_it_needs",
    "dashboard/test_exhibit_figures.py::test_the_report_shows_the_newest_run_of_the_forecast",
    "dashboard/test_figures.py",
    "dashboard/test_page_routes.py",
    "dashboard/test_report.py",
    "faces/test_command_line.py",
    "faces/test_exhibit_of_a_launch.py",
    "faces/test_first_steps.py::test_a_run_that_begins_says_its_price_and_one_that_goes_on_does_not",
    "faces/test_growing_batch.py",
    "faces/test_own_workload.py",
    "faces/test_plan_command.py",
    "faces/test_program_examples.py",
    "faces/test_python_api.py",
    "faces/test_study_folder.py",
    "planning/test_mlperf_import.py",
    "planning/test_plan_costs.py",
    "planning/test_throughput_factors.py",
    "planning/test_throughput_model.py",
    "planning/test_throughput_score.py",
    "service/test_api_trials.py",
    "service/test_client.py::test_a_forecast_and_a_plan_with_its_files",
    "service/test_fit_process.py",
    "service/test_forecast_evidence.py",
    "service/test_worker_queue.py",
    "service/test_workflow_examples.py",
    "tuning/test_acquisition.py",
    "tuning/test_acquisition_sweep.py",
    "tuning/test_program_sweep.py",
    "tuning/test_race.py",
    "tuning/test_sweeps.py",
    "test_documents.py::test_a_command_of_the_pages_runs",
    "test_documents.py::test_python_of_the_pages_runs",
)
"""Tests that fit the laws of a forecast or of throughputs."""

PROCESSES = (
    "faces/test_exhibit_of_a_launch.py",
    "faces/test_growing_batch.py",
    "faces/test_own_workload.py",
    "faces/test_program_examples.py",
    "faces/test_study_folder.py",
    "planning/test_launch_restarts.py",
    "planning/test_launch_submission.py",
    "planning/test_launch_surroundings.py",
    "planning/test_launchers_loop.py",
    "planning/test_launchers_scripts.py",
    "planning/test_launchers_training.py",
    "planning/test_program_launch.py",
    "planning/test_sweep_scripts.py",
    "service/test_agents.py",
    "service/test_client_faults.py",
    "service/test_fault_database.py",
    "service/test_fault_workers.py",
    "service/test_forecast_evidence.py",
    "service/test_plain_install.py",
    "service/test_serve.py",
    "service/test_worker_queue.py",
    "service/test_worker_validation.py",
    "service/test_workflow_examples.py",
    "storage/test_store_sqlite.py::test_first_opened_by_many_processes_at_once",
    "trainers/test_all_reduce.py",
    "trainers/test_asynchronous_training.py",
    "trainers/test_elastic_rendezvous.py",
    "trainers/test_elastic_training.py",
    "trainers/test_framework_callbacks.py",
    "trainers/test_lost_workers.py",
    "trainers/test_program.py",
    "trainers/test_reducer.py",
    "trainers/test_staging.py",
    "trainers/test_staging_command.py",
    "trainers/test_trainer_command.py",
    "trainers/test_workers.py",
    "tuning/test_acquisition_sweep.py",
    "tuning/test_killed_sweep.py",
    "tuning/test_program_sweep.py",
    "tuning/test_sweeps.py",
    "tuning/test_trial_workers.py",
    "test_distribution.py",
    "test_documents.py::test_python_of_the_pages_runs",
    "test_site.py",
)
"""Tests that start worker processes, servers, Ray or the scripts of launchers."""


LISTED = {"slow": SLOW, "fit": FIT, "processes": PROCESSES}
TESTS = Path(__file__).parent


def excluded(file: Path, expression: str) -> bool:
    """Whether ``-m`` excludes every test of a file: one that is listed as a whole, by ``not (MARK or MARK ...)``."""
    marks = re.fullmatch(r"not \((\w+(?: or \w+)*)\)", expression.strip())
    if marks is None or not file.is_relative_to(TESTS):
        return False
    place = file.relative_to(TESTS).as_posix()
    return any(place in LISTED.get(mark, ()) for mark in marks[1].split(" or "))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not even import what is excluded: with its libraries that takes as long as many tests."""
    return excluded(collection_path, config.getoption("markexpr")) or None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test by what it costs."""
    for item in items:
        place = item.nodeid.split("[")[0].removeprefix("tests/")
        for mark, places in LISTED.items():
            if place.startswith(places):
                item.add_marker(mark)
        fixtures = set(getattr(item, "fixturenames", ()))
        values = item.callspec.params.values() if hasattr(item, "callspec") else ()
        if "postgres" in fixtures or "postgresql" in values:
            item.add_marker("postgres")
        if "chromium" in fixtures:
            item.add_marker("browser")


def fault_of_cost(seconds: float, marks: Collection[str]) -> str:
    """What is wrong with a test that took ``seconds`` of processor time; "" where nothing is."""
    if seconds <= MOST_SECONDS or set(marks) & set(MARKS):
        return ""
    return (
        f"a test without a mark of its cost may take {MOST_SECONDS:g} s of processor time, but this one took "
        f"{seconds:.1f} s: make it cheaper, or add it to SLOW, FIT or PROCESSES in tests/conftest.py"
    )


def processor_seconds() -> float:
    """Processor time of this process and of its children that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Measure every test, and fail one that needs a mark; not where lines are counted, which costs as much again."""
    before = processor_seconds()
    yield
    spent = processor_seconds() - before
    item.user_properties.append(("processor_seconds", spent))
    fault = fault_of_cost(spent, [mark.name for mark in item.iter_markers()])
    if fault and not item.config.pluginmanager.hasplugin("_cov"):
        pytest.fail(fault, pytrace=False)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name the dear ones among the tests without a mark."""
    found = [
        (spent, report.nodeid)
        for report in terminalreporter.getreports("passed")
        if not set(report.keywords) & set(MARKS)
        for name, spent in report.user_properties
        if name == "processor_seconds" and spent > MOST_SECONDS / 5
    ]
    if found:
        terminalreporter.section("dear tests without a mark of their cost (tests/conftest.py)")
        for spent, test in sorted(found, reverse=True)[:20]:
            terminalreporter.line(f"{spent:5.1f} s of processor time  {test}")


@pytest.fixture(scope="session")
def postgres() -> Iterator[PrivatePostgres]:
    """A server for the whole run, or a skip where there is none."""
    pytest.importorskip(
        "pgserver",
        reason="PostgreSQL comes with the wheel: pip install pgserver",
        exc_type=ImportError,
    )
    with private_postgres(durable=False) as server:
        yield server


@pytest.fixture(scope="session")
def postgres_template(postgres: PrivatePostgres) -> str:
    """A database with our tables, to be copied: a copy takes a tenth of the time of making them."""
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
