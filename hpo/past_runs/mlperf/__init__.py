"""Imports published MLPerf results as outcomes: reads their logs and converts their settings.

The logs are not parsed with the ``mlperf-logging`` package, because its parser counts log lines instead of the file's
lines, so that its errors give no position in the file, and because it depends on pandas.
"""
