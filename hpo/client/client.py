"""``hpo.Client``: the blocking client of a server.

::

    with hpo.Client("https://hpo.example.org", token) as client:
        study = client.submit("study.yaml")
        study.wait(on_event=lambda event: print(event.message))
        print(study.forecast(32768).epochs_to_target)
        study.plan(machine="perlmutter", nodes=64).write("plan")
"""

from __future__ import annotations

import dataclasses
import os
import socket
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar, Unpack

import httpx

from hpo.ask_and_tell.messages import LEASE_SECONDS, Asked, ReportVerdict
from hpo.ask_and_tell.trial import AskTell
from hpo.client import calls
from hpo.client import transport as carrier
from hpo.client.address import server_address
from hpo.client.calls import OnEvent, WaitPolicy
from hpo.client.event_stream import EventStream
from hpo.client.protocol import ClientPause, NoResponse, ServerResponse, Steps, join_url_path
from hpo.client.records import (
    RemoteDesign,
    RemoteEvent,
    RemoteForecast,
    RemotePlan,
    RemoteTrial,
    StudyStatus,
)
from hpo.client.retries import RetryPolicy
from hpo.planning.request import PlanOptions
from hpo.study.spec import StudySpec
from trainers.report import ConvergencePoint, TrainingOutcome

T = TypeVar("T")


class Client:
    """A client of a server; ``url`` and ``token`` default to HPO_SERVER and HPO_TOKEN. Threads may share it.

    Every call may raise :class:`hpo.errors.ServiceError` or a subclass; ``retries`` says how often a request is
    sent again before the error is raised. ``transport`` replaces httpx's default transport.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        retries: RetryPolicy | None = None,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._address = server_address(url, token)
        self._retries = retries or RetryPolicy()
        self._http = httpx.Client(**carrier.options(self._address), transport=transport)

    @property
    def url(self) -> str:
        """The server's URL."""
        return self._address.url

    def submit(
        self,
        spec: StudySpec | str | Path,
        *,
        priority: int = 0,
        max_samples: int | None = None,
        max_accelerator_hours: float | None = None,
        idempotency_key: str | None = None,
        for_agents: bool = False,
    ) -> RemoteStudy:
        """Queue a study, given as a StudySpec, the path of its file, or its YAML text.

        ``max_samples`` and ``max_accelerator_hours`` limit its cost. Workers ignore a study with ``for_agents``: its
        trials are trained by clients that ask for them (``RemoteStudy.ask_tell``, ``hpo agent``). Submitting the same
        study again, or with the same ``idempotency_key``, returns the existing one. Raises :class:`SpecError` with
        every error in the study, or :class:`ConflictError` if its name is taken.
        """
        status = self.run(
            calls.submit(
                self._retries,
                spec,
                priority=priority,
                max_samples=max_samples,
                max_accelerator_hours=max_accelerator_hours,
                idempotency_key=idempotency_key,
                for_agents=for_agents,
            )
        )
        return self.study(status.name)

    def study(self, name: str) -> RemoteStudy:
        """Return the study with this name, without sending a request."""
        return RemoteStudy(self, name, self._retries)

    def studies(
        self, *, owner: str | None = None, state: str | None = None, search: str | None = None
    ) -> list[StudyStatus]:
        """Return the status of all studies that the token may read; ``search`` matches any part of a name."""
        return self.run(calls.studies(self._retries, owner=owner, state=state, search=search))

    def document(self, *path: str) -> Any:
        """Return the JSON at any path below the API's root, as in ``client.document("calibration")``."""
        return self.run(calls.document(self._retries, *path))

    def run(self, steps: Steps[T]) -> T:
        """Execute the steps of a call."""
        reply: ServerResponse | NoResponse | None = None
        while True:
            try:
                step = steps.send(reply)
            except StopIteration as end:
                result: T = end.value
                return result
            if isinstance(step, ClientPause):
                time.sleep(step.seconds)
                reply = None
                continue
            try:
                reply = carrier.server_response(
                    self._http.request(**carrier.arguments(self._address, step))
                )
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                reply = carrier.no_response(error, self._address)

    def stream(self, feed: EventStream) -> Iterator[RemoteEvent]:
        """Yield the events of a stream, reconnecting as often as needed."""
        while not feed.ended:
            reply: ServerResponse | NoResponse
            try:
                with self._http.stream(
                    **carrier.arguments(self._address, feed.request), timeout=carrier.STREAM_TIMEOUT
                ) as response:
                    if response.status_code >= 400:
                        response.read()
                        reply = carrier.server_response(response)
                    else:
                        feed.check(carrier.head_of(response))
                        for content in response.iter_bytes():
                            yield from feed.take(content)
                        reply = NoResponse(f"{self.url} ended the stream")
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                reply = carrier.no_response(error, self._address)
            if not feed.ended:
                time.sleep(feed.broken(reply))

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Client({self.url!r})"


