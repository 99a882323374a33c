"""The metrics of consumers."""

from collections.abc import Mapping

from ferryman.runtime.metrics import Named

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


_METERS = Named("ferryman_consumer_", ["consumer"], _SECONDS)

MESSAGES = _METERS.counter("messages_total", "Messages by verdict.", ["consumer", "verdict"])
RETRIES = _METERS.counter("retries_total", "Messages whose handling failed and is tried again.")
REBALANCES = _METERS.counter("rebalances_total", "Assignments, revocations and losses of partitions.")
PARTITIONS = _METERS.gauge("partitions", "Partitions that this process owns.")
LAG = _METERS.gauge("lag_messages", "Messages that are not handled yet.")
LAG_SECONDS = _METERS.gauge("lag_seconds", "Age of the oldest message that was fetched and is not handled.")
REJECTED = _METERS.gauge("rejected_messages", "Rejected messages that wait to be requeued or discarded.")
UNTOLD = _METERS.counter(
    "untold_total", "Messages that took effect, and for which an `after_commit` function was not called or failed."
)
WINDOW_SHORT = _METERS.gauge("dedupe_window_short", "1 if a receipt may be forgotten before its message comes again.")
LAST_POLL = _METERS.gauge("last_poll_timestamp_seconds", "When Kafka was last polled.")
BATCH_SECONDS = _METERS.histogram("batch_seconds", "Duration of a batch's transaction.")
BATCH_MESSAGES = _METERS.histogram(
    "batch_messages", "Messages in a batch.", buckets=(1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
)


def batch(consumer: str, tally: Mapping[str, int], messages: int, seconds: float) -> None:
    for verdict, count in tally.items():
        MESSAGES.labels(consumer, verdict).inc(count)
    BATCH_SECONDS.labels(consumer).observe(seconds)
    BATCH_MESSAGES.labels(consumer).observe(messages)
