"""Definitions shared by all tables: the metadata with its naming conventions, and the common column types."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from sqlalchemy import CheckConstraint, Column, Enum, ForeignKey, Integer, MetaData, Text
from sqlalchemy import text as sql

from storage.schema.column_types import NumberType, PlainText, UtcDateTime

metadata = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
    }
)

_SINGULAR = {
    "studies": "study",
    "trials": "trial",
    "forecasts": "forecast",
    "plans": "plan",
    "outcomes": "outcome",
    "tokens": "token",
}


def identity_column() -> Column[int]:
    """Return a primary key column."""
    return Column("id", Integer, primary_key=True)


def parent_column(
    table: str, *, nullable: bool = False, primary_key: bool = False, on_delete: str = "CASCADE"
) -> Column[int]:
    """Return a foreign key to the owning row in another table; deleting that row cascades."""
    return Column(
        f"{_SINGULAR[table]}_id",
        ForeignKey(f"{table}.id", ondelete=on_delete),
        nullable=nullable,
        primary_key=primary_key,
    )


def enumeration_type(kind: type[StrEnum], rule: str) -> Enum:
    """Return the column type of an enumeration, stored as text; the database rejects any other value."""
    return Enum(
        kind,
        values_callable=lambda members: [member.value for member in members],
        name=rule,
        length=16,
        native_enum=False,
        create_constraint=True,
        validate_strings=True,
    )


def number_column(
    name: str, *, nullable: bool = False, earlier: str | None = None
) -> Column[float]:
    """Return a double column that stores NaN as NULL; ``earlier`` is the value for rows older than the column."""
    return Column(
        name,
        NumberType,
        nullable=nullable,
        server_default=sql(earlier) if earlier is not None else None,
    )


def integer_column(name: str, *, nullable: bool = False, earlier: str | None = None) -> Column[int]:
    """Return an integer column; ``earlier`` is the value for rows older than the column."""
    return Column(
        name,
        Integer,
        nullable=nullable,
        server_default=sql(earlier) if earlier is not None else None,
    )


def text_column(name: str, *, earlier: str | None = None) -> Column[str]:
    """Return a text column; ``earlier`` is the value for rows older than the column."""
    return Column(
        name,
        Text,
        nullable=False,
        server_default=sql(f"'{earlier}'") if earlier is not None else None,
    )


def readable_text_column(name: str) -> Column[str]:
    """Return a column for readable text from a client, with control characters escaped."""
    return Column(name, PlainText, nullable=False)


def time_column(name: str, *, nullable: bool = False) -> Column[Any]:
    """Return a column for a time in UTC."""
    return Column(name, UtcDateTime, nullable=nullable)


def check_rule(name: str, condition: str) -> CheckConstraint:
    """Return a CHECK constraint."""
    return CheckConstraint(condition, name=name)
