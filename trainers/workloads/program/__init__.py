"""Run a user's own training program as a process: its command, its reports, and how it ends."""
