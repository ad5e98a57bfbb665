"""What every database must do behind the Store: one class, inherited once for each database.

A subclass gives a ``url`` fixture: a new, empty database.
"""

from __future__ import annotations

import dataclasses
import math
import random
import signal
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from columns_contract import ColumnsContract
from queue_contract import QueueContract
from sample_images_contract import SampleImagesContract
from service_contract import ServiceContract
from sqlalchemy import event, func, select
from store_samples import (
    COST,
    OTHER_SETTINGS,
    SETTINGS,
    forecast_plan,
    make_forecast,
    make_points,
    make_study,
    make_trials,
    new_outcome,
    new_plan,
    sweep,
)
from trial_lease_contract import TrialLeaseContract

from storage.errors import Conflict, InvalidRecord, NotFound, StoreUnavailable
from storage.records import (
    CalibrationRow,
    ConvergencePoint,
    Law,
    NewTrial,
    PlanKind,
    SettingForecast,
    Study,
    StudyState,
    TrialResult,
    TrialState,
    Trust,
)
from storage.schema import tables
from storage.store import Store

REACHED = TrialResult(
    state=TrialState.REACHED,
    epochs_to_target=4.5,
    epochs=5.0,
    steps=500,
    seconds=12.5,
    best_metric=0.97,
    final_metric=0.96,
    reason="target reached",
    resolution_epochs=0.5,
)
OF_NO_STUDY = ("tokens", "workers", "throughputs", "sessions", "quarantine")
OF_RUNNING = ("trial_leases",)  # of studies that run, which are not deleted
CENSORED = TrialResult(state=TrialState.CENSORED, epochs=40.0)


