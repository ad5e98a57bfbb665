"""`hpo launch` of a plan for another machine: submitted to its scheduler, or explained."""

import dataclasses
import json
import os
import shlex
import shutil
import sys
import types
from pathlib import Path

import pytest
from click.testing import CliRunner

from hpo.cli.main import main
from hpo.errors import LaunchError
from hpo.planning.launchers.job_setup import JobSetup
from hpo.planning.launchers.launch import read_launched, write_plan
from hpo.planning.launchers.submit import submit
from hpo.runs import api
from hpo.runs.launches import launch_here, submit_plan, written_folder
from search_spaces.settings import TrainingSettings
from storage.records import NewPlan, NewStudy, PlanKind
from storage.store import Store
from tests.planning.launch_samples import fake_path, small_job, small_plan
from trainers.private_files import lock_file
from trainers.report import ReportFile, TrainingOutcome, TrainingStart, read_outcome

pytestmark = pytest.mark.processes

STUDY = """\
name: cells
workload: noisy_quadratic
target: {metric: loss, at_most: 0.05}
ladder: [16, 32]
search: {learning_rate: {log_uniform: [0.01, 10], role: scaled}, normalization_batch_size: 1}
budget: {trials: 12, epochs_per_trial: 90}
"""
SIZED = """\
name: cells
workload: program
program:
  command: [train, "{learning_rate}", "{global_batch_size}", "{width}"]
  train_samples: 500
  report: {metrics: {loss: false}}
  cost: 6 * 12 * {width}**2
target: {metric: loss, at_most: 0.05}
ladder: {global_batch_size: [16, 32], width: [32, 64]}
full_scale: {global_batch_size: 128, width: 128}
search: {learning_rate: {log_uniform: [0.01, 10], role: scaled}}
budget: {trials: 12, epochs_per_trial: 90}
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder `plan`, and fakes for Slurm's commands with a trainer that does nothing but end."""
    write_plan(
        small_plan(small_job(tmp_path), machine="superpod"), tmp_path / "plan", backend="torch"
    )
    environment = fake_path(
        tmp_path / "bin", "slurm", python='echo "{\\"outcome\\": {}}" >> outcome.jsonl'
    )
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    return tmp_path


def launch(*arguments):
    return CliRunner().invoke(main, ["launch", *arguments, "--storage", "sqlite:///unused.db"])


def test_a_plan_is_handed_to_its_scheduler(here):
    done = launch(str(here / "plan"), "--account", "physics", "--partition", "large")
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines() == [
        "Submitted batch job 1",
        f"when it has ended: hpo record 7 {here}/plan/outcome.jsonl",
    ]
    (job,) = (json.loads(line) for line in (here / "bin/spool/jobs.jsonl").read_text().splitlines())
    assert job["status"] == 0
    assert (job["options"]["--account"], job["options"]["--partition"]) == ("physics", "large")


def test_what_a_person_filled_into_the_script_is_kept_unless_another_backend_is_asked_for(here):
    script = here / "plan" / "launch.sh"
    script.write_text(
        script.read_text().replace("##SBATCH --account=ACCOUNT", "#SBATCH --account=chemistry")
    )
    assert json.loads(launch(str(here / "plan"), "--json").stdout)["job"] == "Submitted batch job 1"
    (job,) = (json.loads(line) for line in (here / "bin/spool/jobs.jsonl").read_text().splitlines())
    assert job["options"]["--account"] == "chemistry"
    launch(str(here / "plan"), "--backend", "horovod")
    assert "--backend horovod" in script.read_text() and "chemistry" not in script.read_text()


SETTINGS = TrainingSettings(learning_rate=0.1, normalization_batch_size=1)


