"""Extra settings of a workload, a program or a technique, beyond the settings that all trials have.

A study declares such a setting in ``search`` like any other, with a domain or a single value. Settings that a user's
workload or program reads are not checked; settings that an optimizer or a schedule reads are described
(:class:`OwnSetting`) and checked like known settings. The name must differ from all names of known settings and
of columns of a trial.
"""

from __future__ import annotations

import difflib
import math
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

Scalar = str | bool | int | float | None


class SettingError(ValueError):
    """Error for a setting that does not exist, has the wrong type, or lies outside its range."""


@dataclass(frozen=True)
class Range:
    """The range of a numeric setting; ``low_open`` and ``high_open`` exclude the respective end."""

    low: float = -math.inf
    high: float = math.inf
    low_open: bool = False
    high_open: bool = False

    def __contains__(self, value: float) -> bool:
        above = value > self.low if self.low_open else value >= self.low
        below = value < self.high if self.high_open else value <= self.high
        return above and below

    def __str__(self) -> str:
        return f"{'(' if self.low_open else '['}{self.low:g}, {self.high:g}{')' if self.high_open else ']'}"


@dataclass(frozen=True, kw_only=True)
class OwnSetting:
    """A setting that one technique reads: its meaning, its default and its allowed values.

    With ``choices``, the value is one of these words; with a ``range``, it is a number in ``unit`` (an integer if
    ``whole``); with neither, it is a boolean. Null is allowed if the default is None.
    """

    what: str
    default: Scalar
    choices: tuple[str, ...] = ()
    range: Range | None = None
    unit: str = "1"
    whole: bool = False

    def check(self, name: str, value: Any) -> None:
        """Raise :class:`SettingError` unless ``value``, on its own, is allowed for the setting ``name``."""
        if value is None and self.default is None:
            return
        if self.choices:
            check_own_choice(name, self.choices, value)
        elif self.range is not None:
            check_own_number(name, self.range, self.unit, value, whole=self.whole)
        else:
            check_own_flag(name, value)


def check_own_choice(
    name: str, choices: Iterable[str], value: Any, hint: str | None = None
) -> None:
    """Raise :class:`SettingError`, with ``hint`` or the nearest choice, unless ``value`` is one of the choices."""
    if not isinstance(value, str) or value not in choices:
        if hint is None:
            near = difflib.get_close_matches(str(value), list(choices), n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
        raise SettingError(f"{name} must be one of {', '.join(choices)}, but got {value!r}{hint}")


def check_own_flag(name: str, value: Any) -> None:
    """Raise :class:`SettingError` unless the value is true or false."""
    if not isinstance(value, bool):
        raise SettingError(f"{name} must be true or false, but got {value!r}")


def check_own_number(name: str, bounds: Range, unit: str, value: Any, *, whole: bool) -> None:
    """Raise :class:`SettingError` unless the value is a finite number (an integer if ``whole``) within its range."""
    if not is_finite_number(value) or (whole and not isinstance(value, int)):
        article = "a whole" if whole else "a finite"
        raise SettingError(f"{name} must be {article} number, but got {value!r}")
    if value not in bounds:
        shown = "" if unit == "1" else f" ({unit})"
        raise SettingError(f"{name} must lie in {bounds}{shown}, but got {value!r}")


def is_finite_number(value: Any) -> bool:
    """Return whether a value is a number that a float can hold; booleans do not count as numbers."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and abs(value) <= sys.float_info.max


RESERVED = frozenset(
    {
        "own",
        "id",
        "study_id",
        "number",
        "state",
        "global_batch_size",
        "local_batch_size",
        "micro_batch_size",
        "accumulation",
        "seed",
        "purpose",
        "memory_bytes",
        "measures",
        "epochs_to_target",
        "epochs",
        "step",
        "steps",
        "samples",
        "seconds",
        "best_metric",
        "final_metric",
        "reason",
        "resolution_epochs",
        "started_at",
        "finished_at",
        "train_loss",
        "loss",
        "metric",
        "gradient_noise_scale",
        "trial",
        "nodes",
        "node_rank",
        "workers",
        "workers_per_node",
        "evaluations_per_epoch",
        "device_list",
        "checkpoint_folder",
        "output_folder",
        "trial_file",
        "report_file",
        "stop_file",
        "master_address",
        "master_port",
    }
)
"""Names that tables, exports and commands use for the fields of a trial other than its settings."""

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,62}")


def faults_of_own(name: Any, value: Any) -> Iterator[str]:
    """Yield an error message if a custom setting is invalid: the rule, the value and how to fix it."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        yield (
            "the name of your own setting must consist of at most 63 letters, digits and underscores "
            f"and start with a letter, but got {name!r}"
        )
    elif name in RESERVED:
        yield (
            f"{name} is a field that every trial has besides its settings; give your setting "
            f"another name"
        )
    elif value is not None and not isinstance(value, (str, bool, int, float)):
        yield f"{name} must be text, a number, true, false or null, but got {value!r}"
    elif isinstance(value, float) and not math.isfinite(value):
        yield f"{name} must be a finite number, but got {value!r}"
