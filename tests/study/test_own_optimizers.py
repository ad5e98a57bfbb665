"""An optimizer known only to a program: ``own:NAME``, about which there is no prior knowledge."""

import pytest

from hpo.errors import SpecError
from hpo.extrapolation.laws.adam_law import is_adam
from hpo.extrapolation.laws.make_laws import _descends
from hpo.study.spec import StudySpec
from search_spaces.settings import SettingError, TrainingSettings
from search_spaces.techniques import OPTIMIZERS, described_optimizer
from tests.study.test_program_seeds import STUDY


def study(**search):
    return {**STUDY, "search": {**STUDY["search"], **search}}


def test_a_program_may_name_one_with_every_setting_that_another_reads():
    spec = StudySpec.from_dict(study(optimizer="own:heavyball2", beta1=0.95, momentum=0.8))
    assert spec.search.fixed["optimizer"] == "own:heavyball2"
    settings = spec.search.settings({"learning_rate": 0.1})
    assert TrainingSettings.from_record(settings.to_record()) == settings


def test_its_rate_is_carried_by_a_power_that_only_trainings_tell():
    described = described_optimizer("own:heavyball2")
    assert described is not None and described.rate_exponent is None
    assert described.rate_law == "power"
    assert not is_adam({"optimizer": "own:heavyball2"}) and not _descends("own:heavyball2")


def test_the_list_of_optimizers_holds_none_of_them():
    assert "own:heavyball2" in OPTIMIZERS
    assert not any(name.startswith("own:") for name in OPTIMIZERS)


@pytest.mark.parametrize("name", ["own:", "own:a b", "own:-x", "heavyball2", "own:" + "a" * 70])
def test_another_name_is_refused_with_the_way_to_write_it(name):
    with pytest.raises(SpecError, match="written own:NAME"):
        StudySpec.from_dict(study(optimizer=name))


def test_a_workload_that_is_no_program_cannot_have_one():
    plain = {
        **{key: value for key, value in STUDY.items() if key != "program"},
        "workload": "noisy_quadratic",
        "target": {"metric": "loss", "at_most": 0.1},
        "search": {**STUDY["search"], "optimizer": {"choice": ["sgd", "own:mine"]}},
    }
    with pytest.raises(SpecError, match="'own:mine' is known only to your program"):
        StudySpec.from_dict(plain)


def test_settings_by_themselves_know_the_name():
    assert TrainingSettings(optimizer="own:mine").optimizer == "own:mine"
    with pytest.raises(SettingError):
        TrainingSettings(optimizer="own:mi ne")
