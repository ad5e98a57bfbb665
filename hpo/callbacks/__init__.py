"""Callbacks by which frameworks report to `hpo`; each is imported with its framework, and does nothing by hand."""
