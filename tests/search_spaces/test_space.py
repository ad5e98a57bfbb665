import copy
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st
from optuna.distributions import FloatDistribution

from search_spaces import (
    Categorical,
    Float,
    Int,
    Role,
    SearchSpace,
    SearchSpaceError,
    SettingError,
    TrainingSettings,
)
from search_spaces.settings import check_value, names
from search_spaces.techniques import TECHNIQUES, own_setting_named, uses_of

SEARCH = {
    "optimizer": "sgd",
    "momentum": 0.9,
    "decay": "step",
    "decay_milestones": [30, 60, 80],
    "learning_rate": {"log_uniform": [0.01, 1.28], "role": "scaled"},
    "warmup_epochs": {"uniform": [0, 5], "role": "scaled"},
    "normalization_batch_size": {"log_int_uniform": [1, 32]},
    "label_smoothing": {"choice": [0, 0.1]},
}
SPACE = SearchSpace.parse(SEARCH)


def test_a_search_section_is_read() -> None:
    assert SPACE.fixed == {
        "optimizer": "sgd",
        "momentum": 0.9,
        "decay": "step",
        "decay_milestones": (30, 60, 80),
    }
    assert SPACE.domains == {
        "learning_rate": Float(0.01, 1.28, log=True, role=Role.SCALED),
        "warmup_epochs": Float(0, 5, role=Role.SCALED),
        "normalization_batch_size": Int(1, 32, log=True),
        "label_smoothing": Categorical((0, 0.1)),
    }
    assert SPACE.names == tuple(SPACE.domains)
    assert SPACE.scaled == ("learning_rate", "warmup_epochs")
    assert SPACE.shared == ("normalization_batch_size", "label_smoothing")


def test_plain_values_and_pickles_come_back_equal() -> None:
    assert SearchSpace.parse(SPACE.to_plain()) == SPACE
    assert pickle.loads(pickle.dumps(SPACE)) == SPACE
    assert copy.deepcopy(SPACE) == SPACE


def test_a_space_does_not_change_with_the_mapping_it_was_made_of() -> None:
    fixed = {"momentum": 0.9}
    space = SearchSpace(fixed)
    fixed["momentum"] = 0.5
    assert space.fixed == {"momentum": 0.9}


def test_settings_join_fixed_and_suggested_values() -> None:
    values = {
        "learning_rate": 0.4,
        "warmup_epochs": 2.5,
        "normalization_batch_size": 8,
        "label_smoothing": 0,
    }
    fixed = {"momentum": 0.9, "decay": "step", "decay_milestones": [30, 60, 80]}
    assert SPACE.settings(values) == TrainingSettings.from_dict({**fixed, **values})
    # a law extrapolates beyond the domain
    assert SPACE.settings({**values, "learning_rate": 9.0}).learning_rate == 9.0


@given(point=st.lists(st.floats(0, 1), min_size=4, max_size=4))
def test_unit_cube_round_trip(point: list[float]) -> None:
    values = SPACE.from_unit(point)
    again = SPACE.from_unit(SPACE.to_unit(values))
    assert again == pytest.approx(values)
    SPACE.settings(values)


def test_part_of_the_axes() -> None:
    assert SPACE.to_unit({"learning_rate": 0.01, "warmup_epochs": 5}, SPACE.scaled) == (0.0, 1.0)
    assert SPACE.from_unit([0.5], ["warmup_epochs"]) == {"warmup_epochs": 2.5}
    assert SPACE.to_optuna(["warmup_epochs"]) == {"warmup_epochs": FloatDistribution(0, 5)}
    assert tuple(SPACE.to_optuna()) == SPACE.names


