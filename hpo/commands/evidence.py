"""Forecasts from a table of runs, without a study: `hpo extrapolate`."""

from __future__ import annotations

from pathlib import Path

import click

from hpo.commands import options


@click.command()
@click.argument("table", type=click.Path(path_type=Path))
@click.option("--at", "batches", metavar="B", type=click.IntRange(min=1), multiple=True, required=True,
              help="Global batch size to forecast for; may be given several times.")
@options.budgets
@options.json_output
def extrapolate(table: Path, batches: tuple[int, ...], budgets: tuple[float, ...], as_json: bool) -> None:
    """Forecast epochs to target and settings from a TABLE.csv of batch sizes that were run; no study needed."""
    import numpy as np

    from hpo.extrapolation.forecast import forecast
    from hpo.extrapolation.posterior import fit
    from hpo.extrapolation.table import read_table
    from hpo.terminal import tables

    posterior = fit(read_table(table), rng=np.random.default_rng(0))
    forecasts = [forecast(posterior, batch, budgets=budgets) for batch in batches]
    options.show(lambda: [each.to_dict() for each in forecasts], lambda: tables.show_forecasts(forecasts), as_json)
