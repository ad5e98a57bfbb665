"""Samples per second predicted from the smaller scales of published runs, against what the larger ones measured."""
