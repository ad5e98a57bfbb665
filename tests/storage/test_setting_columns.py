"""Columns of settings are the fields of TrainingSettings, which storage must not import."""

from __future__ import annotations

import json
from typing import get_type_hints

import pytest
from sqlalchemy import Boolean, Integer, Text

from search_spaces.settings import TrainingSettings
from storage.errors import InvalidRecord
from storage.records import settings_key
from storage.schema.column_types import FloatList, NumberType
from storage.schema.setting_types import EARLIER_VALUES, SETTING_TYPES
from storage.schema.settings_columns import to_columns
from storage.schema.tables import plans, trials

COLUMN_OF = {
    str: (Text, False),
    str | None: (Text, True),
    bool: (Boolean, False),
    int: (Integer, False),
    float: (NumberType, False),
    float | None: (NumberType, True),
    int | None: (Integer, True),
    bool | None: (Boolean, True),
    tuple[float, ...]: (FloatList, False),
}


@pytest.mark.parametrize("table", [trials, plans], ids=lambda table: table.name)
def test_one_column_for_each_setting(table):
    kinds = get_type_hints(TrainingSettings)
    del kinds["own"]  # settings that only a user's workload knows: below
    wanted = {name: COLUMN_OF[kind] for name, kind in kinds.items()}
    assert {
        name: (type(table.c[name].type), table.c[name].nullable) for name in SETTING_TYPES
    } == wanted


def test_every_setting_has_a_value_in_its_column():
    settings = TrainingSettings(learning_rate=0.7).to_dict()
    assert to_columns(settings) == {**settings, "own_settings": "{}"}


def test_settings_of_ones_own_are_one_json_object():
    settings = TrainingSettings(own={"drop_path": 0.1, "head": "linear", "ema": True})
    assert json.loads(to_columns(settings.to_dict())["own_settings"]) == settings.own
    with pytest.raises(InvalidRecord, match="momentum is a known setting"):
        to_columns({**TrainingSettings().to_dict(), "own": {"momentum": 0.5}})
    with pytest.raises(InvalidRecord, match="no setting 'drop_path'"):
        to_columns({**TrainingSettings().to_dict(), "drop_path": 0.5})


def test_trainings_of_an_earlier_schema_have_the_defaults():
    defaults = TrainingSettings().to_dict()
    for name, earlier in EARLIER_VALUES.items():
        default = defaults[name]
        expected = (
            "''"
            if default == []
            else default
            if isinstance(default, str)
            else f"{float(default):g}"
        )
        assert earlier == expected, name


def test_the_same_settings_have_one_key_however_they_are_written():
    settings = TrainingSettings(
        momentum=0, decay="step", decay_milestones=(30, 60.5), own={"layers": 3, "pool": None}
    ).to_dict()
    key = settings_key(settings)
    flat = {name: value for name, value in settings.items() if name != "own"}
    stored = {**flat, "momentum": 0.0, "decay_milestones": [30.0, 60.5], "layers": 3.0}
    assert settings_key(stored) == key
    without = {name: value for name, value in stored.items() if value is not None}
    assert settings_key(without) == key
    assert settings_key(TrainingSettings.from_record(stored).to_dict()) == key
    for other in (
        {**stored, "layers": 4},
        {**stored, "layers": "3"},
        {**stored, "layers": True},
        {**stored, "nesterov": 0},
        {**stored, "momentum": 1e-9},
        {**stored, "decay_milestones": [30.0]},
    ):
        assert settings_key(other) != key


def test_a_record_is_read_whether_its_own_settings_stand_together_or_beside_the_others():
    settings = TrainingSettings(own={"layers": 3})
    nested = settings.to_dict()
    assert TrainingSettings.from_record(nested) == settings
    assert TrainingSettings.from_record({**nested, "own": {}, "layers": 3}) == settings
    assert settings.to_record() == {**TrainingSettings().to_dict(), "layers": 3}
    assert TrainingSettings.from_record(settings.to_record()) == settings
