"""The study file: its text, its rules, and its content as typed values."""
