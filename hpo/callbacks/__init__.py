"""Callbacks that report from training frameworks to `hpo`; they do nothing outside a sweep."""
