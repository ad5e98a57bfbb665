"""Importances by Optuna, against functions with known shares of the variance, and hpo.to_optuna."""

import io
import json
import math
import warnings

import numpy as np
import optuna
import optuna_dashboard
import pytest
import yaml
from click.testing import CliRunner

import hpo
from hpo.cli.main import main
from hpo.dashboard import figures
from hpo.dashboard.page import pictures
from hpo.dashboard.view import make_study_view
from hpo.errors import EvidenceError, ExportError
from hpo.study.spec import parse_study
from search_spaces.settings import TrainingSettings
from storage.records import ConvergencePoint, NewStudy, NewTrial, TrialResult, TrialState
from storage.store import Store

SPEC = {
    "name": "known",
    "workload": "noisy_quadratic",
    "target": {"metric": "loss", "at_most": 0.1},
    "ladder": [16, 64],
    "search": {
        "learning_rate": {"log_uniform": [0.001, 1.0], "role": "scaled"},
        "momentum": {"uniform": [0.1, 0.9]},
        "nesterov": {"choice": [True, False]},
    },
    "budget": {"trials": 200, "epochs_per_trial": 100},
}
SECOND = 0.5
"""What momentum adds to the logarithm of the epochs over its range; the rate adds 1: its share is 1 / (1 + 0.25)."""


def log_epochs(batch, unit_rate, unit_momentum):
    """Additive in uniform variables: the shares of the variance are 1 : SECOND ** 2; at 64 only momentum counts."""
    return math.log(5) + (unit_rate + SECOND * unit_momentum if batch == 16 else unit_momentum)


def study_of(path, trials, spec=SPEC):
    """A study with ``trials``: batch, settings and TrialResult of each."""
    with Store.open(str(path)) as store:
        text = yaml.safe_dump(spec)
        made = parse_study(text)
        study = store.create_study(
            NewStudy(
                name=made.name,
                workload=made.workload,
                metric=made.target.metric,
                threshold=made.target.aim.threshold,
                higher_is_better=made.target.aim.higher_is_better,
                spec=text,
            )
        )
        new = [
            NewTrial(global_batch_size=batch, seed=seed, settings=settings.to_dict())
            for seed, (batch, settings, _) in enumerate(trials)
        ]
        for trial, (batch, _, result) in zip(store.add_trials(study.id, new), trials, strict=True):
            store.start_trials([trial.id])
            point = ConvergencePoint(
                step=7,
                samples=7 * batch,
                epochs=1.0,
                seconds=1.0,
                train_loss=1.0,
                loss=0.5,
                metric=0.5,
                learning_rate=0.1,
                global_batch_size=batch,
            )
            store.finish_trial(trial.id, result, [point])
    return hpo.read_study(made.name, f"sqlite:///{path}")


def reached(epochs):
    return TrialResult(state=TrialState.REACHED, epochs_to_target=epochs, epochs=epochs)


def known(count, seed=0):
    random = np.random.default_rng(seed)
    for place in range(count):
        batch, (rate, momentum) = (16, 64)[place % 2], random.uniform(size=2).tolist()
        settings = TrainingSettings(
            learning_rate=10 ** (3 * rate - 3),
            momentum=0.1 + 0.8 * momentum,
            nesterov=bool(random.integers(2)),
        )
        yield batch, settings, reached(math.exp(log_epochs(batch, rate, momentum)))


def view_of(result):
    with Store.open(result.storage) as store:
        return make_study_view(store, result, None, result.storage)


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    return study_of(tmp_path_factory.mktemp("known") / "hpo.db", list(known(200)))


@pytest.fixture(scope="module")
def found(result):
    return {each.global_batch_size: each for each in hpo.importances(result)}


def test_fanova_finds_the_shares_of_a_known_function(found):
    assert list(found) == [None, 16, 64]
    share = 1 / (1 + SECOND**2)
    at = found[16].fanova
    assert at["learning_rate"] == pytest.approx(share, abs=0.06)
    assert at["momentum"] == pytest.approx(1 - share, abs=0.06)
    assert at["nesterov"] < 0.02
    assert found[64].fanova["momentum"] > 0.95
    assert found[16].trials == 100


