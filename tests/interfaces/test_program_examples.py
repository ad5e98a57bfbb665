"""The example programs, tuned, forecast, planned, launched and scored as docs/guides/programs.md says."""

import dataclasses
import importlib.util
import json
import re
import shutil
import sys
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

import hpo
from hpo.cli.main import main
from hpo.runs.repository import open_store
from hpo.study.jobs import training_job
from search_spaces.settings import TrainingSettings
from trainers.begin import begin_training
from trainers.workloads.program.training import ProgramPlace

pytestmark = [pytest.mark.slow, pytest.mark.fit, pytest.mark.processes]

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "programs"


def hpo_command(folder, *words):
    """What a command of `hpo` prints, as JSON; it may leave with 1, which says that a training missed its target."""
    done = CliRunner().invoke(
        main, [*map(str, words), "--json", "--storage", f"sqlite:///{folder}/hpo.db"]
    )
    assert done.exit_code in (0, 1) and done.stdout, done.output
    return json.loads(done.stdout)


def needing(library, *values):
    return pytest.param(
        *values,
        id=values[0],
        marks=pytest.mark.skipif(
            importlib.util.find_spec(library) is None,
            reason=f"{library} is not installed: pip install 'largebatch[frameworks]'",
        ),
    )


@pytest.mark.parametrize(
    ("name", "trials", "workers"),
    [
        needing("torch", "ddp", 1, 2),
        needing("torch", "fsdp", 1, 2),
        needing("accelerate", "with_accelerate", 1, 2),
        needing("lightning", "with_lightning", 1, 1),
        needing("transformers", "with_trainer", 1, 1),
        needing("numpy", "prints", 3, 1),
    ],
)
def test_an_example_is_tuned_forecast_planned_launched_and_scored(
    tmp_path, one_ray, name, trials, workers
):
    """As it is shipped, but for a smaller budget, and no more rungs than trials.

    Every training of it starts processes that import its library, which takes longer than the training.
    """
    shutil.copytree(EXAMPLES, tmp_path / "programs")
    file = tmp_path / "programs" / f"{name}.yaml"
    study = yaml.safe_load(file.read_text())
    assert study["budget"]["trials"] > trials
    study["budget"]["trials"] = trials
    study["ladder"] = study["ladder"][:trials]  # a rung has a trial at least
    file.write_text(yaml.safe_dump(study))

    document = hpo_command(tmp_path, "run", file, "--folder", tmp_path / "files")
    assert document["study"]["state"] == "finished"
    assert document["trials"]["total"] == trials
    assert document["trials"]["failed"] == 0 < document["trials"]["reached"]
    full, plan = study["full_scale"], document["plan"]
    batch = full["global_batch_size"]
    assert document["forecast"]["global_batch_size"] == plan["global_batch_size"] == batch
    assert plan["workers"] == full["workers"]
    check_trials(hpo.read_study(name, f"sqlite:///{tmp_path}/hpo.db"), tmp_path / "files", workers)

    (launched,) = hpo_command(tmp_path, "launch", plan["id"], "--folder", tmp_path / "plan")
    assert launched["state"] in ("reached", "censored") and launched["workers"] == full["workers"]
    (row,) = hpo_command(tmp_path, "calibration")
    assert row["plan_id"] == plan["id"] and row["runs"] == 1


def check_trials(result, files, workers):
    """Each was trained by so many workers and reported every epoch."""
    with open_store(result.storage) as store:
        curves = {trial.number: store.points(trial.id) for trial in result.trials}
    for trial in result.trials:
        folder = files / "trials" / str(trial.study_id) / str(trial.number)
        assert json.loads((folder / "trial.json").read_text())["workers"] == workers
        epochs = [point.epochs for point in curves[trial.number]]
        assert epochs == pytest.approx([epoch + 1 for epoch in range(len(epochs))])


def test_the_example_with_two_workers_has_six_lines_for_hpo():
    lines = (EXAMPLES / "ddp.py").read_text().splitlines()
    marked = [int(number) for line in lines for number in re.findall(r"# (\d)", line)]
    assert marked == [1, 2, 3, 4, 5, 6]
    assert not any("hpo" in line for line in lines[3:] if "# " not in line)


