"""The bounds on figures that the service enforces on its inputs, and checksums of ended trials and study files.

A row that violates a bound is set aside first: the original row goes into the table ``quarantine``. A violating point
is then removed; a violating trial or outcome loses its impossible figures and, if it has ended, is marked as failed.
`hpo db check` reports these rows.
"""

from __future__ import annotations

import json
import re

import sqlalchemy as sa
from alembic import op

from storage.statements import checksums

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

_Bounds = dict[str, tuple[float, float]]
_ENDED: _Bounds = {
    "epochs_to_target": (1e-12, 10**13),
    "epochs": (0, 10**13),
    "steps": (0, 10**13),
    "seconds": (0, 10**13),
    "resolution_epochs": (0, 10**13),
    "samples": (0, 4 * 10**15),
}
_POINT: _Bounds = {
    "step": (0, 10**13),
    "samples": (0, 4 * 10**15),
    "epochs": (0, 10**13),
    "seconds": (0, 10**13),
    "learning_rate": (0, 1e18),
    "global_batch_size": (1, 2**31 - 1),
}
_OUTCOME: _Bounds = {
    "epochs_to_target": (1e-12, 10**13),
    "epochs": (0, 10**13),
    "seconds": (0, 10**13),
    "workers": (1, 2**31 - 1),
    "restarts": (0, 2**31 - 1),
    "nodes": (1, 2**31 - 1),
    "samples_per_second": (1e-12, 1e18),
}
_NEEDED = {
    "epochs": 0,
    "seconds": 0,
    "workers": 1,
    "restarts": 0,
}  # an outcome's figures that may not be NULL
_KEYS = {"trials": ("id",), "convergence": ("trial_id", "step"), "outcomes": ("id",)}


def upgrade() -> None:
    op.add_column("trials", sa.Column("checksum", sa.BigInteger()))
    op.add_column("studies", sa.Column("checksum", sa.BigInteger()))
    op.create_table(
        "quarantine",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("content", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
    )
    for table, figures in (("convergence", _POINT), ("trials", _ENDED), ("outcomes", _OUTCOME)):
        condition = " AND ".join(
            f"({name} BETWEEN {least} AND {most})" for name, (least, most) in figures.items()
        )
        _set_aside(table, figures, condition)
        constrain(table, condition)
    checksums.write_all(op.get_bind())


def downgrade() -> None:
    for table in ("convergence", "trials", "outcomes"):
        constrain(table, None)
    op.drop_table("quarantine")
    for table in ("studies", "trials"):
        op.drop_column(table, "checksum")


def _set_aside(table: str, figures: _Bounds, condition: str) -> None:
    connection = op.get_bind()
    rows = connection.exec_driver_sql(f"SELECT * FROM {table} WHERE NOT ({condition})")
    for row in rows.mappings().all():
        broken = [
            name
            for name, (least, most) in figures.items()
            if row[name] is not None
            and not (isinstance(row[name], (int, float)) and least <= row[name] <= most)
        ]
        kept = sa.text("INSERT INTO quarantine (source, content, reason) VALUES (:s, :c, :r)")
        reason = "; ".join(f"{name} is {str(row[name])[:40]}" for name in broken)
        connection.execute(kept, {"s": table, "c": json.dumps(dict(row), default=str), "r": reason})
        where = " AND ".join(f"{key} = :{key}" for key in _KEYS[table])
        keys = {key: row[key] for key in _KEYS[table]}
        if table == "convergence":
            connection.execute(sa.text(f"DELETE FROM convergence WHERE {where}"), keys)
            continue
        values: dict[str, object] = dict.fromkeys(broken)
        if table == "outcomes":
            values = {name: _NEEDED.get(name) for name in broken}
        if row["state"] not in ("queued", "running"):
            values |= {"state": "failed", "epochs_to_target": None}
            values["reason"] = f"set aside because of impossible figures: {reason}"
        changes = ", ".join(f"{name} = :new_{name}" for name in values)
        new = {f"new_{name}": value for name, value in values.items()}
        connection.execute(sa.text(f"UPDATE {table} SET {changes} WHERE {where}"), {**keys, **new})


def constrain(table: str, condition: str | None, rule: str = "figures") -> None:
    """Add a rule to a table; a condition of None removes the rule.

    SQLite has no statement for this. The table is recreated from its own CREATE statement with the rule added, because
    Alembic's version would lack WITHOUT ROWID.
    """
    name, connection = f"ck_{table}_{rule}", op.get_bind()
    if connection.dialect.name != "sqlite":
        if condition is None:
            op.execute(f"ALTER TABLE {table} DROP CONSTRAINT {name}")
        else:
            op.execute(f"ALTER TABLE {table} ADD CONSTRAINT {name} CHECK ({condition})")
        return
    made = connection.exec_driver_sql(
        "SELECT type, sql FROM sqlite_master WHERE tbl_name = ? AND sql IS NOT NULL", (table,)
    ).all()
    (statement,) = [sql for kind, sql in made if kind == "table"]
    if condition is None:
        statement = re.sub(rf",\s*CONSTRAINT {name} CHECK \(.*\)(?=\n*\))", "", statement)
    else:
        before, bracket, after = statement.rpartition(")")
        statement = (
            f"{before.rstrip()}, \n\tCONSTRAINT {name} CHECK ({condition})\n{bracket}{after}"
        )
    statement = re.sub(rf'^CREATE TABLE "?{table}"?', f"CREATE TABLE {table}_new", statement)
    connection.exec_driver_sql(statement)
    connection.exec_driver_sql(f"INSERT INTO {table}_new SELECT * FROM {table}")
    connection.exec_driver_sql(f"DROP TABLE {table}")
    connection.exec_driver_sql(f"ALTER TABLE {table}_new RENAME TO {table}")
    for kind, sql in made:
        if kind == "index":
            connection.exec_driver_sql(sql)
