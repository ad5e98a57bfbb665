"""Marks that say what a test costs, the order of tests, and what tests share: a private PostgreSQL, a Ray.

``postgres`` and ``browser`` follow from the fixtures of a test; those of the other marks are listed here. One that
takes more than :data:`MOST_SECONDS` of processor time and has no mark fails, and those that take more than a fifth of
that are named at the end of a run.
"""

from __future__ import annotations

import functools
import gc
import os
import re
import ssl
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from benchmarks.private_postgres import PrivatePostgres, private_postgres
from search_spaces.plugins import TAKEN
from storage.store import Store

# also in the processes that tests start: they compare numbers with those of the processor
os.environ["CUDA_VISIBLE_DEVICES"] = ""

# how long an example takes depends on the machine, and on whether its lines are counted
hypothesis.settings.register_profile("no deadline", deadline=None)
hypothesis.settings.load_profile("no deadline")

MARKS = ("slow", "medium", "fit", "postgres", "processes", "browser")
MOST_SECONDS = 10.0
"""Processor time of a test without a mark, that of its child processes included; most take a tenth of a second."""

SLOW = (
    "interfaces/test_program_examples.py",
    "tuning/test_program_sweep.py",
    "tuning/test_trial_workers.py",
    "trainers/test_noisy_quadratic_dynamics.py",
    "service/test_openapi.py::test_made_up_requests",
    "trainers/test_compiled.py",
    "trainers/test_precision.py",
)
"""Tests that take more than ten seconds of a core, as do those that say so themselves."""

MEDIUM = (
    "ask_and_tell/test_ask_tell.py",
    "dashboard/test_trial_figures.py",
    "extrapolation/test_evidence_table.py",
    "interfaces/test_database_commands.py::test_check",
    "interfaces/test_database_commands.py::test_export_optuna",
    "interfaces/test_first_steps.py",
    "interfaces/test_plan_request.py::test_the_figures_are_checked_in_python_too",
    "interfaces/test_remote_commands.py",
    "past_runs/test_importing.py",
    "past_runs/test_sources.py::test_a_database_of_optuna",
    "planning/test_machines.py::test_this_machine_measured",
    "planning/test_optimise_placements.py::test_the_choice_with_a_free_batch_is_the_best_of_everything",
    "planning/test_optimise_placements.py::test_the_cheapest_that_meets_a_deadline",
    "planning/test_simulated_runs.py",
    "planning/test_throughput_rivals.py",
    "search_spaces/test_reference_schedules.py::test_every_update_has_the_published_rate",
    "segmentation/test_climate_fields.py",
    "segmentation/test_climate_files.py::test_samples_come_back_scaled_by_the_training_range_channels_first",
    "segmentation/test_climate_files.py::test_a_broken_sample_is_named",
    "segmentation/test_climate_generation.py",
    "segmentation/test_climate_labels.py",
    "segmentation/test_segmentation_sample_images.py",
    "segmentation/test_segmentation_models.py::test_deeplab_costs_what_kurth_et_al_counted",
    "segmentation/test_segmentation_task.py",
    "service/test_api_ask_tell.py",
    "service/test_api_studies.py::test_any_name_is_one_segment_of_a_path",
    "service/test_api_studies.py::test_the_same_key_is_one_study",
    "service/test_api_studies.py::test_pages_hold_every_study_once",
    "service/test_attacks.py::test_without_a_token_that_counts",
    "service/test_attacks.py::test_a_study_file_that_means_harm",
    "service/test_attacks.py::test_a_cancelled_study_ends_where_its_worker_died_and_there_is_no_other",
    "service/test_attacks.py::test_points_of_agents_count_as_stored",
    "service/test_attacks.py::test_who_takes_no_answer_is_given_up",
    "service/test_auth.py::test_owners_that_cannot_be",
    "service/test_auth.py::test_a_login_never_leads_elsewhere",
    "service/test_auth.py::test_guessing_is_slowed_down",
    "service/test_client.py::test_lists_of_more_than_a_page",
    "service/test_client.py::test_tokens_that_do_not_do",
    "service/test_client.py::test_waiting_tells_what_happens",
    "service/test_events.py",
    "service/test_fault_leases.py",
    "service/test_openapi.py::test_the_document_is_complete",
    "storage/test_backups.py",
    "storage/test_database_checks.py",
    "storage/test_migrations.py",
    "storage/test_store_sqlite.py::TestSqliteStore::test_columns_are_written_all_or_none",
    "storage/test_store_sqlite.py::TestSqliteStore::test_pages_of_trials_are_all_trials_in_order",
    "storage/test_store_sqlite.py::TestSqliteStore::test_processes_that_claim_at_once_never_get_the_same_study",
    "storage/test_store_sqlite.py::TestSqliteStore::test_the_limit_of_an_owner_holds_between_processes",
    "storage/test_store_sqlite.py::TestSqliteStore::test_more_trials_than_fit_one_statement",
    "storage/test_store_sqlite.py::TestSqliteStore::test_wrong_plan_is_refused",
    "storage/test_store_sqlite.py::TestSqliteStore::test_threads_share_a_store",
    "storage/test_store_sqlite.py::TestSqliteStore::test_processes_share_a_database",
    "storage/test_store_sqlite.py::TestSqliteStore::test_a_killed_process_leaves_every_finished_trial",
    "storage/test_store_sqlite.py::test_no_permission",
    "storage/test_store_sqlite.py::test_a_disk_that_is_full_and_has_room_again",
    "storage/test_store_sqlite.py::test_a_file_that_may_not_grow",
    "study/test_study.py::test_study_round_trip",
    "trainers/test_batch_control.py::test_a_training_goes_through_its_phases_with_every_sample_once_an_epoch",
    "trainers/test_cost.py",
    "trainers/test_device_copies.py::test_copies_that_are_awaited_train_the_same_weights_and_run_ahead",
    "trainers/test_fused_trainings.py",
    "trainers/test_image_feed.py",
    "trainers/test_language.py::test_it_learns_beyond_the_frequencies_of_bytes",
    "trainers/test_noise_scale.py",
    "trainers/test_parametrization.py",
    "trainers/test_optimizers_state.py::test_reduced_weights_are_the_rounded_fp32_training",
    "trainers/test_step_operations.py::test_no_update_waits_for_the_device",
    "trainers/test_step_operations.py::test_operations_of_fused_trainings_do_not_grow_with_their_number",
    "trainers/test_streams.py::test_a_dataloader_trains_repeatably_and_goes_on_where_it_was",
    "trainers/test_streams.py::test_images_of_tar_files_train_a_residual_network_with_any_number_of_threads",
    "trainers/test_training.py::test_train_goes_on_from_its_checkpoint_and_repeats_no_finished_training",
    "trainers/test_training.py::test_the_digits_reach_96_percent",
    "tuning/test_strategy.py",
    "tuning/test_fused_sweep.py",
    "tuning/test_optuna_export.py",
    "tuning/test_sampler.py",
)
"""A quarter of the tests without another mark, which takes three quarters of the processor time of such tests."""