def stored(tmp_path, *plans, spec=STUDY, settings=SETTINGS, machine="superpod", launcher="slurm"):
    """A storage with plans of one study, each written to its own folder; their numbers and folders."""
    url = f"sqlite:///{tmp_path}/hpo.db"
    with Store.open(url) as store:
        study = store.create_study(
            NewStudy(
                name="cells",
                workload="program" if spec == SIZED else "noisy_quadratic",
                metric="loss",
                threshold=0.05,
                higher_is_better=False,
                spec=spec,
            )
        )
        numbers = [
            store.add_plan(
                NewPlan(
                    study_id=study.id,
                    kind=PlanKind.NO_SCALING,
                    machine=machine,
                    nodes=nodes,
                    workers=2 * nodes,
                    ranks_per_node=2,
                    global_batch_size=32,
                    local_batch_size=16 // nodes,
                    settings=settings.to_dict(),
                    directory=str(tmp_path / f"plan{nodes}"),
                    launcher=launcher,
                )
            ).id
            for nodes in plans
        ]
    for number, nodes in zip(numbers, plans, strict=True):
        write_plan(api.find_plan(str(number), url), tmp_path / f"plan{nodes}")
    return url, numbers


def test_a_number_submits_that_plan_and_what_was_filled_into_its_script(here):
    url, (first, second) = stored(here, 1, 2)
    script = here / "plan2" / "launch.sh"
    script.write_text(
        script.read_text().replace("##SBATCH --account=ACCOUNT", "#SBATCH --account=chemistry")
    )
    for number, folder in ((first, "plan1"), (second, "plan2")):
        done = CliRunner().invoke(main, ["launch", str(number), "--json", "--storage", url])
        assert json.loads(done.stdout)["folder"] == str(here / folder), done.output
    one, two = map(json.loads, (here / "bin/spool/jobs.jsonl").read_text().splitlines())
    assert (one["options"]["--nodes"], two["options"]["--nodes"]) == ("1", "2")
    assert two["options"]["--account"] == "chemistry"


def test_without_its_folder_a_numbered_plan_is_written_to_one_of_its_own(here, monkeypatch):
    monkeypatch.chdir(here)
    url, numbers = stored(here, 1, 2)
    for name in ("plan1", "plan2"):
        shutil.rmtree(here / name)
    folders = [
        submit_plan(api.find_plan(str(number), url), backend=None).folder for number in numbers
    ]
    assert folders[0] != folders[1]
    plans = [json.loads((folder / "plan.json").read_text()) for folder in folders]
    assert [plan["nodes"] for plan in plans] == [1, 2]


def test_a_folder_that_holds_another_plan_is_written_anew(here):
    url, (_, second) = stored(here, 1, 2)
    submit_plan(api.find_plan(str(second), url), here / "plan1")
    assert json.loads((here / "plan1" / "plan.json").read_text())["id"] == second
    assert "#SBATCH --nodes=2" in (here / "plan1" / "launch.sh").read_text()


def report_of(job, path, **outcome):
    """Write the report of a finished run of a job, as the trainer does."""
    file = ReportFile(path)
    file.start(0, TrainingStart(0, 4, 2, job.digest(), job.seed))
    values = {"epochs_to_target": 3.0, "epochs": 3.0, "steps": 9, "seconds": 30.0, **outcome}
    file.outcome(
        TrainingOutcome(state="reached", best_metric=0.01, final_metric=0.01, reason="", **values)
    )
    return path


def test_only_the_report_of_its_own_job_is_recorded_and_only_once(here):
    url, (number, _) = stored(here, 1, 2)
    plan = api.find_plan(str(number), url)
    other = dataclasses.replace(plan.job, global_batch_size=64)
    with pytest.raises(LaunchError, match=f"must report the job of plan {number}"):
        api.record(plan, report_of(other, here / "other.jsonl"), url)
    again = dataclasses.replace(plan.job, seed=plan.job.seed + 5, micro_batch_size=2)
    assert api.record(plan, report_of(again, here / "again.jsonl"), url).seed == again.seed
    with pytest.raises(LaunchError, match="a run counts once"):
        api.record(plan, here / "again.jsonl", url)
    report = report_of(plan.job, here / "old.jsonl", seconds=40.0)
    lines = report.read_text().splitlines()
    old = {"started": {"step": 0, "workers": 4, "nodes": 2}}  # as earlier releases wrote it
    report.write_text("\n".join([json.dumps(old), *lines[1:], ""]))
    assert api.record(plan, report, url).seed == plan.job.seed


