"""Connects the dashboard to the server, so that neither imports the other."""

from __future__ import annotations

from typing import Any


def dashboard_routers(path: str = "") -> list[Any]:
    """Return the routers of the pages, with the server's permissions and fits; ``path`` is the configured prefix."""
    from hpo.dashboard.access import PageAccess
    from hpo.dashboard.data_routes import data_routes
    from hpo.dashboard.pages import dashboard_routes
    from hpo.service.context import SLASH, requires_scope, server_context_of
    from hpo.service.routes.plans import visible_calibration

    def store(request: Any) -> Any:
        return server_context_of(request).open_store()

    def forecast(request: Any, study: Any, batch: int) -> Any:
        context = server_context_of(request)
        if context.forecasts.remembered(store(request), study, [batch], ()) is None:
            context.check_computation(request.state.principal)
        return context.forecasts.make(store(request), study, [batch])[0]

    access = PageAccess(
        reader=requires_scope("read"),
        store=store,
        study=lambda request, who, name: server_context_of(request).read_study(
            who, name.replace(SLASH, "/")
        ),
        laws=lambda request, study: server_context_of(request).forecasts.laws(
            store(request), study
        ),
        forecast=forecast,
        result=lambda request, study: (
            server_context_of(request).forecasts.fitted(store(request), study).result
        ),
        kept=lambda request, study, what, make: server_context_of(request).forecasts.kept(
            store(request), study, what, make
        ),
        compute=lambda request, who, work: server_context_of(request).computations.run(
            who, request.state.slot, work
        ),
        calibration=lambda request, who: visible_calibration(server_context_of(request), who),
    )
    return [dashboard_routes(path), data_routes(access)]
