"""Trainings that were run elsewhere, imported as trials of a study from tables and from other tools' storage."""
