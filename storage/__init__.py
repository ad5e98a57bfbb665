"""What is remembered: studies, trials, convergence, forecasts, plans and outcomes, in SQLite or PostgreSQL.

``storage.store.Store`` is the contract, ``storage.records`` holds what goes in and comes out,
``storage.errors`` what can go wrong.
"""
