"""Writers at a steady rate and a reader, in one process: each commit and each arrival is stamped by one clock."""

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import psycopg
from confluent_kafka import Consumer, KafkaException, TopicPartition

from ferryman.bench import processes
from ferryman.bench.parts import Bench
from ferryman.bench.processes import Child
from ferryman.bench.scale import KEYS, PARTITIONS, PAYLOAD_BYTES, STEADY_RATE
from ferryman.bench.waiting import NeverCame, pace, until
from ferryman.runtime.kafka import client_config

_CONNECTIONS = 8
_NUMBER_DIGITS = 12
_FILLER = "x" * (PAYLOAD_BYTES - _NUMBER_DIGITS)
_ARRIVAL_SECONDS = 30
WAKING_SECONDS = 1.0

_APPEND = """\
-- bench.append
SELECT ferryman.outbox_append(%(topic)s, %(key)s, 'bench.steady', %(payload)s)
"""


@dataclass(frozen=True, slots=True)
class Written:
    """When each message's COMMIT was sent, and when it had returned."""

    sent: dict[int, float] = field(default_factory=dict)
    committed: dict[int, float] = field(default_factory=dict)

    def after(self, seconds: float) -> "Written":
        """Without those of the first seconds, when a relay that idled was still waking."""
        began = min(self.committed.values()) + seconds
        late = {number for number, at in self.committed.items() if at >= began}
        return Written({n: self.sent[n] for n in late}, {n: self.committed[n] for n in late})


def write_one(connection: psycopg.Connection[Any], topic: str, number: int, written: Written) -> None:
    """One single-row transaction; the message carries its number."""
    payload = f"{number:0{_NUMBER_DIGITS}}{_FILLER}".encode()
    connection.execute(_APPEND, {"topic": topic, "key": f"key-{number % KEYS}", "payload": payload})
    sent = time.monotonic()
    connection.commit()
    written.committed[number] = time.monotonic()
    written.sent[number] = sent


class Reader:
    """Reads a topic from where it ends now; `read` has each number's first arrival."""

    def __init__(self, bench: Bench, topic: str) -> None:
        config = client_config(bench.kafka, "bench", **{"group.id": f"bench-{topic}", "enable.auto.commit": False})
        self._consumer = Consumer(config)
        partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
        ends = [self._consumer.get_watermark_offsets(each, timeout=10)[1] for each in partitions]
        self._consumer.assign([TopicPartition(topic, number, end) for number, end in enumerate(ends)])
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._error: Exception | None = None
        self.read: dict[int, float] = {}
        self.doubled = 0

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._done.set()
        self._thread.join()
        self._consumer.close()

    def await_all(self, numbers: Mapping[int, float]) -> None:
        """Returns once every one of these numbers has arrived."""

        def arrived() -> bool:
            if self._error:
                raise self._error
            return all(number in self.read for number in numbers)

        try:
            until(arrived, "messages", _ARRIVAL_SECONDS)
        except NeverCame as error:
            missing = sum(number not in self.read for number in numbers)
            raise NeverCame(f"{missing} of {len(numbers)} messages did not arrive in {_ARRIVAL_SECONDS} s") from error

    def _read(self) -> None:
        try:
            while not self._done.is_set():
                if message := self._consumer.poll(0.05):
                    self._note(message, time.monotonic())
        except Exception as error:
            self._error = error

    def _note(self, message: Any, at: float) -> None:
        if message.error():
            raise KafkaException(message.error())
        number = int(message.value()[:_NUMBER_DIGITS])
        if self.read.setdefault(number, at) != at:
            self.doubled += 1


@dataclass(slots=True)
class Steady:
    """A thousand transactions a second, by turns on several connections; and the reader, where there is one."""

    database_url: str
    topic: str
    reader: Reader | None = None
    relay: Child | None = None
    _next: int = 0

    @property
    def read(self) -> Mapping[int, float]:
        return self.reader.read if self.reader else {}

    def run(self, seconds: float) -> Written:
        """Writes, and returns when all has arrived."""
        written = self.write(seconds)
        if self.reader:
            self.reader.await_all(written.committed)
        return written

    def write(self, seconds: float) -> Written:
        """Returns when all is committed."""
        written, errors, total = Written(), list[Exception](), round(STEADY_RATE * seconds)
        ready = threading.Barrier(_CONNECTIONS)

        def write(share: int) -> None:
            try:
                with psycopg.connect(self.database_url) as connection:
                    ready.wait()
                    began = time.monotonic()
                    for number in range(share, total, _CONNECTIONS):
                        pace(began, number, STEADY_RATE)
                        write_one(connection, self.topic, self._next + number, written)
            except Exception as error:
                errors.append(error)
                ready.abort()

        threads = [threading.Thread(target=write, args=(share,)) for share in range(_CONNECTIONS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        self._next += total
        return written


@contextmanager
def steady_traffic(bench: Bench) -> Iterator[Steady]:
    """Writers, a relay and a reader, all of them warm."""
    with bench.topic() as topic, bench.database() as url, processes.relay(bench, url) as relay:
        with reading(bench, topic) as reader:
            traffic = Steady(url, topic, reader, relay)
            traffic.run(bench.scale.warm_seconds)
            yield traffic


@contextmanager
def reading(bench: Bench, topic: str) -> Iterator[Reader]:
    """A reader that reads while the block runs."""
    reader = Reader(bench, topic)
    reader.start()
    try:
        yield reader
    finally:
        reader.close()


def delays_ms(since: Mapping[int, float], read: Mapping[int, float]) -> list[float]:
    """For each message, how long it took from then until a consumer had it."""
    return [(read[number] - at) * 1000 for number, at in since.items()]
