"""One study from its first trial to the outcome of its plan, stored in the database."""
