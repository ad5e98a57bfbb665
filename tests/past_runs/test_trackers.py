"""A study exported to TensorBoard and MLflow, and read back by the importers."""

import dataclasses
import json
import math
import sys
import threading
import time
from datetime import timedelta
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from hpo.cli.main import main
from hpo.errors import ExportError
from hpo.past_runs.mlflow_store import read_mlflow
from hpo.past_runs.tensorboard_folder import read_tensorboard
from hpo.runs.exports.mlflow_log import MlflowTracker
from hpo.runs.exports.tensorboard_log import TensorBoardTracker
from hpo.runs.exports.tracking import track_study
from hpo.runs.repository import enter_study, stored_spec
from hpo.study.spec import parse_study
from search_spaces.settings import TrainingSettings
from storage.records import ConvergencePoint, NewTrial, StudyState, TrialResult, TrialState
from storage.store import Store

SPEC = """\
name: runs / mine
workload: noisy_quadratic
target: {metric: loss, at_most: 0.1}
ladder: [16, 32]
search:
  learning_rate: {log_uniform: [0.01, 1.0], role: scaled}
  momentum: {uniform: [0.5, 0.9], role: shared}
  normalization_batch_size: 1
budget: {trials: 4, epochs_per_trial: 20}
"""


def points(first, last, metric=lambda step: 1 / step):
    return [
        ConvergencePoint(
            step=10 * i,
            samples=160 * i,
            epochs=0.5 * i,
            seconds=0.1 * i,
            train_loss=2 / i,
            loss=metric(i),
            metric=metric(i),
            learning_rate=0.1,
            global_batch_size=16,
            gradient_noise_scale=None if i % 2 else 3.0 * i,
        )
        for i in range(first, last + 1)
    ]


def result(state, reason=""):
    reached = state is TrialState.REACHED
    return TrialResult(
        state=state,
        epochs_to_target=2.5 if reached else None,
        epochs=2.5,
        steps=50,
        seconds=0.5,
        best_metric=0.2,
        final_metric=0.2,
        resolution_epochs=0.5 if reached else None,
        reason=reason,
    )


@pytest.fixture
def store(tmp_path):
    with Store.open(f"sqlite:///{tmp_path}/hpo.db") as store:
        study = enter_study(store, parse_study(SPEC))
        store.set_study_state(study.id, StudyState.RUNNING)
        settings = [
            TrainingSettings(learning_rate=0.1 * (1 + n), momentum=0.6).to_dict() for n in range(4)
        ]
        new = [NewTrial(global_batch_size=16, seed=n, settings=s) for n, s in enumerate(settings)]
        trials = store.add_trials(study.id, new)
        store.start_trials([trial.id for trial in trials[:3]])
        store.finish_trial(trials[0].id, result(TrialState.REACHED), points(1, 5))
        store.finish_trial(
            trials[1].id,
            result(TrialState.DIVERGED, "the loss is not finite"),
            points(1, 3, lambda i: math.nan if i == 3 else 1 / i),
        )
        store.record({trials[2].id: points(1, 2)})
        yield store


def study_of(store):
    return store.study("runs / mine")


def tensorboard(store, folder):
    study = study_of(store)
    return TensorBoardTracker(study, stored_spec(study), folder)


def call(*arguments, code=0):
    done = CliRunner().invoke(main, [str(each) for each in arguments])
    assert done.exit_code == code, done.output
    return done.stdout


def check_runs(runs, tuned):
    """The three trials that have begun, as whoever imports them finds them."""
    assert len(runs) == 3
    for number, (run, count) in enumerate(zip(runs, (5, 3, 2), strict=True)):
        assert float(run.values["learning_rate"]) == pytest.approx(0.1 * (1 + number))
        assert float(run.values["momentum"]) == 0.6
        assert int(run.values["global_batch_size"]) == 16
        assert int(run.values["seed"]) == number
        assert not {"weight_decay", "optimizer"} & set(run.values) - tuned  # those it names
        curve = run.curves["epochs"]
        assert [reading.step for reading in curve] == [10 * (i + 1) for i in range(count)]
        assert [reading.value for reading in curve] == [0.5 * (i + 1) for i in range(count)]
    losses = [reading.value for reading in runs[0].curves["loss"]]
    assert losses == pytest.approx([1, 1 / 2, 1 / 3, 1 / 4, 1 / 5])
    assert len(runs[1].curves["loss"]) == 2  # what is no number was not measured
    assert [reading.step for reading in runs[0].curves["gradient_noise_scale"]] == [20, 40]
    assert float(runs[0].values["epochs_to_target"]) == 2.5


