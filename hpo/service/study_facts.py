"""Facts from a study's file, parsed once per file because study lists and pages need them repeatedly."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hpo.errors import SpecError
from hpo.study.sizes import Point, full_scale_sizes, named_sizes, sizes_in_settings
from hpo.study.spec import parse_stored_study


@dataclass(frozen=True)
class StudyFacts:
    """The trials that a study's file asks for, its rungs, and its full-scale run.

    ``sizes`` are the sizes of its ladder other than the batch, ``full_point`` those of the full scale. All fields are
    empty if an older release wrote the file in another format.
    """

    budget_trials: int | None = None
    ladder: tuple[int, ...] = ()
    full_scale: Mapping[str, Any] | None = None
    sizes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    full_point: Point = ()

    @property
    def full_scale_batch(self) -> int | None:
        """The full-scale global batch size; None if the study's file names none."""
        return None if self.full_scale is None else int(self.full_scale["global_batch_size"])

    def sizes_of(self, settings: Mapping[str, Any]) -> dict[str, int]:
        """Return the model and training sizes of a trial with these settings; empty if only the batch grows."""
        return named_sizes(sizes_in_settings(self.full_point, settings))


@functools.lru_cache(maxsize=1024)
def study_facts(text: str) -> StudyFacts:
    """Return the facts of a stored study's file."""
    try:
        spec = parse_stored_study(text)
    except SpecError:
        return StudyFacts()
    return StudyFacts(
        spec.budget.asked_trials,
        spec.ladder,
        spec.to_dict().get("full_scale"),
        spec.sizes,
        full_scale_sizes(spec),
    )
