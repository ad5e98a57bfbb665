"""The next trial by what it is expected to tell about the full-scale batch, per sample that it processes."""
