"""From the journal to Kafka: lanes are claimed, read by windows, published and settled.

`model` has the values, `store` all the SQL, `lanes` the order of the calls.
"""
