"""A program whose micro batch exceeds its memory: halved, kept for the rung, and an error if nothing fits."""

import json
import shutil
import sys
import textwrap

import pytest

import hpo
from hpo.errors import SpecError
from search_spaces.settings import TrainingSettings
from trainers import Target, TrainingJob, WorkloadError
from trainers.begin import begin_training
from trainers.report import ReportFile
from trainers.workloads.program.launched import ProgramNodes, run_program
from trainers.workloads.program.training import ProgramPlace

PROGRAM = """
import pathlib, sys, time, hpo
micro, accumulation, held, way = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
with open("starts.txt", "a") as starts:
    starts.write(f"{micro} {accumulation}\\n")
checkpoint = pathlib.Path(sys.argv[5], "epoch")
done = int(checkpoint.read_text()) if checkpoint.exists() else 0
for epoch in range(done + 1, 6):
    if micro > held and (way != "later" or epoch == 3):
        if way == "print":
            print("torch.OutOfMemoryError: CUDA out of memory.", flush=True)
        if way == "signal":
            import os, signal
            os.kill(os.getpid(), signal.SIGKILL)
        sys.exit(1 if way == "print" else 77)
    hpo.report(epochs=epoch, top1=0.1 * epoch + (0.001 if micro > held else 0))
    checkpoint.write_text(str(epoch))
"""
BY_CODE = {"exit_code": 77}


@pytest.fixture
def begin(tmp_path):
    (tmp_path / "train.py").write_text(PROGRAM)

    def training(held, way="exit", trial="0", signs=BY_CODE, workers=1, batch=24, **options):
        words = ["{micro_batch_size}", "{accumulation}", str(held), way, "{checkpoint_folder}"]
        job = TrainingJob(
            workload="program",
            data={
                "command": [sys.executable, "train.py", *words],
                "train_samples": 48,
                "report": {"metrics": {"top1": True}},
                "out_of_memory": signs,
                "stop_seconds": 1.0,
                **options,
            },
            target=Target("top1", 0.5),
            settings=TrainingSettings(),
            global_batch_size=batch,
            seed=0,
            epochs=10,
            search_path=str(tmp_path),
        )
        return begin_training(job, place=ProgramPlace(tmp_path / "rung" / trial, workers))

    return training


def finish(training):
    points = []
    while not training.finished:
        points.append(training.advance())
    return [point for point in points if point is not None]


def starts(folder):
    return [
        tuple(map(int, line.split())) for line in (folder / "starts.txt").read_text().splitlines()
    ]


@pytest.mark.parametrize(
    ("way", "signs"),
    [
        ("exit", BY_CODE),
        ("print", {"pattern": r"OutOf\w+Error: CUDA"}),
        ("print", {"exit_code": 3, "pattern": "out of memory"}),
        ("signal", {"exit_code": 137}),
    ],
)
def test_the_micro_batch_is_halved_until_it_fits_and_the_batch_stays_exact(
    begin, tmp_path, way, signs
):
    training = begin(5, way, signs=signs, workers=2, batch=36)
    points = finish(training)
    # 18 samples a worker; the largest parts of 18 that are at most half of the one before: 9, then 3
    assert starts(tmp_path) == [(18, 1), (9, 2), (3, 6)]
    assert all(2 * micro * accumulation == 36 for micro, accumulation in starts(tmp_path))
    assert [point.epochs for point in points] == [1, 2, 3, 4, 5]
    assert training.outcome.state == "reached"
    told = json.loads((tmp_path / "rung" / "0" / "trial.json").read_text())
    assert (told["micro_batch_size"], told["accumulation"]) == (3, 6)


def test_what_was_found_is_kept_for_the_rung_and_for_this_program(begin, tmp_path):
    finish(begin(6))
    finish(begin(6, trial="1"))
    assert starts(tmp_path) == [(24, 1), (12, 2), (6, 4), (6, 4)]
    finish(begin(6, trial="2", batch=12))  # another rung
    assert starts(tmp_path)[4:] == [(12, 1), (6, 2)]
    finish(begin(24, trial="3"))  # another command may need less
    assert starts(tmp_path)[6:] == [(24, 1)]


def test_reports_and_checkpoints_before_the_end_of_memory_do_not_count(begin, tmp_path):
    training = begin(12, "later")
    points = finish(training)
    assert starts(tmp_path) == [(24, 1), (12, 2)]
    assert [point.epochs for point in points] == [1, 2, 1, 2, 3, 4, 5]
    assert [point.metric for point in points[2:]] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5])
    assert training.resumed == [] and training.outcome.steps == points[-1].step == 10
    again = begin(12, "later")  # taken up: only what counts is there
    assert [point.epochs for point in again.resumed] == [1, 2, 3, 4, 5]


def test_where_not_one_sample_fits_the_rule_and_the_way_out_are_told(begin, tmp_path):
    with pytest.raises(WorkloadError, match=r"not even one sample does \(micro batch 1\); use"):
        finish(begin(0, batch=4))
    assert [micro for micro, _ in starts(tmp_path)] == [4, 2, 1]


def test_another_failure_is_not_taken_for_the_end_of_memory(begin, tmp_path):
    with pytest.raises(WorkloadError, match="exit code 77 before its first report"):
        finish(begin(5, signs={"exit_code": 78, "pattern": "memory"}))
    assert len(starts(tmp_path)) == 1


