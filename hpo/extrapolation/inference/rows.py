"""Rows of a table: the mean epochs and the settings of tuned configurations, with their likelihood."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from hpo.extrapolation.evidence.evidence import AggregateRow
from hpo.extrapolation.inference.residual import log_student, residual_correlation
from hpo.extrapolation.laws.scales import Scales
from hpo.extrapolation.laws.setting_laws import SettingLaw, setting_coordinates

Array: TypeAlias = NDArray[np.float64]
Values: TypeAlias = Mapping[str, Array]

UNTOLD_SEED_SCATTER = 0.05  # relative sd of single runs if a table gives none
LEAST_SEED_SCATTER = 0.01  # targets are checked only at evaluations, so a given sd may be too small
COARSE = 0.03  # runs with equal epochs were evaluated too rarely; averaging does not help


@dataclass(frozen=True)
class TableRows:
    """Rows as arrays, shape (rows,): log batch, log epochs, standard error of the log epochs, coordinates.

    ``single`` is the standard deviation of the log epochs of single runs, and ``coarse`` the least error of any mean of
    runs. ``away`` is (rows, directions).
    """

    log_batch: Array
    log_epochs: Array
    error: Array
    single: Array
    coarse: Array
    settings: Sequence[Array]
    scales: Scales
    away: Array

    @property
    def places(self) -> Array:
        """The coordinates of the rows: (rows, 1 + directions)."""
        return np.column_stack([self.log_batch, self.away])

    def error_of_mean(self, runs: float) -> float:
        """Return the standard error of the log epochs of a mean over ``runs`` runs, as in the median row."""
        return float(np.median(np.maximum(self.single / np.sqrt(runs), self.coarse)))

    @functools.cached_property
    def axes(self) -> tuple[Array, Array]:
        """The axes (rows, rows) on which residuals and errors are independent, and the residuals' variances on them.

        ``gap @ axes`` has the variances ``scatter^2 * variances + 1``: one decomposition serves all particles.
        """
        variances, axes = np.linalg.eigh(
            residual_correlation(self.places) / np.outer(self.error, self.error)
        )
        return axes / self.error[:, None], np.maximum(variances, 0.0)

    def variances(self, values: Values) -> Array:
        """Return the variances of the log epochs on ``axes``, residuals and errors together: (particles, rows)."""
        scatter = np.exp(2 * values["log_recipe_scatter"])[:, None]
        return np.asarray(scatter * self.axes[1] + 1.0)

    def log_likelihood(self, values: Values, mean: Array, laws: Sequence[SettingLaw]) -> Array:
        """Return the log likelihood (particles,) given the law's log epochs at each row, ``mean`` (particles, rows).

        The likelihood is normal in log epochs. The rows' settings scatter around the best ones with the heavy tails of
        Student's t, since a published recipe may be badly tuned or state its learning rate in another unit.
        """
        variances = self.variances(values)
        square = ((self.log_epochs - mean) @ self.axes[0]) ** 2 / variances
        total = -0.5 * (square + np.log(variances)).sum(axis=1) - np.log(self.error).sum()
        for law, seen in zip(laws, self.settings, strict=True):
            total += self.log_likelihood_of_settings(values, law, seen)
        return np.asarray(total)

    def log_likelihood_of_settings(self, values: Values, law: SettingLaw, seen: Array) -> Array:
        """Return the log likelihood (particles,) of one tuned setting's coordinates; rows without it are skipped.

        It is 0 if the values hold no scatter: settings that no row has, or whose unknowns are sampled apart.
        """
        told, scatter = np.isfinite(seen), law.scatter(values)
        if scatter is None:
            return np.zeros(1)
        width = scatter[:, None]
        here = self.scales.log_batch(values, self.log_batch[told], self.away[told])
        best = law.best(values, here) + self.scales.shift(values, law.name, self.away[told])
        off = seen[told] - best
        return np.asarray(log_student(off / width).sum(axis=1) - told.sum() * np.log(width[:, 0]))

    def draw_residuals(self, values: Values, mean: Array, rng: np.random.Generator) -> Array:
        """Return a draw of the residuals given the epochs, by Matheron's rule: (particles, rows)."""
        scatter = np.exp(values["log_recipe_scatter"])[:, None]
        prior = residual_correlation(self.places)
        draw = scatter * (rng.standard_normal(mean.shape) @ np.linalg.cholesky(prior).T)
        gap = self.log_epochs - mean - draw - self.error * rng.standard_normal(mean.shape)
        pull = (gap @ self.axes[0]) / self.variances(values) @ self.axes[0].T
        return np.asarray(draw + scatter**2 * (pull @ prior))


def make_table_rows(
    aggregates: Sequence[AggregateRow], laws: Sequence[SettingLaw], scales: Scales
) -> TableRows:
    """Return the table rows as arrays, in order of increasing batch."""
    ordered = sorted(aggregates, key=lambda row: row.global_batch_size)
    relative = [row.sd / row.epochs_to_target for row in ordered if row.sd]
    usual = float(np.median(relative)) if relative else UNTOLD_SEED_SCATTER
    told = [usual if row.sd is None else row.sd / row.epochs_to_target for row in ordered]
    runs = np.array([row.runs or 1 for row in ordered])
    tied = np.array([row.sd == 0 for row in ordered], dtype=bool) & (runs > 1)
    single, coarse = np.maximum(told, LEAST_SEED_SCATTER), np.where(tied, COARSE, 0.0)
    return TableRows(
        np.log([float(row.global_batch_size) for row in ordered]),
        np.log([row.epochs_to_target for row in ordered]),
        np.maximum(single / np.sqrt(runs), coarse),
        single,
        coarse,
        [setting_coordinates(law, [row.settings for row in ordered]) for law in laws],
        scales,
        scales.away([row.settings for row in ordered]),
    )
