"""Sweeps: which settings to train next, where to stop a training, and how to run them all on Ray Tune."""
