"""A study exported as Parquet files, for pandas, polars, DuckDB and Spark.

``trials.parquet`` has one row per trial and one column per setting. ``convergence.parquet`` has one row per point,
ordered by trial and step, in row groups of whole trials. The metadata of a column's field gives its unit (``unit``),
and the metadata of each file gives the study's name, target and specification.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from storage.errors import StoreError
from storage.figures import TRIAL_FIELDS
from storage.records import Study, Trial
from storage.schema.setting_types import SETTING_TYPES
from storage.schema.tables import metadata
from storage.store import Store

if TYPE_CHECKING:
    import pyarrow

UNITS = {
    "global_batch_size": "samples",
    "normalization_batch_size": "samples",
    "adascale_batch_size": "samples",
    "samples": "samples",
    "gradient_noise_scale": "samples",
    "epochs": "epochs",
    "warmup_epochs": "epochs",
    "decay_epochs": "epochs",
    "decay_milestones": "epochs",
    "batch_milestones": "epochs",
    "rmsprop_center_epochs": "epochs",
    "rmsprop_period_epochs": "epochs",
    "step": "optimizer steps",
    "gradient_lag": "optimizer steps",
    "seconds": "seconds",
    "preconditioner_interval": "optimizer steps",
    "loss_scale_growth_updates": "optimizer steps",
    "started_at": "UTC",
    "finished_at": "UTC",
    **{each.name: each.unit for each in TRIAL_FIELDS if each.unit},
}
TRIALS_AT_A_TIME = 500
_IDENTITY = ("number", "state", "global_batch_size", "seed", "purpose")
_RESULTS = tuple(
    field.name
    for field in dataclasses.fields(Trial)
    if field.name not in ("id", "study_id", "settings", *_IDENTITY)
)


@dataclass(frozen=True)
class ParquetExport:
    """The files that were written, and their row counts."""

    trials: Path
    convergence: Path
    trial_rows: int
    convergence_rows: int


def write_parquet(store: Store, name: str, directory: Path) -> ParquetExport:
    """Write a study's trials and points into ``directory``; each file gets its final name when it is complete.

    Raises :class:`NotFound` if the study does not exist, and :class:`StoreError` if pyarrow is missing or the folder is
    not writable.
    """
    try:
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise StoreError(
            "writing Parquet needs pyarrow, which is not installed; "
            "pip install 'largebatch[export]'"
        ) from error
    study = store.study(name)
    trials = store.trials(study.id)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        paths = directory / "trials.parquet", directory / "convergence.parquet"
        _write_trials(study, trials, paths[0])
        points = _write_convergence(store, study, trials, paths[1])
    except OSError as error:
        raise StoreError(
            f"{directory} cannot be written ({error.strerror or error}); give a writable "
            f"folder, on a disk with free space"
        ) from error
    return ParquetExport(*paths, len(trials), points)


def _write_trials(study: Study, trials: Sequence[Trial], path: Path) -> None:
    import pyarrow as pa

    own = _own_fields(trials)
    schema = pa.schema(
        [
            *_fields("trials", _IDENTITY),
            *_fields("trials", SETTING_TYPES),
            *own,
            *_fields("trials", _RESULTS),
        ],
        metadata=_about(study),
    )
    rows = [_row(trial) for trial in trials]
    for field in own:
        if pa.types.is_string(field.type):
            for row in rows:
                value = row.get(field.name)
                row[field.name] = None if value is None else str(value)
    with _complete(path) as partial, _writer(partial, schema) as writer:
        writer.write_table(pa.Table.from_pylist(rows, schema=schema))


def _write_convergence(store: Store, study: Study, trials: Sequence[Trial], path: Path) -> int:
    import numpy as np
    import pyarrow as pa

    columns = [
        column.name for column in metadata.tables["convergence"].c if column.name != "trial_id"
    ]
    schema = pa.schema(
        [pa.field("trial", pa.int32(), nullable=False), *_fields("convergence", columns)],
        metadata=_about(study),
    )
    rows = 0
    with _complete(path) as partial, _writer(partial, schema) as writer:
        for first in range(0, len(trials), TRIALS_AT_A_TIME):
            numbers = {trial.id: trial.number for trial in trials[first : first + TRIALS_AT_A_TIME]}
            read = store.convergence(list(numbers))
            ids, places = np.unique(read.trial_id, return_inverse=True)
            trial = np.array([numbers[each] for each in ids.tolist()], dtype=np.int32)[places]
            arrays = [
                pa.array(trial),
                *(pa.array(getattr(read, name), from_pandas=True) for name in columns),
            ]
            writer.write_table(
                pa.Table.from_arrays(
                    [array.cast(field.type) for array, field in zip(arrays, schema, strict=True)],
                    schema=schema,
                )
            )
            rows += len(read)
    return rows


def _fields(table: str, names: Sequence[str] | Mapping[str, Any]) -> list[pyarrow.Field]:
    import pyarrow as pa
    from sqlalchemy import BigInteger, Boolean, Integer

    from storage.schema.column_types import FloatList, NumberType, UtcDateTime

    types = (
        (Boolean, pa.bool_()),
        (BigInteger, pa.int64()),
        (Integer, pa.int32()),
        (NumberType, pa.float64()),
        (FloatList, pa.list_(pa.float64())),
        (UtcDateTime, pa.timestamp("us", tz="UTC")),
    )
    fields = []
    for name in names:
        column = metadata.tables[table].c[name]
        found = next((arrow for sql, arrow in types if isinstance(column.type, sql)), pa.string())
        unit = {"unit": UNITS[name]} if name in UNITS else None
        fields.append(pa.field(name, found, nullable=bool(column.nullable), metadata=unit))
    return fields


def _own_fields(trials: Sequence[Trial]) -> list[pyarrow.Field]:
    """Return a column for each user-defined setting, with the type of its values, or text if they have
    several types.
    """
    import pyarrow as pa

    found: dict[str, set[type]] = {}
    for trial in trials:
        for name, value in trial.settings.items():
            if name not in SETTING_TYPES and value is not None:
                found.setdefault(name, set()).add(type(value))
    arrow = {
        frozenset({bool}): pa.bool_(),
        frozenset({int}): pa.int64(),
        frozenset({float}): pa.float64(),
        frozenset({int, float}): pa.float64(),
    }
    return [
        pa.field(name, arrow.get(frozenset(kinds), pa.string())) for name, kinds in found.items()
    ]


def _row(trial: Trial) -> dict[str, Any]:
    plain = {field.name: getattr(trial, field.name) for field in dataclasses.fields(trial)}
    return {**plain, **trial.settings, "state": str(trial.state)}


def _about(study: Study) -> dict[str, str]:
    relation = ">=" if study.higher_is_better else "<="
    return {
        "study": study.name,
        "target": f"{study.metric} {relation} {study.threshold!r}",
        "spec": study.spec,
    }


@contextlib.contextmanager
def _complete(path: Path) -> Iterator[Path]:
    partial = path.with_name(f"{path.name}.partial")
    try:
        yield partial
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _writer(path: Path, schema: pyarrow.Schema) -> Any:
    from pyarrow import parquet

    return parquet.ParquetWriter(path, schema, compression="zstd")
