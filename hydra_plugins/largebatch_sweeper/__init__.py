"""Hydra finds the sweeper ``largebatch`` here; its namespace package is ``hydra_plugins``."""
