"""Successive halving stops only within a rung, never a repetition, and counts those that reached the target."""

from types import SimpleNamespace

from hpo.tuning.stopping import LadderASHA


def start(rule, name, batch=16, repeats=False):
    trial = SimpleNamespace(
        trial_id=name, config={"job": {"global_batch_size": batch}, "stoppable": not repeats}
    )
    rule.begins(trial)
    return trial


def train(rule, trial, metric, upto):
    """Report an evaluation each epoch until stopped; returns the epoch of the end."""
    for epoch in range(1, upto + 1):
        if rule.stops(trial, {"epochs": epoch, "metric": metric * epoch}):
            return epoch
    return upto


def a_rule(**more):
    return LadderASHA(40, higher_is_better=more.get("higher_is_better", True))


def test_the_worse_half_stops_at_the_first_milestone():
    rule = a_rule()
    ends = [
        train(rule, start(rule, f"t{n}"), metric, 40)
        for n, metric in enumerate((0.5, 0.4, 0.6, 0.3))
    ]
    assert ends == [40, 10, 40, 10]
    assert rule.stopped == {"t1", "t3"}


def test_a_metric_to_be_minimised_is_compared_the_other_way():
    rule = a_rule(higher_is_better=False)
    ends = [
        train(rule, start(rule, f"t{n}"), metric, 40) for n, metric in enumerate((0.5, 0.4, 0.6))
    ]
    assert ends == [40, 40, 10]


def test_trainings_at_other_batch_sizes_are_no_measure():
    rule = a_rule()
    assert train(rule, start(rule, "good", 16), 0.9, 40) == 40
    assert train(rule, start(rule, "worse", 32), 0.1, 40) == 40


def test_a_repetition_is_never_stopped():
    rule = a_rule()
    train(rule, start(rule, "good"), 0.9, 40)
    assert train(rule, start(rule, "again", repeats=True), 0.1, 40) == 40


def reach(rule, name, epochs, metric=0.97):
    trial = start(rule, name)
    done = {"epochs": float(epochs), "metric": metric, "state": "reached"}
    rule.ended(trial, done)


def test_milestones_lie_at_the_fewest_epochs_to_the_target_and_at_twice_as_many():
    rule = a_rule()
    reach(rule, "fast", 4)
    assert train(rule, start(rule, "slow"), 0.05, 40) == 4
    for name in ("weak", "weaker", "weakest"):
        assert train(rule, start(rule, name), 0.01, 40) == 4
    # it is in the better half by 4 epochs; by 8 all that got there had reached the target
    assert train(rule, start(rule, "good"), 0.9, 40) == 8


def test_no_milestone_lies_before_a_sixteenth_of_the_budget():
    rule = a_rule()
    reach(rule, "at once", 0.5)
    assert train(rule, start(rule, "slow"), 0.05, 40) == 3  # 40 / 16 is 2.5


def test_a_training_that_reaches_the_target_is_no_measure_before_it_has():
    rule = a_rule()
    first = start(rule, "first")
    assert train(rule, first, 0.3, 6) == 6
    reach(rule, "fast", 4)
    # judged with its next report at the milestone that lies behind it
    assert rule.stops(first, {"epochs": 7, "metric": 2.1})
    assert rule.stopped == {"first"}


def test_a_metric_that_is_no_number_is_the_worst():
    rule = a_rule()
    train(rule, start(rule, "lost"), float("nan"), 12)
    train(rule, start(rule, "lost too"), float("nan"), 12)
    assert train(rule, start(rule, "poor"), 0.01, 40) == 40


def test_a_training_at_another_batch_moves_no_milestone():
    rule = a_rule()
    rule.replay("stored", "32", [{"epochs": 2.0, "metric": 0.97, "state": "reached"}])
    assert train(rule, start(rule, "good"), 0.9, 40) == 40
    assert train(rule, start(rule, "worse"), 0.1, 40) == 10


def test_a_resumed_sweep_stops_as_the_uninterrupted_one_would():
    rule = a_rule()
    rule.replay("stored", "16", [{"epochs": float(e), "metric": 0.5 * e} for e in range(1, 41)])
    assert train(rule, start(rule, "worse"), 0.4, 40) == 10
