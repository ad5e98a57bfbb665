"""Successive halving stops within a rung only, never a repetition, and counts those that reached the target."""

from types import SimpleNamespace

from hpo.tuning.stopping import LadderASHA


def start(scheduler, name, batch=16, repeats=False):
    trial = SimpleNamespace(
        trial_id=name, config={"job": {"global_batch_size": batch}, "stoppable": not repeats}
    )
    scheduler.on_trial_add(None, trial)
    return trial


def train(scheduler, trial, metric, upto):
    """Report an evaluation each epoch until stopped; returns the epoch of the end."""
    for epoch in range(1, upto + 1):
        if (
            scheduler.on_trial_result(None, trial, {"epochs": epoch, "metric": metric * epoch})
            == "STOP"
        ):
            return epoch
    return upto


def a_scheduler(**more):
    return LadderASHA(40, higher_is_better=more.get("higher_is_better", True))


def test_the_worse_half_stops_at_the_first_milestone():
    scheduler = a_scheduler()
    ends = [
        train(scheduler, start(scheduler, f"t{n}"), metric, 40)
        for n, metric in enumerate((0.5, 0.4, 0.6, 0.3))
    ]
    assert ends == [40, 10, 40, 10]
    assert scheduler.stopped == {"t1", "t3"}


def test_a_metric_to_be_minimised_is_compared_the_other_way():
    scheduler = a_scheduler(higher_is_better=False)
    ends = [
        train(scheduler, start(scheduler, f"t{n}"), metric, 40)
        for n, metric in enumerate((0.5, 0.4, 0.6))
    ]
    assert ends == [40, 40, 10]


def test_trainings_at_other_batch_sizes_are_no_measure():
    scheduler = a_scheduler()
    assert train(scheduler, start(scheduler, "good", 16), 0.9, 40) == 40
    assert train(scheduler, start(scheduler, "worse", 32), 0.1, 40) == 40


def test_a_repetition_is_never_stopped():
    scheduler = a_scheduler()
    train(scheduler, start(scheduler, "good"), 0.9, 40)
    assert train(scheduler, start(scheduler, "again", repeats=True), 0.1, 40) == 40


def reach(scheduler, name, epochs, metric=0.97):
    trial = start(scheduler, name)
    done = {"epochs": float(epochs), "metric": metric, "state": "reached"}
    scheduler.on_trial_complete(None, trial, done)


def test_milestones_lie_at_the_fewest_epochs_to_the_target_and_at_twice_as_many():
    scheduler = a_scheduler()
    reach(scheduler, "fast", 4)
    assert train(scheduler, start(scheduler, "slow"), 0.05, 40) == 4
    for name in ("weak", "weaker", "weakest"):
        assert train(scheduler, start(scheduler, name), 0.01, 40) == 4
    # it is in the better half by 4 epochs; by 8 all that got there had reached the target
    assert train(scheduler, start(scheduler, "good"), 0.9, 40) == 8


def test_no_milestone_lies_before_a_sixteenth_of_the_budget():
    scheduler = a_scheduler()
    reach(scheduler, "at once", 0.5)
    assert train(scheduler, start(scheduler, "slow"), 0.05, 40) == 3  # 40 / 16 is 2.5


def test_a_training_that_reaches_the_target_is_no_measure_before_it_has():
    scheduler = a_scheduler()
    first = start(scheduler, "first")
    assert train(scheduler, first, 0.3, 6) == 6
    reach(scheduler, "fast", 4)
    # judged with its next report at the milestone that lies behind it
    assert scheduler.on_trial_result(None, first, {"epochs": 7, "metric": 2.1}) == "STOP"
    assert scheduler.stopped == {"first"}


def test_a_metric_that_is_no_number_is_the_worst():
    scheduler = a_scheduler()
    train(scheduler, start(scheduler, "lost"), float("nan"), 12)
    train(scheduler, start(scheduler, "lost too"), float("nan"), 12)
    assert train(scheduler, start(scheduler, "poor"), 0.01, 40) == 40


def test_a_training_at_another_batch_moves_no_milestone():
    scheduler = a_scheduler()
    scheduler.replay("stored", 32, [{"epochs": 2.0, "metric": 0.97, "state": "reached"}])
    assert train(scheduler, start(scheduler, "good"), 0.9, 40) == 40
    assert train(scheduler, start(scheduler, "worse"), 0.1, 40) == 10


def test_a_resumed_sweep_stops_as_the_uninterrupted_one_would():
    scheduler = a_scheduler()
    scheduler.replay("stored", 16, [{"epochs": float(e), "metric": 0.5 * e} for e in range(1, 41)])
    assert train(scheduler, start(scheduler, "worse"), 0.4, 40) == 10
