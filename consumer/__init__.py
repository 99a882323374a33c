"""From Kafka to an effect, once: receipt, handling and results in one transaction, and the offsets after it."""
