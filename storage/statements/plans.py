"""Plans and their outcomes: statements on one connection; the contract is in ``storage.store``."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from sqlalchemy import Connection, Row, insert, select

from storage import clock
from storage.errors import InvalidRecord, NotFound
from storage.records import NewOutcome, NewPlan, Outcome, StoredPlan
from storage.schema import settings_columns
from storage.schema.tables import forecasts, outcomes, plans
from storage.statements import studies


def add(connection: Connection, new: NewPlan) -> StoredPlan:
    """Store a plan of a study, with the forecast that it follows where there is one."""
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
    """The plan with that id."""
    row = connection.execute(select(plans).where(plans.c.id == plan_id)).first()
    if row is None:
        known = (
            connection.execute(select(plans.c.id).order_by(plans.c.id.desc()).limit(5))
            .scalars()
            .all()
        )
        hint = f"the newest are {', '.join(map(str, known))}" if known else "there are no plans yet"
        raise NotFound(f"there is no plan {plan_id}; {hint}")
    return _plan(row)


def of_study(connection: Connection, study_id: int) -> list[StoredPlan]:
    """The plans of a study, oldest first."""
    statement = select(plans).where(plans.c.study_id == study_id).order_by(plans.c.id)
    return [_plan(row) for row in connection.execute(statement)]


def add_outcome(connection: Connection, new: NewOutcome) -> Outcome:
    """Store what a launch of a plan did."""
    by_id(connection, new.plan_id)
    values = {field.name: getattr(new, field.name) for field in fields(new)}
    statement = (
        insert(outcomes).values(created_at=clock.now(connection), **values).returning(outcomes)
    )
    return _outcome(connection.execute(statement).one())


def outcomes_of(connection: Connection, plan_id: int) -> list[Outcome]:
    """The outcomes of a plan, oldest first."""
    by_id(connection, plan_id)
    statement = select(outcomes).where(outcomes.c.plan_id == plan_id).order_by(outcomes.c.id)
    return [_outcome(row) for row in connection.execute(statement)]


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
            "a plan and its forecast must be of one study, but got a plan of study "
            f"{study_id} and a forecast of study {owner}"
        )


def _plan(row: Row[Any]) -> StoredPlan:
    settings, other = settings_columns.SplitRows(row._fields).split(row)
    return StoredPlan(settings=settings, **other)


def _outcome(row: Row[Any]) -> Outcome:
    return Outcome(**row._asdict())
