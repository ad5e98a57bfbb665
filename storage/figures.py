"""The stored figures of a trial: its convergence points, and the type, range and order of each figure.

All inputs are validated by these rules: points and results sent over the network, reports from programs, imported past
runs, outcomes of plans, and tables of evidence. The rows of the tables are validated too, by CHECK constraints
(``storage/schema/tables.py``). The bounds are far beyond any training run, but small enough that nothing computed from
the figures overflows or becomes 0: 1e12 samples per second make 3e19 samples in a year, and the largest published
training runs process 1e13 tokens.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

BYTES_OF_A_POINT = 120
"""Approximate size of a stored point in bytes, used for a server's limits in bytes."""

LEAST = 1e-12
"""The smallest positive amount: 1e-12 samples."""

MOST = 10**13
"""The maximum number of steps, epochs or seconds of a training run; as seconds, 317,000 years."""

MOST_SAMPLES = 4 * 10**15
"""The maximum number of samples of a training run; a double counts them exactly (up to 2^53)."""

MOST_AMOUNT = 1e18
"""The largest amount in a user-defined unit, and the highest number of samples per second."""

MOST_WHOLE = 2**31 - 1
"""The largest batch size and number of workers: the maximum of a 32-bit column."""

MOST_BYTES = 10**18
"""The maximum memory of a training run, in bytes."""

MOST_MEASURES, LONGEST_MEASURE = 50, 100
"""The maximum number of additional metrics that a trial may report when it ends, and the maximum length of
their names.
"""

_SLACK = 1 + 1e-9  # tolerance for sums of floating-point epochs


@dataclass(frozen=True)
class Figure:
    """A figure: a number from ``least`` to ``most``, inclusive, or None if not measured."""

    name: str
    least: float
    most: float
    whole: bool = False

    def fault(self, value: Any) -> str:
        """Return the rule that a value violates, or "" if it violates none."""
        if value is None:
            return ""
        sound = isinstance(value, int if self.whole else (int, float)) and value is not True
        if sound and value is not False and self.least <= value <= self.most:
            return ""
        kind = "a whole number" if self.whole else "a number"
        shown = repr(value) if len(repr(value)) <= 40 else f"{repr(value)[:40]}..."
        return f"{self.name} must be {kind} from {self.least:.15g} to {self.most:.15g}, but got {shown}"

    @property
    def rule(self) -> str:
        """The condition of a CHECK constraint, which NULL satisfies."""
        return f"{self.name} BETWEEN {self.least} AND {self.most}"


_EPOCHS = Figure("epochs", 0, MOST)
_SECONDS = Figure("seconds", 0, MOST)
_EPOCHS_TO_TARGET = Figure("epochs_to_target", LEAST, MOST)

POINT_FIGURES = (
    Figure("step", 0, MOST, whole=True),
    Figure("samples", 0, MOST_SAMPLES, whole=True),
    _EPOCHS,
    _SECONDS,
    Figure("learning_rate", 0, MOST_AMOUNT),
    Figure("global_batch_size", 1, MOST_WHOLE, whole=True),
)
"""The figures of a convergence point; losses, metric and gradient noise scale may be any number."""


def _came_of_it(
    title: str,
    *,
    unit: str = "",
    least: float | None = None,
    most: float = MOST,
    shown: bool = True,
) -> Any:
    return field(
        default=None,
        metadata={"title": title, "unit": unit, "least": least, "most": most, "shown": shown},
    )


