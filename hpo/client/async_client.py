"""``hpo.AsyncClient``: the calls of ``hpo.Client`` for asyncio and trio, with many requests at a time.

::

    async with hpo.AsyncClient("https://hpo.example.org", token) as client:
        study = await client.submit("study.yaml")
        async for event in study.events():
            print(event.message)
        print((await study.forecast(32768)).epochs_to_target)

:mod:`hpo.client.client` documents each call and its errors.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar, Unpack

import anyio
import httpx

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

T = TypeVar("T")


class AsyncClient:
    """A client of a server; ``url`` and ``token`` default to HPO_SERVER and HPO_TOKEN. Tasks may share it."""

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        retries: RetryPolicy | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._address = server_address(url, token)
        self._retries = retries or RetryPolicy()
        self._http = httpx.AsyncClient(**carrier.options(self._address), transport=transport)

    @property
    def url(self) -> str:
        """The server's URL."""
        return self._address.url

    async def submit(
        self,
        spec: StudySpec | str | Path,
        *,
        priority: int = 0,
        max_samples: int | None = None,
        max_accelerator_hours: float | None = None,
        idempotency_key: str | None = None,
        for_agents: bool = False,
    ) -> AsyncRemoteStudy:
        """Queue a study, given as a StudySpec, the path of its file, or its YAML text."""
        status = await self.run(
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

    def study(self, name: str) -> AsyncRemoteStudy:
        """Return the study with this name, without sending a request."""
        return AsyncRemoteStudy(self, name, self._retries)

    async def studies(
        self, *, owner: str | None = None, state: str | None = None, search: str | None = None
    ) -> list[StudyStatus]:
        """Return the status of all studies that the token may read; ``search`` matches any part of a name."""
        return await self.run(calls.studies(self._retries, owner=owner, state=state, search=search))

    async def document(self, *path: str) -> Any:
        """Return the JSON at any path below the API's root."""
        return await self.run(calls.document(self._retries, *path))

    async def run(self, steps: Steps[T]) -> T:
        """Execute the steps of a call."""
        reply: ServerResponse | NoResponse | None = None
        while True:
            try:
                step = steps.send(reply)
            except StopIteration as end:
                result: T = end.value
                return result
            if isinstance(step, ClientPause):
                await anyio.sleep(step.seconds)
                reply = None
                continue
            try:
                reply = carrier.server_response(
                    await self._http.request(**carrier.arguments(self._address, step))
                )
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                reply = carrier.no_response(error, self._address)

    async def stream(self, feed: EventStream) -> AsyncIterator[RemoteEvent]:
        """Yield the events of a stream, reconnecting as often as needed."""
        while not feed.ended:
            reply: ServerResponse | NoResponse
            try:
                async with self._http.stream(
                    **carrier.arguments(self._address, feed.request), timeout=carrier.STREAM_TIMEOUT
                ) as response:
                    if response.status_code >= 400:
                        await response.aread()
                        reply = carrier.server_response(response)
                    else:
                        feed.check(carrier.head_of(response))
                        async for content in response.aiter_bytes():
                            for event in feed.take(content):
                                yield event
                        reply = NoResponse(f"{self.url} ended the stream")
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                reply = carrier.no_response(error, self._address)
            if not feed.ended:
                await anyio.sleep(feed.broken(reply))

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"AsyncClient({self.url!r})"


class AsyncRemoteStudy:
    """A study on a server. The object holds no data: every call queries the server."""

    def __init__(self, client: AsyncClient, name: str, retries: RetryPolicy) -> None:
        self._client, self.name, self._retries = client, name, retries

    async def status(self) -> StudyStatus:
        """Return the state of the study."""
        return await self._client.run(calls.status(self._retries, self.name))

    async def wait(
        self,
        timeout: float | None = None,
        *,
        poll: float = 2.0,
        on_event: OnEvent | None = None,
        check: bool = True,
    ) -> StudyStatus:
        """Wait until the study has ended, and return its status."""
        return await self._client.run(
            calls.wait(
                self._retries,
                self.name,
                timeout=timeout,
                policy=WaitPolicy(poll),
                on_event=on_event,
                check=check,
            )
        )

    def events(self, *, after: int = 0, progress: bool = False) -> AsyncIterator[RemoteEvent]:
        """Stream the events with numbers above ``after`` until the study ends."""
        return self._client.stream(
            EventStream(
                join_url_path("studies", self.name, "events"),
                self._retries,
                after=after,
                progress=progress,
            )
        )

    async def logs(self, *, after: int = 0) -> list[RemoteEvent]:
        """Return the stored events with numbers above ``after``, oldest first."""
        return await self._client.run(calls.logs(self._retries, self.name, after=after))

    async def trials(
        self, *, states: Sequence[str] | None = None, global_batch_size: int | None = None
    ) -> list[RemoteTrial]:
        """Return the trials, ordered by number."""
        return await self._client.run(
            calls.trials(
                self._retries, self.name, states=states, global_batch_size=global_batch_size
            )
        )

    async def convergence(
        self,
        numbers: Sequence[int] | None = None,
        *,
        columns: Sequence[str] | None = None,
        max_points: int | None = None,
    ) -> dict[int, dict[str, list[float | None]]]:
        """Return the convergence curves by trial number, each as a dict of columns."""
        return await self._client.run(
            calls.convergence(
                self._retries, self.name, numbers=numbers, columns=columns, max_points=max_points
            )
        )

    async def forecast(
        self, global_batch_size: int, *, budgets: Sequence[float] = ()
    ) -> RemoteForecast:
        """Return the forecast settings and epochs to target at any batch size."""
        return await self._client.run(
            calls.forecast(self._retries, self.name, global_batch_size, budgets=budgets)
        )

    async def designs(self) -> list[RemoteDesign]:
        """Return each design's cost and its interval at full scale, cheapest first."""
        return await self._client.run(calls.designs(self._retries, self.name))

    async def plan(
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
        return await self._client.run(calls.plan(self._retries, self.name, asked))

    async def plans(self) -> list[RemotePlan]:
        """Return the stored plans, oldest first."""
        return await self._client.run(calls.plans(self._retries, self.name))

    async def cancel(self) -> StudyStatus:
        """Cancel the study; the results so far are kept."""
        return await self._client.run(calls.cancel(self._retries, self.name))

    async def resume(
        self, spec: StudySpec | str | Path | None = None, *, retry_failed: bool = False
    ) -> StudyStatus:
        """Queue the study again after it has ended; a finished study needs a ``spec`` with a larger budget.

        Failed trials are trained again with ``retry_failed``, or if the program or its command in ``spec`` has changed.
        """
        return await self._client.run(
            calls.resume(self._retries, self.name, spec, retry_failed=retry_failed)
        )

    async def rename(self, name: str) -> StudyStatus:
        """Rename the study; this object then uses the new name. Raises :class:`ConflictError` if the study is
        running or the name is taken.
        """
        status = await self._client.run(calls.rename(self._retries, self.name, name))
        self.name = status.name
        return status

    async def delete(self) -> None:
        """Remove the study and all its data; raise :class:`ConflictError` if the study is running."""
        await self._client.run(calls.delete(self._retries, self.name))

    def __repr__(self) -> str:
        return f"AsyncRemoteStudy({self.name!r} at {self._client.url})"
