"""The trials of a study as evidence."""

from dataclasses import replace

import pytest

from hpo.extrapolation.evidence.stored import study_evidence, trials_counted_once
from search_spaces.settings import TrainingSettings
from search_spaces.space import SearchSpace
from storage.records import Trial, TrialState

SPACE = SearchSpace.parse({"learning_rate": {"log_uniform": [0.01, 1.0], "role": "scaled"}})


def a_trial(number, *, state=TrialState.REACHED, rate=0.1, seed=100_000, purpose="race"):
    reached = state is TrialState.REACHED
    return Trial(
        id=number + 1,
        study_id=1,
        number=number,
        state=state,
        global_batch_size=256,
        seed=seed,
        settings={**TrainingSettings(learning_rate=rate).to_dict(), "width": 2},
        purpose=purpose,
        epochs_to_target=3.4 if reached else None,
        epochs=3.5,
        steps=100,
        seconds=1.0,
        best_metric=None,
        final_metric=None,
        reason="",
        resolution_epochs=0.1,
        started_at=None,
        finished_at=None,
    )


def test_a_training_that_was_repeated_to_the_seed_counts_once():
    trials = [a_trial(number) for number in range(3)]
    others = [
        a_trial(3, rate=0.2),
        a_trial(4, seed=100_001),
        replace(a_trial(5), global_batch_size=128),
    ]
    assert trials_counted_once([*trials, *others]) == [trials[0], *others]
    assert len(study_evidence([*trials, *others], SPACE).observations) == 4


@pytest.mark.parametrize("first", [TrialState.FAILED, TrialState.PRUNED, TrialState.RUNNING])
def test_of_repetitions_the_one_that_says_most_counts(first):
    trials = [a_trial(0, state=first), a_trial(1), a_trial(2, state=TrialState.CENSORED)]
    assert trials_counted_once(trials) == [trials[1]]


@pytest.mark.parametrize("purpose", ["imported", "outcome"])
def test_what_was_trained_elsewhere_is_evidence_of_its_own(purpose):
    trials = [a_trial(0), *(a_trial(number, purpose=purpose) for number in (1, 2))]
    assert trials_counted_once(trials) == trials
