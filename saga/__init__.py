"""Sagas: machines of states as data, results applied once, timeouts that are kept, commands in the same transaction."""
