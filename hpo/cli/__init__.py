"""The command line: ``main`` puts the commands together, ``output`` prints what they find."""
