"""A race at the full-scale batch: which settings, in which order, within its budget, and after any interruption."""

import dataclasses
import math
import re
import sqlite3
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hpo
from hpo.errors import EvidenceError
from hpo.extrapolation.evidence.evidence import Evidence, ScaledSetting, TrainingObservation
from hpo.extrapolation.inference.intervals import Interval
from hpo.extrapolation.inference.kept import ConstraintOutlook
from hpo.extrapolation.inference.posterior import fit
from hpo.runs.race import plan_race
from hpo.runs.study_forecast import _advice, direct_search
from hpo.tuning.generation.race import (
    FINALISTS,
    FIRST_SEED,
    SEEDS,
    STEPS,
    RaceCourse,
    choose_candidates,
    first_race_seed,
    next_race_entry,
    next_race_seed,
    raced_run_epochs,
)
from hpo.tuning.generation.strategy import SweepDone, WaitForTrainings
from hpo.tuning.stopping import CurveStopping
from hpo.tuning.trainings import TrainingsEnding
from hpo.tuning.tuner import run_race
from storage.maintenance.maintenance import backup, check
from storage.records import NewTrial, Trial, TrialPurpose, TrialResult, TrialState, settings_key
from storage.store import Store
from trainers.job import Constraint

pytestmark = pytest.mark.fit

STUDY = """\
name: a raced study
workload: noisy_quadratic
data: {modes: 50, noise_scale: 10.0, train_samples: 2048}
target: {metric: loss, at_most: 0.05}
ladder: [16, 32, 64]
full_scale: {global_batch_size: 256}
search:
  learning_rate: {log_uniform: [0.01, 2.0], role: scaled}
  momentum: 0.0
  decay: constant
  warmup_epochs: 0.0
  normalization_batch_size: 1
budget: {trials: 15, epochs_per_trial: 40, race: 0}
seeds: 2
"""
BATCH = 256


def entry(rate):
    return {"learning_rate": rate, "warmup_epochs": 1.0}


def a_course(*rates, most=1000.0):
    return RaceCourse(
        BATCH,
        tuple(entry(rate) for rate in rates),
        epochs=10.0,
        limit_epochs=20.0,
        most_epochs=most,
    )


