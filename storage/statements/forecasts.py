"""Forecasts, their settings and laws: statements on one connection; the contract is in ``storage.store``."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, fields
from typing import Any

from sqlalchemy import Connection, Row, Table, insert, select

from storage.figures import FORECAST_FIGURES, figures_fault
from storage.records import Law, NewForecast, SettingForecast, StoredForecast
from storage.schema.tables import forecast_settings, forecasts, laws
from storage.statements import clock, damage, studies


def add(connection: Connection, new: NewForecast) -> StoredForecast:
    """Store a forecast, its settings and its laws."""
    studies.lock(connection, new.study_id)
    own = (field.name for field in fields(new) if field.name not in ("settings", "laws"))
    values = {name: getattr(new, name) for name in own}
    statement = (
        insert(forecasts).values(created_at=clock.now(connection), **values).returning(forecasts)
    )
    row = connection.execute(statement).one()
    _add_parts(connection, forecast_settings, row.id, new.settings)
    _add_parts(connection, laws, row.id, new.laws)
    return StoredForecast(settings=tuple(new.settings), laws=tuple(new.laws), **row._asdict())


def of_study(connection: Connection, study_id: int) -> list[StoredForecast]:
    """Return the forecasts of a study, oldest first; damaged forecasts are left out."""

    def made(rows: Sequence[Row[Any]]) -> list[StoredForecast]:
        ids = [row.id for row in rows]
        settings = _parts(connection, forecast_settings, ids)
        fitted = _parts(connection, laws, ids)
        return [
            _forecast(
                row,
                tuple(SettingForecast(**part) for part in settings[row.id]),
                tuple(Law(**part) for part in fitted[row.id]),
            )
            for row in rows
        ]

    statement = select(forecasts).where(forecasts.c.study_id == study_id).order_by(forecasts.c.id)
    return damage.sound(connection, statement, forecasts, made)


def _forecast(
    row: Row[Any], settings: tuple[SettingForecast, ...], fitted: tuple[Law, ...]
) -> StoredForecast:
    damage.check_kinds(forecasts, [row])
    forecast = StoredForecast(settings=settings, laws=fitted, **row._asdict())
    if fault := figures_fault(FORECAST_FIGURES, forecast):
        raise ValueError(fault)
    return forecast


def _add_parts(
    connection: Connection, table: Table, forecast_id: int, parts: Iterable[SettingForecast | Law]
) -> None:
    rows = [
        {"forecast_id": forecast_id, "position": position, **asdict(part)}
        for position, part in enumerate(parts)
    ]
    if rows:
        connection.execute(insert(table), rows)


def _parts(
    connection: Connection, table: Table, ids: Sequence[int]
) -> dict[int, list[dict[str, Any]]]:
    """Return rows of a forecast-part table, grouped by forecast, in insertion order."""
    statement = select(table).where(table.c.forecast_id.in_(ids))
    by_forecast: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for row in connection.execute(statement.order_by(table.c.position)):
        part = row._asdict()
        del part["position"]
        by_forecast[part.pop("forecast_id")].append(part)
    return by_forecast