@dataclass(frozen=True, kw_only=True)
class TrialFigures:
    """The figures of a trial, each defined only here; None if not measured.

    Database columns, ranges, results and records, the answers of the service and client, the tables of the dashboard
    page and of `hpo trials`, and the exports are derived from this class. ``title`` is the heading of a figure's
    column, ``shown`` says whether the page has that column, and ``unit`` is the unit in exports and answers. Without
    ``least``, a figure may be any number.

    ``epochs``, ``steps`` and ``seconds`` are what the trial used; ``resolution_epochs`` is the distance between
    evaluations, so the target may have been reached up to that much earlier. ``memory_bytes`` is the peak memory of the
    trial's first worker: on its accelerator or, if it has none, of its process. ``micro_batch_size`` is the size that
    was found to fit in a program's memory, None if the requested size fitted.
    """

    epochs_to_target: float | None = _came_of_it("Epochs to target", unit="epochs", least=LEAST)
    epochs: float | None = _came_of_it("Epochs trained", unit="epochs", least=0)
    steps: int | None = _came_of_it("Updates", unit="optimizer steps", least=0, shown=False)
    seconds: float | None = _came_of_it("Seconds", unit="seconds", least=0)
    best_metric: float | None = _came_of_it("Best metric")
    final_metric: float | None = _came_of_it("Last metric")
    resolution_epochs: float | None = _came_of_it(
        "Epochs between evaluations", unit="epochs", least=0, shown=False
    )
    memory_bytes: int | None = _came_of_it(
        "Peak memory", unit="bytes", least=0, most=MOST_BYTES, shown=False
    )
    micro_batch_size: int | None = _came_of_it(
        "Micro batch found", unit="samples", least=1, most=MOST_WHOLE, shown=False
    )


@dataclass(frozen=True)
class TrialField:
    """One field of :class:`TrialFigures`, for code derived from that class."""

    name: str
    whole: bool
    title: str
    unit: str
    least: float | None
    most: float
    shown: bool


TRIAL_FIELDS = tuple(
    TrialField(name=each.name, whole="int" in str(each.type), **each.metadata)
    for each in fields(TrialFigures)
)

END_FIGURES = (
    *(
        Figure(each.name, each.least, each.most, whole=each.whole)
        for each in TRIAL_FIELDS
        if each.least is not None
    ),
    Figure("samples", 0, MOST_SAMPLES, whole=True),
)
"""The figures of a trial that has ended."""

LATER = frozenset({"memory_bytes", "micro_batch_size"})
"""Figures of a trial whose columns and rules were added by a later revision of the schema."""

OUTCOME_FIGURES = (
    _EPOCHS_TO_TARGET,
    _EPOCHS,
    _SECONDS,
    Figure("workers", 1, MOST_WHOLE, whole=True),
    Figure("restarts", 0, MOST_WHOLE, whole=True),
    Figure("nodes", 1, MOST_WHOLE, whole=True),
    Figure("samples_per_second", LEAST, MOST_AMOUNT),
)
"""The figures of one launch of a plan."""

PLAN_FIGURES = (
    *(
        Figure(each, 1, MOST_WHOLE, whole=True)
        for each in (
            "nodes",
            "workers",
            "ranks_per_node",
            "global_batch_size",
            "local_batch_size",
            "micro_batch_size",
        )
    ),
    *(
        Figure(f"{quantity}_{quantile}", 0, MOST_AMOUNT)
        for quantity in ("epochs", "seconds")
        for quantile in ("median", "low", "high")
    ),
    Figure("slot_seconds", 0, MOST),
    Figure("chance_in_slot", 0, 1),
)
"""The figures of a plan: how it splits its batch, and the results it expects."""

FORECAST_FIGURES = (
    Figure("global_batch_size", 1, MOST_WHOLE, whole=True),
    *(Figure(f"epochs_{quantile}", 0, MOST_AMOUNT) for quantile in ("median", "low", "high")),
)
"""The figures of a forecast; its settings and laws may be any numbers."""

AMOUNT = Figure("amount", 1 / MOST_AMOUNT, MOST_AMOUNT)
"""A figure above 0 in a user-defined unit, such as epochs to target in a table, or samples per second."""


def check_rule_of_figures(figures: Iterable[Figure]) -> str:
    """Return the condition of one CHECK constraint for all figures."""
    return " AND ".join(f"({figure.rule})" for figure in figures)


def figures_fault(figures: Iterable[Figure], values: object) -> str:
    """Return the first range that a record violates, or "" if it violates none; missing figures are ignored."""
    faults = (figure.fault(getattr(values, figure.name, None)) for figure in figures)
    return next(filter(None, faults), "")