@pytest.mark.parametrize(
    ("search", "message"),
    [
        ({"learning_rat": 0.1}, "no setting 'learning_rat'; did you mean 'learning_rate'"),
        (
            {"momentum": {"unifrom": [0, 0.9]}},
            "momentum: unknown key 'unifrom'; did you mean 'uniform'",
        ),
        (
            {"momentum": {"uniform": [0, 0.9], "role": "scald"}},
            "role must be scaled or shared.*'scaled'",
        ),
        (
            {"momentum": {"uniform": [0, 0.9], "role": "fixed"}},
            "momentum: role `fixed` .* write the single value",
        ),
        (
            {"momentum": {"uniform": [0, 0.9], "choice": [0, 0.9]}},
            "exactly one of .* got uniform, choice",
        ),
        ({"momentum": {"role": "shared"}}, "exactly one of .* but got none"),
        ({"momentum": {"uniform": 0.9}}, r"list of two numbers, \[low, high\], but got 0.9"),
        ({"momentum": {"uniform": [0, 0.5, 0.9]}}, "list of two numbers"),
        ({"momentum": {"uniform": ["a", 0.5]}}, "finite numbers, but got 'a'"),
        ({"momentum": {"uniform": [0.5, 1.5]}}, r"momentum must lie in \[0, 1\), but got 1.5"),
        ({"momentum": 1.5}, r"momentum must lie in \[0, 1\), but got 1.5"),
        ({"momentum": "high"}, "momentum must be a finite number"),
        ({"learning_rate": {"uniform": [0, 1]}}, "learning_rate must lie in"),
        ({"normalization_batch_size": {"uniform": [1, 8]}}, "whole number; use int_uniform"),
        ({"optimizer": {"uniform": [1, 2]}}, "optimizer is not a number; use choice"),
        ({"optimizer": {"choice": ["sgd", "larz"]}}, "did you mean 'lars'"),
        (
            {"decay": "cosine", "decay_epochs": 4, "warmup_epochs": {"uniform": [0, 5]}},
            "allow .*decay_ep",
        ),
        ({"decay": {"choice": ["constant", "step"]}}, "domains allow .*needs decay_milestones"),
        ({"decay_milestones": [3, 1]}, "decay_milestones must increase"),
        ({"decay_milestones": [1, "x"]}, "decay_milestones must hold numbers"),
        ({"decay_milestones": 30}, "decay_milestones must be a list of epochs, but got 30"),
    ],
)
def test_faults_are_found_on_creation(search: dict[str, object], message: str) -> None:
    with pytest.raises(SearchSpaceError, match=message):
        SearchSpace.parse(search)


def test_all_faults_come_at_once_with_their_settings() -> None:
    with pytest.raises(SearchSpaceError) as caught:
        SearchSpace.parse({"momentun": 0.9, "momentum": 2, "weight_decay": {"log_uniform": [0, 1]}})
    assert [name for name, _ in caught.value.faults] == ["momentun", "weight_decay", "momentum"]
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_a_setting_is_fixed_or_tuned() -> None:
    with pytest.raises(SearchSpaceError, match="momentum must be fixed or tuned, but got both"):
        SearchSpace({"momentum": 0.9}, {"momentum": Float(0, 0.9)})


def test_values_must_be_those_of_the_tuned_settings() -> None:
    with pytest.raises(SettingError, match="got none for warmup_epochs, normalization_batch_size"):
        SPACE.settings({"learning_rate": 0.1, "label_smoothing": 0})
    with pytest.raises(
        SettingError, match="only tuned settings can be given a value, but got 'momentum'"
    ):
        SPACE.settings({"momentum": 0.1})
    with pytest.raises(SettingError, match="did you mean 'learning_rate'"):
        SPACE.to_optuna(["learning_rat"])
    with pytest.raises(SettingError, match=r"must have 4 coordinates .* but got 1"):
        SPACE.from_unit([0.5])


