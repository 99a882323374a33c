"""The chain of payments: the schema `payments`."""
