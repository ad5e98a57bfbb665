"""Number formats, normalization, random numbers, memory."""