class RemoteStudy:
    """A study on a server. The object holds no data: every call queries the server."""

    def __init__(self, client: Client, name: str, retries: RetryPolicy) -> None:
        self._client, self.name, self._retries = client, name, retries

    def status(self) -> StudyStatus:
        """Return the study's status. Like all methods below, raise :class:`StudyNotFoundError` if there is none."""
        return self._client.run(calls.status(self._retries, self.name))

    def wait(
        self,
        timeout: float | None = None,
        *,
        poll: float = 2.0,
        on_event: OnEvent | None = None,
        check: bool = True,
    ) -> StudyStatus:
        """Wait until the study has ended, and return its status; ``on_event`` is called with each event.

        Polls every ``poll`` seconds. Raises :class:`WaitTimeoutError` after ``timeout`` seconds and, unless ``check``
        is off, :class:`StudyFailedError` if the study ends in any state but finished. Outages of up to ten minutes are
        tolerated.
        """
        return self._client.run(
            calls.wait(
                self._retries,
                self.name,
                timeout=timeout,
                policy=WaitPolicy(poll),
                on_event=on_event,
                check=check,
            )
        )

    def events(self, *, after: int = 0, progress: bool = False) -> Iterator[RemoteEvent]:
        """Stream the events with numbers above ``after`` until the study ends; ``progress`` adds the newest points of
        running trials. After a lost connection, the stream resumes where it stopped.
        """
        return self._client.stream(
            EventStream(
                join_url_path("studies", self.name, "events"),
                self._retries,
                after=after,
                progress=progress,
            )
        )

    def logs(self, *, after: int = 0) -> list[RemoteEvent]:
        """Return the stored events with numbers above ``after``, oldest first."""
        return self._client.run(calls.logs(self._retries, self.name, after=after))

    def trials(
        self, *, states: Sequence[str] | None = None, global_batch_size: int | None = None
    ) -> list[RemoteTrial]:
        """Return all trials, or only those in certain states or at one rung, ordered by number."""
        return self._client.run(
            calls.trials(
                self._retries, self.name, states=states, global_batch_size=global_batch_size
            )
        )

    def convergence(
        self,
        numbers: Sequence[int] | None = None,
        *,
        columns: Sequence[str] | None = None,
        max_points: int | None = None,
    ) -> dict[int, dict[str, list[float | None]]]:
        """Return the convergence curves by trial number, each as a dict of ``columns`` (by default, of all columns)."""
        return self._client.run(
            calls.convergence(
                self._retries, self.name, numbers=numbers, columns=columns, max_points=max_points
            )
        )

    def forecast(self, global_batch_size: int, *, budgets: Sequence[float] = ()) -> RemoteForecast:
        """Return the forecast at any batch size; raise :class:`EvidenceError` if there are too few results."""
        return self._client.run(
            calls.forecast(self._retries, self.name, global_batch_size, budgets=budgets)
        )

    def designs(self) -> list[RemoteDesign]:
        """Return each design's cost and its interval at full scale; see :func:`hpo.designs`.

        The list holds the study's own design and every design with a narrower interval than all cheaper ones, cheapest
        first.
        """
        return self._client.run(calls.designs(self._retries, self.name))

    def plan(
        self,
        *,
        machine: str | None = None,
        nodes: int | None = None,
        workers: int | None = None,
        backend: str | None = None,
        **options: Unpack[PlanOptions],
    ) -> RemotePlan:
        """Make and store a plan with its launch files; options that are not given come from the study file.

        ``options`` are the fields of :class:`hpo.PlanRequest`; ``cost`` is the name of a published cost, or the cost
        figures themselves.
        """
        asked = {
            "machine": machine,
            "nodes": nodes,
            "workers": workers,
            "backend": backend,
            **options,
        }
        return self._client.run(calls.plan(self._retries, self.name, asked))

    def plans(self) -> list[RemotePlan]:
        """Return the stored plans, oldest first."""
        return self._client.run(calls.plans(self._retries, self.name))

    def ask_tell(
        self,
        *,
        holder: str | None = None,
        lease_seconds: float = LEASE_SECONDS,
        outage_seconds: float = WaitPolicy.outage_seconds,
        background: bool = False,
    ) -> AskTell:
        """Train the study's trials in this process, by ask and tell (:func:`hpo.ask_tell`).

        ``holder`` is a readable name of the client. Calls survive outages of up to ``outage_seconds``. With
        ``background``, training does not wait for the responses to its reports, which arrive a little later.
        """
        channel = _TrialChannel(self._client, self.name, self._retries, outage_seconds)
        return AskTell(
            channel,
            holder or f"{socket.gethostname()}:{os.getpid()}",
            lease_seconds=lease_seconds,
            background=background,
        )

    def cancel(self) -> StudyStatus:
        """Cancel the study; its results so far are kept."""
        return self._client.run(calls.cancel(self._retries, self.name))

    def resume(
        self, spec: StudySpec | str | Path | None = None, *, retry_failed: bool = False
    ) -> StudyStatus:
        """Queue the study again after it has ended; a finished study needs a ``spec`` with a larger budget.

        Failed trials are trained again with ``retry_failed``, or if the program or its command in ``spec`` has changed.
        """
        return self._client.run(
            calls.resume(self._retries, self.name, spec, retry_failed=retry_failed)
        )

    def rename(self, name: str) -> StudyStatus:
        """Rename the study; this object then uses the new name. Raises :class:`ConflictError` if the study is
        running or the name is taken.
        """
        status = self._client.run(calls.rename(self._retries, self.name, name))
        self.name = status.name
        return status

    def delete(self) -> None:
        """Remove the study with its trials, forecasts, plans and outcomes.

        Raises :class:`ConflictError` if the study is running.
        """
        self._client.run(calls.delete(self._retries, self.name))

    def __repr__(self) -> str:
        return f"RemoteStudy({self.name!r} at {self._client.url})"


