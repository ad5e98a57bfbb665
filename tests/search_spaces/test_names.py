"""The nearest name, suggested at the end of an error message."""

from __future__ import annotations

from search_spaces.names import did_you_mean, nearest_or_all

KNOWN = ("sgd", "lars", "lamb")


def test_a_typo_is_offered_its_nearest_name() -> None:
    assert (
        did_you_mean("larz", KNOWN)
        == nearest_or_all("larz", iter(KNOWN))
        == "; did you mean 'lars'?"
    )


def test_without_a_near_name_nothing_or_all_are_offered() -> None:
    assert did_you_mean("quadratic", KNOWN) == ""
    assert nearest_or_all("quadratic", iter(KNOWN)) == "; the choices are lamb, lars, sgd"
