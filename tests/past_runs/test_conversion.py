"""Past runs become trials by the study's own target; incomparable ones are left out, with the reason."""

import dataclasses
import math

import pytest
from past_run_samples import STUDY, run, spec

from hpo.errors import EvidenceError
from hpo.past_runs.conversion import (
    ImportOptions,
    SkippedRunError,
    check_options,
    trial_of_past_run,
)
from hpo.past_runs.past_run import PastRun, Reading
from hpo.study.spec import parse_study
from storage.records import TrialState


def convert(past, options=None, mapping=None):
    options = options or ImportOptions(mapping=mapping or {}, train_samples=320)
    return trial_of_past_run(spec(), past, check_options(spec(), [past], options), lambda new: 7)


def why(past, **given):
    with pytest.raises(SkippedRunError) as error:
        convert(past, **given)
    return str(error.value)


def test_a_curve_that_comes_to_the_target_is_reached_at_its_first_evaluation_there():
    made = convert(run([0.5, 0.97, 0.8, 0.99]))
    assert made.result.state is TrialState.REACHED
    assert made.result.epochs_to_target == 2.0 and made.result.epochs == 4.0
    assert made.result.resolution_epochs == 1.0 and made.result.steps == 40
    assert made.result.best_metric == 0.99 and made.result.final_metric == 0.99
    assert [point.samples for point in made.points] == [320, 640, 960, 1280]
    assert made.new.settings["learning_rate"] == 0.1 and made.new.settings["momentum"] == 0.9
    assert made.new.seed == 7 and made.new.purpose == "imported"


@pytest.mark.parametrize(
    ("axis", "steps"),
    [
        ("epochs", [1, 2]),
        ("epoch-index", [0, 1]),
        ("updates", [10, 20]),
        ("samples", [320, 640]),
    ],
)
def test_every_axis_tells_the_same_epochs(axis, steps):
    past = PastRun(
        "run",
        {"learning_rate": 0.1, "global_batch_size": 32},
        {"top1": [Reading(step, value) for step, value in zip(steps, (0.5, 0.97), strict=True)]},
    )
    made = convert(past, ImportOptions(axis=axis, train_samples=320))
    assert [point.epochs for point in made.points] == [1.0, 2.0]
    assert [point.step for point in made.points] == [10, 20]


def test_a_curve_of_epochs_goes_before_the_axis():
    past = run([0.5, 0.97])
    epochs = [Reading(10, 0.25), Reading(20, 0.5)]
    made = convert(
        PastRun("run", past.values, {**past.curves, "epoch": epochs}), mapping={"epoch": "epochs"}
    )
    assert made.result.epochs_to_target == 0.5


@pytest.mark.parametrize("own", ["metric", "top1"])
@pytest.mark.parametrize("first", [True, False])
def test_a_name_mapped_to_the_metric_goes_before_the_metric_s_own_name(own, first):
    def beside(mapped, other):
        pair = {"val_top1": mapped, "top1": other}
        return pair if first else dict(reversed(pair.items()))

    values = {"learning_rate": 0.1, "global_batch_size": 32}
    mapping = {"val_top1": own}
    curves = beside([Reading(10, 0.3), Reading(20, 0.6)], [Reading(10, 0.97), Reading(20, 0.99)])
    made = convert(PastRun("run", values, curves), mapping=mapping)
    assert made.result.state is TrialState.CENSORED and made.result.best_metric == 0.6
    assert [point.metric for point in made.points] == [0.3, 0.6]
    table = PastRun("run", {**values, "epochs": 2, **beside(0.8, 0.97)})
    assert convert(table, mapping=mapping).result.final_metric == 0.8
    # values and curves may have different names
    apart = PastRun("run", {**values, "top1": 0.99}, {"val_top1": curves["val_top1"]})
    assert convert(apart, mapping=mapping).result.best_metric == 0.6
    # without a mapping, the own name is the metric
    assert convert(PastRun("run", values, curves)).result.state is TrialState.REACHED


def test_how_a_run_ended_that_did_not_come_to_the_target():
    assert convert(run([0.5, 0.6])).result.state is TrialState.CENSORED
    assert convert(run([0.5, 0.6])).result.epochs == 2.0
    assert convert(run([0.5, math.nan, 0.97])).result.state is TrialState.DIVERGED
    assert convert(run([0.5, math.nan, 0.97])).result.epochs == 2.0
    assert convert(run([0.5], status="pruned")).result.state is TrialState.PRUNED
    assert convert(run([0.97, math.nan])).result.state is TrialState.REACHED
    assert "'crashed'" in why(run([0.5], status="crashed"))
    assert "--state killed=censored" in why(run([0.5], status="killed"))
    assert "reached" in why(run([0.5], status="reached"))
    # a run that crashed after it had come to the target had come to the target
    assert convert(run([0.5, 0.97], status="crashed")).result.state is TrialState.REACHED


