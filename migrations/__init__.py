"""The database schema, forward only: a chain of SQL files for each owner, so that systems can have own databases."""
