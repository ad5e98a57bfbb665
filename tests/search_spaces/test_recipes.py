"""Recipes against the published figures, which are repeated here."""

from __future__ import annotations

import json
import math
import subprocess
import sys

import pytest

from search_spaces.recipes import Recipe, RecipeError, names, parse_recipe, recipe, recipes
from search_spaces.settings import SettingError, TrainingSettings
from search_spaces.techniques import fault_of_use

IMAGENET, DEEPCAM = 1_281_167, 121_266

# B, base rate, warmup epochs, momentum, weight decay, span of batch norm (rcps_resnet.json of round 4.0); mean and most
# epochs of its runs; published decay steps, the epochs where they end, and whose code it is
MLPERF_RESNET = [
    (1632, 7.4, 2, 0.9, 5e-5, 204, 35.0, 37, 27476, 37, "corrected"),
    (3264, 10.5, 2, 0.9, 5e-5, 204, 35.2, 37, 14523, 37, "corrected"),
    (4096, 10, 5, 0.9, 2e-4, 64, 40.0, 42, 13137, 42, "inside"),
    (8192, 17, 5, 0.9, 2e-4, 64, 42.0, 44, 6095, 43.97, "inside"),
    (13056, 12.8, 9, 0.9, 2.5e-5, 204, 45.4, 46, 4710, 48, "corrected"),
    (32768, 21.2, 16, 0.94, 2.5e-5, 128, 56.0, 57, 2267, 57.98, "inside"),
    (49152, 19.405, 24, 0.951807, 1e-4, 256, 68.0, 69, 1846, 70.82, "corrected"),
    (58880, 23.246, 29, 0.951807, 1e-4, 230, 79.9, 81, 1785, 82.04, "corrected"),
    (65536, 24.699, 31, 0.951807, 1e-4, 128, 84.5, 86, 1133, 88.96, "inside"),
    (67840, 24.699, 31, 0.951807, 1e-4, 424, 85.9, 87, 1133, 90.99, "corrected"),
]
# B, rate, warmup and milestones in updates, workers (rcps_deepcam.json of round 1.0)
MLPERF_DEEPCAM = [
    (128, 0.001, 0, (8192, 16384), 32),
    (256, 0.002, 0, (4096, 8192), 64),
    (512, 0.004, 100, (2048, 4096), 128),
    (1024, 0.004, 200, (1100, 4096), 256),
    (2048, 0.0055, 400, (800,), 1024),
]
# B, base rate, warmup epochs (README of LARS-ImageNet-PyTorch)
NUS = [
    (512, 2**2, 10 / 2**6),
    (1024, 2**2.5, 10 / 2**5),
    (4096, 2**3.5, 10 / 2**3),
    (8192, 2**4, 10 / 2**2),
    (16384, 2**4.5, 5),
]


def complete(each: Recipe) -> dict[str, float]:
    """A value for every setting that was not published."""
    return {name: getattr(TrainingSettings(), name) for name in each.unknown}


@pytest.mark.parametrize("each", recipes(), ids=lambda each: each.name)
class TestEvery:
    def test_its_own_batch_has_its_own_settings(self, each: Recipe) -> None:
        made = each.settings_at(each.global_batch_size, **complete(each))
        expected = TrainingSettings.from_dict({**each.settings, **complete(each)}).to_dict()
        for name, value in made.to_dict().items():
            assert value == (
                pytest.approx(expected[name]) if isinstance(value, float) else expected[name]
            ), name

    def test_nothing_that_moves_with_the_batch_is_fixed(self, each: Recipe) -> None:
        assert "learning_rate" in each.moving
        assert not set(each.fixed) & set(each.moving)
        assert {*each.fixed, *each.moving} == {*each.settings, *each.unknown}

    def test_it_says_where_it_comes_from(self, each: Recipe) -> None:
        assert each.source.arxiv or each.source.repository
        assert each.results and each.differs and each.notes
        assert set(each.remembered) <= set(each.settings)
        assert each.name == "".join(
            sign for sign in each.name if sign.islower() or sign.isdigit() or sign == "_"
        )

    def test_its_schedule_ends_with_its_epochs(self, each: Recipe) -> None:
        settings = each.settings
        if each.table:
            return
        assert all(time < each.epochs for time in settings.get("decay_milestones", []))
        assert settings.get("decay_epochs", each.epochs) == each.epochs

    def test_its_json_says_all(self, each: Recipe) -> None:
        plain = json.loads(json.dumps(each.to_dict(), allow_nan=False))
        assert plain["settings"] == dict(each.settings)
        assert [row["global_batch_size"] for row in plain["table"]] == sorted(each.table)


