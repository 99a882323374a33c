"""The metrics of the relay; `docs/metrics.md` is generated from here."""

import time
from collections import Counter as Tally
from collections.abc import Iterable, Sequence

from ferryman.channels.outcome import WORDS, Code, Held, Outcome, Rejected, Retry, Unavailable, Unknown
from ferryman.relay.model import Entry, created_us_of, topic_of
from ferryman.relay.policy import Undelivered, Waits
from ferryman.relay.store.backlog import Backlog
from ferryman.runtime.metrics import Named

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 300, 3600)
_SAMPLES = 32
# Writers may name any number of topics that do not exist: so many of those that never took an entry have a label.
_MOST_NAMED = 100
_CODES = frozenset(["", *Code])
OTHERS = "(others)"
"""The label of all further topics."""

_proven: set[str] = set()
_named: set[str] = set()

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
CLAIMED = _METERS.gauge("claimed_entries", "Rows of described outboxes that are being sent.")
HELD = _METERS.gauge("held_entries", "Rows that may have been sent, and wait for a person: `ferryman outbox resolve`.")
DEAD = _METERS.gauge("failed_entries", "Entries that are FAILED at this moment: replay or discard them.")

MEASURED = _METERS.gauge(
    "backlog_timestamp_seconds", "When the gauges of the backlog were measured last.", _BY_SOURCE
)  # fmt: skip

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

IN_FLIGHT = _METERS.gauge("in_flight", "Rows that a courier sends, or has claimed to send next.", _BY_SOURCE)
SEND_SECONDS = _METERS.histogram("send_seconds", "How long a courier's send took, without its wait.", _BY_SOURCE)
ANSWERS = _METERS.counter(
    "answers_total", "Sends of a courier that ended, by outcome and code.", ["source", "outcome", "code"]
)
HELD_DESTINATIONS = _METERS.gauge(
    "held_destinations", "Destinations that a courier's function `held` holds back: their rows wait.", _BY_SOURCE
)


def answers(source: str, ended: Iterable[tuple[Outcome | None, float]]) -> None:
    """Count sends of a courier that ended after so many seconds. A channel's code that is not ours counts as OTHER."""
    tally, seconds_of = Tally[tuple[str, str]](), SEND_SECONDS.labels(source)
    for outcome, seconds in ended:
        code = getattr(outcome, "code", "")
        tally[WORDS.get(type(outcome), ""), code if code in _CODES else Code.OTHER] += 1
        seconds_of.observe(seconds)
    for (word, code), times in tally.items():
        ANSWERS.labels(source, word, code).inc(times)


def breaker(destination: str, *, is_open: bool) -> str:
    """Show the state of a destination's breaker: `kafka` always, a topic while it is not tried. Return its label."""
    if not destination:
        BREAKER_OPEN.labels("kafka").set(is_open)
        return "kafka"
    topic = _shown(destination)
    BREAKER_OPEN.labels(topic).inc(1 if is_open else -1)
    if not is_open and topic != OTHERS:
        BREAKER_OPEN.remove(topic)
    return topic


def _shown(topic: str) -> str:
    """Return the topic's label."""
    if topic in _proven or topic in _named:
        return topic
    if len(_named - _proven) >= _MOST_NAMED:
        return OTHERS
    _named.add(topic)
    return topic


def published(source: str, entries: Sequence[Entry]) -> None:
    """Count published entries, and sample how old they were."""
    for topic, count in Tally(map(topic_of, entries)).items():
        PUBLISHED.labels(source, topic).inc(count)
        _proven.add(topic)
    now, ages = time.time(), END_TO_END.labels(source)
    for entry in entries[:: len(entries) // _SAMPLES + 1]:
        ages.observe(max(0.0, now - created_us_of(entry) / 1_000_000))


def outcomes(source: str, which: Iterable[tuple[str, Undelivered]]) -> None:
    """Count entries that were not delivered, by the kind of their outcome."""
    kinds = {Retry: RETRIES, Rejected: RETRIES, Waits: PARKED, Unavailable: PARKED, Unknown: UNKNOWN, Held: UNKNOWN}
    for (topic, kind), times in Tally((topic, type(outcome)) for topic, outcome in which).items():
        kinds[kind].labels(source, _shown(topic)).inc(times)


def dead(source: str, topics: Iterable[str]) -> None:
    """Count entries that are FAILED now."""
    for topic, times in Tally(topics).items():
        FAILED.labels(source, _shown(topic)).inc(times)


def backlog(source: str, rows: Iterable[Backlog]) -> None:
    """Set the gauges of one source; a topic that left its backlog goes to 0."""
    MEASURED.labels(source).set_to_current_time()
    shown: dict[str, list[Backlog]] = {}
    for row in rows:
        shown.setdefault(_shown(row.topic), []).append(row)
    for gauge, name, joined in (
        (PENDING, "pending", sum), (OLDEST, "oldest_age_seconds", max), (RETRYING, "retrying", sum),
        (WAITING, "parked", sum), (DEAD, "failed", sum), (CLAIMED, "claimed", sum), (HELD, "held", sum),
    ):  # fmt: skip
        known = {
            sample.labels["topic"]
            for sample in next(iter(gauge.collect())).samples
            if sample.labels["source"] == source
        }
        for topic in known | shown.keys():
            values = [float(getattr(row, name) or 0) for row in shown.get(topic, [])]
            gauge.labels(source, topic).set(joined([0.0, *values]))
