"""Whether a forecast held, on known answers."""

from __future__ import annotations

import pytest

from storage.records import TrialState
from storage.statements.calibration import is_inside

REACHED, CENSORED, DIVERGED = TrialState.REACHED, TrialState.CENSORED, TrialState.DIVERGED


@pytest.mark.parametrize(
    ("runs", "inside"),
    [
        ([(REACHED, 9.0, 10.0)], True),
        ([(REACHED, 8.0, 8.0)], True),  # the ends belong to the interval
        ([(REACHED, 13.0, 13.0)], True),
        ([(REACHED, 7.9, 9.0)], False),
        ([(REACHED, 7.0, 7.0), (REACHED, 10.0, 10.0)], True),  # the mean counts, not each run
        ([(REACHED, 9.0, 9.0), (REACHED, 20.0, 20.0)], False),
        ([(REACHED, 9.0, 9.0), (DIVERGED, None, 1.0)], False),  # no finite mean
        ([(CENSORED, None, 10.0)], None),  # needs more than 10, perhaps less than 13
        ([(CENSORED, None, 14.0)], False),
        ([(REACHED, 10.0, 10.0), (CENSORED, None, 12.0)], None),
        ([(REACHED, 10.0, 10.0), (CENSORED, None, 16.0)], False),  # the mean exceeds 13
        (
            [(TrialState.FAILED, None, 1.0), (REACHED, 9.0, 9.0)],
            True,
        ),  # a crash says nothing of the settings
        ([(TrialState.FAILED, None, 1.0)], None),
        ([(TrialState.PRUNED, None, 20.0)], None),
        ([], None),
    ],
)
def test_inside_8_to_13(runs, inside):
    assert is_inside(8.0, 13.0, runs) is inside


def test_without_an_interval_nothing_is_known():
    assert is_inside(None, None, [(REACHED, 9.0, 9.0)]) is None
    assert is_inside(8.0, None, [(DIVERGED, None, 9.0)]) is None
