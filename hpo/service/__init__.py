"""The web service: `hpo serve`, its queue's workers and its client; ``app.create_app`` puts the server together."""
