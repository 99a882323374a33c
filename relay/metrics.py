"""What the relay counts and measures; `docs/metrics.md` is generated from here."""

import time
from collections import Counter as Tally
from collections.abc import Iterable, Sequence
from operator import itemgetter

from ferryman.relay.model import Entry
from ferryman.relay.policy import Outcome, Rejected, Retry, TopicUnavailable, Unknown, Waits
from ferryman.relay.store.backlog import Backlog
from ferryman.runtime.metrics import Named

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 300, 3600)
_SAMPLES = 32


_METERS = Named("ferryman_relay_", ["source", "topic"], _SECONDS)
_BY_SOURCE = ["source"]

PUBLISHED = _METERS.counter("published_total", "Entries that Kafka acknowledged and that are settled.")
RETRIES = _METERS.counter("retries_total", "Attempts that failed for a reason of the entry's own.")
FAILED = _METERS.counter("failed_total", "Entries that became FAILED: replay or discard them.")
PARKED = _METERS.counter("parked_total", "Entries that wait behind another of their key, or for their topic.")
UNKNOWN = _METERS.counter(
    "unknown_total", "Entries that may have arrived and are sent again, with the same id and bytes."
)

CLAIM_SECONDS = _METERS.histogram(
    "claim_seconds", "How long it took to claim lanes and read where they are.", _BY_SOURCE
)
PUBLISH_SECONDS = _METERS.histogram(
    "publish_seconds", "How long the last acknowledgements of a tenure took.", _BY_SOURCE
)
BATCH_ENTRIES = _METERS.histogram(
    "batch_entries", "Entries in one read.", _BY_SOURCE, (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 5000, 10000)
)
END_TO_END = _METERS.histogram(
    "end_to_end_seconds", "From appended to acknowledged, of a sample of each tenure's entries.", _BY_SOURCE
)

PENDING = _METERS.gauge("pending_entries", "Entries that were not read yet.")
OLDEST = _METERS.gauge("oldest_age_seconds", "Age of the oldest entry that is not published, FAILED or discarded.")
RETRYING = _METERS.gauge("retrying_entries", "Entries that are tried again later, or replayed.")
WAITING = _METERS.gauge(
    "parked_entries", "Entries that wait behind another of their key, or for their topic, at this moment."
)
DEAD = _METERS.gauge("failed_entries", "Entries that are FAILED at this moment: replay or discard them.")

BREAKER_OPEN = _METERS.gauge(
    "breaker_open", "1 while a destination is not tried: `kafka`, or a topic.", ["destination"]
)
REBUILDS = _METERS.counter("producer_rebuilds_total", "Producers thrown away after an error.", _BY_SOURCE)
LANES_HELD = _METERS.gauge("lanes_held", "Lanes in the last claim of each worker.", ["source", "worker"])
WINDOW_AGE = _METERS.gauge("window_age_seconds", "Age of the oldest window a lane stands at.", _BY_SOURCE)
SEGMENTS = _METERS.gauge(
    "ring_segments", "Segments of the ring that hold entries; 8 means that it is full.", _BY_SOURCE
)
RING_ALARMS = _METERS.gauge(
    "ring_alarms", "Segments that cannot be emptied: the log says why and what to do.", _BY_SOURCE
)
CONNECTED = _METERS.gauge("source_connected", "1 while the source's database answers.", _BY_SOURCE)

_TOPIC = itemgetter(2)


def published(source: str, entries: Sequence[Entry]) -> None:
    """Counts what was settled, and samples how old it was."""
    for topic, count in Tally(map(_TOPIC, entries)).items():
        PUBLISHED.labels(source, topic).inc(count)
    now, ages = time.time(), END_TO_END.labels(source)
    for entry in entries[:: len(entries) // _SAMPLES + 1]:
        ages.observe(max(0.0, now - entry[8] / 1_000_000))


def outcomes(source: str, which: Iterable[tuple[str, Outcome]]) -> None:
    """Counts what was tried and not delivered."""
    kinds = {Retry: RETRIES, Rejected: RETRIES, Waits: PARKED, TopicUnavailable: PARKED, Unknown: UNKNOWN}
    for (topic, kind), times in Tally((topic, type(outcome)) for topic, outcome in which).items():
        kinds[kind].labels(source, topic).inc(times)


def dead(source: str, topics: Iterable[str]) -> None:
    for topic, times in Tally(topics).items():
        FAILED.labels(source, topic).inc(times)


def backlog(source: str, rows: Iterable[Backlog]) -> None:
    """The gauges of one source; a topic that is gone from its backlog has none left."""
    shown = {row.topic: row for row in rows}
    for gauge, name in ((PENDING, "pending"), (OLDEST, "oldest_age_seconds"), (RETRYING, "retrying"),
                        (WAITING, "parked"), (DEAD, "failed")):  # fmt: skip
        known = {
            sample.labels["topic"]
            for sample in next(iter(gauge.collect())).samples
            if sample.labels["source"] == source
        }
        for topic in known | shown.keys():
            gauge.labels(source, topic).set(float(getattr(shown[topic], name) or 0) if topic in shown else 0)
