"""`hpo launch` of a plan for another machine: submitted to its scheduler, or explained."""

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from hpo.cli.main import main
from hpo.errors import LaunchError
from hpo.planning.launchers.launch import write_plan
from hpo.planning.launchers.submit import submit
from tests.planning.launch_samples import fake_path, small_job, small_plan

pytestmark = pytest.mark.processes


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