def test_ped_anova_finds_the_settings_of_the_best(found):
    assert max(found[16].ped_anova, key=found[16].ped_anova.get) == "learning_rate"
    assert max(found[64].ped_anova, key=found[64].ped_anova.get) == "momentum"
    for each in found.values():
        assert math.fsum(each.fanova.values()) == pytest.approx(1)
        assert math.fsum(each.ped_anova.values()) == pytest.approx(1)
    assert set(found[None].fanova) == {"global_batch_size", "learning_rate", "momentum", "nesterov"}


def test_ped_anova_is_optunas_own_on_what_to_optuna_gives(result, found):
    study = hpo.to_optuna(result, global_batch_size=64)
    # 100 trainings: the best tenth is Optuna's default
    assert found[64].ped_anova == pytest.approx(optuna.importance.get_param_importances(study))


def test_what_missed_the_target_tells_of_its_settings(tmp_path):
    """The rate decides alone who reaches the target; among those who do nothing matters."""
    random = np.random.default_rng(1)
    trials = []
    for place in range(40):
        rate, momentum = random.uniform(size=2).tolist()
        ended = (
            TrialResult(state=TrialState.DIVERGED, epochs=2.0)
            if place % 2
            else TrialResult(state=TrialState.CENSORED, epochs=10.0)
        )
        trials.append(
            (
                16,
                TrainingSettings(learning_rate=10 ** (3 * rate - 3), momentum=0.1 + 0.8 * momentum),
                reached(5.0 + 0.01 * momentum) if rate < 0.5 else ended,
            )
        )
    trials.append((16, trials[0][1], TrialResult(state=TrialState.FAILED)))
    (only,) = hpo.importances(study_of(tmp_path / "hpo.db", trials))
    assert only.trials == 40
    assert only.global_batch_size == 16
    assert only.fanova["learning_rate"] > 0.9
    assert only.ped_anova["learning_rate"] > only.ped_anova["nesterov"]


def test_too_few_trainings_tell_nothing(tmp_path):
    few = study_of(tmp_path / "few.db", list(known(14)))
    assert hpo.importances(few) == ()
    text = figures.importances(few).layout.annotations[-1].text
    assert text == "needs 8 finished trials at one batch size, 2 of which reached the target"
    equal = [(16, TrainingSettings(), reached(5.0))] * 9
    (same,) = hpo.importances(study_of(tmp_path / "equal.db", equal))
    assert set(same.fanova.values()) == {0.0}


def test_trainings_that_tie_are_not_all_the_best(tmp_path):
    """Three of nine are quicker, by their rate; the five best would be all."""
    trials = [
        (
            16,
            TrainingSettings(learning_rate=rate, momentum=0.5),
            reached(5.0 if rate < 0.1 else 6.0),
        )
        for rate in (0.01, 0.02, 0.04, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7)
    ]
    (only,) = hpo.importances(study_of(tmp_path / "hpo.db", trials))
    assert only.ped_anova["learning_rate"] > 0.8


def test_to_optuna_gives_a_study_that_optunas_plots_take(result):
    before = optuna.logging.get_verbosity()
    study = hpo.to_optuna(result)
    assert optuna.logging.get_verbosity() == before
    assert isinstance(study, optuna.Study)
    assert len(study.trials) == 200
    for ours, theirs in zip(result.trials, study.trials, strict=True):
        assert theirs.value == ours.epochs_to_target
        assert theirs.params["global_batch_size"] == ours.global_batch_size
        assert theirs.intermediate_values == {7: 0.5}
        assert theirs.user_attrs["seed"] == ours.seed
        assert theirs.user_attrs["global_batch_size"] == ours.global_batch_size
        assert theirs.user_attrs["epochs"] == ours.epochs
    assert study.best_value == min(trial.epochs_to_target for trial in result.trials)
    for plot in (
        "contour",
        "edf",
        "intermediate_values",
        "optimization_history",
        "parallel_coordinate",
        "param_importances",
        "rank",
        "slice",
        "timeline",
    ):
        draw = getattr(optuna.visualization, f"plot_{plot}")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            assert draw(study).data, plot


def test_one_rung_has_the_settings_alone(result):
    study = hpo.to_optuna(result, global_batch_size=64)
    assert len(study.trials) == 100
    assert set(study.trials[0].params) == {"learning_rate", "momentum", "nesterov"}
    assert study.trials[0].user_attrs["global_batch_size"] == 64
    assert study.trials[0].user_attrs["number"] == 1
    with pytest.raises(EvidenceError, match=r"one of those trained \(16, 64\), but got 32"):
        hpo.to_optuna(result, global_batch_size=32)


