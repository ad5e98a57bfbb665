"""Launch scripts of a program, run through fakes of the schedulers on two hosts that are both this machine."""

import dataclasses
import json
import subprocess
import sys
import textwrap

import pytest

from hpo.errors import LaunchError, PlanError
from hpo.planning.launchers import launch_script_of_plan
from hpo.planning.launchers.launch import (
    choose_launch_backend,
    launch_backend_of_plan,
    read_launched,
    write_plan,
)
from tests.planning.launch_samples import SUBMISSIONS, fake_path, small_job, small_plan
from trainers.report import read_points

pytestmark = pytest.mark.processes

PROGRAM = """
import json, pathlib, sys, time
import hpo
node, nodes, workers, batch = map(int, sys.argv[1:5])
trial = hpo.trial()
with open("seen.jsonl", "a") as seen:
    seen.write(json.dumps([node, nodes, workers, batch, trial.settings["learning_rate"]]) + "\\n")
saved = pathlib.Path(trial.checkpoint_folder, "epoch")
first = int(saved.read_text()) if saved.exists() else 0
if node:
    time.sleep(600)
for epoch in range(first + 1, 31):
    time.sleep(0.1)
    hpo.report(epochs=epoch, accuracy=epoch / 20)
    saved.write_text(str(epoch))
    if epoch == 5 and first == 0 and len(sys.argv) > 5:
        raise SystemExit(9)
    if hpo.should_stop():
        break
"""


def plan_of(folder, *words, nodes=2, **changes):
    (folder / "train.py").write_text(textwrap.dedent(PROGRAM))
    command = [sys.executable, "train.py", *words]
    data = {"command": command, "train_samples": 256, "report": {"metrics": {"accuracy": True}}}
    job = dataclasses.replace(
        small_job(folder), workload="program", data=data, search_path=str(folder)
    )
    return small_plan(job, machine="superpod", nodes=nodes, **changes)


EVERY = ["{node_rank}", "{nodes}", "{workers}", "{local_batch_size}"]


def submit(folder, plan, **variables):
    write_plan(plan, folder / "plan")
    done = subprocess.run(
        SUBMISSIONS[plan.launcher],
        cwd=folder / "plan",
        capture_output=True,
        text=True,
        check=False,
        env={**fake_path(folder / "bin", plan.launcher), **variables},
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    logs = "".join(path.read_text() for path in (folder / "plan").glob("launch-*.log"))
    jobs = [json.loads(line) for line in (folder / "bin/spool/jobs.jsonl").read_text().splitlines()]
    assert [job["status"] for job in jobs] == [0] * len(jobs), logs
    epochs = [point.epochs for point in read_points(folder / "plan" / "outcome.jsonl")]
    assert epochs == list(range(1, 20)), logs
    seen = [json.loads(line) for line in (folder / "seen.jsonl").read_text().splitlines()]
    return read_launched(folder / "plan" / "outcome.jsonl"), jobs, seen


@pytest.mark.slow
def test_a_program_runs_on_every_node_through_a_crash_and_the_end_of_a_slot(tmp_path):
    plan = plan_of(tmp_path, *EVERY, "crash", launcher="slurm", ranks=2)
    run, jobs, seen = submit(tmp_path, plan, FAKE_NOTICE_POINTS="10")
    assert (run.outcome.state, run.outcome.epochs_to_target) == ("reached", 19.0)
    assert (run.restarts, run.workers, run.nodes) == (2, 4, 2)
    assert len(jobs) == 2  # the slot ended, and the next one went on from the program's checkpoint
    assert {tuple(each[:4]) for each in seen} == {(0, 2, 4, 8), (1, 2, 4, 8)}


@pytest.mark.slow
@pytest.mark.parametrize("launcher", [name for name in SUBMISSIONS if name != "slurm"])
def test_other_schedulers_run_it(tmp_path, launcher):
    plan = plan_of(tmp_path, *EVERY, launcher=launcher, ranks=1)
    run, _, seen = submit(tmp_path, plan)
    assert (run.outcome.state, run.restarts, run.workers, run.nodes) == ("reached", 0, 2, 2)
    assert sorted(each[0] for each in seen) == [0, 1]


def test_a_program_that_does_not_read_its_node_is_started_once(tmp_path):
    once = plan_of(tmp_path, "0", "{nodes}", "{workers}", "{local_batch_size}")
    _, text = launch_script_of_plan(once, None, backend=launch_backend_of_plan(once, None))
    assert '\n  "${inside[@]}" python -m trainers job.json' in text
    every = plan_of(tmp_path, *EVERY)
    _, text = launch_script_of_plan(every, None, backend=launch_backend_of_plan(every, None))
    assert '\n  start 1 "${inside[@]}" python -m trainers job.json' in text
    assert "torchrun" not in text and "horovodrun" not in text
    checked = subprocess.run(["bash", "-n"], input=text, text=True, check=False)
    assert checked.returncode == 0


def test_a_program_starts_its_own_workers(tmp_path):
    plan = plan_of(tmp_path, *EVERY)
    with pytest.raises(
        LaunchError, match="a program starts its own workers, so a backend cannot be chosen"
    ):
        choose_launch_backend("torch", workload="program")
    with pytest.raises(PlanError, match="for a program, use another launcher"):
        launch_script_of_plan(dataclasses.replace(plan, launcher="ray"), None, backend="program")
