"""Figures of a study as Plotly figures, for notebooks, the HTML report and live pages.

::

    result = hpo.read_study("digits")
    hpo.figures.ladder(result, hpo.fit_posterior(result)).show()

Each function returns a ``plotly.graph_objects.Figure``. Most take a :class:`hpo.StudyResult`; ``sample_images`` takes
the sample images of a model, ``calibration``, ``calibration_of_time`` and ``trade_offs`` take rows, and
``pareto_front`` and ``time_shares`` take a :class:`hpo.Plan`. None of these functions fits laws: laws are drawn from a
given posterior (:func:`hpo.fit_posterior`), and left out without one.
"""

from __future__ import annotations

from hpo.dashboard.batch_figures import ladder, setting_against_batch
from hpo.dashboard.importance_figures import contour, importances, slice_plot
from hpo.dashboard.outcome_figures import calibration, calibration_of_time, validation
from hpo.dashboard.plan_figures import pareto_front, time_shares, trade_offs
from hpo.dashboard.sample_image_figures import sample_images
from hpo.dashboard.size_figures import cost_against_interval
from hpo.dashboard.trial_figures import learning_curves, noise_scale, parallel_coordinates, response

__all__ = [
    "calibration",
    "calibration_of_time",
    "contour",
    "cost_against_interval",
    "importances",
    "ladder",
    "learning_curves",
    "noise_scale",
    "parallel_coordinates",
    "pareto_front",
    "response",
    "sample_images",
    "setting_against_batch",
    "slice_plot",
    "time_shares",
    "trade_offs",
    "validation",
]
