"""Hydra's plug-in for the sweeper ``largebatch``, found in Hydra's namespace package ``hydra_plugins``."""
