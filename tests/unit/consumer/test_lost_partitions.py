"""A member of a group commits offsets of partitions that it gives up in order, and never of lost ones."""

from typing import Any

import pytest
from confluent_kafka import TopicPartition

from ferryman.consumer.kafka import group as group_module
from ferryman.consumer.kafka.group import GroupMember
from ferryman.consumer.model import Record
from ferryman.consumer.partition_buffer import PartitionBuffer
from ferryman.consumer.partitions import Partitions
from ferryman.runtime.settings import Kafka

PLACE = ("t", 0)


class Client:
    """A client of Kafka that notes what it is asked to commit."""

    def __init__(self) -> None:
        self.committed: list[tuple[str, int, int]] = []
        self.callbacks: dict[str, Any] = {}

    def subscribe(self, _topics: list[str], **callbacks: Any) -> None:
        self.callbacks = callbacks

    def commit(self, offsets: list[TopicPartition], **_: Any) -> None:
        self.committed += [(each.topic, each.partition, each.offset) for each in offsets]

    def incremental_unassign(self, _partitions: list[TopicPartition]) -> None: ...


@pytest.mark.parametrize(("how", "committed"), [("on_revoke", [("t", 0, 1)]), ("on_lost", [])])
def test_only_partitions_that_are_given_up_in_order_commit_offsets(
    monkeypatch: pytest.MonkeyPatch, how: str, committed: list[tuple[str, int, int]]
) -> None:
    """N9: those that were lost have another owner, who may be ahead or begin anew."""
    client = Client()
    monkeypatch.setattr(group_module, "group_client", lambda *_, **__: client)
    partitions = Partitions("c", 1 << 20, 9, by_place={PLACE: PartitionBuffer()})
    handled = Record(*PLACE, 0, b"", b"", [], 0)
    partitions.add([handled])
    partitions.finish([handled])
    GroupMember("c", ["t"], Kafka(), partitions).open()
    client.callbacks[how](client, [TopicPartition(*PLACE)])
    assert client.committed == committed
    assert partitions.by_place == {}
