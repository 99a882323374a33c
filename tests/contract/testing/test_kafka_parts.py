"""Every kind of Kafka broker of our own behaves in the same way, as far as it can.

These tests are slow because each starts a broker of its own, and some start it again.
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
from ferryman.testing.parts import Local, NotHere, started
from ferryman.testing.proxy import FaultProxy, Faults

pytestmark = [pytest.mark.serial("stacks"), pytest.mark.slow]

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


def test_produced_messages_are_read(any_broker: Local) -> None:
    topic = uuid4().hex
    if isinstance(any_broker, LocalKafka):
        create(any_broker.url, topic)
    produce(any_broker.url, topic, "a", "b")
    assert read(any_broker.url, topic, 2) == ["a", "b"]


def test_killed_broker_answers_after_a_start(any_broker: Local) -> None:
    any_broker.kill()
    assert not answers(any_broker.url)
    any_broker.start()
    assert answers(any_broker.url)


def test_paused_server_answers_only_after_resume(any_broker: Local) -> None:
    any_broker.pause()
    assert not answers(any_broker.url)
    any_broker.resume()
    assert answers(any_broker.url)


def test_close_removes_the_folder_and_the_listener(any_broker: Local) -> None:
    any_broker.close()
    assert not any_broker.folder.exists()
    assert not answers(any_broker.url)


@pytest.mark.real_kafka
def test_real_broker_keeps_its_log_through_kill_and_restart(real_broker: Local) -> None:
    topic = uuid4().hex
    create(real_broker.url, topic)
    produce(real_broker.url, topic, "a")
    real_broker.kill()
    real_broker.start()
    produce(real_broker.url, topic, "b")
    real_broker.restart()
    assert read(real_broker.url, topic, 2) == ["a", "b"]


@pytest.mark.real_kafka
def test_proxied_listener_is_reached_only_through_the_proxy() -> None:
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
def test_real_broker_never_creates_topics_automatically(real_broker: Local) -> None:
    producer = Producer({"bootstrap.servers": real_broker.url, "message.timeout.ms": 1500})
    errors: list[str] = []
    producer.produce(
        "misspelt", "x", on_delivery=lambda error, _: errors.append(error.name() if error else "delivered")
    )
    producer.flush(10)
    assert errors in (["_UNKNOWN_TOPIC"], ["UNKNOWN_TOPIC_OR_PART"], ["_MSG_TIMED_OUT"])


def test_built_in_broker_is_refused_if_a_real_one_is_required(monkeypatch: pytest.MonkeyPatch) -> None:
    from ferryman.runtime.errors import Misconfigured

    def no_java(_: int) -> None:
        raise NotHere("this machine has no Java")

    monkeypatch.setattr(java, "find", no_java)
    monkeypatch.setenv("REQUIRE_REAL_KAFKA", "1")
    with pytest.raises(Misconfigured, match=r"no Java.*REQUIRE_REAL_KAFKA is set"):
        find(reach="machine")


def test_built_in_broker_is_taken_without_java(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_java(_: int) -> None:
        raise NotHere("this machine has no Java")

    monkeypatch.setattr(java, "find", no_java)
    monkeypatch.delenv("REQUIRE_REAL_KAFKA", raising=False)
    broker, climb = find(reach="machine")
    broker.close()
    assert climb.took == "librdkafka's built-in broker"
    assert "no Java" in str(climb)
