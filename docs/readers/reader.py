"""Read topics of Ferryman without Ferryman: print a line of JSON for each record that is there at the start.

pip install confluent-kafka fastavro
python reader.py localhost:9092 http://localhost:8080/apis/ccompat/v7 payments.events wallet.events
"""

import base64
import json
import sys
import urllib.request
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import cache
from io import BytesIO
from typing import Any
from uuid import UUID

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition
from fastavro import parse_schema, schemaless_reader

SECONDS = 10.0


def main(kafka: str, registry: str, *topics: str) -> None:
    seen: set[str] = set()
    duplicates = 0
    for message in read(kafka, topics):
        headers = {name: as_text(value) for name, value in message.headers() or []}
        identity = headers.get("ce_id")
        if identity in seen:  # a service keeps the ids in its database, in the transaction of the record's effect
            duplicates += 1
            continue
        if identity is not None:
            seen.add(identity)
        record = {
            "topic": message.topic(),
            "partition": message.partition(),
            "offset": message.offset(),
            "key": as_text(message.key()),
            "headers": headers,
            "data": decoded(message.value(), headers.get("content-type"), registry),
        }
        print(json.dumps(record, default=in_json))
    print(f"{duplicates} duplicates dropped", file=sys.stderr)


def read(kafka: str, topics: tuple[str, ...]) -> Iterator[Any]:
    """Yield every record that is there at the start, each partition in its order."""
    consumer = Consumer(
        {"bootstrap.servers": kafka, "group.id": "reader", "enable.auto.commit": False, "enable.partition.eof": True}
    )
    try:
        ends = {place: end for topic in topics for place, end in partitions(consumer, topic)}
        consumer.assign([TopicPartition(*place, OFFSET_BEGINNING) for place in ends])
        while ends:
            message: Any = consumer.poll(1.0)
            if message is None:
                continue
            place, error = (message.topic(), message.partition()), message.error()
            if error is None and message.offset() < ends.get(place, 0):
                yield message
            elif error is not None and error.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001 - its only name
                raise KafkaException(error)
            if error is not None or message.offset() + 1 >= ends.get(place, 0):
                ends.pop(place, None)
    finally:
        consumer.close()


def partitions(consumer: Consumer, topic: str) -> Iterator[tuple[tuple[str, int], int]]:
    """Yield the partitions of a topic, each with its end offset."""
    found = consumer.list_topics(topic, SECONDS).topics[topic]
    if found.error is not None:
        raise KafkaException(found.error)
    for partition in found.partitions:
        _, end = consumer.get_watermark_offsets(TopicPartition(topic, partition), SECONDS)
        yield (topic, partition), end


def decoded(value: bytes, content_type: str | None, registry: str) -> Any:
    """Return the data. Avro has five bytes first: a zero, and the id of the schema that wrote the rest."""
    if content_type == "application/json":
        return json.loads(value)
    if content_type != "application/avro":
        return value
    if value[0] != 0:
        raise ValueError("the value does not begin with a zero byte and a schema's id")
    return schemaless_reader(BytesIO(value[5:]), schema(registry, int.from_bytes(value[1:5], "big")), None)


@cache
def schema(registry: str, number: int) -> Any:
    """Ask the registry once: an id never changes its schema."""
    with urllib.request.urlopen(f"{registry}/schemas/ids/{number}", timeout=SECONDS) as answer:
        return parse_schema(json.loads(json.load(answer)["schema"]))


def as_text(value: bytes | None) -> str | None:
    return None if value is None else value.decode()


def in_json(value: object) -> str:
    """Return the text of a value that JSON has no form for."""
    match value:
        case datetime():
            return value.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        case date():
            return value.isoformat()
        case UUID() | Decimal():
            return str(value)
        case bytes():
            return base64.b64encode(value).decode()
    raise TypeError(f"a {type(value).__name__} has no form in JSON")


if __name__ == "__main__":
    main(*sys.argv[1:])
