"""A consumer's side of Kafka: its membership of a group, offsets, and the topics of its own."""
