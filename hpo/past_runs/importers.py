"""The registry of importers of past runs, for ``hpo import`` and the authors of plug-ins.

The function named by ``rule`` reads the source; :mod:`hpo.past_runs.conversion` then converts the runs' names, values
and final states.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from search_spaces.plugins import PluginRegistry, plugin_instance_of

OTHER = "mlperf"
"""The command of ``hpo import`` that reads outcomes instead of runs; no importer may use this name."""


COMMON = frozenset(
    {
        "source",
        "study",
        "map",
        "mapping",
        "state",
        "states",
        "axis",
        "train_samples",
        "dry_run",
        "storage",
        "json",
        "as_json",
        "help",
    }
)
"""The arguments and options that ``hpo import`` adds to every importer, which no importer may have itself."""


@dataclass(frozen=True, kw_only=True)
class ImporterOption:
    """An importer's option ``--name``: a string, or a path if ``file`` is set; repeatable if ``many`` is set.

    The rule receives the option as a keyword argument: None if it is not given, a tuple if ``many`` is set.
    """

    what: str
    file: bool = False
    many: bool = False


@dataclass(frozen=True, kw_only=True)
class ImporterDescription:
    """An importer; ``about`` describes what it reads, and ``source`` is the origin of that format.

    ``rule`` names a function as ``module:attribute``. Called with the source and the ``options``, it returns a list of
    :class:`hpo.past_runs.past_run.PastRun`, each with a unique label, or raises :class:`hpo.errors.EvidenceError`. The
    source is a :class:`pathlib.Path` if it is a ``file`` or a folder, otherwise the given text. ``details`` is added to
    the command's help.
    """

    rule: str
    about: str
    source: str
    file: bool = True
    options: Mapping[str, ImporterOption] = field(default_factory=dict)
    details: str = ""

    def __post_init__(self) -> None:
        if not all(self.rule.partition(":")):
            raise ValueError(f"rule must be 'package.module:attribute', but got {self.rule!r}")


def _accepted(name: str, found: object) -> ImporterDescription:
    if name == OTHER:
        raise ValueError(f"{OTHER} is a command of hpo import itself; give it another name")
    described = plugin_instance_of(ImporterDescription)(name, found)
    for option in described.options:
        if not re.fullmatch(r"[a-z][a-z0-9_]*", option):
            raise ValueError(
                f"an option must be lowercase letters, digits and underscores, but got {option!r}"
            )
        if option in COMMON:
            raise ValueError(
                f"its option {option} is one that all importers have; give it another name"
            )
    return described


IMPORTERS: PluginRegistry[ImporterDescription] = PluginRegistry(
    "importers",
    {
        "csv": ImporterDescription(
            rule="hpo.past_runs.csv_tables:read_csv",
            about="a table with one row per run; the column run names the runs",
            source="RFC 4180",
            options={
                "curves": ImporterOption(
                    what="A second table with the columns run and step, and a column for each metric.",
                    file=True,
                )
            },
        ),
        "wandb": ImporterDescription(
            rule="hpo.past_runs.wandb_project:read_wandb",
            about="runs of Weights & Biases: the CSV export of their table, or a project, ENTITY/PROJECT, by its API",
            source="its pages on exporting and on its public API",
            file=False,
            options={
                "chart": ImporterOption(
                    what="The CSV export of a chart, with the curves of the runs; may be repeated.",
                    file=True,
                    many=True,
                )
            },
        ),
        "mlflow": ImporterDescription(
            rule="hpo.past_runs.mlflow_store:read_mlflow",
            about="runs of MLflow: from a folder mlruns, sqlite:///mlflow.db, or a tracking server",
            source="mlflow.store.tracking",
            file=False,
            options={"experiment": ImporterOption(what="Only the runs of this experiment.")},
        ),
        "tensorboard": ImporterDescription(
            rule="hpo.past_runs.tensorboard_folder:read_tensorboard",
            about="TensorBoard runs: each folder below SOURCE with event files is a run",
            source="tensorboard/compat/proto/event.proto",
        ),
        "optuna": ImporterDescription(
            rule="hpo.past_runs.optuna_database:read_optuna",
            about="the trials of an Optuna study; SOURCE is a URL or a file",
            source="optuna.storages",
            file=False,
            options={"name": ImporterOption(what="The Optuna study, if there are several.")},
            details="A trial's return value is called value, and its values at each step intermediate_value.",
        ),
    },
    _accepted,
)
