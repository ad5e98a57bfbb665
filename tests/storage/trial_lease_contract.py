"""What every database must do with trials trained by any client that asks; part of the store's contract.

A subclass gives a ``url`` fixture: a new, empty database; ``queue`` and ``clock`` are those of the queue's contract.
"""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
from store_samples import SETTINGS, make_points, make_study, make_trials, submit

from storage.errors import Conflict, InvalidRecord, LeaseLost, NotFound
from storage.records import NewTrial, StudyState, TrialResult, TrialState
from storage.store import Store

REACHED = TrialResult(state=TrialState.REACHED, epochs_to_target=4.5)
NEW = NewTrial(global_batch_size=64, seed=7, settings=SETTINGS)


def lease(store, study, what, key="k", known=0, holder="agent", seconds=30.0):
    return store.lease_trial(
        study.id, what, known=known, key=key, holder=holder, lease_seconds=seconds
    )


class TrialLeaseContract:
    def test_a_new_trial_is_made_and_leased_in_one(self, queue):
        study = make_study(queue)
        held = lease(queue, study, NEW)
        assert (held.key, held.holder, held.seconds, held.vanished) == ("k", "agent", 30.0, 0)
        assert held.trial.state is TrialState.RUNNING and held.trial.seed == 7
        assert queue.trials(study.id) == [held.trial]
        now = queue.study("digits")
        assert (now.state, now.for_agents) == (StudyState.RUNNING, True)
        assert queue.leased_trials(study.id) == [held]

    def test_the_same_key_gets_the_same_trial(self, queue, clock):
        study = make_study(queue)
        held = lease(queue, study, NEW)
        clock.move(5)
        assert lease(queue, study, NEW).trial == held.trial
        assert len(queue.trials(study.id)) == 1
        assert queue.leased_trial(study.id, "k").trial == held.trial
        assert queue.leased_trial(study.id, "other") is None

    def test_of_two_that_ask_for_one_trial_one_gets_it(self, queue):
        study = make_study(queue)
        (trial,) = make_trials(queue, study, 32)
        assert lease(queue, study, 0, "a").trial.id == trial.id
        assert lease(queue, study, 0, "b") is None
        assert lease(queue, study, NEW, "b", known=0) is None  # it has one by now
        assert lease(queue, study, NEW, "b", known=1).trial.number == 1

    def test_trials_of_another_purpose_are_not_counted(self, queue):
        study = make_study(queue)
        make_trials(queue, study, 32, 64, purpose="imported")
        assert lease(queue, study, NEW, known=0).trial.number == 2

    def test_points_are_written_with_the_lease(self, queue, clock):
        study = make_study(queue)
        held = lease(queue, study, NEW)
        clock.move(20)
        renewed = queue.renew_trial(study.id, 0, "k", lease_seconds=30, points=make_points(3))
        assert (renewed.expires_at - held.expires_at).total_seconds() == 20
        assert len(queue.points(held.trial.id)) == 3

    def test_a_new_holder_that_starts_again_leaves_no_later_points_of_the_one_before(self, queue):
        study = make_study(queue)
        trial = lease(queue, study, NEW, "a").trial
        queue.renew_trial(study.id, 0, "a", lease_seconds=30, points=make_points(8))
        queue.release_trial(study.id, 0, "a")
        lease(queue, study, 0, "b")
        slower = [replace(point, seconds=9.0 + point.seconds) for point in make_points(5)]
        queue.renew_trial(study.id, 0, "b", lease_seconds=30, points=slower[2:3])
        assert queue.points(trial.id) == [*make_points(2), slower[2]]
        queue.renew_trial(study.id, 0, "b", lease_seconds=30, points=slower[3:4])
        for repeated in (slower[2:3], slower[2:4]):  # the answer was lost
            queue.renew_trial(study.id, 0, "b", lease_seconds=30, points=repeated)
            assert queue.points(trial.id) == [*make_points(2), *slower[2:4]]
        queue.release_trial(study.id, 0, "b")
        lease(queue, study, 0, "c")
        ended = queue.finish_leased_trial(study.id, 0, "c", REACHED, make_points(2, 1))
        assert queue.points(trial.id) == make_points(3) and ended.samples == 64

    def test_an_end_may_be_sent_twice_and_counts_once(self, queue):
        study = make_study(queue)
        lease(queue, study, NEW)
        ended = queue.finish_leased_trial(study.id, 0, "k", REACHED, make_points(4))
        assert (ended.state, ended.samples) == (TrialState.REACHED, 96)
        failed = TrialResult(state=TrialState.FAILED, reason="sent again, and otherwise")
        assert queue.finish_leased_trial(study.id, 0, "k", failed, make_points(9)) == ended
        assert len(queue.points(ended.id)) == 4
        with pytest.raises(LeaseLost, match="has ended already, as 'reached'"):
            queue.renew_trial(study.id, 0, "k", lease_seconds=30)

    def test_a_silent_holder_loses_its_trial_and_writes_no_more(self, queue, clock):
        study = make_study(queue)
        lease(queue, study, NEW, "a")
        clock.move(29)
        assert queue.expire_trial_leases(study.id, 2) == []
        clock.move(2)
        (trial,) = queue.expire_trial_leases(study.id, 2)
        assert trial.state is TrialState.QUEUED and trial.started_at is None
        held = lease(queue, study, 0, "b")
        assert held.vanished == 1
        for write in (
            lambda: queue.renew_trial(study.id, 0, "a", lease_seconds=30, points=make_points(1)),
            lambda: queue.finish_leased_trial(study.id, 0, "a", REACHED),
            lambda: queue.release_trial(study.id, 0, "a"),
        ):
            with pytest.raises(LeaseLost, match="no longer yours"):
                write()
        assert queue.points(held.trial.id) == []
        assert queue.trial(study.id, 0).state is TrialState.RUNNING

    def test_a_holder_that_comes_back_before_another_goes_on(self, queue, clock):
        study = make_study(queue)
        lease(queue, study, NEW)
        clock.move(31)
        queue.expire_trial_leases(study.id, 2)
        assert (
            queue.renew_trial(study.id, 0, "k", lease_seconds=30).trial.state is TrialState.RUNNING
        )
        clock.move(31)
        queue.expire_trial_leases(study.id, 2)
        assert queue.finish_leased_trial(study.id, 0, "k", REACHED).state is TrialState.REACHED

    def test_a_trial_that_loses_its_holders_too_often_has_failed(self, queue, clock):
        study = make_study(queue)
        for number in range(3):
            assert lease(queue, study, NEW if number == 0 else 0, f"k{number}", known=0)
            clock.move(31)
            (trial,) = queue.expire_trial_leases(study.id, 2)
        assert trial.state is TrialState.FAILED
        assert "stopped responding 3 times, last agent" in trial.reason

    def test_a_trial_that_was_given_back_has_not_lost_its_holder(self, queue, clock):
        study = make_study(queue)
        lease(queue, study, NEW, "a")
        assert queue.release_trial(study.id, 0, "a").state is TrialState.QUEUED
        assert queue.release_trial(study.id, 0, "a").state is TrialState.QUEUED
        assert lease(queue, study, 0, "b").vanished == 0

    def test_a_clock_that_was_put_back_keeps_no_trial_for_longer_than_a_lease(self, queue, clock):
        study = make_study(queue)
        lease(queue, study, NEW)
        clock.move(-3600)
        assert queue.expire_trial_leases(study.id, 2) == []
        clock.move(31)
        assert len(queue.expire_trial_leases(study.id, 2)) == 1

    # beside workers

    def test_workers_leave_a_study_for_agents_alone(self, queue, clock):
        study = submit(queue, "digits", for_agents=True).study
        assert study.for_agents and queue.claim_study("w", lease_seconds=60) is None
        lease(queue, study, NEW)
        assert queue.take_study(study.id, "w", lease_seconds=60) is None
        clock.move(31)
        assert queue.claim_study("w", lease_seconds=60) is None
        taken = queue.take_study(study.id, "w", lease_seconds=60)  # `hpo run` of that study
        assert taken.study.state is StudyState.RUNNING
        with pytest.raises(Conflict, match="worker 'w' is running study 'digits'"):
            lease(queue, study, 0, "b")
        (trial,) = queue.leased(taken).requeue_running(study.id)
        with pytest.raises(LeaseLost, match="no longer yours"):
            queue.renew_trial(study.id, trial.number, "k", lease_seconds=30)

    def test_who_asks_takes_a_study_out_of_the_queue_and_from_a_silent_worker(self, queue, clock):
        study = submit(queue, "digits").study
        taken = queue.claim_study("w", lease_seconds=60)
        (trial,) = make_trials(queue, study, 32)
        queue.leased(taken).start_trials([trial.id])
        with pytest.raises(Conflict, match="worker 'w' is running"):
            lease(queue, study, NEW, known=1)
        clock.move(61)
        assert lease(queue, study, NEW, known=1).trial.number == 1
        assert queue.trial(study.id, 0).state is TrialState.QUEUED  # the worker had it
        assert queue.claim_study("w2", lease_seconds=60) is None
        with pytest.raises(LeaseLost):
            queue.renew_lease(taken, lease_seconds=60)

    @pytest.mark.parametrize(
        "state", [StudyState.FINISHED, StudyState.FAILED, StudyState.CANCELLED]
    )
    def test_trials_of_a_study_that_has_ended_cannot_be_asked_for(self, queue, state):
        study = make_study(queue)
        queue.set_study_state(study.id, state)
        with pytest.raises(Conflict, match=f"is {state}: its trials cannot be requested"):
            lease(queue, study, NEW)

    def test_what_is_not_there(self, queue):
        study = make_study(queue)
        with pytest.raises(NotFound):
            lease(queue, study, 0)
        with pytest.raises(NotFound):
            queue.renew_trial(study.id, 0, "k", lease_seconds=30)
        with pytest.raises(NotFound):
            queue.expire_trial_leases(study.id + 1, 2)
        with pytest.raises(InvalidRecord, match="more than 0 seconds"):
            lease(queue, study, NEW, seconds=0)

    def test_many_that_ask_at_once_get_a_trial_each(self, url, store):
        study = make_study(store)
        make_trials(store, study, *[32] * 12)
        got: list[int] = []

        def ask(name):
            with Store.open(url) as mine:
                for number in range(12):
                    held = lease(mine, study, number, f"{name} {number}", holder=name)
                    if held is not None:
                        got.append(held.trial.number)

        threads = [threading.Thread(target=ask, args=(f"agent {n}",)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(got) == list(range(12))

    # trials that were run elsewhere

    def test_ended_trials_are_added_with_their_points_all_or_none(self, store):
        study = make_study(store)
        new, other = (
            replace(NEW, purpose="imported"),
            TrialResult(state=TrialState.CENSORED, epochs=3.0),
        )
        added = store.add_ended_trials(study.id, [(new, REACHED, make_points(3)), (new, other, ())])
        assert [trial.state for trial in added] == [TrialState.REACHED, TrialState.CENSORED]
        assert added[0].samples == 64 and len(store.points(added[0].id)) == 3
        broken = NewTrial(global_batch_size=0, seed=0, settings=SETTINGS)
        with pytest.raises(InvalidRecord):
            store.add_ended_trials(study.id, [(new, REACHED, ()), (broken, other, ())])
        assert store.trials(study.id) == added
        assert store.add_ended_trials(study.id, []) == []
