"""The command line: ``main`` assembles the commands, and ``output`` prints their results."""
