"""Published MLPerf results as outcomes: their logs, their settings in this project's terms, and their import.

The logs are parsed here and not by the ``mlperf-logging`` package: its parser counts log lines instead of the file's
lines, so its errors give no position in the file, and it depends on pandas.
"""
