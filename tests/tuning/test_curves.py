"""A trial whose curve will not reach its target in time is stopped; others, and repetitions, continue."""

import math
from types import SimpleNamespace

from hpo.tuning.stopping import CurveStopping


def ended(curve, *, limit=20.0, repeats=False, upto=40, threshold=0.1):
    """The epoch at which the rule stops a training with this curve; None where it lets it go on."""
    rule = CurveStopping(threshold)
    trial = SimpleNamespace(
        trial_id="one", config={"stoppable": not repeats, "limit_epochs": limit}
    )
    rule.begins(trial)
    for quarter in range(1, 4 * upto + 1):
        at = quarter / 4
        result = {"state": "running", "points": [{"epochs": at, "metric": curve(at)}]}
        if rule.stops(trial, result):
            assert rule.stopped == {"one"}
            assert "predicts over 20.00 epochs" in rule.reason("one", at)
            return at
    assert not rule.stopped
    return None


def test_a_hopeless_training_is_stopped_long_before_its_limit():
    assert 5 <= ended(lambda at: 0.5 + math.exp(-at)) <= 8


def test_one_that_nearly_makes_it_is_stopped_at_its_limit():
    assert ended(lambda at: 2.1 / at) == 20


def test_one_that_makes_it_is_not_stopped_before():
    assert ended(lambda at: 1.5 / at, upto=15) is None


def test_a_repetition_and_a_trial_without_a_limit_go_on():
    assert ended(lambda at: 0.5 + math.exp(-at), repeats=True) is None
    assert ended(lambda at: 0.5 + math.exp(-at), limit=None) is None
