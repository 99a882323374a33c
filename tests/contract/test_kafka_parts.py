"""Every way to have a Kafka of our own does the same, as far as each can.

Slow, because each test starts a broker of its own and some start it again: seconds each on a busy machine.
"""

import time
from collections.abc import Callable, Iterator
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from ferryman.runtime.kafka import create_topics
from ferryman.testing import java
from ferryman.testing.kafka import BuiltInKafka, LocalKafka, answers, find
from ferryman.testing.ladder import NotHere
from ferryman.testing.part import Local, started
from ferryman.testing.proxy import FaultProxy, Faults

pytestmark = [pytest.mark.serial, pytest.mark.slow]

BROKERS: dict[str, Callable[[], Local]] = {"real": LocalKafka, "built-in": BuiltInKafka}


def running(kind: str) -> Local:
    try:
        return started(BROKERS[kind]())
    except NotHere as why:
        pytest.skip(str(why))


@pytest.fixture(params=BROKERS)
def any_broker(request: pytest.FixtureRequest) -> Iterator[Local]:
    broker = running(request.param)
    yield broker
    broker.close()


@pytest.fixture
def real_broker() -> Iterator[Local]:
    broker = running("real")
    yield broker
    broker.close()


def create(address: str, topic: str) -> None:
    create_topics(AdminClient({"bootstrap.servers": address}), [NewTopic(topic, 1, 1)], 10)


def produce(address: str, topic: str, *values: str) -> None:
    errors: list[object] = []
    producer = Producer({"bootstrap.servers": address, "message.timeout.ms": 10_000})
    for value in values:
        producer.produce(topic, value, key="k", on_delivery=lambda error, _: errors.append(error))
    producer.flush(15)
    assert errors == [None] * len(values)


def read(address: str, topic: str, count: int) -> list[str]:
    consumer = Consumer({"bootstrap.servers": address, "group.id": uuid4().hex})
    partitions = consumer.list_topics(topic, timeout=5).topics[topic].partitions
    consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
    values: list[str] = []
    deadline = time.monotonic() + 15
    while len(values) < count and time.monotonic() < deadline:
        message = consumer.poll(0.2)
        if message is not None and not message.error():
            values.append((message.value() or b"").decode())
    consumer.close()
    return values


def test_what_is_produced_is_read(any_broker: Local) -> None:
    topic = uuid4().hex
    if isinstance(any_broker, LocalKafka):
        create(any_broker.url, topic)
    produce(any_broker.url, topic, "a", "b")
    assert read(any_broker.url, topic, 2) == ["a", "b"]


def test_after_a_kill_it_comes_back_and_answers(any_broker: Local) -> None:
    any_broker.kill()
    assert not answers(any_broker.url)
    any_broker.start()
    assert answers(any_broker.url)


def test_while_paused_it_answers_nobody_and_then_goes_on(any_broker: Local) -> None:
    any_broker.pause()
    assert not answers(any_broker.url)
    any_broker.resume()
    assert answers(any_broker.url)


def test_closing_leaves_no_folder_and_no_listener(any_broker: Local) -> None:
    any_broker.close()
    assert not any_broker.folder.exists()
    assert not answers(any_broker.url)


@pytest.mark.real_kafka
def test_a_real_broker_keeps_its_log_through_kill_and_restart(real_broker: Local) -> None:
    topic = uuid4().hex
    create(real_broker.url, topic)
    produce(real_broker.url, topic, "a")
    real_broker.kill()
    real_broker.start()
    produce(real_broker.url, topic, "b")
    real_broker.restart()
    assert read(real_broker.url, topic, 2) == ["a", "b"]


@pytest.mark.real_kafka
def test_a_listener_behind_a_proxy_is_reached_through_the_proxy_alone() -> None:
    with FaultProxy() as proxy:
        broker = LocalKafka(proxy_port=proxy.port)
        proxy.target = f"127.0.0.1:{broker.behind_proxy}"
        started(broker)
        try:
            topic = uuid4().hex
            create(broker.url, topic)
            produce(proxy.address, topic, "a")
            proxy.faults = Faults(black_hole=True)
            assert not answers(proxy.address)
            assert answers(broker.url)
            proxy.heal()
            assert read(proxy.address, topic, 1) == ["a"]
        finally:
            broker.close()


@pytest.mark.real_kafka
def test_topics_are_never_made_on_the_fly_by_a_real_broker(real_broker: Local) -> None:
    producer = Producer({"bootstrap.servers": real_broker.url, "message.timeout.ms": 1500})
    errors: list[str] = []
    producer.produce(
        "misspelt", "x", on_delivery=lambda error, _: errors.append(error.name() if error else "delivered")
    )
    producer.flush(10)
    assert errors in (["_UNKNOWN_TOPIC"], ["UNKNOWN_TOPIC_OR_PART"], ["_MSG_TIMED_OUT"])


def test_where_a_real_broker_is_required_the_built_in_one_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from ferryman.runtime.errors import Misconfigured

    def no_java(_: int) -> None:
        raise NotHere("this machine has no Java")

    monkeypatch.setattr(java, "find", no_java)
    monkeypatch.setenv("REQUIRE_REAL_KAFKA", "1")
    with pytest.raises(Misconfigured, match=r"no Java.*REQUIRE_REAL_KAFKA is set"):
        find(embedded=True)


def test_without_java_the_built_in_broker_is_taken_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_java(_: int) -> None:
        raise NotHere("this machine has no Java")

    monkeypatch.setattr(java, "find", no_java)
    monkeypatch.delenv("REQUIRE_REAL_KAFKA", raising=False)
    broker, climb = find(embedded=True)
    broker.close()
    assert climb.took == "librdkafka's built-in broker"
    assert "no Java" in str(climb)
