"""A whole study with ``sampler: forecast``: it covers the ladder, stops early, and continues when rerun."""

import re

import pytest

import hpo
from hpo.runs.price import study_price
from storage.records import TrialState

pytestmark = [pytest.mark.fit, pytest.mark.processes]

STUDY = """\
name: a forecast study
workload: noisy_quadratic
data: {{modes: 100, noise_scale: 10.0, train_samples: 4096}}
target: {{metric: loss, at_most: 0.05}}
ladder: [16, 32, 64, 128]
full_scale: {{global_batch_size: 1024}}
search:
  learning_rate: {{log_uniform: [0.003, 2.0], role: scaled}}
  momentum: 0.0
  decay: constant
  warmup_epochs: 0.0
  normalization_batch_size: 1
budget: {{trials: {trials}, epochs_per_trial: 60, race: 0}}
seeds: 2
sampler: forecast
"""


def test_a_study_by_the_acquisition_spends_its_budget_over_the_ladder_and_goes_on_with_a_larger_one(
    tmp_path,
):
    found = []
    for trials in (5, 8):
        (tmp_path / "study.yaml").write_text(STUDY.format(trials=trials))
        found.append(
            hpo.run_study(
                hpo.load_study(tmp_path / "study.yaml"),
                f"sqlite:///{tmp_path}/hpo.db",
                folder=tmp_path / ".hpo",
            )
        )
    first, second = found
    assert first.complete and len(first.trials) == 5
    assert second.complete and len(second.trials) == 8
    assert second.trials[:5] == first.trials
    assert len({trial.global_batch_size for trial in second.trials}) > 1
    assert sorted(trial.seed for trial in second.trials) == list(range(8))
    pruned = [trial for trial in second.trials if trial.state is TrialState.PRUNED]
    assert pruned and all(trial.reason for trial in pruned)
    assert second.forecast is not None
    assert 0.003 < second.forecast.settings.learning_rate < 4


def test_a_study_that_may_train_at_full_scale_searches_there_and_promises_no_race(tmp_path):
    (tmp_path / "study.yaml").write_text(STUDY.format(trials=30).replace(", race: 0", ""))
    spec = hpo.load_study(tmp_path / "study.yaml")
    price = study_price(spec)
    assert price is not None and price.race_samples == 0
    result = hpo.run_study(spec, f"sqlite:///{tmp_path}/hpo.db", folder=tmp_path / ".hpo")
    assert result.batches == [1024] == sorted({t.global_batch_size for t in result.trials})
    assert len(result.trials) < 30  # it has ended by itself
    assert result.forecast is not None
    arrived = [t for t in result.trials if t.state is TrialState.REACHED]
    assert len(arrived) >= 2
    used = result.forecast.settings.learning_rate
    assert used in {t.settings["learning_rate"] for t in arrived}
    low, high = result.forecast.epochs_to_target.low, result.forecast.epochs_to_target.high
    assert low < min(t.epochs_to_target for t in arrived) < high
    assert f"searched at 1024: {len({t.settings_key for t in arrived})} configuration" in (
        result.forecast.numbers.reason
    )


def test_where_nothing_arrives_the_settings_that_look_best_are_told(tmp_path):
    text = (
        STUDY.format(trials=5).replace(", race: 0", "").replace("at_most: 0.05", "at_most: 0.0001")
    )
    (tmp_path / "study.yaml").write_text(text)
    spec = hpo.load_study(tmp_path / "study.yaml")
    result = hpo.run_study(spec, f"sqlite:///{tmp_path}/hpo.db", folder=tmp_path / ".hpo")
    assert result.forecast is None and len(result.trials) == 5
    told = re.search(
        r"no run has reached the target at 1024; according to the runs so far, the best choice at "
        r"1024 is "
        r"learning_rate (\S+)",
        result.study.message,
    )
    assert told and 0.003 <= float(told[1].rstrip(",;")) <= 2.0 * 8
