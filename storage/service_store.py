"""The part of the Store for the service itself: pages, events, tokens, workers and measured speeds."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

from storage.errors import InvalidRecord
from storage.records import (
    Event,
    NewThroughput,
    NewToken,
    StudyState,
    StudySummary,
    Throughput,
    Token,
    Totals,
    Trial,
    TrialState,
    Usage,
    WorkerBeat,
    WorkerRecord,
    WorkloadCost,
)
from storage.statements import events, overview, pages, sessions, tokens, workers
from storage.statements import throughputs as speeds
from storage.statements.trials import CHUNK
from storage.transactions import Transactions


class ServiceStore(Transactions):
    """Paginated reads of studies and trials, and the service's own records."""

    # pages

    def page_studies(
        self,
        *,
        owner: str | None = None,
        state: StudyState | None = None,
        search: str | None = None,
        after: int | None = None,
        limit: int = 100,
    ) -> list[StudySummary]:
        """Return studies, newest first, each with a summary of its trials.

        ``search`` is part of a name or workload; ``after`` is the id of the last study of the previous page. Only the
        last page has fewer studies than ``limit``.
        """
        _check_limit(limit)
        with self._read(single_statement=True) as connection:
            return pages.of_studies(
                connection, owner=owner, state=state, search=search, after=after, limit=limit
            )

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
        """Return trials ordered by any column, those without a value last; return none for an unknown study.

        ``after`` is the number of the last trial of the previous page (:class:`NotFound` if it does not exist); only
        the last page has fewer trials than ``limit``. An ``order`` that is not a column raises :class:`InvalidRecord`.
        """
        _check_limit(limit)
        with self._read(single_statement=after is None) as connection:
            return pages.of_trials(
                connection,
                study_id,
                after=after,
                limit=limit,
                states=states,
                global_batch_size=global_batch_size,
                order=order,
                descending=descending,
            )

    def usage(self, study_id: int) -> Usage:
        """Return a study's samples and accelerator seconds, running trials included. Raises :class:`NotFound`."""
        with self._read(single_statement=True) as connection:
            return pages.usage(connection, study_id)

    def stored_bytes(self, owner: str) -> int:
        """Estimate the bytes used by an owner's studies from the numbers of trials, points, plans and events."""
        with self._read() as connection:
            return overview.stored_bytes(connection, owner)

    def trial_ids(self, study_id: int, numbers: Collection[int]) -> dict[int, int]:
        """Return the ids of some trials of a study, by number; missing ones are left out."""
        with self._read(single_statement=len(numbers) <= CHUNK) as connection:
            return overview.trial_ids(connection, study_id, numbers)

    def queued_of(self, owner: str, besides: str = "") -> int:
        """Return how many studies of an owner wait for a worker, not counting the one named ``besides``."""
        with self._read(single_statement=True) as connection:
            return overview.queued_of(connection, owner, besides)

    def totals(self) -> Totals:
        """Return totals of the whole database; counting the convergence points takes a while if there are many."""
        with self._read() as connection:
            return overview.totals(connection)

    # events

    def add_event(
        self, study_id: int | None, kind: str, message: str, data: Mapping[str, Any] | None = None
    ) -> Event:
        """Store an event of a study or of the service. Raises :class:`NotFound` if the study does not exist."""
        with self._write() as connection:
            return events.add(connection, study_id, kind, message, data)

    def events(
        self, *, after: int = 0, study_id: int | None = None, limit: int = 500
    ) -> list[Event]:
        """Return events with ids above ``after``, oldest first; a caller that passes the last id received
        misses none.
        """
        _check_limit(limit)
        with self._read(single_statement=True) as connection:
            return events.after(connection, after, study_id, limit)

    def last_event_id(self) -> int:
        """Return the id of the newest event, 0 if there are no events."""
        with self._read(single_statement=True) as connection:
            return overview.last_event_id(connection)

    # tokens

    def add_token(self, new: NewToken) -> Token:
        """Store a token. Raises :class:`Conflict` if its digest exists already."""
        with self._write() as connection:
            return tokens.add(connection, new)

    def tokens_by_hashes(self, digests: Collection[str]) -> dict[str, Token]:
        """Return the tokens with these digests, by digest; unknown digests are left out."""
        with self._read(single_statement=True) as connection:
            return tokens.by_hashes(connection, digests)

    def tokens(self, owner: str | None = None) -> list[Token]:
        """Return tokens, oldest first."""
        with self._read(single_statement=True) as connection:
            return tokens.every(connection, owner)

    def valid_tokens(self, token_ids: Collection[int]) -> set[int]:
        """Return the ids of the given tokens that exist and are neither revoked nor expired."""
        with self._read(single_statement=True) as connection:
            return tokens.valid(connection, token_ids)

    def revoke_token(self, token_id: int) -> None:
        """Revoke a token; revoking again changes nothing. Raises :class:`NotFound`."""
        with self._write() as connection:
            tokens.revoke(connection, token_id)

    def touch_token(self, token_id: int) -> None:
        """Record when a token was used, to the minute, so that a busy client does not write at every request."""
        with self._read(single_statement=True) as connection:
            stale = tokens.is_stale(connection, token_id)
        if stale:
            with self._write() as connection:
                tokens.touch(connection, token_id)

    def add_session(self, digest: str, token_id: int, expires_at: datetime) -> None:
        """Store a session for a token, under the digest of the session's secret."""
        with self._write() as connection:
            sessions.add(connection, digest, token_id, expires_at)

    def token_by_session(self, digest: str) -> Token | None:
        """Return a session's token, even if expired or revoked; None for an unknown or ended session."""
        with self._read(single_statement=True) as connection:
            return sessions.token_of(connection, digest)

    def remove_session(self, digest: str) -> None:
        """End a session, if it exists."""
        with self._write() as connection:
            sessions.remove(connection, digest)

    # workers

    def beat(self, sign: WorkerBeat) -> None:
        """Store a worker's heartbeat."""
        with self._write() as connection:
            workers.beat(connection, sign)

    def workers(self, seen_within_seconds: float = 60) -> list[WorkerRecord]:
        """Return the workers with a recent heartbeat, by name."""
        with self._read() as connection:
            return workers.seen(connection, seen_within_seconds)

    # speeds

    def add_throughputs(self, rows: Sequence[NewThroughput]) -> None:
        """Store measured throughputs; all or none."""
        with self._write() as connection:
            speeds.add(connection, rows)

    def throughputs(
        self, machine: str | None = None, workload: str | None = None
    ) -> list[Throughput]:
        """Return measured throughputs, oldest first."""
        with self._read() as connection:
            return speeds.every(connection, machine, workload)

    def keep_cost(self, study_id: int, cost: WorkloadCost) -> None:
        """Store the cost of a sample of the study's workload, replacing any earlier cost. Raises :class:`NotFound`."""
        with self._write() as connection:
            speeds.keep_cost(connection, study_id, cost)

    def cost(self, study_id: int) -> WorkloadCost | None:
        """Return the cost of a sample of the study's workload; None if unknown."""
        with self._read() as connection:
            return speeds.cost(connection, study_id)


def _check_limit(limit: int) -> None:
    if limit < 1:
        raise InvalidRecord(f"a page must have at least 1 row, but got a limit of {limit}")