def test_goyal_scales_linearly_from_the_rate_of_256() -> None:
    goyal = recipe("goyal2017")
    at = {batch: goyal.settings_at(batch) for batch in (128, 256, 512, 8192, 65536)}
    assert at[8192].learning_rate == pytest.approx(3.2)
    assert at[8192].learning_rate * at[8192].warmup_start_factor == pytest.approx(0.1)
    assert at[65536].learning_rate * at[65536].warmup_start_factor == pytest.approx(0.1)
    assert [at[batch].warmup_epochs for batch in at] == [0, 0, 5, 5, 5]
    assert at[128].learning_rate == pytest.approx(0.05)
    assert at[8192].decay_milestones == (30, 60, 80) and at[8192].weight_decay == 1e-4


@pytest.mark.parametrize(("batch", "rate", "warmup"), NUS)
def test_legw_is_the_published_table(batch: int, rate: float, warmup: float) -> None:
    settings = recipe("you2019_legw").settings_at(batch)
    assert (settings.learning_rate, settings.warmup_epochs) == pytest.approx((rate, warmup))


@pytest.mark.parametrize("point", MLPERF_RESNET, ids=lambda point: point[0])
def test_mlperf_resnet_has_the_reference_points(point: tuple[float, ...]) -> None:
    batch, rate, warmup, momentum, decay, span, epochs, most, steps, end, form = point
    made = recipe("mlperf_resnet_lars")
    at = made.settings_at(int(batch))
    assert (
        at.learning_rate,
        at.warmup_epochs,
        at.momentum,
        at.weight_decay,
        at.normalization_batch_size,
    ) == (rate, warmup, momentum, decay, span)
    assert [result.value for result in made.results if result.global_batch_size == batch] == [
        epochs
    ]
    assert (at.momentum_form, at.trust_epsilon) == (form, 1e-7 if form == "inside" else 0)
    assert at.end_learning_rate_factor * rate == pytest.approx(1e-4)
    # the published steps, from the first update or from the warmup, end with whole epochs and hold the longest run
    assert at.decay_epochs == pytest.approx(end, abs=0.01) and most <= at.decay_epochs + 0.05
    assert at.decay_epochs - epochs < 5.2
    counted = at.decay_epochs * IMAGENET / batch
    assert steps == pytest.approx(counted) or steps == pytest.approx(
        counted - warmup * IMAGENET / batch
    )


@pytest.mark.parametrize(("batch", "rate", "warmup", "milestones", "workers"), MLPERF_DEEPCAM)
def test_deepcam_has_the_reference_points(
    batch: int, rate: float, warmup: int, milestones: tuple[int, ...], workers: int
) -> None:
    at = recipe("mlperf_deepcam_lamb").settings_at(batch)
    # the reference's scheduler never takes the last step of its warmup, and counts milestones from the update after it
    kept = (warmup - 1) / warmup if warmup else 1
    assert (at.learning_rate, at.normalization_batch_size) == (
        pytest.approx(rate * kept),
        batch // workers,
    )
    assert at.warmup_epochs * DEEPCAM / batch == pytest.approx(warmup * kept)
    counted = [milestone + warmup + 1 if warmup else milestone for milestone in milestones]
    assert [epochs * DEEPCAM / batch for epochs in at.decay_milestones] == pytest.approx(counted)


