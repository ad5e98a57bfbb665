"""Sweeps: which settings to train next, when to stop a trial early, and how to run all trials on Ray Tune."""