def test_torchtitan_s_command_line_is_a_study_and_what_it_prints_is_read():
    done = CliRunner().invoke(
        main, ["study", "check", str(EXAMPLES / "torchtitan.yaml"), "--no-timing", "--json"]
    )
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["name"] == "torchtitan"
    pattern = re.compile(hpo.load_study(EXAMPLES / "torchtitan.yaml").program.report.pattern)
    found = pattern.search(  # torchtitan/components/metrics.py, without colours
        "[titan] 2025-09-11 14:08:37,123 - root - INFO - validate step: 100  loss:  3.1416  "
        "memory: 40.12GiB(50.71%)  tps: 12,345"
    )
    assert (found["steps"], found["loss"]) == ("100", "3.1416")
    assert not pattern.search("step: 100  loss:  3.1416  grad_norm:  1.0000  memory: 40.12GiB")


FAKE_LAUNCHER = """\
#!{python}
import json, sys
words = sys.argv[1:]
with open("seen.jsonl", "a") as seen:
    seen.write(json.dumps(words) + "\\n")
if int(words[words.index("--per_device_train_batch_size") + 1]) > 8:
    sys.exit("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB")
print("{{'loss': 3.9, 'grad_norm': 1.2, 'learning_rate': 0.0003, 'epoch': 0.4}}")
print("{{'eval_loss': 3.25, 'eval_accuracy': 0.4, 'eval_runtime': 9.1, 'epoch': 0.5}}")
print("{{'eval_loss': '3.05', 'eval_runtime': '9.1', 'epoch': '1'}}")  # as transformers 5 writes it
"""


def test_deepspeed_s_command_line_is_a_study_and_is_run_as_it_reads(tmp_path, monkeypatch):
    """By a fake for DeepSpeed's launcher, whose memory holds a micro batch of 8."""
    file = EXAMPLES / "with_deepspeed.yaml"
    done = CliRunner().invoke(main, ["study", "check", str(file), "--no-timing", "--json"])
    assert done.exit_code == 0, done.output
    spec = hpo.load_study(file)
    launcher = tmp_path / "bin" / "deepspeed"
    launcher.parent.mkdir()
    launcher.write_text(FAKE_LAUNCHER.format(python=sys.executable))
    launcher.chmod(0o755)
    monkeypatch.setenv("PATH", str(launcher.parent), prepend=":")
    settings = TrainingSettings(
        optimizer="adamw", learning_rate=0.0003, weight_decay=0.01, own={"warmup_steps": 100}
    )
    job = dataclasses.replace(training_job(spec, settings, 256, seed=7), search_path=str(tmp_path))
    place = ProgramPlace(tmp_path / "trial", workers_per_node=4, master_port=29501)
    training = begin_training(job, place=place)
    points = [training.advance(), training.advance()]
    assert [(point.epochs, point.metric) for point in points] == [(0.5, 3.25), (1, 3.05)]
    seen = [json.loads(line) for line in (tmp_path / "seen.jsonl").read_text().splitlines()]
    sizes = [(64, 1), (32, 2), (16, 4), (8, 8)]  # 4 workers of 64 samples each
    for words, (micro, accumulation) in zip(seen, sizes, strict=True):
        assert words == (
            "--master_port 29501 run_clm.py --deepspeed with_deepspeed.json --bf16 --model_name_or_path gpt2 "
            "--dataset_name wikitext --dataset_config_name wikitext-103-raw-v1 --block_size 1024 "
            f"--per_device_train_batch_size {micro} --gradient_accumulation_steps {accumulation} "
            "--learning_rate 0.0003 --weight_decay 0.01 --warmup_steps 100 --num_train_epochs 1 --seed 7 --do_train "
            "--do_eval --eval_strategy steps --eval_steps 50 --save_steps 200 "
            f"--output_dir {tmp_path / 'trial' / 'checkpoint'}"
        ).split(" ")
    told = json.loads((EXAMPLES / "with_deepspeed.json").read_text())
    of_the_command_line = {"train_batch_size", "train_micro_batch_size_per_gpu"}
    of_the_command_line |= {"gradient_accumulation_steps"}
    assert {told[name] for name in of_the_command_line} == {"auto"}
    assert "optimizer" not in told and "scheduler" not in told  # the script's, with its rate


def test_the_study_of_the_page_is_one():
    text = (ROOT / "docs" / "guides" / "programs.md").read_text()
    study = next(
        block
        for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
        if "name: mine" in block
    )
    indented = "\n".join(line.removeprefix("   ") for line in study.splitlines())
    spec = hpo.parse_study(indented)
    assert spec.search.own_names == ("drop_path",) and spec.resources.workers == 4
