"""How long a placement takes: costs of a sample, collectives, steps, failures."""
