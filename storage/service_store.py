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
    """Pages for many readers, and what the service keeps about itself."""

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
        with self._read(single_statement=True) as connection:
            return pages.usage(connection, study_id)

    def stored_bytes(self, owner: str) -> int:
        with self._read() as connection:
            return overview.stored_bytes(connection, owner)

    def trial_ids(self, study_id: int, numbers: Collection[int]) -> dict[int, int]:
        with self._read(single_statement=len(numbers) <= CHUNK) as connection:
            return overview.trial_ids(connection, study_id, numbers)

    def queued_of(self, owner: str, besides: str = "") -> int:
        with self._read(single_statement=True) as connection:
            return overview.queued_of(connection, owner, besides)

    def totals(self) -> Totals:
        with self._read() as connection:
            return overview.totals(connection)

    # events

    def add_event(
        self, study_id: int | None, kind: str, message: str, data: Mapping[str, Any] | None = None
    ) -> Event:
        with self._write() as connection:
            return events.add(connection, study_id, kind, message, data)

    def events(
        self, *, after: int = 0, study_id: int | None = None, limit: int = 500
    ) -> list[Event]:
        _check_limit(limit)
        with self._read(single_statement=True) as connection:
            return events.after(connection, after, study_id, limit)

    def last_event_id(self) -> int:
        with self._read(single_statement=True) as connection:
            return overview.last_event_id(connection)

    # tokens

    def add_token(self, new: NewToken) -> Token:
        with self._write() as connection:
            return tokens.add(connection, new)

    def token_by_hash(self, digest: str) -> Token | None:
        return self.tokens_by_hashes([digest]).get(digest)

    def tokens_by_hashes(self, digests: Collection[str]) -> dict[str, Token]:
        with self._read(single_statement=True) as connection:
            return tokens.by_hashes(connection, digests)

    def tokens(self, owner: str | None = None) -> list[Token]:
        with self._read(single_statement=True) as connection:
            return tokens.every(connection, owner)

    def valid_tokens(self, token_ids: Collection[int]) -> set[int]:
        with self._read(single_statement=True) as connection:
            return tokens.valid(connection, token_ids)

    def revoke_token(self, token_id: int) -> None:
        with self._write() as connection:
            tokens.revoke(connection, token_id)

    def touch_token(self, token_id: int) -> None:
        with self._read(single_statement=True) as connection:
            stale = tokens.is_stale(connection, token_id)
        if stale:
            with self._write() as connection:
                tokens.touch(connection, token_id)

    def add_session(self, digest: str, token_id: int, expires_at: datetime) -> None:
        with self._write() as connection:
            sessions.add(connection, digest, token_id, expires_at)

    def token_by_session(self, digest: str) -> Token | None:
        with self._read(single_statement=True) as connection:
            return sessions.token_of(connection, digest)

    def remove_session(self, digest: str) -> None:
        with self._write() as connection:
            sessions.remove(connection, digest)

    # workers

    def beat(self, sign: WorkerBeat) -> None:
        with self._write() as connection:
            workers.beat(connection, sign)

    def workers(self, seen_within_seconds: float = 60) -> list[WorkerRecord]:
        with self._read() as connection:
            return workers.seen(connection, seen_within_seconds)

    # speeds

    def add_throughputs(self, rows: Sequence[NewThroughput]) -> None:
        with self._write() as connection:
            speeds.add(connection, rows)

    def throughputs(
        self, machine: str | None = None, workload: str | None = None
    ) -> list[Throughput]:
        with self._read() as connection:
            return speeds.every(connection, machine, workload)

    def keep_cost(self, study_id: int, cost: WorkloadCost) -> None:
        with self._write() as connection:
            speeds.keep_cost(connection, study_id, cost)

    def cost(self, study_id: int) -> WorkloadCost | None:
        with self._read() as connection:
            return speeds.cost(connection, study_id)


def _check_limit(limit: int) -> None:
    if limit < 1:
        raise InvalidRecord(f"a page must have at least 1 row, but got a limit of {limit}")
