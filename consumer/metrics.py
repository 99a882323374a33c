"""What a consumer counts."""

from ferryman.consumer.transaction import Tally
from ferryman.runtime.metrics import Named

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


_METERS = Named("ferryman_consumer_", ["consumer"], _SECONDS)

MESSAGES = _METERS.counter("messages_total", "Messages by verdict.", ["consumer", "verdict"])
RETRIES = _METERS.counter("retries_total", "Messages whose handling failed and is tried again.")
REBALANCES = _METERS.counter("rebalances_total", "How often partitions came or went.")
PARTITIONS = _METERS.gauge("partitions", "Partitions that this process owns.")
LAG = _METERS.gauge("lag_messages", "Messages that are behind those handled.")
LAG_SECONDS = _METERS.gauge("lag_seconds", "Age of the oldest message that came and is not handled.")
REJECTED = _METERS.gauge(
    "rejected_messages", "Messages that were rejected and wait for a person: requeue or discard them."
)
UNTOLD = _METERS.counter(
    "untold_total", "Messages that took effect and that a function of `after_commit` was not told of, or failed at."
)
LAST_POLL = _METERS.gauge("last_poll_timestamp_seconds", "When Kafka was last asked.")
BATCH_SECONDS = _METERS.histogram("batch_seconds", "How long a batch's transaction took.")
BATCH_MESSAGES = _METERS.histogram(
    "batch_messages", "Messages in a batch.", buckets=(1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
)


def batch(consumer: str, tally: Tally, messages: int, seconds: float) -> None:
    for verdict in ("done", "refused", "duplicate", "conflict", "rejected"):
        if count := getattr(tally, verdict):
            MESSAGES.labels(consumer, verdict).inc(count)
    BATCH_SECONDS.labels(consumer).observe(seconds)
    BATCH_MESSAGES.labels(consumer).observe(messages)