def test_a_new_plan_in_a_folder_moves_the_run_of_another_aside(here):
    folder, plan = here / "plan", small_plan(small_job(here), machine="superpod")
    report_of(plan.job, folder / "outcome.jsonl")
    (folder / "checkpoint.pt").write_bytes(b"weights")
    write_plan(plan, folder, backend="horovod")  # the same job: its run goes on
    assert (folder / "outcome.jsonl").exists() and (folder / "checkpoint.pt").exists()
    new = dataclasses.replace(plan, id=8, job=small_job(here, batch=64))
    write_plan(new, folder, backend="torch")
    assert not (folder / "outcome.jsonl").exists() and not (folder / "checkpoint.pt").exists()
    earlier = folder / "earlier-1"
    assert json.loads((earlier / "plan.json").read_text())["id"] == 7
    assert read_outcome(earlier / "outcome.jsonl") is not None
    assert (earlier / "checkpoint.pt").read_bytes() == b"weights"


def test_a_run_that_is_still_writing_is_not_moved(here, monkeypatch):
    monkeypatch.setattr("hpo.planning.launchers.launch.LOCK_SECONDS", 3600.0)  # nobody waits for it
    folder, plan = here / "plan", small_plan(small_job(here), machine="superpod")
    report_of(plan.job, folder / "outcome.jsonl")
    with (folder / "launch.lock").open("ab") as lock:
        lock_file(lock)
        with pytest.raises(LaunchError, match="another run is writing to"):
            write_plan(
                dataclasses.replace(plan, job=small_job(here, batch=64)), folder, backend="torch"
            )
    assert json.loads((folder / "plan.json").read_text())["global_batch_size"] == 32


def continue_study(url, spec):
    """Replace the spec of the stored study, as `hpo run` does for a study that is continued."""
    with Store.open(url) as store:
        store.update_spec(store.study("cells").id, spec)


def test_the_script_and_the_run_of_a_plan_stay_after_its_study_was_continued(here):
    url, (number,) = stored(here, 2)
    folder, job = here / "plan2", api.find_plan(str(number), url).job
    script = folder / "launch.sh"
    script.write_text(script.read_text() + "# by hand\n")
    (folder / "checkpoint.pt").write_bytes(b"weights")
    continue_study(url, STUDY.replace("trials: 12", "trials: 40"))
    plan = api.find_plan(str(number), url)
    assert (job.seed, plan.job.seed) == (12, 40)
    for arguments in ([], ["--folder", str(folder)]):
        done = CliRunner().invoke(
            main, ["launch", str(number), *arguments, "--json", "--storage", url]
        )
        assert json.loads(done.stdout)["folder"] == str(folder), done.output
        assert script.read_text().endswith("# by hand\n")
    submit_plan(plan, folder, backend="horovod")  # another script for the same run
    assert "--backend horovod" in script.read_text()
    assert (folder / "checkpoint.pt").read_bytes() == b"weights"


def test_another_job_of_the_same_number_is_not_the_plans(here):
    """As in a folder that a plan of another database was written to."""
    url, (number,) = stored(here, 2)
    plan = api.find_plan(str(number), url)
    for other in (
        dataclasses.replace(plan, nodes=1, workers=2, ranks_per_node=2),
        dataclasses.replace(plan, job=dataclasses.replace(plan.job, epochs=7.0)),
    ):
        write_plan(other, here / "plan2")
        submit_plan(plan, here / "plan2")
        assert json.loads((here / "plan2" / "plan.json").read_text()) == plan.to_dict()


def test_a_plan_keeps_its_sizes_if_the_full_scale_of_its_study_changes(here):
    settings = TrainingSettings(learning_rate=0.1, own={"width": 128})
    url, (number,) = stored(here, 2, spec=SIZED, settings=settings)
    plan = api.find_plan(str(number), url)
    continue_study(url, SIZED.replace("width: 128", "width: 256"))
    again = api.find_plan(str(number), url)
    assert again.job.settings.own == {"width": 128}
    assert submit_plan(again, written_folder(again, url)).folder == here / "plan2"
    api.record(again, report_of(plan.job, here / "done.jsonl"), url)


