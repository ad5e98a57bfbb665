"""Workers and the queue: who runs which study, how often, and in which state the study ends up."""

import os
import textwrap
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

import hpo
from benchmarks.fleet import Paced, all_ended, begun, wait_for
from hpo.cli.main import main
from hpo.errors import TuningError
from hpo.runs.lease import HeldLease, lease_holder_name
from hpo.runs.repository import stored_spec
from hpo.runs.run import RunOptions, _Run
from hpo.service.worker import StudyWorker, WorkerOptions
from hpo.tuning.tuner import RayOptions
from storage.errors import DamagedRow
from storage.records import NewStudy, StudyState, TrialState
from storage.store import Store
from tests.fake_package import install_package

pytestmark = [pytest.mark.fit, pytest.mark.processes]


def options(url, folder, **more):
    return WorkerOptions(
        storage=url, folder=folder / ".hpo", **{"poll_seconds": 0.05, "lease_seconds": 5, **more}
    )


def drain(url, folder, **more):
    return StudyWorker(options(url, folder, drain=True, **more)).run()


@contextmanager
def working(worker):
    """A worker in a thread, stopped at the end."""
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        yield worker
    finally:
        worker.stop()
        thread.join(60)
        assert not thread.is_alive()


def kinds(store, study):
    return [event.kind for event in store.events(study_id=study.id)]


def trials_ended(store, study, count):
    return lambda: sum(trial.state.finished for trial in store.trials(study.id)) >= count


def test_two_workers_run_every_study_once(store, url, tmp_path):
    studies = [
        Paced(f"tiny {number}", trials=2, epochs=4, seconds=0.001).submit(store, tmp_path)
        for number in range(6)
    ]
    with (
        working(StudyWorker(options(url, tmp_path, name="a"))),
        working(StudyWorker(options(url, tmp_path, name="b"))),
    ):
        wait_for(lambda: all_ended(store), 60, "the studies")
    for study in store.studies():
        assert (study.state, study.attempts, study.lease_worker) == (StudyState.FINISHED, 1, None)
        assert kinds(store, study).count("claimed") == 1 and kinds(store, study)[-1] == "finished"
        assert len(store.trials(study.id)) == 2 == len(begun(study.name, tmp_path))
    by = [event.data["worker"] for event in store.events() if event.kind == "claimed"]
    assert len(by) == len(studies) and set(by) <= {"a", "b"}
    assert {worker.name for worker in store.workers()} == {"a", "b"}


def test_a_larger_priority_goes_first_and_then_the_older(store, url, tmp_path):
    for name, priority in (("first", 0), ("second", 0), ("urgent", 5)):
        Paced(name, trials=2, epochs=2, seconds=0).submit(store, tmp_path, priority=priority)
    assert drain(url, tmp_path) == 3
    assert [event.study_name for event in store.events() if event.kind == "claimed"] == [
        "urgent",
        "first",
        "second",
    ]


def test_a_user_at_the_limit_waits_and_another_does_not(store, url, tmp_path):
    for name, owner in (("one", "ann"), ("two", "ann"), ("three", "bob")):
        Paced(name, trials=2, epochs=2, seconds=0).submit(store, tmp_path, owner=owner)
    held = store.claim_study("elsewhere", lease_seconds=60)
    assert held is not None and held.study.name == "one"
    assert drain(url, tmp_path, per_owner=1) == 1
    assert {study.name: study.state for study in store.studies()} == {
        "one": StudyState.RUNNING,
        "two": StudyState.QUEUED,
        "three": StudyState.FINISHED,
    }
    store.release_study(held, StudyState.QUEUED)
    assert drain(url, tmp_path, per_owner=1) == 2


def test_a_worker_without_a_folder_to_write_to_takes_no_study(store, url, tmp_path):
    study = Paced("kept", trials=2, epochs=2, seconds=0).submit(store, tmp_path)
    (tmp_path / ".hpo").write_text("not a folder")
    with pytest.raises(TuningError, match=r"cannot write to the folder .*\.hpo: .*--folder"):
        drain(url, tmp_path)
    assert store.study_by_id(study.id).state is StudyState.QUEUED


