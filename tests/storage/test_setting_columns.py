"""Columns of settings are the fields of TrainingSettings, which storage must not import."""

from __future__ import annotations

from typing import get_type_hints

import pytest
from sqlalchemy import Boolean, Integer, Text

from search_spaces.settings import TrainingSettings
from storage.schema.column_types import FloatList, Number
from storage.schema.setting_types import EARLIER_VALUES, SETTING_TYPES
from storage.schema.settings_columns import to_columns
from storage.schema.tables import plans, trials

COLUMN_OF = {
    str: (Text, False),
    str | None: (Text, True),
    bool: (Boolean, False),
    int: (Integer, False),
    float: (Number, False),
    float | None: (Number, True),
    int | None: (Integer, True),
    bool | None: (Boolean, True),
    tuple[float, ...]: (FloatList, False),
}


@pytest.mark.parametrize("table", [trials, plans], ids=lambda table: table.name)
def test_one_column_for_each_setting(table):
    wanted = {name: COLUMN_OF[kind] for name, kind in get_type_hints(TrainingSettings).items()}
    assert {
        name: (type(table.c[name].type), table.c[name].nullable) for name in SETTING_TYPES
    } == wanted


def test_every_setting_has_a_value_in_its_column():
    settings = TrainingSettings(learning_rate=0.7).to_dict()
    assert to_columns(settings) == settings


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
