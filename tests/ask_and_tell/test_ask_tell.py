"""Ask and tell on a local storage: the trials of a sweep, each ended once, whichever client vanishes."""

import dataclasses
import math
import sys
import threading
from urllib.parse import quote

import numpy as np
import pytest

import hpo
from hpo.ask_and_tell.ending import outcome_of
from hpo.ask_and_tell.messages import Asked
from hpo.ask_and_tell.trial import AskedTrial
from hpo.client.agent import AgentOptions, TrialAgent
from hpo.errors import FigureError, TrialLostError, TuningError
from hpo.runs import ask_tell_study
from hpo.runs.ask_tell_study import AskTellStudy
from hpo.runs.repository import enter_study
from hpo.study.jobs import agent_folder
from hpo.study.spec import parse_study
from hpo.tuning.generation.samplers import LadderSampler
from storage.records import NewStudy, StudyState, TrialState
from storage.store import Store
from trainers.begin import begin_training
from trainers.report import ConvergencePoint

pytestmark = pytest.mark.medium

SPEC = """\
name: bowl
workload: noisy_quadratic
data: {modes: 20, noise_scale: 0.5, train_samples: 512}
target: {metric: loss, at_most: 0.05}
ladder: [32, 64]
search:
  learning_rate: {log_uniform: [0.01, 2], role: scaled}
  weight_decay: 0
budget: {trials: 12, epochs_per_trial: 30}
seeds: 2
"""


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path}/hpo.db"


@pytest.fixture
def store(url):
    with Store.open(url) as store:
        yield store


def ask_tell_study_of(store, text=SPEC):
    return AskTellStudy(store, enter_study(store, parse_study(text)))


def point(step, metric, batch=32):
    """An evaluation after that many steps, each of a second and a 16th of an epoch of SPEC."""
    return ConvergencePoint(step, batch * step, step * batch / 512, step, 1, 1, metric, 0.1, batch)


def train(trial):
    training = begin_training(trial.job)
    while not training.finished and trial.report_point(training.advance()):
        pass
    return trial.tell(outcome=training.outcome if training.finished else None)


def results(url, name="bowl"):
    return [
        (
            t.number,
            t.global_batch_size,
            t.seed,
            t.settings["learning_rate"],
            t.state,
            t.epochs_to_target,
        )
        for t in hpo.read_study(name, url).trials
    ]


@pytest.mark.fit
def test_one_that_asks_trains_the_very_trials_of_the_sweep(url, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "hpo.ask_and_tell.trial.SEND_SECONDS", 0.0
    )  # each evaluation is judged, as in a sweep
    with hpo.ask_tell(parse_study(SPEC), url) as study:
        while (trial := study.ask()) is not None:
            train(trial)
        assert "all 12 trials have ended" in study.message
    swept = f"sqlite:///{tmp_path}/swept.db"
    hpo.run_study(parse_study(SPEC), swept)
    assert results(url) == results(swept)
    assert {each[4] for each in results(url)} >= {TrialState.REACHED, TrialState.PRUNED}
    assert hpo.read_study("bowl", url).study.state is StudyState.FINISHED


def test_a_study_that_would_be_raced_says_that_nobody_who_asks_races(url):
    full = "full_scale: {global_batch_size: 256, machine: local}\nsampler: tpe\n"
    small = SPEC.replace("trials: 12", "trials: 2").replace("seeds: 2\n", full)
    for name, race, said in (("raced", "", True), ("bowl", ", race: 0", False)):
        text = small.replace("name: bowl", f"name: {name}")
        text = text.replace("epochs_per_trial: 30}", f"epochs_per_trial: 30{race}}}")
        with hpo.ask_tell(parse_study(text), url) as study:
            while (trial := study.ask()) is not None:
                train(trial)
            assert ("to race at 256, use `hpo run`" in study.message) is said
        assert {t.global_batch_size for t in hpo.read_study(name, url).trials} == {32, 64}


