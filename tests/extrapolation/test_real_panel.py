"""The panel of real trainings: its cases are valid studies, and its surface and scores recover known answers."""

import dataclasses
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from benchmarks.real_panel import cases, scores, sweeps, trainings
from benchmarks.real_panel.recommendations import (
    FORECAST,
    METHODS,
    RACED,
    Recommended,
    recommendations,
)
from benchmarks.real_panel.surface import Surface, log_optimum
from benchmarks.real_panel.trainings import FIRST_SEED, LOST_EPOCHS, Training, Trainings
from benchmarks.real_panel.workloads import Text, convolutional_network, dense_network
from search_spaces.settings import TrainingSettings


@pytest.fixture
def panel(tmp_path):
    for split in ("train", "test"):
        (tmp_path / "images" / split / "cat").mkdir(parents=True)
    return {case.name: case for case in cases.panel(tmp_path / "images", tmp_path / "output")}


def training(case, rate, warmup, seed, epochs, state="reached"):
    return Training(
        case.name,
        512,
        {"learning_rate": rate, "warmup_epochs": warmup},
        FIRST_SEED + seed,
        state,
        epochs,
        0.0,
        (),
        (),
        (),
    )


def test_every_case_is_a_valid_study_and_a_third_is_held_out(panel):
    assert {"digits", "plain", "dense", "cifar", "cells", "climate", "text"} == {
        case.workload for case in panel.values()
    }
    for case in panel.values():
        specs = list(case.specs())
        assert len({spec.name for spec in specs}) == len(specs) == sum(case.samplers.values())
        assert case.batches == (4 * case.ladder[-1], 8 * case.ladder[-1])
        assert {"learning_rate", "warmup_epochs"} <= set(specs[0].search.scaled)
        assert case.grid_from is not None or case.optimum_of in panel or case.held_out
    assert 3 * sum(case.held_out for case in panel.values()) >= len(panel)


def test_without_images_only_the_cases_on_them_are_left_out(panel, tmp_path):
    left = {case.name for case in cases.panel(None, tmp_path)}
    assert left == {
        name for name, case in panel.items() if case.workload not in ("plain", "dense", "cifar")
    }


@torch.no_grad()
def test_the_transformer_foretells_a_character_from_those_before_it_alone():
    workload = Text({"samples": 64})
    network = workload.build_model(TrainingSettings())
    inputs, following = workload.training_batch(torch.arange(4), torch.zeros(4), 0)
    assert inputs.shape == following.shape == (4, Text.window)
    assert torch.equal(inputs[:, 1:], following[:, :-1])
    changed = inputs.clone()
    changed[:, 9] = (changed[:, 9] + 1) % Text.characters
    before, after = network(inputs), network(changed)
    assert before.shape == (4, Text.window, Text.characters)
    assert torch.allclose(before[:, :9], after[:, :9])
    assert not torch.allclose(before[:, 9:], after[:, 9:])
    scores = workload.score(network, (inputs, following))
    assert float(scores["loss"].mean()) == pytest.approx(
        float(workload.loss(network, (inputs, following), TrainingSettings())), rel=1e-5
    )
    windows = {tuple(each.tolist()) for each in workload.train}
    assert sum(tuple(each.tolist()) in windows for each in workload.test) < 5


@pytest.mark.parametrize(("size", "group"), [(8, 4), (16, None)])
def test_the_small_network_gives_class_scores_and_has_biases_where_nothing_normalizes(size, group):
    network = convolutional_network(3, size, 10, group)
    assert network(torch.randn(8, 3, size, size)).shape == (8, 10)
    convolutions = [module for module in network.modules() if isinstance(module, torch.nn.Conv2d)]
    assert all((module.bias is None) == (group is not None) for module in convolutions)
    # He et al.: the variance of the weights is 2 over the inputs of a unit
    assert float(convolutions[-1].weight.detach().var()) == pytest.approx(2 / (16 * 9), rel=0.1)


