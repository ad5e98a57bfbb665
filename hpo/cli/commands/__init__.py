"""The commands of ``hpo``, one module per subject; ``hpo.cli.main`` assembles them."""
