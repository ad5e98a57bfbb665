"""The commands of ``hpo``, one module for each of its subjects; ``hpo.cli.main`` puts them together."""
