"""One payment's story: gathered from both databases and Kafka, told in order of time, ending with what to run next."""
