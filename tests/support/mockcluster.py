"""librdkafka's mock cluster, held by this process: a broker that fails as it is told.

The Python client only switches it on (`test.mock.num.brokers`); the functions that make it fail are in the same shared
library, so they are called by ctypes. Its topics are made when they are first asked for, unless `create` made them.
"""

import ctypes
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, Self

import confluent_kafka
from confluent_kafka import KafkaError

PRODUCE = 0
INIT_PRODUCER_ID = 22

_PRODUCER = 0
_ERROR_TEXT_BYTES = 512


def library_path() -> Path:
    """Of the librdkafka that Python's client stands on."""
    folder = Path(confluent_kafka.__file__).parent
    [path] = [*folder.parent.glob("confluent_kafka.libs/librdkafka*.so*"), *folder.glob(".dylibs/librdkafka*.dylib")]
    return path


@cache
def _library() -> Any:
    library = ctypes.CDLL(str(library_path()))
    pointer = ctypes.c_void_p
    for name, result, *arguments in (
        ("rd_kafka_conf_new", pointer),
        ("rd_kafka_new", pointer, ctypes.c_int, pointer, ctypes.c_char_p, ctypes.c_size_t),
        ("rd_kafka_destroy", None, pointer),
        ("rd_kafka_mock_cluster_new", pointer, pointer, ctypes.c_int),
        ("rd_kafka_mock_cluster_destroy", None, pointer),
        ("rd_kafka_mock_cluster_bootstraps", ctypes.c_char_p, pointer),
        ("rd_kafka_mock_topic_create", ctypes.c_int, pointer, ctypes.c_char_p, ctypes.c_int, ctypes.c_int),
        ("rd_kafka_mock_partition_set_leader", ctypes.c_int, pointer, ctypes.c_char_p, ctypes.c_int32, ctypes.c_int32),
        ("rd_kafka_mock_push_request_errors_array", None, pointer, ctypes.c_int16, ctypes.c_size_t, pointer),
        ("rd_kafka_mock_clear_request_errors", None, pointer, ctypes.c_int16),
        ("rd_kafka_mock_broker_set_rtt", ctypes.c_int, pointer, ctypes.c_int32, ctypes.c_int),
        ("rd_kafka_mock_broker_set_down", ctypes.c_int, pointer, ctypes.c_int32),
        ("rd_kafka_mock_broker_set_up", ctypes.c_int, pointer, ctypes.c_int32),
    ):  # fmt: skip
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


class MockCluster:
    """A cluster of one broker."""

    def __init__(self) -> None:
        self._library = _library()
        text = ctypes.create_string_buffer(_ERROR_TEXT_BYTES)
        self._client = self._library.rd_kafka_new(_PRODUCER, self._library.rd_kafka_conf_new(), text, len(text))
        assert self._client, text.value.decode()
        self._cluster = self._library.rd_kafka_mock_cluster_new(self._client, 1)
        self.url = self._library.rd_kafka_mock_cluster_bootstraps(self._cluster).decode()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._library.rd_kafka_mock_cluster_destroy(self._cluster)
        self._library.rd_kafka_destroy(self._client)

    def create(self, topic: str, partitions: int = 1) -> None:
        assert self._library.rd_kafka_mock_topic_create(self._cluster, topic.encode(), partitions, 1) == 0

    def lead(self, topic: str, *, leader: bool, partition: int = 0) -> None:
        """Whether the partition has a leader; without one nothing is taken, and librdkafka waits and says nothing."""
        number = 1 if leader else -1
        assert self._library.rd_kafka_mock_partition_set_leader(self._cluster, topic.encode(), partition, number) == 0

    def fail(self, errors: Sequence[int], request: int = PRODUCE) -> None:
        """The next requests of this kind are answered with these errors, one each."""
        codes = (ctypes.c_int * len(errors))(*errors)
        self._library.rd_kafka_mock_push_request_errors_array(self._cluster, request, len(errors), codes)

    def heal(self, request: int = PRODUCE) -> None:
        """No request of this kind fails any more."""
        self._library.rd_kafka_mock_clear_request_errors(self._cluster, request)

    def delay(self, milliseconds: Sequence[int], request: int = PRODUCE) -> None:
        """The next requests of this kind are answered well, but only after so long."""
        # The errors and their delays are variable arguments: ctypes is told the type of each argument here.
        pairs = [ctypes.c_int(each) for wait in milliseconds for each in (KafkaError.NO_ERROR, wait)]
        self._library.rd_kafka_mock_broker_push_request_error_rtts(
            ctypes.c_void_p(self._cluster), ctypes.c_int32(1), ctypes.c_int16(request),
            ctypes.c_size_t(len(milliseconds)), *pairs,
        )  # fmt: skip

    def set_round_trip(self, milliseconds: int) -> None:
        """From now on each answer takes so long."""
        assert self._library.rd_kafka_mock_broker_set_rtt(self._cluster, 1, milliseconds) == 0

    def go_down(self) -> None:
        assert self._library.rd_kafka_mock_broker_set_down(self._cluster, 1) == 0

    def come_up(self) -> None:
        assert self._library.rd_kafka_mock_broker_set_up(self._cluster, 1) == 0