def a_trial(number, rate, state=TrialState.REACHED, epochs=10.0, warmup=1.0):
    return Trial(
        id=number + 1,
        study_id=1,
        number=number,
        state=state,
        global_batch_size=BATCH,
        seed=number,
        settings={**entry(rate), "warmup_epochs": warmup},
        purpose="race",
        epochs_to_target=epochs if state is TrialState.REACHED else None,
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


def test_the_candidates_first_then_the_best_two_once_more():
    course, trials = a_course(0.1, 0.2, 0.3), []
    for rate, epochs in ((0.1, 12.0), (0.2, 9.0), (0.3, 10.0), (0.2, 9.5), (0.3, 10.5)):
        assert next_race_entry(course, trials) == entry(rate)
        trials.append(a_trial(len(trials), rate, epochs=epochs))
    assert next_race_entry(course, trials) == SweepDone()


@pytest.mark.parametrize("sign", (1, -1))
def test_where_the_quickest_is_the_highest_or_lowest_rate_the_race_goes_further_until_it_is_not(
    sign,
):
    rates = [0.1 * 2 ** (sign * n) for n in range(3)]
    course, trials = a_course(*rates), []
    for rate, epochs in (*zip(rates, (12.0, 10.0, 8.0), strict=True), (rates[-1] * 1.6**sign, 7.0)):
        assert next_race_entry(course, trials)["learning_rate"] == pytest.approx(rate)
        trials.append(a_trial(len(trials), rate, epochs=epochs))
    beyond = next_race_entry(course, trials)["learning_rate"]
    assert beyond == pytest.approx(rates[-1] * 1.6 ** (2 * sign))
    # as quick as before: no further, and the best two are trained once more
    trials.append(a_trial(len(trials), beyond, epochs=7.0))
    assert {entry["learning_rate"] for entry in _next_two(course, trials)} == {
        beyond,
        trials[3].settings["learning_rate"],
    }


def test_a_race_goes_further_from_the_only_one_that_was_not_dropped():
    course = a_course(0.2, 0.1, 0.05)
    dropped = [a_trial(n, rate, TrialState.PRUNED) for n, rate in ((1, 0.1), (2, 0.05))]
    trials = [a_trial(0, 0.2, epochs=10.0), *dropped]
    assert next_race_entry(course, trials)["learning_rate"] == pytest.approx(0.2 * 1.6)
    between = [a_trial(0, 0.1, epochs=10.0), a_trial(1, 0.2, TrialState.PRUNED), dropped[1]]
    assert next_race_entry(course, between) == entry(0.1)


def test_a_race_goes_no_further_than_a_rate_that_was_lost_nor_by_more_than_its_steps():
    course = a_course(0.1, 0.2)
    trials = [a_trial(0, 0.1, epochs=12.0), a_trial(1, 0.2, epochs=10.0)]
    lost = [*trials, a_trial(2, 0.32, TrialState.DIVERGED)]
    assert next_race_entry(course, lost) == entry(0.2)
    for step in range(STEPS):
        further = next_race_entry(course, trials)
        assert further["learning_rate"] == pytest.approx(0.2 * 1.6 ** (step + 1))
        trials.append(a_trial(2 + step, further["learning_rate"], epochs=9.0 - step))
    assert next_race_entry(course, trials) == trials[-1].settings


def _next_two(course, trials):
    """The entries after these trials, each as quick as its first training."""
    first = next_race_entry(course, trials)
    again = next(each for each in trials if each.settings == first).epochs
    done = [*trials, a_trial(len(trials), first["learning_rate"], epochs=again)]
    return first, next_race_entry(course, done)


def test_one_that_is_lost_with_its_second_seed_makes_room_for_the_third():
    trials = [
        a_trial(0, 0.1, epochs=12.0),
        a_trial(1, 0.2, epochs=9.0),
        a_trial(2, 0.3, epochs=10.0),
        a_trial(3, 0.2, TrialState.DIVERGED, 2.0),
        a_trial(4, 0.3, epochs=10.0),
    ]
    assert next_race_entry(a_course(0.1, 0.2, 0.3), trials) == entry(0.1)


def test_repetitions_wait_for_the_candidates():
    trials = [a_trial(0, 0.1), a_trial(1, 0.2, TrialState.RUNNING)]
    assert next_race_entry(a_course(0.1, 0.2), trials) == WaitForTrainings()


def test_where_all_are_lost_lower_rates_with_longer_warmups_are_tried():
    trials = [a_trial(0, 0.1, TrialState.DIVERGED), a_trial(1, 0.2, TrialState.DIVERGED)]
    first = next_race_entry(a_course(0.1, 0.2), trials)
    assert (first["learning_rate"], first["warmup_epochs"]) == (0.05, 2.0)
    trials.append(a_trial(2, 0.05, TrialState.DIVERGED, warmup=2.0))
    second = next_race_entry(a_course(0.1, 0.2), trials)
    assert (second["learning_rate"], second["warmup_epochs"]) == (0.025, 4.0)
    trials.append(a_trial(3, 0.025, TrialState.DIVERGED, warmup=4.0))
    assert next_race_entry(a_course(0.1, 0.2), trials) == SweepDone()


@settings(deadline=None)
@given(count=st.integers(1, 5), concurrency=st.integers(1, 4), data=st.data())
def test_any_race_ends_and_trains_no_settings_more_often_than_it_may(count, concurrency, data):
    course, trials, running = a_course(*(0.1 * (n + 1) for n in range(count))), [], []
    for _ in range(100):
        found = next_race_entry(course, trials)
        if isinstance(found, SweepDone):
            break
        if isinstance(found, WaitForTrainings) or len(running) == concurrency:
            at = running.pop(data.draw(st.integers(0, len(running) - 1)))
            state = data.draw(
                st.sampled_from([TrialState.REACHED, TrialState.DIVERGED, TrialState.PRUNED])
            )
            trials[at] = dataclasses.replace(
                a_trial(
                    at, trials[at].settings["learning_rate"], state, data.draw(st.floats(5, 15))
                ),
                settings=trials[at].settings,
            )
            continue
        running.append(len(trials))
        trials.append(
            dataclasses.replace(a_trial(len(trials), 1.0, TrialState.RUNNING), settings=dict(found))
        )
    else:
        raise AssertionError("the race does not end")
    runs = {}
    for trial in trials:
        runs.setdefault(trial.settings["learning_rate"], []).append(trial)
    assert len(runs) >= count and max(map(len, runs.values())) <= SEEDS
    whole = [
        each for each in runs.values() if all(trial.state is TrialState.REACHED for trial in each)
    ]

    def mean(runs):
        return sum(math.log(trial.epochs_to_target) for trial in runs) / len(runs)

    # a second training may put a finalist behind another, who then is one too
    once = [mean(each) for each in whole if len(each) < SEEDS]
    finalists = sorted(map(mean, whole))[:FINALISTS]
    assert not once or min(once) >= finalists[-1]


def test_a_training_far_behind_the_best_is_dropped_at_the_limit_where_its_curve_is_not_judged():
    def ended(*, by_curve):
        scheduler = CurveStopping(0.1, most=lambda: 12.0)
        trial = type(
            "T",
            (),
            {
                "trial_id": "one",
                "config": {
                    "stoppable": True,
                    "limit_epochs": 40.0,
                    "most_epochs": 35.0,
                    "by_curve": by_curve,
                },
            },
        )
        for quarter in range(1, 200):
            at = quarter / 4
            point = {"epochs": at, "metric": 0.5 + math.exp(-at)}
            if scheduler.stops(trial, {"state": "running", "points": [point]}):
                return at
        raise AssertionError("never stopped")

    assert ended(by_curve=True) < 6
    assert ended(by_curve=False) == 12.0


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    folder = tmp_path_factory.mktemp("raced")
    (folder / "study.yaml").write_text(STUDY)
    result = hpo.run_study(
        hpo.load_study(folder / "study.yaml"), f"sqlite:///{folder}/hpo.db", folder=folder / ".hpo"
    )
    assert result.complete and not result.raced
    backup(result.storage, folder / "before.db")
    return folder, result


@pytest.fixture(scope="module")
def raced(swept):
    """The study after a race, and the race's course."""
    result = swept[1]
    plan = plan_race(result, BATCH, 120 * result.train_samples, forced=True)
    return hpo.race(
        result, BATCH, samples=120 * result.train_samples, folder=swept[0] / ".hpo"
    ), plan.course


@pytest.fixture
def go_on(swept, tmp_path):
    """Race in a copy of the study's database as it was before the race."""
    folder, result = swept
    (tmp_path / "hpo.db").write_bytes((folder / "before.db").read_bytes())

    def race(course, stop=lambda trials: False):
        told = []
        with Store.open(f"sqlite:///{tmp_path}/hpo.db") as store:
            study = store.study(result.study.name)
            end = run_race(
                result.spec,
                study,
                store,
                course,
                folder=tmp_path / ".hpo",
                progress=lambda trials, running: told.__setitem__(slice(None), trials),
                stop=lambda: stop(told),
            )
            return end, store.trials(study.id, purpose="race")

    return race


def seen(trials):
    return [
        (trial.state, trial.seed, trial.settings["learning_rate"], trial.epochs) for trial in trials
    ]


def test_every_race_draws_its_own_seeds_and_one_that_has_begun_goes_on_with_them():
    names = [f"study {number}" for number in range(20)]
    assert len({first_race_seed(name, BATCH) for name in names}) == 20
    assert first_race_seed("study 1", BATCH) == first_race_seed("study 1", BATCH) >= FIRST_SEED
    assert first_race_seed("study 1", BATCH) != first_race_seed("study 1", 2 * BATCH)
    begun = [
        replace(a_trial(number, rate), seed=FIRST_SEED) for number, rate in enumerate((0.1, 0.2))
    ]
    settings = begun[0].settings
    assert next_race_seed(settings, (), 7) == 7
    assert next_race_seed(settings, begun, 7) == FIRST_SEED + 1
    assert next_race_seed({**settings, "learning_rate": 0.7}, begun, 7) == FIRST_SEED


def test_a_race_is_recorded_and_counts(swept, raced):
    before, (after, course) = swept[1], raced
    assert after.complete and after.swept == before.trials and len(after.raced) >= 5
    assert [trial.settings["learning_rate"] for trial in after.raced[: len(course.candidates)]] == [
        each["learning_rate"] for each in course.candidates
    ]
    first = [trial.seed for trial in after.raced[: len(course.candidates)]]
    begun = first_race_seed(after.spec.name, BATCH)
    assert set(first) == {begun}  # the same start weights and order of samples for all
    assert {trial.seed for trial in after.raced} == {begun, begun + 1}
    assert f"raced at {BATCH}: " in after.forecast.reason
    assert after.forecast.numbers.raced.trainings == len(after.raced)
    lost = [
        trial.settings["learning_rate"]
        for trial in after.raced
        if trial.state is TrialState.DIVERGED
    ]
    assert all(after.forecast.settings.learning_rate < rate for rate in lost)
    old, new = before.forecast.epochs_to_target, after.forecast.epochs_to_target
    assert new.high / new.low < old.high / old.low


def test_a_race_goes_on_after_an_interruption_at_any_trial_as_if_there_was_none(go_on, raced):
    after, course = raced
    for ended in range(1, len(after.raced)):
        end, trials = go_on(
            course, lambda told, ended=ended: sum(trial.state.finished for trial in told) >= ended
        )
        assert end.ending is TrainingsEnding.STOPPED
        assert sum(trial.state.finished for trial in trials) == ended
    end, trials = go_on(course)
    assert end.ending is TrainingsEnding.COMPLETE and seen(trials) == seen(after.raced)
    assert seen(go_on(course)[1]) == seen(after.raced)


@pytest.mark.parametrize("trainings", [2.2, 3.5, 4.1])
def test_a_race_stops_within_its_budget(go_on, swept, raced, trainings):
    course = raced[1]
    course = dataclasses.replace(course, most_epochs=trainings * course.epochs)
    end, trials = go_on(course)
    assert (
        end.ending is TrainingsEnding.COMPLETE and end.message == "the budget of the race is spent"
    )
    assert len(trials) >= 2
    assert sum(trial.samples for trial in trials) <= course.most_epochs * swept[1].train_samples


OWN_STUDY = (
    STUDY.replace("a raced study", "a race with settings of one's own")
    .replace("noisy_quadratic", "bowl_with_width:Bowl")
    .replace("  momentum: 0.0\n", "  momentum: 0\n  width: {choice: [1, 2]}\n")
)
OWN_WORKLOAD = """\
from trainers.workloads.noisy_quadratic.task import NoisyQuadratic


class Bowl(NoisyQuadratic):
    own_settings = ("width",)
"""


@pytest.mark.slow
def test_a_race_with_settings_of_ones_own_trains_every_configuration_once_for_each_seed(tmp_path):
    (tmp_path / "bowl_with_width.py").write_text(OWN_WORKLOAD)
    (tmp_path / "study.yaml").write_text(OWN_STUDY)
    result = hpo.run_study(
        hpo.load_study(tmp_path / "study.yaml"),
        f"sqlite:///{tmp_path}/hpo.db",
        folder=tmp_path / ".hpo",
    )
    samples = 120 * result.train_samples
    course = plan_race(result, BATCH, samples, forced=True).course
    raced = hpo.race(result, BATCH, samples=samples, folder=tmp_path / ".hpo").raced
    trained = [(trial.settings_key, trial.seed) for trial in raced]
    assert len(set(trained)) == len(trained) > len(course.candidates)
    assert {key for key, _ in trained} >= {settings_key(entry) for entry in course.candidates}
    assert all(trial.settings["width"] in (1, 2) for trial in raced)
    # what came of a plan is evidence in the same form as the trials
    plan = hpo.store_plan(
        result.forecast,
        hpo.make_plan(result.forecast, machine="local", workers=1),
        tmp_path / "plan",
    )
    hpo.launch(plan, storage=result.storage)
    *_, launched = hpo.read_study(result.study.name, result.storage).evidence()
    assert launched.purpose == "outcome" and launched.settings.keys() == raced[0].settings.keys()
    assert launched.settings["width"] == plan.job.settings.own["width"]


@pytest.mark.slow
def test_a_stored_race_that_repeated_itself_counts_once_and_goes_on(swept, raced, tmp_path):
    """As races with settings of one's own were stored: one training, three times."""
    (tmp_path / "hpo.db").write_bytes((swept[0] / "before.db").read_bytes())
    storage, samples = f"sqlite:///{tmp_path}/hpo.db", 120 * swept[1].train_samples
    first = raced[0].raced[0]
    with Store.open(storage) as store:
        study = store.study(swept[1].study.name)
        made = store.add_trials(
            study.id,
            [
                NewTrial(
                    global_batch_size=BATCH,
                    seed=first.seed + more,
                    settings=first.settings,
                    purpose="race",
                )
                for more in range(3)
            ],
        )
        result = TrialResult(
            state=first.state,
            epochs_to_target=first.epochs_to_target,
            epochs=first.epochs,
            steps=first.steps,
        )
        for trial in made:
            store.finish_trial(trial.id, result)
    with sqlite3.connect(tmp_path / "hpo.db") as connection:
        connection.execute(f"UPDATE trials SET seed = {first.seed} WHERE purpose = 'race'")
    connection.close()
    (said,) = (each for each in check(storage) if each.name == "repetitions")
    numbers = ", ".join(str(trial.number) for trial in made)
    assert f"a raced study: trials {numbers} (race at 256, seed {first.seed})" in said.message
    told = hpo.forecast(hpo.read_study("a raced study", storage), BATCH)
    assert "raced at 256: 1 configuration, 1 training (1 reached the target)" in told.reason
    again = hpo.race(
        hpo.read_study("a raced study", storage), BATCH, samples=samples, folder=tmp_path / ".hpo"
    )
    # the other configurations, as in the race that did not repeat itself
    assert seen(again.raced[3:]) == seen(raced[0].raced[1:])


def test_trainings_of_one_race_that_repeat_each_other_are_one():
    course = a_course(0.1, 0.2)
    twice = [replace(a_trial(number, 0.1), seed=FIRST_SEED) for number in range(3)]
    other = replace(a_trial(3, 0.2, epochs=12.0), seed=FIRST_SEED)
    assert next_race_entry(course, twice) == entry(0.2)
    # what repeats a training is no second seed of it
    assert next_race_seed(entry(0.1), twice, 7) == FIRST_SEED + 1
    further = replace(a_trial(4, 0.1 / 1.6, epochs=13.0), seed=FIRST_SEED)
    assert next_race_entry(course, [*twice, other, further]) == twice[0].settings


def test_too_small_a_budget_is_no_race_and_says_what_to_raise(swept):
    assert plan_race(swept[1], BATCH).course is None  # the study says 0
    with pytest.raises(EvidenceError, match=r"too few for two training runs.*raise budget.race"):
        hpo.race(swept[1], BATCH, samples=swept[1].train_samples, folder=swept[0] / ".hpo")


def test_a_forecast_advises_only_a_race_that_would_be_made(swept):
    result = swept[1]
    made = hpo.forecast(result, BATCH)
    numbers, posterior = replace(made.numbers, trust="low", raced=None), made.posterior

    def advice(race, **changed):
        budget = result.spec.budget.model_copy(update={"race": race})
        asked = result.spec.model_copy(update={"budget": budget})
        return _advice(replace(result, spec=asked), replace(numbers, **changed), posterior)

    one = raced_run_epochs(posterior, BATCH)
    assert one == choose_candidates(posterior, BATCH, 1000.0).epochs
    for race in (0, int(1.9 * one * result.train_samples)):
        refused = advice(race)
        assert f"its budget of {race:,} samples is too small for two training runs" in refused
        enough = int(re.search(r"set budget.race to ([\d,]+)", refused)[1].replace(",", ""))
        assert 5.0 <= enough / (one * result.train_samples) < 5.6
        with pytest.raises(EvidenceError, match="too few for two training runs"):
            hpo.race(result, BATCH, samples=race, folder=swept[0] / ".hpo")
        assert plan_race(result, BATCH, enough, forced=True).course is not None
    assert f"would take {math.ceil(2.1 * one)} epochs" in advice(int(2.1 * one * 2048))
    assert f"would take {math.ceil(5 * one)} epochs" in advice(10**9)
    bound = Constraint("memory_gb", 1.0)
    never = ConstraintOutlook(bound, Interval(2.0, 1.9, 2.1), chance=0.0, trainings=9)
    assert advice(10**9, constraints=(never,)) == ""
    lost = replace(a_trial(99, 0.1, TrialState.PRUNED), purpose=TrialPurpose.RACE)
    assert lost.global_batch_size == BATCH
    begun = replace(result, trials=(*result.trials, lost))
    assert _advice(begun, numbers, posterior) == ""


def test_candidates_begin_with_the_forecast_and_hold_safer_and_bolder_settings(swept):
    posterior = swept[1].forecast.posterior
    candidates = choose_candidates(posterior, BATCH, 1000.0)
    rates = [each["learning_rate"] for each in candidates.settings]
    assert rates[0] == swept[1].forecast.settings.learning_rate
    assert len(set(rates)) == len(rates) == 5
    assert min(rates) < rates[0] and candidates.gain > 0
    assert candidates == choose_candidates(posterior, BATCH, 1000.0)


def test_candidates_hold_no_settings_twice_where_many_warmups_are_the_shortest_there_is(
    monkeypatch,
):
    tuned = (
        ScaledSetting("learning_rate", "log", 0.01, 4.0),
        ScaledSetting("warmup_epochs", "linear", 0.0, 5.0),
    )
    observations = [
        TrainingObservation(
            batch,
            "reached",
            5 * (1 + batch / 64) * math.exp(0.5 * math.log(rate / (0.05 * batch**0.5)) ** 2),
            {"learning_rate": rate, "warmup_epochs": warmup},
        )
        for batch in (16, 32, 64)
        for rate, warmup in ((0.1, 1.0), (0.2, 0.5), (0.4, 2.0), (0.8, 1.0))
    ]
    posterior = fit(Evidence(observations=observations, tuned=tuned), rng=np.random.default_rng(0))
    # a batch of so many samples that a warmup of one update is longer than any that is recommended
    monkeypatch.setattr(type(posterior.model.warmup), "shortest", lambda self, log_batch: 1e6)
    candidates = choose_candidates(posterior, BATCH, 1000.0)
    assert min(each["warmup_epochs"] for each in candidates.settings) == 1e6
    assert (
        len({settings_key(each) for each in candidates.settings}) == len(candidates.settings) == 5
    )


def test_a_search_at_the_batch_itself_is_advised_where_the_sweep_was_dearer(swept):
    result = swept[1]
    epochs = result.forecast.epochs_to_target.median
    spent = sum(trial.epochs for trial in result.swept)
    few = dataclasses.replace(result, trials=result.trials[:1])
    assert direct_search(few, result.forecast) == ""
    many = dataclasses.replace(result, trials=20 * result.trials)
    assert f"as many as {20 * spent / epochs:.0f} training runs at {BATCH}:" in direct_search(
        many, result.forecast
    )
    assert "(sampler: forecast) takes about 5" in direct_search(many, result.forecast)
