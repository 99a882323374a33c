"""What waits to be handled: bounded, and by which partition it is held back."""

from ferryman.consumer.buffers import Buffers, size
from ferryman.consumer.model import Record


def record(partition: int, offset: int, value: bytes = b"", headers: int = 0) -> Record:
    return Record("t", partition, offset, b"", value, [("h", b"x" * headers)] if headers else [], 1000 * offset)


def owning(most_bytes: int, partitions: int = 2) -> Buffers:
    buffers = Buffers(most_bytes)
    buffers.own({("t", number) for number in range(partitions)})
    return buffers


def test_when_so_much_waits_no_more_is_fetched_of_what_has_something_waiting_until_it_is_handled() -> None:
    """N12: a partition that has nothing waiting may be what the others wait for."""
    buffers = owning(10_000)
    first, second = record(0, 0, b"x" * 6000), record(0, 1, b"x" * 6000)
    buffers.add([first])
    assert buffers.to_pause(0.0) == set()
    buffers.add([second])
    assert buffers.to_pause(0.0) == {("t", 0)}
    buffers.by_place["t", 0].finish(first)
    assert buffers.to_pause(0.0) == set()


def test_headers_take_room_too() -> None:
    """N12: Kafka allows a megabyte of them."""
    assert size(record(0, 0, headers=900_000)) > 900_000
    buffers = owning(100_000)
    buffers.add([record(0, 0, headers=200_000)])
    assert buffers.to_pause(0.0) == {("t", 0)}


def test_what_came_of_a_partition_that_is_gone_is_dropped() -> None:
    buffers = owning(1 << 20)
    buffers.add([record(0, 7), record(1, 3)])
    assert buffers.drop({("t", 0)}) == {("t", 0): 7}
    buffers.add([record(0, 8)])
    assert buffers.fed() == {("t", 1)}
    assert buffers.oldest_age_seconds(10.0) == 7.0


def test_only_what_a_batch_had_that_killed_its_owner_is_begun_alone() -> None:
    """N10, N11: not all that stands before it, where a group begins at its beginning again."""
    buffers = owning(1 << 20)
    buffers.suspect(("t", 0), range(3, 5), most=100)
    records = [record(0, offset) for offset in range(7)]
    buffers.add(records)
    buffer, portions = buffers.by_place["t", 0], []
    while portion := buffer.next(100):
        portions.append([each.offset for each in portion])
        for each in portion:
            buffer.finish(each)
    assert portions == [[0, 1, 2], [3], [4], [5, 6]]
