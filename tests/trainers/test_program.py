"""A program as workload: its command, its reports, its end, and every way in which it can fail."""

import dataclasses
import itertools
import json
import math
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

import hpo
from hpo.callbacks import reporting
from search_spaces.own_settings import RESERVED
from search_spaces.settings import TrainingSettings
from trainers import JobError, Target, TrainingJob, WorkloadError
from trainers.begin import begin_training
from trainers.report import (
    ConvergencePoint,
    ReportFile,
    TrainingStart,
    read_outcome,
    read_points,
    read_starts,
)
from trainers.workloads import load_workload
from trainers.workloads.program import command, guard
from trainers.workloads.program.files import ProgramFiles
from trainers.workloads.program.launched import ProgramNodes, run_program
from trainers.workloads.program.options import ProgramOptions
from trainers.workloads.program.training import RANKS, ProgramPlace

pytestmark = pytest.mark.processes

REPORT = {"metrics": {"top1": True}}
BATCH = "{global_batch_size}"


def job_of(folder, words, epochs=10, **options):
    data = {
        "command": words,
        "train_samples": 100,
        "report": REPORT,
        "stop_seconds": 1.0,
        **options,
    }
    return TrainingJob(
        workload="program",
        data=data,
        target=Target("top1", 0.9),
        settings=TrainingSettings(
            learning_rate=0.25, own={"drop_path": 0.1} if "drop_path" in str(words) else {}
        ),
        global_batch_size=20,
        seed=3,
        epochs=epochs,
        search_path=str(folder),
    )


@pytest.fixture
def train(tmp_path):
    """Start a program of some lines of Python, and follow it to its end; the training that was followed."""

    def begin(lines, *words, workers=1, **options):
        (tmp_path / "train.py").write_text(textwrap.dedent(lines))
        job = job_of(tmp_path, [sys.executable, "train.py", BATCH, *words], **options)
        return begin_training(job, place=ProgramPlace(tmp_path / "trial", workers))

    return begin


def finish(training):
    """The evaluations of a training up to its end."""
    points = []
    try:
        while not training.finished:
            points.append(training.advance())
    finally:
        training.close()
    return [point for point in points if point is not None]


def alive(number):
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until(true, seconds=5.0):
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.02)


def test_a_program_is_told_what_to_train_and_its_reports_are_the_curve(train, tmp_path):
    training = train(
        """
        import json, sys, hpo
        trial = hpo.trial()
        json.dump([sys.argv[1:], dict(trial.settings), trial.seed, trial.accumulation], open("seen.json", "w"))
        for epoch in range(1, 6):
            hpo.report(epochs=epoch, top1=0.2 * epoch, train_loss=1 / epoch, other=7)
        """,
        "{local_batch_size}",
        "{accumulation}",
        "{learning_rate}",
        "{learning_rate:.3e}",
        "--drop={drop_path}",
        "{{}}",
        "$HOME; *",
        workers=2,
        largest_micro_batch=4,
    )
    points = finish(training)
    words, settings, seed, accumulation = json.loads((tmp_path / "seen.json").read_text())
    # 20 samples over 2 workers are 10 each; the largest part of 10 that is at most 4 and divides it is 2
    assert words == ["20", "10", "5", "0.25", "2.500e-01", "--drop=0.1", "{}", "$HOME; *"]
    assert (settings["learning_rate"], settings["drop_path"]) == (0.25, 0.1)
    assert (seed, accumulation) == (3, 5)
    assert [point.epochs for point in points] == [1, 2, 3, 4, 5]
    assert [point.step for point in points] == [5, 10, 15, 20, 25]  # 100 samples in updates of 20
    assert [point.samples for point in points] == [100, 200, 300, 400, 500]
    assert [point.train_loss for point in points] == [1 / epoch for epoch in range(1, 6)]
    assert math.isnan(points[0].loss) and points[0].learning_rate == 0.25
    assert all(a.seconds <= b.seconds for a, b in itertools.pairwise(points))
    outcome = training.outcome
    assert (outcome.state, outcome.epochs_to_target, outcome.steps) == ("reached", 5.0, 25)


def test_a_report_beyond_a_fixed_budget_does_not_count(tmp_path):
    lines = """
        import hpo
        for epoch in (4, 8, 12):
            hpo.report(epochs=epoch, top1=0.05 * epoch)
        """
    (tmp_path / "train.py").write_text(textwrap.dedent(lines))
    job = job_of(tmp_path, [sys.executable, "train.py", BATCH])
    job = dataclasses.replace(job, target=Target.best("top1", higher_is_better=True))
    training = begin_training(job, place=ProgramPlace(tmp_path / "trial"))
    assert [point.epochs for point in finish(training)] == [4, 8, 12]
    outcome = training.outcome
    assert (outcome.state, outcome.epochs) == ("censored", 12)
    assert outcome.best_metric == pytest.approx(0.4)
    assert outcome.final_metric == pytest.approx(0.6)


