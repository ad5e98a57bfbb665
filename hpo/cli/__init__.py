"""The command line: ``main`` assembles the commands, ``output`` prints their results."""
