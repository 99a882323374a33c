"""A worker's producer: entries go in, and either all are acknowledged or their places are named.

An error leaves no gap behind: the producer stops, is purged and is thrown away, and what it had not delivered for
certain is unknown. Positive reports are not asked for; what was not reported as failed when the producer is empty was
acknowledged.
"""

import math
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from ferryman.relay import record
from ferryman.relay.model import Entry, Place, place_of
from ferryman.relay.policy import is_consequence
from ferryman.relay.topics import NO_TOPIC
from ferryman.runtime.kafka import translate

# What the guarantees stand on: a user's property changes it only beside a setting that is named for the danger.
INSISTED: Mapping[str, Any] = {
    "enable.idempotence": True,
    "enable.gapless.guarantee": True,
    "acks": "all",
    "message.timeout.ms": 0,
    "allow.auto.create.topics": False,
    "delivery.report.only.error": True,
}
# What a user's property may change. A batch may linger, because nothing waits for it: all goes out at once as soon as
# less comes than a read may give, and at the end of a tenure. (With 1 ms, a backlog went out in batches of ten, which
# cost the broker four times the CPU time.)
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
# While acknowledgements still come it is not silent: so long it waits for the next, and so long for all of them.
_PATIENCE_SECONDS = 1.0
_MOST_PATIENCE_SECONDS = 30.0
_ACQUAINT_SECONDS = 1.0
# A producer that died refuses what it is handed, and tells why with its next poll, or a moment later.
_TELLING_SECONDS = 0.01
# `produce` takes all its arguments by position: by name, each call would cost a quarter more.
ANY_PARTITION = -1


@dataclass(slots=True)
class Cut:
    """What was not acknowledged: by place, with the error's code and words where it was its own.

    Everything, when the producer did not tell of all that was in it.
    """

    errors: dict[Place, tuple[str, str]] = field(default_factory=dict)
    timed_out: bool = False
    everything: bool = False
    why: str = ""
    followed: bool = False

    def because(self, error: KafkaError) -> None:
        """The first error is why; what only followed from another, heard a moment later, gives way to it."""
        follows = is_consequence(error.name())
        if not self.why or (self.followed and not follows):
            self.why, self.followed = f"{error.str()} ({error.name()})", follows

    def add(self, place: Place, code: str, words: str) -> None:
        """An error of an entry's own is not forgotten for one that followed from another's."""
        if place not in self.errors or is_consequence(self.errors[place][0]):
            self.errors[place] = (code, words)