def test_the_words_of_a_command_are_arguments_and_never_a_shells():
    assert command.fill_placeholders(["a {x}", "$({x})", "{x};rm"], {"x": "`b` c"}) == [
        "a `b` c",
        "$(`b` c)",
        "`b` c;rm",
    ]
    values = {"a": True, "b": None, "c": [1.5, 2.0], "d": 1e-7, "e": 12}
    assert command.fill_placeholders(["{a}", "{b}", "{c}", "{d}", "{e:04d}"], values) == [
        "true",
        "none",
        "1.5,2",
        "1e-07",
        "0012",
    ]


@pytest.mark.parametrize(
    ("word", "value", "written"),
    [
        ("{x}", 16.0, "16"),
        ("{x:d}", 16.0, "16"),
        ("{x:04}", 16.0, "0016"),
        ("{x:.1f}", 16.0, "16.0"),
        ("{x:.3}", 16.0, "16.0"),
        ("{x}", 0.5, "0.5"),
        ("{x}", 1e300, "1e+300"),
        ("{x}", math.inf, "inf"),
    ],
)
def test_a_whole_number_is_written_as_one(word, value, written):
    assert command.fill_placeholders([word], {"x": value}) == [written]


def test_a_program_that_takes_whole_epochs_gets_them(train):
    training = train(
        """
        import argparse, json, os, hpo
        parser = argparse.ArgumentParser()
        parser.add_argument("batch", type=int)
        parser.add_argument("--epochs", type=int)
        epochs = parser.parse_args().epochs
        told = json.load(open(os.environ["HPO_TRIAL"]))["epochs"]
        assert (epochs, repr(told)) == (10, "10"), (epochs, told)
        hpo.report(epochs=epochs, top1=1.0)
        """,
        "--epochs={epochs}",
        epochs=10.0,
    )
    assert [point.epochs for point in finish(training)] == [10]


@pytest.mark.parametrize("word", ["{", "}", "{0}", "{}", "{a.b}", "{a[0]}", "{lr!r}", "{lr:{x}}"])
def test_a_placeholder_is_a_name(word):
    with pytest.raises(WorkloadError, match=r"a placeholder must be|must have balanced braces"):
        command.command_placeholders([word])


@pytest.mark.parametrize(
    "word", ["{seed:>400000000}", "{learning_rate:.99999999f}", "{seed:0101d}", "{seed:%Y}"]
)
def test_a_format_asks_for_a_number_and_not_for_the_memory(word):
    with pytest.raises(WorkloadError, match=r"a width of at most 100 and at most 30 digits"):
        command.command_placeholders([word])


@pytest.mark.parametrize(
    "form", ["04d", ".4g", ".2e", ">8", "*^10.3f", "+,d", "#x", ".0%", "_", "100"]
)
def test_a_format_of_a_number_is_taken(form):
    assert command.command_placeholders([f"{{seed:{form}}}"]) == ["seed"]


SHOWS = """
    import json, os, pathlib
    pathlib.Path("seen").write_text(json.dumps(dict(os.environ)))
    print("database postgresql://ada:open-sesame@db/x, token lb_" + 43 * "A", 4 * "deep ", "ssssecret")
    raise SystemExit(3)
"""
URL = "postgresql://ada:open-sesame@db/x"


