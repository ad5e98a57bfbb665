"""Checks for `hpo doctor` that a database can be opened and which schema it has, without reading its contents."""

from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy import text, update

from storage import migrations
from storage.database import Database
from storage.errors import StoreError
from storage.maintenance.checks import CheckFinding
from storage.maintenance.maintenance import open_without_upgrade
from storage.schema.tables import studies

MOST_OFFSET_SECONDS = 5.0


def probe_database(url: str) -> list[CheckFinding]:
    """Check that a database is readable and writable, with the current schema and correct time; change nothing."""
    try:
        with open_without_upgrade(url) as database:
            file = database.file
            if file is not None and not file.exists():
                return [
                    CheckFinding(
                        "storage",
                        "ok",
                        f"{database.url} does not exist yet; the first study creates it",
                    )
                ]
            with database.read() as connection:
                found = migrations.revision(connection)
            if found is None:
                return [
                    CheckFinding(
                        "storage", "ok", f"{database.url} is readable; its tables do not exist yet"
                    ),
                    _clock(database),
                ]
            if found != migrations.HEAD:
                return [
                    CheckFinding(
                        "storage",
                        "warn" if found < migrations.HEAD else "fail",
                        f"{database.url} has schema {found}, this release {migrations.HEAD}",
                        "hpo db upgrade" if found < migrations.HEAD else "upgrade largebatch",
                    )
                ]
            with database.write() as connection:
                connection.execute(update(studies).where(studies.c.id == -1).values(message=""))
            return [
                CheckFinding(
                    "storage", "ok", f"{database.url} is readable and writable, schema {found}"
                ),
                _clock(database),
                *_shared_memory(database),
            ]
    except StoreError as error:
        return [
            CheckFinding(
                "storage", "fail", str(error).split("; ")[0], str(error).partition("; ")[2]
            )
        ]


def _clock(database: Database) -> CheckFinding:
    """Check the offset between this machine's clock and the database's clock, which decides when leases expire."""
    if database.file is not None:
        return CheckFinding(
            "clock",
            "ok",
            f"leases use this machine's clock, {datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC",
        )
    with database.read() as connection:
        before = datetime.now(UTC)
        there = connection.execute(text("SELECT clock_timestamp()")).scalar_one()
        here = before + (datetime.now(UTC) - before) / 2
    seconds = (here - there).total_seconds()
    said = f"this machine's clock is {abs(seconds):.1f} s {'ahead of' if seconds > 0 else 'behind'} the database's"
    if abs(seconds) > MOST_OFFSET_SECONDS:
        return CheckFinding(
            "clock",
            "warn",
            said,
            "synchronize the clock with NTP; leases use the database's clock, and logs use this one",
        )
    return CheckFinding("clock", "ok", said)


def _shared_memory(database: Database) -> list[CheckFinding]:
    with database.read() as connection:
        if (
            database.file is None
            or connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
        ):
            return []
    return [
        CheckFinding(
            "storage",
            "warn",
            "the file system has no shared memory, so readers and writers block each other",
            "give a path on a local disk, or a PostgreSQL URL",
        )
    ]
