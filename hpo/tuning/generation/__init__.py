"""What to train next: the order of the ladder, the samplers, the full-scale search, and the race."""
