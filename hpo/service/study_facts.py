"""Facts from a study's file, read once for each file: lists of studies and pages need them again and again."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hpo.errors import SpecError
from hpo.study.sizes import Point, full_point, named_sizes, point_in
from hpo.study.spec import parse_study


@dataclass(frozen=True)
class StudyFacts:
    """The trials that a study's file asks for, its rungs, and the run that it is for.

    ``sizes`` are those of its ladder beside the batch, ``full_point`` those of the full scale. All are empty where an
    older release wrote the file in another form.
    """

    budget_trials: int | None = None
    ladder: tuple[int, ...] = ()
    full_scale: Mapping[str, Any] | None = None
    sizes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    full_point: Point = ()

    @property
    def full_scale_batch(self) -> int | None:
        """The global batch size that the study is for; None where its file names none."""
        return None if self.full_scale is None else int(self.full_scale["global_batch_size"])

    def sizes_of(self, settings: Mapping[str, Any]) -> dict[str, int]:
        """The sizes of model and training that a trial with these settings has; empty where the batch alone grows."""
        return named_sizes(point_in(self.full_point, settings))


@functools.lru_cache(maxsize=1024)
def study_facts(text: str) -> StudyFacts:
    """The facts of a stored study's file."""
    try:
        spec = parse_study(text)
    except SpecError:
        return StudyFacts()
    return StudyFacts(
        spec.budget.asked_trials,
        spec.ladder,
        spec.to_dict().get("full_scale"),
        spec.sizes,
        full_point(spec),
    )