def test_a_study_that_cannot_be_run_fails_with_its_reason_and_the_worker_goes_on(
    store, url, tmp_path
):
    bad = store.submit_study(
        NewStudy(
            name="no workload",
            workload="nowhere:At",
            metric="loss",
            threshold=1,
            higher_is_better=False,
            spec=_text(tmp_path, "no workload").replace("paced_workload:Paced", "nowhere:At"),
        )
    ).study
    broken = store.submit_study(
        NewStudy(
            name="no yaml",
            workload="x",
            metric="loss",
            threshold=1,
            higher_is_better=False,
            spec="ladder: [",
        )
    ).study
    good = Paced("good", trials=2, epochs=2, seconds=0).submit(store, tmp_path)
    assert drain(url, tmp_path) == 3
    studies = {study.id: study for study in store.studies()}
    assert studies[bad.id].state is studies[broken.id].state is StudyState.FAILED
    assert (
        "there is no such module" in studies[bad.id].message
        and "line 2" in studies[broken.id].message
    )
    assert studies[good.id].state is StudyState.FINISHED
    assert kinds(store, bad)[-1] == kinds(store, broken)[-1] == "failed"


def test_data_that_a_link_moved_out_of_the_allowed_folders_is_not_read(store, url, tmp_path):
    allowed, elsewhere = tmp_path / "allowed", tmp_path / "elsewhere"
    allowed.mkdir()
    elsewhere.mkdir()
    (allowed / "images").symlink_to(elsewhere)
    spec = f"""\
name: linked
workload: resnet
data: {{source: image_folder, path: {allowed / "images"}}}
target: {{metric: top1, at_least: 0.5}}
ladder: [16]
search: {{learning_rate: {{log_uniform: [0.01, 1], role: scaled}}}}
budget: {{trials: 1, epochs_per_trial: 1}}
"""
    linked = store.submit_study(
        NewStudy(
            name="linked",
            workload="resnet",
            metric="top1",
            threshold=0.5,
            higher_is_better=True,
            spec=spec,
        )
    ).study
    assert drain(url, tmp_path, data_folders=(allowed,)) == 1
    study = next(study for study in store.studies() if study.id == linked.id)
    assert study.state is StudyState.FAILED
    assert "data.path must be an absolute path within" in study.message


def _text(folder, name):
    with Store.open(f"sqlite:///{folder}/other.db") as other:
        return Paced(name, trials=2).submit(other, folder).spec


def test_a_study_that_kills_its_workers_is_given_up(store, url, tmp_path):
    study = Paced("killer", trials=2).submit(store, tmp_path)
    for _ in range(3):
        store.claim_study("dies", lease_seconds=0.01)
        time.sleep(0.02)
    assert drain(url, tmp_path, max_attempts=3) == 1
    assert store.study("killer").state is StudyState.FAILED
    assert (
        "it was started 3 times" in store.study("killer").message
        and begun(study.name, tmp_path) == []
    )


def test_a_stopped_worker_puts_its_study_back_and_the_next_goes_on(store, url, tmp_path):
    study = Paced("stopped", trials=8, epochs=10, seconds=0.06).submit(store, tmp_path)
    with working(StudyWorker(options(url, tmp_path, name="a"))):
        wait_for(trials_ended(store, study, 2), 60, "two trials")
    before = [trial for trial in store.trials(study.id) if trial.state.finished]
    assert store.study("stopped").state is StudyState.QUEUED and 2 <= len(before) < 8
    assert "a was stopped" in store.study("stopped").message and kinds(store, study)[-1] == "queued"
    assert TrialState.RUNNING not in {trial.state for trial in store.trials(study.id)}
    assert drain(url, tmp_path, name="b") == 1
    after = store.trials(study.id)
    assert store.study("stopped").state is StudyState.FINISHED and len(after) == 8
    assert [trial for trial in after if trial.id in {trial.id for trial in before}] == before


def test_a_row_that_cannot_be_read_ends_no_worker(store, url, tmp_path, monkeypatch, caplog):
    def claim(*_, **__):
        raise DamagedRow("a row", "it holds text that is not UTF-8")

    monkeypatch.setattr(store, "claim_study", claim)
    assert StudyWorker(options(url, tmp_path))._claim(store) is None
    assert "cannot take a study, trying again: a row is damaged" in caplog.text


