"""One study from its first trial to the outcome of its plan, against the database."""