FIT = (
    "ask_and_tell/test_ask_tell.py::test_a_study_that_is_opened_anew_before_every_call_changes_nothing",
    "ask_and_tell/test_ask_tell.py::test_one_that_asks_trains_the_very_trials_of_the_sweep",
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
    "dashboard/test_sample_image_figures.py::test_the_report_shows_the_newest_run_of_the_forecast",
    "dashboard/test_figures.py",
    "dashboard/test_page_routes.py",
    "dashboard/test_report.py",
    "interfaces/test_command_line.py",
    "interfaces/test_sample_images_of_a_launch.py",
    "interfaces/test_first_steps.py::test_a_run_that_begins_says_its_price_and_one_that_goes_on_does_not",
    "interfaces/test_growing_batch.py",
    "interfaces/test_own_workload.py",
    "interfaces/test_plan_command.py",
    "interfaces/test_program_examples.py",
    "interfaces/test_python_api.py",
    "interfaces/test_study_folder.py",
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
    "tuning/test_search.py",
    "tuning/test_search_sweep.py",
    "tuning/test_program_sweep.py",
    "tuning/test_race.py",
    "tuning/test_sweeps.py",
    "test_documents.py::test_a_command_of_the_pages_runs",
    "test_documents.py::test_python_of_the_pages_runs",
)
"""Tests that fit the laws of a forecast or of throughputs."""

PROCESSES = (
    "interfaces/test_sample_images_of_a_launch.py",
    "interfaces/test_growing_batch.py",
    "interfaces/test_own_workload.py",
    "interfaces/test_program_examples.py",
    "interfaces/test_study_folder.py",
    "planning/test_launch_restarts.py",
    "planning/test_launch_submission.py",
    "planning/test_job_setup.py",
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
    "tuning/test_search_sweep.py",
    "tuning/test_killed_sweep.py",
    "tuning/test_program_sweep.py",
    "tuning/test_sweeps.py",
    "tuning/test_trial_workers.py",
    "test_distribution.py",
    "test_documents.py::test_python_of_the_pages_runs",
    "test_site.py",
)
"""Tests that start worker processes, servers, Ray or the scripts of launchers."""


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
COSTLY = {
    ONE_RAY_TRAININGS: 400,
    ONE_RAY_PROGRAMS: 300,
    ("service/test_fault_workers.py",): 150,
    ("test_distribution.py",): 110,
    ("planning/test_launchers_training.py",): 100,
    ("service/test_plain_install.py",): 85,
    ("dashboard/test_browser_access.py",): 80,
    ("tuning/test_killed_sweep.py",): 70,
    ("trainers/test_lost_workers.py",): 67,
    ("interfaces/test_study_folder.py",): 60,
    ("extrapolation/test_extrapolation_score.py",): 60,
    ("planning/test_sweep_scripts.py",): 60,
    ("trainers/test_workers.py",): 58,
    ("tuning/test_ray_session.py",): 53,
    ("planning/test_throughput_score.py",): 50,
    ("dashboard/test_browser_path.py",): 49,
    ("extrapolation/test_forecast_recovery.py",): 49,
    ("service/test_stop_heard.py",): 48,
    ("trainers/test_framework_callbacks.py",): 46,
    ("service/test_agents.py",): 42,
    ("service/test_study_limits.py",): 42,
    ("planning/test_launch_restarts.py",): 41,
    ("trainers/test_reducer.py",): 37,
    ("test_documents.py",): 35,
    ("service/test_openapi.py",): 33,
    ("service/test_forecast_evidence.py",): 30,
}
"""Seconds that the files with the longest tests take, of three processes on two cores: what is run first.

Files that stand together share one Ray (:func:`one_ray`) where one process runs them.
"""

