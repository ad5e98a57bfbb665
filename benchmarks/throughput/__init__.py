"""Samples per second predicted from the smaller scales of published runs, against measurements of the larger ones."""
