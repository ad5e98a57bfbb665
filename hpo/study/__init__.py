"""The study file: its text, its rules, and what it means as typed values."""
