"""Facts from a study's file, read once for each file: lists of studies and pages need them again and again."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hpo.errors import SpecError
from hpo.study.spec import parse_study


@dataclass(frozen=True)
class StudyFacts:
    """The trials that a study's file asks for, its rungs, and the run that it is for.

    All are empty where an older release wrote the file in another form.
    """

    budget_trials: int | None = None
    ladder: tuple[int, ...] = ()
    full_scale: Mapping[str, Any] | None = None

    @property
    def full_scale_batch(self) -> int | None:
        """The global batch size that the study is for; None where its file names none."""
        return None if self.full_scale is None else int(self.full_scale["global_batch_size"])


@functools.lru_cache(maxsize=1024)
def study_facts(text: str) -> StudyFacts:
    """The facts of a stored study's file."""
    try:
        spec = parse_study(text)
    except SpecError:
        return StudyFacts()
    return StudyFacts(spec.budget.asked_trials, spec.ladder, spec.to_dict().get("full_scale"))
