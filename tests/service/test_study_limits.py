"""Limits on what a study may use of a worker's machine: memory and disk."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from hpo.cli.commands.worker import BYTES
from hpo.runs.study_limits import LimitWatch, StudyLimits, disk_bytes, memory_here
from hpo.service.worker import StudyWorker, WorkerOptions
from hpo.study.spec import parse_study
from storage.records import NewStudy, StudyState, TrialState

HOG = """\
name: hog
workload: program
program:
  command: [python, hog.py, "{learning_rate}", "{global_batch_size}", "{report_file}", "{output_folder}"]
  train_samples: 1000
  stop_seconds: 1
  report: {metrics: {top1: true}}
target: {metric: top1, at_least: 0.9}
ladder: [16]
search: {learning_rate: {log_uniform: [0.01, 1], role: scaled}}
budget: {trials: 1, epochs_per_trial: 100}
"""
REPORTS = "import sys, time, json; open(sys.argv[3], 'a').write(json.dumps({'epochs': 1, 'top1': 0.1}) + chr(10))\n"
SPREAD = """\
import subprocess
holds = [sys.executable, "-c", "import time; held = bytearray(500_000_000); time.sleep(600)"]
for _ in range(4):
    subprocess.Popen(holds, start_new_session=True, env={})
time.sleep(600)
"""
WRITES = """\
with open(sys.argv[4] + "/filled", "wb") as file:
    file.write(bytes(30_000_000))
time.sleep(600)
"""
BOUNDED = """\
import resource, sys
from pathlib import Path
from hpo.runs.study_limits import StudyLimits, bound_process_memory
bound_process_memory(StudyLimits(500_000_000, 1))
import subprocess
try:
    bytearray(900_000_000)
except MemoryError:
    print("refused")
child = "try:\\n bytearray(900_000_000)\\nexcept MemoryError: print('refused')"
print(subprocess.run([sys.executable, "-c", child], capture_output=True, text=True).stdout.strip())
bytearray(100_000_000)
"""


def run_hog(store, url, folder, body, **limits):
    """The study of a program that takes what it should not, and the processes that it left."""
    (folder / "hog.py").write_text(REPORTS + body)
    spec = parse_study(HOG, folder=folder)
    study = store.submit_study(
        NewStudy(
            name=spec.name,
            workload=spec.workload,
            metric="top1",
            threshold=0.9,
            higher_is_better=True,
            spec=HOG,
            folder=str(folder),
        )
    ).study
    options = WorkerOptions(storage=url, folder=folder / ".hpo", once=True, cores=1, **limits)
    StudyWorker(options).run()
    return store.study_by_id(study.id)


@pytest.mark.slow
@pytest.mark.processes
def test_a_study_that_takes_too_much_memory_fails_with_the_reason(
    store, url, tmp_path, monkeypatch
):
    """The sum over processes that none of which is too large, in sessions and environments of their own."""
    monkeypatch.setattr("hpo.runs.study_limits.LOOK_SECONDS", 0.2)
    before = memory_now()
    study = run_hog(store, url, tmp_path, SPREAD, memory_bytes=before + 1_600_000_000)
    assert study.state is StudyState.FAILED
    assert "of memory, but on this worker a study may use" in study.message
    assert [trial.state for trial in store.trials(study.id)] != [TrialState.RUNNING]
    assert not holding()


@pytest.mark.slow
@pytest.mark.processes
def test_a_study_that_fills_the_disk_fails_with_the_reason(store, url, tmp_path, monkeypatch):
    monkeypatch.setattr("hpo.runs.study_limits.LOOK_SECONDS", 0.2)
    monkeypatch.setattr("hpo.runs.study_limits.DISK_SECONDS", 0.2)
    study = run_hog(store, url, tmp_path, WRITES, disk_bytes=20_000_000)
    assert study.state is StudyState.FAILED
    assert "but on this worker a study may use 0.02 GB of disk" in study.message
    assert str(tmp_path) in study.message


@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_DATA counts such memory on Linux")
@pytest.mark.processes
def test_no_process_of_a_worker_gets_more_memory_than_a_study_may_take():
    done = subprocess.run(
        [sys.executable, "-c", BOUNDED], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.split() == ["refused", "refused"]


def test_what_is_usual():
    usual = StudyLimits.of(None, None)
    assert 0.85 * memory_here() < usual.memory_bytes < 0.95 * memory_here()
    assert usual.disk_bytes == 100e9
    assert StudyLimits.of(5, 6) == StudyLimits(5, 6)


def test_bytes_on_disk_are_counted_once_and_links_not_followed(tmp_path):
    (tmp_path / "in" / "deep").mkdir(parents=True)
    (tmp_path / "in" / "deep" / "file").write_bytes(bytes(1_000_000))
    (tmp_path / "out").write_bytes(bytes(5_000_000))
    (tmp_path / "in" / "link").symlink_to(tmp_path / "out")
    assert 1_000_000 <= disk_bytes([tmp_path / "in"]) < 1_100_000
    assert disk_bytes([tmp_path / "none"]) == 0


def test_nothing_is_said_of_a_study_within_its_limits(tmp_path, monkeypatch):
    monkeypatch.setattr("hpo.runs.study_limits.LOOK_SECONDS", 0.01)
    monkeypatch.setattr("hpo.runs.study_limits.DISK_SECONDS", 0.0)
    with LimitWatch(StudyLimits(10**15, 10**15), [tmp_path]) as watch:
        time.sleep(0.2)
    assert watch.excess == ""


@pytest.mark.parametrize(
    ("text", "count"), [("1", 1), ("512M", 512e6), ("64G", 64e9), ("2T", 2e12), ("3k", 3e3)]
)
def test_sizes(text, count):
    assert BYTES.convert(text, None, None) == count


@pytest.mark.parametrize("text", ["", "0", "-1", "1.5G", "G", "1GB", "1e9"])
def test_sizes_that_are_none(text):
    with pytest.raises(Exception, match="must be a number of bytes"):
        BYTES.convert(text, None, None)


def memory_now() -> int:
    """What this process holds by itself: it is the worker in these tests."""
    resident, shared = Path("/proc/self/statm").read_text().split()[1:3]
    return (int(resident) - int(shared)) * 4096


def holding() -> list[str]:
    """The processes that hold memory for the test."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if b"held = bytearray(500_000_000)" in entry.read_bytes():
                found.append(entry.parent.name)
        except OSError:
            continue
    return found