def test_a_program_of_a_service_gets_a_clean_environment(train, tmp_path, monkeypatch):
    monkeypatch.setenv("HPO_PROGRAM_ENVIRONMENT", "PATH,SLURM_*,HPO_STORAGE")
    for name, value in {"HPO_STORAGE": URL, "AWS_SECRET_ACCESS_KEY": "ssssecret", "A": "b"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("HPO_WORKER_PROCESS", "1")  # by which a worker counts its study's memory
    with pytest.raises(WorkloadError) as raised:
        finish(train(SHOWS, environment={"MINE": "{seed}"}))
    seen = json.loads((tmp_path / "seen").read_text())
    assert (seen["SLURM_JOB_ID"], seen["MINE"], seen["HPO_WORKER_PROCESS"]) == ("7", "3", "1")
    assert not {"HPO_STORAGE", "AWS_SECRET_ACCESS_KEY", "A", "HPO_PROGRAM_ENVIRONMENT"} & set(seen)
    said = str(raised.value)
    assert "database postgresql://ada:***@db/x, token *** deep" in said
    assert not any(secret in said for secret in ("sesame", "ssssecret", "lb_"))


def test_a_program_of_ones_own_gets_all_but_our_secrets(train, tmp_path, monkeypatch):
    monkeypatch.delenv("HPO_PROGRAM_ENVIRONMENT", raising=False)
    for name in ("HPO_STORAGE", "HPO_TOKEN", "HPO_SERVE_PORT", "OWN"):
        monkeypatch.setenv(name, "something")
    with pytest.raises(WorkloadError):
        finish(train(SHOWS))
    seen = json.loads((tmp_path / "seen").read_text())
    assert seen["OWN"] == "something"
    assert not {"HPO_STORAGE", "HPO_TOKEN", "HPO_SERVE_PORT"} & set(seen)


def test_an_operator_puts_a_program_into_something(train, tmp_path, monkeypatch):
    """As another user, or in a container: by the words before the command."""
    monkeypatch.setenv(
        "HPO_PROGRAM_WRAPPER", """sh -c 'export IN="a box of $0, not $MINE"; exec "$@"' {folder}"""
    )
    with pytest.raises(WorkloadError):
        finish(train(SHOWS, environment={"MINE": "from the study"}))
    seen = json.loads((tmp_path / "seen").read_text())
    assert seen["IN"] == f"a box of {tmp_path / 'trial'}, not "  # the wrapper may be root's
    assert seen["MINE"] == "from the study"


def test_no_setting_of_ones_own_can_hide_a_placeholder():
    assert command.PLACEHOLDERS.keys() <= RESERVED


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"command": []}, "command must be a list of non-empty words"),
        ({"command": ["train", "{"]}, "braces"),
        ({"train_samples": 0}, "train_samples must be at least 1"),
        ({"largest_micro_batch": 8}, "largest_micro_batch has no effect"),
        ({"report": {"metrics": {"top1": True}, "pattern": "("}}, "must be a regular expression"),
        (
            {"report": {"metrics": {"top1": True}, "pattern": "(?P<epoch>.)(?P<top1>.)"}},
            "pattern has a group 'epoch'; did you mean 'epochs'",
        ),
        (
            {"report": {"metrics": {"top1": True}, "pattern": "(?P<top1>.)"}},
            "must have a named group for the progress",
        ),
        ({"report": {"metrics": {"loss": True}}}, "the loss is better when lower"),
        ({"report": {"metrics": {"epochs": True}}}, "a metric must not be called 'epochs'"),
        ({"report": {"metric": {}}}, "no key program.report.metric; did you mean 'metrics'"),
        ({"comand": ["x"]}, "no key program.comand; did you mean 'command'"),
    ],
)
def test_options_that_cannot_be_name_the_rule(options, message):
    whole = {"command": ["train", BATCH], "train_samples": 100, "report": REPORT, **options}
    with pytest.raises(WorkloadError, match=message):
        load_workload("program", whole)


def test_a_batch_is_split_over_workers_and_forward_passes():
    options = ProgramOptions.from_dict(
        {"command": ["x", BATCH], "train_samples": 1, "report": REPORT, "largest_micro_batch": 48}
    )
    assert options.split(512, 4, None) == {
        "global_batch_size": 512,
        "local_batch_size": 128,
        "micro_batch_size": 32,
        "accumulation": 4,
    }
    assert options.split(512, 4, 16)["accumulation"] == 8
    with pytest.raises(JobError, match="cannot be split over 3 workers"):
        options.split(512, 3, None)


PROGRAMS = {
    "exits at once": ("raise SystemExit(3)", "ended with exit code 3 before its first report"),
    "prints nothing": (
        "",
        r"ended without having reported top1 \(see hpo.report\); it printed noth",
    ),
    "prints garbage": (
        "import hpo; open(hpo.trial().report_file, 'ab').write(b'\\xff\\x00 nonsense\\n')",
        "of its report is not a JSON object: .*nonsense",
    ),
    "reports a list": (
        "import hpo; open(hpo.trial().report_file, 'a').write('[1]\\n')",
        "is not a JSON object",
    ),
    "reports text": (
        'import hpo; open(hpo.trial().report_file, \'a\').write(\'{"epochs": 1, "top1": "high"}\\n\')',
        "it reported top1 'high', which is not a number",
    ),
    "goes backwards": (
        "import hpo; hpo.report(epochs=2, top1=0.1); hpo.report(epochs=1, top1=0.2)",
        "reported 1 epochs after 2; the epochs of its reports must increase",
    ),
    "negative epochs": (
        "import hpo; hpo.report(epochs=-1, top1=0.1)",
        "reported -1 epochs; they must be finite and not negative",
    ),
    "raises": (
        "import hpo; hpo.report(epochs=1, top1=0.1); raise RuntimeError('out of memory')",
        r"(?s)exit code 1 after 1 epochs; the end of .*log.txt:.*RuntimeError: out of memory",
    ),
    "kills itself": (
        "import os; os.kill(os.getpid(), 9)",
        "was ended by signal 9 before its first report",
    ),
    "fills the disk": (
        """
        import atexit, resource, signal, pathlib, hpo
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, before[1]))
        atexit.register(resource.setrlimit, resource.RLIMIT_FSIZE, before)  # coverage.py writes then
        hpo.report(epochs=1, top1=0.1)
        with open(pathlib.Path(hpo.trial().checkpoint_folder) / "weights", "wb") as file:
            while True:
                file.write(bytes(1 << 12))
        """,
        r"(?s)exit code 1 after 1 epochs; .*OSError: \[Errno 27\] File too large",
    ),
}