def fault_of_measures(measures: Mapping[str, float] | None) -> str:
    """Return the rule that the additional metrics of an ended trial violate, or "" if they violate none."""
    if measures is None:
        return ""
    if len(measures) > MOST_MEASURES:
        return f"a trial may have at most {MOST_MEASURES} measures, but got {len(measures)}"
    for name, value in measures.items():
        if not isinstance(name, str) or not 0 < len(name) <= LONGEST_MEASURE:
            return f"the name of a measure must have 1 to {LONGEST_MEASURE} characters, but got {name!r:.120}"
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number or not abs(value) <= MOST_AMOUNT:
            return f"{name} must be a number up to {MOST_AMOUNT:.15g}, but got {value!r:.40}"
    return ""


def fault_of_reached(epochs_to_target: float | None, epochs: float | None) -> str:
    """Return the violated rule if a trial reached its target after more epochs than it trained, otherwise ""."""
    if epochs_to_target is None or epochs is None or epochs_to_target <= epochs * _SLACK:
        return ""
    return f"epochs_to_target must not be above epochs, but got {epochs_to_target:g} of {epochs:g} epochs"


class Point(Protocol):
    """The fields of a convergence point that these rules check."""

    @property
    def step(self) -> int:
        """Updates so far."""

    @property
    def samples(self) -> int:
        """Training samples so far."""

    @property
    def epochs(self) -> float:
        """Epochs so far."""

    @property
    def seconds(self) -> float:
        """Seconds so far."""

    @property
    def global_batch_size(self) -> int:
        """Samples per update."""


def fault_of_points(
    points: Sequence[Point], *, before: Point | None = None, global_batch_size: int | None = None
) -> str:
    """Return the first rule that a segment of a curve violates, with the offending point, or "" if it violates none.

    Within the segment, steps must increase, and samples, epochs and seconds must not decrease. ``before`` is the stored
    point with the next lower step; compared with it, only samples and epochs must not decrease, because the clock may
    differ after a restart from a checkpoint. ``global_batch_size`` is given for a trial whose batch size does not
    change.
    """
    previous: Point | None = None
    for point in points:
        fault = figures_fault(POINT_FIGURES, point)
        if not fault and global_batch_size not in (None, point.global_batch_size):
            fault = (
                f"global_batch_size must be the trial's {global_batch_size}, but got "
                f"{point.global_batch_size}"
            )
        if not fault and previous is not None:
            fault = _fault_of_order(previous, point, ("samples", "epochs", "seconds"))
        elif not fault and before is not None:
            fault = _fault_of_order(before, point, ("samples", "epochs"))
        if fault:
            return f"the point at step {str(point.step)[:20]}: {fault}"
        previous = point
    return ""


def _fault_of_order(before: Point, point: Point, names: tuple[str, ...]) -> str:
    if point.step <= before.step:
        return f"steps must rise from point to point, but this one comes after step {before.step}"
    for name in names:
        last, value = getattr(before, name), getattr(point, name)
        if value * _SLACK < last:
            return f"{name} must not fall, but got {value:g} after {last:g}"
    return ""


@dataclass(frozen=True, slots=True)
class ConvergencePoint:
    """One evaluation of a trial. A loss or metric is NaN if it was not measured or is not a number."""

    step: int
    samples: int
    epochs: float
    seconds: float
    train_loss: float
    loss: float
    metric: float
    learning_rate: float
    global_batch_size: int
    gradient_noise_scale: float | None = None  # samples (arXiv:1812.06162)


@dataclass(frozen=True, eq=False)
class Convergence:
    """Convergence points of many trials as columns: arrays of shape (points,), sorted by trial, then by step.

    A figure that was not measured is NaN.
    """

    trial_id: NDArray[np.int64]
    step: NDArray[np.int64]
    samples: NDArray[np.int64]
    epochs: NDArray[np.float64]
    seconds: NDArray[np.float64]
    train_loss: NDArray[np.float64]
    loss: NDArray[np.float64]
    metric: NDArray[np.float64]
    learning_rate: NDArray[np.float64]
    global_batch_size: NDArray[np.int64]
    gradient_noise_scale: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.trial_id)

    def of(self, trial_id: int) -> Convergence:
        """Return the points of one trial, as views into these arrays; the views are empty if the trial has
        no points.
        """
        first = self.trial_id.searchsorted(trial_id, "left")
        last = self.trial_id.searchsorted(trial_id, "right")
        columns = (getattr(self, column.name) for column in dataclasses.fields(self))
        return Convergence(*(column[first:last] for column in columns))
