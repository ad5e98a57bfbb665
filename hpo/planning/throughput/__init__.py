"""Samples per second on more accelerators than were measured, with intervals: a model fitted to a few measured rows."""

from hpo.planning.throughput.forecast import ThroughputForecast, ThroughputModel, fit_throughput
from hpo.planning.throughput.rows import Measurement

__all__ = ["Measurement", "ThroughputForecast", "ThroughputModel", "fit_throughput"]