@pytest.mark.parametrize("confirmed", [True, False])
def test_a_run_that_stops_tells_of_a_cancellation_that_it_had_not_seen(
    store, url, tmp_path, confirmed
):
    """Whether or not the connection is lost before the database confirms the release."""
    study = Paced("tiny", trials=2, epochs=2, seconds=0).submit(store, tmp_path)
    held = HeldLease(store, store.claim_study("w", lease_seconds=60), on_warning=print)
    how = RunOptions(folder=tmp_path, storage_retry_seconds=1, ray=RayOptions(None))

    def retry(call, done):
        released = call()
        return released if confirmed else done()

    run = _Run(stored_spec(study), held, url, how, retry)
    store.request_cancel(study.id)
    assert not held.cancelled
    released = run.release(StudyState.QUEUED, "w was stopped; another worker will continue")
    assert released.state is StudyState.CANCELLED
    assert kinds(store, study)[-1] == "cancelled"


def test_cancelling_stops_the_trials_and_resuming_goes_on_with_them(store, url, tmp_path):
    study = Paced("cancelled", trials=8, epochs=10, seconds=0.06).submit(store, tmp_path)
    with working(StudyWorker(options(url, tmp_path, lease_seconds=1))):
        wait_for(trials_ended(store, study, 2), 60, "two trials")
        assert store.request_cancel(study.id).cancel_requested
        wait_for(
            lambda: store.study("cancelled").state is StudyState.CANCELLED, 30, "the cancellation"
        )
        before = [trial for trial in store.trials(study.id) if trial.state.finished]
        assert len(before) < 8 and TrialState.RUNNING not in {
            trial.state for trial in store.trials(study.id)
        }
        wait_for(
            lambda: kinds(store, study)[-1] == "cancelled", 30, "the event"
        )  # written after the state
        store.requeue_study(study.id)
        wait_for(lambda: all_ended(store), 60, "the resumed study")
    after = store.trials(study.id)
    assert store.study("cancelled").state is StudyState.FINISHED and len(after) == 8
    assert [trial for trial in after if trial.id in {trial.id for trial in before}] == before


@pytest.mark.parametrize(
    ("budget", "said"),
    [
        ({"max_samples": 6 * 512}, "budget of 3,072 samples is spent"),
        ({"max_accelerator_hours": 0.5 / 3600}, "accelerator hours is spent"),
    ],
)
def test_a_spent_budget_ends_the_sweep_and_the_forecast_is_made_from_what_is_there(
    store, url, tmp_path, budget, said
):
    more = "full_scale: {global_batch_size: 128}\n"
    study = Paced("budget", trials=8, epochs=40, seconds=0.001, more=more).submit(
        store, tmp_path, **budget
    )
    assert drain(url, tmp_path) == 1
    ended, used, trials = store.study("budget"), store.usage(study.id), store.trials(study.id)
    assert (
        ended.state is StudyState.FINISHED
        and said in ended.message
        and "budget_spent" in kinds(store, study)
    )
    assert used.samples >= budget.get("max_samples", 0)
    assert used.accelerator_seconds >= 3600 * budget.get("max_accelerator_hours", 0)
    assert 0 < len(trials) < 8
    assert TrialState.RUNNING not in {trial.state for trial in trials}
    reached = [trial for trial in trials if trial.state is TrialState.REACHED]
    assert bool(store.forecasts(study.id)) == bool(reached)
    assert bool(reached) != ("no trial reached the target" in ended.message)


def test_a_run_and_a_worker_do_not_share_a_study(store, url, tmp_path):
    study = Paced("shared", trials=2, epochs=2, seconds=0).submit(store, tmp_path)
    lease = store.claim_study("other-host:77", lease_seconds=60)
    with pytest.raises(TuningError, match="other-host:77 is already running study 'shared'"):
        hpo.run_study(hpo.parse_study(study.spec), url, folder=tmp_path / ".hpo")
    assert store.study("shared").state is StudyState.RUNNING
    store.release_study(lease, StudyState.QUEUED)
    assert hpo.run_study(hpo.parse_study(study.spec), url, folder=tmp_path / ".hpo").complete
    assert drain(url, tmp_path) == 0


