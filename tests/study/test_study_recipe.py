"""A study that starts from a recipe: what it inherits, what its own search overrides, and what it must give itself."""

from __future__ import annotations

import pickle

import pytest

from hpo.errors import SpecError
from hpo.runs import api
from hpo.study.spec import StudySpec, parse_study
from search_spaces import Float, Role
from search_spaces.recipes import names, recipe
from storage.records import StudyState
from storage.store import Store

GOYAL = """\
name: from_goyal
workload: resnet
data: {source: digits}
target: {metric: top1, at_least: 0.9}
ladder: [32, 64]
recipe: goyal2017
search:
  learning_rate: {log_uniform: [0.05, 1], role: scaled}
  warmup_epochs: {uniform: [0, 5], role: scaled}
  warmup_start_factor: 0.1
  momentum: 0.8
budget: {trials: 8, epochs_per_trial: 90}
"""
SMITH = """\
name: from_smith
workload: noisy_quadratic
data: {modes: 20, noise_scale: 0.5, train_samples: 512}
target: {metric: loss, at_most: 0.05}
ladder: [16, 32]
recipe: smith2018_cifar10
search:
  learning_rate: {log_uniform: [0.01, 1], role: scaled}
  normalization_batch_size: 16
  nesterov: false
  weight_decay: 0
  batch_control: constant
  decay: constant
budget: {trials: 4, epochs_per_trial: 40}
"""


def refused(text: str) -> str:
    with pytest.raises(SpecError) as caught:
        parse_study(text, "study.yaml")
    return str(caught.value)


def test_the_recipe_fixes_what_the_search_does_not_name() -> None:
    spec = parse_study(GOYAL)
    assert spec.recipe == "goyal2017"
    assert spec.search.domains["learning_rate"] == Float(0.05, 1, log=True, role=Role.SCALED)
    assert spec.search.fixed == {
        **recipe("goyal2017").fixed,
        "warmup_start_factor": 0.1,
        "momentum": 0.8,
        "decay_milestones": (30, 60, 80),
    }
    made = spec.search.settings({"learning_rate": 0.5, "warmup_epochs": 2.0})
    assert (made.nesterov, made.zero_gamma, made.decay, made.weight_decay) == (
        True,
        True,
        "step",
        1e-4,
    )


def test_a_study_with_a_recipe_is_equal_to_its_own_yaml_and_pickle() -> None:
    spec = parse_study(GOYAL)
    for again in (
        parse_study(spec.to_yaml()),
        pickle.loads(pickle.dumps(spec)),
        StudySpec.from_dict(spec.to_dict()),
        parse_study(parse_study(spec.to_yaml()).to_yaml()),
    ):
        assert again == spec
    assert "recipe" not in parse_study(SMITH.replace("recipe: smith2018_cifar10\n", "")).to_dict()


def test_the_own_search_wins_as_a_domain_too() -> None:
    spec = parse_study(GOYAL.replace("momentum: 0.8", "momentum: {uniform: [0.8, 0.95]}"))
    assert spec.search.shared == ("momentum",)
    assert "momentum" not in spec.search.fixed


def test_unknown_recipes_name_the_nearest_with_the_line() -> None:
    text = refused(GOYAL.replace("goyal2017", "goyal2071"))
    assert text == (
        "study.yaml, line 6: recipe must name a published recipe, but there is no recipe 'goyal2071'; "
        "did you mean 'goyal2017'?"
    )
    assert "line 6: recipe must be text, but got 2017" in refused(
        GOYAL.replace("goyal2017", "2017")
    )
    assert "unknown key 'recipes'; did you mean 'recipe'?" in refused(
        GOYAL.replace("recipe:", "recipes:")
    )


def test_settings_that_move_with_the_batch_are_the_studys_own() -> None:
    faults = refused(
        GOYAL.replace("  learning_rate: {log_uniform: [0.05, 1], role: scaled}\n", "").replace(
            "  warmup_start_factor: 0.1\n", ""
        )
    ).splitlines()
    assert len(faults) == 2
    assert faults[0] == (
        "study.yaml, line 7: learning_rate changes with the batch size in recipe 'goyal2017' (3.2 at global batch size "
        "8,192, by the rule 0.1 x (B / 256)), so search must tune it, such as learning_rate: {uniform: [low, high], "
        "role: scaled}, or give it a value"
    )
    assert "warmup_start_factor changes with the batch size" in faults[1]
    unknown = refused(GOYAL.replace("goyal2017", "mikami2018").replace("learning_rate:", "beta1:"))
    assert (
        "learning_rate changes with the batch size in recipe 'mikami2018' (not known to be "
        "published" in unknown
    )