def with_losses(past, name, *losses):
    """The run with a curve of one loss, from pairs of updates and values."""
    curve = [Reading(step, value) for step, value in losses]
    return PastRun(past.label, past.values, {**past.curves, name: curve}, past.status)


@pytest.mark.parametrize("name", ["loss", "train_loss"])
@pytest.mark.parametrize("lost", [math.nan, math.inf])
def test_a_loss_that_was_logged_and_is_not_finite_is_diverged(name, lost):
    def ended(top1, *losses):
        result = convert(with_losses(run(top1), name, *losses)).result
        return result.state, result.epochs

    assert ended([0.5, 0.1, 0.1], (10, 2.0), (20, lost), (30, lost)) == ("diverged", 2.0)
    assert ended([0.5, 0.1, 0.1], (9, 2.0), (19, lost)) == ("diverged", 2.0)  # between evaluations
    assert ended([0.5, 0.1], (10, 2.0), (25, lost)) == ("diverged", 2.0)  # after the last one
    assert ended([0.5, 0.97, 0.1], (10, 2.0), (25, lost)) == ("reached", 3.0)
    # a loss that was not logged is no sign, nor one that a resumed run replaced, nor one before training
    assert ended([0.5, 0.6], (10, 2.0)) == ("censored", 2.0)
    assert ended([0.5, 0.6], (10, lost), (10, 2.0)) == ("censored", 2.0)
    assert ended([0.5, 0.6], (0, lost), (10, 2.0)) == ("censored", 2.0)


def test_a_loss_lost_beyond_the_budget_says_nothing_of_the_time_within_it():
    target = "target: {metric: top1, best_within: {epochs: 2}}"
    text = STUDY.replace("target: {metric: top1, at_least: 0.96}", target)
    study = parse_study(text.replace(", epochs_per_trial: 10", ""))

    def state(*losses):
        past = with_losses(run([0.5, 0.6, 0.1]), "loss", *losses)
        options = check_options(study, [past], ImportOptions(train_samples=320))
        return trial_of_past_run(study, past, options, lambda new: 7).result.state

    assert state((20, 1.0), (30, math.nan)) is TrialState.CENSORED
    assert state((20, math.nan), (30, math.nan)) is TrialState.DIVERGED


GROWING = (
    STUDY.replace("at_least: 0.96", "best_within: {samples: 1280}")
    .replace("{source: digits}", "{source: digits, train_samples: 320}")
    .replace("ladder: [32, 64, 128]", "ladder: {global_batch_size: [32], width: [8, 16], samples: [320, 640]}\n"
             "full_scale: {global_batch_size: 64, width: 32, samples: 1280}")
    .replace(", epochs_per_trial: 10", "")
)  # fmt: skip


def test_a_run_of_a_growing_study_keeps_its_sizes_and_ends_with_its_own_length():
    study = parse_study(GROWING)

    def imported(past):
        options = check_options(study, [past], ImportOptions())
        return trial_of_past_run(study, past, options, lambda new: 7)

    curve = [0.3, 0.5, 0.9, 0.9]
    trial = imported(run(curve, width="16", training_samples=640.0))
    assert trial.new.settings["own"] == {"width": 16, "training_samples": 640}
    assert trial.result.best_metric == 0.5 and trial.result.epochs == 2
    values = {"width": 8, "training_samples": 320, "top1": 0.4, "epochs": 1}
    without_curve = dataclasses.replace(run([]), curves={}, values={**run([]).values, **values})
    assert imported(without_curve).result.best_metric == 0.4
    longer = dataclasses.replace(without_curve, values={**without_curve.values, "epochs": 4})
    with pytest.raises(SkippedRunError, match="trained for 4 epochs, but the study's budget is 1"):
        imported(longer)
    with pytest.raises(SkippedRunError, match="does not give width and training_samples"):
        imported(run(curve))
    with pytest.raises(SkippedRunError, match="width must be a whole number from 1 to 2147483647"):
        imported(run(curve, width=0, training_samples=640))


def test_the_caller_says_what_a_status_stands_for():
    options = ImportOptions(states={"killed": "censored", "finished": "skip"}, train_samples=320)
    assert convert(run([0.5], status="killed"), options).result.state is TrialState.CENSORED
    assert "finished" in why(run([0.5]), options=options)


