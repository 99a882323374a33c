"""Buffers of partitions: they are bounded, and held back one by one."""

from typing import Any, cast

from confluent_kafka import TopicPartition

from ferryman.consumer.kafka.group import GroupMember
from ferryman.consumer.kafka.offsets import EndOffsets, FirstOffsets
from ferryman.consumer.model import Record
from ferryman.consumer.partition_buffer import PartitionBuffer, size_of
from ferryman.consumer.partitions import Partitions
from ferryman.runtime.settings import Kafka


def record(partition: int, offset: int, value: bytes = b"", headers: int = 0) -> Record:
    return Record("t", partition, offset, b"", value, [("h", b"x" * headers)] if headers else [], 1000 * offset)


def of_type(partition: int, offset: int, kind: bytes) -> Record:
    return record(partition, offset)._replace(headers=[("ce_type", kind)])


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


def test_a_partition_that_waits_for_its_next_try_is_fetched_up_to_its_share() -> None:
    """N10, N12: messages behind one that fails may tell whose fault that is, and must not take all of the memory."""
    buffers = owning(40_000)
    buffers.add([record(0, 0)])
    buffers.by_place["t", 0].held_until = 5.0
    assert buffers.to_hold(0.0) == set()
    buffers.add([record(0, 1, b"x" * 10_000)])
    assert buffers.to_hold(0.0) == {("t", 0)}
    assert buffers.to_hold(6.0) == set()


def test_a_message_is_compared_only_with_messages_of_its_type_that_may_work() -> None:
    """N8, N10: what another type needs tells nothing, nor does a front that failed."""
    buffers = owning(1 << 20)
    buffers.add([of_type(0, 0, b"a"), of_type(0, 1, b"b"), of_type(1, 0, b"a"), of_type(1, 1, b"b")])
    first, second = buffers.by_place["t", 0], buffers.by_place["t", 1]
    first.cause = second.cause = "42883"
    front = first.waiting[0]
    assert buffers.another(front) is None
    buffers.add([of_type(1, 2, b"a"), of_type(1, 3, b"b")])
    assert all(buffers.another(front) is second.waiting[2] for _ in range(10))
    second.singly = range(2, 3)
    assert buffers.another(front) is None


def test_a_message_that_worked_is_compared_with_again_while_it_waits() -> None:
    """N10: each message of a flood is compared before it is rejected, and looks no further."""
    buffers = owning(1 << 20)
    buffers.add([of_type(0, offset, b"a") for offset in range(5)])
    buffer = buffers.by_place["t", 0]
    buffer.cause = "42883"
    front, worked = buffer.waiting[0], buffer.waiting[2]
    buffers.worked[b"a"] = worked
    assert all(buffers.another(front) is worked for _ in range(4))
    for each in list(buffer.waiting)[:2]:
        buffer.finish(each)
    buffer.cause = "42883"
    assert buffers.another(worked) is buffer.waiting[-1]
    buffer.finish(worked)
    assert buffers.another(buffer.waiting[0]) is not worked


def test_other_messages_are_taken_from_the_ends_and_from_in_between() -> None:
    """N10: good messages may be the last ones, or a few among many."""
    buffers = owning(1 << 20)
    buffers.add([of_type(partition, offset, b"a") for partition in range(2) for offset in range(100)])
    chosen = {(each.partition, each.offset) for _ in range(2) for each in buffers.others(b"a", 6)}
    assert {(0, 99), (1, 99)} < chosen
    assert len(chosen) >= 7


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
