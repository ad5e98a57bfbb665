"""The client of a server: ``hpo.Client`` and ``hpo.AsyncClient``.

:mod:`calls` makes the requests of each call and reads the responses, without touching a network; :mod:`client` and
:mod:`async_client` send the requests with httpx. Nothing here needs torch, Ray, a database or a web framework.
"""