def test_tensorboard_has_each_trial_once(store, tmp_path):
    folder = tmp_path / "boards"
    for _ in range(2):  # a second export replaces the first
        told = call(
            *("export", "tensorboard", "runs / mine", "--to", folder, "--json"),
            *("--storage", f"sqlite:///{tmp_path}/hpo.db"),
        )
        assert json.loads(told)["trials"] == 2
        runs = sorted(read_tensorboard(folder), key=lambda run: run.label)
        check_runs(runs, set())
    assert [path.name for path in sorted((folder / "runs _ mine" / "batch-16").iterdir())] == [
        f"trial-{number:05d}" for number in range(3)
    ]
    (file,) = (folder / "runs _ mine" / "batch-16" / "trial-00001").iterdir()
    assert b"diverged: the loss is not finite" in file.read_bytes()


def test_what_others_have_in_the_folder_stays(store, tmp_path):
    other = (
        tmp_path
        / "boards"
        / "runs _ mine"
        / "batch-16"
        / "trial-00000"
        / "events.out.tfevents.1.host"
    )
    other.parent.mkdir(parents=True)
    other.write_bytes(b"")
    track_study(store, study_of(store), tensorboard(store, tmp_path / "boards"))
    assert other.exists()


def test_a_study_is_followed_until_it_ends(store, tmp_path):
    """Points and ends that come while it is followed are written once each, and so is the last trial."""
    study = study_of(store)
    tracker, seen = tensorboard(store, tmp_path / "boards"), []
    trials = store.trials(study.id)

    def looked(seconds):
        assert seconds == 2.0
        seen.append(len(seen))
        if len(seen) == 1:
            store.record({trials[2].id: points(3, 4)})
        if len(seen) == 2:
            store.finish_trial(trials[2].id, result(TrialState.PRUNED), points(5, 5))
        if len(seen) == 3:
            store.start_trials([trials[3].id])
            store.finish_trial(trials[3].id, result(TrialState.CENSORED), points(1, 2))
            store.set_study_state(study.id, StudyState.FINISHED)
        return False

    assert track_study(store, study, tracker, follow=True, stopped=looked) == 4
    assert len(seen) == 3
    runs = sorted(read_tensorboard(tmp_path / "boards"), key=lambda run: run.label)
    assert [len(run.curves["epochs"]) for run in runs] == [5, 3, 5, 2]


def test_following_stops_when_it_is_asked_to(store, tmp_path):
    asked, ended = threading.Event(), []
    tracker = tensorboard(store, tmp_path / "boards")

    def follow():
        ended.append(track_study(store, study_of(store), tracker, follow=True, stopped=asked.wait))

    thread = threading.Thread(target=follow)
    thread.start()
    time.sleep(0.2)
    asked.set()
    thread.join(20)
    assert ended == [2]


def test_a_folder_that_cannot_be_written(store, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ExportError, match="--to"):
        track_study(store, study_of(store), tensorboard(store, tmp_path / "file" / "in"))


def test_mlflow_that_is_not_installed(store, monkeypatch):
    monkeypatch.setitem(sys.modules, "mlflow", None)
    study = study_of(store)
    with pytest.raises(ExportError, match="pip install mlflow-skinny"):
        MlflowTracker(study, stored_spec(study), "sqlite:///mlflow.db")


