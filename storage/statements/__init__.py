"""The SQL statements, one file for each kind of record."""
