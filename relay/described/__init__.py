"""Described outboxes: tables that users have already, claimed and settled row by row."""
