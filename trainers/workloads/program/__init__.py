"""A user's own training program, run as a process: its command, its reports, and how it ends."""
