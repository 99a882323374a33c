"""Sagas: state machines as data, results applied once, timeouts kept, and commands sent in the same transaction."""
