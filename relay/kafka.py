"""Entries as Kafka records, and the producer of one worker.

Either everything handed over is acknowledged, or the places that were not are named. An error leaves no gap behind: the
producer stops, is purged and thrown away, and what it had not delivered for certain is unknown. Reports of success are
not requested; what was not reported as failed when the producer is empty was acknowledged.
"""

import json
import math
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, TypeAlias

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from ferryman.relay.model import Entry, Place, key_of, payload_of, place_of, position_of
from ferryman.relay.policy import is_consequence
from ferryman.runtime.kafka import NO_TOPIC, translate
from ferryman.schemas import headers as names

Header: TypeAlias = tuple[str, str | bytes | None]
Headers: TypeAlias = list[Header]

# The guarantees depend on these: a user's property changes them only beside a setting that is named for the danger.
INSISTED: Mapping[str, Any] = {
    "enable.idempotence": True,
    "enable.gapless.guarantee": True,
    "acks": "all",
    "message.timeout.ms": 0,
    "allow.auto.create.topics": False,
    "delivery.report.only.error": True,
}
# A user's property may change these. A batch may linger, because nothing waits for it: everything goes out at once as
# soon as less comes than a read may give, and at the end of a tenure. (With 1 ms, a backlog went out in batches of ten,
# which cost the broker four times the CPU time.)
DEFAULTS: Mapping[str, Any] = {
    "partitioner": "murmur2_random",
    "compression.type": "lz4",
    "linger.ms": 100,
    "queue.buffering.max.messages": 20_000,
    "queue.buffering.max.kbytes": 65_536,
}
_MOST_BATCH_BYTES = 1_000_000
_LARGEST_MESSAGE_BYTES = 1_000_000_000
_PURGE_SECONDS = 5.0
# A broker that still acknowledges is not silent: wait this long for the next acknowledgement, and this long for all.
_PATIENCE_SECONDS = 1.0
_MOST_PATIENCE_SECONDS = 30.0
_ACQUAINT_SECONDS = 1.0
# A producer that died refuses what it is handed, and gives the reason with its next poll, or a moment later.
_REASON_SECONDS = 0.01
# `produce` takes all its arguments by position: by name, each call would cost a quarter more.
ANY_PARTITION = -1

# The bytes of a batch and of a record, and those of each header, beside what they carry.
_RECORD_BYTES = 61 + 40
_HEADER_BYTES = 6

MOST_OVERHEAD_BYTES = 64_000
"""A record's key and headers never take more: the outbox bounds them."""


class NoRecord(ValueError):
    """An error for an entry of which no record can be made: it came past the checks of the outbox."""


