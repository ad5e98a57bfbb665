"""Sweeps: which settings to train next, when to stop a training, and how to run them all on Ray Tune."""
