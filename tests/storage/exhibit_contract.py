"""What every database must do with exhibits; part of the store's contract."""

from __future__ import annotations

import math

import pytest
from store_samples import new_outcome, new_plan

from storage.errors import Conflict, InvalidRecord, NotFound
from storage.statements.exhibits import MAX_BYTES

EXHIBIT = {
    "title": "wind <b>",
    "references": {"majority class": 1 / 3},
    "classes": ["calm", "sturm ü"],
    "panels": [{"name": "7", "fields": {"U": [[0, 255], [17, 3]]}, "labels": [[0, 1], [1, 1]]}],
}


class ExhibitContract:
    def test_exhibits_stay_with_their_outcomes(self, store, study):
        plan, other = (store.add_plan(new_plan(study)) for _ in range(2))
        first, bare, second = (
            store.add_outcome(new_outcome(plan.id, seed=seed)) for seed in range(3)
        )
        elsewhere = store.add_outcome(new_outcome(other.id))
        store.add_exhibit(second.id, {"title": "second"})
        store.add_exhibit(first.id, EXHIBIT)
        store.add_exhibit(elsewhere.id, {})
        assert store.exhibits(plan.id) == {first.id: EXHIBIT, second.id: {"title": "second"}}
        assert store.exhibits(other.id) == {elsewhere.id: {}}
        assert store.outcomes(plan.id) == [first, bare, second]
        with pytest.raises(NotFound, match="no plan 99"):
            store.exhibits(99)

    def test_an_exhibit_needs_its_outcome_and_is_the_only_one(self, store, study):
        with pytest.raises(NotFound, match="no outcome with id 99"):
            store.add_exhibit(99, EXHIBIT)
        outcome = store.add_outcome(new_outcome(store.add_plan(new_plan(study)).id))
        store.add_exhibit(outcome.id, EXHIBIT)
        with pytest.raises(Conflict, match=f"outcome {outcome.id} has an exhibit"):
            store.add_exhibit(outcome.id, {})

    @pytest.mark.parametrize(
        ("exhibit", "message"),
        [
            ({"references": {"nothing": math.nan}}, "plain JSON values"),
            ({"panels": [object()]}, "plain JSON values"),
            (
                {"title": "x" * MAX_BYTES},
                f"at most {MAX_BYTES:,} bytes as JSON, but got {MAX_BYTES + 12:,}; keep fewer",
            ),
        ],
    )
    def test_what_is_no_json_or_too_large_is_refused(self, store, study, exhibit, message):
        plan = store.add_plan(new_plan(study))
        outcome = store.add_outcome(new_outcome(plan.id))
        with pytest.raises(InvalidRecord, match=message):
            store.add_exhibit(outcome.id, exhibit)
        assert store.exhibits(plan.id) == {}
