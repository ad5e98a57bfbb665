"""Trackers named by a study: written by processes for which its run never waits."""

import os
import signal
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

import hpo
from hpo.cli.main import main
from hpo.errors import SpecError
from hpo.runs.exports import beside
from hpo.runs.progress import Progress
from hpo.study.spec import StudySpec, parse_study
from tests.fake_package import install_package

SPEC = """\
name: mine
workload: noisy_quadratic
target: {metric: loss, at_most: 1.5}
ladder: [16, 32]
search:
  learning_rate: {log_uniform: [0.001, 0.05], role: scaled}
  normalization_batch_size: 1
budget: {trials: 4, epochs_per_trial: 20}
"""

MODULE = """
    import os, time
    from hpo.study.trackers import TrackerDescription

    class Lines:
        def __init__(self, study, spec, folder, way="good"):
            self.path, self.way = folder / "lines", way
            self.path.parent.mkdir(exist_ok=True)
            (folder / "pid").write_text(str(os.getpid()))

        def write(self, *words):
            with self.path.open("a") as file:
                print(*words, file=file)

        def begin(self, trial):
            if self.way == "fail":
                raise OSError("the network is down")
            if self.way == "hang":
                time.sleep(60)
            self.write("begin", trial.number, trial.global_batch_size)
            return 0

        def add(self, trial, points):
            for point in points:
                self.write("point", trial.number, point.step)

        def end(self, trial):
            self.write("end", trial.number, trial.state)

        def close(self):
            self.write("close")

    LINES = TrackerDescription(rule="lines_module:Lines", about="lines", source="here",
                               settings={"way": "how it fails"})
"""


class Heard(Progress):
    def __init__(self):
        self.messages = []

    def message(self, text):
        self.messages.append(text)

    @property
    def warnings(self):
        return [text for text in self.messages if text.startswith("tracker ")]


@pytest.fixture
def lines(monkeypatch, tmp_path):
    """The tracker ``lines`` as the one file of somebody else's package, also for the processes that are started."""
    site = install_package(
        monkeypatch,
        tmp_path,
        "lines",
        {"largebatch.trackers": {"lines": "lines_module:LINES"}},
        {"lines_module.py": textwrap.dedent(MODULE)},
    )
    here = Path(__file__).parents[2]
    monkeypatch.setenv("PYTHONPATH", f"{site}{os.pathsep}{here}")


def run(tmp_path, trackers, name="mine"):
    heard = Heard()
    spec = parse_study(SPEC.replace("mine", name) + f"trackers: {trackers}\n")
    result = hpo.run_study(
        spec, storage=f"sqlite:///{tmp_path}/hpo.db", folder=tmp_path / ".hpo", progress=heard
    )
    return result, heard


def ends(result):
    return [(t.number, t.state, t.epochs_to_target, t.steps) for t in result.trials]


def test_the_line_of_a_study_file():
    spec = parse_study(SPEC + "trackers: [wandb, {mlflow: {uri: http://there, experiment: e}}]\n")
    assert [each.name for each in spec.trackers] == ["wandb", "mlflow"]
    assert spec.trackers[1].settings == {"uri": "http://there", "experiment": "e"}
    assert parse_study(spec.to_yaml()) == spec
    assert "trackers" not in parse_study(SPEC).to_dict()
    assert StudySpec.from_dict(spec.to_dict()) == spec


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("wandb", "must be a list"),
        ("[wandbb]", "did you mean 'wandb'"),
        ("[{wandb: {projekt: x}}]", "did you mean 'project'"),
        ("[{wandb: {project: 3}}]", "project of wandb must be text"),
        ("[{wandb: x}]", "as a mapping"),
        ("[wandb, wandb]", "once, but got wandb 2 times"),
        ("[{wandb: {}, mlflow: {}}]", "must name one of"),
    ],
)
def test_what_is_wrong_with_it(text, said):
    with pytest.raises(SpecError) as caught:
        parse_study(SPEC + f"trackers: {text}\n")
    assert said in str(caught.value) and "line 9" in str(caught.value)


@pytest.mark.slow
@pytest.mark.processes
def test_every_trial_goes_to_a_tracker_of_somebody_else(lines, tmp_path, monkeypatch):
    monkeypatch.setattr(
        beside, "GRACE_SECONDS", 120.0
    )  # on a busy machine it hardly gets the processor
    result, heard = run(tmp_path, "[lines]")
    assert heard.warnings == []
    written = (tmp_path / ".hpo" / "trackers" / "lines").read_text().splitlines()
    assert written[-1] == "close"
    for trial in result.trials:
        assert written.count(f"begin {trial.number} {trial.global_batch_size}") == 1
        assert written.count(f"end {trial.number} {trial.state}") == 1
        assert f"point {trial.number} {trial.steps}" in written
    assert len(result.trials) == 4


