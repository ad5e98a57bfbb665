"""Marks that say what a test costs; a private PostgreSQL, started with the first test that needs it.

``postgres`` and ``browser`` follow from the fixtures of a test; those of the other marks are listed here.
"""

from __future__ import annotations

from collections.abc import Iterator

import hypothesis
import pytest

from benchmarks.private_postgres import PrivatePostgres, private_postgres
from storage.store import Store

# how long an example takes depends on the machine, and on whether its lines are counted
hypothesis.settings.register_profile("no deadline", deadline=None)
hypothesis.settings.load_profile("no deadline")

SLOW = (
    "faces/test_program_examples.py",
    "tuning/test_program_sweep.py",
    "tuning/test_trial_workers.py",
    "trainers/test_noisy_quadratic_dynamics.py",
    "trainers/test_precision.py::test_reduced_precision_trains_almost_as_fp32_does",
)
"""Tests that take more than ten seconds of a core, as do those that say so themselves."""

FIT = (
    "extrapolation/test_degenerate_evidence.py",
    "extrapolation/test_descent.py",
    "extrapolation/test_extrapolation_score.py",
    "extrapolation/test_forecast_recovery.py",
    "extrapolation/test_prospects.py",
    "extrapolation/test_tempering.py",
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
    "service/test_api_trials.py",
    "service/test_client.py::test_a_forecast_and_a_plan_with_its_files",
    "service/test_fit_process.py",
    "service/test_forecast_evidence.py",
    "service/test_worker_queue.py",
    "service/test_workflow_examples.py",
    "tuning/test_acquisition.py",
    "tuning/test_acquisition_sweep.py",
    "tuning/test_program_sweep.py",
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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test by what it costs."""
    for item in items:
        place = item.nodeid.split("[")[0].removeprefix("tests/")
        for mark, places in (("slow", SLOW), ("fit", FIT), ("processes", PROCESSES)):
            if place.startswith(places):
                item.add_marker(mark)
        fixtures = set(getattr(item, "fixturenames", ()))
        values = item.callspec.params.values() if hasattr(item, "callspec") else ()
        if "postgres" in fixtures or "postgresql" in values:
            item.add_marker("postgres")
        if "chromium" in fixtures:
            item.add_marker("browser")


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
