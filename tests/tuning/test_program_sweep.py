"""A sweep over a program: some of its trainings fail, in every way, and the sweep continues."""

import json
import sys

import pytest
from click.testing import CliRunner

import hpo
from hpo.cli.main import main
from storage.records import TrialState

pytestmark = [pytest.mark.slow, pytest.mark.fit, pytest.mark.processes]

PROGRAM = """\
import math, sys, time
import hpo
rate, batch, fault = float(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
speed = 1 / (1 + math.log(rate / (0.02 * batch ** 0.5)) ** 2)
print("training with", rate, flush=True)
if fault == "exits":
    raise SystemExit("no such data set")
if fault == "hangs":
    time.sleep(600)
if fault == "nan":
    hpo.report(epochs=1, top1=0.1, train_loss=math.nan)
for epoch in range(1, 31):
    hpo.report(epochs=0.5 if fault == "back" and epoch > 1 else epoch, top1=1 - math.exp(-epoch * speed))
    if hpo.should_stop():
        break
"""
STUDY = """\
name: programs
workload: program
program:
  command: ["{python}", train.py, "{{learning_rate}}", "{{global_batch_size}}", "{{fault}}", --seed, "{{seed}}"]
  train_samples: 640
  report: {{metrics: {{top1: true}}, timeout_seconds: 4}}
  stop_seconds: 1
target: {{metric: top1, at_least: 0.95}}
ladder: [16, 32]
full_scale: {{global_batch_size: 64, machine: local, workers: 2}}
search:
  learning_rate: {{log_uniform: [0.01, 1.0], role: scaled}}
  fault: {{choice: [none, exits, hangs, nan, back], role: shared}}
budget: {{trials: 20, epochs_per_trial: 30, race: 0}}
sampler: random
"""


@pytest.fixture(scope="module")
def swept(one_ray, tmp_path_factory):
    folder = tmp_path_factory.mktemp("program")
    (folder / "train.py").write_text(PROGRAM)
    (folder / "study.yaml").write_text(STUDY.format(python=sys.executable))
    storage = f"sqlite:///{folder}/hpo.db"
    result = hpo.run_study(hpo.load_study(folder / "study.yaml"), storage, folder=folder / ".hpo")
    return folder, storage, result


def test_faulty_trainings_are_told_and_the_others_make_the_forecast(swept):
    _, _, result = swept
    ends = {}
    for trial in result.trials:
        ends.setdefault(trial.settings["fault"], []).append((trial.state, trial.reason))
    assert set(ends) == {"none", "exits", "hangs", "nan", "back"}
    for fault, state, words in (
        ("exits", TrialState.FAILED, "exit code 1 before its first report"),
        ("hangs", TrialState.FAILED, "it has reported nothing for 4 s"),
        ("nan", TrialState.DIVERGED, "it reported train_loss nan after 1 epochs"),
        ("back", TrialState.FAILED, "it reported 0.5 epochs after 1"),
    ):
        for found, reason in ends[fault]:
            assert found is state and words in reason, reason
    assert all("no such data set" in reason for _, reason in ends["exits"])
    assert any(state is TrialState.REACHED for state, _ in ends["none"])
    assert result.complete and len(result.trials) == 20
    assert result.forecast is not None
    assert "learning_rate" in result.forecast.numbers.settings
    assert result.forecast.settings.own["fault"] == "none"