@pytest.mark.fit
@pytest.mark.slow  # the calls of another process come to the same
def test_a_study_that_is_opened_anew_before_every_call_changes_nothing(store, url):
    """What a server that restarts between any two calls does: the database holds all there is."""
    enter_study(store, parse_study(SPEC))
    ended = 0
    while True:
        asked = ask_tell_study_of(store).ask(f"key {ended}", "me", 60)
        if asked.number is None:
            break
        training = begin_training(asked.job)
        while not training.finished:
            points = [training.advance()]
            if ask_tell_study_of(store).report(asked.number, f"key {ended}", points, 60).stop:
                break
        else:
            for _ in range(2):  # the first answer was lost
                ask_tell_study_of(store).end(asked.number, f"key {ended}", outcome=training.outcome)
        ended += 1
    trials = store.trials(1)
    assert ended == len(trials) == 12 and all(trial.state.finished for trial in trials)
    assert {trial.global_batch_size for trial in trials} == {32, 64}
    repeated = [trial.settings_key for trial in trials]
    assert len(set(repeated)) < len(repeated)  # repetitions of the best


def test_a_study_of_ones_own_loop(url):
    with hpo.ask_tell(parse_study(SPEC.replace("trials: 12", "trials: 4")), url) as study:
        with study.ask() as trial:
            assert trial.settings.weight_decay == 0 and trial.global_batch_size == 32
            assert trial.report(epochs=1, steps=16, metric=0.4)
            assert not trial.report(epochs=2, steps=32, metric=0.04, loss=0.04)
            assert trial.should_stop
        with study.ask() as trial:
            assert trial.report(epochs=1, steps=16, metric=0.4)
        with study.ask() as trial:
            assert not trial.report(epochs=1, steps=16, metric=math.nan)
        with pytest.raises(ZeroDivisionError), study.ask() as trial:
            raise ZeroDivisionError("of ours")
        assert study.ask() is None
    reached, censored, diverged, failed = hpo.read_study("bowl", url).trials
    assert (reached.state, reached.epochs_to_target, reached.epochs) == (TrialState.REACHED, 2, 2)
    assert reached.samples == 1024 and reached.resolution_epochs == 1.0
    assert (censored.state, censored.epochs) == (TrialState.CENSORED, 1)
    assert "before the target" in censored.reason
    assert diverged.state is TrialState.DIVERGED
    assert (failed.state, failed.reason) == (TrialState.FAILED, "ZeroDivisionError: of ours")


def test_the_loss_of_the_last_report_is_held_to_its_constraint(url):
    own = SPEC.replace("workload: noisy_quadratic", "workload: resnet")
    own = own.replace("{modes: 20, noise_scale: 0.5, train_samples: 512}", "{source: digits}")
    own = own.replace("{metric: loss, at_most: 0.05}", "{metric: top1, at_least: 0.9}")
    own += "constraints: {loss: {at_most: 0.5}}\n"
    with hpo.ask_tell(parse_study(own), url) as study:
        for loss in (0.25, 0.75, math.nan):
            with study.ask() as trial:
                trial.report(epochs=1, metric=0.5, loss=2.0, steps=10)
                trial.report(epochs=2, metric=0.95, loss=loss, steps=20)
    read = hpo.read_study("bowl", url)
    assert [trial.measures for trial in read.trials] == [{"loss": 0.25}, {"loss": 0.75}, None]
    (keeping,) = read.keeping
    assert (keeping.kept, keeping.broken, keeping.untold) == (1, 1, 1)


def test_what_cannot_be_told(url):
    with hpo.ask_tell(parse_study(SPEC), url) as study:
        trial = study.ask()
        with pytest.raises(TuningError, match="no evaluation: report at least one"):
            trial.tell()
        with pytest.raises(TuningError, match="at least one step"):
            trial.report(epochs=0, steps=0, metric=1.0)
        trial = study.ask()
        trial.report(epochs=2, steps=2, metric=1.0)
        with pytest.raises(TuningError, match="must go forward"):
            trial.report(epochs=1, steps=3, metric=1.0)
        with pytest.raises(TuningError, match="'reached'"):
            trial.tell("reached")
        trial = study.ask()
        trial.report(epochs=2, steps=2, metric=1.0)
        assert trial.tell() == "censored"
        with pytest.raises(TuningError, match="reported already"):
            trial.report(epochs=3, steps=3, metric=1.0)


