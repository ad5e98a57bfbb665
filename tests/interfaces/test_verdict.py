"""Forecast against rules of thumb: judged by the scatter of their runs, with no verdict if that is too large."""

import math
from types import SimpleNamespace

import pytest

from hpo.runs.verdict import mean_epochs_of_runs, rule_verdicts
from storage.records import PlanKind
from trainers.job import HOW_SOON


def a_run(kind, *epochs):
    """A plan's runs, None for one that was lost."""
    return SimpleNamespace(
        plan=SimpleNamespace(kind=kind),
        outcomes=epochs,
        needs=tuple(each for each in epochs if each is not None),
        question=HOW_SOON,
    )


def test_the_mean_is_geometric_and_its_error_that_of_the_logarithms():
    mean = mean_epochs_of_runs(a_run(PlanKind.FORECAST, 4.0, 9.0, None))
    assert mean.epochs == pytest.approx(6.0)
    assert mean.error == pytest.approx(math.log(9 / 4) / 2)
    assert (mean.runs, mean.lost) == (3, 1)
    assert mean.told() == "6 ± 2.43 (3 runs, 1 lost)"


def test_a_clear_difference_is_told_in_epochs_and_standard_errors():
    [line] = rule_verdicts(
        a_run(PlanKind.FORECAST, 9.9, 10.0, 10.1), [a_run(PlanKind.SQRT_SCALING, 19.8, 20.0, 20.2)]
    )
    assert line.startswith("against square-root scaling: the forecast needs 50 % fewer epochs (")
    [line] = rule_verdicts(
        a_run(PlanKind.FORECAST, 19.8, 20.0, 20.2), [a_run(PlanKind.NO_SCALING, 9.9, 10.0, 10.1)]
    )
    assert line.startswith("against no scaling: the forecast needs 100 % more epochs (")


def test_no_verdict_within_two_standard_errors():
    rule = a_run(PlanKind.NO_SCALING, 9.0, 11.0, 13.0)
    [line] = rule_verdicts(a_run(PlanKind.FORECAST, 8.0, 10.0, 12.0), [rule])
    assert "no verdict within 2 standard errors" in line


def test_lost_runs_are_told():
    [line] = rule_verdicts(
        a_run(PlanKind.FORECAST, 10.0, 10.0), [a_run(PlanKind.LINEAR_SCALING, None, None)]
    )
    assert line == "against linear scaling: linear scaling lost every run"
    [line] = rule_verdicts(
        a_run(PlanKind.FORECAST, 9.0, 10.0), [a_run(PlanKind.LINEAR_SCALING, 30.0, 31.0, None)]
    )
    assert line.endswith("; lost: 0 of 2 by the forecast, 1 of 3 by linear scaling")
    assert rule_verdicts(a_run(PlanKind.FORECAST, 9.0), [a_run(PlanKind.LINEAR_SCALING)]) == []


def test_one_run_that_arrived_is_no_mean():
    ours = a_run(PlanKind.FORECAST, 20.0, 21.0, 22.0)
    [line] = rule_verdicts(ours, [a_run(PlanKind.LINEAR_SCALING, 61.0, None, None)])
    assert line == (
        "against linear scaling: 3 of 3 runs by the forecast succeeded, 1 of 3 by linear scaling"
    )
    [line] = rule_verdicts(a_run(PlanKind.FORECAST, 20.0), [a_run(PlanKind.NO_SCALING, 30.0)])
    assert line == "against no scaling: no verdict on a single run"
