"""The runner's chain: the schema `runner`, in the database of the service whose events it delivers."""