@pytest.mark.parametrize(("lines", "message"), PROGRAMS.values(), ids=PROGRAMS.keys())
def test_a_program_that_fails_is_told_with_its_last_words(train, lines, message):
    with pytest.raises(WorkloadError, match=message):
        finish(train(lines))


ERROR = "train.py: error: argument --epochs: invalid int value: '16.0'"
RULE = "-" * 74
LAUNCHERS = {
    "srun": """
        srun: error: nid001: task 0: Exited with exit code 2
        srun: Terminating StepId=123.0
        slurmstepd: error: *** STEP 123.0 ON nid001 CANCELLED AT 2026-01-01T00:00:00 ***
        srun: error: nid[001-002]: tasks 1-7: Exited with exit code 2
    """,
    "srun before the end of the job": "srun: error: nid001: tasks 1,3: Exited with exit code 1",
    "mpirun": f"""
        {RULE}
        Primary job  terminated normally, but 1 process returned
        a non-zero exit code. Per user-direction, the job has been aborted.
        {RULE}
        {RULE}
        mpirun detected that one or more processes exited with non-zero status, thus causing
        the job to be terminated. The first process to do so was:

          Process name: [[20034,1],1]
          Exit code:    2
        {RULE}
    """,
    "horovodrun": """
        Process 1 exit with status code 2.
        Terminating remaining workers after failure of Process 1.
        Process 0 exit with status code 2.
        Traceback (most recent call last):
          File "/opt/bin/horovodrun", line 8, in <module>
            sys.exit(run_commandline())
          File "/opt/lib/python3.11/site-packages/horovod/runner/gloo_run.py", line 314, in launch_gloo
            raise RuntimeError('Horovod detected that one or more processes exited with non-zero '
        RuntimeError: Horovod detected that one or more processes exited with non-zero status, thus causing the job to be terminated. The first process to do so was:
        Process name: 1
        Exit code: 2
    """,  # noqa: E501
}


@pytest.mark.parametrize("frame", LAUNCHERS.values(), ids=LAUNCHERS.keys())
def test_what_a_program_said_last_stands_before_the_frame_of_its_launcher(tmp_path, frame):
    files = ProgramFiles(tmp_path)
    files.log.write_text(f"usage: train.py\n{ERROR}\n{textwrap.dedent(frame)}")
    assert files.last_words() == f"usage: train.py\n{ERROR}"


@pytest.mark.parametrize(
    "cause",
    [
        "srun: error: nid001: task 0: Out Of Memory",
        "srun: error: Unable to create step for job 12: Invalid generic resource (gres) specification",
        f"{RULE}\nmpirun was unable to find the specified executable file\n{RULE}",
        "mpirun noticed that process rank 0 with PID 7 on node a exited on signal 9 (Killed).",
        "Process 1 exit with status code 137.",
        "Traceback (most recent call last):\n  File 'a'\nRuntimeError: of the program",
        f"{'=' * 60}\na table of the program\n{'=' * 60}",
    ],
)
def test_a_cause_that_a_launcher_or_the_program_tells_is_kept(tmp_path, cause):
    files = ProgramFiles(tmp_path)
    files.log.write_text(f"epoch 1\n{cause}\n")
    assert files.last_words() == f"epoch 1\n{cause}"


def test_the_frame_of_a_launcher_is_told_where_the_program_said_nothing(tmp_path):
    files = ProgramFiles(tmp_path)
    files.log.write_text("srun: error: nid001: task 0: Exited with exit code 2\n")
    assert files.last_words() == "srun: error: nid001: task 0: Exited with exit code 2"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "last"),
    [
        ("raise SystemExit('no data folder')", "no data folder"),
        ("import os; os.kill(os.getpid(), 9)", "failed (exitcode: -9)"),
    ],
)
def test_torchrun_does_not_hide_what_the_program_said(tmp_path, line, last):
    (tmp_path / "train.py").write_text(f"print('started', flush=True)\n{line}\n")
    files = ProgramFiles(tmp_path)
    with files.log.open("wb") as log:
        subprocess.run(
            [
                *(sys.executable, "-m", "torch.distributed.run"),
                *("--standalone", "--nproc-per-node=2", str(tmp_path / "train.py")),
            ],
            stdout=log,
            stderr=subprocess.STDOUT,
            check=False,
        )
    assert "ChildFailedError" in files.log.read_text()
    words = files.last_words()
    assert "started" in words and last in words.splitlines()[-1]
    assert "ChildFailedError" not in words and "====" not in words