class _TrialChannel:
    """A :class:`hpo.ask_and_tell.messages.Channel` to a server; calls are retried while the server restarts."""

    def __init__(
        self, client: Client, name: str, retries: RetryPolicy, outage_seconds: float
    ) -> None:
        self._client, self._name = client, name
        self._retries = calls.retrying_for(retries, outage_seconds)

    def ask(self, key: str, holder: str, lease_seconds: float) -> Asked:
        """See :class:`Channel`. A custom workload is imported from this machine's folders, not the server's."""
        asked = self._client.run(
            calls.ask_trial(
                self._retries, self._name, key=key, holder=holder, lease_seconds=lease_seconds
            )
        )
        if asked.job is None:
            return asked
        here = dataclasses.replace(asked.job, search_path=str(Path.cwd()))
        return dataclasses.replace(asked, job=here)

    def report(
        self, number: int, key: str, points: Sequence[ConvergencePoint], lease_seconds: float
    ) -> ReportVerdict:
        """See :class:`Channel`."""
        return self._client.run(
            calls.report_trial(
                self._retries,
                self._name,
                number,
                key=key,
                points=points,
                lease_seconds=lease_seconds,
            )
        )

    def end(
        self,
        number: int,
        key: str,
        points: Sequence[ConvergencePoint],
        *,
        outcome: TrainingOutcome | None,
        state: str | None,
        reason: str,
    ) -> str:
        """See :class:`Channel`."""
        return self._client.run(
            calls.end_trial(
                self._retries,
                self._name,
                number,
                key=key,
                points=points,
                outcome=outcome,
                state=state,
                reason=reason,
            )
        )

    def release(self, number: int, key: str) -> None:
        """See :class:`Channel`."""
        self._client.run(calls.release_trial(self._retries, self._name, number, key=key))