def test_runs_that_do_not_compare_are_left_out():
    assert "momentum is 0.5, but the study fixes 0.9" in why(run([0.97], momentum=0.5))
    assert "optimizer is lars" in why(run([0.97], optimizer="LARS"))
    assert "weight_decay" in why(run([0.97], weight_decay="0.1"))
    assert "learning_rate" in why(PastRun("run", {"global_batch_size": 32}))
    assert "batch size" in why(PastRun("run", {"learning_rate": 0.1}))
    assert "learning_rate must be a number" in why(run([0.97], lr="fast"))
    assert "learning_rate must" in why(run([0.97], lr="-1"))
    assert "asynchronous_workers must be a whole" in why(run([0.97], asynchronous_workers="1e23"))
    assert "whole number" in why(run([0.97], seed="1.5"))


OWN = STUDY.replace("  momentum: 0.9", "  momentum: 0.9\n  k: {int_uniform: [1, 5], role: shared}").replace(
    "workload: resnet\ndata: {source: digits}",
    "workload: program\nprogram:\n  command: [train, '{learning_rate}', '{global_batch_size}', '{seed}', "
    "'{epochs}', '{k}']\n  train_samples: 320\n  report: {metrics: {top1: true}}",
)  # fmt: skip
HUGE = [2**63, str(2**64 - 1), "1e23", "1e400", 10**400, "9" * 5000]


@pytest.mark.parametrize("huge", HUGE, ids=range(len(HUGE)))
def test_whole_numbers_that_cannot_be_stored_leave_the_run_out(huge):
    study = parse_study(OWN)

    def reason(**values):
        said = {"learning_rate": 0.1, "k": 3, "epochs_to_target": 5, **values}
        past = PastRun("run", said)
        with pytest.raises(SkippedRunError) as error:
            trial_of_past_run(study, past, ImportOptions(), lambda new: 7)
        assert len(str(error.value)) < 200
        return str(error.value)

    for name in ("seed", "k", "global_batch_size"):
        found = reason(**{"global_batch_size": 32, name: huge})
        assert f"its {name} must be" in found and repr(huge)[:9] in found
    parts = {"local_batch_size": 2, "workers": 2, "accumulation": 2}
    for name in parts:
        assert f"its {name} must be" in reason(**{**parts, name: huge})
    assert "epochs_to_target" in reason(global_batch_size=32, epochs_to_target=huge)
    assert "seconds" in reason(global_batch_size=32, seconds=huge)


def test_the_largest_seeds_are_kept_exactly():
    for seed in (2**53 + 1, 2**63 - 1):
        assert convert(run([0.97], seed=seed)).new.seed == seed
        assert convert(run([0.97], seed=str(seed))).new.seed == seed
    assert convert(run([0.97], seed="3.0")).new.seed == 3


def test_a_metric_or_loss_beyond_the_largest_float_is_diverged():
    values = {"learning_rate": 0.1, "global_batch_size": 32, "epochs": 3}
    for lost in ({"top1": 10**400}, {"top1": 0.5, "loss": 10**400}):
        assert convert(PastRun("run", {**values, **lost})).result.state is TrialState.DIVERGED


@pytest.mark.parametrize("step", [1e300, 1e308])
def test_a_step_beyond_every_training_leaves_the_run_out(step):
    past = PastRun("run", run([]).values, {"top1": [Reading(step, 0.5)]})
    options = ImportOptions(axis="epochs", train_samples=320)
    assert "samples must be at most" in why(past, options=options)


def test_texts_are_read_as_the_setting_asks():
    made = convert(
        run([0.97], lr="1e-1", optimizer="SGD", nesterov="False", momentum="0.90", seed="3")
    )
    assert made.new.settings["learning_rate"] == 0.1 and made.new.settings["nesterov"] is False
    assert made.new.settings["optimizer"] == "sgd" and made.new.seed == 3


