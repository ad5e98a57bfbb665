"""Model size and length beside the batch: published forms at their limits, known laws recovered, clear errors."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from hpo.cli.main import main
from hpo.errors import EvidenceError
from hpo.extrapolation.evidence.evidence import (
    AggregateRow,
    Evidence,
    ScaledSetting,
    TrainingObservation,
)
from hpo.extrapolation.evidence.table import read_table
from hpo.extrapolation.forecast import forecast
from hpo.extrapolation.inference.model import make_posterior_models
from hpo.extrapolation.inference.posterior import fit
from hpo.extrapolation.laws.fixed_budget import log_shortening
from hpo.extrapolation.laws.laws import log_growth
from hpo.extrapolation.laws.priors import LawPriors
from hpo.extrapolation.laws.scales import Scales, drifted
from hpo.runs.fits import pack_fit, unpack_fit
from trainers.job import Question, Target

RATES = ScaledSetting("learning_rate", "log", 1e-4, 0.1)
QUESTION = Question(Target.best("loss", higher_is_better=False), 8.0)
FULL = {"parameters": 1.6e9, "tokens": 32e9}


def scales(*, fixed_budget: bool = True, reach: tuple[float, ...] = (0.0, 0.0)) -> Scales:
    return Scales(FULL, np.array(reach), fixed_budget)


def values(**unknowns: float) -> dict[str, np.ndarray]:
    return {
        name.replace("__", "."): np.array([value, value / 2]) for name, value in unknowns.items()
    }


def test_without_directions_nothing_moves():
    none = Scales()
    assert not none
    log_batch = np.log([16.0, 64.0])
    np.testing.assert_array_equal(
        none.log_batch({}, log_batch, np.zeros((2, 0))), log_batch[None, :]
    )
    assert none.parameters(["learning_rate"], np.zeros((2, 0))) == []


def test_a_critical_batch_by_the_square_root_makes_a_quarter_of_the_samples_count_as_twice_the_batch():
    away = np.log([[1.0, 0.25]])
    found = scales().log_batch(values(tokens__critical=0.5), np.log([64.0]), away)
    np.testing.assert_allclose(np.exp(found[0]), [128.0])


def test_what_a_training_lacks_is_the_law_of_hoffmann_and_others():
    """E + A N^-a + B D^-b with the figures of arXiv:2203.15556, section D.3, over its value at the full scale."""
    floor, of_size, of_length = 1.69, 406.4 * FULL["parameters"] ** -0.34, 410.7 * 32e9**-0.28
    unknowns = {
        name: np.array([math.log(value)])
        for name, value in {
            "parameters.log_share": of_size / floor,
            "parameters.log_power": 0.34,
            "tokens.log_share": of_length / floor,
            "tokens.log_power": 0.28,
        }.items()
    }
    unknowns |= {"parameters.drift": np.zeros(1), "tokens.drift": np.zeros(1)}
    away = np.log([[1.0, 1.0], [0.1, 1.0], [1.0, 0.02], [0.3, 0.3]])
    found = scales().level(unknowns, away)[0]
    size, length = np.exp(away).T
    expected = floor + of_size * size**-0.34 + of_length * length**-0.28
    np.testing.assert_allclose(np.exp(found), expected / expected[0], rtol=1e-12)


def test_a_larger_model_and_a_longer_training_never_lack_more():
    rng = np.random.default_rng(0)
    away = -np.abs(rng.standard_normal((20, 2)))
    unknowns = {
        f"{name}.{each}": rng.standard_normal(50)
        for name in FULL
        for each in ("log_share", "log_power", "drift")
    }
    here = scales().level(unknowns, away)
    assert (scales().level(unknowns, away + np.array([0.3, 0.0])) <= here).all()
    assert (scales().level(unknowns, away + np.array([0.0, 0.3])) <= here).all()
    assert (here >= 0).all()


def test_the_level_is_told_against_the_largest_seen():
    seen = scales(reach=(1.0, 0.5))
    unknowns = values(
        parameters__log_share=-1.0,
        parameters__log_power=-1.0,
        parameters__drift=0.2,
        tokens__log_share=-1.0,
        tokens__log_power=-1.0,
        tokens__drift=-0.3,
    )
    np.testing.assert_allclose(seen.level(unknowns, np.array([[-1.0, -0.5]])), 0.0, atol=1e-15)
    assert (seen.level(unknowns, np.zeros((1, 2))) < 0).all()


def test_an_exponent_that_drifts_is_the_integral_of_its_steps():
    beyond = np.linspace(-2, 2, 4001)
    for drift in (-0.7, 0.0, 1e-9, 0.4):
        found = drifted(beyond, np.array([[drift]]))[0]
        steps = np.gradient(found, beyond)
        np.testing.assert_allclose(steps[1:-1], np.exp(drift * beyond)[1:-1], rtol=1e-5)
        assert found[2000] == 0
    # an e-fold beyond the largest seen, with an exponent that doubles over it: 1 / log 2
    assert drifted(np.ones(1), np.array([[math.log(2)]]))[0, 0] == pytest.approx(1 / math.log(2))


def test_the_epochs_of_a_larger_model_fall_ever_more_slowly():
    """A power law without drift; with it, the slope halves twice from the largest seen to the full scale."""
    scales = Scales({"width": 32.0}, np.array([math.log(4)]))
    away = np.log([[8.0], [16.0], [32.0]]) - math.log(32)
    power = np.array([0.5, 0.5])
    drift = np.array([0.0, -1.0])
    level = scales.level({"width.epochs": power, "width.drift": drift}, away)
    np.testing.assert_allclose(level[0], -0.5 * np.log([1, 2, 4]), atol=1e-9)
    np.testing.assert_allclose(level[1], -0.5 * (1 - 1 / np.array([1, 2, 4])), atol=1e-9)


def test_what_is_told_widens_with_the_distance_faster_than_what_is_told():
    """By how much the loss falls 2, 4 and 8 times beyond the largest seen, where only the drift is not known."""
    drift = np.linspace(-0.6, 0.6, 41)
    unknowns = {
        "tokens.log_share": np.full(41, 20.0),  # no floor
        "tokens.log_power": np.full(41, math.log(0.1)),
        "tokens.drift": drift,
    }
    fallen = {}
    for times in (1, 2, 4, 8):
        one = Scales({"tokens": 8e9}, np.array([math.log(times)]), fixed_budget=True)
        fallen[times] = -one.level(unknowns, np.zeros((1, 1)))[:, 0]
        expected = 0.1 * drifted(np.array([math.log(times)]), drift[:, None])[:, 0]
        np.testing.assert_allclose(fallen[times], expected, rtol=1e-6)
    shares = [np.ptp(fallen[times]) / fallen[times][20] for times in (2, 4, 8)]
    assert np.ptp(fallen[1]) == 0
    spans = 0.6 * np.log([2, 4, 8])
    assert shares == pytest.approx(2 * (np.cosh(spans) - 1) / spans)  # 0.42, 0.88, 1.42


def log_need(batch: float, rate: float, size: float, length: float) -> float:
    """Loss of the law written out: critical batch by the root of the length, best rate by size to the power -0.5.

    The batch size shortens the run, by the critical batch size of the shorter run.
    """
    best = 0.004 * size**-0.5 * batch / (batch + 300 * length**0.5)
    slower = min(0.5 * math.log(rate / best) ** 2, 2.0)
    short = length
    for _ in range(200):
        short = length / (1 + batch / (400 * short**0.5))
    return math.log(2.5 * (0.6 + 0.2 * size**-0.35 + 0.2 * short**-0.3)) + 0.1 * slower


def sweep(seed: int) -> Evidence:
    """Three sizes and two lengths, 4 to 32 times below the full scale in each."""
    rng = np.random.default_rng(seed)
    seen = []
    for size in (1 / 32, 1 / 16, 1 / 8):
        for length in (1 / 16, 1 / 4):
            for batch in (32, 64, 128, 256):
                for _ in range(5):
                    rate = float(np.exp(rng.uniform(math.log(5e-4), math.log(0.05))))
                    loss = math.exp(
                        log_need(batch, rate, size, length) + 0.003 * rng.standard_normal()
                    )
                    settings = {
                        "learning_rate": rate,
                        "parameters": size * FULL["parameters"],
                        "tokens": length * FULL["tokens"],
                    }
                    seen.append(TrainingObservation(batch, "reached", loss, settings))
    return Evidence(seen, tuned=(RATES,), question=QUESTION, full_scale=FULL)


@pytest.mark.slow
def test_a_model_eight_times_as_large_and_trained_four_times_as_long_is_forecast():
    held = 0
    for seed in range(4):
        found = forecast(fit(sweep(seed), rng=np.random.default_rng(0)), 1024)
        assert found.best is not None
        grid = [log_need(1024, rate, 1.0, 1.0) for rate in np.geomspace(1e-4, 0.1, 300)]
        truth, ends = math.exp(min(grid)), found.best.interval
        held += ends.low <= truth <= ends.high
        assert abs(math.log(ends.median / truth)) < 0.06
        rate = found.settings["learning_rate"].median
        assert log_need(1024, rate, 1.0, 1.0) - min(grid) < 0.03
    assert held >= 3


def test_a_loss_at_a_large_batch_is_that_of_a_shorter_run():
    model = make_posterior_models(sweep(0), LawPriors())[0]
    names = [each.name for each in model.layout.parameters]
    assert "tokens.log_power" in names
    assert "log_gain" not in names
    values = model.layout.values(np.zeros((1, model.layout.dimension)))
    here, at = np.zeros((1, 2)), values["log_critical"] + 1.5
    shorter = log_shortening(
        lambda log_batch: log_growth(
            log_batch - values["log_critical"],
            0.0,
            np.exp(values["log_sharpness"]),
            np.exp(values["log_exponent"]),
        ),
        at,
        values["tokens.critical"],
    )
    tiny = values["log_critical"] - 30  # at which no batch size needs more samples
    there = model.mean_at(values, tiny, np.array([[0.0, -shorter[0, 0]]]))
    np.testing.assert_allclose(model.mean_at(values, at, here), there, rtol=1e-9)
    slopes = [model.mean_at(values, tiny, np.array([[0.0, step]])) for step in (-0.1, 0.1)]
    expected = (slopes[0] - slopes[1]) / 0.2
    np.testing.assert_allclose(model.gain(values, tiny, here), expected, rtol=1e-6)


def ladder(sizes: tuple[float, ...], *, full: float = 256.0) -> Evidence:
    """Epochs to a target, tuned: by the power 0.5 of the width fewer."""
    rows = [
        AggregateRow(
            batch, 10 * (1 + batch / 512) * (size / 256) ** -0.5, 3, settings={"width": size}
        )
        for size in sizes
        for batch in (32, 64, 128)
    ]
    return Evidence(aggregates=rows, full_scale={"width": full})


def test_epochs_to_a_target_of_a_wider_network():
    posterior = fit(ladder((32.0, 64.0, 128.0)), rng=np.random.default_rng(0))
    found = forecast(posterior, 512)
    assert found.epochs_to_target.low < 20 < found.epochs_to_target.high
    assert found.epochs_to_target.median == pytest.approx(20, rel=0.2)
    power = found.laws["width"]["epochs"]
    assert power.low < 0.5 < power.high
    assert found.to_dict()["full_scale"] == {"width": 256.0}


def test_evidence_at_its_full_scale_is_read_as_without_it():
    at_full = ladder((256.0,))
    plain = Evidence(aggregates=at_full.aggregates)
    one = forecast(fit(at_full, rng=np.random.default_rng(0)), 256)
    other = forecast(fit(plain, rng=np.random.default_rng(0)), 256)
    assert one.epochs_to_target == other.epochs_to_target


@pytest.mark.slow
def test_trust_says_how_far_each_direction_goes():
    far = forecast(fit(ladder((16.0, 24.0, 32.0)), rng=np.random.default_rng(0)), 128)
    assert far.trust == "low"
    assert "width is 8 times the largest that was trained (64 times the parameters)" in far.reason
    one = forecast(fit(ladder((128.0,)), rng=np.random.default_rng(0)), 128)
    assert "only one width was trained, so its effect is a guess" in one.reason
    inside = forecast(fit(ladder((64.0, 128.0, 256.0)), rng=np.random.default_rng(0)), 128)
    assert "width" not in inside.reason


def test_a_fit_is_stored_and_read_with_its_scales():
    posterior = fit(ladder((64.0, 128.0)), rng=np.random.default_rng(0))
    again = unpack_fit(pack_fit(posterior), posterior.evidence)
    assert again is not None
    assert forecast(again, 512).epochs_to_target == forecast(posterior, 512).epochs_to_target


TABLE = "global_batch_size,epochs_to_target,width\n" + "".join(
    f"{batch},{8 * (1 + batch / 300) * (256 / width) ** 0.4},{width}\n"
    for width in (32, 64, 128)
    for batch in (16, 32, 64)
)


def extrapolate(folder: Path, text: str, *options: str) -> tuple[int, str]:
    file = folder / "sizes.csv"
    file.write_text(text)
    done = CliRunner().invoke(main, ["extrapolate", str(file), "--at", "256", *options])
    return done.exit_code, done.output


def test_a_table_with_widths_is_forecast_at_another(tmp_path: Path):
    code, output = extrapolate(tmp_path, TABLE, "--full-scale", "width=256", "--json")
    assert code == 0
    (found,) = json.loads(output)
    truth = 8 * (1 + 256 / 300)
    assert found["epochs_to_target"]["low"] < truth < found["epochs_to_target"]["high"]
    assert found["full_scale"] == {"width": 256.0}
    assert "width" not in found["settings"]


@pytest.mark.parametrize(
    ("text", "given", "told"),
    [
        (TABLE, "width", "'width' is not COLUMN=VALUE: a column and its value at full scale"),
        (TABLE, "width=0", "a number above 0, such as width=256"),
        (TABLE, "width=nan", "a number above 0, such as width=256"),
        (TABLE, "depth=4", "column 'depth' is missing"),
        (TABLE.replace(",32\n", ",\n"), "width=256", "column 'width' is empty"),
        (TABLE.replace(",32\n", ",-32\n"), "width=256", "width must be a finite number above 0"),
        (
            TABLE.replace(",32\n", ",narrow\n"),
            "width=256",
            "must be given as a number for every training",
        ),
    ],
)
def test_bad_sizes_are_one_clear_error(tmp_path: Path, text: str, given: str, told: str):
    code, output = extrapolate(tmp_path, text, "--full-scale", given)
    assert code == 2
    assert told in " ".join(output.replace("│", " ").split())
    assert "Traceback" not in output


def test_a_direction_is_not_tuned_as_well(tmp_path: Path):
    rows = [AggregateRow(16, 8.0, settings={"width": 32.0})]
    with pytest.raises(EvidenceError, match="full-scale size or a tuned setting"):
        Evidence(aggregates=rows, tuned=(ScaledSetting("width"),), full_scale={"width": 64.0})
    with pytest.raises(EvidenceError, match="given as a number for every training"):
        Evidence(aggregates=rows, full_scale={"depth": 4.0})
    file = tmp_path / "sizes.csv"
    file.write_text(TABLE)
    assert [each.name for each in read_table(file, full_scale={"width": 256.0}).tuned] == []