def test_numbers_of_numpy_are_reported_as_numbers(store, url):
    with hpo.ask_tell(parse_study(SPEC), url) as study, study.ask() as trial:
        small = np.float32(1.5)
        trial.report(
            epochs=small,
            metric=small,
            steps=np.int64(24),
            samples=np.int32(768),
            seconds=small,
            loss=small,
            train_loss=small,
            gradient_noise_scale=small,
        )
    [stored] = store.points(store.trial(1, 0).id)
    assert (stored.step, stored.samples, stored.metric) == (24, 768, 1.5)
    assert (stored.seconds, stored.gradient_noise_scale) == (1.5, 1.5)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"steps": 10**20}, "step must be a whole number from 0"),
        ({"steps": 10.5}, "steps must be a whole number, but got 10.5"),
        ({"seconds": -1}, "seconds must be a number from 0"),
        ({"metric": None}, "metric must be a number, but got None"),
    ],
)
def test_an_impossible_number_is_refused_where_it_is_reported(url, wrong, message):
    with hpo.ask_tell(parse_study(SPEC), url) as study, study.ask() as trial:
        with pytest.raises(FigureError, match=message):
            trial.report(**{"epochs": 1, "metric": 0.9, "steps": 10} | wrong)
        assert trial.report(epochs=1, metric=0.9, steps=10)


def test_a_point_with_more_steps_than_the_database_can_hold_is_refused(store):
    asked = ask_tell_study_of(store)
    number = asked.ask("key", "holder", 60).number
    with pytest.raises(FigureError, match="step must be a whole number"):
        asked.report(number, "key", [point(10**20, 0.9)], 60)


def test_a_trial_goes_to_another_when_its_holder_fell_silent_and_ends_once(store, monkeypatch):
    monkeypatch.setattr(ask_tell_study, "LOOK_SECONDS", 0.0)
    study = ask_tell_study_of(store)
    first = study.ask("first", "one", 0.05)
    point = ConvergencePoint(1, 32, 0.1, 1.0, 1.0, 1.0, 1.0, 0.1, 32)
    study.report(first.number, "first", [point], 0.05)
    threading.Event().wait(0.1)
    second = study.ask("second", "two", 60)
    assert (second.number, second.job) == (first.number, first.job)
    with pytest.raises(TrialLostError, match="no longer yours"):
        study.report(first.number, "first", [point], 60)
    with pytest.raises(TrialLostError):
        study.end(first.number, "first", [point])
    assert study.end(second.number, "second", state="failed", reason="mine").reason == "mine"
    assert study.end(second.number, "second", [point]).reason == "mine"
    assert any(event.kind == "vanished" for event in store.events(study_id=1))


def test_a_new_desk_gives_holders_the_time_to_come_back(store, monkeypatch):
    monkeypatch.setattr(ask_tell_study, "LOOK_SECONDS", 0.0)
    held = ask_tell_study_of(store).ask("first", "one", 0.4)
    threading.Event().wait(0.5)  # the server was away for longer than the lease
    study = ask_tell_study_of(store)
    assert study.ask("second", "two", 60).number != held.number
    assert not study.report(held.number, "first", [], 60).stop
    threading.Event().wait(0.5)
    assert study.ask("third", "three", 60).number not in (held.number, None)


def test_asking_waits_for_those_that_run_and_two_desks_keep_the_budget(store, url):
    with Store.open(url) as other_store:
        study, other = ask_tell_study_of(store), ask_tell_study_of(other_store)
        asked = [(study, other)[n % 2].ask(f"key {n}", "me", 60) for n in range(30)]
        held = [each.number for each in asked if each.number is not None]
        # the repetitions of a rung depend on its explorations
        assert sorted(held) == list(range(len(held))) and 8 <= len(held) < 12
        waiting = asked[-1]
        assert not waiting.ended and waiting.wait_seconds > 0 and "depend on" in waiting.message
        for n, each in enumerate(asked):
            if each.number is not None:
                (other, study)[n % 2].end(each.number, f"key {n}", state="censored")
        while (more := other.ask(f"more {len(held)}", "me", 60)).number is not None:
            held.append(more.number)
            study.end(more.number, f"more {len(held) - 1}", state="censored")
        assert more.ended and sorted(held) == list(range(12))


def test_a_study_that_is_cancelled_stops_its_trials(store):
    study = ask_tell_study_of(store)
    asked = study.ask("first", "one", 60)
    store.request_cancel(1)
    verdict = study.report(asked.number, "first", [], 60)
    assert (verdict.state, verdict.stop) == ("queued", True) and "cancelled" in verdict.reason
    assert store.trial(1, asked.number).state is TrialState.QUEUED
    with pytest.raises(Exception, match="is cancelled: its trials cannot be requested"):
        study.ask("second", "one", 60)