def test_a_command_that_does_not_exist(tmp_path):
    place = ProgramPlace(tmp_path / "trial")
    with pytest.raises(WorkloadError, match="'no-such-program' cannot be started: No such file"):
        finish(begin_training(job_of(tmp_path, ["no-such-program", BATCH]), place=place))
    (tmp_path / "notes.txt").write_text("not a program")
    with pytest.raises(WorkloadError, match="cannot be started: Permission denied"):
        finish(begin_training(job_of(tmp_path, ["./notes.txt", BATCH]), place=place))


@pytest.mark.parametrize("name", ["top1", "loss", "train_loss"])
@pytest.mark.parametrize("value", ["nan", "inf"])
def test_a_training_that_blows_up_has_diverged(train, name, value):
    values = {"top1": "0.1", name: f'float("{value}")'}
    said = ", ".join(f"{key}={each}" for key, each in values.items())
    training = train(f"import hpo, time; hpo.report(epochs=1.5, {said}); time.sleep(60)")
    points = finish(training)
    assert (training.outcome.state, len(points)) == ("diverged", 1)
    assert training.outcome.reason == f"it reported {name} nan after 1.5 epochs"


def test_a_program_that_hangs_is_ended_with_all_it_has_started(train, tmp_path):
    """Children in sessions of their own, one of which ignores SIGTERM, and a grandchild whose parent has left."""
    training = train(
        """
        import os, signal, subprocess, sys, time
        sleep = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
        child = subprocess.Popen([sys.executable, "-c", sleep], start_new_session=True)
        twice = (
            "import subprocess, sys; null = subprocess.DEVNULL\\n"
            f"print(subprocess.Popen([sys.executable, '-c', {sleep!r}], stdout=null).pid)"
        )
        orphan = subprocess.run([sys.executable, "-c", twice], stdout=subprocess.PIPE, text=True).stdout.strip()
        open("children", "w").write(f"{child.pid} {orphan} {os.getpid()}")
        print("waiting for data", flush=True)
        time.sleep(600)
        """,
        report={**REPORT, "timeout_seconds": 2.0},
    )
    with pytest.raises(WorkloadError, match=r"(?s)reported nothing for 2 s .*waiting for data"):
        finish(training)
    children = [int(number) for number in (tmp_path / "children").read_text().split()]
    assert len(children) == 3 and not any(map(alive, children))


def test_what_a_program_leaves_running_does_not_outlive_it(train, tmp_path):
    training = train(
        """
        import hpo, subprocess, sys
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
        open("child", "w").write(str(child.pid))
        hpo.report(epochs=4, top1=0.5)
        """
    )
    finish(training)
    assert training.outcome.state == "censored"
    assert (
        "the program ended by itself after 4 epochs, before the target" in training.outcome.reason
    )
    assert not alive(int((tmp_path / "child").read_text()))


def test_a_program_that_listens_is_asked_first_and_saves(train, tmp_path):
    training = train(
        """
        import hpo, pathlib, time
        epoch = 0
        while not hpo.should_stop():
            epoch += 1
            hpo.report(epochs=epoch, top1=0.5 * epoch)
            time.sleep(0.1)
        pathlib.Path(hpo.trial().checkpoint_folder, "saved").write_text(str(epoch))
        """,
        stop_seconds=20.0,
    )
    finish(training)
    assert training.outcome.state == "reached"
    assert (tmp_path / "trial" / "checkpoint" / "saved").exists()


def test_a_program_that_does_not_listen_gets_sigterm_at_once(train):
    training = train(
        "import hpo, time; hpo.report(epochs=1, top1=1.0); time.sleep(600)", stop_seconds=30.0
    )
    started = time.monotonic()
    finish(training)
    assert training.outcome.state == "reached" and time.monotonic() - started < 15


def test_a_program_ends_with_whoever_started_it(tmp_path):
    """kill -9 of the process that follows a program: nothing of the program is left."""
    (tmp_path / "train.py").write_text(
        "import os, time; open('pid', 'w').write(str(os.getpid())); time.sleep(600)"
    )
    job_of(tmp_path, [sys.executable, "train.py", BATCH]).save(tmp_path / "job.json")
    follow = (
        "from trainers.begin import begin_training; from trainers.job import TrainingJob\n"
        "from trainers.workloads.program.training import ProgramPlace; from pathlib import Path\n"
        "begin_training(TrainingJob.load('job.json'), place=ProgramPlace(Path('trial'))).advance()"
    )
    follower = subprocess.Popen([sys.executable, "-c", follow], cwd=tmp_path)
    wait_until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text(), 20)
    follower.kill()
    follower.wait()
    program = int((tmp_path / "pid").read_text())
    wait_until(lambda: not alive(program), 10)


