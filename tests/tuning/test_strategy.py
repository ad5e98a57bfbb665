"""The strategy spends exactly the budget, rung by rung, and repeats the best settings."""

import dataclasses
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpo.study.budgets import rung_budgets
from hpo.tuning.generation.strategy import (
    ExploreSettings,
    RepeatTraining,
    SweepDone,
    WaitForTrainings,
    explorations,
    next_task,
    unused_trial_seed,
)
from search_spaces.settings import TrainingSettings
from storage.records import Trial, TrialState

pytestmark = pytest.mark.medium

LADDER = (16, 32, 64)


def a_trial(number, batch, state, *, seed=0, learning_rate=0.1, epochs=None):
    return Trial(
        id=number + 1,
        study_id=1,
        number=number,
        state=state,
        global_batch_size=batch,
        seed=seed,
        settings=TrainingSettings(learning_rate=learning_rate).to_dict(),
        purpose="sweep",
        epochs_to_target=epochs,
        epochs=epochs,
        steps=None,
        seconds=None,
        best_metric=None,
        final_metric=None,
        reason="",
        resolution_epochs=None,
        started_at=None,
        finished_at=None,
    )


def test_the_budget_is_split_evenly_and_the_rest_goes_to_the_largest_rungs():
    budgets = rung_budgets((16, 32, 64, 128), 50, seeds=2)
    assert [budgets[batch].trainings for batch in (16, 32, 64, 128)] == [12, 12, 13, 13]
    assert budgets[16].explorations == 9
    assert budgets[16].repeated_settings == 3


def test_one_seed_repeats_nothing():
    assert rung_budgets(LADDER, 9, seeds=1)[16].explorations == 3


def test_a_new_sweep_explores_the_smallest_rung():
    assert next_task(rung_budgets(LADDER, 24, 2), []) == ExploreSettings(16)


def test_the_next_rung_starts_while_the_last_explorations_of_a_rung_run():
    budgets = rung_budgets(LADDER, 24, 2)
    trials = [
        a_trial(n, 16, TrialState.RUNNING, learning_rate=0.1 + n)
        for n in range(budgets[16].explorations)
    ]
    assert next_task(budgets, trials) == ExploreSettings(32)


def test_the_best_settings_of_a_rung_are_repeated_with_the_other_seed():
    budgets = rung_budgets((16,), 4, 2)
    trials = [
        a_trial(0, 16, TrialState.REACHED, learning_rate=0.1, epochs=9.0),
        a_trial(1, 16, TrialState.REACHED, learning_rate=0.2, epochs=5.0),
        a_trial(2, 16, TrialState.PRUNED, learning_rate=0.3),
    ]
    task = next_task(budgets, trials)
    assert isinstance(task, RepeatTraining)
    assert task.settings["learning_rate"] == 0.2


def test_a_rung_where_nothing_reached_the_target_explores_instead_of_repeating():
    budgets = rung_budgets((16,), 4, 2)
    assert next_task(
        budgets, [a_trial(n, 16, TrialState.CENSORED, learning_rate=0.1 + n) for n in range(3)]
    ) == ExploreSettings(16)


def test_repetitions_wait_for_the_last_exploration():
    budgets = rung_budgets((16,), 4, 2)
    trials = [
        a_trial(0, 16, TrialState.REACHED, learning_rate=0.1, epochs=3.0),
        a_trial(1, 16, TrialState.REACHED, learning_rate=0.2, epochs=4.0),
        a_trial(2, 16, TrialState.RUNNING, learning_rate=0.3),
    ]
    assert next_task(budgets, trials) == WaitForTrainings()


@settings(deadline=None)
@given(
    trainings=st.integers(3, 40),
    seeds=st.integers(1, 4),
    concurrency=st.integers(1, 5),
    data=st.data(),
)
def test_any_sweep_ends_after_exactly_its_budget_and_repeats_no_training(
    trainings, seeds, concurrency, data
):
    budgets = rung_budgets(LADDER, trainings, seeds)
    trials, running = [], []
    while True:
        task = next_task(budgets, trials)
        if isinstance(task, SweepDone):
            break
        if isinstance(task, WaitForTrainings) or len(running) == concurrency:
            assert running, "waiting for nothing"
            position = running.pop(data.draw(st.integers(0, len(running) - 1)))
            reached = data.draw(st.booleans())
            trials[position] = dataclasses.replace(
                trials[position],
                state=TrialState.REACHED if reached else TrialState.PRUNED,
                epochs_to_target=data.draw(st.floats(1, 9)) if reached else None,
            )
            continue
        number = len(trials)
        rate = 1.0 + number if isinstance(task, ExploreSettings) else task.settings["learning_rate"]
        trials.append(
            a_trial(
                number,
                task.global_batch_size,
                TrialState.RUNNING,
                seed=unused_trial_seed(trials),
                learning_rate=rate,
            )
        )
        running.append(number)
    assert len(trials) == trainings
    assert len({trial.seed for trial in trials}) == trainings
    runs = Counter((trial.global_batch_size, trial.settings["learning_rate"]) for trial in trials)
    assert max(runs.values()) <= seeds
    assert len(runs) == len(explorations(trials))


def test_a_sweep_of_old_in_which_all_explorations_have_seed_0_goes_on():
    budgets = rung_budgets((16,), 5, 2)
    trials = [
        a_trial(0, 16, TrialState.REACHED, learning_rate=0.1, epochs=9.0),
        a_trial(1, 16, TrialState.REACHED, learning_rate=0.2, epochs=5.0),
        a_trial(2, 16, TrialState.REACHED, learning_rate=0.3, epochs=6.0),
    ]
    assert next_task(budgets, trials) == ExploreSettings(16)
    assert unused_trial_seed(trials) == 1
    trials += [a_trial(3, 16, TrialState.REACHED, learning_rate=0.4, epochs=7.0)]
    repeat = next_task(budgets, trials)
    assert isinstance(repeat, RepeatTraining) and repeat.settings["learning_rate"] == 0.2
    trials += [a_trial(4, 16, TrialState.REACHED, seed=1, learning_rate=0.2, epochs=5.5)]
    assert explorations(trials) == trials[:4]
    assert next_task(budgets, trials) == SweepDone()


@pytest.mark.parametrize("seeds", [1, 2, 3, 5])
def test_exploring_keeps_at_least_half_of_a_rung(seeds):
    for trainings in range(1, 60):
        budget = rung_budgets((16,), trainings, seeds)[16]
        assert budget.explorations >= trainings / 2
