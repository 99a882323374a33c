"""Proves that the books of both databases agree, while the system is busy, and lists what does not."""
