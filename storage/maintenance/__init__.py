"""Checks, copies, exports and retention of a whole database."""
