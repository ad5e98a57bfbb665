"""`hpo plan`: what it prints, what it stores, and its messages for impossible plans."""

import dataclasses
import json
import shutil

import pytest
from click.testing import CliRunner

import hpo
from hpo.cli.main import main
from hpo.cli.output.plan_text import show_plan
from hpo.errors import PlanError
from hpo.planning.plan import Plan
from hpo.planning.schedulers import SCHEDULERS
from hpo.runs import api
from storage.records import NewThroughput
from storage.store import Store

pytestmark = pytest.mark.fit

SUMMIT = ("--machine", "summit", "--cost", "resnet50")


def call(*arguments, code=0):
    result = CliRunner().invoke(main, ["plan", "cells", *map(str, arguments)])
    assert result.exit_code == code, result.output
    return result.stdout if code == 0 else result.stderr


def planned(study, *arguments):
    return json.loads(call(*arguments, "--output", study.folder / "plan", "--json"))


def test_a_plan_on_a_machine_tells_placement_time_cost_and_chance(study):
    plan = planned(study, *SUMMIT, "--slot", "2", "--global-batch-size", "96")
    assert plan["nodes"] * plan["ranks_per_node"] == plan["workers"]
    assert plan["workers"] * plan["local_batch_size"] == plan["global_batch_size"] == 96
    assert (
        plan["micro_batch_size"]
        <= plan["local_batch_size"]
        <= plan["micro_batch_size"] * plan["accumulation_steps"]
    )
    for name in ("epochs_to_target", "seconds_to_target", "accelerator_hours", "energy_kwh"):
        assert 0 < plan[name]["low"] < plan[name]["median"] < plan[name]["high"]
    hours = plan["seconds_to_target"]["median"] / 3600 * plan["nodes"] * 6
    assert plan["accelerator_hours"]["median"] == pytest.approx(hours)
    assert plan["energy_kwh"]["median"] == pytest.approx(hours * 0.3)  # 300 W each
    assert (
        plan["launcher"] == "lsf"
        and plan["slot_seconds"] == 7200
        and 0.9 < plan["chance_in_slot"] <= 1
    )
    details = plan["details"]
    assert plan["limited_by"] == max(details["shares"], key=details["shares"].get)
    assert sum(details["shares"].values()) == pytest.approx(1)
    assert [row["chosen"] for row in details["front"]].count(True) == 1
    assert details["pilot_runs"][0]["overturned_by"] and details["sensitivity"]
    assert {path.name for path in (study.folder / "plan").iterdir()} == {
        "plan.json",
        "job.json",
        "launch.sh",
    }
    job = json.loads((study.folder / "plan" / "job.json").read_text())
    assert (job["global_batch_size"], job["micro_batch_size"]) == (96, plan["micro_batch_size"])


@pytest.mark.slow
def test_what_is_stored_is_what_was_made(study):
    made, plan = api.plan_study(
        study.result, "summit", cost="resnet50", slot_hours=2.0, global_batch_size="best"
    )
    assert made.global_batch_size == plan.global_batch_size
    kept = hpo.store_plan(made, plan, study.folder / "plan")
    assert dataclasses.replace(kept, id=None) == plan
    assert (
        hpo.find_plan(str(kept.id), study.storage)
        == kept
        == hpo.find_plan(str(study.folder / "plan"))
    )
    assert hpo.store_plan(made, plan, study.folder / "plan").id == kept.id
    assert hpo.read_study("cells", study.storage).runs[-1].plan == kept


def test_a_plan_file_of_the_first_version_reads_as_it_was(study):
    plan = hpo.make_plan(hpo.forecast(study.result, 64), workers=2)
    new = (
        "ranks_per_node",
        "micro_batch_size",
        "accumulation_steps",
        "launcher",
        "slot_seconds",
        "chance_in_slot",
        "limited_by",
        "accelerator_hours",
        "energy_kwh",
        "details",
    )
    old = {name: value for name, value in plan.to_dict().items() if name not in new}
    read = hpo.Plan.from_dict(json.loads(json.dumps(old)))
    assert read == dataclasses.replace(plan, accelerator_hours=None, limited_by="", details=None)
    assert (read.ranks_per_node, read.launcher) == (2, "local")


def test_the_best_batch_lies_within_what_the_evidence_supports(study):
    plan = planned(study, *SUMMIT, "--global-batch-size", "best")
    smallest, largest = plan["details"]["supported_batches"]
    assert (smallest, largest) == (4, 16 * 16)
    assert smallest <= plan["global_batch_size"] <= largest
    forecast = hpo.forecast(study.result, plan["global_batch_size"])
    assert plan["epochs_to_target"]["median"] == pytest.approx(
        forecast.epochs_to_target.median, rel=1e-6
    )
    assert plan["settings"] == forecast.settings.to_dict()


