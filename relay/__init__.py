"""Publishes outboxes to Kafka: the journal lane by lane, described tables row by row.

`model` has the values, `store` all SQL, `lanes` one turn. `ferryman run relay` starts `service`.
"""
