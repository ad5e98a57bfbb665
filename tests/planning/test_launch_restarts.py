"""Plans that are really launched, with several processes: to the target, even if workers are killed."""

import dataclasses
import json
import random

import pytest
from click.testing import CliRunner

from hpo.cli.main import main
from hpo.errors import LaunchError, PlanError
from hpo.planning.launchers.launch import run_plan_locally, throughput, write_plan
from hpo.planning.launchers.local import has_horovod
from hpo.runs.launches import launch_here
from storage.records import NewPlan, NewStudy, PlanKind
from storage.store import Store
from tests.planning.launch_samples import small_job, small_plan
from trainers.report import ConvergencePoint, read_points, read_starts

pytestmark = pytest.mark.processes

horovod = pytest.param(
    "horovod", marks=pytest.mark.skipif(not has_horovod(), reason="Horovod is not installed")
)


def local_plan(folder, **data):
    return small_plan(
        small_job(folder, **data), machine="local", launcher="local", nodes=1, ranks=4
    )


@pytest.fixture
def storage(tmp_path):
    """A storage that holds the plan of `kept_plan`."""
    url = f"sqlite:///{tmp_path}/hpo.db"
    with Store.open(url) as store:
        study = store.create_study(
            NewStudy(
                name="small",
                workload="mortal_workload:Mortal",
                metric="accuracy",
                threshold=0.95,
                higher_is_better=True,
                spec="name: small",
            )
        )
        plan = local_plan(tmp_path)
        store.add_plan(
            NewPlan(
                study_id=study.id,
                kind=PlanKind.NO_SCALING,
                machine="local",
                nodes=1,
                workers=4,
                global_batch_size=32,
                local_batch_size=8,
                settings=plan.job.settings.to_dict(),
                directory=str(tmp_path),
            )
        )
    return url


def launch(storage, *arguments):
    return CliRunner().invoke(main, ["launch", *arguments, "--storage", storage])


@pytest.mark.slow
@pytest.mark.parametrize("backend", [horovod, "torch"])
def test_a_run_whose_worker_is_killed_goes_on_and_reaches_its_target(tmp_path, storage, backend):
    dies_at = random.Random(backend).randrange(
        9, 30
    )  # after the first evaluation, before the target
    plan = dataclasses.replace(local_plan(tmp_path, deaths=1, dies_at=dies_at), id=1)
    write_plan(plan, tmp_path / "plan", backend=backend)
    done = launch(
        storage,
        str(tmp_path / "plan"),
        "--backend",
        backend,
        "--workers",
        "4",
        "--folder",
        str(tmp_path / "runs"),
    )
    assert done.exit_code == 0, done.output
    assert "majority class 0.55" in done.stdout
    report = tmp_path / "runs" / "seed-1" / "outcome.jsonl"
    steps = [point.step for point in read_points(report)]
    assert steps == list(range(8, steps[-1] + 1, 8))  # no point twice, none left out
    first, second = (start.step for start in read_starts(report))
    evaluated = (dies_at - 1) // 8 * 8
    assert first == 0 and second in (
        evaluated,
        evaluated - 8,
    )  # it may die while worker 0 still saves
    with Store.open(storage) as store:
        (outcome,) = store.outcomes(1)
        (measured,) = store.throughputs(machine="local")
    assert (outcome.state, outcome.restarts, outcome.nodes, outcome.workers) == ("reached", 1, 1, 4)
    assert (measured.accelerators, measured.global_batch_size, measured.precision) == (
        4,
        32,
        "fp32",
    )
    assert measured.samples_per_second == outcome.samples_per_second > 0


@pytest.mark.slow
def test_the_restarts_are_bounded(tmp_path):
    heard, points = [], []
    with pytest.raises(LaunchError, match="no outcome after 1 restart; its log is"):
        run_plan_locally(
            # dies seven batches after the evaluation, by when its checkpoint is saved
            dataclasses.replace(local_plan(tmp_path, deaths=9, dies_at=15, delay=0.1), workers=2),
            tmp_path,
            backend="torch",
            seed=1,
            on_point=points.append,
            max_restarts=1,
            on_restart=heard.append,
        )
    assert len(heard) == 1 and "restart 1 of 1" in heard[0]
    assert [point.step for point in points] == [
        8,
        16,
    ]  # the second start went on from the first's checkpoint


