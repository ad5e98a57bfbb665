"""What to train next: the order of the ladder, the samplers, the search at full scale, and the race."""