LISTED = {"slow": SLOW, "medium": MEDIUM, "fit": FIT, "processes": PROCESSES}
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
    """Mark every test by what it costs, and put the costly ones first where several processes run them."""
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
    processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if processes > 1:
        items[:] = [items[number] for number in dealt([item.nodeid for item in items], processes)]


def pytest_collection_finish() -> None:
    """Let the collector of garbage pass over what collection has made: libraries and tests, which stay to the end."""
    gc.collect()
    gc.freeze()


def place_of(test: str) -> str:
    """The file of a test below this folder, from its id."""
    return test.partition("::")[0].removeprefix("tests/")


def dealt(tests: Sequence[str], processes: int) -> list[int]:
    """In which order tests are run best: the costly files first, dealt to the processes by what they take.

    xdist gives every process an equal part of the list, one after the other, and lets a process that has nothing left
    take tests from the end of another's part (``--dist worksteal``). So each part begins with its share of the costly
    files, the longest first, and what can be taken away are the many short tests. Positions in ``tests``.
    """
    places = [place_of(test) for test in tests]
    costly = {place for files in COSTLY for place in files}
    parts: list[list[int]] = [[] for _ in range(processes)]
    seconds = [0.0] * processes
    for files, cost in sorted(COSTLY.items(), key=lambda each: -each[1]):
        numbers = [number for place in files for number, its in enumerate(places) if its == place]
        least = seconds.index(min(seconds))
        parts[least] += numbers
        seconds[least] += cost if numbers else 0
    rest = [number for number, place in enumerate(places) if place not in costly]
    left = len(tests)
    for number, part in enumerate(parts):  # as xdist divides the list
        size = left // (processes - number)
        missing = max(size - len(part), 0)
        part.extend(rest[:missing])
        del rest[:missing]
        left -= size
    return [number for part in parts for number in part] + rest


def fault_of_cost(seconds: float, marks: Collection[str]) -> str:
    """What is wrong with a test that took ``seconds`` of processor time; "" where nothing is."""
    if seconds <= MOST_SECONDS or set(marks) & (set(MARKS) - {"medium"}):
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


@pytest.fixture(scope="session", autouse=True)
def certificates_read_once() -> Iterator[None]:
    """Every client of httpx reads the authorities' certificates, for plain HTTP too: longer than most tests take."""
    make, kept = ssl.create_default_context, functools.cache(ssl.create_default_context)

    def context(*values: Any, **named: Any) -> ssl.SSLContext:
        return kept(**named) if not values and set(named) == {"cafile"} else make(*values, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ssl, "create_default_context", context)
        yield


@pytest.fixture(scope="module", autouse=True)
def plugins_as_before() -> Iterator[None]:
    """A server or worker in this process says by its environment whose plug-ins are taken: not to later modules."""
    before = os.environ.get(TAKEN)
    yield
    if before is None:
        os.environ.pop(TAKEN, None)
    else:
        os.environ[TAKEN] = before


@pytest.fixture(scope="session")
def one_ray() -> None:
    """A Ray with two cores of which sweeps and trainings make use: one for all tests of this kind that follow another.

    Starting Ray costs seven seconds of a core, as much as many small trials. It is started before the first of these
    tests and ended after the last (:func:`pytest_runtest_setup`, :func:`pytest_runtest_teardown`), so that a test
    that starts a Ray of its own can follow.
    """


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Start the Ray of :func:`one_ray` where a test needs it and it does not run."""
    if "one_ray" in getattr(item, "fixturenames", ()):
        ray = pytest.importorskip("ray")
        if not ray.is_initialized():
            from trainers.asynchronous import ray_session

            ray_session.start_ray(
                num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR"
            )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """End the Ray of :func:`one_ray` where the next test is of another kind."""
    yield
    if "one_ray" in getattr(item, "fixturenames", ()) and "one_ray" not in getattr(
        nextitem, "fixturenames", ()
    ):
        from trainers.asynchronous import ray_session

        ray_session.stop_ray()


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
