"""What every database must do for the service itself; part of the store's contract."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime, timedelta

import pytest
from store_samples import (
    COST,
    make_points,
    make_study,
    make_trials,
    new_outcome,
    new_plan,
    submit,
)

from storage.errors import Conflict, InvalidRecord, NotFound
from storage.records import (
    NewThroughput,
    NewToken,
    PlanKind,
    StudyState,
    TrialResult,
    TrialState,
    WorkerBeat,
)

TOKEN = NewToken(name="laptop", owner="ann", digest="abc", scopes=frozenset({"read", "submit"}))
BEAT = WorkerBeat(name="host-1", host="host", pid=1, version="0.5", cores=2, accelerators=0)


def finished(epochs: float | None = None, **changes) -> TrialResult:
    return TrialResult(
        state=TrialState.REACHED if epochs else TrialState.CENSORED,
        epochs_to_target=epochs,
        **{"epochs": 40.0, "steps": 100, "seconds": 10.0} | changes,
    )


def short(study):
    """A study as a page has it: without its file."""
    return dataclasses.replace(study, spec="")


class ServiceContract:
    # pages of studies

    def test_a_page_of_studies_sums_up_their_trials(self, store, study):
        empty = make_study(store, "empty")
        trials = make_trials(store, study, 16, 16, 32, 32, 64)
        store.start_trials([trial.id for trial in trials[:4]])
        store.finish_trial(
            trials[0].id, finished(4.5), make_points(11)
        )  # the last point: 320 samples
        store.finish_trial(trials[1].id, finished(3.5, steps=100))  # no points: 100 steps of 16
        store.finish_trial(trials[2].id, finished())  # 100 steps of 32
        store.record({trials[3].id: make_points(6)})  # running: 160 samples so far
        first, second = store.page_studies()
        assert (first.study, dict(first.trials), first.best_epochs_to_target, first.samples) == (
            short(empty),
            {},
            None,
            0,
        )
        assert second.study == short(study)
        assert second.trials == {
            TrialState.REACHED: 2,
            TrialState.CENSORED: 1,
            TrialState.RUNNING: 1,
            TrialState.QUEUED: 1,
        }
        assert second.best_epochs_to_target == 3.5
        assert second.samples == 320 + 1600 + 3200 + 160
        used = store.usage(study.id)
        assert (used.samples, used.trials) == (second.samples, 5)
        assert used.accelerator_seconds == pytest.approx(30.0 + 0.5)
        assert [trial.samples for trial in store.trials(study.id)] == [320, 1600, 3200, None, None]

    def test_pages_of_studies_go_on_after_the_last(self, store):
        made = [make_study(store, f"study {number}") for number in range(5)]
        first = store.page_studies(limit=2)
        make_study(store, "newer")
        second = store.page_studies(limit=2, after=first[-1].study.id)
        third = store.page_studies(limit=2, after=second[-1].study.id)
        assert [row.study for row in (*first, *second, *third)] == [*map(short, made[::-1])]
        assert store.page_studies(after=third[-1].study.id) == []
        with pytest.raises(InvalidRecord, match="at least 1 row"):
            store.page_studies(limit=0)

    def test_studies_by_owner_state_and_name(self, store):
        submit(store, "Digits_1", owner="ann")
        submit(store, "digits-1", owner="bob")
        failed = submit(store, "100%", owner="ann").study
        store.set_study_state(failed.id, StudyState.FAILED)

        def names(**options):
            return [row.study.name for row in store.page_studies(**options)]

        assert names(owner="ann") == ["100%", "Digits_1"]
        assert names(state=StudyState.QUEUED) == ["digits-1", "Digits_1"]
        assert names(search="DIGITS") == ["digits-1", "Digits_1"]
        assert names(search="digits_") == ["Digits_1"]  # no wildcard
        assert names(search="%") == ["100%"]
        assert names(search="resnet", owner="bob", state="queued") == ["digits-1"]
        assert names(owner="' OR 1=1 --") == []

    def test_an_unknown_name_lists_a_few_studies_however_many_there_are(self, store):
        with pytest.raises(NotFound, match="there are no studies yet"):
            store.study("none")
        for number in range(25):
            make_study(store, f"study {number:02}")
        with pytest.raises(NotFound, match="did you mean 'study 07'"):
            store.study("study 077")
        with pytest.raises(NotFound) as error:
            store.study("none")
        assert str(error.value).count("study ") == 21  # the unknown one and 20 others
        assert str(error.value).endswith(", study 19, ...")

    # pages of trials

    @pytest.mark.medium
    @pytest.mark.parametrize(
        "order",
        [
            "number",
            "epochs_to_target",
            "global_batch_size",
            "learning_rate",
            "state",
            "nesterov",
            "finished_at",
            "zero_gamma",
        ],
    )
    @pytest.mark.parametrize("descending", [False, True])
    def test_pages_of_trials_are_all_trials_in_order(self, store, study, order, descending):
        for number, trial in enumerate(make_trials(store, study, *[16, 64, 32] * 5)):
            if number % 3:
                store.finish_trial(trial.id, finished(float(number % 4) or None))
        pages, after = [], None
        while page := store.page_trials(
            study.id, order=order, descending=descending, limit=4, after=after
        ):
            pages, after = [*pages, *page], page[-1].number
        every = store.trials(study.id)

        def value(trial):
            return getattr(trial, order) if hasattr(trial, order) else trial.settings[order]

        known = [trial for trial in every if value(trial) is not None]
        unknown = [trial for trial in every if value(trial) is None]
        expected = [
            *sorted(known, key=lambda trial: (value(trial), trial.number), reverse=descending),
            *(unknown[::-1] if descending else unknown),
        ]
        assert pages == expected

    def test_pages_of_some_trials_only(self, store, study):
        trials = make_trials(store, study, 16, 32, 16, 32)
        make_trials(store, make_study(store, "other"), 16)
        store.finish_trial(trials[2].id, finished(2.0))

        def numbers(**options):
            return [trial.number for trial in store.page_trials(study.id, **options)]

        assert numbers(global_batch_size=16) == [0, 2]
        assert numbers(states=[TrialState.QUEUED]) == [0, 1, 3]
        assert numbers(states=[TrialState.REACHED], global_batch_size=16) == [2]
        assert numbers(states=[]) == []
        assert store.page_trials(99) == []
        with pytest.raises(
            InvalidRecord, match="cannot be ordered by 'learning_rat'; did you mean 'learning_rate'"
        ):
            numbers(order="learning_rat")
        with pytest.raises(NotFound, match="no trial 9 in the study"):
            numbers(after=9)

    def test_usage_counts_launches_but_not_imported_ones(self, store, study):
        own, theirs = (
            store.add_plan(new_plan(study, kind=kind))
            for kind in (PlanKind.LINEAR_SCALING, PlanKind.IMPORTED)
        )
        store.add_outcome(new_outcome(own.id, seconds=10.0, workers=4))
        store.add_outcome(new_outcome(theirs.id, seconds=1e6, workers=27360))
        assert store.usage(study.id) == type(store.usage(study.id))(
            samples=0, accelerator_seconds=40.0, trials=0
        )
        with pytest.raises(NotFound):
            store.usage(99)

    # plans and outcomes of machines

    def test_plans_keep_their_machine(self, store, study):
        plan = store.add_plan(
            new_plan(
                study,
                nodes=3,
                workers=16,
                launcher="slurm",
                slot_seconds=3600.0,
                chance_in_slot=0.8,
                limited_by="network",
                details='{"a": 1}',
            )
        )
        assert (
            plan.launcher,
            plan.ranks_per_node,
            plan.slot_seconds,
            plan.chance_in_slot,
            plan.limited_by,
            plan.details,
        ) == ("slurm", 6, 3600.0, 0.8, "network", '{"a": 1}')
        plain = store.add_plan(new_plan(study, ranks_per_node=1))
        assert (plain.launcher, plain.ranks_per_node, plain.slot_seconds, plain.details) == (
            "local",
            1,
            None,
            None,
        )
        made = store.add_outcome(
            new_outcome(plan.id, restarts=2, nodes=3, samples_per_second=1e5, source="round 4")
        )
        assert (made.restarts, made.nodes, made.samples_per_second, made.source) == (
            2,
            3,
            1e5,
            "round 4",
        )
        assert store.outcomes(plan.id) == [made]

    # events

    def test_events_come_in_order_and_none_twice(self, store, study):
        first = store.add_event(study.id, "started", "it started", {"worker": "w", "cores": 2})
        second = store.add_event(None, "upgraded", "")
        third = store.add_event(study.id, "finished", "done")
        assert (first.study_name, first.data, second.study_name, second.data) == (
            "digits",
            {"worker": "w", "cores": 2},
            "",
            None,
        )
        assert abs(datetime.now(UTC) - first.at) < timedelta(minutes=1)
        assert store.events() == [first, second, third]
        assert store.events(after=first.id) == [second, third]
        assert store.events(study_id=study.id, limit=1, after=first.id) == [third]
        with pytest.raises(NotFound):
            store.add_event(99, "started", "")
        with pytest.raises(InvalidRecord, match="plain JSON"):
            store.add_event(None, "started", "", {"x": float("nan")})

    def test_the_number_of_a_deleted_event_does_not_come_again(self, store, study):
        last = store.add_event(study.id, "started", "")
        store.delete_study(study.id)
        assert store.events() == []
        assert store.add_event(None, "started", "").id > last.id

    # tokens

    def test_tokens(self, store):
        token = store.add_token(TOKEN)
        for field in dataclasses.fields(TOKEN):
            assert getattr(token, field.name) == getattr(TOKEN, field.name)
        assert (token.revoked_at, token.last_used_at) == (None, None)
        assert store.tokens_by_hashes(["abc"])["abc"] == token
        assert store.tokens_by_hashes(["ab"]) == {}
        with pytest.raises(Conflict):
            store.add_token(TOKEN)
        later = datetime.now(UTC) + timedelta(days=1)
        other = store.add_token(
            dataclasses.replace(TOKEN, owner="bob", digest="def", expires_at=later)
        )
        assert other.expires_at == later
        assert store.tokens() == [token, other]
        assert store.tokens(owner="bob") == [other]
        with pytest.raises(InvalidRecord, match="one word, but got 'read submit'"):
            store.add_token(
                dataclasses.replace(TOKEN, digest="x", scopes=frozenset({"read submit"}))
            )

    def test_a_revoked_token_stays_revoked(self, store):
        token = store.add_token(TOKEN)
        store.revoke_token(token.id)
        revoked = store.tokens_by_hashes(["abc"])["abc"]
        assert revoked.revoked_at >= token.created_at
        store.revoke_token(token.id)
        assert store.tokens_by_hashes(["abc"])["abc"] == revoked
        with pytest.raises(NotFound, match="no token with id 99"):
            store.revoke_token(99)

    def test_a_session_stands_for_its_token_until_it_ends(self, queue, clock):
        token = queue.add_token(TOKEN)
        end = clock() + timedelta(seconds=60)
        queue.add_session("digest of a session", token.id, end)
        assert queue.token_by_session("digest of a session") == token
        assert queue.token_by_session(TOKEN.digest) is None
        queue.revoke_token(token.id)
        assert queue.token_by_session("digest of a session").revoked_at is not None
        clock.move(61)
        assert queue.token_by_session("digest of a session") is None
        queue.add_session("another", token.id, clock() + timedelta(seconds=60))
        queue.remove_session("another")
        queue.remove_session("another")
        assert queue.token_by_session("another") is None

    def test_a_token_has_so_many_sessions(self, queue, clock, monkeypatch):
        monkeypatch.setattr("storage.statements.sessions.MOST_OF_A_TOKEN", 3)
        token, other = (
            queue.add_token(dataclasses.replace(TOKEN, digest=digest)) for digest in ("abc", "def")
        )
        queue.add_session("other", other.id, clock() + timedelta(seconds=60))
        for number in range(5):
            queue.add_session(str(number), token.id, clock() + timedelta(seconds=60 + number))
        left = [number for number in range(5) if queue.token_by_session(str(number))]
        assert left == [2, 3, 4]
        assert queue.token_by_session("other") == other

    def test_what_an_owner_stores(self, store):
        mine = submit(store, "mine", owner="ann").study
        assert store.stored_bytes("bob") == 0
        before = store.stored_bytes("ann")
        (trial,) = make_trials(store, mine, 16)
        store.record({trial.id: make_points(10)})
        assert before == len(mine.spec) < store.stored_bytes("ann") - 1000
        before = store.stored_bytes("ann")
        store.add_event(mine.id, "cancel", "ann asked to cancel it")
        assert before < store.stored_bytes("ann")
        assert store.stored_bytes("bob") == 0

    def test_the_use_of_a_token_is_known_to_the_minute(self, queue, clock):
        token = queue.add_token(TOKEN)
        used = []
        for seconds in (0, 30, 60):
            clock.move(seconds)
            queue.touch_token(token.id)
            used.append(queue.tokens_by_hashes(["abc"])["abc"].last_used_at)
        assert used == [clock.time - timedelta(seconds=90)] * 2 + [clock.time]
        queue.touch_token(99)

    # workers

    def test_workers_that_were_seen_lately(self, queue, clock):
        study = make_study(queue)
        queue.beat(BEAT)
        clock.move(50)
        queue.beat(dataclasses.replace(BEAT, study_id=study.id))
        queue.beat(dataclasses.replace(BEAT, name="host-0"))
        first, second = queue.workers()
        assert (first.name, second.name, second.study_id, second.cores) == (
            "host-0",
            "host-1",
            study.id,
            2,
        )
        assert (second.seen_at - second.started_at) == timedelta(seconds=50)
        clock.move(30)
        queue.beat(
            dataclasses.replace(BEAT, name="host-2", study_id=99)
        )  # deleted while it worked on it
        assert [worker.name for worker in queue.workers(seen_within_seconds=10)] == ["host-2"]
        assert queue.workers(10)[0].study_id is None
        queue.delete_study(study.id)
        assert [worker.study_id for worker in queue.workers()] == [None] * 3
        clock.move(8 * 24 * 3600)
        queue.beat(BEAT)
        assert [worker.name for worker in queue.workers(seen_within_seconds=1e9)] == ["host-1"]

    # speeds

    def test_costs_of_a_workload(self, store, study):
        assert store.cost(study.id) is None
        store.keep_cost(study.id, COST)
        changed = dataclasses.replace(COST, flops_per_sample=1.0, parameters=2**40)
        store.keep_cost(study.id, changed)
        assert store.cost(study.id) == changed
        with pytest.raises(NotFound):
            store.keep_cost(99, COST)

    def test_throughputs_by_machine_and_workload(self, store):
        rows = [
            NewThroughput(
                machine=machine,
                workload=workload,
                nodes=2,
                accelerators=16,
                global_batch_size=512,
                precision="fp16",
                samples_per_second=1e4,
                source="round 4",
            )
            for machine in ("summit", "local")
            for workload in ("resnet50", "tiramisu")
        ]
        store.add_throughputs(rows)
        store.add_throughputs([])
        found = store.throughputs()
        assert [dataclasses.replace(row, source="round 4").machine for row in found] == [
            row.machine for row in rows
        ]
        assert [(row.machine, row.workload) for row in store.throughputs(machine="local")] == [
            ("local", "resnet50"),
            ("local", "tiramisu"),
        ]
        (one,) = store.throughputs("summit", "tiramisu")
        assert (
            one.nodes,
            one.accelerators,
            one.global_batch_size,
            one.precision,
            one.samples_per_second,
        ) == (2, 16, 512, "fp16", 1e4)
        with pytest.raises(InvalidRecord, match="samples_per_second_positive"):
            store.add_throughputs([*rows, dataclasses.replace(rows[0], samples_per_second=0.0)])
        assert len(store.throughputs()) == 4
