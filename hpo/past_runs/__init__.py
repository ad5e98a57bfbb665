"""Imports training runs from elsewhere as trials of a study, from tables and from other tools' storage."""
