"""A study that tunes the optimizer: its laws describe one optimizer, that of the settings which it recommends."""

from pathlib import Path

import numpy as np
import pytest

import hpo
from hpo.extrapolation.evidence.evidence import AggregateRow, Evidence, ScaledSetting
from hpo.extrapolation.forecast import forecast
from hpo.extrapolation.inference.posterior import fit
from hpo.runs.study_forecast import evidence_of_study
from hpo.study.spec import StudySpec

pytestmark = pytest.mark.fit

STUDY = {
    "name": "two optimizers",
    "workload": "noisy_quadratic",
    "data": {"noise_scale": 1.0, "sampled": True, "train_samples": 512, "preconditioning": 1.0},
    "target": {"metric": "loss", "at_most": 0.1},
    "ladder": [16, 32, 64, 128],
    "full_scale": {"global_batch_size": 512, "machine": "local", "workers": 1},
    "search": {
        "optimizer": {"choice": ["sgd", "lars"], "role": "shared"},
        "learning_rate": {"log_uniform": [0.0003, 3.0], "role": "scaled"},
        "momentum": 0.9,
    },
    "budget": {"trials": 60, "epochs_per_trial": 60, "race": 0},
    "sampler": "random",
}


def test_the_rate_is_that_of_the_recommended_optimizer(tmp_path: Path) -> None:
    """LARS learns at rates of 0.0005 to 0.04 and SGD at 0.1 to 1; the law of both recommended LARS with 0.57."""
    result = hpo.run_study(
        StudySpec.from_dict(STUDY), f"sqlite:///{tmp_path}/hpo.db", folder=tmp_path
    )
    assert result.forecast is not None
    optimizer = result.forecast.settings.optimizer
    used = {each["optimizer"] for each in evidence_of_study(result).settings}
    assert used == {optimizer}
    learnt = [
        trial.settings["learning_rate"]
        for trial in result.trials
        if trial.settings["optimizer"] == optimizer and trial.epochs_to_target
    ]
    assert min(learnt) / 2 < result.forecast.settings.learning_rate < 4 * max(learnt)
    others = sum(trial.settings["optimizer"] != optimizer for trial in result.trials)
    assert (
        f"{others} of 60 trials with other optimizers are left out"
        in result.forecast.numbers.reason
    )


def test_a_table_of_several_optimizers_is_not_trusted() -> None:
    rates = {"sgd": 0.05, "adam": 0.001}
    rows = [
        AggregateRow(
            batch, 10.0 + batch / 1000, 5, None, {"optimizer": name, "learning_rate": rate * batch}
        )
        for batch in (128, 256, 512, 1024)
        for name, rate in rates.items()
    ]
    evidence = Evidence(aggregates=rows, tuned=[ScaledSetting("learning_rate")])
    both = forecast(fit(evidence, rng=np.random.default_rng(0)), 2048)
    assert both.trust == "low" and "2 optimizers (adam, sgd)" in both.reason
    one = Evidence(aggregates=rows[::2], tuned=[ScaledSetting("learning_rate")])
    assert "optimizer" not in forecast(fit(one, rng=np.random.default_rng(0)), 2048).reason
    changed = Evidence(
        aggregates=[*rows[:4:2], *rows[5::2]], tuned=[ScaledSetting("learning_rate")]
    )
    found = forecast(fit(changed, rng=np.random.default_rng(0)), 2048)
    assert "changes along the ladder (adam, sgd)" in found.reason
