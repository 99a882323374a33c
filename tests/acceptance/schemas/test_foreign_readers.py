"""Other teams read our topics without our package: the samples of docs/readers do, in Python and in Java."""

import json
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID, uuid4

import psycopg
import pytest

from ferryman.schemas import OURS
from ferryman.schemas.catalogue import AVRO, Type, load
from ferryman.schemas.registry.confluent import ConfluentRegistry
from support.appended import Appended
from support.foreign import LANGUAGES, Foreign, Said, java_or_skip
from support.launch import Launcher
from support.published import read_topic
from support.topics import create

pytestmark = pytest.mark.real_kafka

KEYS = ["wallet-1", "Zürich", "鍵", "🛶", "", " ", "line\nbreak", "x" * 2000]
KEYS += [str(UUID(int=number * 0x9E3779B97F4A7C15F39CC0605CEDC835 % 2**128)) for number in range(100)]
EVERY_KIND = {
    "type": "record",
    "namespace": "ferryman.tests",
    "name": "EveryKind",
    "fields": [
        {"name": "number", "type": "int"},
        {"name": "large", "type": "long"},
        {"name": "single", "type": "float"},
        {"name": "real", "type": "double"},
        {"name": "flag", "type": "boolean"},
        {"name": "words", "type": ["null", "string"], "default": None},
        {"name": "octets", "type": "bytes"},
        {"name": "pair", "type": {"type": "fixed", "name": "Pair", "size": 2}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 8}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "about", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "id", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["UNKNOWN", "DONE"]}},
        {"name": "list", "type": {"type": "array", "items": ["null", "long"]}},
        {"name": "map", "type": {"type": "map", "values": "string"}},
        {"name": "again", "type": ["null", "Pair"]},
    ],
}
VALUES_OF_EVERY_KIND: list[dict[str, Any]] = [
    {
        "number": -(2**31), "large": 2**63 - 1, "single": 0.5, "real": 0.1, "flag": True, "words": "Grüße \0 🛶",
        "octets": "AP/+", "pair": "AQI=", "price": "-1234.50000000", "day": "1969-12-31",
        "at": "1969-12-31T23:59:59.999999Z", "about": "2026-01-31T12:00:00.001Z",
        "id": "9F1C1A52-6F0E-4B7E-9D5A-3C1F0A7B2E10", "state": "DONE", "list": [1, None, -1], "map": {"ä": "ö"},
        "again": None,
    },
    {
        "number": 0, "large": -(2**63), "single": -1.5, "real": 1e300, "flag": False, "words": None,
        "octets": "", "pair": "AAA=", "price": "0.00000001", "day": "9999-12-31",
        "at": "9999-12-31T23:59:59.999999Z", "about": "0001-01-01T00:00:00Z",
        "id": "00000000-0000-0000-0000-000000000000", "state": "UNKNOWN", "list": [], "map": {}, "again": "AQI=",
    },
]  # fmt: skip


@pytest.fixture(scope="module")
def foreign(ferryman_kafka: str, ferryman_registry: str) -> Foreign:
    if urlsplit(ferryman_registry).scheme == "file":
        pytest.skip("there is no real registry here")
    for _ in range(3):  # one content, three versions: from here on ids of contents and of versions differ
        ConfluentRegistry(ferryman_registry).register(
            f"probe-{uuid4().hex}", '{"type": "record", "name": "Probe", "fields": []}'
        )
    return Foreign(java_or_skip(), ferryman_kafka, ferryman_registry)


class Published(Appended):
    """Appended messages that the real command line publishes to Kafka, once or again."""

    def __init__(self, ferryman: Launcher, db: psycopg.Connection[tuple[Any, ...]], url: str, foreign: Foreign) -> None:
        super().__init__(db, create(foreign.kafka, partitions=3), ConfluentRegistry(foreign.registry))
        self._ferryman = ferryman
        self._environment = {"FERRYMAN_DATABASE_URL": url, "FERRYMAN_KAFKA__BOOTSTRAP_SERVERS": foreign.kafka}

    def drain(self) -> None:
        drained = self._ferryman.run("drain", "relay", "--json", env=self._environment)
        assert (drained.wait(), drained.json["published"]) == (0, len(self.expected))

    def replay(self) -> None:
        words = ("outbox", "replay", "--topic", self.topic, "--yes", "--reason", "a reader lost them")
        assert self._ferryman.run(*words, env=self._environment).wait() == 0
        self.drain()