@pytest.mark.parametrize(
    ("search", "name", "message"),
    [
        (
            {"trust_coefficient": {"uniform": [0.001, 0.1]}},
            "trust_coefficient",
            "trust_coefficient is tuned, but has no effect with optimizer sgd; it is used with optimizer lars or larc",
        ),
        (
            {"optimizer": "lars", "rmsprop_period_epochs": {"uniform": [1, 5]}},
            "rmsprop_period_epochs",
            "no effect with optimizer lars; it is used with optimizer rmsprop_warmup",
        ),
        (
            {"optimizer": "lamb", "larc_mode": {"choice": ["clip", "scale"]}},
            "larc_mode",
            "no effect with optimizer lamb",
        ),
        (
            {"optimizer": "larc", "beta2": {"uniform": [0.9, 0.99]}},
            "beta2",
            "no effect with optimizer larc and larc_optimizer sgd; .* or with optimizer larc and larc_optimizer "
            "adam; choose",
        ),
        (
            {"optimizer": {"choice": ["adam", "lamb"]}, "momentum": {"uniform": [0.8, 0.9]}},
            "momentum",
            "no effect with optimizer adam or lamb",
        ),
        (
            {"batch_limit_factor": {"uniform": [1, 4]}},
            "batch_limit_factor",
            "no effect with batch_control constant",
        ),
        (
            {"batch_rate_rule": {"choice": ["linear", "sqrt"]}},
            "batch_rate_rule",
            "it is used with batch_control piecewise",
        ),
        (
            {"warmup_start_factor": {"uniform": [0, 1]}},
            "warmup_start_factor",
            "no effect with warmup_epochs 0; it is used with warmup_epochs above 0",
        ),
        (
            {"weight_decay": 0, "decay_norm_and_bias": {"choice": [True, False]}},
            "decay_norm_and_bias",
            "weight_decay 0",
        ),
        (
            {"decay": "cosine", "decay_power": {"uniform": [1, 2]}},
            "decay_power",
            "it is used with decay polynomial",
        ),
        (
            {"loss_scaling": "static", "loss_scale_growth_updates": {"int_uniform": [10, 20]}},
            "loss_scale_growth_updates",
            "no effect with loss_scaling static",
        ),
        (
            {"update_mode": "asynchronous", "staleness_bound": {"int_uniform": [0, 4]}},
            "staleness_bound",
            "it is used with update_mode stale_synchronous",
        ),
    ],
)
def test_a_tuned_setting_without_effect_is_refused(
    search: dict[str, object], name: str, message: str
) -> None:
    with pytest.raises(SearchSpaceError, match=message) as caught:
        SearchSpace.parse(search)
    assert [each for each, _ in caught.value.faults] == [name]


@pytest.mark.parametrize(
    ("search", "message"),
    [
        (
            {"optimizer": "adam", "momentum_form": "inside"},
            "momentum_form is fixed, but has no effect with optimizer adam; it is used with optimizer sgd or lars",
        ),
        ({"optimizer": "sgd", "trust_coefficient": 0.02}, "it is used with optimizer lars or larc"),
        ({"batch_factors": [2]}, "no effect with batch_control constant"),
        (
            {"weight_decay": 0, "decay_bias": True},
            "decay_bias is fixed, but has no effect with weight_decay 0",
        ),
        (
            {
                "optimizer": "adamw",
                "weight_decay": 0,
                "weight_decay_epochs": None,
                "decay_norm_and_bias": True,
            },
            "it is used with weight_decay above 0, or with weight_decay_epochs above 0",
        ),
    ],
)
def test_a_fixed_setting_without_effect_is_refused(search: dict[str, object], message: str) -> None:
    with pytest.raises(SearchSpaceError, match=message) as caught:
        SearchSpace.parse(search)
    assert [each for each, _ in caught.value.faults] == [list(search)[-1]]


def test_inherited_values_without_effect_are_left_out() -> None:
    inherited = {
        "optimizer": "lars",
        "trust_coefficient": 0.02,
        "decay": "step",
        "decay_milestones": [1, 2],
    }
    space = SearchSpace.parse(
        {"decay": "constant", "learning_rate": {"uniform": [0.1, 1]}}, inherited=inherited
    )
    assert space.fixed == {"optimizer": "lars", "trust_coefficient": 0.02, "decay": "constant"}
    with pytest.raises(
        SearchSpaceError, match="decay_milestones is fixed, but has no effect with decay constant"
    ):
        SearchSpace.parse({"decay": "constant", "decay_milestones": [1]}, inherited=inherited)


