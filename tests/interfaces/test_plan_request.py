"""The options of a plan are the same in Python, on the command line and over the network."""

import dataclasses
import inspect

import click
import pytest
from pydantic import ValidationError

import hpo
from hpo.cli.commands.full_machine import plan as plan_command
from hpo.client.async_client import AsyncRemoteStudy
from hpo.client.client import RemoteStudy
from hpo.errors import PlanError
from hpo.planning.request import PlanOptions
from hpo.planning.schedulers import SCHEDULERS
from hpo.runs.study_plan import make_plan, plan_study
from hpo.service.routes.plans import PlanBody, _request_of
from trainers.cost import WorkloadCost

FIELDS = {field.name: field for field in dataclasses.fields(hpo.PlanRequest)}
OPTIONS = {option.name: option for option in plan_command.params}
COST = WorkloadCost(25_557_032, 161, 2.4e10, 9e7, 1.1e5)
GOOD = {
    "machine": "summit",
    "nodes": 4,
    "ranks_per_node": 6,
    "workers": 24,
    "global_batch_size": "best",
    "micro_batch_size": 32,
    "minimise": "energy",
    "deadline_hours": 3.0,
    "slot_hours": 2.0,
    "chance": 0.8,
    "cost": "resnet50",
    "node_failure_hours": 50000.0,
    "launcher": "flux",
}
BAD = {
    "nodes": 0,
    "ranks_per_node": 0,
    "workers": -1,
    "global_batch_size": 0,
    "micro_batch_size": 0,
    "minimise": "money",
    "deadline_hours": 0.0,
    "slot_hours": -1.0,
    "chance": 1.0,
    "node_failure_hours": 0.0,
    "launcher": "sh",
    "cost": "resnet5",
    "machine": "summitt",
}


def by_command_line(name, value):
    """The value that the command hands on for one that is typed."""
    (flag, *_) = OPTIONS[name].opts
    context = plan_command.make_context("plan", ["study", flag, str(value)])
    return context.params[name]


def by_network(values):
    return _request_of(
        {
            name: value
            for name, value in dict(PlanBody.model_validate(values)).items()
            if name != "backend"
        }
    )


def test_the_faces_take_the_same_options():
    assert set(GOOD) == set(BAD) == set(FIELDS)
    script = {"modules", "container", "prefix"}  # what the ranks of the launch script start in
    others = {"study", "output", "storage", "as_json", "help"}
    assert set(OPTIONS) - others - script == set(FIELDS)
    assert set(PlanBody.model_fields) - {"backend"} == set(FIELDS)
    own = {"machine", "nodes", "workers"}
    assert set(PlanOptions.__annotations__) | own == set(FIELDS)
    for name, hint in PlanOptions.__annotations__.items():
        assert hint.__forward_arg__ == FIELDS[name].type, name
    for call in (make_plan, plan_study, RemoteStudy.plan, AsyncRemoteStudy.plan):
        parameters = inspect.signature(call).parameters
        assert (
            own < set(parameters) and parameters["options"].annotation == "Unpack[PlanOptions]"
        ), call


def test_the_faces_say_the_same_of_an_option():
    for name, field in FIELDS.items():
        assert (
            OPTIONS[name].help
            == PlanBody.model_fields[name].description
            == field.metadata["description"]
        )
        assert OPTIONS[name].default == PlanBody.model_fields[name].default == field.default
        kind = OPTIONS[name].type
        assert (
            tuple(kind.choices) if isinstance(kind, click.Choice) else None
        ) == field.metadata.get("choices"), name


@pytest.mark.parametrize("name", GOOD)
def test_what_one_face_takes_all_take(name):
    wanted = hpo.PlanRequest(**{name: GOOD[name]})
    assert hpo.PlanRequest(**{name: by_command_line(name, GOOD[name])}) == wanted
    assert by_network({name: GOOD[name]}) == wanted


@pytest.mark.parametrize("launcher", SCHEDULERS)
def test_every_launcher_can_be_asked_for(launcher):
    assert (
        by_network({"launcher": launcher}).launcher
        == by_command_line("launcher", launcher)
        == launcher
    )
    assert hpo.PlanRequest(launcher=launcher).launcher == launcher


@pytest.mark.parametrize("name", sorted(set(BAD) - {"cost", "machine"}))
def test_what_one_face_refuses_all_refuse(name):
    with pytest.raises(PlanError, match=name):
        hpo.PlanRequest(**{name: BAD[name]})
    with pytest.raises((PlanError, click.UsageError)):
        hpo.PlanRequest(**{name: by_command_line(name, BAD[name])})
    with pytest.raises((ValidationError, PlanError)):
        by_network({name: BAD[name]})


@pytest.mark.parametrize("value", [1.5, True, "4", float("nan")])
def test_a_number_of_another_kind_is_refused(value):
    with pytest.raises(
        PlanError, match=r"nodes must be a whole number from 1 to 1,000,000, but got"
    ):
        hpo.PlanRequest(nodes=value)


def test_a_name_that_is_no_option_is_told_with_the_nearest():
    with pytest.raises(
        PlanError, match="no option 'node_failure_hour'; did you mean 'node_failure_hours'"
    ):
        hpo.PlanRequest.of(node_failure_hour=3)
    with pytest.raises(ValidationError, match="node_failure_hour"):
        by_network({"node_failure_hour": 3})


def test_figures_of_a_cost_are_taken_and_checked(tmp_path):
    assert by_network({"cost": dataclasses.asdict(COST)}).cost == COST
    for wrong in ({"flops_per_sample": 0.0}, {"parameters": -1}, {"more": 1}):
        with pytest.raises(ValidationError):
            by_network({"cost": {**dataclasses.asdict(COST), **wrong}})
    (tmp_path / "cost.yaml").write_text("parameters: 1\n")
    for path in (str(tmp_path / "cost.yaml"), "/etc/passwd", "../cost.yaml"):
        with pytest.raises(PlanError, match="cost must be one of"):
            by_network({"cost": path})


@pytest.mark.medium
def test_the_figures_are_checked_in_python_too(study):
    forecast = hpo.forecast(study.result, 64)
    with pytest.raises(
        PlanError, match="cost: flops_per_sample must be a finite number above 0, but got 0"
    ):
        hpo.make_plan(forecast, "summit", cost=dataclasses.replace(COST, flops_per_sample=0.0))


def test_python_and_the_command_line_make_the_same_plan_as_the_request(study):
    asked = {
        "machine": "summit",
        "nodes": 2,
        "cost": "resnet50",
        "node_failure_hours": 5000.0,
        "launcher": "other",
        "slot_hours": 2.0,
    }
    _, plan = hpo.plan_study(study.result, **asked)
    _, same = hpo.plan_study(
        study.result, **{name: by_command_line(name, value) for name, value in asked.items()}
    )
    assert plan == same and (plan.launcher, plan.nodes, plan.slot_seconds) == ("other", 2, 7200.0)
