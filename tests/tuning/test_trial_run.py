"""A trial in this process: what it does with a checkpoint that it cannot use."""

import pytest

from hpo.tuning.trial_run import TrialRun
from search_spaces.settings import TrainingSettings
from trainers import Target, TrainingJob
from trainers.loop import checkpoint as checkpoints

JOB = TrainingJob(
    workload="tests.trainers.small_network:Small",
    data={"source": "digits"},
    target=Target("top1", 2.0),
    settings=TrainingSettings(learning_rate=0.01),
    global_batch_size=48,
    seed=3,
    epochs=0.5,
    evaluations_per_epoch=6,
)


@pytest.mark.parametrize("part", ["model", "optimizer"])
def test_a_trial_starts_over_where_its_model_is_no_longer_that_of_its_checkpoint(tmp_path, part):
    config = {
        "job": JOB.to_dict(),
        "folder": str(tmp_path / "trial"),
        "checkpoint": str(tmp_path / "0.pt"),
        "checkpoint_seconds": 0.0,
    }
    run = TrialRun()
    run.begin(config)
    first = run.advance()
    assert run.advance()["points"][-1]["step"] > first["points"][-1]["step"]
    saved = checkpoints.load(config["checkpoint"])
    if part == "model":
        last = [*saved["training"]["model"]][-1]
        saved["training"]["model"][last] = saved["training"]["model"][last][:1].clone()
    else:
        saved["training"]["optimizer"]["groups"].pop()
    checkpoints.save(config["checkpoint"], saved)
    run.begin(config)
    again = run.advance()
    measured = [{**each["points"][-1], "seconds": 0.0} for each in (first, again)]
    assert measured[0] == measured[1] and len(again["points"]) == 1
