"""The workflow examples run unchanged, against a server whose studies are already swept."""

import importlib.util
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from api_server import served
from swept_ladder import write_trials

import hpo
from storage.errors import NotFound
from storage.records import StudyState

pytestmark = [pytest.mark.fit, pytest.mark.processes]

EXAMPLES = Path(__file__).parents[2] / "examples" / "workflows"


@pytest.fixture
def server(tmp_path):
    with served(tmp_path) as api:
        yield api


def sweep_when_submitted(api, name):
    """What a worker would leave, as soon as the study is there: 2 (1 + batch / 64) epochs at the best learning rate."""
    store = api.store
    for _ in range(600):
        try:
            study = store.study(name)
            break
        except NotFound:
            time.sleep(0.05)
    write_trials(store, study.id, train_samples=512, best_metric=0.05)
    store.add_event(study.id, "noted", "swept")
    store.set_study_state(study.id, StudyState.FINISHED)


def run(server, folder, program, *arguments, names=("workflow_bowl",)):
    sweepers = [
        threading.Thread(target=sweep_when_submitted, args=(server, name)) for name in names
    ]
    for sweeper in sweepers:
        sweeper.start()
    environment = {
        **os.environ,
        "HPO_SERVER": str(server.client.base_url),
        "HPO_TOKEN": server.token("ada"),
        "PYTHONPATH": str(EXAMPLES.parents[1]),
        "PREFECT_HOME": str(folder / "prefect"),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    }
    done = subprocess.run(
        [sys.executable, EXAMPLES / program, EXAMPLES / "bowl.yaml", *map(str, arguments)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    for sweeper in sweepers:
        sweeper.join()
    assert done.returncode == 0, done.stderr
    return done


def test_the_study_of_the_examples_is_one():
    spec = hpo.load_study(EXAMPLES / "bowl.yaml")
    assert spec.workload == "noisy_quadratic"


@pytest.mark.slow
def test_the_plain_program(server, tmp_path):
    done = run(server, tmp_path, "plain.py", "--at", 128, "--at", 256, "--plan", "plan")
    lines = done.stdout.splitlines()
    assert [line.split(":")[0] for line in lines] == ["batch 128", "batch 256", "plan 1"]
    assert "epochs to target (" in lines[0]
    assert "noted: swept" in done.stderr
    assert sorted(path.name for path in (tmp_path / "plan").iterdir()) == [
        "job.json",
        "launch.sh",
        "settings.json",
    ]


def test_the_plain_program_says_what_is_wrong(server, tmp_path):
    environment = {
        **os.environ,
        "HPO_SERVER": str(server.client.base_url),
        "HPO_TOKEN": "lb_" + "x" * 43,
        "PYTHONPATH": str(EXAMPLES.parents[1]),
    }
    done = subprocess.run(
        [sys.executable, EXAMPLES / "plain.py", EXAMPLES / "bowl.yaml", "--at", "128"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: this token is unknown")


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("prefect") is None, reason="Prefect is not installed")
def test_the_prefect_flow(server, tmp_path):
    lines = run(server, tmp_path, "prefect_flow.py", 128, 256).stdout.splitlines()
    assert [line.split(":")[0] for line in lines if line.startswith("batch")] == [
        "batch 128",
        "batch 256",
    ]
    assert (tmp_path / "plan" / "launch.sh").exists()


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("parsl") is None, reason="Parsl is not installed")
def test_the_parsl_app(server, tmp_path):
    names = ["workflow_bowl/sgd", "workflow_bowl/lars"]
    lines = run(
        server, tmp_path, "parsl_app.py", 128, "sgd", "lars", names=names
    ).stdout.splitlines()
    assert [line.split(":")[0] for line in lines if ": " in line] == ["sgd", "lars"]


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("submitit") is None,
    reason="submitit is not installed: pip install 'largebatch[frameworks]'",
)
def test_submitit_jobs_train_a_study_as_agents(server, tmp_path):
    """Two jobs of submitit's own LocalExecutor, each in processes of its own, train all trials between them."""
    study = (EXAMPLES / "bowl.yaml").read_text()
    (tmp_path / "bowl.yaml").write_text(study)
    done = subprocess.run(
        [
            *(sys.executable, EXAMPLES / "submitit_agents.py", tmp_path / "bowl.yaml"),
            *("--jobs", "2", "--cluster", "local", "--minutes", "10", "--at", "512"),
        ],
        cwd=tmp_path,
        env={
            **os.environ,
            "HPO_SERVER": str(server.client.base_url),
            "HPO_TOKEN": server.token("ada"),
            "PYTHONPATH": str(EXAMPLES.parents[1]),
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("batch 512: ") and "epochs to target (" in done.stdout
    assert done.stderr.count("has ended") == 2
    kept = server.store.study(hpo.load_study(EXAMPLES / "bowl.yaml").name)
    assert kept.state is StudyState.FINISHED and kept.for_agents
    spec = hpo.load_study(EXAMPLES / "bowl.yaml")
    trials = server.store.trials(kept.id)
    assert 2 <= len(trials) <= spec.budget.trials  # the search ends by itself
    assert all(trial.state.finished for trial in trials)
    assert len(list((tmp_path / "submitit").glob("*_result.pkl"))) == 2
