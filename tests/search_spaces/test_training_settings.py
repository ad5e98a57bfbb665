import json
import math

import pytest

from search_spaces import SettingError, TrainingSettings
from search_spaces.settings import check_value, is_whole, names, range_of


def test_plain_values_come_back_equal_through_json() -> None:
    settings = TrainingSettings(
        decay="step", decay_milestones=(30, 60.5), decay_epochs=None, nesterov=True
    )
    assert TrainingSettings.from_dict(json.loads(json.dumps(settings.to_dict()))) == settings
    assert tuple(settings.to_dict()) == names()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"learning_rate": 0}, r"learning_rate must lie in \(0, inf\) \(per update\), but got 0"),
        ({"learning_rate": math.nan}, "learning_rate must be a finite number, but got nan"),
        ({"learning_rate": 10**400}, "learning_rate must be a finite number"),
        ({"learning_rate": True}, "must be a finite number, but got True"),
        ({"momentum": 1}, r"momentum must lie in \[0, 1\), but got 1"),
        ({"normalization_batch_size": 8.0}, "must be a whole number, but got 8.0"),
        ({"nesterov": 1}, "nesterov must be true or false, but got 1"),
        (
            {"optimizer": "lasr"},
            "optimizer must be one of sgd, lars, .*, but got 'lasr'; did you mean 'lars'",
        ),
        ({"decay_milestones": [60, 30]}, "must increase"),
        ({"decay_milestones": [0, 30]}, "must hold numbers above 0 \\(epochs\\), but got 0"),
        ({"decay_milestones": "30"}, "must be a list of epochs, but got '30'"),
        ({"decay": "step"}, "needs decay_milestones"),
        ({"nesterov": True, "momentum": 0}, "nesterov needs a momentum above 0"),
        (
            {"decay": "cosine", "decay_epochs": 5, "warmup_epochs": 5},
            "decay_epochs must exceed warmup_epochs",
        ),
        ({"warmup": 5}, "no setting 'warmup'; did you mean"),
    ],
)
def test_a_wrong_setting_is_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        TrainingSettings.from_dict(values)


def test_one_value_can_be_checked_alone() -> None:
    check_value("decay", "step")
    with pytest.raises(SettingError, match="decay must be one of"):
        check_value("decay", "stairs")
    assert is_whole("normalization_batch_size") and not is_whole("learning_rate")
    assert range_of("optimizer") is None