@pytest.mark.medium
@pytest.mark.filterwarnings("ignore")  # MLflow's own
def test_mlflow_has_each_trial_once(store, tmp_path):
    mlflow = pytest.importorskip("mlflow")
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    command = ["export", "mlflow", "runs / mine", "--to", uri, "--json"]
    command += ["--storage", f"sqlite:///{tmp_path}/hpo.db"]
    assert json.loads(call(*command))["trials"] == 2
    by_seed = sorted(read_mlflow(uri), key=lambda run: int(run.values["seed"]))
    check_runs(
        [
            run.__class__(
                **{
                    **vars(run),
                    "values": {
                        **run.values,
                        "epochs_to_target": run.values.get("result.epochs_to_target", 0),
                    },
                }
            )
            for run in by_seed
        ],
        set(),
    )
    trials = store.trials(study_of(store).id)
    store.record({trials[2].id: points(3, 4)})
    store.finish_trial(trials[2].id, result(TrialState.FAILED, "it crashed"), points(5, 5))
    assert json.loads(call(*command))["trials"] == 3  # it goes on where the first stopped
    client = mlflow.MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("runs / mine").experiment_id
    found = {run.data.params["seed"]: run for run in client.search_runs([experiment])}
    assert len(found) == 3
    states = {seed: run.data.tags["largebatch.state"] for seed, run in found.items()}
    assert states == {"0": "reached", "1": "diverged", "2": "failed"}
    assert [found[seed].info.status for seed in "012"] == ["FINISHED", "FINISHED", "FAILED"]
    assert found["2"].data.tags["largebatch.reason"] == "it crashed"
    history = client.get_metric_history(found["2"].info.run_id, "epochs")
    assert sorted(metric.step for metric in history) == [10, 20, 30, 40, 50]
    begun = trials[2].started_at + timedelta(seconds=0.1)
    assert min(metric.timestamp for metric in history) == pytest.approx(
        1000 * begun.timestamp(), abs=5
    )


@pytest.mark.filterwarnings("ignore")
def test_a_store_of_mlflow_that_cannot_be_used(store, tmp_path):
    pytest.importorskip("mlflow")
    done = CliRunner().invoke(
        main,
        [
            *("export", "mlflow", "runs / mine", "--to", "nothing://here"),
            *("--storage", f"sqlite:///{tmp_path}/hpo.db"),
        ],
    )
    assert done.exit_code == 2
    assert "nothing://here" in done.output and "Traceback" not in done.output


@pytest.mark.slow
def test_aim_has_a_run_for_each_trial_and_goes_on_where_it_stopped(store, tmp_path):
    aim = pytest.importorskip("aim", reason='aim is not installed: pip install "largebatch[aim]"')
    from hpo.runs.exports.aim_log import AimTracker

    study = study_of(store)

    def written():
        tracker = AimTracker(study, stored_spec(study), tmp_path / "trackers")
        count = track_study(store, study, tracker)
        tracker.close()
        return count

    assert written() == 2
    third = store.trials(study.id)[2]
    store.finish_trial(third.id, result(TrialState.CENSORED, "the budget"), points(3, 5))
    assert written() == 3
    states = [json.loads(f.read_text()) for f in (tmp_path / "trackers" / "aim-written").iterdir()]
    assert len(states) == 3 and all(each["ended"] for each in states)
    repo = str(tmp_path / "trackers" / "aim")
    opened = [aim.Run(each["hash"], repo=repo, system_tracking_interval=None) for each in states]
    runs = {run.name: run for run in opened}
    assert set(runs) == {f"runs / mine trial-{number:05d}" for number in range(3)}
    for number, steps in enumerate((5, 3, 5)):
        run = runs[f"runs / mine trial-{number:05d}"]
        assert run.experiment == "runs / mine" and run.tags == ["batch-16"]
        assert run["parameters"]["learning_rate"] == pytest.approx(0.1 * (1 + number))
        curve = next(each for each in run.metrics() if each.name == "epochs")
        values = sorted(value for _, value in curve.values.items())
        assert values == [0.5 * (i + 1) for i in range(steps)]  # nothing is there twice
    assert runs["runs / mine trial-00001"]["ended"]["reason"] == "the loss is not finite"
    assert runs["runs / mine trial-00000"]["results"]["epochs_to_target"] == 2.5


