"""A user's own training program, run as a process: its command, its reports, its end."""