def test_values_outside_the_range_keep_their_parameter_in_the_plots(tmp_path):
    outside = [(16, TrainingSettings(learning_rate=5.0, momentum=0.5), reached(20.0))]
    result = study_of(tmp_path / "hpo.db", [*known(20), *outside])
    study = hpo.to_optuna(result)
    ranges = {str(trial.distributions["learning_rate"]) for trial in study.trials}
    assert len(ranges) == 1
    assert study.trials[-1].params["learning_rate"] == 5.0
    fanova = optuna.importance.FanovaImportanceEvaluator(seed=0)
    assert "learning_rate" in optuna.importance.get_param_importances(study, evaluator=fanova)


def test_missed_trainings_count_on_demand(tmp_path):
    ended = [
        (16, TrainingSettings(), TrialResult(state=TrialState.CENSORED, epochs=100.0)),
        (16, TrainingSettings(), TrialResult(state=TrialState.DIVERGED, epochs=1.0)),
        (64, TrainingSettings(), TrialResult(state=TrialState.PRUNED, epochs=2.0)),
        (64, TrainingSettings(), reached(7.0)),
    ]
    result = study_of(tmp_path / "hpo.db", ended)
    assert [trial.value for trial in hpo.to_optuna(result).trials] == [None, None, None, 7.0]
    counted = hpo.to_optuna("known", result.storage, count_missed=True)
    assert [trial.value for trial in counted.trials] == [100.0, 100.0, 7.0, 7.0]


def best_within(path):
    """The odds against top1 are those of the known function, of trainings to the end of a budget of 10 epochs."""
    random = np.random.default_rng(3)
    trials = []
    for place in range(100):
        rate, momentum = random.uniform(size=2).tolist()
        odds = math.exp(log_epochs(16, rate, momentum) - 4)
        settings = TrainingSettings(
            learning_rate=10 ** (3 * rate - 3), momentum=0.1 + 0.8 * momentum, nesterov=False
        )
        ended = TrialResult(
            state=TrialState.CENSORED,
            epochs=10.0,
            best_metric=1 / (1 + odds),
            final_metric=1 / (1 + odds),
        )
        pruned = TrialResult(state=TrialState.PRUNED, epochs=3.0, best_metric=0.5)
        trials.append((16, settings, pruned if place == 50 else ended))
    target = {"metric": "top1", "best_within": {"epochs": 10}}
    budget = {"trials": 100, "epochs_per_trial": 10}
    return study_of(
        path, trials, {**SPEC, "workload": "resnet", "target": target, "budget": budget}
    )


@pytest.mark.slow
def test_a_study_within_a_fixed_budget_has_its_metric(tmp_path):
    result = best_within(tmp_path / "hpo.db")
    study = hpo.to_optuna(result)
    assert study.direction == optuna.study.StudyDirection.MAXIMIZE
    assert study.best_value == max(
        trial.best_metric for trial in result.trials if trial.state is TrialState.CENSORED
    )
    assert study.user_attrs["target"] == "the best top1 within 10 epochs"
    assert study.trials[50].state is optuna.trial.TrialState.PRUNED
    counted = hpo.to_optuna(result, count_missed=True)
    assert counted.trials[50].value == pytest.approx(min(t.value for t in counted.trials))
    (only,) = hpo.importances(result)
    assert only.trials == 100
    assert only.fanova["learning_rate"] == pytest.approx(1 / (1 + SECOND**2), abs=0.08)
    assert max(only.ped_anova, key=only.ped_anova.get) == "learning_rate"
    assert figures.slice_plot(result).layout.yaxis.title.text == "best top1"


def test_the_figures_are_optunas(result):
    drawn = figures.slice_plot(result, 16)
    theirs = optuna.visualization.plot_slice(hpo.to_optuna(result, global_batch_size=16))
    assert len(drawn.data) == len(theirs.data) == 3
    for ours, their in zip(drawn.data, theirs.data, strict=True):
        assert list(ours.x) == list(their.x)
        assert list(ours.y) == list(their.y)
    drawn = figures.contour(result, "learning_rate", "global_batch_size")
    assert {drawn.layout.xaxis.title.text, drawn.layout.yaxis.title.text} == {
        "learning_rate",
        "global_batch_size",
    }
    with pytest.raises(
        EvidenceError, match=r"two different settings of .*, but got 'momentum' and 'x'"
    ):
        figures.contour(result, "momentum", "x")


