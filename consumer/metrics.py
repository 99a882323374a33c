"""What a consumer counts."""

from prometheus_client import Counter, Gauge, Histogram

from ferryman.consumer.transaction import Tally
from ferryman.runtime.metrics import REGISTRY

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


def _counter(name: str, text: str, labels: tuple[str, ...] = ("consumer",)) -> Counter:
    return Counter(f"ferryman_consumer_{name}", text, labels, registry=REGISTRY)


def _gauge(name: str, text: str, labels: tuple[str, ...] = ("consumer",)) -> Gauge:
    return Gauge(f"ferryman_consumer_{name}", text, labels, registry=REGISTRY)


MESSAGES = _counter("messages_total", "Messages by verdict.", ("consumer", "verdict"))
RETRIES = _counter("retries_total", "Messages whose handling failed and is tried again.")
REBALANCES = _gauge("rebalances", "How often partitions came or went since the start.")
PARTITIONS = _gauge("partitions", "Partitions that this process owns.")
LAG = _gauge("lag_messages", "Messages that are behind those handled.")
LAG_SECONDS = _gauge("lag_seconds", "Age of the oldest message that came and is not handled.")
REJECTED = _gauge("rejected_messages", "Messages that were rejected and wait for a person: requeue or discard them.")
LAST_POLL = _gauge("last_poll_timestamp_seconds", "When Kafka was last asked.")
BATCH_SECONDS = Histogram(
    "ferryman_consumer_batch_seconds", "How long a batch's transaction took.", ("consumer",), buckets=_SECONDS,
    registry=REGISTRY,
)  # fmt: skip
BATCH_MESSAGES = Histogram(
    "ferryman_consumer_batch_messages", "Messages in a batch.", ("consumer",),
    buckets=(1, 2, 5, 10, 20, 50, 100, 200, 500, 1000), registry=REGISTRY,
)  # fmt: skip


def batch(consumer: str, tally: Tally, messages: int, seconds: float) -> None:
    for verdict in ("done", "refused", "duplicate", "conflict", "rejected"):
        if count := getattr(tally, verdict):
            MESSAGES.labels(consumer, verdict).inc(count)
    BATCH_SECONDS.labels(consumer).observe(seconds)
    BATCH_MESSAGES.labels(consumer).observe(messages)