def test_more_nodes_than_the_studys_batch_fills_take_another_batch(study):
    plan = planned(study, *SUMMIT, "--nodes", "4560")
    assert (plan["nodes"], plan["workers"]) == (4560, 27360) and plan[
        "global_batch_size"
    ] % 27360 == 0
    assert plan["trust"] == "low" and plan["limited_by"] == "statistics"
    assert "full-scale batch of 64 is too small for 4560 nodes" in plan["details"]["notes"][0]


def test_the_cheapest_plan_that_meets_a_deadline(study):
    cheap = planned(
        study, *SUMMIT, "--global-batch-size", "best", "--minimise", "accelerator_hours"
    )
    fast = planned(study, *SUMMIT, "--global-batch-size", "best")
    between = (
        cheap["seconds_to_target"]["median"] * fast["seconds_to_target"]["median"]
    ) ** 0.5 + 300
    meets = planned(
        study,
        *SUMMIT,
        "--global-batch-size",
        "best",
        "--deadline",
        between / 3600,
        "--chance",
        "0.6",
    )
    assert meets["details"]["chance_by_deadline"] >= 0.6
    hours = [plan["accelerator_hours"]["median"] for plan in (cheap, meets, fast)]
    assert hours == sorted(hours)


def test_measured_throughputs_come_before_the_time_model(study):
    modelled = planned(study, *SUMMIT)
    with Store.open(study.storage) as store:
        store.add_throughputs(
            [
                NewThroughput(
                    machine="summit",
                    workload="resnet50",
                    nodes=nodes,
                    accelerators=6 * nodes,
                    global_batch_size=12 * nodes,
                    precision="fp32",
                    samples_per_second=100.0 * nodes,
                    source="a test run",
                )
                for nodes in (1, 2, 4)
            ]
        )
    measured = planned(study, *SUMMIT, "--nodes", "1", "--ranks-per-node", "4")
    rate = measured["details"]["rate"]
    assert rate["source"] == "3 throughputs measured on summit"
    assert "time model" in modelled["details"]["rate"]["source"]
    assert 50 < rate["samples_per_second"]["median"] < 200


def test_this_machine_needs_no_costs(study):
    plan = planned(study, "--workers", "1")
    forecast = hpo.forecast(study.result, 64)
    seconds = (
        forecast.epochs_to_target.median * forecast.train_samples / forecast.samples_per_second
    )
    assert plan["seconds_to_target"]["median"] == pytest.approx(seconds)
    assert plan["accelerator_hours"]["median"] == pytest.approx(seconds / 3600)
    assert plan["launcher"] == "local" and plan["micro_batch_size"] is None


@pytest.mark.parametrize(
    "launcher",
    [
        pytest.param(each, marks=() if each in ("local", "slurm") else pytest.mark.slow)
        for each in SCHEDULERS
    ],
)
def test_every_launcher_can_be_named(study, launcher):
    assert planned(study, *SUMMIT, "--launcher", launcher)["launcher"] == launcher


@pytest.mark.slow
def test_a_plan_is_readable_in_a_hundred_columns(study):
    text = call(*SUMMIT, "--slot", "1", "--global-batch-size", "best", "--output", "plan")
    assert all(len(line.rstrip()) <= 100 for line in text.splitlines())
    for words in (
        "each worker takes",
        "epochs to target",
        "time to target",
        "accelerator hours",
        "kWh",
        "chance in the slot",
        "limited by",
        "settings: optimizer sgd",
        "trust",
        "time against accelerator",
        "what if:",
        "pilot run 1",
        "would overturn",
        "launch it with",
    ):
        assert words in text


