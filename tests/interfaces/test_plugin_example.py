"""The package of examples/plugins, installed by pip: in a study from file to plan, and refused by a service."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.dashboard_browser import NoBrowserError, browser, serving

ROOT = Path(__file__).parent.parent.parent
PACKAGE = ROOT / "examples" / "plugins"
pytestmark = [pytest.mark.slow, pytest.mark.processes]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where pip installed it; nothing else of this environment changes."""
    folder = tmp_path_factory.mktemp("plugins")
    shutil.copytree(PACKAGE, folder / "source")
    subprocess.run(
        [
            *(
                sys.executable,
                "-m",
                "pip",
                "install",
                "--quiet",
                "--no-deps",
                "--no-build-isolation",
            ),
            *("--no-index", "--target", str(folder / "site"), str(folder / "source")),
        ],
        check=True,
        capture_output=True,
        timeout=120,
    )
    return folder / "site"


def hpo(
    site: Path, folder: Path, *arguments: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": f"{site}{os.pathsep}{ROOT}", **variables}
    return subprocess.run(
        [sys.executable, "-m", "hpo.cli.main", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_a_study_runs_is_forecast_and_planned_with_it(site: Path, tmp_path: Path) -> None:
    study = (PACKAGE / "signum.yaml").read_text()
    (tmp_path / "signum.yaml").write_text(
        study.replace("trials: 9", "trials: 6").replace("at_least: 0.9", "at_least: 0.5")
    )
    done = hpo(site, tmp_path, "run", "signum.yaml", "--json")
    assert done.returncode == 0, done.stderr
    trials = json.loads(hpo(site, tmp_path, "trials", "signum", "--format", "json").stdout)
    used = [each.get("settings", each) for each in trials]
    assert {each["optimizer"] for each in used} == {"signum"}
    assert len({each["signum_momentum"] for each in used}) >= 2
    assert {each["restart_epochs"] for each in used} == {4}
    forecast = hpo(site, tmp_path, "forecast", "signum", "--at", "512", "--json")
    assert forecast.returncode == 0, forecast.stderr
    settings = json.loads(forecast.stdout)
    found = settings[0] if isinstance(settings, list) else settings
    assert 0.7 <= found["settings"]["signum_momentum"]["median"] < 1
    plan = hpo(site, tmp_path, "plan", "signum", "--machine", "local", "--output", "plan")
    assert plan.returncode == 0, plan.stderr
    other = hpo(
        site,
        tmp_path,
        "plan",
        "signum",
        "--machine",
        "local",
        "--launcher",
        "torque",
        "--output",
        "torque",
    )
    assert other.returncode == 0, other.stderr
    (script,) = (tmp_path / "torque").rglob("launch.sh")
    assert "#PBS -l nodes=1:ppn=" in script.read_text()
    assert "torque" in hpo(site, tmp_path, "plan", "--help").stdout
    told = hpo(site, tmp_path, "launch", str(script.parent), "--account", "physics")
    assert "`qsub -A physics -v HPO_ACCOUNT=physics launch.sh`" in told.stderr, told.stderr
    (job,) = (tmp_path / "plan").rglob("job*.json")
    planned = json.loads(job.read_text())["settings"]
    assert planned["optimizer"] == "signum" and planned["own"]["restart_epochs"] == 4
    said = hpo(site, tmp_path, "init", "--defaults", "--output", "new.yaml")
    assert said.returncode == 0 and "signum" in (tmp_path / "new.yaml").read_text()


def test_its_workload_is_trained_and_its_runs_are_imported(site: Path, tmp_path: Path) -> None:
    said = hpo(
        site,
        tmp_path,
        *("init", "--defaults", "--workload", "rings", "--batches", "16-64,128"),
        *("--output", "rings.yaml"),
    )
    assert said.returncode == 0, said.stderr
    study = (tmp_path / "rings.yaml").read_text()
    assert "workload: rings" in study
    (tmp_path / "rings.yaml").write_text(
        study.replace("trials: auto", "trials: 3")
        .replace("epochs_per_trial: 20", "epochs_per_trial: 2")
        .replace("at_least: 0.98", "at_least: 0.7")
    )
    run = {"learning_rate": 0.1, "warmup_epochs": 0, "global_batch_size": 16, "seed": 7}
    (tmp_path / "runs.jsonl").write_text(json.dumps({**run, "accuracy": [0.5, 0.9]}))
    imported = hpo(
        site,
        tmp_path,
        *("import", "jsonl", "runs.jsonl", "--study", "rings.yaml", "--axis", "epochs"),
        *("--train-samples", "512", "--json"),
    )
    assert imported.returncode == 0, imported.stderr
    assert json.loads(imported.stdout)["states"] == {"reached": 1}
    done = hpo(site, tmp_path, "run", "rings.yaml", "--json")
    assert done.returncode == 0, done.stderr
    trials = json.loads(hpo(site, tmp_path, "trials", "rings", "--format", "json").stdout)
    assert len(trials) == 4 and trials[0]["seed"] == 7


def test_the_doctor_lists_it(site: Path, tmp_path: Path) -> None:
    found = hpo(site, tmp_path, "doctor", "--quick", "--json")
    lines = json.loads(found.stdout)
    plugins = [each for each in lines if each["name"] == "plug-in"]
    assert [each["level"] for each in plugins] == ["ok"] * 6, plugins


def test_its_scheduler_which_runs_no_sweeps_is_refused_for_one(site: Path, tmp_path: Path) -> None:
    (tmp_path / "signum.yaml").write_text((PACKAGE / "signum.yaml").read_text())
    done = hpo(site, tmp_path, "run", "signum.yaml", "--on", "torque", "--no-submit")
    assert done.returncode == 2, done.stderr
    assert "must be one of slurm, lsf, pbs, flux, but got 'torque'" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "signum-torque").exists()


def test_where_its_package_is_not_taken_it_is_refused(site: Path, tmp_path: Path) -> None:
    (tmp_path / "signum.yaml").write_text((PACKAGE / "signum.yaml").read_text())
    for taken, code in (("other", 2), ("other,largebatch_examples", 0)):
        done = hpo(site, tmp_path, "study", "check", "signum.yaml", HPO_PLUGINS=taken)
        assert done.returncode == code, done.stderr + done.stdout
        refused = (
            "package largebatch-examples 1.0 is not among the plug-ins that this service accepts"
        )
        assert (refused in done.stderr) == (code == 2), done.stderr
        assert "Traceback" not in done.stderr


def test_it_passes_the_contract_tests_that_authors_are_given(site: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": f"{site}{os.pathsep}{ROOT}"}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(PACKAGE / "tests")],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.browser
def test_a_live_service_that_takes_it_runs_plans_and_shows_it_and_another_refuses_it(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`hpo serve` with its worker, asked over its socket, and its pages in a browser."""
    monkeypatch.setenv("PYTHONPATH", f"{site}{os.pathsep}{ROOT}")
    study = (PACKAGE / "signum.yaml").read_text()
    study = study.replace("trials: 9", "trials: 6").replace("at_least: 0.9", "at_least: 0.5")
    monkeypatch.setenv("HPO_SERVE_PLUGINS", "other-plugins")
    (tmp_path / "closed").mkdir()
    with serving(tmp_path / "closed", worker=False) as closed, closed.client() as asked:
        refused = asked.post("/api/v1/studies", json={"spec": study})
        assert refused.status_code == 422
        for line in (
            "package largebatch-examples 1.0 is not among the plug-ins that this service accepts",
            "the operator can add largebatch-examples to plugins",
        ):
            assert line in refused.text
        assert asked.get("/api/v1/studies").json()["studies"] == []
    monkeypatch.setenv("HPO_SERVE_PLUGINS", "largebatch-examples")
    (tmp_path / "open").mkdir()
    with serving(tmp_path / "open") as server, server.client() as asked:
        answer = asked.post("/api/v1/studies", json={"spec": study})
        assert answer.status_code == 201, answer.text
        server.wait("signum", "finished")
        trials = asked.get("/api/v1/studies/signum/trials").json()["trials"]
        assert len(trials) == 6
        assert {each["settings"]["optimizer"] for each in trials} == {"signum"}
        assert {each["settings"]["decay"] for each in trials} == {"restarts"}
        made = asked.post("/api/v1/studies/signum/plans", json={"launcher": "torque"})
        assert made.status_code == 201, made.text
        number = made.json()["plan"]["id"]
        script = asked.get(f"/api/v1/plans/{number}/script").text
        assert "#PBS -l nodes=1:ppn=" in script and "restart_epochs" not in script
        planned = asked.get(f"/api/v1/plans/{number}/job").json()["settings"]
        assert (planned["optimizer"], planned["own"]["restart_epochs"]) == ("signum", 4)
        unknown = asked.post("/api/v1/studies/signum/plans", json={"launcher": "torqe"})
        assert unknown.status_code == 422 and "did you mean 'torque'?" in unknown.text
        try:
            with browser() as chromium:
                page = chromium.new_page()
                page.goto(server.link)
                page.goto(f"{server.address}/studies/signum/trials/0")
                page.get_by_text("signum_momentum").first.wait_for(state="attached")
                page.locator("details").evaluate_all("all => all.forEach(each => each.open = true)")
                rows = page.locator("tr").all_inner_texts()
                told = {row.split("\t")[0].strip(): row.split("\t")[-1].strip() for row in rows}
                assert told["optimizer"] == "signum" and told["decay"] == "restarts"
        except NoBrowserError as error:
            pytest.skip(str(error))
