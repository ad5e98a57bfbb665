"""Trials that are trained by whoever asks for them: what is asked and told, and the handle of one trial."""
