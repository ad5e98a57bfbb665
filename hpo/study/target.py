"""The section ``target``: the question that a study asks of its training runs.

The question is either how soon they reach a threshold, or how good the metric gets within a fixed training budget. The
budget is given in epochs, or in samples or tokens if the study file itself says how many an epoch has, so that a study
can be read without opening its data.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, TypeGuard

from pydantic import Field, model_validator

from hpo.study.faults import Location
from hpo.study.program import ProgramSection, Section
from trainers.job import Target

LONGEST_WORD = 100  # maximum number of characters of a name
MOST_EPOCHS = 1e6
UNTOLD = 1.0  # placeholder epochs of a budget that cannot be converted to epochs, which is reported as a separate fault
_ENTROPIES = ("loss", "perplexity", "ppl", "nll", "bits", "bpb", "bpc", "energy")
_ERRORS = ("error", "err", "mse", "rmse", "mae", "wer", "cer")
LOWER_IS_BETTER = frozenset((*_ENTROPIES, *_ERRORS))
"""Words in the names of metrics for which lower is better."""


class BestWithin(Section):
    """A fixed budget of training, in one of three units."""

    epochs: float | None = Field(None, gt=0, le=MOST_EPOCHS)
    samples: int | None = Field(None, gt=0, le=10**15)
    tokens: int | None = Field(None, gt=0, le=10**18)

    @model_validator(mode="after")
    def _one_unit(self) -> BestWithin:
        given = [name for name in type(self).model_fields if getattr(self, name) is not None]
        if len(given) != 1:
            got = " and ".join(given) or "none of them"
            raise ValueError(f"must have exactly one of epochs, samples and tokens, but got {got}")
        return self


class StudyTarget(Section):
    """The metric, and the lower or upper bound on it that ends a training run.

    With ``best_within`` there is no threshold: every run continues to the end of that budget, and the best metric
    within it counts. ``direction`` then says which direction of the metric is better, if its name does not.
    """

    metric: str = Field(min_length=1, max_length=LONGEST_WORD)
    at_least: float | None = None
    at_most: float | None = None
    best_within: BestWithin | None = None
    direction: Literal["maximize", "minimize"] | None = None

    @model_validator(mode="after")
    def _one_question(self) -> StudyTarget:
        given = self.at_least is not None, self.at_most is not None
        if self.best_within is not None and any(given):
            other = "at_least" if given[0] else "at_most"
            raise ValueError(
                "must have at_least or at_most (how soon is the target reached?) or "
                f"best_within (how good does the metric get?), but got {other} and best_within; "
                "use a second study, with another name, for the other question"
            )
        if self.best_within is None and given[0] == given[1]:
            got = "both" if given[0] else "neither"
            raise ValueError(
                f"must have exactly one of at_least and at_most, but got {got}"
                + ("" if given[0] else "; or ask for the best: best_within: {epochs: ...}")
            )
        if self.best_within is None and self.direction is not None:
            raise ValueError(
                f"direction may be used only with best_within, but got {self.direction} with "
                f"a threshold; leave it out"
            )
        return self

    @property
    def higher_is_better(self) -> bool:
        """Whether higher values of the metric are better: from its threshold, its direction, or else its name."""
        if self.best_within is None:
            return self.at_least is not None
        return best_value_target(self.metric, self.direction).higher_is_better

    @property
    def aim(self) -> Target:
        """The target for the trainer."""
        if self.best_within is not None:
            return Target.best(self.metric, higher_is_better=self.higher_is_better)
        threshold = self.at_least if self.at_least is not None else float(self.at_most or 0.0)
        return Target(self.metric, threshold, self.higher_is_better)

    @property
    def threshold(self) -> float:
        """The value to reach, in the metric's own unit; unreachable if the study asks for the best metric."""
        return self.aim.threshold

    @property
    def ends(self) -> bool:
        """Whether reaching the target ends a training run."""
        return self.best_within is None

    def reached(self, value: float) -> bool:
        """Return whether ``value`` of the metric reaches the target; NaN does not."""
        return self.aim.reached(value)

    def to_plain(self) -> dict[str, Any]:
        """Return the section as plain values, leaving out missing ones."""
        return self.model_dump(mode="json", exclude_none=True)


