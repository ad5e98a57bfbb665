"""A study in another folder than the current one: its modules and data are always found beside its file."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import hpo
from hpo.cli.main import main
from hpo.errors import SpecError
from hpo.runs.repository import open_store, stored_spec
from hpo.service.worker import StudyWorker, WorkerOptions
from hpo.tuning.tuner import stop_ray
from storage.records import NewStudy, PlanKind, StudyState
from tests.service.api_server import served

pytestmark = [pytest.mark.fit, pytest.mark.processes]

WORKLOAD = '''\
"""A noisy quadratic whose curvature is read from a file."""

from pathlib import Path

from trainers.workloads.noisy_quadratic.task import NoisyQuadratic


class Curved(NoisyQuadratic):
    def __init__(self, data):
        Path(data["path"]).read_text()
        super().__init__({name: value for name, value in data.items() if name != "path"})
'''
STUDY = """\
name: curved
workload: curved_workload:Curved
data: {path: data/curvature.txt, modes: 20, noise_scale: 0.5, train_samples: 512}
target: {metric: loss, at_most: 0.05}
ladder: [16, 32]
full_scale: {global_batch_size: 64, machine: local, workers: 1, validate: true}
search:
  learning_rate: {log_uniform: [0.02, 1], role: scaled}
  momentum: 0.9
  weight_decay: 0
