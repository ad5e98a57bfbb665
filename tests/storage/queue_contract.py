"""What every database must do with the queue and its leases; part of the store's contract.

A subclass gives a ``url`` fixture: a new, empty database.
"""

from __future__ import annotations

import subprocess
from datetime import UTC, datetime, timedelta

import pytest
from store_samples import (
    claimers,
    make_forecast,
    make_points,
    make_study,
    make_trials,
    new_plan,
    submit,
)

from storage.errors import Conflict, InvalidRecord, LeaseLost, NotFound
from storage.records import StudyState, TrialResult, TrialState
from storage.store import Store

REACHED = TrialResult(state=TrialState.REACHED, epochs_to_target=4.5)


class HandClock:
    """A clock that is moved by hand, as a clock that jumps."""

    def __init__(self) -> None:
        self.time = datetime(2026, 1, 1, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.time

    def move(self, seconds: float) -> None:
        self.time += timedelta(seconds=seconds)


class QueueContract:
    @pytest.fixture
    def clock(self):
        return HandClock()

    @pytest.fixture
    def queue(self, url, clock):
        """A store whose time is moved by hand."""
        with Store.open(url, clock=clock) as store:
            yield store

    # submitting

    def test_a_submission_keeps_what_it_was_given(self, store):
        made = submit(
            store,
            "digits",
            owner="ann",
            priority=3,
            idempotency_key="k",
            max_samples=2**40,
            max_accelerator_hours=0.5,
        )
        study = made.study
        assert made.created
        assert (study.owner, study.priority, study.max_samples, study.max_accelerator_hours) == (
            "ann",
            3,
            2**40,
            0.5,
        )
        assert (study.state, study.attempts, study.cancel_requested, study.lease_worker) == (
            StudyState.QUEUED,
            0,
            False,
            None,
        )
        assert abs(datetime.now(UTC) - study.queued_at) < timedelta(minutes=1)
        assert store.study("digits") == study

    def test_the_same_submission_again_is_one_study(self, store):
        first = submit(store, "digits", owner="ann", idempotency_key="k")
        again = submit(store, "digits", owner="ann", idempotency_key="k")
        assert (again.study, again.created) == (first.study, False)
        unkeyed = submit(store, "plain", owner="ann")
        assert submit(store, "plain", owner="ann") == type(unkeyed)(
            study=unkeyed.study, created=False
        )
        assert len(store.studies()) == 2

    @pytest.mark.parametrize(
        ("name", "changes", "message"),
        [
            (
                "digits",
                {"spec": "other"},
                "'digits' exists with another spec; give this one another name",
            ),
            ("digits", {"owner": "bob"}, "belongs to another owner; give this one another name"),
            (
                "digits",
                {"idempotency_key": "other"},
                "from an earlier submission; give this one another name",
            ),
            ("letters", {}, "key 'k' was used for the study 'digits'"),
        ],
    )
    def test_another_submission_of_that_name_or_key_is_a_conflict(
        self, store, name, changes, message
    ):
        values = {"owner": "ann", "idempotency_key": "k"}
        submit(store, "digits", **values)
        with pytest.raises(Conflict, match=message):
            submit(store, name, **values | changes)
        assert [study.name for study in store.studies()] == ["digits"]

    def test_owners_have_keys_of_their_own(self, store):
        assert submit(store, "a", owner="ann", idempotency_key="1").created
        assert submit(store, "b", owner="bob", idempotency_key="1").created

    def test_what_an_owner_has_in_the_queue_is_counted(self, store):
        for name, owner in (("a", "ann"), ("b", "ann"), ("c", "bob")):
            submit(store, name, owner=owner)
        assert (
            store.queued_of("ann"),
            store.queued_of("ann", besides="b"),
            store.queued_of("cleo"),
        ) == (2, 1, 0)
        store.claim_study("w", lease_seconds=60)
        assert store.queued_of("ann") == 1

    # claiming

    def test_the_highest_priority_goes_first_and_then_the_oldest(self, queue, clock):
        for name, priority in (("old", 0), ("new", 0), ("urgent", 5), ("later", -1)):
            submit(queue, name, priority=priority)
            clock.move(1)
        leases = [queue.claim_study("w", lease_seconds=60) for _ in range(5)]
        assert [lease.study.name for lease in leases[:4]] == ["urgent", "old", "new", "later"]
        assert leases[4] is None
        first = leases[0]
        assert (first.worker, first.generation, first.taken_over) == ("w", 1, False)
        assert first.expires_at == clock() + timedelta(seconds=60)
        assert (first.study.state, first.study.attempts, first.study.lease_worker) == (
            StudyState.RUNNING,
            1,
            "w",
        )

    def test_a_study_that_its_own_process_runs_is_not_claimed(self, store):
        study = make_study(store)
        assert store.claim_study("w", lease_seconds=60) is None
        store.set_study_state(study.id, StudyState.RUNNING)
        assert store.claim_study("w", lease_seconds=60) is None

    def test_an_owner_has_so_many_studies_at_once(self, queue, clock):
        for number in range(3):
            submit(queue, f"ann {number}", owner="ann", priority=9)
        submit(queue, "bob 0", owner="bob")
        names = [
            lease.study.name if lease else None
            for lease in (
                queue.claim_study(f"w{number}", lease_seconds=60, per_owner=2)
                for number in range(4)
            )
        ]
        assert names == ["ann 0", "bob 0", "ann 1", None]
        assert queue.claim_study("w5", lease_seconds=60, per_owner=3).study.name == "ann 2"
        clock.move(61)  # what expired does not count, and may be taken over
        assert queue.claim_study("w6", lease_seconds=60, per_owner=1).study.name == "ann 0"
        assert queue.claim_study("w7", lease_seconds=60, per_owner=1).study.name == "bob 0"
        assert queue.claim_study("w8", lease_seconds=60, per_owner=1) is None

    def test_owners_take_turns_and_a_priority_orders_one_s_own(self, queue, clock):
        for number in range(3):
            submit(queue, f"ann {number}", owner="ann", priority=number)
        for name, owner, priority in (
            ("bob 0", "bob", -5),
            ("bob 1", "bob", -5),
            ("cat 0", "cat", 10),
        ):
            submit(queue, name, owner=owner, priority=priority)

        def ended():
            clock.move(1)
            lease = queue.claim_study("w", lease_seconds=60)
            queue.release_study(lease, StudyState.FINISHED)
            return lease.study.name

        served = [ended() for _ in range(4)]
        assert sorted(served[:3]) == ["ann 2", "bob 0", "cat 0"]
        submit(queue, "cat 1", owner="cat", priority=10)
        submit(
            queue, "granted", owner="ann", priority=11
        )  # which it takes an administrator to give
        served += [ended() for _ in range(4)]
        assert served[3:5] == ["ann 1", "granted"]
        assert sorted(served[5:7]) == ["bob 1", "cat 1"] and served[7] == "ann 0"

    def test_a_worker_more_goes_to_whom_fewer_work_for(self, queue, clock):
        for owner in ("ann", "bob"):
            for number in range(3):
                submit(queue, f"{owner} {number}", owner=owner)
        names = []
        for number in range(4):
            clock.move(1)
            names.append(queue.claim_study(f"w{number}", lease_seconds=60).study.name)
        assert names == ["ann 0", "bob 0", "ann 1", "bob 1"]

    @pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf")])
    def test_a_lease_needs_a_length(self, store, seconds):
        with pytest.raises(InvalidRecord, match="more than 0 seconds"):
            store.claim_study("w", lease_seconds=seconds)

    @pytest.mark.medium
    def test_processes_that_claim_at_once_never_get_the_same_study(self, url, store):
        for number in range(60):
            submit(store, f"study {number}", owner=f"owner {number % 3}")
        printed = [
            worker.communicate(timeout=60)
            for worker in claimers(url, 2, "drain", stderr=subprocess.PIPE)
        ]
        assert [errors for _, errors in printed] == [""] * 2
        claimed = [line for lines, _ in printed for line in lines.split("\n") if line]
        assert sorted(claimed) == sorted(f"study {number}" for number in range(60))
        assert {study.state for study in store.studies()} == {StudyState.FINISHED}
        assert {study.attempts for study in store.studies()} == {1}

    @pytest.mark.slow
    def test_the_limit_of_an_owner_holds_between_processes(self, url, store):
        for number in range(12):
            submit(store, f"study {number}", owner=f"owner {number % 2}")
        for worker in claimers(url, 2, "hold"):
            worker.communicate(timeout=60)
        running = [study.owner for study in store.studies() if study.state is StudyState.RUNNING]
        assert sorted(running) == ["owner 0"] * 2 + ["owner 1"] * 2

    def test_trials_of_a_study_that_is_cancelled_after_its_worker_died_run_no_more(
        self, queue, clock
    ):
        for name in ("at once", "later"):
            study = submit(queue, name, owner=name).study
            lease = queue.claim_study("w", lease_seconds=60)
            (trial,) = make_trials(queue, study, 16)
            queue.leased(lease).start_trials([trial.id])
            if name == "later":  # asked while the worker seemed to live
                queue.request_cancel(study.id)
            clock.move(61)
            if name == "at once":
                queue.request_cancel(study.id)
            else:
                assert queue.claim_study("other", lease_seconds=60) is None
            assert queue.study(name).state is StudyState.CANCELLED
            assert [each.state for each in queue.trials(study.id)] == [TrialState.QUEUED]

    # runs of plans

    def test_one_process_runs_a_plan_with_a_seed(self, queue, clock):
        study = make_study(queue)
        plan = queue.add_plan(new_plan(study)).id
        assert queue.take_plan_run(plan, 1, "a:1", seconds=60) is None
        assert queue.take_plan_run(plan, 1, "b:1", seconds=60) == "a:1"
        assert queue.take_plan_run(plan, 2, "b:1", seconds=60) is None
        clock.move(40)
        assert queue.take_plan_run(plan, 1, "a:1", seconds=60) is None  # for longer
        clock.move(40)
        assert queue.take_plan_run(plan, 1, "b:1", seconds=60) == "a:1"
        assert queue.take_plan_run(plan, 1, "b:1", seconds=60, instead_of="a:1") is None
        queue.release_plan_run(plan, 1, "a:1")
        assert queue.take_plan_run(plan, 1, "a:1", seconds=60) == "b:1"
        queue.release_plan_run(plan, 1, "b:1")
        assert queue.take_plan_run(plan, 1, "a:1", seconds=60) is None
        clock.move(61)
        assert queue.take_plan_run(plan, 1, "c:1", seconds=60) is None
        with pytest.raises(NotFound):
            queue.take_plan_run(99, 1, "a:1", seconds=60)

    # fits

    def test_a_fit_is_kept_by_its_fingerprint_and_the_oldest_go(self, queue, clock):
        study = make_study(queue)
        for number in range(26):
            clock.move(1)
            queue.keep_fit(study.id, f"print {number}", f"laws {number}")
        assert [queue.fit(study.id, f"print {number}") for number in range(26)] == [
            None,
            None,
            *(f"laws {number}" for number in range(2, 26)),
        ]
        queue.keep_fit(study.id, "print 5", "better laws")
        assert queue.fit(study.id, "print 5") == "better laws"
        assert queue.fit(99, "print 5") is None
        with pytest.raises(NotFound):
            queue.keep_fit(99, "print", "laws")

    # renewing and releasing

    def test_renewing_moves_the_end_and_shows_the_study_as_it_stands(self, queue, clock):
        submit(queue, "digits")
        lease = queue.claim_study("w", lease_seconds=60)
        clock.move(50)
        queue.request_cancel(lease.study.id)
        renewed = queue.renew_lease(lease, lease_seconds=60)
        assert renewed.expires_at == clock() + timedelta(seconds=60)
        assert renewed.study.cancel_requested
        assert (renewed.generation, renewed.worker) == (lease.generation, "w")
        clock.move(59)
        assert queue.claim_study("other", lease_seconds=60) is None

    def test_releasing_ends_the_lease(self, store):
        submit(store, "digits")
        lease = store.claim_study("w", lease_seconds=60)
        study = store.release_study(lease, StudyState.FINISHED, "target reached")
        assert (study.state, study.message, study.lease_worker, study.lease_expires_at) == (
            StudyState.FINISHED,
            "target reached",
            None,
            None,
        )
        for late in (
            lambda: store.release_study(lease, StudyState.FAILED),
            lambda: store.renew_lease(lease, lease_seconds=60),
            lambda: store.leased(lease).update_spec(study.id, "x"),
        ):
            with pytest.raises(
                LeaseLost, match=r"worker 'w' no longer holds the study 'digits': .* 'finished' now"
            ):
                late()
        assert store.study("digits") == study
        assert store.claim_study("w", lease_seconds=60) is None

    def test_a_released_study_can_go_back_to_the_queue(self, store):
        submit(store, "digits")
        store.release_study(
            store.claim_study("w", lease_seconds=60),
            StudyState.QUEUED,
            "the worker is shutting down",
        )
        again = store.claim_study("v", lease_seconds=60)
        assert (again.taken_over, again.generation, again.study.attempts) == (False, 2, 2)
        with pytest.raises(InvalidRecord, match="cannot stay running"):
            store.release_study(again, StudyState.RUNNING)

    @pytest.mark.parametrize("state", [StudyState.QUEUED, StudyState.INTERRUPTED])
    def test_a_cancellation_that_was_accepted_outlasts_the_worker(self, store, state):
        study = submit(store, "digits").study
        lease = store.claim_study("w", lease_seconds=60)
        assert store.request_cancel(study.id).cancel_requested
        released = store.release_study(lease, state, "the worker is shutting down")
        assert (released.state, released.message, released.cancel_requested) == (
            StudyState.CANCELLED,
            "cancelled when its worker stopped",
            False,
        )
        assert store.claim_study("v", lease_seconds=60) is None
        store.requeue_study(study.id)
        assert store.claim_study("v", lease_seconds=60).study.id == study.id

    def test_a_cancellation_does_not_change_how_a_study_ended(self, store):
        submit(store, "digits")
        lease = store.claim_study("w", lease_seconds=60)
        store.request_cancel(lease.study.id)
        ended = store.release_study(lease, StudyState.FINISHED, "target reached")
        assert (ended.state, ended.message) == (StudyState.FINISHED, "target reached")

    # fencing

    def test_whoever_was_taken_over_writes_nothing_more(self, queue, clock):
        """Every writing method, under a lease that another worker holds now."""
        study = submit(queue, "digits").study
        old = queue.claim_study("old", lease_seconds=60)
        with queue.leased(old) as writer:
            (trial,) = make_trials(writer, study, 16)
            writer.start_trials([trial.id])
            forecast = make_forecast(writer, study)
        clock.move(61)
        new = queue.claim_study("new", lease_seconds=60)
        assert (new.taken_over, new.generation, new.study.attempts) == (True, 2, 2)
        before = everything(queue, study.id)
        for write in (
            lambda: make_trials(writer, study, 16),
            lambda: writer.start_trials([trial.id]),
            lambda: writer.record({trial.id: make_points(1)}),
            lambda: writer.finish_trial(trial.id, REACHED),
            lambda: writer.requeue_running(study.id),
            lambda: writer.set_study_state(study.id, StudyState.FINISHED),
            lambda: writer.reopen_study(study.id, ""),
            lambda: writer.update_spec(study.id, "x"),
            lambda: make_forecast(writer, study),
            lambda: writer.add_plan(new_plan(study)),
            lambda: writer.add_event(study.id, "started", ""),
            lambda: writer.renew_lease(old, lease_seconds=60),
            lambda: writer.release_study(old, StudyState.FINISHED),
        ):
            with pytest.raises(
                LeaseLost, match=r"worker 'old' no longer .* 'new' has taken it over; stop"
            ):
                write()
        assert everything(queue, study.id) == before
        assert before[-1] == [forecast]
        queue.leased(new).finish_trial(trial.id, REACHED)

    def test_an_expired_lease_holds_until_somebody_takes_it(self, queue, clock):
        """A worker that slept longer than its lease, as a laptop does, goes on where nobody wanted its study."""
        study = submit(queue, "digits").study
        lease = queue.claim_study("w", lease_seconds=60)
        clock.move(1000)
        make_trials(queue.leased(lease), study, 16)
        lease = queue.renew_lease(lease, lease_seconds=60)
        assert queue.claim_study("other", lease_seconds=60) is None

    def test_a_worker_of_the_same_name_is_fenced_off_too(self, queue, clock):
        submit(queue, "digits")
        before = queue.claim_study("w", lease_seconds=60)
        clock.move(61)
        queue.claim_study("w", lease_seconds=60)
        with pytest.raises(LeaseLost):
            queue.renew_lease(before, lease_seconds=60)

    def test_a_deleted_study_takes_its_lease_with_it(self, queue, clock):
        """SQLite gives the id of a deleted study to the next one."""
        submit(queue, "digits")
        lease = queue.claim_study("w", lease_seconds=60)
        clock.move(61)
        queue.delete_study(lease.study.id)
        submit(queue, "other")
        other = queue.claim_study("w", lease_seconds=60)
        assert other.generation == lease.generation
        with pytest.raises(LeaseLost, match="'digits': the study was deleted"):
            queue.leased(lease).update_spec(other.study.id, "x")

    # clocks that jump

    def test_a_clock_that_jumps_forward_costs_at_most_a_takeover(self, queue, clock):
        study = submit(queue, "digits").study
        first = queue.claim_study("first", lease_seconds=60)
        (trial,) = make_trials(queue.leased(first), study, 16)
        clock.move(3600)  # the first is well, and seems dead
        second = queue.claim_study("second", lease_seconds=60)
        assert second.taken_over
        with pytest.raises(LeaseLost):
            queue.leased(first).finish_trial(trial.id, REACHED)
        queue.leased(second).finish_trial(trial.id, REACHED)
        clock.move(-3600)  # put right again: the lease seems to last for an hour and a minute
        assert queue.claim_study("third", lease_seconds=60) is None
        assert queue.renew_lease(second, lease_seconds=60).generation == second.generation

    def test_a_clock_that_jumps_backward_delays_a_takeover_by_one_lease_at_most(self, queue, clock):
        submit(queue, "digits")
        lease = queue.claim_study("dies", lease_seconds=60)
        clock.move(-3600)
        assert queue.claim_study("other", lease_seconds=60) is None
        assert queue.study("digits").lease_expires_at == clock() + timedelta(seconds=60)
        assert (
            queue.renew_lease(lease, lease_seconds=60).generation == lease.generation
        )  # if it is alive after all
        clock.move(61)
        assert queue.claim_study("other", lease_seconds=60).taken_over

    # cancelling, queueing again, deleting

    @pytest.mark.parametrize(
        "state", [StudyState.QUEUED, StudyState.INTERRUPTED, StudyState.FAILED]
    )
    def test_what_nobody_runs_is_cancelled_at_once(self, store, state):
        study = submit(store, "digits").study
        store.set_study_state(study.id, state)
        assert store.request_cancel(study.id).state is StudyState.CANCELLED
        assert store.claim_study("w", lease_seconds=60) is None
        with pytest.raises(NotFound, match="no study with id 99"):
            store.request_cancel(99)

    def test_what_a_worker_runs_is_cancelled_by_the_worker(self, store):
        submit(store, "digits")
        lease = store.claim_study("w", lease_seconds=60)
        asked = store.request_cancel(lease.study.id)
        assert (asked.state, asked.cancel_requested) == (StudyState.RUNNING, True)
        done = store.release_study(lease, StudyState.CANCELLED)
        assert (done.state, done.cancel_requested) == (StudyState.CANCELLED, False)
        assert store.request_cancel(done.id) == done

    def test_what_a_dead_worker_ran_is_cancelled_without_it(self, queue, clock):
        """Whether the cancellation is requested before or after its lease has expired."""
        before, after = (submit(queue, name).study for name in ("before", "after"))
        for _ in range(2):
            lease = queue.claim_study("dies", lease_seconds=60)
            ended, running, _ = make_trials(queue, lease.study, 16, 32, 64)
            queue.start_trials([ended.id, running.id])
            queue.finish_trial(ended.id, REACHED)
        queue.request_cancel(before.id)
        clock.move(61)
        assert queue.request_cancel(after.id).state is StudyState.CANCELLED
        assert queue.claim_study("w", lease_seconds=60) is None
        cancelled = queue.study("before")
        assert (cancelled.state, cancelled.message) == (
            StudyState.CANCELLED,
            "cancelled after its worker stopped responding",
        )
        for study in (
            before,
            after,
        ):  # what ran has ended with its worker, and waits for a study that is resumed
            assert [trial.state for trial in queue.trials(study.id)] == [
                TrialState.REACHED,
                TrialState.QUEUED,
                TrialState.QUEUED,
            ]

    def test_a_finished_study_is_not_cancelled(self, store):
        study = submit(store, "digits").study
        store.set_study_state(study.id, StudyState.FINISHED)
        assert store.request_cancel(study.id).state is StudyState.FINISHED

    @pytest.mark.parametrize(
        "state",
        [StudyState.FINISHED, StudyState.FAILED, StudyState.INTERRUPTED, StudyState.CANCELLED],
    )
    def test_what_has_ended_can_be_queued_again(self, store, state):
        submit(store, "digits")
        store.release_study(store.claim_study("w", lease_seconds=60), state, "ended")
        study = store.study("digits")
        queued = store.requeue_study(study.id)
        assert (queued.state, queued.message, queued.attempts) == (StudyState.QUEUED, "", 0)
        assert store.requeue_study(study.id) == queued
        assert store.claim_study("w", lease_seconds=60).study.name == "digits"
        with pytest.raises(Conflict, match="'digits' is running; cancel it first"):
            store.requeue_study(study.id)

    def test_a_study_made_outside_the_queue_can_be_queued(self, store):
        study = make_study(store)
        store.requeue_study(study.id)
        assert store.claim_study("w", lease_seconds=60).study.id == study.id

    def test_failed_trials_become_new_ones(self, queue):
        study = submit(queue, "one").study
        made = make_trials(queue, study, 16, 32, 64, 128)
        imported = make_trials(queue, study, 16, purpose="imported")
        ends = (TrialState.FAILED, TrialState.DIVERGED, TrialState.FAILED)
        for trial, state in zip([*made[:3], *imported], [*ends, TrialState.FAILED], strict=True):
            queue.finish_trial(trial.id, TrialResult(state=state, reason="why"), make_points(3))
        again = queue.retry_failed(study.id)
        assert again == [made[0], made[2]] == queue.trials(study.id, [TrialState.QUEUED])[:2]
        assert [len(queue.points(trial.id)) for trial in made] == [0, 3, 0, 0]
        assert queue.trial(study.id, imported[0].number).state is TrialState.FAILED
        assert queue.retry_failed(study.id) == []
        with pytest.raises(NotFound):
            queue.retry_failed(study.id + 1)

    def test_an_agent_that_told_of_a_failure_cannot_end_the_trial_again(self, queue):
        study = submit(queue, "one").study
        (trial,) = make_trials(queue, study, 16)
        failed = TrialResult(state=TrialState.FAILED)
        queue.lease_trial(study.id, 0, known=1, key="k", holder="h", lease_seconds=60)
        queue.finish_leased_trial(study.id, 0, "k", failed)
        queue.set_study_state(study.id, StudyState.FAILED)
        assert queue.retry_failed(study.id) == [trial]
        with pytest.raises(LeaseLost):
            queue.finish_leased_trial(study.id, 0, "k", failed)

    def test_a_renamed_study_leaves_its_name_and_its_key(self, queue):
        study = submit(queue, "one", idempotency_key="key").study
        trials = make_trials(queue, study, 16)
        renamed = queue.rename_study(study.id, "two", "name: two")
        assert (renamed.id, renamed.name, renamed.spec) == (study.id, "two", "name: two")
        assert queue.study("two") == renamed and queue.trials(study.id) == trials
        assert submit(queue, "one", idempotency_key="key").created
        with pytest.raises(Conflict, match="'one' exists already"):
            queue.rename_study(study.id, "one", "name: one")
        assert queue.rename_study(study.id, "two", "name: two # again").spec.endswith("again")
        with pytest.raises(NotFound):
            queue.rename_study(study.id + 7, "three", "")

    def test_what_is_running_is_neither_renamed_nor_tried_again_but_under_its_lease(self, queue):
        study = submit(queue, "one").study
        (trial,) = make_trials(queue, study, 16)
        queue.finish_trial(trial.id, TrialResult(state=TrialState.FAILED))
        lease = queue.claim_study("worker", lease_seconds=60)
        for change in (
            lambda: queue.retry_failed(study.id),
            lambda: queue.rename_study(study.id, "two", ""),
        ):
            with pytest.raises(Conflict, match="'one' is running"):
                change()
        assert queue.leased(lease).retry_failed(study.id) == [trial]

    def test_what_is_running_is_neither_deleted_nor_set_by_others(self, queue, clock):
        study = submit(queue, "digits").study
        lease = queue.claim_study("w", lease_seconds=60)
        with pytest.raises(Conflict, match="is running"):
            queue.delete_study(study.id)
        with pytest.raises(
            Conflict, match="worker 'w' is working on the study 'digits'; cancel it first"
        ):
            queue.set_study_state(study.id, StudyState.RUNNING)
        clock.move(61)
        queue.set_study_state(study.id, StudyState.RUNNING)  # by a process outside the queue
        assert queue.claim_study("other", lease_seconds=60) is None
        with pytest.raises(LeaseLost):
            queue.renew_lease(lease, lease_seconds=60)
        queue.request_cancel(study.id)
        queue.delete_study(study.id)
        with pytest.raises(NotFound):
            queue.delete_study(study.id)


def everything(store: Store, study_id: int) -> list[object]:
    return [
        store.studies(),
        store.trials(study_id),
        store.plans(study_id),
        store.events(),
        store.convergence([trial.id for trial in store.trials(study_id)]).step.tolist(),
        store.forecasts(study_id),
    ]
