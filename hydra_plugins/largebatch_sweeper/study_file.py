"""Convert a multirun to a study: Hydra's sweep overrides become its search, and the application becomes its program."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import (
    ChoiceSweep,
    IntervalSweep,
    Override,
    QuotedString,
    RangeSweep,
)
from hydra.errors import HydraException

from search_spaces.settings import names as setting_names

ALWAYS_SCALED = ("learning_rate", "warmup_epochs")
"""Settings that are tuned at every batch size and extrapolated by a law, unless a tag says otherwise."""


def make_study(
    study: Mapping[str, Any],
    params: Mapping[str, str],
    overrides: Sequence[str],
    program: Sequence[str],
    *,
    batch: str,
    seed: str | None,
    names: Mapping[str, str],
) -> dict[str, Any]:
    """Return the study of a multirun as plain values; :class:`hydra.errors.HydraException` if it cannot be one.

    ``study`` holds keys of a study file, and ``train_samples`` and ``metrics`` of its program; ``params`` and
    ``overrides`` give the varied and the fixed values, ``program`` the words that start the application. ``batch`` and
    ``seed`` are the configuration keys that take the batch size and the seed; ``names`` maps a key to its setting if
    the last part of the key is not the setting's name.
    """
    given = dict(study)
    for needed in ("name", "target", "ladder", "budget", "train_samples"):
        if needed not in given:
            raise HydraException(
                f"hydra.sweeper.study must hold {needed}, but it does not; add hydra.sweeper.study.{needed}"
            )
    command, search = list(program), dict[str, Any]()
    parsed = OverridesParser.create().parse_overrides(
        [*(f"{key}={value}" for key, value in params.items()), *overrides]
    )
    for override in _last_of_each(parsed):
        key = override.get_key_element()
        if key == batch:
            raise HydraException(
                f"{batch} takes the batch sizes of the ladder, but got {override.input_line}; leave it out"
            )
        if not override.is_sweep_override():
            command.append(str(override.input_line))
            continue
        name = names.get(key) or _setting_of(key)
        if name in search:
            raise HydraException(
                f"{key} and another key are both the setting {name}; name one: hydra.sweeper.names.{key}: ..."
            )
        search[name] = _domain(name, override)
        command.append(f"{key}={{{name}}}")
    command.append(f"{batch}={{global_batch_size}}")
    if seed:
        command.append(f"{seed}={{seed}}")
    command.append("hydra.run.dir={output_folder}")
    report = {"metrics": given.pop("metrics")} if "metrics" in given else {}
    return {
        **{name: value for name, value in given.items() if name != "train_samples"},
        "workload": "program",
        "program": {
            "command": command,
            "train_samples": given["train_samples"],
            "report": report,
        },
        "search": {**search, **given.get("search", {})},
    }


def best_overrides(
    settings: Mapping[str, Any], command: Sequence[str], global_batch_size: int
) -> list[str]:
    """Return the overrides of the recommended run, as for the command line: those of the command with their values."""
    values = {**settings, "global_batch_size": global_batch_size}
    found = []
    for word in command:
        key, equals, text = word.partition("=")
        read = re.fullmatch(r"\{(\w+)\}", text)
        if equals and read and read[1] in values:
            found.append(f"{key}={values[read[1]]}")
    return found


def _last_of_each(overrides: Sequence[Override]) -> list[Override]:
    """Return the last override of each key, so that the command line takes precedence over the configuration."""
    return list({override.get_key_element(): override for override in overrides}.values())


def _setting_of(key: str) -> str:
    """Return the known setting with the name of the key's last part, else a custom setting named after the key."""
    last = key.rsplit(".", 1)[-1].lstrip("+")
    return last if last in setting_names() else re.sub(r"\W+", "_", key).strip("_")


def _domain(name: str, override: Override) -> dict[str, Any]:
    value = override.value()
    tags = set(getattr(value, "tags", set()))
    domain: dict[str, Any]
    if isinstance(value, IntervalSweep):
        whole = isinstance(value.start, int) and isinstance(value.end, int)
        kind = ("log_" if "log" in tags else "") + ("int_" if whole and "int" in tags else "")
        domain = {f"{kind}uniform": [value.start, value.end]}
    elif isinstance(value, ChoiceSweep):
        domain = {"choice": [_plain(each) for each in value.list]}
    elif isinstance(value, RangeSweep):
        domain = {"choice": [_plain(each) for each in value.range()]}
    else:
        raise HydraException(
            f"{override.input_line}: a search needs interval(...), choice(...), range(...) or a list"
        )
    numeric = isinstance(value, IntervalSweep)
    if "scaled" in tags or (numeric and name in ALWAYS_SCALED and "shared" not in tags):
        domain["role"] = "scaled"
    return domain


def _plain(value: Any) -> Any:
    return value.text if isinstance(value, QuotedString) else value