def test_trials_that_all_fail_end_the_study(store):
    study = ask_tell_study_of(store)
    for number in range(4):
        asked = study.ask(f"key {number}", "me", 60)
        study.end(asked.number, f"key {number}", state="failed", reason="no data")
    with pytest.raises(TuningError, match=r"first 4 trials all failed.*no data"):
        study.ask("key 4", "me", 60)
    assert store.study("bowl").state is StudyState.FAILED


def test_a_budget_of_samples_ends_the_study(store):
    spec = parse_study(SPEC)
    made = store.submit_study(
        NewStudy(
            name="bowl",
            workload=spec.workload,
            metric="loss",
            threshold=0.05,
            higher_is_better=False,
            spec=SPEC,
            max_samples=100,
            for_agents=True,
        )
    )
    study = AskTellStudy(store, made.study)
    first, second = study.ask("first", "me", 60), study.ask("second", "me", 60)
    point = ConvergencePoint(4, 128, 0.25, 1.0, 1.0, 1.0, 1.0, 0.1, 32)
    study.end(first.number, "first", [point])
    assert study.ask("third", "me", 60).ended
    verdict = study.report(second.number, "second", [], 60)
    assert verdict.stop and "100 samples is spent" in verdict.reason
    assert study.ask("fourth", "me", 60).ended
    assert store.study("bowl").state is StudyState.FINISHED


def test_a_budget_of_samples_ends_the_study_while_its_trials_train(store):
    spec = parse_study(SPEC)
    made = enter_study(store, spec)
    limited = dataclasses.replace(made, max_samples=1000)
    study, other = AskTellStudy(store, limited), AskTellStudy(store, limited)
    first, second = study.ask("first", "me", 60), study.ask("second", "me", 60)
    assert not study.report(first.number, "first", [point(16, 0.9)], 60).stop
    at_target = study.report(second.number, "second", [point(20, 0.04)], 60)
    assert not at_target.stop  # its client ends it, although the budget is spent
    assert other.ask("third", "me", 60).ended
    assert study.end(second.number, "second").state is TrialState.REACHED
    verdict = study.report(first.number, "first", [point(17, 0.9)], 60)
    assert verdict.state == "queued" and "1,000 samples is spent" in verdict.reason


@pytest.mark.parametrize("metric", [0.04, math.nan])
def test_a_trial_at_its_target_or_without_a_metric_is_not_pruned(store, metric):
    """At a milestone that half of the others passed with a better metric."""
    study = ask_tell_study_of(store)
    for number in range(3):
        asked = study.ask(f"key {number}", "me", 60)
        points = [point(step, 0.06) for step in (100, 200, 300)]
        study.report(asked.number, f"key {number}", points, 60)
        study.end(asked.number, f"key {number}")
    asked = study.ask("poor", "me", 60)
    poor = [point(40, 0.5), point(200, 0.5)]
    assert study.report(asked.number, "poor", poor, 60).state == "pruned"
    asked = study.ask("last", "me", 60)
    for points in ([point(40, 0.5), point(200, metric)], [point(300, 0.7)]):
        assert not study.report(asked.number, "last", points, 60).stop
    ended = study.end(asked.number, "last").state
    assert ended is (TrialState.DIVERGED if math.isnan(metric) else TrialState.REACHED)


