"""A training program of the user's own, started as a process: its command, its reports, its end."""
