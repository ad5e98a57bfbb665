"""The routes of the server, one module for each noun of the API; ``hpo.service.app`` puts them together."""
