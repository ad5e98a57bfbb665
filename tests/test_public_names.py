"""The public names of each package are listed in its ``__all__``, documented, and changed only on purpose."""

from __future__ import annotations

import ast
import importlib
import inspect
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

PUBLIC = {
    "search_spaces": "SCALING_RULES Categorical Domain Float Int Role ScalingRule SearchSpace SearchSpaceError "
    "SettingError TrainingSettings",
    "trainers": "CheckpointError CommunicationError ConvergencePoint DataError JobError Target TrainerError "
    "TrainingJob TrainingOutcome WorkloadError",
    "storage": "Conflict InvalidRecord LeaseLost NotFound SchemaTooNew Store StoreError "
    "StoreUnavailable",
    "hpo": "AskTell AskedTrial AsyncClient Client Design Designs HpoError Importances Plan PlanRequest PlannedRun "
    "ProgramTrial Progress StudyForecast StudyResult StudySpec TradeOff ask_tell calibration delete_study designs "
    "figures find_plan fit_posterior forecast importances launch launch_here load_study make_plan parse_study "
    "plan_study race read_study record rename_study report run_study should_stop store_plan studies submit_plan "
    "to_optuna trade_offs trial",
}
ONE_MEANING = {
    "ConvergencePoint": {"storage.figures", "trainers.report"},
    "WorkloadCost": {"storage.service_records", "trainers.cost"},
}
"""Classes of one name in two packages of which neither may import the other; both mean the same."""


@pytest.mark.parametrize("package", PUBLIC)
def test_what_is_public_is_named_once_and_described(package: str) -> None:
    module = importlib.import_module(package)
    assert sorted(module.__all__) == sorted(PUBLIC[package].split())
    assert set(module.__all__) <= {*dir(module)}
    for name in module.__all__:
        public = getattr(module, name)
        if inspect.isclass(public) or inspect.isfunction(public):
            assert inspect.getdoc(public), f"{package}.{name} has no docstring"
            assert public.__module__.split(".")[0] == package


def test_a_name_that_is_not_public_is_refused() -> None:
    for package in ("hpo", "storage"):
        with pytest.raises(AttributeError, match="no attribute 'nothing'"):
            _ = importlib.import_module(package).nothing


def test_no_class_name_has_two_meanings() -> None:
    homes: dict[str, set[str]] = defaultdict(set)
    for package in PUBLIC:
        for path in (ROOT / package).rglob("*.py"):
            module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.ClassDef):
                    homes[node.name].add(module)
    twice = {name: modules for name, modules in homes.items() if len(modules) > 1}
    assert twice == ONE_MEANING
