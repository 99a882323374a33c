"""Run librdkafka's mock cluster in a process of its own: the broker behind `BuiltInKafka`.

The Python client can only switch it on (`test.mock.num.brokers`). The functions that configure it are in the same
shared library, so ctypes calls them.
"""

import ctypes
import signal
import sys
from functools import cache
from pathlib import Path
from typing import Any, Self

from confluent_kafka import cimpl

_PRODUCER = 0
_ERROR_TEXT_BYTES = 512
_REBALANCE_DELAY_MS = 100
"""The time a new group waits for more members; librdkafka's default of 3 s is longer than a short session timeout."""

_POINTER = ctypes.c_void_p
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "rd_kafka_conf_new": (_POINTER,),
    "rd_kafka_new": (_POINTER, ctypes.c_int, _POINTER, ctypes.c_char_p, ctypes.c_size_t),
    "rd_kafka_destroy": (None, _POINTER),
    "rd_kafka_mock_cluster_new": (_POINTER, _POINTER, ctypes.c_int),
    "rd_kafka_mock_cluster_destroy": (None, _POINTER),
    "rd_kafka_mock_cluster_bootstraps": (ctypes.c_char_p, _POINTER),
    "rd_kafka_mock_group_initial_rebalance_delay_ms": (None, _POINTER, ctypes.c_int32),
}


@cache
def library() -> Any:
    """Return the librdkafka that the Python client is linked to."""
    found = ctypes.CDLL(cimpl.__file__)
    for name, (result, *arguments) in _SIGNATURES.items():
        function = getattr(found, name)
        function.restype, function.argtypes = result, arguments
    return found


class MockCluster:
    """A cluster of one broker in this process. It creates a topic when a client that allows it first asks for it."""

    def __init__(self) -> None:
        self._library = library()
        text = ctypes.create_string_buffer(_ERROR_TEXT_BYTES)
        self._client = self._library.rd_kafka_new(_PRODUCER, self._library.rd_kafka_conf_new(), text, len(text))
        if not self._client:
            raise RuntimeError(f"librdkafka created no client: {text.value.decode()}")
        self._cluster = self._library.rd_kafka_mock_cluster_new(self._client, 1)
        self._library.rd_kafka_mock_group_initial_rebalance_delay_ms(self._cluster, _REBALANCE_DELAY_MS)
        self.url: str = self._library.rd_kafka_mock_cluster_bootstraps(self._cluster).decode()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._library.rd_kafka_mock_cluster_destroy(self._cluster)
        self._library.rd_kafka_destroy(self._client)


def main(address_file: Path) -> None:
    """Run a cluster until SIGTERM. Write its address into the file once it can be reached."""
    with MockCluster() as cluster:
        part = address_file.with_suffix(".part")
        part.write_text(cluster.url)
        part.rename(address_file)
        signal.sigwait({signal.SIGTERM, signal.SIGINT})


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    main(Path(sys.argv[1]))
