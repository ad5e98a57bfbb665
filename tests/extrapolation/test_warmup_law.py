"""The law of the warmup: its limits, continuity and monotonicity, and its recovery from a sweep with a known truth."""

import numpy as np
import pytest

from hpo.extrapolation.evidence.evidence import Evidence, ScaledSetting, TrainingObservation
from hpo.extrapolation.forecast import forecast
from hpo.extrapolation.inference.posterior import fit
from hpo.extrapolation.laws.warmup_law import WarmupLaw

SAMPLES = 4096.0
LAW = WarmupLaw(SAMPLES, float(np.log(128)), True, 1.0, (0.0, 2.0))


def values(hardness: float, updates: float, delay: float) -> dict[str, np.ndarray]:
    return {
        "warmup.log_hardness": np.log([hardness]),
        "warmup.log_updates": np.log([updates]),
        "warmup.log_delay": np.log([delay]),
        "warmup.slowed": np.zeros(1),
    }


def test_without_warmup_all_of_the_hardness_counts_and_with_a_long_one_none():
    known = values(1.5, 20.0, 1.0)
    warmups = LAW.warmups(np.array([0.0, 20 * 128 / SAMPLES, 1e6]), float(np.log(128)))
    np.testing.assert_allclose(LAW.lowered(known, warmups)[0], [1.5, 0.75, 0.0], atol=1e-4)


def test_the_same_epochs_of_warmup_have_fewer_updates_at_a_larger_batch():
    known = values(1.5, 20.0, 1.0)
    lowered = [
        LAW.lowered(known, LAW.warmups(np.array([1.0]), float(np.log(batch))))[0, 0]
        for batch in (16, 128, 1024)
    ]
    assert lowered == sorted(lowered)
    assert LAW.warmups(np.array([1.0]), float(np.log(128))).updates[0] == pytest.approx(
        SAMPLES / 128
    )


@pytest.mark.parametrize("delay", [0.05, 0.5, 1.0, 2.0])
def test_the_delay_is_that_of_progress_as_a_power_of_the_rates_share(delay):
    """By adding up the progress (t / w)^k of the warmup until it is that of the epochs at the full rate."""
    for full, warmup in ((5.0, 2.0), (5.0, 9.0), (3.0, 30.0)):
        t = np.linspace(0.0, 60.0, 2_000_001)
        progress = np.cumsum(np.minimum(t / warmup, 1.0) ** delay) * (t[1] - t[0])
        needed = t[np.searchsorted(progress, full)]
        told = LAW.log_delayed(
            values(1.0, 1.0, delay), np.log([[full]]), LAW.warmups(np.array([warmup]), 0.0)
        )
        assert np.exp(told[0, 0]) == pytest.approx(needed, rel=1e-3)


def test_half_of_a_warmup_is_lost_where_progress_is_proportional_to_the_rate():
    told = LAW.log_delayed(
        values(1.0, 1.0, 1.0), np.log([[10.0]]), LAW.warmups(np.array([4.0]), 0.0)
    )
    assert np.exp(told[0, 0]) == pytest.approx(12.0)


def trial(
    batch: int, rate: float, warmup: float, seed: int, rng: np.random.Generator
) -> TrainingObservation:
    """A network that bears a rate of 0.5 after a long warmup, and a sixth of it without one (U_0 = 30)."""
    settings = {"learning_rate": rate, "warmup_epochs": warmup, "optimizer": "sgd"}
    updates = warmup * SAMPLES / batch
    borne = 0.5 * np.exp(-1.8 / (1 + updates / 30))
    if rate > borne:
        return TrainingObservation(
            batch, "diverged" if rng.random() < 0.5 else "censored", 40.0, settings, seed
        )
    best = 0.4 / (1 + 300 / batch)
    cost = np.hypot(0.6, min(np.log(rate / best), 0)) - 0.6 + max(np.log(rate / best), 0) ** 2 / 1.2
    epochs = 4 * (1 + batch / 250) * np.exp(cost + 0.06 * rng.standard_normal()) + warmup / 2
    return TrainingObservation(
        batch, "reached" if epochs < 40 else "censored", float(min(epochs, 40.0)), settings, seed
    )


def hard_start(rng: np.random.Generator) -> Evidence:
    tuned = (
        ScaledSetting("learning_rate", "log", 0.01, 1.28),
        ScaledSetting("warmup_epochs", "linear", 0, 5),
    )
    trials = [
        trial(
            batch,
            float(np.exp(rng.uniform(np.log(0.01), np.log(1.28)))),
            float(5 * rng.random() ** 2),
            number,
            rng,
        )
        for batch in (16, 32, 64, 128)
        for number in range(14)
    ]
    return Evidence(observations=trials, tuned=tuned, samples_per_epoch=SAMPLES)


@pytest.fixture(scope="module")
def draws():
    """The laws by each of four draws of the same study."""
    return [
        fit(hard_start(np.random.default_rng(seed)), rng=np.random.default_rng(0))
        for seed in range(4)
    ]


@pytest.mark.slow
@pytest.mark.fit
@pytest.mark.parametrize("batch", [512, 1024])
def test_a_hard_start_is_given_the_updates_that_it_needs(draws, batch):
    """The warmup is long enough for the rate within a third of what is borne, in every draw of the same study."""
    found = [forecast(drawn, batch) for drawn in draws]
    for each in found:
        rate, warmup = each.settings["learning_rate"].median, each.settings["warmup_epochs"].median
        borne = 0.5 * np.exp(-1.8 / (1 + warmup * SAMPLES / batch / 30))
        assert rate < 1.33 * borne, (rate, warmup, borne)
        assert warmup * SAMPLES / batch > 15
        assert warmup < 0.5 * each.epochs_to_target.median
    rates = np.log([each.settings["learning_rate"].median for each in found])
    assert np.ptp(rates) < np.log(2.0)