def test_a_plan_of_an_earlier_release_shows_its_pilot_runs(study, capsys):
    values = planned(study, *SUMMIT, "--slot", "1", "--global-batch-size", "best")
    values["details"]["rehearsal"] = values["details"].pop("pilot_runs")
    show_plan(Plan.from_dict(values), study.folder / "plan")
    assert "pilot run 1" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            (*SUMMIT, "--nodes", "5000"),
            "nodes must be between 1 and 4608, the nodes of summit, but got 5000",
        ),
        ((*SUMMIT, "--nodes", "5", "--global-batch-size", "64"), "64 samples per update, 5 nodes"),
        ((*SUMMIT, "--ranks-per-node", "7"), "ranks per node must be between 1 and 6"),
        ((*SUMMIT, "--micro-batch-size", "4096"), "a micro batch of 4096 samples takes"),
        ((*SUMMIT, "--slot", "0.01"), "a slot of 36 s is too short"),
        ((*SUMMIT, "--deadline", "0.01"), "the deadline of 36 s must be met with a chance of 90%"),
    ],
)
def test_an_impossible_plan_names_one_that_can_be_made(study, arguments, words):
    message = call(*arguments, code=2)
    assert words in message and message.count("\n") == 1
    options = message.split("the nearest possible plan: ")[1].split("; or ")[0].split()
    again = planned(study, *SUMMIT, *options)
    assert again["nodes"] == int(options[options.index("--nodes") + 1])
    assert again["global_batch_size"] == int(options[options.index("--global-batch-size") + 1])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--machine", "sumit"), "did you mean 'summit'"),
        (("--machine", "summit", "--cost", "resnt50"), "did you mean 'resnet50'"),
        (("--machine", "summit", "--slot", "2"), "give the cost of a sample with --cost NAME|FILE"),
        (("--machine", "summit", "--minimise", "energy"), "--cost NAME|FILE"),
        (
            ("--slot", "-1"),
            "slot_hours must be a number of hours above 0 and at most 1,000,000, but got -1",
        ),
        (("--chance", "1.5"), "chance must be a probability between 0 and 1"),
        (
            ("--global-batch-size", "bset"),
            "must be a whole number of samples of at least 1, or 'best'",
        ),
        (("--workers", "3"), "the nearest number of workers that divides it is 2"),
        (("--minimise", "energy"), "does not give the power of an accelerator in watts"),
    ],
)
def test_what_cannot_be_asked_is_refused(study, arguments, words):
    assert words in call(*arguments, code=2)


@pytest.mark.slow
def test_costs_from_a_file(study):
    cost = study.folder / "cost.yaml"
    text = (
        "parameters: 1000000\ngradient_tensors: 10\nflops_per_sample: 1.0e+9\n"
        "activation_bytes_per_sample: 1.0e+6\nsample_bytes: 0\n"
    )
    cost.write_text(text)
    small, large = planned(study, "--machine", "summit", "--cost", cost), planned(study, *SUMMIT)
    assert small["seconds_to_target"]["median"] < large["seconds_to_target"]["median"]
    assert small["details"]["evaluation"] is None
    cost.write_text(text + "host_seconds_per_sample: 10.0\nevaluation_samples: 1000\n")
    decoding = planned(study, "--machine", "summit", "--cost", cost)
    assert decoding["details"]["rate"]["limited_by"] == "input"
    assert decoding["details"]["evaluation"]["seconds"] > 0
    assert "evaluation   " in call("--machine", "summit", "--cost", cost)
    for broken, words in (
        (text.replace("1000000", "1.5"), "parameters must be a whole number above 0"),
        (text.replace("sample_bytes: 0\n", ""), "has the keys parameters"),
        (text + "host_seconds: 1\n", "may have host_seconds_per_sample and evaluation_samples"),
        (text + "evaluation_samples: 1.5\n", "evaluation_samples must be a whole number"),
        (text + "host_seconds_per_sample: -1\n", "host_seconds_per_sample must be a finite"),
        (text.replace("1.0e+9", "-1"), "flops_per_sample must be a finite number above 0"),
    ):
        cost.write_text(broken)
        assert words in call("--machine", "summit", "--cost", cost, code=2)


def test_a_machine_of_ones_own_is_known_to_the_script(study):
    from hpo.planning.machines import machine_text

    own = study.folder / "mine.yaml"
    own.write_text(machine_text("superpod").replace("name: superpod", "name: mine"))
    plan = planned(study, "--machine", own, "--cost", "resnet50")
    assert (plan["machine"], plan["launcher"], plan["details"]["machine_file"]) == (
        "mine",
        "slurm",
        str(own),
    )
    script = (study.folder / "plan" / "launch.sh").read_text()
    assert "#SBATCH" in script and "gpus" in script  # which only the file tells


def test_an_error_carries_the_arguments_of_the_nearest_plan(study):
    forecast = hpo.forecast(study.result, 64)
    with pytest.raises(PlanError) as caught:
        hpo.make_plan(forecast, "summit", nodes=5, cost="resnet50")
    plan = hpo.make_plan(forecast, "summit", cost="resnet50", **caught.value.nearest)
    assert plan.nodes <= 5 and plan.global_batch_size == 64
    with pytest.raises(PlanError, match="no option 'slots'; did you mean 'slot_hours'"):
        hpo.make_plan(forecast, slots=3)


@pytest.mark.slow
def test_a_plan_that_exists_is_written_to_a_folder_again(study):
    asked = (*SUMMIT, "--slot", "2", "--global-batch-size", "96")
    first = planned(study, *asked)
    shutil.rmtree(study.folder / "plan")
    again = planned(study, *asked)
    assert again["id"] == first["id"]
    assert {path.name for path in (study.folder / "plan").iterdir()} == {
        "plan.json",
        "job.json",
        "launch.sh",
    }
