"""Listeners: time counts up to the moment at which all that was sent had been read, and no result waited."""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from ferryman.runtime.errors import Unreachable
from ferryman.runtime.settings import Kafka
from ferryman.saga.listening import Listeners
from ferryman.saga.results import ResultSource

COMMANDS, RESULTS = ResultSource("wallet", "commands"), ResultSource("payments", "results")


@dataclass
class FakeCluster:
    """An admin client and the groups' clients: topics of one partition, what groups have read, an outbox, a clock."""

    now: float = 1000.0
    ends: dict[str, int] = field(default_factory=lambda: {"commands": 0, "results": 0})
    firsts: dict[str, int] = field(default_factory=dict)
    read: dict[ResultSource, int] = field(default_factory=dict)
    waiting: float = 0.0
    away: Exception | None = None
    refusal: int | None = KafkaError.UNKNOWN_TOPIC_OR_PART
    """The code with which it answers about a topic that has no end."""
    brokers: Sequence[int] = (1,)
    closed: bool = False

    def list_topics(self, topic: str, timeout: float) -> Any:
        error = None if topic in self.ends or self.refusal is None else KafkaError(self.refusal)
        found = SimpleNamespace(partitions=range(1 if topic in self.ends else 0), error=error)
        return SimpleNamespace(brokers=self.brokers, topics={topic: found})

    def list_offsets(self, wanted: Mapping[TopicPartition, Any], request_timeout: float) -> dict[TopicPartition, Any]:
        answers: dict[TopicPartition, Any] = {}
        for at, which in wanted.items():
            earliest = type(which).__name__.lower().startswith("earliest")
            offset = self.firsts.get(at.topic, 0) if earliest else self.ends[at.topic]
            answers[at] = Future[Any]()
            answers[at].set_result(SimpleNamespace(offset=offset))
        return answers

    def client_of(self, group: str) -> Any:
        def committed(places: Sequence[TopicPartition], _seconds: float) -> list[TopicPartition]:
            return [TopicPartition(at.topic, at.partition, self.read.get(ResultSource(group, at.topic), -1001))
                    for at in places]  # fmt: skip

        return SimpleNamespace(committed=committed, close=lambda: None)

    def waiting_seconds(self) -> float:
        if self.away is not None:
            raise self.away
        return self.waiting

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    made = FakeCluster()
    monkeypatch.setattr("ferryman.saga.listening.time", SimpleNamespace(monotonic=lambda: made.now))
    return made


@pytest.fixture
def listeners(cluster: FakeCluster) -> Listeners:
    return watching(cluster, [])


def watching(cluster: FakeCluster, outboxes: Sequence[Any]) -> Listeners:
    made = Listeners("payment", [RESULTS, COMMANDS], Kafka(bootstrap_servers="none:1"), outboxes)
    made._clients = {each.consumer: cluster.client_of(each.consumer) for each in (RESULTS, COMMANDS)}
    return made


def look(listeners: Listeners, cluster: FakeCluster, later: float = 0.0) -> float:
    """Look so many seconds later. Return the time that does not count since then."""
    cluster.now += later
    listeners._look(cast(Any, cluster))
    return listeners.age


def test_nothing_is_known_before_the_first_look(listeners: Listeners) -> None:
    assert listeners.age == float("inf")


def test_time_counts_while_nothing_waits_to_be_read(listeners: Listeners, cluster: FakeCluster) -> None:
    assert look(listeners, cluster) == 0
    cluster.now += 5
    assert listeners.age == 5
    assert look(listeners, cluster) == 0


@pytest.mark.parametrize("source", [COMMANDS, RESULTS])
def test_time_counts_up_to_the_moment_whose_ends_have_been_read(
    listeners: Listeners, cluster: FakeCluster, source: ResultSource
) -> None:
    look(listeners, cluster)
    cluster.ends[source.topic] = 10
    assert look(listeners, cluster, 1) == 1
    cluster.ends[source.topic] = 20
    assert look(listeners, cluster, 1) == 2
    assert (source.consumer in listeners.why, source.topic in listeners.why) == (True, True)
    cluster.read[source] = 9
    assert look(listeners, cluster, 1) == 3
    cluster.read[source] = 10  # what was there 2 s ago
    assert look(listeners, cluster) == 2
    cluster.read[source] = 20
    assert look(listeners, cluster) == 0