def best_value_target(metric: str, direction: str | None = None) -> Target:
    """Return a target that asks for the best value of a metric; by default, the metric's name says which direction is
    better.
    """
    words = set(re.split(r"[^a-z]+", metric.lower()))
    higher = direction == "maximize" if direction else not words & LOWER_IS_BETTER
    return Target.best(metric, higher_is_better=higher)


def with_budget(values: Any) -> Any:
    """Return a study's values with the epochs per trial taken from ``best_within``, and the direction from its
    program.
    """
    target = values.get("target") if isinstance(values, Mapping) else None
    within = target.get("best_within") if isinstance(target, Mapping) else None
    if not isinstance(within, Mapping) or not isinstance(target, Mapping):
        return values
    told = _told_direction(values.get("program"), target)
    budget, epochs = (
        values.get("budget"),
        _epochs(within, values.get("program"), values.get("data")),
    )
    found = {**values, "target": {**target, **told}}
    if budget == "auto":
        budget = {"trials": budget}
    if isinstance(budget, Mapping) and "epochs_per_trial" not in budget:
        found["budget"] = {**budget, "epochs_per_trial": UNTOLD if epochs is None else epochs}
    return found


def faults_of_target(
    target: StudyTarget,
    program: ProgramSection | None,
    data: Mapping[str, Any],
    batches: Sequence[int],
    epochs_per_trial: float,
) -> Iterator[tuple[Location, str]]:
    """Yield the faults of a fixed budget in its unit, its epochs per trial, or the study's batch sizes."""
    if target.best_within is None:
        return
    within = target.best_within.model_dump(exclude_none=True)
    unit, amount = next(iter(within.items()))
    plain = None if program is None else {"train_samples": program.train_samples}
    epochs = _epochs(within, plain, data)
    place = ("target", "best_within", unit)
    if epochs is None:
        needs = "train_samples" + (" and sequence_length" if unit == "tokens" else "")
        yield (
            place,
            f"best_within in {unit} needs the number of {unit} in an epoch (data: {needs}"
            f"{'; program: train_samples' if unit == 'samples' else ''}), but got none; give best_within: "
            "{epochs: ...}",
        )
        return
    if epochs > MOST_EPOCHS:
        yield place, f"best_within must be at most {MOST_EPOCHS:,.0f} epochs, but got {epochs:g}"
    elif abs(epochs_per_trial - epochs) > 1e-6 * epochs:
        yield (
            ("budget", "epochs_per_trial"),
            f"budget.epochs_per_trial must be the {epochs:g} epochs of target.best_within, the "
            f"length of each training run, but got {epochs_per_trial:g}; leave it out",
        )
    samples = _samples_per_epoch(plain, data)
    most = None if samples is None else epochs * samples
    large = next((batch for batch in sorted(batches) if most is not None and batch > most), None)
    if large is not None:
        yield (
            place,
            f"best_within must allow at least one update at every batch size of the study, but "
            f"got {amount:g} {unit}, which is less than one batch of {large}; raise it, or "
            f"leave that batch size out",
        )


def _told_direction(program: Any, target: Mapping[str, Any]) -> dict[str, str]:
    report = program.get("report") if isinstance(program, Mapping) else None
    metrics = report.get("metrics") if isinstance(report, Mapping) else None
    name = target.get("metric")
    known = metrics.get(name) if isinstance(metrics, Mapping) and isinstance(name, str) else None
    if not isinstance(known, bool) or target.get("direction") is not None:
        return {}
    return {"direction": "maximize" if known else "minimize"}


def _epochs(within: Mapping[str, Any], program: Any, data: Any) -> float | None:
    """Return the budget in epochs; None if the study lacks the values that this needs, or if they are not numbers."""
    if _is_count(within.get("epochs")):
        return float(within["epochs"])
    samples = _samples_per_epoch(program, data)
    length = data.get("sequence_length") if isinstance(data, Mapping) else None
    if samples is None:
        return None
    if _is_count(within.get("samples")):
        return float(within["samples"]) / samples
    if _is_count(within.get("tokens")) and _is_count(length):
        return float(within["tokens"]) / (samples * length)
    return None


def _samples_per_epoch(*sections: Any) -> float | None:
    told = [each.get("train_samples") for each in sections if isinstance(each, Mapping)]
    return next((float(each) for each in told if _is_count(each)), None)


def _is_count(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e300