@pytest.fixture
def published(
    ferryman: Launcher, ferryman_db: psycopg.Connection[tuple[Any, ...]], ferryman_database_url: str, foreign: Foreign
) -> Published:
    return Published(ferryman, ferryman_db, ferryman_database_url, foreign)


def assert_both_read_it(published: Published, foreign: Foreign, *more: str) -> list[Said]:
    """Assert that both readers print every field of what was appended, and the same places."""
    said = [foreign.read(language, published.topic, *more) for language in LANGUAGES]
    assert [without_places(each) for each in said] == [published.expected] * 2
    assert said[0].records == said[1].records
    return said


def without_places(said: Said) -> dict[str, dict[str, Any]]:
    """Return the output of a reader by id, without the places of the records."""
    names = ("topic", "key", "headers", "data")
    return {identity: {name: record[name] for name in names} for identity, record in said.by_id.items()}


def test_both_readers_read_every_type_of_the_catalogue_as_it_was_appended(
    published: Published, foreign: Foreign
) -> None:
    catalogue = load(OURS)
    for kind in catalogue.types.values():
        for number, sample in enumerate(kind.samples):
            published.sample(kind, sample, key=f"{kind.name}-{number % 2}")
    published.drain()
    said = assert_both_read_it(published, foreign)
    assert {record["headers"]["ce_type"] for record in said[0].records} == set(catalogue.types)


def test_both_readers_agree_on_values_of_every_kind_and_on_other_formats(
    published: Published, foreign: Foreign
) -> None:
    kind = Type(
        name="every.kind", topic=published.topic, kind="event", version=1, content_type=AVRO, pii="none",
        deprecated=None, samples=VALUES_OF_EVERY_KIND, text=json.dumps(EVERY_KIND),
    )  # fmt: skip
    for key, sample in zip(("Zürich 🛶", ""), kind.samples, strict=True):
        published.sample(kind, sample, key=key)
    said_in_json = {"number": 2**53 + 1, "real": 0.1, "words": "grüß", "list": [None, True, {}]}
    payload = json.dumps(said_in_json, ensure_ascii=False).encode()
    published.append("in.json", payload, said_in_json, content_type="application/json")
    published.append("in.octets", b"\x00\xff", "AP8=")
    published.drain()
    assert_both_read_it(published, foreign, create(foreign.kafka, partitions=2))


def test_both_readers_drop_the_duplicates_of_a_replay_and_count_them(published: Published, foreign: Foreign) -> None:
    """A duplicate has the same ce_id and the same bytes (N3)."""
    kind = load(OURS).types["payment.failed"]
    for number, sample in enumerate(kind.samples):
        published.sample(kind, sample, key=f"k{number}")
    published.drain()
    published.replay()
    count = len(published.expected)
    assert len(read_topic(foreign.kafka, published.topic)) == 2 * count
    said = assert_both_read_it(published, foreign)
    assert [each.words for each in said] == [f"{count} duplicates dropped"] * 2


@pytest.mark.parametrize("partitions", [7, 12])
def test_records_of_a_key_are_in_the_partition_that_javas_producer_chooses(
    published: Published, foreign: Foreign, partitions: int
) -> None:
    """Another team can join its stream with ours by the key."""
    published.topic = create(foreign.kafka, partitions=partitions)
    for key in KEYS:
        published.append("t", b"", None, key=key)
    published.drain()
    found = {record.key: record.partition for record in read_topic(foreign.kafka, published.topic)}
    assert set(found.values()) == set(range(partitions))
    javas = create(foreign.kafka, partitions=partitions)
    assert [found[key] for key in KEYS] == foreign.java_partitions(javas, KEYS)
