"""Evidence from which little can be learned: an answer with low trust, a reason, and no narrow interval."""

import numpy as np
import pytest

from hpo.extrapolation.evidence.evidence import (
    AggregateRow,
    Evidence,
    ScaledSetting,
    TrainingObservation,
)
from hpo.extrapolation.forecast import forecast
from hpo.extrapolation.inference.posterior import WORK, fit

pytestmark = pytest.mark.fit

RATE = (ScaledSetting("learning_rate", "log", 0.01, 1.0),)


def _trials(batches, state="reached", epochs=8.0, rates=(0.05, 0.1, 0.2), seeds=(0, 1)):
    return [
        TrainingObservation(batch, state, epochs, {"learning_rate": rate}, seed)
        for batch in batches
        for rate in rates
        for seed in seeds
    ]


def _rows(*pairs):
    return Evidence(
        aggregates=[
            AggregateRow(batch, epochs, 10, 0.1, {"learning_rate": 0.1 * (batch / 16) ** 0.5})
            for batch, epochs in pairs
        ],
        tuned=RATE,
    )


CASES = {
    "one rung": (Evidence(observations=_trials([64]), tuned=RATE), "only one rung"),
    "all censored": (
        Evidence(observations=_trials([16, 32, 64], "censored"), tuned=RATE),
        "no trial reached",
    ),
    "all pruned": (
        Evidence(observations=_trials([16, 32, 64], "pruned"), tuned=RATE),
        "no trial reached",
    ),
    "all diverged": (
        Evidence(observations=_trials([16, 32, 64], "diverged", 0.0), tuned=RATE),
        "every trial diverged",
    ),
    "all diverged, nothing tuned": (
        Evidence(observations=_trials([16, 32], "diverged", 0.5)),
        "every trial diverged",
    ),
    "one trial": (
        Evidence(observations=_trials([64], rates=(0.1,), seeds=(0,)), tuned=RATE),
        "only one rung",
    ),
    "single row": (_rows((64, 8.0)), "only one rung"),
    "two rows": (_rows((64, 8.0), (128, 9.0)), "only two rungs"),
    "row repeated": (_rows((64, 8.0), (64, 8.0), (64, 8.0)), "only one rung"),
    "falling epochs": (_rows((64, 20.0), (128, 3.0)), "only two rungs"),
}


@pytest.mark.parametrize("name", CASES)
def test_degenerate_evidence_gets_a_wide_answer_and_low_trust(name):
    evidence, reason = CASES[name]
    found = forecast(fit(evidence, rng=np.random.default_rng(0)), 4 * evidence.batches[-1])
    assert found.trust == "low"
    assert reason in found.reason
    numbers = [found.epochs_to_target, *found.settings.values()]
    assert all(0 < end.low <= end.median <= end.high < np.inf for end in numbers)
    assert found.epochs_to_target.high / found.epochs_to_target.low > 1.6


def test_one_rate_for_batches_far_apart_is_low_trust():
    evidence = Evidence(
        observations=_trials([16, 32, 64, 128], rates=(0.1,), seeds=(0,)), tuned=RATE
    )
    found = forecast(fit(evidence, rng=np.random.default_rng(0)), 256)
    assert found.trust == "low"
    assert "one seed" in found.reason and "all trained with one learning rate" in found.reason
    assert found.settings["learning_rate"].high / found.settings["learning_rate"].low > 1.5


def test_a_rate_that_was_never_varied_where_batches_lie_close_is_a_lesser_doubt():
    evidence = Evidence(observations=_trials([32, 48, 64], rates=(0.1,), seeds=(0,)), tuned=RATE)
    found = forecast(fit(evidence, rng=np.random.default_rng(0)), 96)
    assert "learning_rate was never varied" in found.reason
    assert "with one learning rate" not in found.reason


def test_where_everything_diverged_the_recommended_rate_is_lower_but_not_out_of_sight():
    evidence = Evidence(observations=_trials([16, 32, 64], "diverged", 0.5), tuned=RATE)
    rate = forecast(fit(evidence, rng=np.random.default_rng(0)), 64).settings["learning_rate"]
    assert 0.05 / 2 - 1e-9 <= rate.median < 0.05


def test_no_censored_budget_is_forecast_to_be_enough():
    evidence = Evidence(observations=_trials([16, 32, 64], "censored", 10.0), tuned=RATE)
    found = forecast(fit(evidence, rng=np.random.default_rng(0)), 64).epochs_to_target
    assert found.median > 10.0


def test_settings_stay_legal_and_near_the_evidence():
    rows = [
        AggregateRow(
            batch, 8.0, 5, 0.1, {"momentum": momentum, "warmup_epochs": 0.0, "learning_rate": rate}
        )
        for batch, momentum, rate in ((16, 0.9, 0.1), (32, 0.95, 0.2), (64, 0.98, 0.4))
    ]
    tuned = [ScaledSetting("momentum", "linear"), ScaledSetting("warmup_epochs", "linear"), *RATE]
    found = forecast(
        fit(Evidence(aggregates=rows, tuned=tuned), rng=np.random.default_rng(0)), 10**7
    ).settings
    assert found["momentum"].high < 1
    assert found["warmup_epochs"].low >= 0
    assert found["learning_rate"].median <= 0.4 * 2 * 10**7 / 64


