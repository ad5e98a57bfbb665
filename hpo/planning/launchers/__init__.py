"""How a plan is started on a machine: a launcher each, as functions from a plan to commands and a script."""
