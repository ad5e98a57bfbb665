"""The clients of a server: ``hpo.Client`` and ``hpo.AsyncClient``.

:mod:`calls` builds the requests of each call and parses the responses, without network access; :mod:`client` and
:mod:`async_client` send the requests with httpx. The package needs neither torch, Ray, a database nor a web framework.
"""