@pytest.mark.slow
def test_the_bars_show_what_was_found(result, found):
    bars = figures.importances(result).data
    shown = {
        (bar.name, name, column): share
        for bar in bars
        for column in [0 if bar.xaxis == "x" else 1]
        for name, share in zip(bar.y, bar.x, strict=True)
    }
    assert shown["16", "learning rate", 0] == found[16].fanova["learning_rate"]
    assert shown["64", "momentum", 1] == found[64].ped_anova["momentum"]
    assert shown["all", "global batch size", 0] == found[None].fanova["global_batch_size"]


@pytest.mark.slow
def test_report_and_command_tell_them(tmp_path):
    result = study_of(tmp_path / "hpo.db", list(known(24)))
    found = {each.global_batch_size: each for each in hpo.importances(result)}
    ran = CliRunner().invoke(main, ["show", "known", "--storage", result.storage, "--json"])
    assert ran.exit_code == 0, ran.output
    told = yaml.safe_load(ran.stdout)["importances"]
    assert told == [each.to_dict() for each in found.values()]
    shown = [picture.key for picture in pictures(view_of(result))]
    assert {"importances", "slices", "contours"} <= set(shown)
    ran = CliRunner().invoke(main, ["show", "known", "--storage", result.storage])
    row = next(line for line in ran.stdout.splitlines() if "momentum" in line and "|" in line)
    at = found[64]
    assert f"{at.fanova['momentum']:.2f} | {at.ped_anova['momentum']:.2f}" in row


def test_without_optuna_all_else_is_there(result, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "optuna", None)
    with pytest.raises(ExportError, match=r"pip install 'largebatch\[train\]'"):
        hpo.importances(result)
    shown = [picture.key for picture in pictures(view_of(result))]
    assert "ladder" in shown
    assert "importances" not in shown
    ran = CliRunner().invoke(main, ["show", "known", "--storage", result.storage])
    assert ran.exit_code == 0
    assert "the importance of settings cannot be shown: " in ran.stderr


@pytest.mark.slow
def test_the_command_writes_a_study_for_each_batch(tmp_path):
    result = study_of(tmp_path / "hpo.db", list(known(6)))
    url = f"sqlite:///{tmp_path}/optuna.db"
    options = ["--storage", result.storage, "--to", url]
    ran = CliRunner().invoke(main, ["export", "optuna", "known", *options, "--by-batch"])
    assert ran.exit_code == 0, ran.output
    assert sorted(optuna.get_all_study_names(url)) == ["known-16", "known-64"]
    study = optuna.load_study(study_name="known-64", storage=url)
    assert len(study.trials) == 3
    assert "global_batch_size" not in study.trials[0].params


def test_optuna_dashboard_shows_the_study(result):
    """Its own server, asked as a browser asks: the study, its trials with their curves, its importances."""
    study = hpo.to_optuna(result)
    server = optuna_dashboard.wsgi(study._storage)

    def asked(path):
        started = []
        request = {
            "REQUEST_METHOD": "GET",
            "PATH_INFO": f"/api/studies{path}",
            "QUERY_STRING": "",
            "SERVER_NAME": "localhost",
            "SERVER_PORT": "80",
            "wsgi.url_scheme": "http",
            "wsgi.input": io.BytesIO(),
            "wsgi.errors": io.StringIO(),
        }
        body = b"".join(server(request, lambda status, *_: started.append(status)))
        assert started == ["200 OK"], body
        return json.loads(body)

    (shown,) = asked("")["study_summaries"]
    assert shown["study_name"] == "known"
    trials = asked(f"/{shown['study_id']}")["trials"]
    assert [trial["values"] for trial in trials] == [
        [trial.epochs_to_target] for trial in result.trials
    ]
    assert trials[0]["intermediate_values"] == [{"step": 7, "value": 0.5}]
    (shares,) = asked(f"/{shown['study_id']}/param_importances")["param_importances"]
    assert {each["name"] for each in shares} == {"global_batch_size", *result.spec.search.names}
