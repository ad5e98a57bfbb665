"""Exports a study to other programs: Optuna, MLflow, TensorBoard, Weights & Biases and Aim. :mod:`hpo.past_runs`
imports runs.
"""
