"""To Kafka a header's name is bytes; to Python's client it is text, and it may be asked for other bytes only once."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest
from confluent_kafka import Producer

from ferryman.consumer.decoding import decode
from ferryman.consumer.kafka import Feed
from ferryman.consumer.model import Poison, Record
from ferryman.evidence.trace.kafka import Sought, look
from ferryman.runtime.settings import Kafka
from support import rawheaders
from support.published import poll_until
from support.topics import create

pytestmark = pytest.mark.real_kafka

MANY = 100


@pytest.fixture
def sent(ferryman_kafka: str) -> Callable[..., str]:
    def send(*identities: UUID) -> str:
        """A record that nobody can read, and around it those that everybody can: a frequent call is another one."""
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


def test_a_record_whose_headers_cannot_be_read_is_poison_and_those_behind_it_come(
    ferryman_kafka: str, sent: Callable[..., str]
) -> None:
    """N10: the client raised an error that no code of Kafka's has, in each process that read it."""
    identity = uuid4()
    topic = sent(identity)
    feed = Feed(f"names-{topic}", [topic], Kafka(bootstrap_servers=ferryman_kafka))
    came: list[Record] = []

    def two() -> bool:
        came.extend(feed.take(10, 0.2))
        return len(came) == MANY + 2

    feed.open()
    try:
        poll_until(two, "all records", 30)
    finally:
        feed.close()
    bad, good = came[MANY:]
    poison = decode(bad, "")
    assert isinstance(poison, Poison)
    assert (poison.code, poison.record.value, poison.record.headers) == ("BAD_HEADER", b"v", [])
    assert r"caf\xe9" in poison.error
    assert decode(good, "t").id == identity


def test_a_trace_passes_over_a_record_whose_headers_cannot_be_read(
    ferryman_kafka: str, sent: Callable[..., str]
) -> None:
    identity = uuid4()
    topic = sent(identity)
    wanted = Sought(identity, topic, datetime.now(UTC) - timedelta(minutes=1), "wallet")
    [found] = look(Kafka(bootstrap_servers=ferryman_kafka), [wanted], 20)[identity]
    assert (found.partition, found.offset) == (0, MANY + 1)