@pytest.mark.processes
def test_one_that_fails_and_one_that_hangs_are_one_warning_each(lines, tmp_path, monkeypatch):
    plain, _ = run(tmp_path, "[]", "plain")
    failing, heard = run(tmp_path, "[{lines: {way: fail}}]", "failing")
    assert ends(failing) == ends(plain) and failing.complete
    (warning,) = heard.warnings
    assert "OSError: the network is down" in warning and "hpo export trackers 'failing'" in warning
    monkeypatch.setattr(beside, "GRACE_SECONDS", 8.0)
    began = time.monotonic()
    hanging, heard = run(tmp_path, "[{lines: {way: hang}}]", "hanging")
    assert ends(hanging) == ends(plain) and hanging.complete
    (warning,) = heard.warnings
    assert "did not finish within 8 s after the run" in warning
    assert time.monotonic() - began < 60  # it would sleep for four minutes
    number = int((tmp_path / ".hpo" / "trackers" / "pid").read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(number, 0)


@pytest.mark.processes
def test_nothing_of_a_tracker_runs_in_the_process_that_trains(lines, tmp_path, monkeypatch):
    """No code of it is ever called here, and no thread of the run but its own listener waits for what it says."""
    monkeypatch.setattr(beside, "GRACE_SECONDS", 8.0)
    monkeypatch.setattr(beside, "make_tracker", None)
    monkeypatch.setattr(beside, "track_study", None)
    seen: dict[str, set[str]] = {}

    class Watching(Heard):
        def sweep(self, spec, trials, running):
            for thread in threading.enumerate():
                at = sys._current_frames().get(thread.ident)
                while at is not None:
                    name = at.f_globals.get("__name__", "")
                    if name.startswith("hpo.runs.exports") or name == "lines_module":
                        seen.setdefault(thread.name, set()).add(at.f_code.co_name)
                    at = at.f_back

    spec = parse_study(SPEC + "trackers: [{lines: {way: hang}}]\n")
    heard = Watching()
    result = hpo.run_study(
        spec, storage=f"sqlite:///{tmp_path}/hpo.db", folder=tmp_path / ".hpo", progress=heard
    )
    assert result.complete and len(heard.warnings) == 1
    assert set(seen) <= {"tracker lines"}
    assert seen.get("tracker lines", set()) <= {"_listen"}
    hung = int((tmp_path / ".hpo" / "trackers" / "pid").read_text())
    assert hung != os.getpid()


@pytest.mark.processes
def test_a_tracker_ends_where_its_run_is_killed(lines, tmp_path):
    """The end of its orders tells it; what was there is written."""
    result, _ = run(tmp_path, "[]")
    study, heard = result.study, []
    folder = tmp_path / "trackers"
    choice = parse_study(SPEC + "trackers: [lines]\n").trackers[0]
    one = beside._Beside(choice, study, f"sqlite:///{tmp_path}/hpo.db", folder, heard.append)
    os.kill(one._process.pid, signal.SIGCONT)  # it lives
    assert os.getsid(one._process.pid) == os.getsid(
        0
    )  # where its priority counts against those that train
    assert os.getpgid(one._process.pid) == one._process.pid  # and Ctrl-C does not reach it
    deadline = time.monotonic() + 60
    while os.getpriority(os.PRIO_PROCESS, one._process.pid) != beside.NICE:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    one.tell_end()
    assert one._process.wait(120) == 0
    assert (folder / "lines").read_text().count("end ") == 4 and heard == []
    one.end(time.monotonic())


@pytest.mark.processes
@pytest.mark.slow
def test_wandb_without_a_network_writes_offline_and_goes_on_where_it_stopped(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    monkeypatch.setattr(beside, "GRACE_SECONDS", 90.0)
    result, heard = run(tmp_path, "[wandb]")
    assert result.complete and len(result.trials) == 4
    assert len(heard.warnings) == 1 and "wandb sync" in heard.warnings[0]
    runs = sorted((tmp_path / ".hpo" / "trackers" / "wandb").glob("offline-run-*"))
    assert len(runs) == 4
    again = CliRunner().invoke(
        main,
        [
            *("export", "trackers", "mine", "--storage", f"sqlite:///{tmp_path}/hpo.db"),
            *("--folder", str(tmp_path / ".hpo")),
        ],
    )
    assert again.exit_code == 0 and "4 trials that have ended, in wandb" in again.output
    assert sorted((tmp_path / ".hpo" / "trackers" / "wandb").glob("offline-run-*")) == runs


@pytest.mark.processes
@pytest.mark.slow
def test_wandb_offline_has_each_trial_in_the_group_of_its_rung(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setattr(beside, "GRACE_SECONDS", 90.0)
    result, heard = run(tmp_path, "[{wandb: {project: p, mode: offline}}]")
    assert heard.warnings == []
    files = sorted((tmp_path / ".hpo" / "trackers" / "wandb").glob("offline-run-*/run-*.wandb"))
    assert len(files) == len(result.trials)
    told = b"".join(file.read_bytes() for file in files)
    for trial in result.trials:
        assert f"mine trial-{trial.number:05d}".encode() in told
        assert f"mine batch-{trial.global_batch_size}".encode() in told


def test_a_study_without_trackers_says_so(tmp_path):
    run(tmp_path, "[]")
    done = CliRunner().invoke(
        main, ["export", "trackers", "mine", "--storage", f"sqlite:///{tmp_path}/hpo.db"]
    )
    assert done.exit_code == 2 and "has no tracker" in done.output


def test_wandb_that_is_not_installed(tmp_path, monkeypatch):
    from hpo.errors import ExportError
    from hpo.runs.exports.tracking import make_tracker

    monkeypatch.setitem(__import__("sys").modules, "wandb", None)
    choice = parse_study(SPEC + "trackers: [wandb]\n").trackers[0]
    with pytest.raises(ExportError, match=r"pip install \"largebatch\[wandb\]\""):
        make_tracker(choice, None, None, tmp_path)
