"""Generate the page of all settings, docs/reference/settings.md, from their descriptions.

python -m scripts.settings_table > docs/reference/settings.md
"""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from search_spaces.own_settings import OwnSetting
from search_spaces.settings import Range, TrainingSettings, names
from search_spaces.techniques import TECHNIQUES, uses_of

_HEAD = """# Settings

<!-- written by: python -m scripts.settings_table > docs/reference/settings.md -->

These settings may appear in `search` in a study file and in `settings` in the job of a training run. A plain value
fixes a setting, a domain tunes it (`search_spaces/space.py`), and a setting that is left out has its default. Epochs
are samples processed divided by the size of the training set. Every setting that you name must be used: a study is
rejected if no training run would use it. Name your own settings in `search` too
([programs](../guides/programs.md#settings-of-your-own)).

| setting | default | values | meaning | used with |
|---|---|---|---|---|
"""

_OWN = """
## Settings of one optimizer or schedule

Name these settings in `search` or in a job like the others; they are stored with your own settings. Plug-ins can add
optimizers and schedules with further settings.

| setting | default | values | meaning | used with |
|---|---|---|---|---|
"""


def page() -> str:
    """Return the page as Markdown."""
    return _HEAD + _table(_rows()) + _OWN + _table(_own_rows()) + _techniques()


def _table(rows: Iterable[tuple[str, ...]]) -> str:
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _own_rows() -> Iterator[tuple[str, ...]]:
    for setting, registry in TECHNIQUES.items():
        found: dict[str, tuple[OwnSetting, list[str]]] = {}
        for technique, described in registry.built_in.items():
            for name, own in described.settings.items():
                found.setdefault(name, (own, []))[1].append(technique)
        for name, (own, readers) in found.items():
            if own.choices:
                values = ", ".join(f"`{choice}`" for choice in own.choices)
            elif own.range is None:
                values = "`true`, `false`"
            else:
                values = _interval(own.range) + ("" if own.unit == "1" else f" {own.unit}")
            used = f"{setting} {', '.join(readers)}"
            yield f"`{name}`", f"`{_plain(own.default)}`", values, own.what, used


def _techniques() -> str:
    titles = {
        "optimizer": "Optimizers",
        "warmup_shape": "Warmups",
        "decay": "Decays",
        "batch_control": "Batch control",
    }
    tables = []
    for setting, registry in TECHNIQUES.items():
        rows = [
            (f"`{name}`", described.about, described.source)
            for name, described in registry.built_in.items()
        ]
        tables.append(
            f"\n## {titles[setting]}\n\n| `{setting}` | what it does | source |\n|---|---|---|\n{_table(rows)}"
        )
    return "".join(tables)


def _rows() -> Iterator[tuple[str, ...]]:
    for setting in map(TrainingSettings.__dataclass_fields__.__getitem__, names()):
        meaning = setting.metadata["what"].replace("|", r"\|")
        uses = "; ".join(map(str, uses_of(setting.name)))
        yield (
            f"`{setting.name}`",
            f"`{_plain(setting.default)}`",
            _values(setting),
            meaning,
            uses or "any",
        )


def _values(setting: dataclasses.Field[Any]) -> str:
    if setting.name in TECHNIQUES:
        return ", ".join(f"`{choice}`" for choice in TECHNIQUES[setting.name].built_in)
    if "choices" in setting.metadata:
        return ", ".join(f"`{choice}`" for choice in setting.metadata["choices"])
    if "list" in setting.metadata:
        return f"list of {setting.metadata['list']}"
    if "range" in setting.metadata:
        unit = setting.metadata["unit"]
        return _interval(setting.metadata["range"]) + ("" if unit == "1" else f" {unit}")
    return "`true`, `false`"


def _interval(bounds: Range) -> str:
    if math.isinf(bounds.high):
        return f"{'>' if bounds.low_open else '>='} {bounds.low:g}"
    return str(bounds)


def _plain(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return (
        str(list(value))
        if isinstance(value, tuple)
        else f"{value:g}"
        if isinstance(value, float)
        else str(value)
    )


if __name__ == "__main__":
    sys.stdout.write(page())