class StoreContract(
    SampleImagesContract, QueueContract, TrialLeaseContract, ServiceContract, ColumnsContract
):
    @pytest.fixture
    def store(self, url):
        with Store.open(url) as store:
            yield store

    @pytest.fixture
    def study(self, store) -> Study:
        return make_study(store)

    # opening and closing

    def test_what_was_written_is_there_after_opening_again(self, url):
        with Store.open(url) as store:
            study = make_study(store)
        with Store.open(url) as store:
            assert store.study("digits") == study

    def test_closed_store_refuses_work(self, store):
        store.close()
        store.close()
        with pytest.raises(StoreUnavailable, match="was closed; open it again"):
            store.studies()

    # studies

    def test_study_round_trip(self, store, study):
        assert (study.name, study.state, study.message) == ("digits", StudyState.QUEUED, "")
        assert (study.workload, study.metric, study.threshold) == ("resnet", "top1", 0.96)
        assert study.higher_is_better is True
        assert study.spec == "name: digits\n"
        assert store.study("digits") == study
        other = make_study(store, "other")
        assert store.studies() == [study, other]
        assert (store.study_by_id(study.id), store.study_by_id(other.id)) == (study, other)
        with pytest.raises(NotFound, match="no study with id 99"):
            store.study_by_id(99)

    def test_times_are_utc(self, study):
        assert study.created_at.tzinfo is UTC
        assert abs(datetime.now(UTC) - study.created_at) < timedelta(minutes=1)

    def test_creating_again_returns_the_study_and_another_spec_is_a_conflict(self, store, study):
        assert make_study(store) == study
        with pytest.raises(
            Conflict, match="'digits' exists with another spec; give this one another name"
        ):
            make_study(store, spec="name: digits\nseeds: 3\n")
        assert store.studies() == [study]

    def test_unknown_study_names_the_nearest(self, store):
        with pytest.raises(NotFound, match="there are no studies yet"):
            store.study("digits")
        make_study(store)
        make_study(store, "cifar")
        with pytest.raises(NotFound, match="no study 'digit'; did you mean 'digits'"):
            store.study("digit")
        with pytest.raises(NotFound, match="the studies are cifar, digits"):
            store.study("xxxxx")

    def test_state_and_spec_change(self, store, study):
        store.set_study_state(study.id, StudyState.FAILED, "no data")
        assert study.folder == ""
        store.update_spec(study.id, "name: digits\nseeds: 3\n", "/studies")
        store.update_spec(
            study.id, "name: digits\nseeds: 3\n"
        )  # as the web service does, which has no folder
        changed = store.study("digits")
        assert changed.folder == "/studies"
        assert (changed.state, changed.message) == (StudyState.FAILED, "no data")
        assert changed.spec.endswith("seeds: 3\n")
        assert changed.updated_at > study.updated_at
        assert changed.created_at == study.created_at
        with pytest.raises(NotFound, match="no study with id 99"):
            store.set_study_state(99, StudyState.FAILED)
        with pytest.raises(NotFound, match="no study with id 99"):
            store.update_spec(99, "")

    @pytest.mark.parametrize("state", list(StudyState))
    def test_only_a_finished_study_is_reopened(self, store, study, state):
        store.set_study_state(study.id, state, "said")
        store.reopen_study(study.id, "more trials")
        found = store.study("digits")
        expected = (state, "said")
        if state is StudyState.FINISHED:
            expected = (StudyState.INTERRUPTED, "more trials")
        assert (found.state, found.message) == expected
        with pytest.raises(NotFound, match="no study with id 99"):
            store.reopen_study(99, "")

    def test_unknown_state_is_refused(self, store, study):
        with pytest.raises(InvalidRecord, match="finnished"):
            store.set_study_state(study.id, "finnished")
        assert store.study("digits").state is StudyState.QUEUED

    # trials

    def test_trials_are_numbered_on_within_their_study(self, store, study):
        other = make_study(store, "other")
        first, second = make_trials(store, study, 16, 32), make_trials(store, study, 64)
        assert [trial.number for trial in [*first, *second]] == [0, 1, 2]
        assert [trial.number for trial in make_trials(store, other, 16)] == [0]
        assert [trial.global_batch_size for trial in store.trials(study.id)] == [16, 32, 64]
        assert {trial.state for trial in first} == {TrialState.QUEUED}
        assert len({trial.id for trial in [*first, *second]}) == 3
        assert store.add_trials(study.id, []) == []

    def test_settings_come_back_as_they_were_given(self, store, study):
        new = [
            NewTrial(global_batch_size=16, seed=2**40, settings=SETTINGS),
            NewTrial(global_batch_size=16, seed=-1, settings=OTHER_SETTINGS),
        ]
        plain, other = store.add_trials(study.id, new)
        assert plain.settings == SETTINGS
        assert plain.seed == 2**40
        assert other.settings == OTHER_SETTINGS
        assert other.settings["nesterov"] is True
        assert other.settings["decay_milestones"] == [30.0, 60.1, 80.0]
        assert store.trial(study.id, 1) == other

    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            (
                {**SETTINGS, "learning_rat": 0.1},
                "no setting 'learning_rat'; did you mean 'learning_rate'",
            ),
            ({"learning_rate": 0.1}, "complete, but got none for optimizer, momentum"),
            ({**SETTINGS, "momentum": None}, "momentum"),
            ({**SETTINGS, "momentum": object()}, "does not accept this value"),
        ],
    )
    def test_wrong_settings_are_refused_and_nothing_is_added(self, store, study, settings, message):
        good = NewTrial(global_batch_size=16, seed=0, settings=SETTINGS)
        with pytest.raises(InvalidRecord, match=message):
            store.add_trials(
                study.id, [good, NewTrial(global_batch_size=16, seed=0, settings=settings)]
            )
        assert store.trials(study.id) == []

    def test_the_same_training_is_not_added_twice(self, store, study):
        first = NewTrial(global_batch_size=16, seed=7, settings=SETTINGS)
        store.add_trials(study.id, [first])
        raced = replace(first, purpose="race")
        whole = replace(first, settings={**SETTINGS, "warmup_epochs": 0})
        others = [
            replace(first, seed=8),
            replace(first, global_batch_size=32),
            replace(first, settings={**SETTINGS, "learning_rate": 0.2}),
            replace(first, settings={**SETTINGS, "own": {"layers": 3}}),
        ]
        for again in (first, raced, whole):
            with pytest.raises(Conflict, match=r"trial 0 trains .* batch size 16 with seed 7"):
                store.add_trials(study.id, [replace(first, seed=9), again])
        with pytest.raises(Conflict, match="another of the trials to be added trains"):
            store.add_trials(study.id, [others[0], replace(others[0], purpose="race")])
        assert len(store.trials(study.id)) == 1
        assert len(store.add_trials(study.id, others)) == 4
        flat = replace(first, settings={**SETTINGS, "own": {"layers": 3.0}})
        with pytest.raises(Conflict, match="trial 4 trains"):
            store.lease_trial(study.id, flat, known=5, key="a", holder="h", lease_seconds=60)
        # what was trained elsewhere is evidence of its own, and another study another matter
        imported = replace(first, purpose="imported")
        assert len(store.add_trials(study.id, [imported, imported])) == 2
        store.add_trials(make_study(store, "other").id, [first])

    def test_batch_of_no_samples_is_refused(self, store, study):
        with pytest.raises(InvalidRecord, match="global_batch_size_positive"):
            make_trials(store, study, 0)

    def test_trials_need_a_study(self, store):
        with pytest.raises(NotFound, match="no study with id 7"):
            store.add_trials(7, [NewTrial(global_batch_size=16, seed=0, settings=SETTINGS)])

    def test_start_is_all_or_none(self, store, study):
        first, second = make_trials(store, study, 16, 16)
        store.start_trials([first.id])
        started = store.trial(study.id, 0)
        assert started.state is TrialState.RUNNING
        assert started.started_at.tzinfo is UTC
        with pytest.raises(Conflict, match=r"1 of the trials .* running or finished"):
            store.start_trials([first.id, second.id])
        with pytest.raises(NotFound, match="no trial with id 99"):
            store.start_trials([second.id, 99])
        assert store.trial(study.id, 1).state is TrialState.QUEUED

    def test_finish_writes_the_result_and_the_last_points(self, store, study):
        (trial,) = make_trials(store, study, 16)
        store.start_trials([trial.id])
        store.record({trial.id: make_points(3)})
        store.finish_trial(trial.id, REACHED, make_points(2, first_step=3))
        finished = store.trial(study.id, 0)
        for field in dataclasses.fields(REACHED):
            assert getattr(finished, field.name) == getattr(REACHED, field.name)
        assert finished.finished_at >= finished.started_at
        assert store.points(trial.id) == make_points(5)

    def test_the_newest_points_come_with_the_number_of_points(self, store, study):
        trials = make_trials(store, study, 16, 16, 16)
        store.record({trials[1].id: make_points(3), trials[0].id: make_points(5)})
        newest, counts = store.newest_points([trials[2].id, trials[1].id, trials[0].id, 99])
        assert counts == {trials[0].id: 5, trials[1].id: 3}
        whole = store.convergence([trials[0].id, trials[1].id])
        for column in dataclasses.fields(whole):
            expected = [getattr(whole.of(trials[at].id), column.name)[-1] for at in (0, 1)]
            np.testing.assert_array_equal(getattr(newest, column.name), expected)
        assert store.point_counts([trials[2].id, trials[1].id, trials[0].id, 99]) == counts
        none, counts = store.newest_points([])
        assert (len(none), counts) == (0, {})

    def test_finishing_again_is_a_conflict_and_changes_nothing(self, store, study):
        (trial,) = make_trials(store, study, 16)
        store.finish_trial(trial.id, REACHED)
        finished = store.trial(study.id, 0)
        with pytest.raises(Conflict, match="already finished, as 'reached'"):
            store.finish_trial(trial.id, CENSORED, make_points(1))
        assert store.trial(study.id, 0) == finished
        assert store.points(trial.id) == []
        with pytest.raises(NotFound, match="no trial with id 99"):
            store.finish_trial(99, REACHED)

    def test_a_result_whose_points_fail_is_not_written(self, store, study):
        (trial,) = make_trials(store, study, 16)
        broken = dataclasses.replace(make_points(1)[0], samples=None)
        with pytest.raises(InvalidRecord, match="samples"):
            store.finish_trial(trial.id, REACHED, [*make_points(3, first_step=1), broken])
        assert store.trial(study.id, 0) == trial
        assert store.points(trial.id) == []

    def test_requeue_gives_back_the_running_trials_of_one_study(self, store, study):
        trials = make_trials(store, study, 16, 16, 16)
        others = make_trials(store, make_study(store, "other"), 16)
        store.start_trials([trial.id for trial in [*trials, *others]])
        store.record({trials[1].id: make_points(2)})
        store.finish_trial(trials[0].id, REACHED)
        requeued = store.requeue_running(study.id)
        assert [(trial.number, trial.state, trial.started_at) for trial in requeued] == [
            (1, TrialState.QUEUED, None),
            (2, TrialState.QUEUED, None),
        ]
        assert store.trial(study.id, 0).state is TrialState.REACHED
        assert store.trial(others[0].study_id, 0).state is TrialState.RUNNING
        assert store.points(trials[1].id) == make_points(2)
        assert store.requeue_running(study.id) == []
        with pytest.raises(NotFound):
            store.requeue_running(99)

    def test_trials_by_state_and_purpose(self, store, study):
        make_trials(store, study, 16, 16, 32)
        make_trials(store, study, 16, purpose="validation")
        store.finish_trial(store.trial(study.id, 1).id, CENSORED)

        def numbers(*args, **kwargs):
            return [trial.number for trial in store.trials(study.id, *args, **kwargs)]

        assert numbers() == [0, 1, 2, 3]
        assert numbers([TrialState.CENSORED]) == [1]
        assert numbers({TrialState.QUEUED, TrialState.CENSORED}, purpose="sweep") == [0, 1, 2]
        assert numbers(purpose="validation") == [3]
        assert numbers([]) == []
        assert store.counts(study.id) == {
            16: {TrialState.QUEUED: 2, TrialState.CENSORED: 1},
            32: {TrialState.QUEUED: 1},
        }
        assert store.counts(study.id, purpose="validation") == {16: {TrialState.QUEUED: 1}}
        with pytest.raises(NotFound, match=r"no trial 4 in the study .* numbered 0 to 3"):
            store.trial(study.id, 4)

    # convergence

    def test_recording_a_step_again_replaces_it(self, store, study):
        (trial,) = make_trials(store, study, 16)
        points = make_points(4)
        store.record({trial.id: points[:3]})
        again = [dataclasses.replace(points[2], loss=9.0, samples=7), points[3]]
        store.record({trial.id: again})
        assert store.points(trial.id) == [*points[:2], *again]
        store.record({})
        store.record({trial.id: []})
        assert len(store.points(trial.id)) == 4

    def test_recording_is_all_or_none(self, store, study):
        (trial,) = make_trials(store, study, 16)
        with pytest.raises(NotFound, match="no trial with id 98, 99"):
            store.record({trial.id: make_points(3), 99: make_points(1), 98: make_points(1)})
        broken = dataclasses.replace(make_points(1)[0], learning_rate=None)
        with pytest.raises(InvalidRecord, match="learning_rate"):
            store.record({trial.id: [*make_points(3, first_step=1), broken]})
        assert store.points(trial.id) == []
        with pytest.raises(NotFound):
            store.points(99)

    def test_numbers_of_numpy_are_stored_as_numbers(self, store, study):
        (trial,) = make_trials(store, study, 16)
        part = np.float32(0.5)
        store.record(
            {
                trial.id: [
                    ConvergencePoint(np.int64(3), 48, part, 1.0, part, part, part, 0.1, 16, part)
                ]
            }
        )
        (point,) = store.points(trial.id)
        assert point == ConvergencePoint(3, 48, 0.5, 1.0, 0.5, 0.5, 0.5, 0.1, 16, 0.5)
        with pytest.raises(InvalidRecord, match="must hold numbers"):
            store.record({trial.id: [dataclasses.replace(point, loss="low")]})

    def test_what_is_no_number_comes_back(self, store, study):
        (trial,) = make_trials(store, study, 16)
        nan, inf = math.nan, math.inf
        store.record(
            {trial.id: [ConvergencePoint(2**33, 2**40, 1.0, 2.0, nan, inf, -inf, 0.1, 32)]}
        )
        (point,) = store.points(trial.id)
        assert (point.step, point.samples) == (2**33, 2**40)
        assert math.isnan(point.train_loss)
        assert (point.loss, point.metric) == (inf, -inf)
        assert point.gradient_noise_scale is None
        assert np.isnan(store.convergence([trial.id]).gradient_noise_scale).all()
        store.finish_trial(
            trial.id, dataclasses.replace(CENSORED, best_metric=nan, final_metric=-inf)
        )
        finished = store.trial(study.id, 0)
        assert finished.best_metric is None
        assert finished.final_metric == -inf

    def test_convergence_in_columns(self, store, study):
        trials = make_trials(store, study, 16, 32, 64, 128)
        lengths = dict(zip((trial.id for trial in trials), (3, 0, 5, 2), strict=True))
        store.record({trial_id: make_points(length)[::-1] for trial_id, length in lengths.items()})
        wanted = [trials[2].id, trials[0].id, trials[1].id, trials[2].id]
        columns = store.convergence(wanted)
        assert len(columns) == 8
        np.testing.assert_array_equal(columns.trial_id, [trials[0].id] * 3 + [trials[2].id] * 5)
        for name in (field.name for field in dataclasses.fields(ConvergencePoint)):
            values = getattr(columns, name)
            expected = [getattr(point, name) for point in make_points(3) + make_points(5)]
            np.testing.assert_array_equal(values, expected)
            assert values.dtype.kind == ("i" if isinstance(expected[0], int) else "f")
            assert values.flags.c_contiguous
        np.testing.assert_array_equal(columns.of(trials[2].id).samples, [0, 32, 64, 96, 128])
        assert len(columns.of(trials[1].id)) == 0
        assert len(store.convergence([])) == 0
        assert store.convergence([]).loss.dtype == np.float64

    @pytest.mark.medium
    def test_more_trials_than_fit_one_statement(self, store, study):
        trials = make_trials(store, study, *[16] * 2500)
        store.start_trials([trial.id for trial in trials])
        store.record({trial.id: make_points(2) for trial in trials})
        columns = store.convergence([trial.id for trial in reversed(trials)])
        np.testing.assert_array_equal(
            columns.trial_id, np.repeat([trial.id for trial in trials], 2)
        )
        np.testing.assert_array_equal(columns.step, np.tile([0, 1], 2500))
        assert [trial.number for trial in store.requeue_running(study.id)] == list(range(2500))

    def test_points_are_written_in_bulk(self, store, study):
        """One transaction and one INSERT, however many points."""
        trials = make_trials(store, study, 16, 16, 16)
        statements = []
        engine = store._database.engine
        event.listen(
            engine,
            "before_cursor_execute",
            lambda _, cursor, statement, *rest: statements.append((statement.split()[0], rest[-1])),
        )
        store.record({trial.id: make_points(500) for trial in trials})
        assert [name for name, _ in statements].count("INSERT") == 1
        assert len(statements) <= 3

    # forecasts, plans, outcomes

    def test_forecast_round_trip(self, store, study):
        forecast = make_forecast(store, study)
        bare = make_forecast(store, study, settings=(), laws=(), trust="low")
        make_forecast(store, make_study(store, "other"))
        assert store.forecasts(study.id) == [forecast, bare]
        assert [setting.name for setting in forecast.settings] == ["warmup_epochs", "learning_rate"]
        assert forecast.laws[1] == Law("epochs", "critical_batch_size", 250.0, 150.0, 400.0)
        assert (forecast.trust, bare.trust) == (Trust.MEDIUM, Trust.LOW)
        assert forecast.created_at.tzinfo is UTC

    @pytest.mark.parametrize(
        ("changes", "error", "message"),
        [
            ({"study_id": 99}, NotFound, "no study with id 99"),
            (
                {"settings": (SettingForecast("momentum", 0.9, 0.95, 0.8),)},
                InvalidRecord,
                "interval",
            ),
            (
                {"laws": (Law("a", "b", 1, 0, 2), Law("a", "b", 1, 0, 2))},
                Conflict,
                "exists already",
            ),
            ({"epochs_low": 14.0}, InvalidRecord, "epochs_interval"),
            ({"epochs_median": math.nan}, InvalidRecord, "epochs_median"),
            ({"trust": "full"}, InvalidRecord, "full"),
        ],
    )
    def test_wrong_forecast_is_refused(self, store, study, changes, error, message):
        with pytest.raises(error, match=message):
            make_forecast(store, study, **changes)
        assert store.forecasts(study.id) == []

    def test_plan_round_trip(self, store, study):
        forecast = make_forecast(store, study)
        plan = store.add_plan(forecast_plan(study, forecast))
        baseline = store.add_plan(new_plan(study))
        assert store.plan(plan.id) == plan
        assert store.plans(study.id) == [plan, baseline]
        for given, stored in ((forecast_plan(study, forecast), plan), (new_plan(study), baseline)):
            for field in dataclasses.fields(given):
                assert getattr(stored, field.name) == getattr(given, field.name), field.name
        assert plan.kind is PlanKind.FORECAST
        with pytest.raises(NotFound, match=f"no plan 99; the newest are {baseline.id}, {plan.id}"):
            store.plan(99)

    def test_what_a_terminal_would_obey_is_stored_as_its_escape(self, store, study):
        """The client that trains gives the reason, and others read it in their terminals."""
        (trial,) = make_trials(store, study, 16)
        store.start_trials([trial.id])
        said, kept = "a\x1b]0;b\x07\r\n\tc\u202e\x00é", "a\\x1b]0;b\\x07\\r\n\tc\\u202e\\x00é"
        store.finish_trial(trial.id, TrialResult(state=TrialState.FAILED, reason=said))
        store.add_event(study.id, "failed", said)
        assert store.trials(study.id)[0].reason == kept
        assert store.events(study_id=study.id)[-1].message == kept
        store.set_study_state(study.id, StudyState.FAILED, said)
        assert store.study(study.name).message == kept

    @pytest.mark.medium
    @pytest.mark.parametrize(
        ("changes", "error", "message"),
        [
            ({"study_id": 99}, NotFound, "no study with id 99"),
            ({"forecast_id": 99}, NotFound, "no forecast with id 99"),
            ({"kind": PlanKind.FORECAST}, InvalidRecord, "forecast_predicts"),
            ({"workers": 0}, InvalidRecord, "sizes_positive"),
            ({"epochs_low": 5.0, "epochs_high": 4.0}, InvalidRecord, "epochs_interval"),
            ({"seconds_low": 5.0, "seconds_high": 4.0}, InvalidRecord, "seconds_interval"),
            ({"settings": {}}, InvalidRecord, "settings must be complete"),
        ],
    )
    def test_wrong_plan_is_refused(self, store, study, changes, error, message):
        with pytest.raises(error, match=message):
            store.add_plan(new_plan(study, **changes))
        assert store.plans(study.id) == []

    def test_plan_and_forecast_are_of_one_study(self, store, study):
        forecast = make_forecast(store, make_study(store, "other"))
        with pytest.raises(InvalidRecord, match="to the same study"):
            store.add_plan(forecast_plan(study, forecast))

    def test_outcome_round_trip(self, store, study):
        plan = store.add_plan(new_plan(study))
        given = [
            new_outcome(plan.id),
            new_outcome(
                plan.id, state=TrialState.DIVERGED, epochs_to_target=None, best_metric=None
            ),
        ]
        stored = [store.add_outcome(new) for new in given]
        assert store.outcomes(plan.id) == stored
        for new, outcome in zip(given, stored, strict=True):
            for field in dataclasses.fields(new):
                assert getattr(outcome, field.name) == getattr(new, field.name), field.name
        for call in (lambda: store.outcomes(99), lambda: store.add_outcome(new_outcome(99))):
            with pytest.raises(NotFound, match="no plan 99"):
                call()

    def test_calibration_joins_plans_and_the_means_of_their_outcomes(self, store, study):
        forecast = make_forecast(store, study)
        plan = store.add_plan(forecast_plan(study, forecast))
        baseline = store.add_plan(new_plan(study))
        store.add_plan(new_plan(study, kind=PlanKind.NO_SCALING))  # never launched: no row
        imported = store.add_plan(
            new_plan(study, kind=PlanKind.IMPORTED)
        )  # nothing was forecast for it: no row
        store.add_outcome(new_outcome(imported.id, epochs_to_target=5.0))
        other = make_study(store, "other")
        foreign = store.add_plan(forecast_plan(other, make_forecast(store, other)))
        for epochs, seconds in ((9.0, 60.0), (12.0, 90.0)):
            store.add_outcome(new_outcome(plan.id, epochs_to_target=epochs, seconds=seconds))
        store.add_outcome(new_outcome(baseline.id, epochs_to_target=20.0))
        store.add_outcome(new_outcome(foreign.id, state=TrialState.DIVERGED, epochs_to_target=None))

        row, of_baseline, of_other = store.calibration()
        assert row == CalibrationRow(
            plan_id=plan.id,
            study="digits",
            kind=PlanKind.FORECAST,
            trust=Trust.MEDIUM,
            machine="local",
            global_batch_size=512,
            predicted_epochs_median=10.0,
            predicted_epochs_low=8.0,
            predicted_epochs_high=13.0,
            observed_epochs_mean=10.5,
            runs=2,
            reached=2,
            inside=True,
            predicted_seconds_median=60.0,
            predicted_seconds_low=50.0,
            predicted_seconds_high=80.0,
            observed_seconds_mean=75.0,
            inside_seconds=True,
        )
        assert (of_baseline.observed_epochs_mean, of_baseline.inside) == (20.0, None)
        assert (of_other.runs, of_other.reached, of_other.inside) == (1, 0, False)
        assert of_other.observed_epochs_mean is None
        assert store.calibration(other.id) == [of_other]

    def test_deleting_a_study_deletes_all_that_follows_from_it(self, store, study):
        kept = make_study(store, "other")
        for owner in (study, kept):
            (trial,) = make_trials(store, owner, 16)
            store.record({trial.id: make_points(2)})
            plan = store.add_plan(forecast_plan(owner, make_forecast(store, owner)))
            store.add_sample_images(store.add_outcome(new_outcome(plan.id)).id, {"title": "shown"})
            store.add_event(owner.id, "started", "it started")
            store.keep_cost(owner.id, COST)
            store.keep_fit(owner.id, "f", "laws")
            assert store.take_plan_run(plan.id, 0, "w", seconds=60) is None

        def sizes():
            with store._database.read() as connection:
                return {
                    table.name: connection.execute(select(func.count()).select_from(table)).scalar()
                    for table in tables.metadata.sorted_tables
                    if table.name not in (*OF_NO_STUDY, *OF_RUNNING)
                }

        before = sizes()
        store.delete_study(study.id)
        assert sizes() == {name: size // 2 for name, size in before.items()}
        assert all(size % 2 == 0 and size > 0 for size in before.values())

    # many at once

    @pytest.mark.medium
    def test_threads_share_a_store(self, store, study):
        def work(seed: int) -> None:
            new = NewTrial(global_batch_size=16, seed=seed, settings=SETTINGS)
            (trial,) = store.add_trials(study.id, [new])
            store.start_trials([trial.id])
            store.record({trial.id: make_points(20)})
            store.finish_trial(trial.id, REACHED)
            assert store.points(trial.id) == make_points(20)

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(work, range(40)))
        trials = store.trials(study.id, [TrialState.REACHED])
        assert [trial.number for trial in trials] == list(range(40))
        assert sorted(trial.seed for trial in trials) == list(range(40))

    def test_threads_that_create_one_study_get_the_same(self, store):
        with ThreadPoolExecutor(8) as pool:
            studies = list(pool.map(lambda _: make_study(store), range(16)))
        assert studies == [store.study("digits")] * 16

    @pytest.mark.slow
    def test_processes_share_a_database(self, url, store, study):
        workers = [sweep(url, study.name, 25, 100) for _ in range(2)]
        printed = [
            int(line) for worker in workers for line in worker.communicate(timeout=60)[0].split()
        ]
        assert [worker.returncode for worker in workers] == [0, 0]
        assert sorted(printed) == list(range(50))
        trials = store.trials(study.id, [TrialState.REACHED])
        assert [trial.epochs_to_target for trial in trials] == list(range(1, 51))
        assert len(store.convergence([trial.id for trial in trials])) == 50 * 101

    @pytest.mark.medium
    @pytest.mark.parametrize(
        "seed", [0, *(pytest.param(more, marks=pytest.mark.slow) for more in (1, 2))]
    )
    def test_a_killed_process_leaves_every_finished_trial(self, url, study, seed):
        worker = sweep(url, study.name, 100_000, 2000)
        printed = [int(worker.stdout.readline()) for _ in range(random.Random(seed).randint(3, 12))]
        worker.send_signal(signal.SIGKILL)
        printed += map(int, worker.communicate()[0].split())
        with Store.open(url) as store:
            finished = store.trials(study.id, [TrialState.REACHED])
            assert {trial.number for trial in finished} >= set(printed)
            assert len(finished) <= len(printed) + 1
            for trial in finished:
                assert trial.epochs_to_target == trial.number + 1
                assert len(store.points(trial.id)) == 2001
            for trial in store.trials(study.id, [TrialState.QUEUED, TrialState.RUNNING]):
                assert len(store.points(trial.id)) in (0, 2000)
            assert len(store.requeue_running(study.id)) <= 1
            make_trials(store, study, 16)
