"""Both kinds of client behind one interface, so that one test checks the same behaviour of both."""

import contextlib
import inspect

from anyio.from_thread import start_blocking_portal

import hpo
from hpo.client.async_client import AsyncRemoteStudy


class Awaited:
    """An AsyncClient or one of its studies, with each call awaited."""

    def __init__(self, inner, portal):
        self._inner, self._portal = inner, portal

    def __getattr__(self, name):
        found = getattr(self._inner, name)
        return self._call(found) if callable(found) else found

    def _call(self, method):
        def call(*arguments, **named):
            if inspect.iscoroutinefunction(method):
                result = self._portal.call(lambda: method(*arguments, **named))
            else:
                result = method(*arguments, **named)
            if hasattr(result, "__aiter__"):
                return self._portal.call(_gathered, result)
            return Awaited(result, self._portal) if isinstance(result, AsyncRemoteStudy) else result

        return call


async def _gathered(events):
    return [event async for event in events]


@contextlib.contextmanager
def client_of(kind, url, token, **options):
    """A client of the kind ``sync`` or ``async`` that is called the same way."""
    if kind == "sync":
        with hpo.Client(url, token, **options) as client:
            yield client
        return
    with start_blocking_portal() as portal:
        client = portal.call(lambda: hpo.AsyncClient(url, token, **options))
        with portal.wrap_async_context_manager(client):
            yield Awaited(client, portal)
