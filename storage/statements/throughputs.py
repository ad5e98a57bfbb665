"""Measured throughputs and costs of workloads: statements on one connection; the contract is in ``storage.store``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, fields

from sqlalchemy import Connection, insert, select

from storage.database import insert_into
from storage.records import NewThroughput, Throughput, WorkloadCost
from storage.schema.tables import throughputs, workload_costs
from storage.statements import clock, studies


def add(connection: Connection, rows: Sequence[NewThroughput]) -> None:
    """Store measured throughputs."""
    now = clock.now(connection)
    if rows:
        names = [field.name for field in fields(NewThroughput)]
        connection.execute(
            insert(throughputs),
            [{**{name: getattr(row, name) for name in names}, "created_at": now} for row in rows],
        )


def every(connection: Connection, machine: str | None, workload: str | None) -> list[Throughput]:
    """Return measured throughputs, oldest first."""
    statement = select(throughputs).order_by(throughputs.c.id)
    if machine is not None:
        statement = statement.where(throughputs.c.machine == machine)
    if workload is not None:
        statement = statement.where(throughputs.c.workload == workload)
    return [Throughput(**row._asdict()) for row in connection.execute(statement)]


def keep_cost(connection: Connection, study_id: int, cost: WorkloadCost) -> None:
    """Store the cost of a study's workload, replacing any earlier cost."""
    studies.lock(connection, study_id)
    values = asdict(cost)
    new = insert_into(connection, workload_costs).values(study_id=study_id, **values)
    connection.execute(
        new.on_conflict_do_update(
            index_elements=["study_id"], set_={name: new.excluded[name] for name in values}
        )
    )


def cost(connection: Connection, study_id: int) -> WorkloadCost | None:
    """Return the cost of a study's workload; None if it is unknown."""
    row = connection.execute(
        select(workload_costs).where(workload_costs.c.study_id == study_id)
    ).first()
    if row is None:
        return None
    values = row._asdict()
    del values["study_id"]
    return WorkloadCost(**values)
