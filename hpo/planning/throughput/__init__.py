"""Extrapolates samples per second, with intervals, from a few measured rows to more accelerators."""

from hpo.planning.throughput.forecast import ThroughputForecast, ThroughputModel, fit_throughput
from hpo.planning.throughput.rows import Measurement

__all__ = ["Measurement", "ThroughputForecast", "ThroughputModel", "fit_throughput"]
