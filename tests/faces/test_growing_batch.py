"""A study whose trainings grow their batch: what is counted by samples stays right."""

import hpo
from storage.store import Store

STUDY = """
name: growing
workload: noisy_quadratic
data: {modes: 200, noise_scale: 0.5, train_samples: 512}
target: {metric: loss, at_most: 0.05}
ladder: [16, 32]
search:
  learning_rate: {log_uniform: [0.01, 1.0], role: scaled}
  momentum: 0.9
  batch_control: piecewise
  batch_milestones: [2]
  batch_factors: [4]
budget: {trials: 8, epochs_per_trial: 80}
"""


def test_the_size_of_the_training_set_does_not_depend_on_the_batch_size_over_time(tmp_path):
    storage = f"sqlite:///{tmp_path}/hpo.db"
    result = hpo.run_study(hpo.parse_study(STUDY), storage, folder=tmp_path / "work")
    assert result.train_samples == 512
    with Store.open(storage) as store:
        points = store.points(result.trials[0].id)
    assert [point.global_batch_size for point in points][-1] == 4 * result.trials[
        0
    ].global_batch_size
    assert hpo.forecast(result, global_batch_size=64).train_samples == 512
