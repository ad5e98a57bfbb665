"""Scripts that really train: submitted to fakes of the schedulers, on two hosts that are both this machine."""

import json
import subprocess

import pytest

from hpo.planning.launchers.launch import read_launched, write_plan
from hpo.planning.launchers.local import has_horovod
from hpo.planning.schedulers import SCHEDULERS
from tests.planning.launch_samples import SUBMISSIONS, fake_path, small_job, small_plan
from trainers.report import read_points

pytestmark = pytest.mark.processes


def submit(folder, launcher, *, backend, ranks=1, variables=None, **data):
    """What a run reported, and the jobs that the fake ran for it."""
    plan = small_plan(small_job(folder, **data), machine="superpod", launcher=launcher, ranks=ranks)
    write_plan(plan, folder / "plan", backend=backend)
    done = subprocess.run(
        SUBMISSIONS[launcher],
        cwd=folder / "plan",
        capture_output=True,
        text=True,
        check=False,
        env={**fake_path(folder / "bin", launcher), **(variables or {})},
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    logs = "".join(path.read_text() for path in (folder / "plan").glob("launch-*.log"))
    jobs = [json.loads(line) for line in (folder / "bin/spool/jobs.jsonl").read_text().splitlines()]
    assert [job["status"] for job in jobs] == [0] * len(jobs), logs
    steps = [point.step for point in read_points(folder / "plan" / "outcome.jsonl")]
    assert steps == list(range(8, steps[-1] + 1, 8))
    return read_launched(folder / "plan" / "outcome.jsonl"), jobs


@pytest.mark.slow
def test_slurm_and_torchrun_through_a_killed_rank_and_the_end_of_a_slot(tmp_path):
    run, jobs = submit(
        tmp_path,
        "slurm",
        backend="torch",
        ranks=2,
        deaths=1,
        dies_at=12,
        delay=0.05,
        variables={"FAKE_NOTICE_POINTS": "1"},
    )
    assert (run.outcome.state, run.restarts, run.workers, run.nodes) == ("reached", 2, 4, 2)
    assert [job["options"].get("--dependency") for job in jobs] == [None, "afterany:1"]


@pytest.mark.slow
@pytest.mark.parametrize("launcher", [name for name in SUBMISSIONS if name != "slurm"])
def test_other_schedulers_train_to_the_target(tmp_path, launcher):
    backend = SCHEDULERS[launcher].backend
    if backend == "horovod" and not has_horovod():
        pytest.skip("Horovod is not installed")
    run, jobs = submit(tmp_path, launcher, backend=backend)
    assert (run.outcome.state, run.restarts, run.workers, run.nodes) == ("reached", 0, 2, 2)
    assert len(jobs) == 1