def test_a_program_goes_on_from_its_own_checkpoint(train):
    lines = """
        import hpo, os, pathlib, time
        saved = pathlib.Path(hpo.trial().checkpoint_folder, "epoch")
        first = int(saved.read_text()) if saved.exists() else 0
        for epoch in range(first + 1, 9):
            saved.write_text(str(epoch))
            hpo.report(epochs=epoch, top1=0.115 * epoch)
            if epoch == 3 and first == 0:
                time.sleep(600)
        """
    training = train(lines)
    first = [training.advance() for _ in range(3)]
    training.close()
    again = train(lines)
    assert [point.epochs for point in again.resumed] == [1, 2, 3]
    assert again.resumed == first
    rest = finish(again)
    assert [point.epochs for point in rest] == [4, 5, 6, 7, 8]
    assert rest[0].seconds >= first[-1].seconds
    assert again.outcome.state == "reached"


def finish_launched(folder, earlier, copied=(), target=0.9, lines="", begun=True):
    """Start a launched program again, over the reports of earlier starts; its points and its outcome.

    ``earlier`` are the lines of the program's report, and ``copied`` the points that the launch's report holds, where
    it has ``begun``.
    """
    (folder / "train.py").write_text(textwrap.dedent(lines))
    job = job_of(folder, [sys.executable, "train.py", BATCH], epochs=5)
    files = ProgramFiles(folder / "program")
    files.make()
    files.report.write_text("".join(json.dumps(line) + "\n" for line in earlier))
    report = ReportFile(folder / "outcome.jsonl")
    if begun:
        report.start(0, TrainingStart(0, 1, 1))
    for epochs, top1 in copied:
        unknown = {"train_loss": math.nan, "loss": math.nan}
        report.point(
            ConvergencePoint(
                step=5 * epochs,
                samples=100 * epochs,
                epochs=float(epochs),
                seconds=10.0 * epochs,
                metric=top1,
                learning_rate=0.25,
                global_batch_size=20,
                **unknown,
            )
        )
    job = dataclasses.replace(job, target=Target("top1", target))
    assert run_program(job, report, ProgramNodes(["here"], 1, None, "1"), lambda: False)
    points = [(point.epochs, point.metric) for point in read_points(report.path)]
    return points, read_outcome(report.path)


def lines_of(*reports, started=1000.0):
    return [
        {"started": started},
        *({"epochs": at, "top1": top1, "time": started + 10 * at} for at, top1 in reports),
    ]


REACHES = ((1, 0.5), (2, 0.8), (3, 0.92))


@pytest.mark.parametrize("later", [(4, 0.85), (4, None), (3, 0.92)])
@pytest.mark.parametrize("copied", [2, 3])
def test_nothing_counts_that_a_program_reported_after_it_had_reached_its_target(
    tmp_path, later, copied
):
    """Also where its owner was killed before it had copied the last point."""
    points, outcome = finish_launched(tmp_path, lines_of(*REACHES, later), REACHES[:copied])
    assert points == list(REACHES)
    assert (outcome.state, outcome.epochs_to_target, outcome.steps) == ("reached", 3.0, 15)


def test_a_report_names_the_job_of_a_training_whose_first_point_was_not_copied(tmp_path):
    points, outcome = finish_launched(tmp_path, lines_of(*REACHES), begun=False)
    assert points == list(REACHES) and outcome.state == "reached"
    (start,) = read_starts(tmp_path / "outcome.jsonl")
    assert (start.step, start.workers, start.nodes, start.seed) == (0, 1, 1, 3) and start.job


REPORTS_4_AND_5 = """
    import hpo
    hpo.report(epochs=4, top1=0.85)
    hpo.report(epochs=5, top1=0.86)
    """


@pytest.mark.parametrize("bad", [(3, 0.88), (4, "high")])
def test_the_reports_before_an_invalid_one_are_kept(tmp_path, bad):
    before = ((1, 0.5), (2, 0.8), (3, 0.88))
    points, outcome = finish_launched(
        tmp_path, lines_of(*before, bad), before, target=0.99, lines=REPORTS_4_AND_5
    )
    assert points == [*before, (4, 0.85), (5, 0.86)]
    assert (outcome.state, outcome.best_metric) == ("censored", 0.88)


def test_what_a_restart_repeats_no_longer_counts(tmp_path):
    first = ((1, 0.5), (2, 0.8), (3, 0.95))
    points, outcome = finish_launched(
        tmp_path,
        [*lines_of(*first), *lines_of((2, 0.7), (3, 0.8), started=1040.0)],
        first,
        target=0.99,
        lines=REPORTS_4_AND_5,
    )
    assert points == [(1, 0.5), (2, 0.7), (3, 0.8), (4, 0.85), (5, 0.86)]
    assert (outcome.best_metric, outcome.final_metric) == (0.86, 0.86)


