"""Fill in the placeholders of a command for one training run, such as ``--lr {learning_rate}``.

No shell is involved: every word is one argument of the program, whatever characters it contains. A placeholder is the
name of a setting or one of ``PLACEHOLDERS``, optionally with a format (``{learning_rate:.4g}``); ``{{`` and ``}}`` are
braces.
"""

from __future__ import annotations

import re
import string
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from search_spaces import settings as known_settings
from search_spaces.own_settings import faults_of_own
from trainers.errors import WorkloadError

PLACEHOLDERS: dict[str, str] = {
    "global_batch_size": "samples per update over all workers",
    "local_batch_size": "samples per update of one worker",
    "micro_batch_size": "samples per forward pass of one worker",
    "accumulation": "forward passes of one worker per update: local over micro batch size",
    "workers": "workers of all nodes",
    "workers_per_node": "workers of one node",
    "nodes": "nodes of the run",
    "node_rank": "index of this node, from 0; a command that contains it is started on every "
    "node, any other command once",
    "seed": "seed of the run; repetitions of one configuration differ only in the seed",
    "epochs": "epochs after which the run is stopped if it has not reached its target",
    "samples": "the value of epochs, in samples",
    "evaluations_per_epoch": "evaluations per epoch, as in the study's budget",
    "checkpoint_folder": "a folder that is kept until the run has ended; a restarted "
    "run resumes from it",
    "output_folder": "a folder that is kept",
    "trial_file": "JSON file with these values and all settings, as `hpo.trial()` returns them",
    "report_file": "file for reports, as lines of JSON",
    "stop_file": "file that appears when the run should stop",
    "master_address": "the first node, for the workers' rendezvous",
    "master_port": "a port that was free on the first node when the run started",
    "device_list": "the run's GPUs on this node, as in CUDA_VISIBLE_DEVICES; empty without GPUs",
}
"""The placeholders of a command other than settings, with their meanings."""

MOST_WIDTH, MOST_DIGITS = 100, 30
"""The maximum width to which a format may pad a value, and the maximum number of digits that it may request."""
_FORMAT = re.compile(
    r"(?:[^{}]?[<>=^])?[-+ ]?#?0?(?P<width>[0-9]{0,3})[,_]?(?:\.(?P<digits>[0-9]{1,3}))?[bdeEfFgGnosxX%]?"
)

_BATCHES = ({"global_batch_size"}, {"local_batch_size"}, {"micro_batch_size", "accumulation"})


def command_placeholders(words: Iterable[str]) -> list[str]:
    """Return the distinct names in braces, in order; raises :class:`WorkloadError` for malformed braces."""
    return list(dict.fromkeys(name for word in words for name in _names(word)))


def own_placeholders(words: Iterable[str]) -> tuple[str, ...]:
    """Return the names that are neither in ``PLACEHOLDERS`` nor a known setting: the program's own settings."""
    return tuple(
        name
        for name in command_placeholders(words)
        if name not in PLACEHOLDERS and name not in known_settings.names()
    )


def fill_placeholders(words: Sequence[str], values: Mapping[str, Any]) -> list[str]:
    """Return the words of a user's command with every placeholder replaced by its value, in full precision.

    A whole number is written as an integer, ``16`` rather than ``16.0``, unless its format requests decimals.
    """
    values = {name: _Value(value) for name, value in values.items()}
    return [string.Formatter().vformat(word, (), values) for word in words]


def whole_number(value: Any) -> Any:
    """Convert a float to the equal integer, if it is small enough to be exact; otherwise return it unchanged."""
    return (
        int(value)
        if isinstance(value, float) and value.is_integer() and abs(value) < 2**53
        else value
    )


def faults_of_reading(
    read: Collection[str], tuned: Collection[str], own: Collection[str], *, repeated: str
) -> Iterator[str]:
    """Yield an error for each placeholder that a command should contain but that is not in ``read``.

    ``tuned`` are all settings that the study varies, and ``own`` are the program's own fixed settings. ``repeated`` is
    the reason why configurations are trained again with other seeds; "" if they are not.
    """
    for name in tuned:
        if name not in read:
            yield (
                f"{name} is tuned, but the command does not contain it; put {{{name}}} where "
                f"the program expects it"
            )
    for name in own:
        if name not in read:
            yield (
                f"{name} is set, but the command does not contain it; put {{{name}}} where "
                f"the program expects it"
            )
    if not any(batch <= set(read) for batch in _BATCHES):
        yield (
            "the command must contain the batch size, which the study varies: "
            "{global_batch_size}, {local_batch_size}, "
            "or {micro_batch_size} and {accumulation}"
        )
    if repeated and "seed" not in read:
        yield f"the command must contain {{seed}}: {repeated}"


def _names(word: str) -> Iterator[str]:
    try:
        parts = list(string.Formatter().parse(word))
    except ValueError as error:
        raise WorkloadError(
            f"the word {word!r} must have balanced braces, {{name}}, or doubled ones, {{{{ and "
            f"}}}}, but: {error}"
        ) from error
    for _, name, form, conversion in parts:
        if name is None:
            continue
        if form and "{" not in form and not _is_bounded(form):
            raise WorkloadError(
                f"the format of {{{name}:...}} must be a number format, such as 04d, .4g or "
                f".2e, with a width of at "
                f"most {MOST_WIDTH} and at most {MOST_DIGITS} digits, but got {form[:40]!r}"
            )
        possible = name in PLACEHOLDERS or not any(faults_of_own(name, None))
        if conversion or "{" in (form or "") or not possible:
            raise WorkloadError(
                f"a placeholder must be {{name}} or {{name:format}} with the name of a setting, or one of "
                f"{', '.join(PLACEHOLDERS)}, but got {word!r}; double other braces, {{{{ and }}}}"
            )
        yield name


def _is_bounded(form: str) -> bool:
    """Return whether a format's width and digits are within the limits; a huge width could exhaust the memory."""
    found = _FORMAT.fullmatch(form)
    return (
        found is not None
        and int(found["width"] or 0) <= MOST_WIDTH
        and int(found["digits"] or 0) <= MOST_DIGITS
    )


class _Value:
    """A value that is written in full precision if a placeholder has no format."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __format__(self, form: str) -> str:
        value = self._value if "." in form else whole_number(self._value)
        try:
            return format(value, form) if form else _text(value)
        except (ValueError, TypeError) as error:
            raise WorkloadError(
                f"{self._value!r} cannot be written in the format {form!r}: {error}"
            ) from error


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "none"
    if isinstance(value, (list, tuple)):
        return ",".join(map(_text, value))
    value = whole_number(value)
    return repr(value) if isinstance(value, float) else str(value)
