"""Trainings that were run elsewhere, as trials of a study: read from tables and from the stores of other tools."""