def test_mikami_doubles_the_samples_of_each_gpu() -> None:
    mikami = recipe("mikami2018")
    at = mikami.settings_at(34816, learning_rate=10.0)
    assert (mikami.global_batch_size, mikami.grows_to) == (2176 * 16, 2176 * 32)
    assert (at.batch_control, at.batch_factors, at.label_smoothing) == ("piecewise", (2,), 0.1)


def test_akiba_starts_slowly() -> None:
    at = recipe("akiba2017").settings_at(32768)
    base = 0.1 * 32768 / 256
    assert at.learning_rate == pytest.approx(base)
    assert at.decay_values == (0.5, 0.075, 0.01, 0.001)
    lengths = [
        end - start
        for start, end in zip((0, *at.decay_milestones), (*at.decay_milestones, 90), strict=True)
    ]
    assert lengths == [40, 30, 15, 5]


def test_smith_grows_the_batch_in_place_of_a_lower_rate() -> None:
    cifar, imagenet = recipe("smith2018_cifar10"), recipe("smith2018")
    at = cifar.settings_at(128)
    assert (at.batch_control, at.decay, at.decay_factor) == ("grow", "step", 0.2)
    assert cifar.grows_to == 128 * 25 <= 50_000 / 10 < 128 * 125
    assert imagenet.grows_to == 16384
    # doubling the batch and dropping the rate by 5 is the drop of 10 in the noise scale
    assert imagenet.settings["decay_values"][1] / imagenet.settings["batch_factors"][
        0
    ] == pytest.approx(0.1)
    assert cifar.settings_at(640).learning_rate == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("gpus", "rate"), [(384, 1e-4), (1536, 0.0064), (6144, 0.4096), (12288, 3.2768)]
)
def test_the_tiramisu_runs_grow_their_rate_with_the_cube(gpus: int, rate: float) -> None:
    at = recipe("kurth2018_tiramisu").settings_at(gpus)
    assert at.learning_rate == pytest.approx(rate)
    assert (at.optimizer, at.larc_optimizer, at.trust_coefficient, at.gradient_lag) == (
        "larc",
        "adam",
        0.002,
        1,
    )


def test_yamazaki_is_the_authors_mlperf_entry() -> None:
    at = recipe("yamazaki2019").settings_at(86016)
    assert (
        at.learning_rate,
        at.warmup_epochs,
        at.momentum,
        at.trust_coefficient,
        at.decay_power,
    ) == (13, 36, 0.96, 0.0025, 2.2)
    assert at.end_learning_rate_factor == pytest.approx(0.0025) and at.weight_decay == 5e-5
    assert at.decay_epochs == pytest.approx(36 + 780 * 86016 / IMAGENET)
    with pytest.raises(
        RecipeError, match="published at the global batch sizes 86016, but got 81920"
    ):
        recipe("yamazaki2019").settings_at(81920)


@pytest.mark.parametrize("each", recipes(), ids=lambda each: each.name)
def test_every_setting_of_a_recipe_is_used(each: Recipe) -> None:
    defaults = TrainingSettings().to_dict()
    published = [
        {**each.settings, **each.table.get(batch, {}), **complete(each)}
        for batch in each.table or (0,)
    ]
    for name in {name for settings in published for name in settings}:
        assert any(
            fault_of_use(name, lambda other, its=its: (its.get(other, defaults.get(other)),))
            is None
            for its in published
        ), name


def test_lamb_spans_512_to_32k() -> None:
    lamb = recipe("you2019_lamb_resnet")
    assert (
        lamb.settings_at(512).learning_rate,
        lamb.settings_at(512).warmup_epochs,
    ) == pytest.approx((0.005, 0.3125))
    assert lamb.epochs == pytest.approx(3519 * 32768 / IMAGENET, abs=0.01)


