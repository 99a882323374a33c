"""Header names that are not UTF-8: to Kafka names are bytes, and Python's client fails on them."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest
from confluent_kafka import Producer

from ferryman.consumer.kafka.group import GroupMember
from ferryman.consumer.model import Poison, Record
from ferryman.consumer.partitions import Partitions
from ferryman.consumer.wire import decode
from ferryman.evidence.kafka import SoughtRecord, look
from ferryman.runtime.settings import Kafka
from support import rawheaders
from support.published import poll_until
from support.topics import create

pytestmark = pytest.mark.real_kafka

MANY = 100


@pytest.fixture
def sent(ferryman_kafka: str) -> Callable[..., str]:
    def send(*identities: UUID) -> str:
        """Send a record with unreadable headers among readable ones: Python specializes frequent calls."""
        topic = create(ferryman_kafka)
        producer = Producer({"bootstrap.servers": ferryman_kafka})
        for _ in range(MANY):
            producer.produce(topic, b"v", headers={"ce_id": b"none"})
        assert producer.flush(20) == 0
        rawheaders.produce(ferryman_kafka, topic, b"v", [(b"ce_type", b"t"), (b"caf\xe9", b"x"), (b"", b"y")])
        for each in identities:
            rawheaders.produce(ferryman_kafka, topic, b"v", [(b"ce_id", str(each).encode())])
        return topic

    return send


def test_a_record_with_unreadable_headers_is_poison_and_stops_no_other(
    ferryman_kafka: str, sent: Callable[..., str]
) -> None:
    """N10: the client raised an error without a code of Kafka's, in each process that read it."""
    identity = uuid4()
    topic = sent(identity)
    partitions = Partitions(f"names-{topic}", 1 << 20, 1)
    member = GroupMember(f"names-{topic}", [topic], Kafka(bootstrap_servers=ferryman_kafka), partitions)
    came: list[Record] = []

    def two() -> bool:
        came.extend(member.take(10, 0.2))
        return len(came) == MANY + 2

    member.open()
    try:
        poll_until(two, "all records")
    finally:
        member.close()
    bad, good = came[MANY:]
    poison = decode(bad, "")
    assert isinstance(poison, Poison)
    assert (poison.code, poison.record.value, poison.record.headers) == ("BAD_HEADER", b"v", [])
    assert r"caf\xe9" in poison.error
    assert decode(good, "t").id == identity


def test_a_trace_skips_a_record_with_unreadable_headers(ferryman_kafka: str, sent: Callable[..., str]) -> None:
    identity = uuid4()
    topic = sent(identity)
    wanted = SoughtRecord(identity, topic, datetime.now(UTC) - timedelta(minutes=1), ("wallet",))
    [found] = look(Kafka(bootstrap_servers=ferryman_kafka), [wanted], 20)[identity]
    assert (found.partition, found.offset) == (0, MANY + 1)
