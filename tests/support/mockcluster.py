"""librdkafka's mock cluster in this process: a broker that fails on demand."""

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import confluent_kafka
from confluent_kafka import KafkaError

from ferryman.testing import builtin_broker

PRODUCE = 0
LIST_OFFSETS = 2
INIT_PRODUCER_ID = 22

_CLUSTER = ctypes.c_void_p
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "rd_kafka_mock_topic_create": (ctypes.c_int, _CLUSTER, ctypes.c_char_p, ctypes.c_int, ctypes.c_int),
    "rd_kafka_mock_partition_set_leader": (ctypes.c_int, _CLUSTER, ctypes.c_char_p, ctypes.c_int32, ctypes.c_int32),
    "rd_kafka_mock_partition_delete_records": (
        ctypes.c_int,
        _CLUSTER,
        ctypes.c_char_p,
        ctypes.c_int32,
        ctypes.c_int64,
    ),
    "rd_kafka_mock_push_request_errors_array": (None, _CLUSTER, ctypes.c_int16, ctypes.c_size_t, ctypes.c_void_p),
    "rd_kafka_mock_clear_request_errors": (None, _CLUSTER, ctypes.c_int16),
    "rd_kafka_mock_broker_set_rtt": (ctypes.c_int, _CLUSTER, ctypes.c_int32, ctypes.c_int),
    "rd_kafka_mock_broker_set_down": (ctypes.c_int, _CLUSTER, ctypes.c_int32),
    "rd_kafka_mock_broker_set_up": (ctypes.c_int, _CLUSTER, ctypes.c_int32),
}


def library_path() -> Path:
    """Return the file of the librdkafka that the Python client is linked to."""
    folder = Path(confluent_kafka.__file__).parent
    [path] = [*folder.parent.glob("confluent_kafka.libs/librdkafka*.so*"), *folder.glob(".dylibs/librdkafka*.dylib")]
    return path


class MockCluster(builtin_broker.MockCluster):
    """A cluster of one broker."""

    def __init__(self) -> None:
        super().__init__()
        for name, (result, *arguments) in _SIGNATURES.items():
            function = getattr(self._library, name)
            function.restype, function.argtypes = result, arguments

    def create(self, topic: str, partitions: int = 1) -> None:
        assert self._library.rd_kafka_mock_topic_create(self._cluster, topic.encode(), partitions, 1) == 0

    def lead(self, topic: str, *, leader: bool, partition: int = 0) -> None:
        """Give the partition a leader, or none: then it takes nothing, and librdkafka waits and reports nothing."""
        number = 1 if leader else -1
        assert self._library.rd_kafka_mock_partition_set_leader(self._cluster, topic.encode(), partition, number) == 0

    def delete_records(self, topic: str, before: int, partition: int = 0) -> None:
        deleted = self._library.rd_kafka_mock_partition_delete_records(self._cluster, topic.encode(), partition, before)
        assert deleted == 0

    def fail(self, errors: Sequence[int], request: int = PRODUCE) -> None:
        """Answer the next requests of this kind with these errors, one each."""
        codes = (ctypes.c_int * len(errors))(*errors)
        self._library.rd_kafka_mock_push_request_errors_array(self._cluster, request, len(errors), codes)

    def heal(self, request: int = PRODUCE) -> None:
        """Answer all further requests of this kind without errors."""
        self._library.rd_kafka_mock_clear_request_errors(self._cluster, request)

    def delay(self, milliseconds: Sequence[int], request: int = PRODUCE) -> None:
        """Answer the next requests of this kind well, but only after so long."""
        # The errors and their delays are variable arguments: ctypes is told the type of each argument here.
        pairs = [ctypes.c_int(each) for wait in milliseconds for each in (KafkaError.NO_ERROR, wait)]
        self._library.rd_kafka_mock_broker_push_request_error_rtts(
            ctypes.c_void_p(self._cluster), ctypes.c_int32(1), ctypes.c_int16(request),
            ctypes.c_size_t(len(milliseconds)), *pairs,
        )  # fmt: skip

    def set_round_trip(self, milliseconds: int) -> None:
        """Delay each further answer by so much."""
        assert self._library.rd_kafka_mock_broker_set_rtt(self._cluster, 1, milliseconds) == 0

    def go_down(self) -> None:
        assert self._library.rd_kafka_mock_broker_set_down(self._cluster, 1) == 0

    def come_up(self) -> None:
        assert self._library.rd_kafka_mock_broker_set_up(self._cluster, 1) == 0
