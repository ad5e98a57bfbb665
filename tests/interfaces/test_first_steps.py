"""The first commands of a new user: `hpo example`, `hpo init`, `hpo study check`, and the price shown by `hpo run`."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

import hpo
from hpo.cli.commands import example, init
from hpo.cli.main import main
from hpo.planning.machines import local
from hpo.runs import price
from hpo.study.jobs import some_settings
from search_spaces.settings import TrainingSettings
from trainers.job import Target, TrainingJob
from trainers.speed import seconds_per_sample
from trainers.workloads import load_workload
from trainers.workloads.workload import Workload

pytestmark = pytest.mark.medium

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HPO_STORAGE", "sqlite:///hpo.db")
    return tmp_path


def call(*words, answers=None):
    return CliRunner().invoke(main, [str(word) for word in words], input=answers)


# examples


def test_every_example_is_listed_and_is_written_with_what_to_do_next(folder):
    listed = call("example").stdout
    names = {path.stem for path in (ROOT / "examples").iterdir() if path.suffix != ".pyc"}
    assert names - {"__pycache__"} == set(example.examples())
    for name, each in example.examples().items():
        assert f"\n{name}" in f"\n{listed}" and len(each.about) > 15
        written = call("example", name)
        assert written.exit_code == 0, written.output
        for study in each.studies if name != "plugins" else ():  # its own package, installed
            assert hpo.load_study(folder / study).name
        if name != "workflows":
            assert f"hpo run {each.studies[0]}" in written.stdout
    assert (folder / "own_workload" / "cells.py").is_file()


def test_an_example_is_never_overwritten_and_a_wrong_name_offers_the_nearest(folder):
    assert call("example", "digits", "--output", "new/place").exit_code == 0
    (folder / "new/place/digits.yaml").write_text("mine")
    again = call("example", "digits", "--output", "new/place")
    assert again.exit_code == 2 and "exists already" in again.output
    assert (folder / "new/place/digits.yaml").read_text() == "mine"
    wrong = call("example", "digit")
    assert wrong.exit_code == 2 and "did you mean 'digits'" in wrong.output


# init


def test_five_answers_make_a_study(folder):
    said = call("init", answers="\ntop1 >= 0.97\n2 gpus\n32 to 256, 4096\nsummit\n")
    assert said.exit_code == 0, said.output
    spec = hpo.load_study(folder / "study.yaml")
    assert (spec.workload, spec.target.metric, spec.target.at_least) == ("resnet", "top1", 0.97)
    assert spec.ladder == (32, 64, 128, 256)
    assert (spec.full_scale.global_batch_size, spec.full_scale.machine) == (4096, "summit")
    assert spec.resources.gpus_per_worker == 1
    assert spec.budget.ends_by_itself and spec.sampler == "forecast"
    assert len(re.findall("#", spec.text)) > 8
    checked = call("study", "check", "study.yaml", "--no-timing")
    assert checked.exit_code == 0, checked.output


def test_a_wrong_answer_is_asked_again_with_the_rule(folder):
    said = call(
        "init", answers="nonsense\ndigits\ntop1\nloss<=0.2\n2 cores\n64-16,512\n8-64,512\nlocal\n"
    )
    assert said.exit_code == 0, said.output
    for rule in (
        "must be one of digits",
        "must be METRIC>=VALUE",
        "must increase, but got 64, 16 and 512",
    ):
        assert rule in said.output
    assert hpo.load_study(folder / "study.yaml").target.at_most == 0.2


@pytest.mark.parametrize("workload", [*init.study_beginnings(), "cells:Cells"])
@pytest.mark.parametrize("batches", ["16-128,512", "10-70,350", "7-21,49"])
def test_options_alone_make_a_study_of_every_workload(folder, workload, batches):
    said = call(
        "init", "--defaults", "--workload", workload, "--batches", batches, "--output", "yes.yaml"
    )
    assert said.exit_code == 0, said.output
    spec = hpo.load_study(folder / "yes.yaml")
    assert spec.name == "yes"
    assert spec.workload == init.study_beginnings().get(workload, (workload, None))[0]
    low, high, full = map(int, re.findall(r"\d+", batches))
    assert (spec.ladder[0], spec.ladder[-1], spec.full_scale.global_batch_size) == (low, high, full)


def test_init_overwrites_nothing(folder):
    (folder / "study.yaml").write_text("mine")
    said = call("init", "--defaults")
    assert said.exit_code == 2 and "exists already" in said.output
    assert (folder / "study.yaml").read_text() == "mine"
    assert "must exist" in call("init", "--defaults", "--output", "none/study.yaml").output


# the price


def simulated(folder, **changes):
    spec = yaml.safe_load((ROOT / "examples" / "noisy_quadratic.yaml").read_text())
    spec.update(
        name="bowl",
        data={**spec["data"], "modes": 20},
        ladder=[16, 64],
        full_scale={"global_batch_size": 512, "workers": 2},
        budget={"trials": 4, "epochs_per_trial": 30},
        **changes,
    )
    (folder / "bowl.yaml").write_text(yaml.safe_dump(spec))


def test_the_price_counts_every_trial_to_its_end(folder):
    simulated(folder)
    said = json.loads(call("study", "check", "bowl.yaml", "--json").stdout)["price"]
    assert (said["trials"], said["sweep_samples"]) == (4, 4 * 30 * 512)
    assert said["race_samples"] == 30 * 512
    assert said["sweep_seconds"] is None and "simulated" in said["reason"]


@pytest.mark.fit
def test_a_run_that_begins_says_its_price_and_one_that_goes_on_does_not(folder):
    simulated(folder)
    first = call("run", "bowl.yaml")
    assert first.exit_code == 0, first.output
    assert "at most 61,440 samples" in first.stderr
    assert "at most" not in call("run", "bowl.yaml").stderr


def test_the_time_is_that_of_the_rungs_over_the_trials_at_once(folder, monkeypatch):
    spec = hpo.load_study(ROOT / "examples" / "digits.yaml")
    speeds = {16: 4e-3, 128: 1e-3}
    monkeypatch.setattr(price, "_timed", lambda *_: ({0: 0, **speeds}, ""))
    monkeypatch.setattr(local, "cores", lambda: 3)
    found = price.study_price(spec)
    per_rung = 12 * 40 * 1437
    # rungs 16 and 32 are nearer to 16 than to 128, in factors; 64 and 128 to 128
    assert found.sweep_seconds == pytest.approx(per_rung * (4e-3 + 4e-3 + 1e-3 + 1e-3) / 3)
    assert found.race_seconds == pytest.approx(found.race_samples * 1e-3)
    assert found.trials_at_once == 3


def test_what_is_timed_has_a_value_for_every_tuned_setting():
    text = (ROOT / "examples" / "digits.yaml").read_text()
    spec = hpo.parse_study(
        text.replace("search:\n", "search:\n  nesterov: {choice: [true, false]}\n")
    )
    settings = some_settings(spec)
    assert settings.nesterov is True
    assert settings.learning_rate == spec.search.domains["learning_rate"].low


def test_a_machine_without_room_for_a_trial_is_told(monkeypatch):
    text = (ROOT / "examples" / "digits.yaml").read_text() + "resources: {gpus_per_worker: 1}\n"
    monkeypatch.setattr(price, "_timed", lambda *_: ({0: 0, 16: 1e-3}, ""))
    found = price.study_price(hpo.parse_study(text))
    assert found.sweep_seconds is None and "a trial needs" in found.reason


def test_an_update_is_timed_with_its_share_of_the_evaluations():
    """Against a clock of its own: a workload whose every sample takes a known time."""
    job = TrainingJob(
        workload="tests.interfaces.paced_samples:Paced",
        data={"training_seconds": 1e-3, "evaluation_seconds": 2e-3},
        target=Target("loss", 0.1, False),
        settings=TrainingSettings(learning_rate=1e-6, normalization_batch_size=1),
        global_batch_size=8,
        seed=0,
        epochs=100.0,
        evaluations_per_epoch=4,
        search_path=str(ROOT),
    )
    workload = load_workload(job.workload, job.data, job.search_path)
    assert isinstance(workload, Workload)
    assert (workload.train_samples, workload.evaluation_samples) == (4000, 1000)
    # 1 ms to train a sample, and a quarter as many evaluation samples of 2 ms, four times an epoch
    assert 3e-3 <= seconds_per_sample(job, 0.3, workload) < 12e-3


@pytest.mark.slow
def test_the_time_of_a_real_workload_comes_from_a_process_of_its_own(folder):
    text = (ROOT / "examples" / "own_workload" / "cells.yaml").read_text()
    spec = hpo.parse_study(text, folder=ROOT / "examples" / "own_workload")
    found = price.study_price(spec, seconds=500)  # on a machine that does much else
    assert set(found.seconds_per_sample) == {4, 8, 16}, found.reason
    assert 0 < found.sweep_seconds < 36_000


@pytest.mark.slow
def test_a_workload_that_cannot_be_trained_leaves_the_hours_open(folder):
    (folder / "broken.py").write_text(
        (ROOT / "examples/own_workload/cells.py")
        .read_text()
        .replace("def loss(self", "def loss(self, /")
        .replace(
            "return F.cross_entropy(model(batch[0])",
            'raise MemoryError("too large")\n        return F.cross_entropy(model(batch[0])',
        )
    )
    text = (
        (ROOT / "examples/own_workload/cells.yaml")
        .read_text()
        .replace("cells:Cells", "broken:Cells")
    )
    found = price.study_price(hpo.parse_study(text, folder=folder), seconds=500)
    assert found.sweep_seconds is None and "too large" in found.reason


def test_a_bad_study_is_refused_with_its_lines(folder):
    (folder / "bad.yaml").write_text("name: bad\nworkload: resnet\nladder: [4, 2]\n")
    said = call("study", "check", "bad.yaml")
    assert said.exit_code == 2 and "line 3" in said.output


# completion


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_completes_commands(shell, monkeypatch):
    script = CliRunner().invoke(main, env={"_HPO_COMPLETE": f"{shell}_source"}, prog_name="hpo")
    assert "_HPO_COMPLETE" in script.output and "hpo" in script.output


def test_completion_answers_without_heavy_libraries():
    """A shell asks at every key: what answers must not import what a training needs."""
    program = (
        "import sys\nfrom hpo.cli.main import main\n"
        "try: main(prog_name='hpo')\n"
        "finally: print([name for name in ('torch', 'ray', 'scipy') if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={
            "_HPO_COMPLETE": "bash_complete",
            "COMP_WORDS": "hpo st",
            "COMP_CWORD": "1",
            "PYTHONPATH": str(ROOT),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert {"plain,study", "plain,studies", "plain,status"} == set(done.stdout.split())
    assert done.stderr.strip() == "[]"