def record_headers(entry: Entry, source: str) -> Headers:
    """Return the headers of an entry's record, a CloudEvent 1.0 in binary mode. Raise `NoRecord` if there can be none.

    The attributes that the relay sets come first, then the writer's own headers (`traceparent` among them).
    """
    _, identity, _, _, kind, _, own, content_type, created_us, _ = entry
    version, origin, of_type, of_content = _shared(source, kind, content_type)
    try:
        at = "%s.%06dZ" % (_second(created_us // 1_000_000), created_us % 1_000_000)  # noqa: UP031 - quicker
    except (ValueError, OverflowError, OSError):
        raise NoRecord("its created_at is not in the years 1 to 9999") from None
    ours: Headers = [version, (names.ID, identity), origin, of_type, (names.TIME, at), of_content]
    if own is not None:
        given = json.loads(own)
        if not isinstance(given, dict) or not all(isinstance(text, str) for text in given.values()):
            raise NoRecord("its headers are not an object of texts")
        ours.extend(given.items())
    return ours


def record_size(key: str, payload: bytes, headers: Headers) -> int:
    """Return the bytes that a record takes in a batch, before compression."""
    of_headers = sum(_bytes(name) + _bytes(value) + _HEADER_BYTES for name, value in headers)
    return len(payload) + _bytes(key) + of_headers + _RECORD_BYTES


def _bytes(text: str | bytes | None) -> int:
    return len(text.encode() if isinstance(text, str) else text or b"")


@lru_cache(maxsize=1024)
def _shared(source: str, kind: str, content_type: str | None) -> tuple[Header, Header, Header, Header]:
    """Return the headers that many entries have in common."""
    return (
        (names.SPECVERSION, names.CLOUDEVENTS),
        (names.SOURCE, source),
        (names.TYPE, kind),
        (names.CONTENT_TYPE, content_type or names.OCTETS),
    )


@lru_cache(maxsize=1024)
def _second(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")


@dataclass(slots=True)
class Cut:
    """The places that were not acknowledged, with the code and words of an error of their own.

    `everything` is set when the producer did not report on all that was in it.
    """

    errors: dict[Place, tuple[str, str]] = field(default_factory=dict)
    timed_out: bool = False
    everything: bool = False
    why: str = ""
    followed: bool = False

    def because(self, error: KafkaError) -> None:
        """Keep the first error as the cause, unless it was only a consequence of one that arrives later."""
        follows = is_consequence(error.name())
        if not self.why or (self.followed and not follows):
            self.why, self.followed = f"{error.str()} ({error.name()})", follows

    def add(self, place: Place, code: str, words: str) -> None:
        """Keep an entry's own error, even if a consequence of another's is reported later."""
        if place not in self.errors or is_consequence(self.errors[place][0]):
            self.errors[place] = (code, words)


class Publisher:
    """A producer that is polled from the thread that produces. Large payloads are read when their turn comes."""

    def __init__(self, config: Mapping[str, Any], source: str, load: Callable[[int], bytes]) -> None:
        self._config = config
        self._source = source
        self._load = load
        self._producer: Producer | None = None
        self._batch_bytes = _MOST_BATCH_BYTES
        self._outgrown = False
        self._cut: Cut | None = None
        self._last_error = ""
        self._rebuilds = 0
        self.bytes_sent = 0

    @property
    def cut_short(self) -> bool:
        """True if an error is known, so that nothing more should be handed over."""
        return self._cut is not None

    def size(self, entry: Entry) -> int:
        """Return the bytes of the entry's record."""
        payload = payload_of(entry)
        if payload is None:
            payload = self._load(position_of(entry))
        return record_size(key_of(entry), payload, record_headers(entry, self._source))

    def take_rebuilds(self) -> int:
        """Return how many producers were thrown away since this was last called."""
        rebuilds, self._rebuilds = self._rebuilds, 0
        return rebuilds

    def limit_batches(self, limit: int) -> None:
        """Allow no batch larger than a topic's limit. A producer that makes larger ones is replaced.

        It stays until it is empty; what is refused meanwhile goes singly.
        """
        wanted = min(_MOST_BATCH_BYTES, limit)
        if wanted < self._batch_bytes:
            self._batch_bytes = wanted
            self._outgrown = self._producer is not None

    def produce(self, entries: Iterable[Entry], until: float, replay: int | None = None) -> dict[int, str]:
        """Hand the entries over in their order; stop at the first error.

        Return the positions of entries of which no record can be made, with the reasons.
        """
        produce, source, load = self.open().produce, self._source, self._load
        total, unfit = 0, dict[int, str]()
        for entry in entries:
            position, _, topic, key, _, payload, _, _, _, _ = entry
            if payload is None:
                payload = load(position)
            total += len(payload)
            try:
                headers = record_headers(entry, source)
            except NoRecord as why:
                unfit[position] = str(why)
                continue
            if replay is not None:
                headers.append((names.REPLAY, str(replay)))
            if self._cut is not None:
                self._cut.add((topic, key), "_PURGE_QUEUE", "not produced behind an error")
                continue
            try:
                produce(topic, payload, key, ANY_PARTITION, None, None, 0, headers)
            except BufferError:
                self._produce_when_there_is_room(produce, entry, payload, headers, until)
            except KafkaException as error:
                self._failed(error.args[0], (topic, key))
        self.bytes_sent += total
        self._poll(0)
        return unfit

    def is_silent(self, seconds: float) -> bool:
        """Wait for the acknowledgements. Return True if some are missing, and none came for so long."""
        producer, fewest, until = self._producer, math.inf, 0.0
        while producer is not None and self._cut is None and (held := len(producer)):
            now = time.monotonic()
            if held < fewest:
                fewest, until = held, now + seconds
            if now >= until:
                return True
            self._poll(until - now, flush=True)
        return False

    def give_up(self, why: str) -> None:
        """Let the next flush wait no longer."""
        if self._cut is None:
            self._cut = Cut(timed_out=True, why=why)

    def flush(self, until: float) -> Cut | None:
        """Wait until everything is acknowledged, or return what is not; then the producer is replaced."""
        producer, fewest, began = self._producer, math.inf, time.monotonic()
        while producer is not None and self._cut is None and (held := len(producer)):
            now = time.monotonic()
            if held < fewest:
                fewest, until = held, max(until, min(now + _PATIENCE_SECONDS, began + _MOST_PATIENCE_SECONDS))
            left = until - now
            if left <= 0:
                self._cut = Cut(timed_out=True, why=self._last_error or "no acknowledgement within the deadline")
                break
            self._poll(min(left, 0.2), flush=True)
        if self._cut is None:
            return None
        self._empty()
        cut, self._cut = self._cut, None
        cut.everything = self._holds_messages()
        self.discard()
        return cut

    def rest(self, seconds: float) -> None:
        """Wait, and send what is held at once: nothing more is coming that would fill a batch."""
        until = time.monotonic() + seconds
        if self._holds_messages():
            self._poll(seconds, flush=True)
        time.sleep(max(0.0, until - time.monotonic()))

    def discard(self) -> None:
        """Throw the producer away: what is produced straight after a purge would be purged too."""
        if self._producer is not None:
            self._producer = None
            self._rebuilds += 1

    def close(self) -> None:
        """End the producer without waiting for what it holds, which was not settled."""
        if self._producer is not None:
            self._empty()
            self._producer = None

    def open(self) -> Producer:
        """Return the producer, or create one: call this before anything is claimed."""
        if self._outgrown and not self._holds_messages():
            self.discard()
        if self._producer is None:
            self._outgrown = False
            self._last_error = ""
            ours = {"batch.size": self._batch_bytes, "message.max.bytes": _LARGEST_MESSAGE_BYTES}
            callbacks = {"on_delivery": self._reported, "error_cb": self._noted}
            try:
                self._producer = Producer({**DEFAULTS, **INSISTED, **ours, **self._config, **callbacks})
            except KafkaException as error:
                raise translate(error) from error
            # A producer that never asked anything waits half a second before its first record.
            with suppress(KafkaException):
                self._producer.list_topics(NO_TOPIC, timeout=_ACQUAINT_SECONDS)
        return self._producer

    def _produce_when_there_is_room(
        self, produce: Callable[..., None], entry: Entry, payload: bytes, headers: Headers, until: float
    ) -> None:
        topic, key = place_of(entry)
        until = max(until, time.monotonic() + _PATIENCE_SECONDS)  # it was full before, and there was room
        while self._cut is None:
            self._poll(0.001)
            try:
                produce(topic, payload, key, ANY_PARTITION, None, None, 0, headers)
                return
            except BufferError:
                if time.monotonic() > until:
                    self._cut = Cut(timed_out=True, why=self._last_error or "the producer's queue stayed full")
            except KafkaException as error:
                self._failed(error.args[0], (topic, key))
                return
        self._cut.add((topic, key), "_PURGE_QUEUE", "not produced behind an error")

    def _poll(self, seconds: float, *, flush: bool = False) -> None:
        if self._producer is not None:
            try:
                (self._producer.flush if flush else self._producer.poll)(seconds)
            except KafkaException as error:
                self._failed(error.args[0])

    def _empty(self) -> None:
        """Purge the producer and collect the report of every message that was in it."""
        until = time.monotonic() + _PURGE_SECONDS
        if self._cut is not None and self._cut.followed:
            self._poll(_REASON_SECONDS)
        while self._producer is not None and len(self._producer) and time.monotonic() < until:
            try:
                self._producer.purge()
                self._producer.poll(0.01)
            except KafkaException as error:
                self._failed(error.args[0])

    def _holds_messages(self) -> bool:
        return self._producer is not None and len(self._producer) > 0

    def _reported(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            key = message.key() or b""
            self._failed(error, (message.topic() or "", key.decode()))

    def _noted(self, error: KafkaError) -> None:
        self._last_error = f"{error.str()} ({error.name()})"

    def _failed(self, error: KafkaError, place: Place | None = None) -> None:
        if self._cut is None:
            self._cut = Cut()
        self._cut.because(error)
        if place is not None:
            self._cut.add(place, error.name(), error.str())