def test_another_group_that_read_the_topic_does_not_count(listeners: Listeners, cluster: FakeCluster) -> None:
    look(listeners, cluster)
    cluster.ends["commands"] = 10
    cluster.read[ResultSource("payments", "commands")] = 10
    assert look(listeners, cluster, 1) == 1


def test_records_that_were_deleted_count_as_read(listeners: Listeners, cluster: FakeCluster) -> None:
    cluster.ends["commands"] = cluster.firsts["commands"] = 10
    assert look(listeners, cluster) == 0


def test_a_topic_that_does_not_exist_has_nothing_to_read(listeners: Listeners, cluster: FakeCluster) -> None:
    cluster.ends.clear()
    assert look(listeners, cluster) == 0


@pytest.mark.parametrize(
    ("refusal", "brokers"),
    [
        (None, [1]),
        (KafkaError.LEADER_NOT_AVAILABLE, [1]),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, [1]),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, []),
    ],
)
def test_time_stands_still_while_kafka_does_not_tell_of_a_topic(
    listeners: Listeners, cluster: FakeCluster, refusal: int | None, brokers: Sequence[int]
) -> None:
    del cluster.ends["results"]
    cluster.refusal, cluster.brokers = refusal, brokers
    with pytest.raises(KafkaException):
        look(listeners, cluster)
    assert listeners.age == float("inf")


def test_time_stands_still_while_a_topic_that_was_there_is_missed(listeners: Listeners, cluster: FakeCluster) -> None:
    assert look(listeners, cluster) == 0
    del cluster.ends["results"]
    with pytest.raises(KafkaException):
        look(listeners, cluster, 1)
    assert listeners.age == 1
    cluster.ends["results"] = 0
    assert look(listeners, cluster, 1) == 0


def test_an_entry_that_was_committed_long_after_it_was_made_takes_no_time_back(cluster: FakeCluster) -> None:
    listeners = watching(cluster, [cluster])
    assert look(listeners, cluster) == 0
    cluster.waiting = 30
    assert look(listeners, cluster, 1) == 1


def test_time_counts_up_to_when_the_first_waiting_result_was_appended(cluster: FakeCluster) -> None:
    listeners = watching(cluster, [cluster])
    assert look(listeners, cluster) == 0
    cluster.waiting = 3
    assert look(listeners, cluster, 10) == 3
    cluster.waiting = 13
    assert look(listeners, cluster, 10) == 13
    assert "results wait to be published" in listeners.why
    cluster.waiting, cluster.ends["results"] = 0, 1
    assert look(listeners, cluster, 1) == 14
    cluster.read[RESULTS] = 1
    assert look(listeners, cluster) == 0


def watch_once(listeners: Listeners) -> None:
    turns = iter((False, True))
    listeners.watch(cast(Any, SimpleNamespace(wait=lambda _seconds: next(turns))))


def test_time_stands_still_while_a_participants_database_is_away(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ferryman.saga.listening.kafka.admin", lambda *_: cluster)
    listeners = watching(cluster, [cluster])
    watch_once(listeners)
    assert listeners.age == 0
    cluster.now, cluster.away = cluster.now + 7, Unreachable("it does not answer")
    watch_once(listeners)
    assert listeners.age == 7
    assert "it does not answer" in listeners.why
    assert cluster.closed


def test_a_bug_in_the_watch_is_raised_by_who_asks(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ferryman.saga.listening.kafka.admin", lambda *_: cluster)
    listeners = watching(cluster, [cluster])
    cluster.away = ZeroDivisionError()
    watch_once(listeners)
    with pytest.raises(ZeroDivisionError):
        _ = listeners.age
