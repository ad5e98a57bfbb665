"""Forecasts from a table of runs, without a study: `hpo extrapolate` and `hpo throughput`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Literal

import click

from hpo.cli.commands import options

MOST_DIGITS = 15
"""The most digits of a number of accelerators and of a batch size."""


class _Scale(click.ParamType):  # type: ignore[type-arg]     # generic only in newer versions of click
    """A size that grows and its value at full scale, ``NAME=VALUE``."""

    name = "NAME=VALUE"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, float]:
        """Return both parts; fail with a usage error for anything else."""
        if isinstance(value, tuple):
            return value
        name, _, text = str(value).partition("=")
        try:
            size = float(text)
        except ValueError:
            size = math.nan
        if not name or not (math.isfinite(size) and size > 0):
            self.fail(
                f"{value!r} is not COLUMN=VALUE: a column and its value at full scale, a "
                f"number above 0, such as width=256",
                param,
                ctx,
            )
        return name, size


@click.command()
@click.argument("table", type=click.Path(path_type=Path))
@click.option(
    "--at",
    "batches",
    metavar="B",
    type=options.FORECAST_BATCH,
    multiple=True,
    required=True,
    help="Global batch size to forecast for; may be repeated.",
)
@click.option(
    "--strict",
    is_flag=True,
    help="Refuse columns that are not known settings; without --strict, each is a free setting "
    "that is forecast like the others if its values are numbers.",
)
@click.option(
    "--best",
    "metric",
    metavar="METRIC",
    help="Forecast the best value of this column within --within epochs, not the epochs to a target.",
)
@click.option(
    "--within",
    "epochs",
    metavar="EPOCHS",
    type=click.FloatRange(min=0, min_open=True, max=1e6),
    help="The number of epochs for which every run in the table trained; needs --best.",
)
@click.option(
    "--direction",
    type=click.Choice(["maximize", "minimize"]),
    help="Whether a higher or a lower METRIC is better; default: inferred from its name.",
)
@click.option(
    "--full-scale",
    "scales",
    metavar="NAME=VALUE",
    type=_Scale(),
    multiple=True,
    help="A column of model sizes (width, parameters) or training lengths (samples, tokens), and "
    "the value to forecast for; may be repeated.",
)
@options.budgets
@options.json_output
def extrapolate(
    table: Path,
    batches: tuple[int, ...],
    strict: bool,
    metric: str | None,
    epochs: float | None,
    direction: Literal["maximize", "minimize"] | None,
    scales: tuple[tuple[str, float], ...],
    budgets: tuple[float, ...],
    as_json: bool,
) -> None:
    """Forecast epochs to target and settings from a TABLE.csv of past runs; no study is needed.

    Columns: global_batch_size and epochs_to_target; optionally runs, sd, samples_per_epoch, state (reached; or
    censored, diverged or pruned, with the epochs after which the run ended), optimizer and any other setting. With
    --best METRIC --within EPOCHS, the column METRIC replaces epochs_to_target. Columns named by --full-scale are sizes
    that grow together with the batch; if one is a training length, --within counts epochs at full scale.
    """
    if (metric is None) != (epochs is None) or (direction and metric is None):
        raise click.UsageError(
            "--best METRIC and --within EPOCHS must be given together, and --direction only "
            "with them"
        )
    import numpy as np

    from hpo.cli.output import tables
    from hpo.extrapolation.evidence.table import read_table
    from hpo.extrapolation.forecast import forecast
    from hpo.extrapolation.inference.posterior import fit

    question = None
    if metric is not None and epochs is not None:
        from hpo.study.target import best_value_target
        from trainers.job import Question

        question = Question(best_value_target(metric, direction), epochs)
    posterior = fit(
        read_table(table, strict=strict, question=question, full_scale=dict(scales)),
        rng=np.random.default_rng(0),
    )
    forecasts = [forecast(posterior, batch, budgets=budgets) for batch in batches]
    options.show(
        lambda: [each.to_dict() for each in forecasts],
        lambda: tables.show_forecasts(forecasts),
        as_json,
    )


class _Configuration(click.ParamType):  # type: ignore[type-arg]     # generic only in newer versions of click
    """Accelerators and global batch size, ``N:B``."""

    name = "N:B"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, int]:
        """Return both counts; fail with a usage error for anything else."""
        if isinstance(value, tuple):
            return value
        counts = [
            int(part) if part.isascii() and part.isdigit() and len(part) <= MOST_DIGITS else 0
            for part in str(value).split(":")
        ]
        if len(counts) != 2 or min(counts) < 1:
            self.fail(
                f"{value!r} is not N:B, a number of accelerators and a global batch size, both "
                f"whole numbers of at least 1 and of at most {MOST_DIGITS} digits, such as 512:16384",
                param,
                ctx,
            )
        return counts[0], counts[1]


@click.command()
@click.argument("table", type=click.Path(path_type=Path))
@click.option(
    "--at",
    "configurations",
    metavar="N:B",
    type=_Configuration(),
    multiple=True,
    required=True,
    help="N accelerators at global batch size B; may be repeated.",
)
@click.option(
    "--machine",
    metavar="NAME|FILE",
    help="Machine that defines the accelerators per node, if the table does not: "
    "`local`, a name or a machine file.",
)
@options.json_output
def throughput(
    table: Path, configurations: tuple[tuple[int, int], ...], machine: str | None, as_json: bool
) -> None:
    """Predict samples per second from a TABLE.csv of measurements: accelerators, global_batch_size and
    samples_per_second, and optionally nodes, accelerators_per_node and runs.
    """
    from hpo.cli.output.throughput import show_throughputs
    from hpo.planning.machines import load_machine
    from hpo.planning.throughput import fit_throughput
    from hpo.planning.throughput.table import read_throughputs

    rows = read_throughputs(table)
    model = fit_throughput(rows, load_machine(machine) if machine else None)
    forecasts = [model.at(accelerators, batch) for accelerators, batch in configurations]
    options.show(
        lambda: [each.to_dict() for each in forecasts],
        lambda: show_throughputs(forecasts, rows),
        as_json,
    )
