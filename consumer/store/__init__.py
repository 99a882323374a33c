"""All SQL of a consumer."""
