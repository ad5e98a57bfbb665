"""The database tables and their column types."""
