"""Plans: a forecast on a machine, with its launch script; launching it and recording the outcome."""