def test_a_trial_that_trained_all_its_epochs_is_not_pruned(store):
    """By a sampler whose looks are limited; its client has ended the training as well."""
    study = ask_tell_study_of(store, SPEC.replace("seeds: 2", "sampler: forecast"))
    asked = study.ask("first", "me", 60)
    batch = asked.job.global_batch_size
    points = [point(512 // batch * epoch, 5.0 - epoch / 1000, batch) for epoch in (1, 2, 30)]
    assert not study.report(asked.number, "first", points, 60).stop
    assert study.end(asked.number, "first").state is TrialState.CENSORED


@pytest.mark.parametrize("sampler", ["random", "qmc", "tpe"])
def test_processes_that_start_together_train_different_settings(store, sampler):
    text = SPEC.replace("seeds: 2", f"sampler: {sampler}").replace("[32, 64]", "[32]")
    enter_study(store, parse_study(text))
    studies = [ask_tell_study_of(store, text) for _ in range(3)]
    for turn in range(4):
        held = [study.ask(f"{turn} {n}", "me", 60).number for n, study in enumerate(studies)]
        for n, (study, number) in enumerate(zip(studies, held, strict=True)):
            study.end(number, f"{turn} {n}", [point(16, 0.5 + number / 100)])
    rates = [trial.settings["learning_rate"] for trial in store.trials(1)]
    assert len(rates) == len(set(rates)) == 12


@pytest.fixture(params=["random", "forecast"])
def design(request, store):
    """A study with the settings of its first four trials, which are evenly spread if one process asks for them."""
    text = (
        SPEC.replace("seeds: 2", f"sampler: {request.param}")
        .replace("[32, 64]", "[32]")
        .replace("weight_decay: 0", "momentum: {choice: [0.5, 0.9], role: scaled}")
    )
    alone = ask_tell_study_of(store, text.replace("bowl", "alone"))
    return text, [tuned(alone.ask(f"{n}", "me", 60)) for n in range(4)]


def tuned(asked):
    return asked.job.settings.learning_rate, asked.job.settings.momentum


def test_the_initial_design_is_completed_while_another_process_adds_trials(store, design):
    text, expected = design
    study, other = ask_tell_study_of(store, text), ask_tell_study_of(store, text)
    found, others = [], []
    for turn in range(4):
        found.append(tuned(study.ask(f"mine {turn}", "me", 60)))
        others.append(tuned(other.ask(f"other {turn}", "me", 60)))
    assert found == expected
    assert len({*found, *others}) == 8


def test_processes_that_begin_the_initial_design_at_once_share_it(store, design, monkeypatch):
    """The other one adds its first trial after this one has chosen the same."""
    text, expected = design
    study, other = ask_tell_study_of(store, text), ask_tell_study_of(store, text)
    found, choose = [], study._sweep.next

    def choose_and_wait():
        chosen = choose()
        if not found:
            found.append(tuned(other.ask("other", "me", 60)))
        return chosen

    monkeypatch.setattr(study._sweep, "next", choose_and_wait)
    found += [tuned(study.ask(f"mine {turn}", "me", 60)) for turn in range(3)]
    assert sorted(found) == sorted(expected)
    assert tuned(other.ask("last", "me", 60)) not in found


def test_a_sampler_of_a_plug_in_need_not_queue_an_initial_design(store, monkeypatch):
    monkeypatch.delattr(LadderSampler, "queue_rest_of")
    study, other = ask_tell_study_of(store), ask_tell_study_of(store)
    asked = [each.ask(f"key {n}", "me", 60) for n, each in enumerate((study, other, study))]
    assert [each.number for each in asked] == [0, 1, 2]


def test_two_trials_that_swapped_their_states_are_read_again(store):
    text = SPEC.replace("trials: 12", "trials: 2").replace("[32, 64]", "[32]")
    study = ask_tell_study_of(store, text)
    first, second = study.ask("first", "me", 60), study.ask("second", "me", 60)
    study.release(second.number, "second")
    other = ask_tell_study_of(store, text)
    assert other.ask("third", "me", 60).number == second.number
    other.release(first.number, "first")
    assert study.ask("fourth", "me", 60).number == first.number


def test_a_state_that_is_told_keeps_the_figures_of_the_curve(store):
    best = SPEC.replace("at_most: 0.05", "best_within: {epochs: 30}").replace(
        ", epochs_per_trial: 30", ""
    )
    study = ask_tell_study_of(store, best)
    for key, state in (("first", None), ("second", "censored"), ("third", "diverged")):
        asked = study.ask(key, "me", 60)
        points = [point(16 * epoch, metric) for epoch, metric in ((1, 0.3), (20, 0.1), (30, 0.2))]
        study.end(asked.number, key, points, state=state)
    inferred, censored, diverged = store.trials(1)
    assert (censored.state, censored.reason) == (inferred.state, inferred.reason)
    assert [parse_study(best).question.need(trial) for trial in (inferred, censored)] == [0.1, 0.1]
    assert (diverged.state, diverged.best_metric) == (TrialState.DIVERGED, 0.1)


def test_a_trial_that_reached_its_target_cannot_be_told_to_be_censored(store):
    study = ask_tell_study_of(store)
    asked = study.ask("first", "me", 60)
    with pytest.raises(FigureError, match="must not be censored, because the evaluation after 1"):
        study.end(asked.number, "first", [point(16, 0.04)], state="censored")
    assert study.end(asked.number, "first", [point(16, 0.04)]).state is TrialState.REACHED


def test_the_end_of_a_reassigned_trial_is_that_of_its_new_training(store):
    study = ask_tell_study_of(store)
    asked = study.ask("first", "me", 60)
    study.report(asked.number, "first", [point(step, 3 / step) for step in (4, 8, 12)], 60)
    study.release(asked.number, "first")
    assert study.ask("second", "other", 60).number == asked.number
    study.report(asked.number, "second", [point(3, 2.0)], 60)
    ended = study.end(asked.number, "second", [point(6, 5.0)], state="diverged", reason="blew up")
    assert (ended.steps, ended.samples, ended.final_metric) == (6, 192, 5.0)
    assert [each.step for each in store.points(ended.id)] == [3, 6]


def test_a_finished_study_with_a_larger_budget_hands_out_more_trials(url):
    for trials, expected in ((2, 2), (4, 2), (4, 0)):
        with hpo.ask_tell(
            parse_study(SPEC.replace("trials: 12", f"trials: {trials}")), url
        ) as study:
            asked = 0
            while (trial := study.ask()) is not None:
                asked += 1
                with trial:
                    trial.report(epochs=1, metric=0.04, steps=10)
        stored = hpo.read_study("bowl", url).study
        assert (asked, stored.budget_trials, stored.state) == (
            expected,
            trials,
            StudyState.FINISHED,
        )


def test_a_finished_study_that_two_processes_reopen_keeps_its_running_trials(store):
    study = ask_tell_study_of(store, SPEC.replace("trials: 12", "trials: 2"))
    for key in ("first", "second"):
        asked = study.ask(key, "me", 60)
        study.end(asked.number, key, [point(16, 0.04, asked.job.global_batch_size)])
    store.update_spec(1, SPEC.replace("trials: 12", "trials: 4"), None, 4)
    finished = store.study("bowl")
    assert finished.state is StudyState.FINISHED
    reopened, late = AskTellStudy(store, finished), AskTellStudy(store, finished)
    reopened.reopen()
    asked = reopened.ask("third", "me", 60)
    late.reopen()
    assert store.study("bowl").state is StudyState.RUNNING
    assert not reopened.report(asked.number, "third", [], 60).stop


def test_a_run_of_the_study_waits_for_those_who_train_and_then_fences_them_off(store, url):
    study = ask_tell_study_of(store)
    asked = study.ask("first", "me", 0.3)
    with pytest.raises(TuningError, match="already running study 'bowl'"):
        hpo.run_study(parse_study(SPEC), url)
    threading.Event().wait(0.4)
    assert hpo.run_study(parse_study(SPEC), url).complete
    with pytest.raises(TrialLostError):
        study.report(asked.number, "first", [], 60)


class _Channel:
    """Counts signs of life."""

    def __init__(self):
        self.beats, self.lost = 0, False

    def report(self, number, key, points, lease_seconds):
        from hpo.ask_and_tell.messages import ReportVerdict

        self.beats += 1
        if self.lost:
            raise TrialLostError("lost")
        return ReportVerdict()

    def end(self, *args, **kwargs):
        raise AssertionError("a lost trial is not told")


def job():
    from hpo.study.jobs import training_job
    from search_spaces.settings import TrainingSettings

    return training_job(parse_study(SPEC), TrainingSettings(normalization_batch_size=1), 32, 0)


def test_the_lease_lasts_while_an_evaluation_takes_long_and_a_loss_is_told():
    channel = _Channel()
    trial = AskedTrial(channel, "key", Asked(number=0, job=job()), lease_seconds=0.2)
    threading.Event().wait(0.5)
    assert channel.beats >= 4 and not trial.should_stop
    channel.lost = True
    threading.Event().wait(0.2)
    assert trial.should_stop and trial.stop_reason == "lost"
    with pytest.raises(TrialLostError):
        trial.report(epochs=1, steps=1, metric=1.0)
    with pytest.raises(TrialLostError):
        trial.tell()
    beats = channel.beats
    threading.Event().wait(0.2)
    assert channel.beats == beats


@pytest.mark.parametrize(
    ("metrics", "state", "epochs_to_target"),
    [
        ([0.5, 0.04, 0.6], "reached", 2.0),
        ([0.5, 0.4], "censored", None),
        ([0.5, math.nan, 0.04], "diverged", None),
        ([0.04, math.inf], "reached", 1.0),
    ],
)
def test_how_points_end_a_training(metrics, state, epochs_to_target):
    target = parse_study(SPEC).target
    points = [
        ConvergencePoint(n, 32 * n, float(n), 0.1 * n, 0, 0, metric, 0.1, 32)
        for n, metric in enumerate(metrics, 1)
    ]
    outcome = outcome_of(points, target)
    assert (outcome.state, outcome.epochs_to_target) == (state, epochs_to_target)
    assert outcome.best_metric == min(each for each in metrics if math.isfinite(each))
    assert outcome_of([], target) is None


@pytest.mark.parametrize(
    ("evaluations", "best"),
    [
        ([10, 20], 0.05),
        ([18, 22], 1 / 18),  # the later one is beyond the budget
        ([10, 40], 0.1),
        ([40], None),
        ([20.05], 1 / 20.05),  # with the update that ends the budget
    ],
)
def test_an_evaluation_beyond_a_fixed_budget_does_not_count(url, evaluations, best):
    text = SPEC.replace("at_most: 0.05", "best_within: {epochs: 20}")
    text = text.replace(", epochs_per_trial: 30", "") + "sampler: tpe\n"
    with hpo.ask_tell(parse_study(text), url) as study, study.ask() as trial:
        for epochs in evaluations:
            steps = math.ceil(epochs * 512 / trial.global_batch_size)
            trial.report(epochs=epochs, metric=1 / epochs, steps=steps)
    read = hpo.read_study("bowl", url)
    (ended,) = read.trials
    assert (ended.state, ended.epochs) == (TrialState.CENSORED, evaluations[-1])
    assert ended.best_metric == (None if best is None else pytest.approx(best))
    assert read.spec.question.need(ended) == ended.best_metric


PROGRAM = """\
import math, sys, hpo
speed = 1 / (1 + math.log(float(sys.argv[1]) / 0.1) ** 2)
if sys.argv[2] == "exits":
    raise SystemExit("no such data set")
for epoch in range(1, 31):
    hpo.report(epochs=epoch, top1=1 - math.exp(-epoch * speed))
    if hpo.should_stop():
        break
"""
OF_A_PROGRAM = """\
name: programs
workload: program
program:
  command: ["{python}", train.py, "{{learning_rate}}", "{{fault}}", --seed, "{{seed}}", "{{global_batch_size}}"]
  train_samples: 640
  report: {{metrics: {{top1: true}}}}
target: {{metric: top1, at_least: 0.95}}
ladder: [16, 32]
search:
  learning_rate: {{log_uniform: [0.01, 1.0], role: scaled}}
  fault: {{choice: [none, exits], role: shared}}
budget: {{trials: 6, epochs_per_trial: 30}}
seeds: 2
"""


def test_a_program_is_trained_by_the_same_calls(url, tmp_path):
    """With a setting of its own, which a repetition has as well; a program that fails is a failed trial."""
    (tmp_path / "train.py").write_text(PROGRAM)
    (tmp_path / "study.yaml").write_text(OF_A_PROGRAM.format(python=sys.executable))
    with hpo.ask_tell(tmp_path / "study.yaml", url) as study:
        done = TrialAgent(study, "programs", AgentOptions(tmp_path / ".hpo")).run()
    trials = hpo.read_study("programs", url).trials
    assert done.trials == len(trials) == 6 and done.ended.get("reached", 0) >= 1
    assert {t.state for t in trials if t.settings["fault"] == "exits"} <= {TrialState.FAILED}
    assert any("exit code 1" in t.reason for t in trials if t.state is TrialState.FAILED) or all(
        t.settings["fault"] == "none" for t in trials
    )


@pytest.mark.parametrize(("name", "moved"), [("my bowl", True), ("7", False), ("..", False)])
def test_files_that_an_earlier_version_of_an_agent_kept_are_moved(url, tmp_path, name, moved):
    """Unless they may be those of another study, whose id is the name."""
    earlier = tmp_path / "trials" / quote(name, safe="") / "0"
    (earlier / "checkpoint").mkdir(parents=True)
    (earlier / "checkpoint" / "at-20").write_text("weights")
    with hpo.ask_tell(parse_study(SPEC), url) as study:
        TrialAgent(study, name, AgentOptions(tmp_path, trials=1)).run()
    now = agent_folder(tmp_path, name) / "0"
    assert (now / "checkpoint" / "at-20").exists() == moved
    assert earlier.exists() != moved
