"""The commands of ``hpo``, one module for each of its subjects; ``hpo.cli`` puts them together."""