@pytest.mark.slow
def test_what_fails_before_it_begins_is_not_restarted(tmp_path):
    heard = []
    plan = dataclasses.replace(local_plan(tmp_path), workers=2)
    plan = dataclasses.replace(
        plan, job=dataclasses.replace(plan.job, workload="mortal_workload:Missing")
    )
    with pytest.raises(LaunchError, match="mortal_workload has no Missing"):
        run_plan_locally(
            plan, tmp_path, backend="torch", seed=1, on_point=heard.append, on_restart=heard.append
        )
    assert heard == []


@pytest.mark.parametrize(
    ("status", "starts"), [(-9, 3), (137, 3), (1, 1), (143, 1), (139, 1), (-11, 1)]
)
def test_what_is_killed_before_it_begins_is_restarted(tmp_path, monkeypatch, status, starts):
    """SIGKILL comes from without; any other end before the training would come again."""
    attempts, heard = [], []

    def attempt(_command, log, *_):
        log.touch()
        attempts.append(log)
        return status

    monkeypatch.setattr("hpo.planning.launchers.launch._attempt", attempt)
    with pytest.raises(LaunchError, match=f"exit code {status} and no outcome"):
        run_plan_locally(
            local_plan(tmp_path),
            tmp_path,
            backend="torch",
            seed=1,
            on_point=print,
            max_restarts=2,
            on_restart=heard.append,
        )
    assert (len(attempts), len(heard)) == (starts, starts - 1)


def test_a_plan_of_another_machine_is_handed_over_unless_workers_are_named(tmp_path):
    with pytest.raises(PlanError, match="plan 7 is for summit and its slurm"):
        launch_here(small_plan(small_job(tmp_path)), directory=tmp_path)


def test_throughput_is_the_median_between_evaluations():
    seconds = [10.0, 12.0, 13.0, 15.0]
    points = [
        ConvergencePoint(
            step=step,
            samples=1000 * step,
            epochs=step,
            seconds=at,
            train_loss=0,
            loss=0,
            metric=0,
            learning_rate=0.1,
            global_batch_size=1000,
        )
        for step, at in enumerate(seconds, 1)
    ]
    assert throughput(points) == 500.0
    assert throughput(points[:1]) == 100.0
    assert throughput([points[0], dataclasses.replace(points[1], global_batch_size=2000)]) is None
    assert throughput([]) is None


def test_record_takes_nodes_and_speed_from_the_report(tmp_path, storage):
    write_plan(dataclasses.replace(local_plan(tmp_path), id=1), tmp_path / "plan", backend="torch")
    lines = [
        {"started": {"step": 0, "workers": 12, "nodes": 3, "at": "2030-01-01T00:00:00+00:00"}},
        *(
            {
                "step": step,
                "samples": 32 * step,
                "epochs": step / 8,
                "seconds": step / 4,
                "train_loss": 1.0,
                "loss": 1.0,
                "metric": 0.5,
                "learning_rate": 0.1,
                "global_batch_size": 32,
            }
            for step in (8, 16)
        ),
        {"started": {"step": 8, "workers": 8, "nodes": 2, "at": "2030-01-01T01:00:00+00:00"}},
        {
            "outcome": {
                "state": "censored",
                "epochs_to_target": None,
                "epochs": 2.0,
                "steps": 16,
                "seconds": 4.0,
                "best_metric": 0.5,
                "final_metric": 0.5,
                "reason": "",
            }
        },
    ]
    report = tmp_path / "outcome.jsonl"
    report.write_text("".join(json.dumps(line) + "\n" for line in lines))
    done = CliRunner().invoke(
        main, ["record", str(tmp_path / "plan"), str(report), "--storage", storage]
    )
    assert (
        done.stdout
        == "recorded: censored after 2.00 epochs on 8 workers of 2 nodes, 128 samples/s, 1 restart\n"
    )
    with Store.open(storage) as store:
        (measured,) = store.throughputs(workload="mortal_workload:Mortal")
    assert (measured.nodes, measured.accelerators, measured.samples_per_second) == (2, 8, 128.0)