def test_settings_of_an_optimizer_and_a_schedule_alone_are_read_and_may_be_mapped():
    study = parse_study(
        STUDY.replace("optimizer: sgd", "optimizer: muon").replace(
            "momentum: 0.9",
            "muon_momentum: {uniform: [0.8, 0.99], role: scaled}\n  decay: wsd\n  cooldown_share: 0.3",
        )
    )

    def settings(**values):
        mapping = {"mu": "muon_momentum"}
        past = run([0.97], mu="0.95", **values)
        options = ImportOptions(mapping=mapping, train_samples=320)
        checked = check_options(study, [past], options)
        return trial_of_past_run(study, past, checked, lambda new: 7).new.settings

    made = settings(muon_nesterov="True", muon_iterations="5", muon_rate_scaling="RMS")
    own = made["own"]
    assert (own["muon_momentum"], own["cooldown_share"], own["muon_nesterov"]) == (0.95, 0.3, True)
    for values, said in (
        ({"cooldown_share": 0.2}, "cooldown_share is 0.2, but the study fixes 0.3"),
        ({"muon_iterations": 4}, "muon_iterations is 4, but the study's trials have 5"),
        ({"muon_iterations": 1e23}, "muon_iterations must be a whole number from"),
        ({"muon_nesterov": "no"}, "muon_nesterov must be true or false, but got 'no'"),
        ({"muon_rate_scaling": "rsm"}, "muon_rate_scaling must be one of rms, shape"),
        ({"muon_rest_rate": "fast"}, "muon_rest_rate must be a number, but got 'fast'"),
    ):
        with pytest.raises(SkippedRunError, match=said):
            settings(**values)


def test_the_batch_may_be_told_by_its_parts():
    past = run([0.97])
    values = {"learning_rate": 0.1, "bs": "8", "world": 2, "accumulation": 2}
    mapping = {"bs": "local_batch_size", "world": "workers"}
    made = convert(PastRun("run", values, past.curves), mapping=mapping)
    assert made.new.global_batch_size == 32


def test_without_a_curve_nothing_is_guessed():
    def of(**values):
        return PastRun(
            "run", {"learning_rate": 0.1, "global_batch_size": 32, **values}, {}, "finished"
        )

    assert convert(of(epochs_to_target="5.5")).result.epochs_to_target == 5.5
    censored = convert(of(epochs=10, top1=0.9)).result
    assert censored.state is TrialState.CENSORED and censored.epochs == 10
    assert convert(of(epochs=3, top1="NaN")).result.state is TrialState.DIVERGED
    assert convert(of(epochs=3, top1=0.1, loss="NaN")).result.state is TrialState.DIVERGED
    assert convert(of(epochs=3, top1=0.1, train_loss=math.inf)).result.state is TrialState.DIVERGED
    named = convert(of(epochs=3, top1=0.1, loss="cross_entropy")).result
    assert named.state is TrialState.CENSORED
    assert "the number of epochs is missing" in why(of(epochs=10, top1=0.97))
    assert "no curve" in why(of(top1=0.9))
    assert convert(of(epochs_to_target=4, state="diverged")).result.state is TrialState.DIVERGED
    assert "above 0" in why(of(epochs_to_target=0))


@pytest.mark.parametrize("state", ["finished", "Finished", "completed", " COMPLETE ", ""])
def test_a_run_that_ended_and_gives_its_epochs_to_the_target_reached_it(state):
    values = {"learning_rate": 0.1, "global_batch_size": 32, "epochs_to_target": 12}
    made = convert(PastRun("run", {**values, "state": state}, {}, state.lower())).result
    assert made.state is TrialState.REACHED
    assert (made.epochs_to_target, made.epochs) == (12, 12)


def test_a_state_that_denies_the_target_goes_before_the_epochs_to_it():
    values = {"learning_rate": 0.1, "global_batch_size": 32, "epochs_to_target": 12}
    denied = convert(PastRun("run", {**values, "state": "Censored"}, {}, "censored")).result
    assert (denied.state, denied.epochs) == (TrialState.CENSORED, 12)
    by_caller = ImportOptions(states={"finished": "censored"}, train_samples=320)
    past = PastRun("run", {**values, "state": "finished"}, {}, "finished")
    assert convert(past, by_caller).result.state is TrialState.CENSORED


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (ImportOptions(mapping={"lr": "learning_rte"}), "did you mean 'learning_rate'"),
        (ImportOptions(mapping={"learning_rat": "learning_rate"}), "did you mean 'learning_rate'"),
        (ImportOptions(mapping={"top1": "metric", "learning_rate": "metric"}), "from one name"),
        (
            ImportOptions(mapping={"learning_rate": "metric", "top1": "top1"}),
            "map only one of them",
        ),
        (ImportOptions(mapping={"learning_rate": "top1", "top1": "metric"}), "from one name"),
        (ImportOptions(states={"finished": "done"}), "'done'"),
        (ImportOptions(), "--train-samples"),
    ],
)
def test_what_was_asked_wrongly_is_an_error(options, said):
    with pytest.raises(EvidenceError, match=said):
        check_options(spec(), [run([0.5])], options)
