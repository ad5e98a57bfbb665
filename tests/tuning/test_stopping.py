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
    return LadderASHA((16, 32), 40, higher_is_better=more.get("higher_is_better", True))


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


def test_a_training_that_reached_the_target_early_counts_at_later_milestones():
    scheduler = a_scheduler()
    trial = start(scheduler, "fast")
    scheduler.on_trial_complete(None, trial, {"epochs": 4.0, "metric": 0.97, "state": "reached"})
    assert train(scheduler, start(scheduler, "slow"), 0.05, 40) == 10


def test_a_resumed_sweep_stops_as_the_uninterrupted_one_would():
    scheduler = a_scheduler()
    scheduler.replay("stored", 16, [{"epochs": float(e), "metric": 0.5 * e} for e in range(1, 41)])
    assert train(scheduler, start(scheduler, "worse"), 0.4, 40) == 10