def test_a_faulty_search_is_told_beside_the_recipes_faults() -> None:
    text = refused(
        GOYAL.replace("momentum: 0.8", "momentum: 8").replace("  warmup_start_factor: 0.1\n", "")
    )
    assert "line 10: momentum must lie in" in text
    assert "warmup_start_factor changes with the batch size" in text


@pytest.mark.parametrize(
    ("name", "changes", "budget", "message"),
    [
        (
            "goyal2017",
            {},
            40,
            "recipe 'goyal2017' is made for 90 epochs and sets decay_milestones to [30, 60, "
            "80], which does not fit in budget.epochs_per_trial 40; give decay_milestones in "
            "search (the same share of the budget "
            "is [13.3, 26.7, 35.6]), or raise the budget",
        ),
        (
            "goyal2017",
            {},
            80,
            "which does not fit in budget.epochs_per_trial 80",
        ),  # the drop after epoch 80 would never come
        (
            "you2019_legw",
            {},
            45,
            "sets decay_epochs to 90, which does not fit in budget.epochs_per_trial 45; give "
            "decay_epochs in search (the same share of the budget is 45)",
        ),
        ("mikami2018", {"decay_epochs": 20}, 20, "sets batch_milestones to [30]"),
        ("akiba2017", {"decay": "constant"}, 5, "sets rmsprop_center_epochs to 10"),
    ],
)
def test_durations_must_fit_the_budget(
    name: str, changes: dict[str, object], budget: float, message: str
) -> None:
    faults = refused(study_of(name, changes, budget)).splitlines()
    assert len(faults) == 1
    assert faults[0].startswith("study.yaml, line 9: ") and message in faults[0]


@pytest.mark.parametrize(
    ("name", "changes", "budget"),
    [
        ("goyal2017", {}, 81),
        ("goyal2017", {"decay_milestones": [13, 27, 36]}, 40),
        ("goyal2017", {"decay": "cosine"}, 40),
        ("goyal2017", {"decay_milestones": [30, 60, 80]}, 40),  # the user's own, asked for
        ("you2019_legw", {}, 90),
        ("you2019_legw", {"decay": "constant"}, 10),
        ("mikami2018", {"decay_epochs": 20, "batch_control": "constant"}, 20),
    ],
)
def test_durations_that_fit_or_are_the_studys_own(
    name: str, changes: dict[str, object], budget: float
) -> None:
    assert parse_study(study_of(name, changes, budget)).recipe == name


def study_of(name: str, changes: dict[str, object], budget: float) -> str:
    search = {"learning_rate": 0.1, "warmup_epochs": 1, "warmup_start_factor": 0.1, **changes}
    if name in ("you2019_legw", "mikami2018", "akiba2017"):
        del search["warmup_start_factor"]
    return (
        f"name: study\nworkload: resnet\ndata: {{source: digits}}\ntarget: {{metric: top1, at_least: 0.9}}\n"
        f"ladder: [64, 128]\nrecipe: {name}\nsearch: {search}\nseeds: 1\n"
        f"budget: {{trials: 8, epochs_per_trial: {budget}}}\n".replace("'", "")
    )


@pytest.mark.parametrize("name", names())
def test_every_recipe_can_begin_a_study(name: str) -> None:
    found = recipe(name)
    row = {**found.settings, **dict.fromkeys(found.unknown, 0.1)}
    moving = {
        setting: list(row[setting]) if isinstance(row[setting], tuple) else row[setting]
        for setting in found.moving
    }
    size = row.get("normalization_batch_size", 16)
    spec = StudySpec.from_dict(
        {
            "name": name,
            "workload": "resnet",
            "data": {"source": "digits"},
            "ladder": [size, 4 * size],
            "recipe": name,
            "target": {"metric": "top1", "at_least": 0.9},
            "search": moving,
            "budget": {"trials": 8, "epochs_per_trial": 2 * found.epochs},
        }
    )
    given = dict.fromkeys(found.unknown, 0.1)
    assert spec.search.settings({}) == found.settings_at(found.global_batch_size, **given)


def test_a_study_with_a_recipe_runs_through(tmp_path) -> None:
    storage = f"sqlite:///{tmp_path}/hpo.db"
    spec = parse_study(SMITH, tmp_path / "study.yaml")
    result = api.run_study(spec, storage, folder=tmp_path / "work")
    assert result.study.state is StudyState.FINISHED
    assert len(result.trials) == 4
    for trial in result.trials:
        assert {
            name: trial.settings[name]
            for name in ("momentum", "weight_decay", "decay", "batch_control")
        } == {
            "momentum": 0.9,
            "weight_decay": 0.0,
            "decay": "constant",
            "batch_control": "constant",
        }
    with Store.open(storage) as store:
        assert parse_study(store.study("from_smith").spec) == spec