def test_a_program_without_checkpoints_begins_anew(train):
    lines = """
        import hpo, pathlib, time
        again = pathlib.Path("again").exists()
        pathlib.Path("again").touch()
        for epoch in range(1, 9):
            hpo.report(epochs=epoch, top1=0.115 * epoch)
            if epoch == 3 and not again:
                time.sleep(600)
        """
    training = train(lines)
    [training.advance() for _ in range(3)]
    training.close()
    points = finish(train(lines))
    assert [point.epochs for point in points] == [1, 2, 3, 4, 5, 6, 7, 8]


def test_reports_by_a_pattern_on_the_output(train):
    training = train(
        r"""
        print("garbage (?P<epochs> \x1b[0m")
        for epoch in range(1, 6):
            print(f"Epoch {epoch}: 10%\rEpoch {epoch}: 100% | loss {1 / epoch:.4f} | acc@1 {20 * epoch} %", flush=True)
        """,
        report={
            "metrics": {"top1": True},
            "pattern": r"Epoch (?P<steps>\d+).*loss (?P<train_loss>\S+) .*acc@1 (?P<top1>\d+) %",
        },
    )
    # top-1 in per cent reaches the target at once; its steps are updates of 20 of 100 samples
    points = finish(training)
    assert [(point.step, point.epochs, point.metric) for point in points] == [(1, 0.2, 20.0)]
    assert training.outcome.state == "reached"


def test_output_that_no_pattern_finds(train):
    training = train(
        "print('epoch one')",
        report={"metrics": {"top1": True}, "pattern": r"epoch (?P<epochs>\d+) (?P<top1>\S+)"},
    )
    with pytest.raises(WorkloadError, match=r"no line of its output matched report.pattern"):
        finish(training)


BACKTRACKS = r"(?P<epochs>\d+)?(?P<top1>(a+)+)$"


def test_a_pattern_that_backtracks_ends_and_says_so(train):
    """Nobody sees the end of this match: 2 to the power of 60 steps."""
    training = train(
        """
        import time
        print("a" * 60 + "!", flush=True)
        time.sleep(60)
        """,
        report={"metrics": {"top1": True}, "pattern": BACKTRACKS},
    )
    began = time.monotonic()
    with pytest.raises(
        WorkloadError,
        match=r"report.pattern took more than 1 s .* start each "
        r"part",
    ):
        finish(training)
    assert time.monotonic() - began < 20


def test_a_guard_in_a_match_without_end_ends_with_its_owner(train, monkeypatch, tmp_path):
    training = train(
        """
        import os, pathlib, time
        pathlib.Path("pid").write_text(f"{os.getpid()} {os.getppid()}")
        print("a" * 60 + "!", flush=True)
        time.sleep(60)
        """,
        report={"metrics": {"top1": True}, "pattern": BACKTRACKS},
    )
    wait_until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
    program, its_guard = map(int, (tmp_path / "pid").read_text().split())
    training._process.ask_to_stop()
    wait_until(lambda: not alive(program) and not alive(its_guard), 20.0)
    assert not alive(program) and not alive(its_guard)


def test_an_honest_pattern_keeps_pace_with_much_output(train):
    """A line of a megabyte costs its end alone, and every report of 50,000 lines is taken."""
    training = train(
        """
        print("epoch 1 " * 130_000)
        for step in range(50_000):
            print(f"step {step}: busy")
        print("epoch 3 of many top1 0.5")
        """,
        report={
            "metrics": {"top1": True},
            "pattern": r"epoch (?P<epochs>\d+).*top1 (?P<top1>\S+)",
        },
    )
    assert [(point.epochs, point.metric) for point in finish(training)] == [(3, 0.5)]


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("(?P<epochs>a)" + "(" * 1500 + ")" * 1500, "at most 1000 characters"),
        ("(" * 400 + ")" * 400, "pattern must have a named group"),
        ("(" * 500, "pattern must be a regular expression"),
        (r"(?P<epochs>a{99999999999999})(?P<top1>b)", "pattern must be a regular expression"),
    ],
)
def test_a_pattern_that_cannot_be_is_told_when_the_study_is_checked(pattern, message):
    options = ProgramOptions.from_dict(
        {
            "command": ["x", BATCH],
            "train_samples": 1,
            "report": {"metrics": {"top1": True}, "pattern": pattern},
        }
    )
    with pytest.raises(WorkloadError, match=message):
        options.check()


def test_a_log_does_not_fill_the_disk(tmp_path, monkeypatch):
    monkeypatch.setattr(guard, "LOG_BYTES", 1000)
    log = guard.CommandLog(tmp_path / "log.txt")
    for number in range(100):
        log.write(b"%050d" % number)
    kept = sum(each.stat().st_size for each in tmp_path.iterdir())
    assert kept <= 2 * (1000 + 50)
    assert ProgramFiles(tmp_path).last_words().endswith("99")