class Publisher:
    """Polled from the thread that produces. Large payloads are read when their turn comes."""

    def __init__(self, config: Mapping[str, Any], source: str, load: Callable[[int], bytes]) -> None:
        self._config = config
        self._source = source
        self._load = load
        self._producer: Producer | None = None
        self._batch_bytes = _MOST_BATCH_BYTES
        self._outgrown = False
        self._cut: Cut | None = None
        self._last_error = ""
        self.rebuilds = 0
        self.bytes_sent = 0

    @property
    def cut_short(self) -> bool:
        """Whether an error is known, so that nothing more need be handed over."""
        return self._cut is not None

    def size(self, entry: Entry) -> int:
        """The bytes of its record."""
        payload = self._load(entry[0]) if entry[5] is None else entry[5]
        return record.size(entry[3], payload, record.headers(entry, self._source))

    def warm_up(self) -> None:
        """Has a producer ready before anything is claimed."""
        self._open()

    def limit_batches(self, limit: int) -> None:
        """No batch may be larger than the smallest limit of a topic: a producer that makes larger ones is replaced.

        Until it is empty it stays; what is refused meanwhile goes singly.
        """
        wanted = min(_MOST_BATCH_BYTES, limit)
        if wanted < self._batch_bytes:
            self._batch_bytes = wanted
            self._outgrown = self._producer is not None

    def produce(self, entries: Iterable[Entry], until: float, replay: int | None = None) -> None:
        """Hands the entries over, in their order; those behind an error are not."""
        produce, source, load, headers_of = self._open().produce, self._source, self._load, record.headers
        total = 0
        for entry in entries:
            payload = entry[5]
            if payload is None:
                payload = load(entry[0])
            total += len(payload)
            headers = headers_of(entry, source)
            if replay is not None:
                headers.append((record.REPLAY, str(replay)))
            if self._cut is not None:
                self._cut.add(place_of(entry), "_PURGE_QUEUE", "not produced behind an error")
                continue
            try:
                produce(entry[2], payload, entry[3], ANY_PARTITION, None, None, 0, headers)
            except BufferError:
                self._produce_when_there_is_room(produce, entry, payload, headers, until)
            except KafkaException as error:
                self._failed(error.args[0], place_of(entry))
        self.bytes_sent += total
        self._poll(0)

    def flush(self, until: float) -> Cut | None:
        """Waits until all is acknowledged, or says what is not; then the producer is another."""
        producer, fewest, began = self._producer, math.inf, time.monotonic()
        while producer is not None and self._cut is None and (held := len(producer)):
            now = time.monotonic()
            if held < fewest:
                fewest, until = held, max(until, min(now + _PATIENCE_SECONDS, began + _MOST_PATIENCE_SECONDS))
            left = until - now
            if left <= 0:
                self._cut = Cut(timed_out=True, why=self._last_error or "no acknowledgement within the deadline")
                break
            self._flush(min(left, 0.2))
        if self._cut is None:
            return None
        self._empty()
        cut, self._cut = self._cut, None
        cut.everything = self._holds_messages()
        self.discard()
        return cut

    def rest(self, seconds: float) -> None:
        """Waits, while what it holds goes out at once: nothing more is coming that would fill a batch."""
        until = time.monotonic() + seconds
        if self._holds_messages():
            self._flush(seconds)
        time.sleep(max(0.0, until - time.monotonic()))

    def discard(self) -> None:
        """Throws the producer away: what is produced straight after a purge would be purged too."""
        if self._producer is not None:
            self._producer = None
            self.rebuilds += 1

    def close(self) -> None:
        """Ends the producer without waiting for what it holds: that was not settled."""
        if self._producer is not None:
            self._empty()
            self._producer = None

    def _open(self) -> Producer:
        if self._outgrown and not self._holds_messages():
            self.discard()
        if self._producer is None:
            self._outgrown = False
            self._last_error = ""
            ours = {"batch.size": self._batch_bytes, "message.max.bytes": _LARGEST_MESSAGE_BYTES}
            told = {"on_delivery": self._reported, "error_cb": self._noted}
            try:
                self._producer = Producer({**DEFAULTS, **ours, **self._config, **told})
            except KafkaException as error:
                raise translate(error) from error
            self._acquaint(self._producer)
        return self._producer

    @staticmethod
    def _acquaint(producer: Producer) -> None:
        """Asks the cluster for anything: a producer that did not yet waits half a second before its first record."""
        with suppress(KafkaException):
            producer.list_topics(NO_TOPIC, timeout=_ACQUAINT_SECONDS)

    def _produce_when_there_is_room(
        self, produce: Callable[..., None], entry: Entry, payload: bytes, headers: record.Headers, until: float
    ) -> None:
        until = max(until, time.monotonic() + _PATIENCE_SECONDS)  # it was full before, and there was room
        while self._cut is None:
            self._poll(0.001)
            try:
                produce(entry[2], payload, entry[3], ANY_PARTITION, None, None, 0, headers)
                return
            except BufferError:
                if time.monotonic() > until:
                    self._cut = Cut(timed_out=True, why=self._last_error or "the producer's queue stayed full")
            except KafkaException as error:
                self._failed(error.args[0], place_of(entry))
                return
        self._cut.add(place_of(entry), "_PURGE_QUEUE", "not produced behind an error")

    def _flush(self, seconds: float) -> None:
        if self._producer is not None:
            try:
                self._producer.flush(seconds)
            except KafkaException as error:
                self._failed(error.args[0])

    def _poll(self, seconds: float) -> None:
        if self._producer is not None:
            try:
                self._producer.poll(seconds)
            except KafkaException as error:
                self._failed(error.args[0])

    def _empty(self) -> None:
        """Purges, and hears of every message that was in it."""
        until = time.monotonic() + _PURGE_SECONDS
        if self._cut is not None and self._cut.followed:
            self._poll(_TELLING_SECONDS)
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
