"""The whole loop against a machine that is not there: see README.md."""
