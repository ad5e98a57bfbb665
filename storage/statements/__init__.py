"""The SQL statements, in one file per kind of record."""
