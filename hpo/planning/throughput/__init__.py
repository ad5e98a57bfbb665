"""Predicts samples per second, with intervals, on more accelerators than were measured, from a few measured rows."""

from hpo.planning.throughput.forecast import ThroughputForecast, ThroughputModel, fit_throughput
from hpo.planning.throughput.rows import Measurement

__all__ = ["Measurement", "ThroughputForecast", "ThroughputModel", "fit_throughput"]
