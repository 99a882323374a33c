"""The entries of a measurement: a backlog that is loaded fast, or a steady stream whose arrivals are watched.

Writers and reader of a stream are in one process: one clock stamps each commit and each arrival.
"""

import time
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import psycopg
from confluent_kafka import Consumer, KafkaException, TopicPartition

from ferryman.bench.meters import Connection, MeasurementFailed, pace
from ferryman.bench.servers import KEYS, PARTITIONS, PAYLOAD_BYTES, STEADY_RATE, Bench
from ferryman.runtime.kafka import client_config

_MOST_AT_ONCE = 1_000_000
_CONNECTIONS = 8
_NUMBER_DIGITS = 12
_FILLER = "x" * (PAYLOAD_BYTES - _NUMBER_DIGITS)
_ARRIVAL_SECONDS = 30
_WAKING_SECONDS = 1.0

# These are rows as outbox_append writes them: JSON of a fixed length, of which a part does not compress.
_APPEND_LOADED = """\
-- bench.append_loaded
INSERT INTO ferryman.outbox (lane, topic, key, type, payload, content_type)
SELECT ferryman.outbox_lane('key-' || n %% %(keys)s), %(topic)s, 'key-' || n %% %(keys)s, 'bench.loaded',
       convert_to(rpad('{"order":"' || lpad(n::text, 12, '0') || '","customer":"' || md5(n::text) || '","reference":"'
                       || md5((-n)::text) || '","currency":"EUR","state":"PLACED"', %(bytes)s - 1) || '}', 'UTF8'),
       'application/json'
FROM generate_series(%(first)s::bigint, %(last)s::bigint) n
"""
_VACUUM = "-- bench.vacuum\nVACUUM (ANALYZE) ferryman.outbox"
_CHECKPOINT = "-- bench.checkpoint\nCHECKPOINT"
_REMEMBER = """\
-- bench.remember
CREATE SCHEMA bench;
CREATE TABLE bench.windows AS SELECT * FROM ferryman.outbox_window;
CREATE TABLE bench.cursors AS SELECT * FROM ferryman.outbox_cursor
"""
_REWIND = """\
-- bench.rewind
TRUNCATE ferryman.outbox_window, ferryman.outbox_cursor;
INSERT INTO ferryman.outbox_window OVERRIDING SYSTEM VALUE SELECT * FROM bench.windows;
INSERT INTO ferryman.outbox_cursor OVERRIDING SYSTEM VALUE SELECT * FROM bench.cursors
"""
_APPEND = """\
-- bench.append
SELECT ferryman.outbox_append(%(topic)s, %(key)s, 'bench.steady', %(payload)s)
"""


def append(connection: Connection, topic: str, entries: int) -> None:
    """Append entries in the caller's transaction, or in a few of at most a million each in autocommit mode."""
    for first in range(1, entries + 1, _MOST_AT_ONCE):
        last = min(entries, first + _MOST_AT_ONCE - 1)
        connection.execute(
            _APPEND_LOADED, {"keys": KEYS, "topic": topic, "bytes": PAYLOAD_BYTES, "first": first, "last": last}
        )


def preload(bench: Bench, connection: Connection, topic: str, entries: int) -> None:
    """Append entries and vacuum them once, as autovacuum would have by the time a backlog is this large."""
    append(connection, topic, entries)
    connection.execute(_VACUUM)
    checkpoint(connection)
    connection.execute(_REMEMBER)
    bench.say(f"{entries:,} entries are loaded")


def rewind(connection: Connection) -> None:
    """Make everything pending again that was published since `preload`: only cursors and windows say that it was."""
    connection.execute(_REWIND)
    checkpoint(connection)


def checkpoint(connection: Connection) -> None:
    """Write a checkpoint, so that no figure pays for what was written before it."""
    try:
        connection.execute(_CHECKPOINT)
    except psycopg.errors.InsufficientPrivilege:  # on a given server its own checkpoints have to do
        pass


class Traffic:
    """The writers of a topic."""

    def __init__(self, database_url: str, topic: str) -> None:
        self.database_url = database_url
        self.topic = topic
        self._next = 0

    def delays_ms(self, arrivals: "Arrivals", seconds: float) -> list[float]:
        """Write for so many seconds. Return how long after its COMMIT each message arrived.

        The messages of the first second are left out: a relay that was idle is still waking up.
        """
        seconds += _WAKING_SECONDS
        with ThreadPoolExecutor(1) as reader:
            arrived = reader.submit(arrivals.await_all, self._numbers(seconds))
            committed = self.write(seconds)
            arrived.result()
        began = min(committed.values()) + _WAKING_SECONDS
        return [(arrivals.at[number] - at) * 1000 for number, at in committed.items() if at >= began]

    def write(self, seconds: float) -> Mapping[int, float]:
        """Write at the steady rate, on several connections in turns. Return when each COMMIT had returned."""
        numbers, committed = self._numbers(seconds), dict[int, float]()
        self._next = numbers.stop
        with ExitStack() as closing, ThreadPoolExecutor(_CONNECTIONS) as threads:
            connections = [closing.enter_context(psycopg.connect(self.database_url)) for _ in range(_CONNECTIONS)]
            began = time.monotonic()

            def write(share: int) -> None:
                for number in numbers[share::_CONNECTIONS]:
                    pace(began, number - numbers.start, STEADY_RATE)
                    committed[number] = self.write_one(connections[share], number)

            list(threads.map(write, range(_CONNECTIONS)))
        return committed

    def _numbers(self, seconds: float) -> range:
        """Return the numbers that are written next in so many seconds."""
        return range(self._next, self._next + round(STEADY_RATE * seconds))

    def write_one(self, connection: Connection, number: int) -> float:
        """Append the message with this number in a transaction of its own. Return when its COMMIT had returned."""
        payload = f"{number:0{_NUMBER_DIGITS}}{_FILLER}".encode()
        connection.execute(_APPEND, {"topic": self.topic, "key": f"key-{number % KEYS}", "payload": payload})
        connection.commit()
        return time.monotonic()


class Arrivals:
    """Reads a topic from its present end. `at` has the first arrival of each number."""

    def __init__(self, bench: Bench, topic: str) -> None:
        config = client_config(bench.kafka, "bench", **{"group.id": f"bench-{topic}", "enable.auto.commit": False})
        self._consumer = Consumer(config)
        partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
        ends = [self._consumer.get_watermark_offsets(each, timeout=10)[1] for each in partitions]
        self._consumer.assign([TopicPartition(topic, number, end) for number, end in enumerate(ends)])
        self.at: dict[int, float] = {}

    def close(self) -> None:
        """Leave the topic."""
        self._consumer.close()

    def await_all(self, numbers: Collection[int]) -> None:
        """Read until every one of these numbers has arrived."""
        missing = set(numbers)
        deadline = time.monotonic() + _ARRIVAL_SECONDS
        while missing and time.monotonic() < deadline:
            if (message := self._consumer.poll(0.05)) is None:
                continue
            now = time.monotonic()
            if (error := message.error()) is not None:
                raise KafkaException(error)
            number = int((message.value() or b"")[:_NUMBER_DIGITS])
            self.at.setdefault(number, now)
            missing.discard(number)
            deadline = now + _ARRIVAL_SECONDS
        if missing:
            raise MeasurementFailed(f"{len(missing)} messages did not arrive in {_ARRIVAL_SECONDS} s")
