"""Trainings that were run elsewhere, as trials of a study: read from tables and from other tools' storage."""
