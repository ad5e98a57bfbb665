"""Checks, backups, exports and retention of a whole database."""
