"""The denominator of a drain: confluent-kafka in a tight loop, from memory, with the relay's configuration.

A process of its own, as the relay is. It is given the same records, made before the clock starts, and librdkafka's own
size of queue: the relay keeps a smaller one to bound its memory, which the loop need not.
"""

import gc
import json
import sys
import time
from typing import Any

import psycopg
from confluent_kafka import Producer

from ferryman.relay import record
from ferryman.relay.kafka import ANY_PARTITION, DEFAULTS, INSISTED
from ferryman.relay.model import Entry
from ferryman.relay.store import reading

MOST_IN_MEMORY = 100_000

_ENTRIES = f"""\
-- bench.entries
SELECT {reading.COLUMNS} FROM ferryman.outbox o ORDER BY o.position LIMIT %s
"""  # noqa: S608 - only our own columns are put in

_RELAY = {name: value for name, value in {**DEFAULTS, **INSISTED}.items() if not name.startswith("queue.")}

Record = tuple[str, bytes, str, list[tuple[str, str | bytes | None]]]


def records(database_url: str, most: int) -> list[Record]:
    """What the relay would send for the first entries."""
    with psycopg.connect(database_url) as connection:
        rows = connection.execute(_ENTRIES, (most,), binary=True).fetchall()
    entries = [Entry(*row) for row in rows]
    return [(each.topic, each.payload or b"", each.key, list(record.headers(each, "bench"))) for each in entries]


def produce(config: dict[str, Any], batch: list[Record], entries: int) -> float:
    """Seconds until so many were acknowledged, the batch over and over; the cluster is known beforehand."""
    producer = Producer(config)
    producer.list_topics(batch[0][0], timeout=10)
    send, poll = producer.produce, producer.poll
    began = time.perf_counter()
    for first in range(0, entries, len(batch)):
        for topic, payload, key, headers in batch[: entries - first]:
            while True:
                try:
                    send(topic, payload, key, ANY_PARTITION, None, None, 0, headers)
                    break
                except BufferError:
                    poll(0.005)
        poll(0)
    left = producer.flush(60)
    seconds = time.perf_counter() - began
    if left:
        raise RuntimeError(f"{left} messages were not acknowledged")
    return seconds


def main() -> None:
    wanted = json.load(sys.stdin)
    batch = records(wanted["database_url"], min(MOST_IN_MEMORY, wanted["entries"]))
    gc.freeze()
    seconds = produce({**_RELAY, **wanted["kafka"], "log_level": 3}, batch, wanted["entries"])
    print(json.dumps({"published": wanted["entries"], "seconds": seconds}))


if __name__ == "__main__":
    main()
