"""Exports of a study to other programs: Optuna, MLflow, TensorBoard. :mod:`hpo.past_runs` imports runs."""
