"""The client of a server: ``hpo.Client`` and ``hpo.AsyncClient``.

:mod:`calls` says what each call asks and makes of the answers, without touching a network; :mod:`blocking` and
:mod:`concurrent` carry the requests, with httpx. Nothing here needs torch, Ray, a database or a web framework.
"""