def test_the_dense_network_has_no_normalization_and_gives_class_scores():
    network = dense_network(3, 16, 10)
    assert network(torch.randn(4, 3, 16, 16)).shape == (4, 10)
    assert {type(module) for module in network} == {
        torch.nn.Conv2d,
        torch.nn.ReLU,
        torch.nn.Flatten,
        torch.nn.Linear,
    }


def test_the_optimum_of_a_noisy_bowl_is_not_that_of_luck(panel):
    case, errors, raw = panel["digits-sgd"], [], []
    for draw in range(20):
        rng = np.random.default_rng(draw)
        runs = [
            training(
                case,
                rate,
                updates / 2.8,
                seed,
                12
                * math.exp(
                    0.3 * math.log(rate / 0.6) ** 2
                    + 0.05 * math.log(updates / 12) ** 2
                    + rng.normal(0, 0.15)
                ),
            )
            for rate in 0.1 * 1.6 ** np.arange(8)
            for updates in (2, 6, 20, 56)
            for seed in range(2)
        ]
        errors.append(log_optimum(runs, 2.8) - math.log(12))
        raw.append(math.log(min(run.epochs for run in runs) / 12))
    assert abs(np.mean(errors)) < 0.04
    assert np.mean(raw) < -0.15
    asked = [{"learning_rate": 1.2, "warmup_epochs": 12 / 2.8}]
    assert Surface(runs, 2.8).log_epochs(asked)[0] == pytest.approx(
        math.log(12) + 0.3 * math.log(2) ** 2, abs=0.1
    )


def test_the_optimum_is_not_where_trainings_are_lost(panel):
    case = panel["digits-sgd"]
    safe = [training(case, 0.3, 2.0, seed, 14.0) for seed in range(4)]
    risky = [
        training(case, 1.5, 2.0, seed, *end)
        for seed, end in enumerate([(8.0,), (8.0,), (40.0, "censored"), (40.0, "censored")])
    ]
    surface = Surface([*safe, *risky], 2.8)
    assert surface.lost([{"learning_rate": 1.5, "warmup_epochs": 2.0}])[0] == pytest.approx(
        0.5, abs=0.02
    )
    assert surface.best["learning_rate"] == 0.3
    assert math.exp(log_optimum([*safe, *risky], 2.8)) > 12
    assert math.exp(log_optimum(safe[::2], 2.8)) == pytest.approx(14, rel=0.01)
    assert log_optimum(risky[2:], 2.8) is None


def test_a_surface_without_a_training_that_reached_the_target_is_refused(panel):
    with pytest.raises(ValueError, match="got none of 1"):
        Surface([training(panel["digits-sgd"], 1.0, 1.0, 0, 40.0, "censored")], 2.8)


def test_scores_count_lost_runs_and_pair_by_sweep_and_batch(panel, tmp_path):
    case = dataclasses.replace(panel["digits-sgd"], seeds=2)
    rates = {FORECAST: 0.4, "none, best": 0.1}
    held = Trainings(tmp_path)
    made = []
    for number, growth in enumerate((1.0, 1.1)):
        settings = {
            method: {"learning_rate": rate + number, "warmup_epochs": 1.0}
            for method, rate in rates.items()
        }
        epochs = SimpleNamespace(low=9.0, median=10.0, high=11.0)
        forecast = SimpleNamespace(
            epochs_to_target=epochs, numbers=SimpleNamespace(divergence=0.02)
        )
        made.append(Recommended(f"sweep-{number}", 512, settings, {FORECAST: forecast}))  # type: ignore[dict-item]
        for seed in range(2):
            for method, took in ((FORECAST, 10.0), ("none, best", 10.0 * 2 * growth)):
                run = training(case, rates[method] + number, 1.0, seed, took)
                if method == FORECAST and number == seed == 1:
                    run = dataclasses.replace(run, state="censored")
                held._held[trainings._key(run.case, 512, run.settings, run.seed)] = run
    found = scores.scores(case, made, held, [case])
    assert [(score.method, score.lost) for score in found] == [
        (FORECAST, 0),
        ("none, best", 0),
        (FORECAST, 1),
        ("none, best", 0),
    ]
    assert found[2].log_epochs == pytest.approx((math.log(10) + math.log(LOST_EPOCHS)) / 2)
    paired = scores.over_forecast(found, "none, best")
    each = [math.log(2), math.log(22) - found[2].log_epochs]
    assert paired.value == pytest.approx(np.mean(each))
    assert paired.error == pytest.approx(np.std(each, ddof=1) / math.sqrt(2))
    assert [kept.inside for kept in scores.promises(case, made, held)] == [True, False]


