"""Number formats, normalization, parametrizations, random numbers, threads and memory."""
