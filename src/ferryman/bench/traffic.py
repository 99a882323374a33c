"""Writers at a steady rate and a reader, in one process: each commit and each arrival is stamped by one clock."""

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import psycopg
from confluent_kafka import Consumer, KafkaException, TopicPartition

from ferryman.bench.parts import Bench
from ferryman.bench.scale import KEYS, PARTITIONS, PAYLOAD_BYTES, STEADY_RATE
from ferryman.bench.waiting import NeverCame, pace, until
from ferryman.runtime.kafka import client_config

CONNECTIONS = 8
_NUMBER_DIGITS = 12
_FILLER = "x" * (PAYLOAD_BYTES - _NUMBER_DIGITS)

_APPEND = """\
-- bench.append
SELECT ferryman.outbox_append(%(topic)s, %(key)s, 'bench.steady', %(payload)s)
"""


@dataclass(frozen=True, slots=True)
class Written:
    """When each message's COMMIT was sent, and when it had returned."""

    sent: dict[int, float] = field(default_factory=dict)
    committed: dict[int, float] = field(default_factory=dict)


def write_one(connection: psycopg.Connection[Any], topic: str, number: int, written: Written) -> None:
    """One single-row transaction; the message carries its number."""
    payload = f"{number:0{_NUMBER_DIGITS}}{_FILLER}".encode()
    connection.execute(_APPEND, {"topic": topic, "key": f"key-{number % KEYS}", "payload": payload})
    sent = time.monotonic()
    connection.commit()
    written.committed[number] = time.monotonic()
    written.sent[number] = sent


def write_steadily(database_url: str, topic: str, seconds: float, first: int = 0) -> Written:
    """A thousand transactions a second, by turns on several connections; returns when all are committed."""
    written, errors = Written(), list[Exception]()
    total = round(STEADY_RATE * seconds)

    def write(share: int) -> None:
        try:
            with psycopg.connect(database_url) as connection:
                ready.wait()
                began = time.monotonic()
                for number in range(share, total, CONNECTIONS):
                    pace(began, number, STEADY_RATE)
                    write_one(connection, topic, first + number, written)
        except Exception as error:
            errors.append(error)
            ready.abort()

    ready = threading.Barrier(CONNECTIONS)
    threads = [threading.Thread(target=write, args=(share,)) for share in range(CONNECTIONS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return written


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
        self.read: dict[int, float] = {}
        self.doubled = 0
        self.error: Exception | None = None

    def _read(self) -> None:
        try:
            while not self._done.is_set():
                if message := self._consumer.poll(0.05):
                    self._note(message, time.monotonic())
        except Exception as error:
            self.error = error

    def _note(self, message: Any, at: float) -> None:
        if message.error():
            raise KafkaException(message.error())
        number = int(message.value()[:_NUMBER_DIGITS])
        if self.read.setdefault(number, at) != at:
            self.doubled += 1

    def await_all(self, numbers: Mapping[int, float], seconds: float) -> None:
        """Returns once every one of these numbers has arrived."""

        def arrived() -> bool:
            if self.error:
                raise self.error
            return numbers.keys() <= self.read.keys()

        try:
            until(arrived, "messages", seconds)
        except NeverCame as error:
            missing = len(numbers.keys() - self.read.keys())
            raise NeverCame(f"{missing} of {len(numbers)} messages did not arrive within {seconds:.0f} s") from error

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._done.set()
        self._thread.join()
        self._consumer.close()


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
