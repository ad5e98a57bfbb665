"""Sweeps on schedulers: a script that continues from slot to slot, and arrays of agents, with the strict fakes."""

import json
import shutil
import stat
import subprocess
import sys

import pytest
from click.testing import CliRunner

import hpo
from benchmarks.agents import Server
from hpo.cli.main import main
from hpo.planning.schedulers import SCHEDULERS
from hpo.service.auth import create_token
from storage.records import StudyState
from storage.store import Store
from tests.planning.launch_samples import ROOT, SUBMISSIONS, fake_path

pytestmark = pytest.mark.processes

STUDY = """\
name: paced
workload: paced_workload:Paced
data: {{modes: 20, noise_scale: 0.5, train_samples: 512, seconds: {seconds}}}
target: {{metric: loss, at_most: 0.05}}
ladder: [16, 32]
search:
  learning_rate: {{log_uniform: [0.02, 1], role: scaled}}
  weight_decay: 0
budget: {{trials: {trials}, epochs_per_trial: 10, evaluations_per_epoch: 1}}
"""

SWEEPS = [name for name, its in SCHEDULERS.items() if its.sweeps]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    shutil.copy(ROOT / "benchmarks" / "paced_workload.py", tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(folder, on, *more, trials=6, seconds=0.0):
    """`hpo run --on SCHEDULER --no-submit`; the script's text."""
    (folder / "study.yaml").write_text(STUDY.format(trials=trials, seconds=seconds))
    arguments = ["run", "study.yaml", "--on", on, "--no-submit", *more]
    done = CliRunner().invoke(main, [*map(str, arguments)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return (folder / f"paced-{on}" / "launch.sh").read_text()


def submit(folder, on, command=(), **variables):
    """Hand the written script to the fake of its scheduler; the jobs that came of it, and their logs."""
    programs = {
        "ray": f'exec "{sys.executable}" -m tests.planning.fakes.symmetric_ray "$@"',
        "hpo": f'exec "{sys.executable}" -m hpo.cli.main "$@"',
    }
    environment = fake_path(folder / "bin", on, **{**programs, **variables.pop("programs", {})})
    done = subprocess.run(
        command or SUBMISSIONS[on],
        cwd=folder / f"paced-{on}",
        env={**environment, "HPO_LEASE_SECONDS": "0", **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    lines = (folder / "bin" / "spool" / "jobs.jsonl").read_text().splitlines()
    logs = sorted((folder / f"paced-{on}").glob("launch-*.log"))
    return [json.loads(line) for line in lines], "".join(path.read_text() for path in logs)


@pytest.mark.parametrize("on", ["slurm", pytest.param("lsf", marks=pytest.mark.slow)])
def test_a_sweep_goes_on_from_slot_to_slot_until_it_has_ended(folder, on):
    write(folder, on, "--nodes", "2", trials=10)
    bounded = f'exec "{sys.executable}" -m tests.planning.fakes.bounded_run "$@"'
    jobs, log = submit(folder, on, programs={"hpo": bounded})
    assert [job["status"] for job in jobs] == [0, 0, 0], log
    assert "the sweep has ended" in log and "slot 3 of 20: 2 of 2 hosts" in log
    result = hpo.read_study("paced", f"sqlite:///{folder}/hpo.db")
    assert result.study.state is StudyState.FINISHED and len(result.trials) == 10
    assert all(trial.state.finished for trial in result.trials)


def test_a_run_stops_after_its_time_and_says_that_it_goes_on(folder):
    (folder / "study.yaml").write_text(STUDY.format(trials=6, seconds=1.0))
    arguments = ["run", "study.yaml", "--storage", f"sqlite:///{folder}/hpo.db"]
    done = CliRunner().invoke(main, [*arguments, "--stop-after", "0.5"])
    assert done.exit_code == 75, done.output
    assert (
        hpo.read_study("paced", f"sqlite:///{folder}/hpo.db").study.state is StudyState.INTERRUPTED
    )


@pytest.mark.parametrize(
    ("status", "jobs_taken", "ends", "on"),
    [
        # whether another job is handed in is the same for all schedulers
        pytest.param(*end, on, marks=() if on == "slurm" else pytest.mark.slow)
        for end in (("0", 1, 0), ("75", 2, 75), ("lost", 2, 75), ("1", 1, 1))
        for on in SWEEPS
    ],
)
def test_what_the_script_makes_of_how_the_run_ended(folder, on, status, jobs_taken, ends):
    write(folder, on, "--nodes", "2", "--slots", "2")
    ending = "kill -9 $PPID" if status == "lost" else f"exit {status}"
    said = f'echo "$HPO_STORAGE" "$@" >> {folder}/calls; {ending}'
    jobs, log = submit(folder, on, programs={"hpo": said})
    assert len(jobs) == jobs_taken and jobs[-1]["status"] == ends, log
    calls = (folder / "calls").read_text().splitlines()
    assert len(calls) == jobs_taken
    assert calls[0].startswith(f"sqlite:///{folder}/hpo.db run {folder}/study.yaml --folder")
    seconds = int(calls[0].split("--stop-after ")[1])
    assert 3400 < seconds <= 3480  # an hour less two minutes, and what the script has taken


def test_the_notice_before_the_end_of_a_slot_ends_neither_a_sweep_nor_an_agent(folder):
    """Slurm and LSF signal the script itself, while the run or the agent is giving back its trials."""
    write(folder, "slurm", "--nodes", "2", "--slots", "2")
    up = "pid=$$; while ! grep -q script-[12].sh /proc/$pid/cmdline; do pid=$(awk '{print $4}' /proc/$pid/stat); done"
    jobs, log = submit(folder, "slurm", programs={"hpo": f"set -e; {up}; kill -USR1 $pid; exit 75"})
    assert [job["status"] for job in jobs] == [0, 75], log
    text = write(folder, "slurm", "--array", "2", "--server", "http://h:1", "--token", "t")
    assert "#SBATCH --signal=B:USR1" in text
    shutil.rmtree(folder / "bin")
    jobs, log = submit(folder, "slurm", programs={"hpo": "kill -USR1 $$; exit 0"})
    assert jobs[0]["tasks"] == [0, 0], log


def test_a_password_of_the_database_is_only_in_a_private_file(folder):
    url = "postgresql://ada:secret@db/hpo"
    (folder / "paced-slurm").mkdir()
    (folder / "paced-slurm" / "storage").write_text("what an earlier release left readable")
    assert "secret" not in write(folder, "slurm", "--storage", url)
    written = list((folder / "paced-slurm").iterdir())
    assert {path.name: stat.S_IMODE(path.stat().st_mode) for path in written} == {
        "storage": 0o600,
        "launch.sh": 0o700,
    }
    assert (folder / "paced-slurm" / "storage").read_text() == f"{url}\n"
    write(folder, "lsf")
    assert stat.S_IMODE((folder / "paced-lsf").stat().st_mode) == 0o700


def test_the_header_of_a_study_called_flux_is_no_directive(folder):
    write(folder, "flux")
    study = (folder / "study.yaml").read_text().replace("name: paced", "name: flux")
    (folder / "flux.yaml").write_text(study)
    done = CliRunner().invoke(main, ["run", "flux.yaml", "--on", "flux", "--no-submit"])
    assert done.exit_code == 0, done.output
    script = (folder / "flux-flux" / "launch.sh").read_text()
    assert "# Study flux: a sweep" in script and "\n# flux: a sweep" not in script


def test_the_names_of_account_and_partition_go_with_every_slot(folder):
    write(folder, "slurm", "--nodes", "1", "--slots", "2")
    jobs, log = submit(
        folder, "slurm", programs={"hpo": "exit 75"}, HPO_ACCOUNT="physics", HPO_PARTITION="large"
    )
    assert jobs[1]["options"]["--account"] == "physics", log
    assert jobs[1]["options"]["--dependency"] == "afterany:1"


@pytest.mark.slow
@pytest.mark.parametrize("on", SWEEPS)
def test_an_array_of_agents_trains_a_study_of_a_server(folder, on):
    server = Server(folder)
    with Store.open(f"sqlite:///{folder}/hpo.db") as store:
        secret, _ = create_token(store, owner="ada", scope="submit")
        server.start()
        try:
            text = write(folder, on, "--array", "3", "--server", server.url, "--token", secret)
            with hpo.Client(server.url, secret) as client:
                client.submit("study.yaml", for_agents=True)
            assert secret not in text
            token = folder / f"paced-{on}" / "token"
            assert stat.S_IMODE(token.stat().st_mode) == 0o600
            command = next(line for line in text.splitlines() if "Run it from" in line)
            jobs, log = submit(folder, on, command=["bash", "-c", command.partition("folder: ")[2]])
        finally:
            server.kill()
        assert jobs[0]["tasks"] == [0, 0, 0], log
        study = store.study("paced")
        assert study.state is StudyState.FINISHED and study.owner == "ada"
        assert len(store.trials(study.id)) == 6


@pytest.mark.parametrize("on", SWEEPS)
def test_hpo_submits_an_array_with_its_account(folder, on, monkeypatch):
    """What is handed to the scheduler's own command, as that hears it."""
    monkeypatch.setattr("hpo.client.client.Client.submit", lambda self, spec, for_agents: None)
    environment = fake_path(folder / "bin", on, hpo="exit 0")
    for name in ("PATH", "PYTHONPATH", "FAKE_SPOOL"):
        monkeypatch.setenv(name, environment[name])
    (folder / "study.yaml").write_text(STUDY.format(trials=6, seconds=0))
    server = ["--server", "http://127.0.0.1:1", "--token", "lb_x", "--account", "physics"]
    done = CliRunner().invoke(
        main, ["run", "study.yaml", "--on", on, "--array", "2", "--gpus", "1", *server]
    )
    assert done.exit_code == 0, done.output
    (line,) = (folder / "bin" / "spool" / "jobs.jsonl").read_text().splitlines()
    job = json.loads(line)
    assert job["tasks"] == [0, 0]
    assert "physics" in job["options"].values()


def test_what_cannot_be_submitted(folder):
    (folder / "study.yaml").write_text(STUDY.format(trials=6, seconds=0))
    for arguments, said in (
        (["--array", "3"], "--array needs --on"),
        (["--on", "slurm", "--array", "3"], "no server given"),
        (["--on", "slurm"], "there is no sbatch here"),
        (["--on", "ray"], f"one of {', '.join(SWEEPS)}, but got 'ray'\n"),
    ):
        done = CliRunner().invoke(
            main, ["run", "study.yaml", *arguments], env={"HPO_SERVER": None, "HPO_TOKEN": None}
        )
        assert done.exit_code in (1, 2) and said in done.output, done.output
