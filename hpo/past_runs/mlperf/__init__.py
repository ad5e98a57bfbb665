"""Published MLPerf results as outcomes: their logs, their settings in this project's terms, and the way into a storage.

The logs are read here and not by the ``mlperf-logging`` package: its parser counts log lines instead of the file's
lines, so that its errors name no place, and it brings pandas along.
"""
