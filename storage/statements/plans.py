"""Plans and their outcomes: statements on one connection; the contract is in ``storage.store``."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from sqlalchemy import Connection, Row, insert, select

from storage.errors import InvalidRecord, NotFound
from storage.figures import PLAN_FIGURES, figures_fault
from storage.records import NewOutcome, NewPlan, Outcome, StoredPlan
from storage.schema import settings_columns
from storage.schema.tables import forecasts, outcomes, plans
from storage.statements import clock, damage, studies


def add(connection: Connection, new: NewPlan) -> StoredPlan:
    """Store a study's plan, which may refer to a forecast."""
    studies.lock(connection, new.study_id)
    if new.forecast_id is not None:
        _check_forecast(connection, new.forecast_id, new.study_id)
    values = {
        field.name: getattr(new, field.name) for field in fields(new) if field.name != "settings"
    }
    columns = {
        **values,
        "created_at": clock.now(connection),
        **settings_columns.to_columns(new.settings),
    }
    return _plan(connection.execute(insert(plans).values(columns).returning(plans)).one())


def by_id(connection: Connection, plan_id: int) -> StoredPlan:
    """Return the plan with the given id."""
    with damage.named(f"plan {plan_id}"):
        row = connection.execute(select(plans).where(plans.c.id == plan_id)).first()
        if row is not None:
            return _plan(row)
    known = connection.execute(select(plans.c.id).order_by(plans.c.id.desc()).limit(5)).scalars()
    newest = ", ".join(map(str, known))
    hint = f"the newest are {newest}" if newest else "there are no plans yet"
    raise NotFound(f"there is no plan {plan_id}; {hint}")


def of_study(connection: Connection, study_id: int) -> list[StoredPlan]:
    """Return the plans of a study, oldest first; damaged plans are left out."""
    statement = select(plans).where(plans.c.study_id == study_id).order_by(plans.c.id)
    return damage.sound(connection, statement, plans, lambda rows: [*map(_plan, rows)])


def add_outcome(connection: Connection, new: NewOutcome) -> Outcome:
    """Store the outcome of a launch of a plan."""
    by_id(connection, new.plan_id)
    values = {field.name: getattr(new, field.name) for field in fields(new)}
    statement = (
        insert(outcomes).values(created_at=clock.now(connection), **values).returning(outcomes)
    )
    return _outcome(connection.execute(statement).one())


def outcomes_of(connection: Connection, plan_id: int) -> list[Outcome]:
    """Return the outcomes of a plan, oldest first; damaged outcomes are left out."""
    by_id(connection, plan_id)
    statement = select(outcomes).where(outcomes.c.plan_id == plan_id).order_by(outcomes.c.id)
    return damage.sound(connection, statement, outcomes, lambda rows: [*map(_outcome, rows)])


def _check_forecast(connection: Connection, forecast_id: int, study_id: int) -> None:
    owner = connection.execute(
        select(forecasts.c.study_id).where(forecasts.c.id == forecast_id)
    ).scalar()
    if owner is None:
        raise NotFound(
            f"there is no forecast with id {forecast_id}; Store.forecasts({study_id}) lists the "
            "study's own"
        )
    if owner != study_id:
        raise InvalidRecord(
            "a plan and its forecast must belong to the same study, but got a plan of study "
            f"{study_id} and a forecast of study {owner}"
        )


def _plan(row: Row[Any]) -> StoredPlan:
    damage.check_kinds(plans, [row])
    settings, other = settings_columns.SplitRows(row._fields).split(row)
    plan = StoredPlan(settings=settings, **other)
    if fault := figures_fault(PLAN_FIGURES, plan):
        raise ValueError(fault)
    return plan


def _outcome(row: Row[Any]) -> Outcome:
    damage.check_kinds(outcomes, [row])
    return Outcome(**row._asdict())