def test_a_far_batch_is_trusted_less_than_a_near_one():
    posterior = fit(
        _rows((16, 8.0), (32, 8.5), (64, 9.5), (128, 11.5), (256, 15.5)),
        rng=np.random.default_rng(0),
    )
    near, far = forecast(posterior, 512), forecast(posterior, 256 * 64)
    assert near.trust in {"high", "medium"}
    assert far.trust == "low"
    assert "64 times the largest rung" in far.reason


def _clean_sweep(*lost):
    """Runs over 256 to 4096 with the best rate at batch / 2560, beside ``lost`` ones."""
    reached = [
        TrainingObservation(
            batch,
            "reached",
            epochs * (1 + 0.5 * abs(np.log(times))),
            {"learning_rate": batch / 2560 * times},
        )
        for batch, epochs in ((256, 10.0), (512, 10.3), (1024, 11.0), (2048, 12.5), (4096, 16.0))
        for times in (0.4, 0.7, 1.0, 1.5, 2.2)
    ]
    return fit(Evidence(observations=[*reached, *lost], tuned=RATE), rng=np.random.default_rng(0))


def test_a_batch_far_below_the_ladder_has_its_own_rate_and_less_trust():
    posterior = _clean_sweep()
    near, far, inside = (forecast(posterior, batch) for batch in (32, 4, 256))
    assert far.settings["learning_rate"].median == pytest.approx(4 / 2560, rel=0.4)
    assert far.epochs_to_target.median == pytest.approx(10, rel=0.15)
    assert (inside.trust, near.trust, far.trust) == ("high", "medium", "low")
    assert inside.reason.startswith("Inside the ladder")
    assert far.reason.startswith("64 times below the smallest rung")
    assert "Doubts: the batch is 64 times below the smallest rung." in far.reason


def test_a_batch_where_every_run_was_lost_is_no_rung():
    lost = TrainingObservation(4096 * 32, "pruned", 0.1, {"learning_rate": 50.0})
    found = forecast(_clean_sweep(lost), 4096 * 32)
    assert found.trust == "low"
    assert "the batch is 32 times the largest rung" in found.reason


def test_one_seed_is_a_doubt_only_where_it_is_known():
    known = Evidence(observations=_trials([16, 32, 64, 128], seeds=(0,)), tuned=RATE)
    unknown = Evidence(observations=_trials([16, 32, 64, 128], seeds=(None,)), tuned=RATE)
    for evidence, doubt in ((known, True), (unknown, False)):
        found = forecast(fit(evidence, rng=np.random.default_rng(0)), 128)
        assert ("one seed only" in found.reason) is doubt


def test_the_work_of_many_rows_is_bounded():
    rows = [
        AggregateRow(batch, 8.0 * (1 + batch / 4096), 10) for batch in range(64, 64 + 80 * 50, 50)
    ]
    posterior = fit(Evidence(aggregates=rows), rng=np.random.default_rng(0))
    assert len(posterior.residuals) == WORK / 80
    found = forecast(posterior, 4096).epochs_to_target
    assert found.median == pytest.approx(16, rel=0.05)


def test_mixed_rows_and_trials_are_fitted_together():
    rows = [
        AggregateRow(batch, epochs, 5, 0.2, {"learning_rate": 0.1})
        for batch, epochs in ((16, 8.0), (32, 8.6))
    ]
    evidence = Evidence(observations=_trials([64], epochs=9.8), aggregates=rows, tuned=RATE)
    found = forecast(fit(evidence, rng=np.random.default_rng(0)), 64).epochs_to_target
    assert found.median == pytest.approx(9.8, rel=0.15)


def _decayed(unit):
    """Rows whose best weight decay grows with the batch, in units of ``unit``; the smallest is 0: no log scale."""
    decays = (0.0, 0.5, 0.5, 1.0, 2.0)
    rows = [
        AggregateRow(64 * 2**at, 10 * (1 + 2**at / 30), 5, 0.3, {"weight_decay": unit * decay})
        for at, decay in enumerate(decays)
    ]
    return Evidence(aggregates=rows, tuned=(ScaledSetting("weight_decay", "linear"),))


def test_a_setting_on_a_linear_scale_may_have_any_unit():
    told = []
    for unit in (1.0, 1e-5):
        posterior = fit(_decayed(unit), rng=np.random.default_rng(0))
        found = forecast(posterior, 2048).settings["weight_decay"]
        told.append([end / unit for end in (found.median, found.low, found.high)])
    assert told[1] == pytest.approx(told[0], rel=1e-6)
    assert told[1][2] < 10


def test_epochs_may_have_any_unit():
    told = []
    for unit in (1.0, 1e-8):
        trials = [
            TrainingObservation(each.global_batch_size, each.state, unit * each.epochs)
            for each in _trials([16, 32, 64], seeds=(0,))
        ]
        trials.append(TrainingObservation(64, "pruned", unit * 6.0))
        posterior = fit(Evidence(observations=trials), rng=np.random.default_rng(0))
        told.append(forecast(posterior, 128).epochs_to_target.median / unit)
    assert told[1] == pytest.approx(told[0], rel=1e-6)