def test_a_pattern_without_end_is_told(begin, monkeypatch):
    monkeypatch.setattr("trainers.workloads.program.micro_batch.SEARCH_SECONDS", 0.3)
    with pytest.raises(
        WorkloadError,
        match=r"search for program.out_of_memory.pattern in .* "
        r"more than",
    ):
        finish(begin(5, "print", signs={"pattern": "^(.+.+.+.+.+.+.+.+)+$(?!)"}))


def test_a_launched_run_finds_it_too_and_its_report_holds_what_counts(begin, tmp_path):
    training = begin(12, "later")
    training.close()
    (tmp_path / "starts.txt").unlink(missing_ok=True)
    report = ReportFile(tmp_path / "run" / "report.jsonl")
    report.path.parent.mkdir()
    assert run_program(training.job, report, ProgramNodes(["here"], 1, None, "1"), lambda: False)
    assert starts(tmp_path) == [(24, 1), (12, 2)]
    lines = [json.loads(line) for line in report.path.read_text().splitlines()]
    assert [line["epochs"] for line in lines if "epochs" in line] == [1, 2, 3, 4, 5]


STUDY = """
name: memory
workload: program
program:
  command: [python, train.py, WORDS]
  train_samples: 48
  out_of_memory: SIGNS
  report: {metrics: {top1: true}}
target: {metric: top1, at_least: 0.5}
ladder: [12, 24]
search: {learning_rate: {log_uniform: [0.1, 1], role: scaled}}
budget: {trials: 2, epochs_per_trial: 5, race: 0}
seeds: 1
"""
WORDS = '"{global_batch_size}", "{learning_rate}", "{seed}"'


@pytest.mark.parametrize(
    ("words", "signs", "fault"),
    [
        (WORDS, "{exit_code: 77}", r"does not contain {micro_batch_size}; put it where"),
        (WORDS + ', "{micro_batch_size}"', "{}", "needs an exit_code, a pattern, or both"),
        (WORDS + ', "{micro_batch_size}"', "{exit_code: 256}", "between 1 and 255, but got 256"),
        (
            WORDS + ', "{micro_batch_size}"',
            "{pattern: '('}",
            "pattern must be a regular expression",
        ),
        (WORDS + ', "{micro_batch_size}"', "{exit: 7}", "exit"),
        (WORDS + ', "{micro_batch_size}"', "{exit_code: 77, pattern: CUDA}", None),
    ],
)
def test_a_study_says_how_memory_ends_and_what_cannot_be_is_refused(words, signs, fault):
    text = textwrap.dedent(STUDY).replace("WORDS", words).replace("SIGNS", signs)
    if fault is None:
        assert hpo.parse_study(text).program.options.out_of_memory.exit_code == 77
    else:
        with pytest.raises(SpecError, match=fault):
            hpo.parse_study(text)


SWEPT = """
import math, sys, hpo
micro, batch, rate = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
with open("starts.txt", "a") as starts:
    starts.write(f"{batch} {micro}\\n")
if micro > 4:
    sys.exit("CUDA out of memory")
speed = 1 / (1 + math.log(rate / (0.02 * batch ** 0.5)) ** 2)
for epoch in range(1, 21):
    hpo.report(epochs=epoch, top1=1 - math.exp(-epoch * speed))
"""


@pytest.mark.slow
def test_a_sweep_keeps_what_it_found_for_each_rung_and_its_plan_has_it(tmp_path, one_ray):
    (tmp_path / "train.py").write_text(SWEPT)
    words = '"{micro_batch_size}", "{global_batch_size}", "{learning_rate}", "{seed}"'
    text = STUDY.replace("WORDS", words).replace("SIGNS", "{pattern: out of memory}")
    text = text.replace("trials: 2, epochs_per_trial: 5", "trials: 10, epochs_per_trial: 20")
    text += "full_scale: {global_batch_size: 48, machine: local, workers: 2}\nsampler: random\n"
    (tmp_path / "study.yaml").write_text(text.replace("[0.1, 1]", "[0.03, 0.3]"))
    storage = f"sqlite:///{tmp_path}/hpo.db"
    result = hpo.run_study(
        hpo.load_study(tmp_path / "study.yaml"), storage, folder=tmp_path / "files"
    )
    states = {trial.state.value for trial in result.trials}
    assert len(result.trials) == 10 and "failed" not in states and "reached" in states
    begun = [
        tuple(map(int, line.split())) for line in (tmp_path / "starts.txt").read_text().splitlines()
    ]
    for batch in (12, 24):
        trials = sum(trial.global_batch_size == batch for trial in result.trials)
        sizes = [micro for at, micro in begun if at == batch]
        assert sizes.count(3) == trials > sizes.count(batch), sizes
    kept = hpo.read_study("memory", storage)
    plan = kept.plan.plan
    assert (plan.micro_batch_size, plan.local_batch_size) == (3, 24)
    shutil.rmtree(tmp_path / "files")  # a plan that is made elsewhere has the database alone
    apart = hpo.plan_study(kept, workers=1)[1]
    assert (apart.micro_batch_size, apart.local_batch_size) == (3, 48)
    assert {trial.micro_batch_size for trial in kept.trials if trial.state == "reached"} == {3}
    larger = hpo.plan_study(kept, workers=1, micro_batch_size=12)[1]
    assert larger.micro_batch_size == 3