def test_an_inherited_weight_decay_gives_way_to_its_time_scale() -> None:
    inherited = {"weight_decay": 0, "decay_bias": True}
    space = SearchSpace.parse({"optimizer": "adamw", "weight_decay_epochs": 5}, inherited=inherited)
    assert space.fixed == {"decay_bias": True, "optimizer": "adamw", "weight_decay_epochs": 5}


@pytest.mark.parametrize(
    "search",
    [
        {"optimizer": {"choice": ["sgd", "lars"]}, "trust_coefficient": {"uniform": [0.001, 0.1]}},
        {
            "optimizer": {"choice": ["adam", "larc"]},
            "larc_optimizer": {"choice": ["sgd", "adam"]},
            "momentum": {"uniform": [0.8, 0.9]},
        },
        {"warmup_epochs": {"uniform": [0, 5]}, "warmup_start_factor": {"uniform": [0, 1]}},
        {
            "optimizer": {"choice": ["sgd", "lars"]},
            "trust_coefficient": 0.02,
            "momentum_form": "corrected",
        },
        {"optimizer": "rmsprop_warmup", "beta2": {"uniform": [0.9, 0.99]}},
        {"weight_decay": {"uniform": [0, 1e-4]}, "decay_norm_and_bias": {"choice": [True, False]}},
        {
            "optimizer": {"choice": ["sgd", "adamw"]},
            "weight_decay": 0,
            "weight_decay_epochs": 5,
            "decay_norm_and_bias": True,
        },
        {
            "optimizer": "adamw",
            "weight_decay": 0.1,
            "weight_decay_epochs": {"choice": [None, 5]},
        },
        {"optimizer": "adamw", "weight_decay": 0.1, "weight_decay_epochs": None},
    ],
)
def test_a_setting_that_some_of_the_trainings_use_may_be_named(search: dict[str, object]) -> None:
    assert not [*SearchSpace.parse(search).faults_of_new()]


def test_every_use_names_settings_and_values_that_exist() -> None:
    read = {
        name for each in TECHNIQUES.values() for it in each.built_in.values() for name in it.uses
    }
    assert read < set(names())
    for use in [use for name in names() for use in uses_of(name)]:
        for part in (use, use.also):
            for value in () if part is None else part.values or (1,):
                described = own_setting_named(part.setting)
                if described is None:
                    check_value(part.setting, value)
                else:
                    described.check(part.setting, value)


@pytest.mark.parametrize(
    ("search", "name", "message"),
    [
        (
            {
                "optimizer": {"choice": ["adamw", "lion"]},
                "weight_decay_epochs": 5,
                "weight_decay": {"log_uniform": [0.001, 1], "role": "scaled"},
            },
            "weight_decay",
            "weight_decay is tuned, but has no effect with weight_decay_epochs 5; it is used with "
            "weight_decay_epochs null; choose",
        ),
        (
            {"optimizer": "adamw", "weight_decay_epochs": 5, "weight_decay": 0.1},
            "weight_decay",
            "weight_decay is fixed, but has no effect with weight_decay_epochs 5",
        ),
        (
            {
                "batch_control": {"choice": ["constant", "noise_scale"]},
                "gradient_reduction": {"choice": ["mean", "adasum"]},
            },
            "gradient_reduction",
            "batch_control 'noise_scale' measures the noise of averaged gradients and needs "
            "gradient_reduction 'mean', but got 'adasum'",
        ),
        (
            {"batch_control": "noise_scale", "gradient_reduction": "adasum"},
            "gradient_reduction",
            "needs gradient_reduction 'mean', but got 'adasum'; change one of the two",
        ),
    ],
)
def test_a_space_that_only_a_stored_study_may_have_is_created(
    search: dict[str, object], name: str, message: str
) -> None:
    ((found, reason),) = SearchSpace.parse(search).faults_of_new()
    assert found == name and message in reason