def test_a_plan_file_is_launched_from_its_folder_without_a_storage(here):
    done = launch(str(here / "plan" / "plan.json"), "--json")
    assert json.loads(done.stdout)["folder"] == str(here / "plan"), done.output
    assert not Path("unused.db").exists()


def test_a_local_run_of_a_number_lies_where_the_trackers_look_for_it(here, monkeypatch):
    monkeypatch.chdir(here)
    url, (number,) = stored(here, 1, machine="local", launcher="local")
    folders = []

    def run(plan, folder, **_):
        folders.append(folder)
        return read_launched(report_of(plan.job, here / "done.jsonl", seconds=float(len(folders))))

    monkeypatch.setattr("hpo.runs.launches.run_plan_locally", run)
    plan = api.find_plan(str(number), url)
    launch_here(plan, storage=url)
    continue_study(url, STUDY.replace("trials: 12", "trials: 40"))
    launch_here(api.find_plan(str(number), url), storage=url)
    write_plan(dataclasses.replace(plan, id=number + 1), here / "plan1")  # another plan took it
    launch_here(plan, storage=url)
    own = here / ".hpo" / "plans" / f"cells-32-no_scaling-{number}"
    assert folders == [here / "plan1", here / "plan1", own]


def test_a_local_plan_with_a_container_is_not_launched_without_it(here):
    plan = JobSetup(container="image.sif").put_into(
        small_plan(small_job(here), machine="local", launcher="local", nodes=1)
    )
    with pytest.raises(LaunchError, match=r"only the script applies .* run `bash launch\.sh`"):
        launch_here(plan, directory=here / "runs")


def test_ray_gets_a_folder_with_a_space_as_one_word(monkeypatch):
    given = []

    class JobSubmissionClient:
        def __init__(self, address):
            pass

        def submit_job(self, **values):
            given.append(values)
            return "job"

    module = types.ModuleType("ray.job_submission")
    vars(module)["JobSubmissionClient"] = JobSubmissionClient
    monkeypatch.setitem(sys.modules, "ray.job_submission", module)
    submit("ray", Path("/my plans"))
    assert shlex.split(given[0]["entrypoint"]) == ["python", "/my plans/launch.py"]


def test_a_refused_script_says_why(here):
    script = here / "plan" / "launch.sh"
    script.write_text(script.read_text().replace("--time=", "--tims="))
    done = launch(str(here / "plan"))
    assert done.exit_code == 1
    assert f"sbatch refused {script}: sbatch: error: unknown option --tims" in done.stderr


@pytest.mark.parametrize(
    ("launcher", "told"),
    [
        (
            "slurm",
            "there is no sbatch here: copy the folder {} to the machine, onto a file system "
            "that its nodes share, and run `sbatch --account=a launch.sh` in it; --workers N "
            "runs the plan on this machine instead",
        ),
        ("lsf", "and run `bsub -P a < launch.sh` in it"),
        ("pbs", "run `qsub -A a -v HPO_ACCOUNT=a launch.sh` in it"),
        ("grid_engine", "run `qsub -g a -v HPO_ACCOUNT=a launch.sh` in it"),
        ("flux", "run `flux batch --bank=a launch.sh` in it"),
        ("other", "run launch.sh as described in its first lines"),
    ],
)
def test_without_the_scheduler_the_way_to_do_it_is_told(monkeypatch, launcher, told):
    monkeypatch.setenv("PATH", os.devnull)
    with pytest.raises(LaunchError) as error:
        submit(launcher, Path("/plans/small"), account="a")
    assert told.format("/plans/small") in str(error.value)


def test_without_ray_at_an_address_the_way_to_do_it_is_told(monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "http://127.0.0.1:1")
    with pytest.raises(
        LaunchError,
        match=r"cannot submit a job to Ray at .* or run python /plans/small/launch\.py on",
    ):
        submit("ray", Path("/plans/small"))
