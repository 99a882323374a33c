"""Topics are created, and usable when the call returns."""

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import NewTopic

from ferryman.runtime.kafka import create_topics

FENCED = (
    "Unable to replicate the partition 1 time(s): All brokers are currently fenced, or have all their log "
    "directories cordoned."
)
FEW = "Unable to replicate the partition 3 time(s): The target replication factor of 3 cannot be reached"


class Cluster:
    """A client that answers each attempt to create a topic with the next refusal, and then creates it."""

    def __init__(self, **refusals: list[str]) -> None:
        self.refusals = refusals
        self.asked: list[list[str]] = []

    def create_topics(self, topics: list[NewTopic], *, request_timeout: float) -> dict[str, "Future[None]"]:
        assert request_timeout
        self.asked.append([each.topic for each in topics])
        return {each.topic: self._answer(each.topic) for each in topics}

    def list_topics(self, topic: str, *, timeout: float) -> Any:
        assert timeout
        return SimpleNamespace(cluster_id="of its own", topics={topic: SimpleNamespace(error=None)})

    def _answer(self, topic: str) -> "Future[None]":
        answer = Future[None]()
        if left := self.refusals.get(topic):
            answer.set_exception(KafkaException(KafkaError(KafkaError.INVALID_REPLICATION_FACTOR, left.pop(0))))
        else:
            answer.set_result(None)
        return answer


def create(cluster: Cluster, *names: str, seconds: float = 5.0) -> None:
    create_topics(cluster, [NewTopic(name, 1, 1) for name in names], seconds)  # type: ignore[arg-type]


def test_topics_refused_by_fenced_brokers_are_requested_again() -> None:
    cluster = Cluster(one=[FENCED, FENCED])
    create(cluster, "one", "other")
    assert cluster.asked == [["one", "other"], ["one"], ["one"]]


def test_a_payment_that_cannot_succeed_is_not_requested_again() -> None:
    cluster = Cluster(one=[FEW])
    with pytest.raises(KafkaException, match="cannot be reached"):
        create(cluster, "one")
    assert cluster.asked == [["one"]]


def test_nobody_waits_for_ever() -> None:
    with pytest.raises(KafkaException, match="fenced"):
        create(Cluster(one=[FENCED] * 1000), "one", seconds=0.1)