budget: {trials: 8, epochs_per_trial: 20, evaluations_per_epoch: 2}
sampler: random
"""


@dataclasses.dataclass(frozen=True)
class Place:
    """A folder to call from, and the study in a folder below it."""

    folder: Path

    @property
    def file(self):
        return self.folder / "sub" / "curved.yaml"

    @property
    def storage(self):
        return f"sqlite:///{self.folder}/hpo.db"

    def check(self, job):
        """The job looks for module and data beside the study file."""
        assert job.search_path == str(self.file.parent)
        assert job.data["path"] == str(self.file.parent / "data" / "curvature.txt")

    def check_complete(self):
        result = hpo.read_study("curved", self.storage)
        assert result.study.state is StudyState.FINISHED, result.study.message
        assert result.study.folder == str(self.file.parent)
        assert len(result.launched) == 2  # the forecast's plan, and a rule of thumb beside it
        for run in result.runs:
            self.check(run.plan.job)
        return result


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "curved_workload", raising=False)
    # what runs where is asked here, not how well: each launched run is a process that imports torch
    monkeypatch.setattr("hpo.runs.run.LEAST_SEEDS", 1)
    monkeypatch.setattr("hpo.runs.study_plan.BASELINES", {PlanKind.LINEAR_SCALING: "linear"})
    (tmp_path / "sub" / "data").mkdir(parents=True)
    (tmp_path / "sub" / "data" / "curvature.txt").write_text("as it is\n")
    (tmp_path / "sub" / "curved_workload.py").write_text(WORKLOAD)
    place = Place(tmp_path)
    place.file.write_text(STUDY)
    yield place
    stop_ray()


def enter(place, **changes):
    """The study as an earlier call left it, in the queue."""
    spec = hpo.load_study(place.file)
    with open_store(place.storage) as store:
        return store.submit_study(
            NewStudy(
                name=spec.name,
                workload=spec.workload,
                metric=spec.target.metric,
                threshold=spec.target.threshold,
                higher_is_better=False,
                spec=spec.text,
                **{"folder": str(place.file.parent), **changes},
            )
        ).study


@pytest.mark.slow
def test_the_command_line_runs_plans_and_validates_it(place):
    command = str(Path(sys.executable).parent / "hpo")
    run = CliRunner().invoke(main, ["run", "sub/curved.yaml", "--json"])
    assert run.exit_code == 0, run.output
    assert json.loads(run.stdout)["outcome"]["outcomes"]
    place.check_complete()
    elsewhere = place.folder / "elsewhere"
    elsewhere.mkdir()
    plan = subprocess.run(
        [
            command,
            "plan",
            "curved",
            "--storage",
            place.storage,
            "--workers",
            "2",
            "--output",
            "plan",
            "--json",
        ],
        cwd=elsewhere,
        capture_output=True,
        text=True,
        check=False,
    )
    assert plan.returncode == 0, plan.stderr
    job = json.loads((elsewhere / "plan" / "job.json").read_text())
    assert job["search_path"] == str(place.file.parent)


@pytest.mark.slow
def test_python_runs_and_validates_it_and_goes_on_from_another_folder(place, monkeypatch):
    spec = hpo.load_study("sub/curved.yaml")
    result = hpo.run_study(spec, place.storage, folder=place.folder / ".hpo")
    assert result.complete
    place.check_complete()
    elsewhere = place.folder / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    again = hpo.run_study(
        hpo.read_study("curved", place.storage).spec, place.storage, folder=place.folder / ".hpo"
    )
    assert again.complete and len(again.trials) == len(result.trials)
    plan = hpo.make_plan(hpo.forecast(again, 64), workers=1)
    place.check(plan.job)


@pytest.mark.slow
def test_a_worker_in_another_folder_runs_and_validates_it(place, monkeypatch):
    enter(place)
    elsewhere = place.folder / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    StudyWorker(
        WorkerOptions(
            storage=place.storage,
            folder=place.folder / ".hpo",
            once=True,
            data_folders=(place.file.parent / "data",),
        )
    ).run()
    place.check_complete()


def client_of(api):
    return hpo.Client(str(api.client.base_url), api.token("ada"))


def refused(call):
    """The faults that a submission is refused with."""
    with pytest.raises(SpecError) as told:
        call()
    return told.value.faults


def test_a_server_is_asked_for_it_by_what_it_has_itself(place, monkeypatch):
    """The network carries the text of a study and no folder: modules and data are those of the server, or it refuses.

    What only the submitter's folder has is refused before it is stored, each fault with its line. Named as the
    server knows it, by a module that it allows and an absolute path in its data folders, the same study is taken, and
    a worker runs it wherever both started.
    """
    place.file.write_text(STUDY.replace(", validate: true", "").replace("trials: 8", "trials: 4"))
    data = place.file.parent / "data"
    for name in ("one", "two"):
        (place.folder / name).mkdir()
    with served(place.folder / "one", data_folders=[str(data)]) as api:
        with client_of(api) as client:
            faults = refused(lambda: client.submit("sub/curved.yaml"))
        assert [(fault.key, fault.line) for fault in faults] == [
            ("workload", 2),
            ("data.path", 3),
        ]
        assert "workload must be one that this server allows" in faults[0].message
        answer = api.submit(spec=place.file.read_text())
        assert answer.status_code == 422
        assert "must be an absolute path within one of the server's data_folders" in answer.text
        assert api.store.studies() == []

    monkeypatch.setenv("PYTHONPATH", str(place.file.parent))  # of the process that checks studies
    monkeypatch.syspath_prepend(place.file.parent)
    allowed = ["noisy_quadratic", "curved_workload:Curved"]
    with served(place.folder / "two", data_folders=[str(data)], workloads=allowed) as api:
        text = place.file.read_text().replace("data/curvature.txt", f"{data}/curvature.txt")
        with client_of(api) as client:
            (fault,) = refused(lambda: client.submit("sub/curved.yaml"))
            client.submit(text)
        assert fault.key == "data.path" and str(data) in fault.message
    elsewhere = place.folder / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    storage, folder = f"sqlite:///{place.folder}/two/hpo.db", place.folder / ".hpo"
    StudyWorker(
        WorkerOptions(storage=storage, folder=folder, once=True, data_folders=(data,))
    ).run()
    result = hpo.read_study("curved", storage)
    assert result.study.state is StudyState.FINISHED, result.study.message
    assert len(result.trials) == 4
    assert result.plan.plan.job.data["path"] == f"{data}/curvature.txt"


@pytest.mark.parametrize("changes", [{}, {"folder": ""}])
def test_a_worker_reads_data_of_its_data_folders_only(place, changes):
    """The path that would be opened is what counts, and a study without a folder may not name a relative one."""
    enter(place, **changes)
    allowed = place.folder / "allowed"
    allowed.mkdir()
    StudyWorker(
        WorkerOptions(
            storage=place.storage,
            folder=place.folder / ".hpo",
            once=True,
            data_folders=(allowed,) if not changes else (place.folder / "sub",),
        )
    ).run()
    with open_store(place.storage) as store:
        study = store.study("curved")
        assert study.state is StudyState.FAILED and "data_folders" in study.message
        assert store.trials(study.id) == []


def test_a_stored_study_keeps_its_folder_wherever_it_is_read(place, monkeypatch):
    study = enter(place)
    elsewhere = place.folder / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    spec = stored_spec(study)
    assert spec == hpo.load_study(place.file) and spec.search_path == place.file.parent
    assert hpo.parse_study(STUDY).search_path is None
    assert hpo.parse_study(STUDY, folder="there").search_path == elsewhere / "there"
    assert hpo.parse_study(STUDY, place.file, folder="there").search_path == elsewhere / "there"


def test_a_relative_path_is_that_of_the_folder_when_the_file_was_read(place, monkeypatch):
    spec = hpo.load_study("sub/curved.yaml")
    monkeypatch.chdir(place.folder / "sub")
    assert spec.search_path == place.file.parent


def test_a_study_that_moved_is_found_where_it_was_run_last(place):
    enter(place, folder="/gone")
    with open_store(place.storage) as store:
        study = store.study("curved")
        assert stored_spec(study).search_path == Path("/gone")
        store.update_spec(study.id, study.spec)
        assert store.study("curved").folder == "/gone"
        store.update_spec(study.id, study.spec, str(place.file.parent))
        assert store.study("curved").folder == str(place.file.parent)


def test_a_module_that_is_not_there_is_told_with_its_folder(place):
    (place.file.parent / "curved_workload.py").unlink()
    with pytest.raises(SpecError, match="curved_workload"):
        hpo.run_study(hpo.load_study("sub/curved.yaml"), place.storage)
