"""The engine's chain: the schema `ferryman` that every database has, and the roles of its processes."""