def test_aim_that_is_not_installed(tmp_path, monkeypatch):
    from hpo.runs.exports.tracking import make_tracker

    monkeypatch.setitem(sys.modules, "aim", None)
    choice = parse_study(SPEC + "trackers: [aim]\n").trackers[0]
    with pytest.raises(ExportError, match=r"pip install \"largebatch\[aim\]\""):
        make_tracker(choice, None, None, tmp_path)


class _Run:
    """A run of a tracker's library, which remembers the steps that it was given, by its id."""

    written = {}

    def __init__(self, run_hash=None, **settings):
        self.hash = run_hash or settings.get("id") or f"run {len(self.written)}"
        self.starting_step, self.summary = 0, {}
        self.steps = self.written.setdefault(self.hash, [])

    def log(self, values, step):
        self.steps.append(step)

    def track(self, value, name, step, epoch):
        if name == "epochs":
            self.steps.append(step)

    def finish(self, exit_code=0):
        self.steps.append(f"ended {exit_code}")

    def close(self):
        self.steps.append("ended")

    def add_tag(self, tag):
        pass

    def __setitem__(self, name, value):
        pass


def writer_to_a_stand_in(store, tmp_path, monkeypatch, library):
    """What writes the study's three trials to a stand-in for the library."""
    from hpo.runs.exports.aim_log import AimTracker
    from hpo.runs.exports.wandb_log import WandbTracker

    monkeypatch.setattr(_Run, "written", {})
    stand_in = SimpleNamespace(Run=_Run, init=_Run, Settings=dict)
    monkeypatch.setitem(sys.modules, library, stand_in)
    study = study_of(store)

    def write():
        make = AimTracker if library == "aim" else WandbTracker
        tracker = make(study, stored_spec(study), tmp_path / "trackers")
        assert track_study(store, study, tracker) == 3
        tracker.close()

    return write


@pytest.mark.parametrize("library", ["aim", "wandb"])
def test_a_trial_that_is_trained_again_continues_its_run(store, tmp_path, monkeypatch, library):
    write = writer_to_a_stand_in(store, tmp_path, monkeypatch, library)
    study = study_of(store)
    third = store.trials(study.id)[2]
    store.finish_trial(third.id, result(TrialState.FAILED, "out of disk"))
    store.set_study_state(study.id, StudyState.INTERRUPTED)
    write()
    write()
    ends = ["ended", "ended"] if library == "aim" else ["ended 1", "ended 0"]
    assert [*_Run.written.values()][2] == [10, 20, ends[0]]
    store.retry_failed(study.id)
    store.start_trials([third.id])
    store.finish_trial(third.id, result(TrialState.REACHED), points(1, 4))
    write()
    assert [*_Run.written.values()][2] == [10, 20, ends[0], 30, 40, ends[1]]
    assert len(_Run.written) == 3


@pytest.mark.parametrize("library", ["aim", "wandb"])
def test_runs_that_an_earlier_version_completed_are_opened_only_for_retried_trials(
    store, tmp_path, monkeypatch, library
):
    write = writer_to_a_stand_in(store, tmp_path, monkeypatch, library)
    study = study_of(store)
    third = store.trials(study.id)[2]
    store.finish_trial(third.id, result(TrialState.FAILED, "out of disk"), points(1, 5))
    store.set_study_state(study.id, StudyState.INTERRUPTED)
    write()
    for file in (tmp_path / "trackers" / f"{library}-written").iterdir():
        file.write_text(json.dumps({**json.loads(file.read_text()), "ended": True}))
    first, _, again = [list(steps) for steps in _Run.written.values()]
    write()
    written = [*_Run.written.values()]
    assert (written[0], written[2]) == (first, again)
    store.retry_failed(study.id)
    store.start_trials([third.id])
    longer = dataclasses.replace(result(TrialState.REACHED), steps=70)
    store.finish_trial(third.id, longer, points(1, 7))
    write()
    assert written[2] == [*again, 60, 70, "ended" if library == "aim" else "ended 0"]
    assert written[0] == first and len(_Run.written) == 3
