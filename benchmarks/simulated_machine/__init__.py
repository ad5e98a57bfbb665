"""The whole workflow against a simulated machine: see README.md."""
