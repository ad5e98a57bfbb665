"""A study written for other programs: Optuna, MLflow, TensorBoard. Runs come in by :mod:`hpo.past_runs`."""