def test_reports_say_nothing_where_nobody_listens(monkeypatch, tmp_path):
    monkeypatch.delenv("HPO_TRIAL", raising=False)
    assert hpo.trial() == hpo.ProgramTrial() and not hpo.should_stop()
    hpo.report(epochs=1, top1=0.5)
    with pytest.raises(ValueError, match="the progress of the training: epochs, samples or steps"):
        hpo.report(top1=0.5)
    with pytest.raises(TypeError, match="top1 must be a number, but got 'high'"):
        hpo.report(epochs=1, top1="high")
    monkeypatch.setenv("HPO_TRIAL", str(tmp_path / "none.json"))
    with pytest.raises(ValueError, match="must be the path of a trial"):
        hpo.trial()


def test_only_the_first_worker_reports(monkeypatch, tmp_path):
    report = tmp_path / "report.jsonl"
    (tmp_path / "trial.json").write_text(json.dumps({"report_file": str(report)}))
    monkeypatch.setenv("HPO_TRIAL", str(tmp_path / "trial.json"))
    for rank in ("1", "0"):
        monkeypatch.setenv("RANK", rank)
        hpo.report(epochs=int(rank) + 1, top1=0.5)
    assert [json.loads(line)["epochs"] for line in report.read_text().splitlines()] == [1.0]


def test_only_the_first_process_of_a_torch_group_reports(monkeypatch, tmp_path):
    """As in programs that start their workers themselves, by torch.multiprocessing or Lightning: no RANK is set."""
    report = tmp_path / "report.jsonl"
    (tmp_path / "trial.json").write_text(json.dumps({"report_file": str(report)}))
    monkeypatch.setenv("HPO_TRIAL", str(tmp_path / "trial.json"))
    for name in RANKS:
        monkeypatch.delenv(name, raising=False)
    for rank in (1, 0):
        group = SimpleNamespace(
            is_available=lambda: True, is_initialized=lambda: True, get_rank=lambda rank=rank: rank
        )
        monkeypatch.setitem(sys.modules, "torch.distributed", group)
        hpo.report(epochs=rank + 1, top1=0.5)
    assert [json.loads(line)["epochs"] for line in report.read_text().splitlines()] == [1.0]


@pytest.mark.parametrize("name", RANKS)
def test_a_program_reports_where_its_owner_was_started_with_a_rank(train, monkeypatch, name):
    """As on the second node of a sweep in a Slurm allocation, whose Ray ``srun`` has started."""
    monkeypatch.setenv(name, "1")
    training = train("import hpo; hpo.report(epochs=1, top1=0.95)")
    assert [point.metric for point in finish(training)] == [0.95]


def test_the_ranks_that_a_program_inherits_are_those_that_a_report_looks_at():
    assert RANKS == reporting.RANKS


def test_the_reporting_module_loads_nothing_but_the_standard_library():
    loaded = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys; before = set(sys.modules); import hpo; hpo.report, hpo.trial, hpo.should_stop\n"
            "print(*{name.split('.')[0] for name in set(sys.modules) - before})",
        ],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    ).stdout.split()
    assert "hpo" in loaded
    assert {name for name in loaded if name not in sys.stdlib_module_names} == {"hpo"}


def test_a_guard_that_is_killed_is_told_and_takes_the_program_with_it(tmp_path):
    (tmp_path / "train.py").write_text(
        "import os, time; open('pid', 'w').write(f'{os.getpid()} {os.getppid()}'); time.sleep(600)"
    )
    place = ProgramPlace(tmp_path / "trial")
    training = begin_training(job_of(tmp_path, [sys.executable, "train.py", BATCH]), place=place)
    wait_until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
    program, its_guard = map(int, (tmp_path / "pid").read_text().split())
    os.kill(its_guard, signal.SIGKILL)
    with pytest.raises(WorkloadError, match="its guard was killed"):
        training.advance()
    wait_until(lambda: not alive(program))


@pytest.mark.parametrize("reported", [False, True])
def test_what_a_start_printed_that_never_reported_is_not_taken_for_the_next_one_s(
    tmp_path, reported
):
    """Also where it was cut off before anybody heard of its end."""
    files = ProgramFiles(tmp_path)
    files.make()
    files.log.write_text("cannot open trian.py\n")
    if reported:
        files.report.write_text('{"epochs": 1.0, "top1": 0.1}\n')
    place = ProgramPlace(folder=tmp_path)
    training = begin_training(
        job_of(tmp_path, [sys.executable, "-c", "import tarin", BATCH]), place=place
    )
    with pytest.raises(WorkloadError, match="tarin") as failed:
        while True:
            training.advance()
    assert ("trian.py" in str(failed.value)) == reported
    assert (tmp_path / "log.ended.txt").exists() != reported