def test_a_lookup_expects_what_was_trained_nearby(panel):
    case = panel["digits-sgd"]
    held = Trainings(Path("nowhere"))
    for seed in range(4):
        for rate, took, state in ((0.5, 12.0, "reached"), (3.0, 80.0, "censored")):
            run = training(case, rate, 2.0, seed, took, state)
            held._held[trainings._key(run.case, 512, run.settings, run.seed)] = run
    settings = {
        FORECAST: {"learning_rate": 0.5, "warmup_epochs": 2.0},
        "linear, best": {"learning_rate": 3.0, "warmup_epochs": 2.0},
    }
    good, bad = scores.looked_up(case, [Recommended("sweep", 512, settings, None)], held)
    assert (good.lost, bad.lost) == (pytest.approx(0, abs=0.01), pytest.approx(1, abs=0.01))
    assert good.regret == pytest.approx(0, abs=0.02)
    assert bad.log_epochs == pytest.approx(math.log(LOST_EPOCHS), rel=0.01)


def test_trainings_are_kept_and_not_done_again(panel, tmp_path, monkeypatch):
    case = dataclasses.replace(panel["cells-sgd"], epochs=2)
    asked = trainings.wanted(case, 64, {"learning_rate": 0.12345, "warmup_epochs": 0.5}, 0)
    Trainings(tmp_path).train_missing([asked, asked])
    monkeypatch.setattr(trainings, "_trainer", lambda case: pytest.fail("trained again"))
    held = Trainings(tmp_path)
    held.train_missing([asked])
    [run] = held.find(case, 64, {"learning_rate": 0.12345, "warmup_epochs": 0.5}, 5)
    assert run.settings == {"learning_rate": 0.123, "warmup_epochs": 0.5}
    assert run.curve_epochs[-1] == pytest.approx(run.epochs, abs=1e-4)
    assert len(run.curve) == len(run.losses) == len(run.curve_epochs)


def test_a_training_that_gets_nowhere_is_given_up_as_lost(panel, tmp_path):
    case = dataclasses.replace(panel["cells-sgd"], epochs_beyond=40, target=2.0)
    held = Trainings(tmp_path)
    held.train_missing(
        [trainings.wanted(case, 64, {"learning_rate": 0.1, "warmup_epochs": 0.0}, 0)]
    )
    [run] = held.of(case, 64)
    assert (run.state, run.lost, run.counted_epochs) == ("hopeless", True, LOST_EPOCHS)
    assert 10 <= run.epochs < 10.5


@pytest.mark.slow
def test_a_sweep_runs_in_this_process_and_every_method_recommends(panel, tmp_path):
    case = dataclasses.replace(
        panel["cells-sgd"], trials=6, epochs=6, ladder=(8, 16), samplers={"tpe": 1}
    )
    sweeps.run([case], tmp_path)
    [result] = sweeps.read(case, tmp_path)
    made = recommendations(case, result)
    assert [each.global_batch_size for each in made] == [64, 128]
    for each in made:
        assert set(each.settings) == set(METHODS) - {RACED}
        start, linear = (
            each.settings[method]["learning_rate"] for method in ("none, best", "linear, best")
        )
        assert linear == pytest.approx(start * each.global_batch_size / 16, rel=0.01)
        assert TrainingSettings.from_dict(dict(each.settings[FORECAST]))
