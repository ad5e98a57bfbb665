"""What the server answers, one module for each noun of the API; ``hpo.service.app`` puts them together."""
