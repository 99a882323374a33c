"""Ways out that are not Kafka: a channel sends one item and answers with an outcome, in one event loop of its own."""
