"""Importing MLPerf results into a storage, from logs like the real ones, with published figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from hpo.cli.main import main
from hpo.errors import EvidenceError
from hpo.past_runs.mlperf.folders import SubmittedRun, results_in
from hpo.past_runs.mlperf.log import read_log
from hpo.past_runs.mlperf.settings import settings_of_mlperf_run
from hpo.runs import api
from storage.records import PlanKind, TrialState
from storage.store import Store

pytestmark = pytest.mark.fit

IMAGENET = 1_281_167
# global batch size, learning rate, warmup epochs, logged decay steps, momentum, decay, epochs to 75.9 % top-1
LARS_POINTS = [
    (1632, 7.4, 2, 27476, 0.9, 5e-5, 35),
    (3264, 10.5, 2, 14523, 0.9, 5e-5, 35),
    (8192, 17.0, 5, 6095, 0.9, 2e-4, 42),
    (32768, 21.2, 16, 2267, 0.94, 2.5e-5, 56),
]


def line(key: str, value: Any, milliseconds: int, **metadata: Any) -> str:
    document = {
        "namespace": "",
        "time_ms": milliseconds,
        "event_type": "POINT_IN_TIME",
        "key": key,
        "value": value,
        "metadata": {"file": "train.py", "lineno": 1, **metadata},
    }
    return f":::MLLOG {json.dumps(document)}\n"


def resnet_log(
    batch: int,
    rate: float,
    warmup: float,
    steps: int,
    momentum: float,
    decay: float,
    epochs: int,
    *,
    seed: int = 7,
    rate_per_second: float = 25_000.0,
    reach: bool = True,
) -> str:
    start = 1_665_498_554_749
    epoch = int(1000 * IMAGENET / rate_per_second)
    values = {
        "submission_benchmark": "resnet",
        "submission_division": "closed",
        "submission_org": "ACME",
        "seed": seed,
        "model_bn_span": batch // 8,
        "global_batch_size": batch,
        "opt_name": "lars",
        "lars_epsilon": 0,
        "lars_opt_base_learning_rate": rate,
        "lars_opt_end_learning_rate": 0.0001,
        "lars_opt_learning_rate_decay_poly_power": 2,
        "lars_opt_learning_rate_decay_steps": steps,
        "lars_opt_learning_rate_warmup_epochs": warmup,
        "lars_opt_momentum": momentum,
        "lars_opt_weight_decay": decay,
        "train_samples": IMAGENET,
        "eval_samples": 50_000,
    }
    text = "+ echo 'Beginning trial 1 of 5'\n" + "".join(
        line(key, value, start) for key, value in values.items()
    )
    text += line("run_start", None, start)
    for number in range(1, epochs + 1):
        end = start + number * epoch
        text += (
            line("epoch_start", None, end - epoch, epoch_num=number)
            + f"Node[0] Epoch[{number}] Time cost=51\n"
        )
        text += line("epoch_stop", None, end, epoch_num=number)
        text += "rank 0: " + line("tracked_stats", {"throughput": 6_882_503.2}, end, step=number)
        if number % 4 == epochs % 4:
            text += line("eval_start", None, end, epoch_num=number)
            accuracy = 0.7593 if number == epochs and reach else 0.74 * number / epochs
            text += line("eval_accuracy", accuracy, end + 100, epoch_num=number)
            text += line("eval_stop", None, end + 100, epoch_num=number)
            start += 100
    return text + line(
        "run_stop", None, start + epochs * epoch + 100, status="success" if reach else "aborted"
    )


DEEPCAM = {
    "submission_benchmark": "deepcam",
    "submission_division": "closed",
    "seed": 1662603011,
    "number_of_ranks": 128,
    "number_of_nodes": 32,
    "accelerators_per_node": 4,
    "global_batch_size": 256,
    "batchnorm_group_size": 1,
    "gradient_accumulation_frequency": 1,
    "opt_name": "LAMB",
    "opt_lr": 0.0025,
    "opt_betas": [0.9, 0.999],
    "opt_eps": 1e-6,
    "opt_weight_decay": 0.01,
    "opt_max_grad_norm": 1.0,
    "scheduler_type": "multistep",
    "scheduler_milestones": [4096, 8192],
    "scheduler_decay_rate": 0.2,
    "scheduler_lr_warmup_steps": 100,
    "train_samples": 121266,
}


def deepcam_log(**changed: Any) -> str:
    values = {**DEEPCAM, **changed}
    text = "".join(line(key, value, 1000) for key, value in values.items()) + line(
        "run_start", None, 2000
    )
    clock = 2000
    for number in range(1, 10):  # the first epoch waits for its data
        clock += 380_000 if number == 1 else 42_340
        text += line("eval_start", None, clock, epoch_num=number)
        clock += 1850
        text += line(
            "eval_accuracy",
            0.58 if number < 9 else 0.821,
            clock,
            epoch_num=number,
            step_num=473 * number,
        )
        text += line("eval_stop", None, clock, epoch_num=number)
    return text + line("run_stop", None, clock, status="success")


@pytest.fixture
def round_folder(tmp_path: Path) -> Path:
    """Two submitters of a round, as the repositories of the rounds hold them."""
    root = tmp_path / "training_results_v2.1"
    for number, point in enumerate(LARS_POINTS):
        system = root / "ACME" / "results" / f"dgx_{8 * 2**number}" / "resnet"
        system.mkdir(parents=True)
        for seed in range(2):
            (system / f"result_{seed}.txt").write_text(resnet_log(*point, seed=seed))
        described = {
            "number_of_nodes": f"{2**number}",
            "accelerators_per_node": "8",
            "division": "closed",
        }
        (root / "ACME" / "systems").mkdir(exist_ok=True)
        (root / "ACME" / "systems" / f"dgx_{8 * 2**number}.json").write_text(json.dumps(described))
    return root


def only(path: Path) -> SubmittedRun:
    (found,) = results_in(path)
    assert isinstance(found, SubmittedRun), found
    return found


def test_a_resnet_log_in_this_projects_terms(round_folder: Path) -> None:
    result = only(round_folder / "ACME" / "results" / "dgx_64" / "resnet" / "result_1.txt")
    assert (result.round, result.submitter, result.system) == ("training_v2.1", "ACME", "dgx_64")
    assert (result.nodes, result.accelerators, result.global_batch_size) == (8, 64, 32768)
    settings = result.settings
    assert (settings.optimizer, settings.learning_rate, settings.momentum) == ("lars", 21.2, 0.94)
    assert (settings.warmup_epochs, settings.weight_decay) == (16, 2.5e-5)
    assert (settings.decay, settings.decay_power) == ("polynomial", 2)
    # 2267 updates of 32768 are 57.98 epochs, which outlast the run's 56: they count from the first update
    assert settings.decay_epochs == pytest.approx(2267 * 32768 / IMAGENET)
    assert settings.end_learning_rate_factor == pytest.approx(0.0001 / 21.2)
    assert settings.normalization_batch_size == 4096
    # by the clock, not by the log, which tells of epochs that were only queued
    assert result.run.samples_per_second == pytest.approx(25_000, rel=1e-4)
    assert [each.epochs for each in result.run.evaluations][-2:] == [52, 56]


@pytest.mark.parametrize(
    ("name", "form"), [("sgdwfastlars", "corrected"), ("sgdwlars", "corrected"), ("lars", None)]
)
def test_lars_of_nvidias_code_has_the_corrected_momentum(
    tmp_path: Path, name: str, form: str | None
) -> None:
    log = tmp_path / "result_0.txt"
    log.write_text(resnet_log(*LARS_POINTS[0]) + line("s_optimizer", name, 1))
    assert settings_of_mlperf_run(read_log(log), workers=8).momentum_form == form


def test_decay_steps_that_end_before_the_run_count_from_the_end_of_the_warmup(
    round_folder: Path,
) -> None:
    result = only(round_folder / "ACME" / "results" / "dgx_8" / "resnet" / "result_0.txt")
    assert result.settings.decay_epochs == pytest.approx(
        27476 * 1632 / IMAGENET + 2
    )  # 34.9997 + 2 for a run of 35
    early = only(round_folder / "ACME" / "results" / "dgx_32" / "resnet" / "result_0.txt")
    assert early.settings.decay_epochs == pytest.approx(
        6095 * 8192 / IMAGENET + 5
    )  # 39.0 + 5 for a run of 42


def test_a_deepcam_log_in_this_projects_terms(tmp_path: Path) -> None:
    folder = (
        tmp_path
        / "hpc_results_v3.0"
        / "Dell"
        / "results"
        / "32xXE8545x4A100"
        / "strong"
        / "deepcam"
    )
    folder.mkdir(parents=True)
    (folder / "result_0.txt").write_text(deepcam_log())
    result = only(folder)
    settings = result.settings
    assert (settings.optimizer, settings.learning_rate) == ("lamb", 0.0025)
    assert (settings.beta2, settings.epsilon) == (0.999, 1e-6)
    # the reference's scheduler counts milestones from the update after its warmup of 100
    assert settings.decay_milestones == pytest.approx((4197 * 256 / 121266, 8293 * 256 / 121266))
    assert settings.warmup_epochs == pytest.approx(100 * 256 / 121266)
    assert (
        settings.decay_factor,
        settings.gradient_clip_norm,
        settings.normalization_batch_size,
    ) == (0.2, 1.0, 2)
    assert (result.nodes, result.accelerators) == (32, 128)
    assert result.run.samples_per_second == pytest.approx(
        121_266 / 42.34
    )  # the log itself said 2860
    assert result.source == "MLPerf hpc_v3.0/Dell/32xXE8545x4A100/strong/deepcam/result_0"


def test_outcomes_throughputs_and_a_forecast_from_them(round_folder: Path, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'hpo.db'}"
    said = CliRunner().invoke(
        main, ["import", "mlperf", str(round_folder), "--storage", url, "--json"]
    )
    assert said.exit_code == 0, said.output
    assert json.loads(said.stdout) == {
        "outcomes": {"mlperf-training-v2.1-resnet": 8},
        "known": 0,
        "left_out": [],
    }
    again = CliRunner().invoke(main, ["import", "mlperf", str(round_folder), "--storage", url])
    assert "0 new outcomes" in again.output
    assert "8 existed already" in again.output
    with Store.open(url) as store:
        study = store.study("mlperf-training-v2.1-resnet")
        plans = sorted(store.plans(study.id), key=lambda plan: plan.workers)
        assert [(plan.kind, plan.workers, plan.global_batch_size) for plan in plans] == [
            (PlanKind.IMPORTED, 8 * 2**number, point[0]) for number, point in enumerate(LARS_POINTS)
        ]
        outcomes = store.outcomes(plans[-1].id)
        assert [(each.state, each.epochs_to_target, each.seed) for each in outcomes] == [
            (TrialState.REACHED, 56.0, 0),
            (TrialState.REACHED, 56.0, 1),
        ]
        rates = sorted(store.throughputs(workload="resnet"), key=lambda rate: rate.accelerators)
        assert [(each.accelerators, each.global_batch_size) for each in rates] == [
            (8 * 2**number, point[0]) for number, point in enumerate(LARS_POINTS)
        ]
        assert all(each.samples_per_second == pytest.approx(25_000, rel=1e-4) for each in rates)
        assert store.calibration() == []
    # three smaller batches predict the largest, of which the fit does not know: 56 epochs were published
    forecast = api.forecast(api.read_study("mlperf-training-v2.1-resnet", url), 32768)
    assert forecast.epochs_to_target.low < 56 < forecast.epochs_to_target.high
    assert forecast.settings.optimizer == "lars"
    for command in (["show", "mlperf-training-v2.1-resnet"], ["calibration"], ["studies"]):
        shown = CliRunner().invoke(main, [*command, "--storage", url])
        assert shown.exit_code == 0, shown.output


def test_a_run_that_missed_its_target_is_censored(tmp_path: Path) -> None:
    folder = tmp_path / "ACME" / "results" / "tiny" / "resnet"
    folder.mkdir(parents=True)
    (folder / "result_0.txt").write_text(resnet_log(*LARS_POINTS[0], reach=False))
    url = f"sqlite:///{tmp_path / 'hpo.db'}"
    said = CliRunner().invoke(
        main, ["import", "mlperf", str(tmp_path), "--storage", url, "--round", "training_v9.9"]
    )
    assert said.exit_code == 0, said.output
    with Store.open(url) as store:
        (plan,) = store.plans(store.study("mlperf-training-v9.9-resnet").id)
        (outcome,) = store.outcomes(plan.id)
    assert (outcome.state, outcome.epochs_to_target, outcome.epochs) == (
        TrialState.CENSORED,
        None,
        35.0,
    )
    assert outcome.reason == "ended as aborted"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nothing\n", "holds no run_start"),
        (line("run_start", None, 1), "holds no run_stop"),
        (":::MLLOG {broken\n", "line 1: an MLLOG line must be JSON"),
        (line("run_start", None, 1) + line("run_stop", None, 2), "has no submission_benchmark"),
        (deepcam_log(opt_name="Sorcery"), "opt_name must be one of adam, adamw, lamb, lars"),
        (deepcam_log(global_batch_size=None), "has no global_batch_size"),
    ],
)
def test_logs_that_cannot_be_read_say_why(tmp_path: Path, text: str, said: str) -> None:
    folder = tmp_path / "ACME" / "results" / "tiny" / "deepcam"
    folder.mkdir(parents=True)
    (folder / "result_0.txt").write_text(text)
    (found,) = results_in(tmp_path)
    assert isinstance(found, EvidenceError)
    assert said in str(found)
    assert "result_0.txt" in str(found)
    shown = CliRunner().invoke(
        main, ["import", "mlperf", str(tmp_path), "--storage", str(tmp_path / "hpo.db")]
    )
    assert shown.exit_code == 2
    assert said in shown.output


POINT = LARS_POINTS[0]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (resnet_log(*POINT).replace('"value": 0.7593', '"value": null'), "not 'NoneType'"),
        (resnet_log(*POINT).replace('"epoch_num": 35', '"epoch_num": null'), "not 'NoneType'"),
        (resnet_log(*POINT).replace('"epoch_num": 35', '"epoch_num": Infinity'), "but got inf"),
        (resnet_log(*POINT) + line("number_of_nodes", "N/A", 1), "'N/A'"),
        (resnet_log(*POINT) + line("number_of_nodes", 10**12, 1), "nodes must be a whole number"),
        (resnet_log(*POINT) + line("seed", "abc", 1), "'abc'"),
        (resnet_log(*POINT) + ':::MLLOG {"key": "x", "value": 1, "time_ms": 1, "metadata": [1]}\n', "'get'"),
        (resnet_log(*POINT).replace("lars_opt_base_learning_rate", "speed"), "holds no learning rate"),
    ],
)  # fmt: skip
def test_one_odd_value_leaves_out_its_file_and_no_other(
    round_folder: Path, tmp_path: Path, text: str, said: str
) -> None:
    odd = round_folder / "ACME" / "results" / "dgx_8" / "resnet" / "result_1.txt"
    odd.write_text(text)
    shown = CliRunner().invoke(
        main, ["import", "mlperf", str(round_folder), "--storage", f"{tmp_path}/hpo.db", "--json"]
    )
    assert shown.exit_code == 0, shown.output
    done = json.loads(shown.stdout)
    assert done["outcomes"] == {"mlperf-training-v2.1-resnet": 7}
    (left_out,) = done["left_out"]
    assert str(odd) in left_out
    assert said in left_out


def test_a_folder_without_results_says_where_to_look(tmp_path: Path) -> None:
    shown = CliRunner().invoke(
        main, ["import", "mlperf", str(tmp_path), "--storage", str(tmp_path / "hpo.db")]
    )
    assert shown.exit_code == 2
    assert "holds no result_*.txt" in shown.output


def test_throughput_where_the_log_tells_no_start_of_an_evaluation(tmp_path: Path) -> None:
    text = "".join(
        row for row in resnet_log(*LARS_POINTS[0]).splitlines(True) if "eval_st" not in row
    )
    (tmp_path / "log.txt").write_text(text)
    seconds = 4 * 51.246 + 0.1  # four epochs and the evaluation after them
    assert read_log(tmp_path / "log.txt").samples_per_second == pytest.approx(
        4 * IMAGENET / seconds, rel=1e-3
    )
