"""What every database must do with sample images; part of the store's contract."""

from __future__ import annotations

import math

import pytest
from store_samples import new_outcome, new_plan

from storage.errors import Conflict, InvalidRecord, NotFound
from storage.statements.sample_images import MAX_BYTES

SAMPLE_IMAGES = {
    "title": "wind <b>",
    "references": {"majority class": 1 / 3},
    "classes": ["calm", "sturm ü"],
    "panels": [{"name": "7", "fields": {"U": [[0, 255], [17, 3]]}, "labels": [[0, 1], [1, 1]]}],
}


class SampleImagesContract:
    def test_sample_images_stay_with_their_outcomes(self, store, study):
        plan, other = (store.add_plan(new_plan(study)) for _ in range(2))
        first, bare, second = (
            store.add_outcome(new_outcome(plan.id, seed=seed)) for seed in range(3)
        )
        elsewhere = store.add_outcome(new_outcome(other.id))
        store.add_sample_images(second.id, {"title": "second"})
        store.add_sample_images(first.id, SAMPLE_IMAGES)
        store.add_sample_images(elsewhere.id, {})
        assert store.sample_images(plan.id) == {
            first.id: SAMPLE_IMAGES,
            second.id: {"title": "second"},
        }
        assert store.sample_images(other.id) == {elsewhere.id: {}}
        assert store.outcomes(plan.id) == [first, bare, second]
        with pytest.raises(NotFound, match="no plan 99"):
            store.sample_images(99)

    def test_sample_images_need_their_outcome_and_are_the_only_ones(self, store, study):
        with pytest.raises(NotFound, match="no outcome with id 99"):
            store.add_sample_images(99, SAMPLE_IMAGES)
        outcome = store.add_outcome(new_outcome(store.add_plan(new_plan(study)).id))
        store.add_sample_images(outcome.id, SAMPLE_IMAGES)
        with pytest.raises(Conflict, match=f"outcome {outcome.id} has sample images"):
            store.add_sample_images(outcome.id, {})

    @pytest.mark.parametrize(
        ("images", "message"),
        [
            ({"references": {"nothing": math.nan}}, "plain JSON values"),
            ({"panels": [object()]}, "plain JSON values"),
            (
                {"title": "x" * MAX_BYTES},
                f"at most {MAX_BYTES:,} bytes as JSON, but got {MAX_BYTES + 12:,}; keep fewer",
            ),
        ],
    )
    def test_what_is_no_json_or_too_large_is_refused(self, store, study, images, message):
        plan = store.add_plan(new_plan(study))
        outcome = store.add_outcome(new_outcome(plan.id))
        with pytest.raises(InvalidRecord, match=message):
            store.add_sample_images(outcome.id, images)
        assert store.sample_images(plan.id) == {}
