"""`prove`: the real loop on a real database with Kafka in memory, and a process that dies at each of its points."""
