"""largebatch: tune large-batch training at small scale; extrapolate, plan and launch at full scale.

::

    import hpo

    spec = hpo.load_study("study.yaml")
    result = hpo.run_study(spec, storage="sqlite:///hpo.db")
    forecast = hpo.forecast(result, global_batch_size=32768)
    plan = hpo.make_plan(forecast, machine="local", workers=2)
    hpo.launch(plan)

    hpo.Client(url, token).submit(spec).wait()      # the same on a server

    hpo.report(epochs=3, top1=0.91)                 # in your own training program

The names here are loaded on first use, so that ``import hpo`` is fast. Together with the errors in :mod:`hpo.errors`,
they are the public interface; every other module is internal and may change.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hpo.callbacks.reporting import ProgramTrial, report, should_stop, trial
    from hpo.client.async_client import AsyncClient
    from hpo.client.client import Client
    from hpo.dashboard import figures
    from hpo.errors import HpoError
    from hpo.runs.api import (
        AskedTrial,
        AskTell,
        Design,
        Designs,
        Importances,
        Plan,
        PlannedRun,
        PlanRequest,
        Progress,
        StudyForecast,
        StudyResult,
        TradeOff,
        ask_tell,
        calibration,
        delete_study,
        designs,
        find_plan,
        fit_posterior,
        forecast,
        importances,
        launch,
        launch_here,
        make_plan,
        plan_study,
        race,
        read_study,
        record,
        rename_study,
        run_study,
        store_plan,
        studies,
        submit_plan,
        to_optuna,
        trade_offs,
    )
    from hpo.study.spec import StudySpec, load_study, parse_study

_HOMES = {
    "hpo.runs.api": (
        "AskTell",
        "AskedTrial",
        "Design",
        "Designs",
        "Importances",
        "Plan",
        "PlanRequest",
        "PlannedRun",
        "Progress",
        "StudyForecast",
        "StudyResult",
        "TradeOff",
        "ask_tell",
        "calibration",
        "delete_study",
        "designs",
        "find_plan",
        "fit_posterior",
        "forecast",
        "importances",
        "launch",
        "launch_here",
        "make_plan",
        "plan_study",
        "race",
        "read_study",
        "record",
        "rename_study",
        "run_study",
        "store_plan",
        "studies",
        "submit_plan",
        "to_optuna",
        "trade_offs",
    ),
    "hpo.errors": ("HpoError",),
    "hpo.client.client": ("Client",),
    "hpo.client.async_client": ("AsyncClient",),
    "hpo.callbacks.reporting": ("ProgramTrial", "report", "should_stop", "trial"),
    "hpo.study.spec": ("StudySpec", "load_study", "parse_study"),
}

__all__ = [
    "AskTell",
    "AskedTrial",
    "AsyncClient",
    "Client",
    "Design",
    "Designs",
    "HpoError",
    "Importances",
    "Plan",
    "PlanRequest",
    "PlannedRun",
    "ProgramTrial",
    "Progress",
    "StudyForecast",
    "StudyResult",
    "StudySpec",
    "TradeOff",
    "ask_tell",
    "calibration",
    "delete_study",
    "designs",
    "figures",
    "find_plan",
    "fit_posterior",
    "forecast",
    "importances",
    "launch",
    "launch_here",
    "load_study",
    "make_plan",
    "parse_study",
    "plan_study",
    "race",
    "read_study",
    "record",
    "rename_study",
    "report",
    "run_study",
    "should_stop",
    "store_plan",
    "studies",
    "submit_plan",
    "to_optuna",
    "trade_offs",
    "trial",
]


def __getattr__(name: str) -> Any:
    if name == "figures":
        return importlib.import_module("hpo.dashboard.figures")
    for home, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(home), name)
    raise AttributeError(f"module 'hpo' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
