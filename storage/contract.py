"""AbstractStore: what every store promises, whichever database is behind it.

``storage.store.Store`` keeps these promises on SQLite and PostgreSQL. Whoever writes another store subclasses
:class:`AbstractStore` and runs the contract tests against it: ``tests/storage/store_contract.py`` and the files that it
inherits from (``queue_contract.py``, ``trial_lease_contract.py``, ``service_contract.py``, ``columns_contract.py``,
``exhibit_contract.py``). A test class inherits ``StoreContract`` and gives a ``url`` fixture, the address of a new,
empty database; see ``tests/storage/test_store_sqlite.py``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Self

from storage.records import (
    CalibrationRow,
    Convergence,
    ConvergencePoint,
    Event,
    Lease,
    NewForecast,
    NewOutcome,
    NewPlan,
    NewThroughput,
    NewToken,
    NewTrial,
    Outcome,
    StoredForecast,
    StoredPlan,
    Study,
    StudyState,
    StudySummary,
    SubmittedStudy,
    Throughput,
    Token,
    Totals,
    Trial,
    TrialLease,
    TrialResult,
    TrialState,
    Usage,
    WorkerBeat,
    WorkerRecord,
    WorkloadCost,
)


class AbstractStore(ABC):
    """Studies, trials, convergence, forecasts, plans, outcomes, the queue, and what the service keeps about itself.

    **Threads and processes.** Several threads may share one store. Several processes may use one database, each with a
    store that it opened itself, after a fork too. A store holds no state of its own besides its connections: what one
    process wrote, the next read of another one sees.

    **Transactions.** A writing method takes effect as a whole or not at all, and is committed once it has returned. A
    reading method sees one state of the database.

    **Who may change what.** Whoever opens a database may read all of it. A study that a worker holds under a lease is
    written by that worker through :meth:`leased`, which checks the lease within each writing transaction, so that a
    worker that lost its lease changes nothing. Convergence, results and states of its trials belong to whoever runs the
    study; requests to cancel, events, tokens and signs of life may come from anybody. A trial that has ended, a
    forecast, a plan and an outcome are never changed again, except that :meth:`retry_failed` queues trials that have
    failed; :meth:`delete_study` removes them with their study.

    **Errors.** Every method may raise :class:`storage.errors.StoreUnavailable`, where the database is lost or locked
    for longer than the time that the store was opened with, and every writing method
    :class:`storage.errors.InvalidRecord`, for a value that the tables do not hold. A leased store's writing methods
    raise :class:`storage.errors.LeaseLost`. Other errors stand beside the method that raises them; all of them are a
    :class:`storage.errors.StoreError`, and none is of a database driver.
    """

    # opening and closing

    @property
    @abstractmethod
    def url(self) -> str:
        """Where the database is, without the password."""

    @abstractmethod
    def close(self) -> None:
        """Give back every connection; any later call raises :class:`StoreUnavailable`. Leased stores keep theirs."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # studies

    @abstractmethod
    def create_study(
        self,
        name: str,
        *,
        workload: str,
        metric: str,
        threshold: float,
        higher_is_better: bool,
        spec: str,
        folder: str = "",
        budget_trials: int | None = None,
    ) -> Study:
        """Create a queued study, or return the one of that name; :class:`Conflict` where its spec differs."""

    @abstractmethod
    def study(self, name: str) -> Study:
        """The study of that name; :class:`NotFound` names the nearest."""

    @abstractmethod
    def study_by_id(self, study_id: int) -> Study:
        """The study with that id, as trials and plans name it; :class:`NotFound`."""

    @abstractmethod
    def studies(self) -> list[Study]:
        """All studies, oldest first."""

    @abstractmethod
    def update_spec(
        self,
        study_id: int,
        spec: str,
        folder: str | None = None,
        budget_trials: int | None = None,
    ) -> None:
        """Replace the spec of a study, such as by one with a larger budget, and its folder where one is given.

        ``budget_trials`` is how many trials the new spec asks for.

        :class:`NotFound`.
        """

    # trials

    @abstractmethod
    def add_trials(self, study_id: int, new: Sequence[NewTrial]) -> list[Trial]:
        """Queue trials, numbered on from the study's last, also between processes; :class:`NotFound`.

        :class:`Conflict` for a training that the study has already, of the same settings at the same batch size with
        the same seed (:func:`storage.records.training_key`), whoever asks for it and however that one ended.
        """

    @abstractmethod
    def start_trials(self, ids: Collection[int]) -> None:
        """Queued to running, all or none; :class:`NotFound`, or :class:`Conflict` where one is not queued."""

    @abstractmethod
    def record(self, points: Mapping[int, Sequence[ConvergencePoint]]) -> None:
        """Write points by trial id, replacing those at the same step; :class:`NotFound`. All or none."""

    @abstractmethod
    def record_columns(self, points: Convergence) -> None:
        """As :meth:`record`, from columns: arrays of shape (points,) in any order, NaN for what was not measured.

        The quickest way for many points. Of two points at one step of a trial the later one counts.
        """

    @abstractmethod
    def finish_trial(
        self, trial_id: int, result: TrialResult, points: Sequence[ConvergencePoint] = ()
    ) -> None:
        """Write a result with the last points; :class:`NotFound`, or :class:`Conflict` where one is there."""

    @abstractmethod
    def add_ended_trials(
        self,
        study_id: int,
        ended: Sequence[tuple[NewTrial, TrialResult, Sequence[ConvergencePoint]]],
    ) -> list[Trial]:
        """Trials that were run elsewhere, each with its result and its points, all or none; :class:`NotFound`."""

    @abstractmethod
    def requeue_running(self, study_id: int) -> list[Trial]:
        """Running to queued, for a study whose process died; points stay. Returns them; :class:`NotFound`.

        Leases on trials that have not ended are ended.
        """

    @abstractmethod
    def retry_failed(self, study_id: int) -> list[Trial]:
        """Queue the trials that the study trained and that failed, without their points, as if they were new.

        Returns them. :class:`NotFound`, or :class:`Conflict` while the study is running, unless under its lease.
        """

    # trials under a lease each

    @abstractmethod
    def lease_trial(
        self,
        study_id: int,
        what: int | NewTrial,
        *,
        known: int,
        key: str,
        holder: str,
        lease_seconds: float,
    ) -> TrialLease | None:
        """The queued trial of that number, or a new one, for whoever asks with ``key``, a text that nobody else has.

        The same trial again for the same key. None where the trial is not queued any more, or where the study has
        another number of trials of the new one's purpose than ``known``: look again. The study is for agents from then
        on, and no worker claims it. :class:`Conflict` where a worker runs the study or it has ended;
        :class:`NotFound`.
        """

    @abstractmethod
    def leased_trial(self, study_id: int, key: str) -> TrialLease | None:
        """The trial that ``key`` holds, or held when it ended; None where there is none, or another holds it now."""

    @abstractmethod
    def leased_trials(self, study_id: int) -> list[TrialLease]:
        """The running trials that somebody asked for, by number, also those whose leases have ended."""

    @abstractmethod
    def renew_trial(
        self,
        study_id: int,
        number: int,
        key: str,
        *,
        lease_seconds: float,
        points: Sequence[ConvergencePoint] = (),
    ) -> TrialLease:
        """Hold a trial for longer, and write its points, replacing those at the same step.

        :class:`LeaseLost` where another key has it, or it has ended; :class:`NotFound`.
        """

    @abstractmethod
    def finish_leased_trial(
        self,
        study_id: int,
        number: int,
        key: str,
        result: TrialResult,
        points: Sequence[ConvergencePoint] = (),
    ) -> Trial:
        """Write the result and the last points of a trial; one that ended under this key stays as it is.

        :class:`LeaseLost` where another key has it; :class:`NotFound`.
        """

    @abstractmethod
    def release_trial(self, study_id: int, number: int, key: str) -> Trial:
        """Put a trial back into its study's queue; :class:`LeaseLost` where another key has it; :class:`NotFound`."""

    @abstractmethod
    def expire_trial_leases(self, study_id: int, most_vanished: int) -> list[Trial]:
        """Queue the trials whose holders fell silent again; those that lost more than ``most_vanished`` have failed.

        Returns them as they are then; :class:`NotFound`.
        """

    @abstractmethod
    def trials(
        self,
        study_id: int,
        states: Collection[TrialState] | None = None,
        purpose: str | None = None,
    ) -> list[Trial]:
        """Trials by number, of some states or one purpose where given; none for an unknown study."""

    @abstractmethod
    def trial(self, study_id: int, number: int) -> Trial:
        """One trial by its number in the study; :class:`NotFound`."""

    @abstractmethod
    def counts(self, study_id: int, purpose: str | None = None) -> dict[int, dict[TrialState, int]]:
        """Numbers of trials by global batch size, then by state; what there is none of is left out."""

    # convergence

    @abstractmethod
    def convergence(self, trial_ids: Sequence[int]) -> Convergence:
        """Points of many trials in columns, by trial and step; an unknown trial has none."""

    @abstractmethod
    def point_before(self, trial_id: int, step: int) -> ConvergencePoint | None:
        """The last point of a trial before a step, None without any."""

    @abstractmethod
    def points(self, trial_id: int) -> list[ConvergencePoint]:
        """Points of one trial, by step; :class:`NotFound`."""

    # forecasts, plans, outcomes

    @abstractmethod
    def add_forecast(self, new: NewForecast) -> StoredForecast:
        """Store a forecast with its settings and laws; :class:`NotFound` without its study."""

    @abstractmethod
    def forecasts(self, study_id: int) -> list[StoredForecast]:
        """Forecasts of a study, oldest first; none for an unknown study."""

    @abstractmethod
    def add_plan(self, new: NewPlan) -> StoredPlan:
        """Store a plan or a baseline; :class:`NotFound` without its study or forecast."""

    @abstractmethod
    def plan(self, plan_id: int) -> StoredPlan:
        """One plan; :class:`NotFound` names the newest."""

    @abstractmethod
    def plans(self, study_id: int) -> list[StoredPlan]:
        """Plans of a study, oldest first; none for an unknown study."""

    @abstractmethod
    def add_outcome(self, new: NewOutcome) -> Outcome:
        """Store what one launch of a plan did; :class:`NotFound` without its plan."""

    @abstractmethod
    def outcomes(self, plan_id: int) -> list[Outcome]:
        """Outcomes of a plan, oldest first; :class:`NotFound` without the plan."""

    @abstractmethod
    def add_exhibit(self, outcome_id: int, exhibit: Mapping[str, Any]) -> None:
        """Store what a model is shown by; :class:`NotFound` without its outcome, :class:`Conflict` for a second."""

    @abstractmethod
    def exhibits(self, plan_id: int) -> dict[int, dict[str, Any]]:
        """Exhibits of a plan's outcomes, by the id of the outcome; :class:`NotFound` without the plan."""

    @abstractmethod
    def take_plan_run(
        self,
        plan_id: int,
        seed: int,
        holder: str,
        *,
        seconds: float,
        instead_of: str | None = None,
    ) -> str | None:
        """Take the run of a plan with a seed, or take it for longer; None where that is done, else who has it.

        It is free after ``seconds`` without another call, and for whoever knows that ``instead_of``, who has it, is
        gone. :class:`NotFound`.
        """

    @abstractmethod
    def release_plan_run(self, plan_id: int, seed: int, holder: str) -> None:
        """Give the run back; nothing where somebody else has it."""

    @abstractmethod
    def keep_fit(self, study_id: int, fingerprint: str, content: str) -> None:
        """Store laws that were fitted to the evidence of that fingerprint, or an answer made of them.

        The oldest go. :class:`NotFound`.
        """

    @abstractmethod
    def fit(self, study_id: int, fingerprint: str) -> str | None:
        """What :meth:`keep_fit` stored; None where there is none of that fingerprint."""

    @abstractmethod
    def calibration(self, study_id: int | None = None) -> list[CalibrationRow]:
        """Every plan that has outcomes beside them, oldest first; those of one study where given."""

    # the queue

    @abstractmethod
    def submit_study(
        self,
        name: str,
        *,
        workload: str,
        metric: str,
        threshold: float,
        higher_is_better: bool,
        spec: str,
        folder: str = "",
        owner: str = "",
        priority: int = 0,
        idempotency_key: str | None = None,
        max_samples: int | None = None,
        max_accelerator_hours: float | None = None,
        budget_trials: int | None = None,
        for_agents: bool = False,
        event: str | None = None,
    ) -> SubmittedStudy:
        """Put a study in the queue; a larger ``priority`` goes first among its owner's, one above 10 among all.

        No worker claims one that is ``for_agents``.

        A study that is new is told of by an event with this message, in the same transaction.

        The same submission again, by its owner and its ``idempotency_key`` or, without a key, by its spec, gives
        the study that is there. :class:`Conflict` where the name is taken by another spec, owner or key, or the
        key by another name.
        """

    @abstractmethod
    def claim_study(
        self, worker: str, *, lease_seconds: float, per_owner: int | None = None
    ) -> Lease | None:
        """Take the next study: the highest priority, then the longest in the queue; None where there is none.

        A study whose worker let its lease expire is taken over. An owner who has ``per_owner`` studies under a
        lease waits. ``worker`` names one process and no other.
        """

    @abstractmethod
    def settle_studies(self) -> list[Study]:
        """Cancel the studies whose worker fell silent before it heard that they were to be cancelled; returns them.

        Their trials in flight go back into the queue. :meth:`claim_study` does so too, where there is a worker.
        """

    @abstractmethod
    def take_study(
        self, study_id: int, worker: str, *, lease_seconds: float, instead_of: str | None = None
    ) -> Lease | None:
        """Take this very study, in whatever state and whether or not it is in the queue; :class:`NotFound`.

        None while a worker holds a lease on it, unless that is ``instead_of``, which is known to be gone, and while
        somebody holds one on a trial of it.
        """

    @abstractmethod
    def renew_lease(self, lease: Lease, *, lease_seconds: float) -> Lease:
        """Hold the lease for ``lease_seconds`` from now; its study is as it stands, so that a request to cancel shows.

        :class:`LeaseLost` where another worker has taken the study over, or it was taken away.
        """

    @abstractmethod
    def release_study(self, lease: Lease, state: StudyState, message: str = "") -> Study:
        """End the lease and leave the study in a state, ``queued`` to let another go on; :class:`LeaseLost`."""

    @abstractmethod
    def leased(self, lease: Lease) -> Self:
        """A store on the same connections that raises :class:`LeaseLost`, and writes nothing, once the lease is lost.

        A lease that has expired is held until another worker takes the study over.
        """

    @abstractmethod
    def request_cancel(self, study_id: int) -> Study:
        """Cancel a study: at once, or through its worker, which finds ``cancel_requested``; :class:`NotFound`.

        A finished study stays as it is. A study that runs outside the queue is cancelled here, without a word to
        its process.
        """

    @abstractmethod
    def requeue_study(self, study_id: int) -> Study:
        """Queue a study that has ended, in any way; :class:`NotFound`, or :class:`Conflict` while it is running."""

    @abstractmethod
    def delete_study(self, study_id: int) -> None:
        """Delete a study with all that belongs to it; :class:`NotFound`, or :class:`Conflict` while it is running."""

    @abstractmethod
    def rename_study(self, study_id: int, name: str, spec: str) -> Study:
        """Give a study another name, with its ``spec`` under that name; its earlier name is free for another study.

        :class:`NotFound`, or :class:`Conflict` while it is running and where the name is taken.
        """

    @abstractmethod
    def set_study_state(self, study_id: int, state: StudyState, message: str = "") -> None:
        """Set where a study stands; :class:`NotFound`, or :class:`Conflict` where a worker holds a lease on it."""

    # pages

    @abstractmethod
    def page_studies(
        self,
        *,
        owner: str | None = None,
        state: StudyState | None = None,
        search: str | None = None,
        after: int | None = None,
        limit: int = 100,
    ) -> list[StudySummary]:
        """Studies, newest first, each with a summary of its trials.

        ``search`` is part of a name or workload; ``after`` the id of the last study of the page before.
        """

    @abstractmethod
    def page_trials(
        self,
        study_id: int,
        *,
        after: int | None = None,
        limit: int = 100,
        states: Collection[TrialState] | None = None,
        global_batch_size: int | None = None,
        order: str = "number",
        descending: bool = False,
    ) -> list[Trial]:
        """Trials by any of their columns, those without a value last; none for an unknown study.

        ``after`` is the number of the last trial of the page before (:class:`NotFound` without it); an ``order`` that
        is no column raises :class:`InvalidRecord`.
        """

    @abstractmethod
    def usage(self, study_id: int) -> Usage:
        """Samples and accelerator seconds of a study so far, also of trials in flight; :class:`NotFound`."""

    @abstractmethod
    def stored_bytes(self, owner: str) -> int:
        """About how many bytes the studies of an owner take, from the numbers of trials, points, plans and events."""

    @abstractmethod
    def trial_ids(self, study_id: int, numbers: Collection[int]) -> dict[int, int]:
        """The ids of some trials of a study, by number; one that is not there is left out."""

    @abstractmethod
    def queued_of(self, owner: str, besides: str = "") -> int:
        """How many studies of an owner wait for a worker; the study named ``besides`` does not count."""

    @abstractmethod
    def totals(self) -> Totals:
        """What the whole database holds; counts every convergence point, which takes a while where there are many."""

    # events

    @abstractmethod
    def add_event(
        self, study_id: int | None, kind: str, message: str, data: Mapping[str, Any] | None = None
    ) -> Event:
        """Store what happened, to a study or to the service; :class:`NotFound` without the study."""

    @abstractmethod
    def events(
        self, *, after: int = 0, study_id: int | None = None, limit: int = 500
    ) -> list[Event]:
        """Events with an id above ``after``, oldest first; asked again with the last id, none is missed."""

    @abstractmethod
    def last_event_id(self) -> int:
        """The id of the newest event, 0 where there is none."""

    # tokens

    @abstractmethod
    def add_token(self, new: NewToken) -> Token:
        """Store a token; :class:`Conflict` where its digest is there already."""

    @abstractmethod
    def token_by_hash(self, digest: str) -> Token | None:
        """The token with that digest, expired and revoked ones too; None where there is none."""

    @abstractmethod
    def tokens_by_hashes(self, digests: Collection[str]) -> dict[str, Token]:
        """The tokens with these digests, by digest; one that no token has is left out."""

    @abstractmethod
    def tokens(self, owner: str | None = None) -> list[Token]:
        """Tokens, oldest first."""

    @abstractmethod
    def valid_tokens(self, token_ids: Collection[int]) -> set[int]:
        """Those of the tokens that are there, not revoked and not expired."""

    @abstractmethod
    def revoke_token(self, token_id: int) -> None:
        """End a token; :class:`NotFound`. Revoking again changes nothing."""

    @abstractmethod
    def touch_token(self, token_id: int) -> None:
        """Store that a token was used, to the minute, so that a busy client does not write at every request."""

    @abstractmethod
    def add_session(self, digest: str, token_id: int, expires_at: datetime) -> None:
        """Store a session, by the digest of its secret, that stands for a token."""

    @abstractmethod
    def token_by_session(self, digest: str) -> Token | None:
        """The token that a session stands for, expired and revoked ones too; None for an unknown or ended session."""

    @abstractmethod
    def remove_session(self, digest: str) -> None:
        """End a session; nothing where there is none."""

    # workers

    @abstractmethod
    def beat(self, sign: WorkerBeat) -> None:
        """Store a worker's sign of life."""

    @abstractmethod
    def workers(self, seen_within_seconds: float = 60) -> list[WorkerRecord]:
        """Workers that gave a sign of life lately, by name."""

    # speeds

    @abstractmethod
    def add_throughputs(self, rows: Sequence[NewThroughput]) -> None:
        """Store measured throughputs; all or none."""

    @abstractmethod
    def throughputs(
        self, machine: str | None = None, workload: str | None = None
    ) -> list[Throughput]:
        """Measured throughputs, oldest first."""

    @abstractmethod
    def keep_cost(self, study_id: int, cost: WorkloadCost) -> None:
        """Store what a sample of the study's workload costs, in place of what was there; :class:`NotFound`."""

    @abstractmethod
    def cost(self, study_id: int) -> WorkloadCost | None:
        """What a sample of the study's workload costs; None where that is not known."""
