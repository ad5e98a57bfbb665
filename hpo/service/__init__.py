"""The web service: `hpo serve` and the workers of its queue; ``app.create_app`` assembles the server."""
