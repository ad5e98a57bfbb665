"""The time that a placement takes: costs per sample, collectives, steps and failures."""