def test_a_run_takes_over_at_once_from_a_process_of_this_machine_that_is_gone(store, url, tmp_path):
    study = Paced("gone", trials=2, epochs=2, seconds=0).submit(store, tmp_path)
    host = lease_holder_name().rpartition(":")[0]
    dead = os.spawnlp(os.P_WAIT, "true", "true")
    child = os.spawnlp(os.P_NOWAIT, "true", "true")
    os.waitpid(child, 0)
    assert dead == 0
    store.claim_study(f"{host}:{child}", lease_seconds=600)
    assert hpo.run_study(hpo.parse_study(study.spec), url, folder=tmp_path / ".hpo").complete
    assert store.study("gone").attempts == 2


@pytest.mark.processes
def test_a_worker_writes_to_the_trackers_that_its_operator_allows(
    store, url, tmp_path, monkeypatch
):
    """One that is allowed has every trial; one that is not, or that says where, is told in the study's events."""
    lines = """
        from hpo.study.trackers import TrackerDescription

        class Lines:
            def __init__(self, study, spec, folder, where=""):
                folder.mkdir(parents=True, exist_ok=True)
                self.path = folder / f"noted-{study.name}"

            def begin(self, trial):
                return 0

            def add(self, trial, points):
                pass

            def end(self, trial):
                with self.path.open("a") as file:
                    print(trial.number, trial.state, file=file)

            def close(self):
                pass

        LINES = TrackerDescription(rule="noted_module:Lines", about="noted", source="here",
                                   settings={"where": "a place"}, places=("where",))
    """
    site = install_package(
        monkeypatch,
        tmp_path,
        "noted",
        {"largebatch.trackers": {"noted": "noted_module:LINES"}},
        {"noted_module.py": textwrap.dedent(lines)},
    )
    monkeypatch.setenv("PYTHONPATH", f"{site}{os.pathsep}{Path(__file__).parents[2]}")
    monkeypatch.setattr("hpo.service.worker.TRACKER_GRACE_SECONDS", 60.0)
    found = {}
    for name, trackers in (("allowed", "[noted, wandb]"), ("placed", "[{noted: {where: /etc}}]")):
        text = TRACKED.format(name=name, trackers=trackers)
        found[name] = store.submit_study(
            NewStudy(
                name=name,
                workload="noisy_quadratic",
                metric="loss",
                threshold=1.5,
                higher_is_better=False,
                spec=text,
            )
        ).study
    assert drain(url, tmp_path, trackers=("noted",)) == 2
    written = (tmp_path / ".hpo" / "trackers" / "noted-allowed").read_text().splitlines()
    trials = store.trials(found["allowed"].id)
    assert sorted(written) == sorted(f"{each.number} {each.state}" for each in trials)
    assert not (tmp_path / ".hpo" / "trackers" / "noted-placed").exists()

    def told(name):
        return [
            each.message for each in store.events(study_id=found[name].id) if each.kind == "tracker"
        ]

    (of_wandb,), (of_place,) = told("allowed"), told("placed")
    assert "tracker wandb: this worker writes to those that its operator allows: noted" in of_wandb
    assert (
        "on this worker the operator decides where it writes, but the study gives where" in of_place
    )
    assert all(store.study_by_id(each.id).state is StudyState.FINISHED for each in found.values())


TRACKED = """\
name: {name}
workload: noisy_quadratic
target: {{metric: loss, at_most: 1.5}}
ladder: [16, 32]
search:
  learning_rate: {{log_uniform: [0.001, 0.05], role: scaled}}
  normalization_batch_size: 1
budget: {{trials: 3, epochs_per_trial: 10}}
trackers: {trackers}
"""


def test_a_tracker_that_there_is_not_is_a_fault_of_the_command(tmp_path):
    done = CliRunner().invoke(
        main, ["worker", "--storage", f"sqlite:///{tmp_path}/hpo.db", "--tracker", "wandbb"]
    )
    assert done.exit_code == 2 and "did you mean 'wandb'" in done.output