def test_what_programs_printed_is_kept_and_shown(swept):
    folder, storage, result = swept
    trial = next(trial for trial in result.trials if trial.settings["fault"] == "exits")
    shown = CliRunner().invoke(
        main,
        ["trials", "programs", "--storage", storage, "--folder", str(folder / ".hpo"), "--log", str(trial.number)],
    )  # fmt: skip
    assert shown.exit_code == 0, shown.output
    assert "training with" in shown.output and "no such data set" in shown.output
    log = folder / ".hpo" / "trials" / str(trial.study_id) / str(trial.number) / "log.txt"
    printed = log.read_bytes()
    log.write_bytes(b"\x1b]0;owned\x07\x1b[2J1 %\r2 %\r\nbel\x07 caf\xc3\xa9 \xff\tend\n")
    escaped = CliRunner().invoke(
        main,
        ["trials", "programs", "--storage", storage, "--folder", str(folder / ".hpo"), "--log", str(trial.number)],
    )  # fmt: skip
    log.write_bytes(printed)
    assert escaped.stdout == "\\x1b]0;owned\\x07\\x1b[2J1 %\n2 %\nbel\\x07 café \ufffd\tend\n"
    log.rename(folder / "kept.txt")
    quiet = CliRunner().invoke(
        main,
        ["trials", "programs", "--storage", storage, "--folder", str(folder / ".hpo"), "--log", str(trial.number)],
    )  # fmt: skip
    (folder / "kept.txt").rename(log)
    assert quiet.exit_code == 0 and quiet.stdout == ""
    assert "has printed nothing" in quiet.stderr
    none = CliRunner().invoke(
        main,
        ["trials", "programs", "--storage", storage, "--folder", str(folder / "x"), "--log", "0"],
    )
    assert none.exit_code == 2 and "there is no log of trial 0" in none.output
    assert not list((folder / ".hpo").glob("trials/*/*/checkpoint"))


def test_own_settings_are_shown_filtered_and_exported(swept, tmp_path):
    _, storage, _ = swept
    for form in ("json", "csv", "table"):
        shown = CliRunner().invoke(
            main, ["trials", "programs", "--storage", storage, "--format", form]
        )
        assert shown.exit_code == 0 and "fault" in shown.output, shown.output
        if form == "json":
            assert {each["fault"] for each in json.loads(shown.output)} >= {"exits", "hangs"}
    pyarrow = pytest.importorskip("pyarrow.parquet")
    exported = CliRunner().invoke(
        main, ["export", "parquet", "programs", "--storage", storage, "--to", str(tmp_path)]
    )
    assert exported.exit_code == 0, exported.output
    table = pyarrow.read_table(tmp_path / "trials.parquet")
    assert set(table.column("fault").to_pylist()) == {"none", "exits", "hangs", "nan", "back"}


def test_a_plan_of_a_program_is_launched_and_recorded(swept):
    folder, storage, result = swept
    run = result.plan
    (launched,) = hpo.launch_here(run.plan, directory=folder / "plan", storage=storage)
    assert launched.outcome.state == "reached" and launched.workers == 2
    job = json.loads((folder / "plan" / f"seed-{run.plan.job.seed}" / "job.json").read_text())
    assert job["workload"] == "program" and job["settings"]["own"] == {"fault": "none"}
    (row,) = hpo.calibration(storage)
    assert (
        row.plan_id == run.plan.id and row.observed_epochs_mean == launched.outcome.epochs_to_target
    )


def test_a_study_whose_command_was_wrong_goes_on_with_the_right_one(one_ray, tmp_path):
    (tmp_path / "train.py").write_text(PROGRAM)
    study = (
        STUDY.format(python=sys.executable)
        .replace("{choice: [none, exits, hangs, nan, back], role: shared}", "none")
        .replace("full_scale: {global_batch_size: 64, machine: local, workers: 2}\n", "")
        .replace("trials: 20", "trials: 5")
    )
    file, storage = tmp_path / "study.yaml", f"sqlite:///{tmp_path}/hpo.db"

    def run(text, *options):
        file.write_text(text)
        options = ["--storage", storage, "--folder", str(tmp_path / ".hpo"), *options]
        return CliRunner().invoke(main, ["run", str(file), *options])

    for text in (study.replace("train.py", "trian.py"), study.replace("train.py", "tarin.py")):
        failed = run(text)
        assert failed.exit_code == 1, failed.output
        assert "the first 4 trials all failed" in failed.stderr
        assert "hpo run --retry-failed" in failed.stderr and "hpo delete programs" in failed.stderr
    assert "tarin.py" in failed.stderr and "trian.py" not in failed.stderr
    # the same command again: it trains nothing
    assert "tarin.py" in run(text).stderr
    done = run(study)
    assert done.exit_code == 0, done.output
    assert "4 trials that failed wait to be trained again" in done.stderr
    result = hpo.read_study("programs", storage)
    assert result.complete and len(result.trials) == 5
    assert TrialState.FAILED not in {trial.state for trial in result.trials}
