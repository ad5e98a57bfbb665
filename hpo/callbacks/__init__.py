"""Callbacks by which frameworks report to `hpo`; each needs its framework, and does nothing in a run by hand."""
