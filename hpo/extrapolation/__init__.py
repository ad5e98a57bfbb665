"""Extrapolation: from a ladder of small batches to settings and epochs at a batch size that was never swept.

Use ``table.read_table`` or an ``evidence.Evidence`` of trials, then ``posterior.fit``, then ``forecast.forecast``.
"""
