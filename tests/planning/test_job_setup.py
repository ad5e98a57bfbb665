"""Modules, a container and a prefix around the ranks, with strict fakes of schedulers, Apptainer and modules."""

import dataclasses
import json
import subprocess
import sys

import pytest

from hpo.errors import PlanError
from hpo.planning.launchers import launch_script_of_plan
from hpo.planning.launchers.job_setup import JobSetup
from hpo.planning.launchers.launch import write_plan
from hpo.planning.machines import load_machine
from hpo.planning.plan import Plan
from hpo.planning.schedulers import SCHEDULERS
from tests.planning.launch_samples import SUBMISSIONS, fake_path, small_job, small_plan

pytestmark = pytest.mark.processes

IMAGE = "/images/my hpo's image.sif"
# as Apptainer takes it: exec, options, an image, a command; anything else is refused
APPTAINER = """
[[ $1 == exec ]] || { echo "apptainer: unknown command $1" >&2; exit 2; }
shift
while [[ $1 == -* ]]; do
  case $1 in
    --nv) shift ;;
    --bind) [[ -d $2 ]] || { echo "apptainer: no folder $2" >&2; exit 2; }; shift 2 ;;
    *) echo "apptainer: unknown flag $1" >&2; exit 2 ;;
  esac
done
echo "image $1" >> "$SURROUNDED"
shift
exec "$@"
"""
PREFIX = 'echo "prefix $1" >> "$SURROUNDED"; shift; exec "$@"'
MODULE = '[[ $# == 2 && $1 == load ]] || exit 2; [[ $2 != none/* ]] || exit 1; echo "module $2" >> "$SURROUNDED"'


def run_with_setup(folder, launcher, setup, *, backend="torch", **variables):
    """The log of one run of a small plan under a fake, and the job's exit codes."""
    plan = setup.put_into(small_plan(small_job(folder), machine="superpod", launcher=launcher))
    write_plan(
        Plan.from_dict(json.loads(json.dumps(plan.to_dict()))), folder / "plan", backend=backend
    )
    (folder / "plan" / "behaviour").write_text("reach")
    environment = fake_path(
        folder / "bin",
        launcher,
        python=f'shift 3; exec "{sys.executable}" -m tests.planning.fakes.trainer "$@"',
        apptainer=APPTAINER,
        module=MODULE,
        profile=PREFIX,
    )
    done = subprocess.run(
        SUBMISSIONS[launcher],
        cwd=folder / "plan",
        env={**environment, "SURROUNDED": str(folder / "log"), **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    jobs = (folder / "bin/spool/jobs.jsonl").read_text().splitlines()
    log = folder / "log"
    return log.read_text().splitlines() if log.exists() else [], [
        json.loads(job)["status"] for job in jobs
    ]


@pytest.mark.parametrize("launcher", SUBMISSIONS)
def test_ranks_run_with_the_modules_in_the_container_behind_the_prefix(tmp_path, launcher):
    asked = JobSetup.of(["cuda/12.4", "python/3.11"], IMAGE, "profile --trace")
    log, statuses = run_with_setup(tmp_path, launcher, asked)
    assert statuses == [0]
    assert log[:2] == ["module cuda/12.4", "module python/3.11"]
    # what is before the container is outside of it
    assert set(log[2:]) == {"prefix --trace", f"image {IMAGE}"}
    assert log[2] == "prefix --trace"


def test_variables_go_before_what_the_plan_says(tmp_path):
    asked = JobSetup.of(["cuda/12.4"], IMAGE, None)
    log, statuses = run_with_setup(
        tmp_path, "slurm", asked, HPO_MODULES="rocm", HPO_CONTAINER="docker://other"
    )
    assert (statuses, log[0], set(log[1:])) == ([0], "module rocm", {"image docker://other"})


def test_without_any_nothing_stands_around(tmp_path):
    assert run_with_setup(tmp_path, "slurm", JobSetup()) == ([], [0])


def test_a_module_that_is_not_there_ends_the_script_before_the_training(tmp_path):
    log, statuses = run_with_setup(tmp_path, "slurm", JobSetup.of(["none/1"], None, None))
    assert (log, statuses) == ([], [1])


@pytest.mark.parametrize("backend", ["torch", "horovod"])
@pytest.mark.parametrize(
    "launcher", [name for name, its in SCHEDULERS.items() if its.script.endswith(".sh")]
)
def test_bash_takes_every_script_and_every_rank_is_inside(tmp_path, launcher, backend):
    plan = JobSetup.of(["a/1"], IMAGE, "x 'y z'").put_into(
        small_plan(small_job(tmp_path), machine="superpod", launcher=launcher)
    )
    _, text = launch_script_of_plan(plan, load_machine("superpod"), backend=backend)
    checked = subprocess.run(
        ["bash", "-n"], input=text, capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stderr
    starts = [
        line
        for line in text.splitlines()
        if "python -m trainers" in line or 'python -m "$@"' in line
    ]
    assert starts and all('"${inside[@]}" python' in line for line in starts), starts
    assert "inside=(x 'y z')" in text


def test_what_cannot_be_is_refused():
    for asked, rule in (
        ((["a;rm"], None, None), "a module must be a name"),
        (([], "--nv", None), "a container must be"),
        (([], "a\nb", None), "a container must be"),
        (([], None, "it's"), "a prefix must be valid shell words"),
    ):
        with pytest.raises(PlanError, match=rule):
            JobSetup.of(*asked)


def test_ray_starts_ranks_where_its_nodes_are(tmp_path):
    plan = JobSetup.of([], IMAGE, None).put_into(
        small_plan(small_job(tmp_path), machine="superpod", launcher="ray")
    )
    with pytest.raises(PlanError, match="start Ray inside the container"):
        launch_script_of_plan(plan, load_machine("superpod"), backend="torch")


def test_a_plan_of_an_earlier_release_keeps_its_setup(tmp_path):
    asked = JobSetup.of(["cuda/12.4"], IMAGE, "profile --trace")
    plan = asked.put_into(small_plan(small_job(tmp_path)))
    details = dict(plan.details)
    details["surroundings"] = details.pop("job_setup")  # the name of the key in earlier releases
    assert JobSetup.of_plan(dataclasses.replace(plan, details=details)) == asked