def test_given_settings_take_the_place_of_published_ones() -> None:
    assert recipe("goyal2017").settings_at(8192, nesterov=False, momentum=0.8).momentum == 0.8
    with pytest.raises(SettingError, match="did you mean 'momentum'"):
        recipe("goyal2017").settings_at(8192, momentun=0.8)


@pytest.mark.parametrize(
    ("name", "batch", "message"),
    [
        (
            "mlperf_resnet_lars",
            10000,
            "published at the global batch sizes 1632, 3264, .*, but got 10000",
        ),
        (
            "kurth2018_deeplab",
            384,
            "only at global batch size 12288 and has no rule for 384; .*find learning_rate",
        ),
        (
            "mikami2018",
            34816,
            r"no published value for learning_rate .*give one: settings_at\(34816, learning_rate=",
        ),
        ("goyal2017", 0, "at least 1, but got 0"),
    ],
)
def test_what_was_not_published_is_refused(name: str, batch: int, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        recipe(name).settings_at(batch)


def test_an_unknown_recipe_names_the_nearest() -> None:
    with pytest.raises(RecipeError, match="no recipe 'mikami'; did you mean 'mikami2018'"):
        recipe("mikami")
    with pytest.raises(RecipeError, match="the recipes are akiba2017, goyal2017"):
        recipe("xxxxxxxx")


SMALL = """
name: small
title: t
source: {paper: p}
workload: w
epochs: 2
global_batch_size: 8
results: [{metric: m, value: 1, provenance: text}]
settings: {optimizer: sgd, learning_rate: 0.1}
"""


def test_a_recipe_of_a_text() -> None:
    small = parse_recipe(SMALL, "small")
    assert (small.optimizer, small.published_batches, small.grows_to) == ("sgd", (8,), None)
    assert math.isclose(small.settings_at(8).learning_rate, 0.1)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("name: small", "name: other", "that has the file's name, 'small'"),
        ("title:", "titel:", "unknown key 'titel' in a recipe; did you mean 'title'"),
        ("paper:", "papers:", "unknown key 'papers' in source; did you mean 'paper'"),
        ("value: 1,", "", "missing .* argument: 'value'"),
        (
            "provenance: text",
            "provenance: hearsay",
            "provenance must be one of text, .*, but got 'hearsay'",
        ),
        (
            "learning_rate: 0.1",
            "learning_rat: 0.1",
            "no setting 'learning_rat'; did you mean 'learning_rate'",
        ),
        ("learning_rate: 0.1", "learning_rate: -1", "learning_rate must lie in"),
        (
            "epochs: 2",
            "epochs: 2\nremembered: {momentum: surely}",
            "remembered.momentum must be one of high, medium, low",
        ),
        (
            "epochs: 2",
            "epochs: 2\nscaling: {momentum: {valu: 2}}",
            "unknown key 'valu' in scaling.momentum",
        ),
        (
            "epochs: 2",
            "epochs: 2\ntable: [{global_batch_size: 16}]",
            "must be one of the batch sizes in the table, but got 8",
        ),
        (
            "epochs: 2",
            "epochs: 2\ntable: [{global_batch_size: 8, warmup_steps: 4}]",
            "need train_samples",
        ),
        ("{paper: p}", "{paper: [}", "while parsing"),
    ],
)
def test_a_faulty_recipe_says_what_is_wrong(old: str, new: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        parse_recipe(SMALL.replace(old, new), "small")


def test_reading_recipes_loads_nothing_heavy() -> None:
    code = (
        "import sys; from search_spaces.recipes import recipes; recipes(); "
        "print([name for name in ('torch', 'ray', 'optuna', 'sqlalchemy', 'numpy', 'pydantic') "
        "if name in sys.modules])"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout
        == "[]\n"
    )
    assert len(names()) == len(recipes()) >= 15
