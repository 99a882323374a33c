"""Buffers of partitions: they are bounded, and held back one by one."""

from typing import Any, cast

from confluent_kafka import TopicPartition

from ferryman.consumer.kafka.group import GroupMember
from ferryman.consumer.kafka.offsets import EndOffsets, FirstOffsets
from ferryman.consumer.model import Record
from ferryman.consumer.partitions import PartitionBuffer, Partitions, size_of
from ferryman.runtime.settings import Kafka


def record(partition: int, offset: int, value: bytes = b"", headers: int = 0) -> Record:
    return Record("t", partition, offset, b"", value, [("h", b"x" * headers)] if headers else [], 1000 * offset)


def owning(most_bytes: int, partitions: int = 2) -> Partitions:
    places = [("t", number) for number in range(partitions)]
    return Partitions("c", most_bytes, 100, by_place={place: PartitionBuffer() for place in places})


def test_full_buffers_pause_the_partitions_that_have_something_waiting() -> None:
    """N12: a partition that has nothing waiting may be what the others wait for."""
    buffers = owning(10_000)
    first, second = record(0, 0, b"x" * 6000), record(0, 1, b"x" * 6000)
    buffers.add([first])
    assert buffers.to_hold(0.0) == set()
    buffers.add([second])
    assert buffers.to_hold(0.0) == {("t", 0)}
    buffers.by_place["t", 0].finish(first)
    assert buffers.to_hold(0.0) == set()


def test_headers_count_toward_the_size() -> None:
    """N12: Kafka allows a megabyte of headers."""
    assert size_of(record(0, 0, headers=900_000)) > 900_000
    buffers = owning(100_000)
    buffers.add([record(0, 0, headers=200_000)])
    assert buffers.to_hold(0.0) == {("t", 0)}


def test_records_of_a_partition_that_was_taken_away_are_dropped() -> None:
    buffers = owning(1 << 20)
    buffers.add([record(0, 7), record(1, 3)])
    assert buffers.drop({("t", 0)}) == {("t", 0): 7}
    buffers.add([record(0, 8)])
    assert buffers.fed() == {("t", 1)}
    assert buffers.oldest_age_seconds(10.0) == 7.0


def test_only_records_of_the_batch_that_killed_its_owner_are_begun_alone() -> None:
    """N10, N11: the records in front of that batch are handled together, also in a group that reads all of it again."""
    buffers = owning(1 << 20)
    records = [record(0, offset) for offset in range(7)]
    buffers.add(records)
    buffer, portions = buffers.by_place["t", 0], []
    buffer.singly = range(3, 5)
    while portion := buffer.next(100):
        portions.append([each.offset for each in portion])
        for each in portion:
            buffer.finish(each)
    assert portions == [[0, 1, 2], [3], [4], [5, 6]]


class Committing:
    """A client that only remembers what was committed."""

    def __init__(self) -> None:
        self.committed: list[tuple[int, int]] = []

    def commit(self, *, offsets: list[TopicPartition], **_: Any) -> None:
        self.committed += [(each.partition, each.offset) for each in offsets]

    def incremental_unassign(self, _: list[TopicPartition]) -> None: ...


def test_lost_partitions_commit_no_offsets_and_revoked_ones_do() -> None:
    """N9: the offset of a partition that has another owner would move under that owner's hands."""
    buffers, client = owning(1 << 20), Committing()
    member = GroupMember("c", ["t"], Kafka(), buffers, _client=cast(Any, client))
    member._firsts, member._ends = FirstOffsets("c", "earliest", 1), EndOffsets()
    for number in (0, 1):
        buffers.add([record(number, 7)])
        buffers.finish([buffers.by_place["t", number].waiting[0]])
    member._on_lost(cast(Any, client), [TopicPartition("t", 0)])
    assert client.committed == []
    member._on_revoke(cast(Any, client), [TopicPartition("t", 1)])
    assert client.committed == [(1, 8)]
    assert not buffers.by_place
