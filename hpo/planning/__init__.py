"""Plans: a forecast on a machine, with its script; launching it and taking back what happened."""
