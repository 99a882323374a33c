"""Records whose header names are any bytes, as clients in C, Go or PHP can write them.

Python's client takes only text, so this calls librdkafka's own functions, as `mockcluster` does.
"""

import ctypes
from collections.abc import Sequence
from typing import Any

from support.mockcluster import library_path

_PRODUCER = 0
_COPY = 2
_ERROR_TEXT_BYTES = 512
# rd_kafka_vtype_t
_END, _TOPIC, _PARTITION, _VALUE, _KEY, _FLAGS, _HEADER = 0, 1, 3, 4, 5, 7, 9
_FLUSH_MS = 20_000


def produce(
    kafka: str, topic: str, value: bytes, headers: Sequence[tuple[bytes, bytes]], *, key: bytes = b"k",
    partition: int = 0,
) -> None:  # fmt: skip
    """Produce one record, and return when the broker has it."""
    library = ctypes.CDLL(str(library_path()))
    library.rd_kafka_conf_new.restype = library.rd_kafka_new.restype = ctypes.c_void_p
    text = ctypes.create_string_buffer(_ERROR_TEXT_BYTES)
    conf = ctypes.c_void_p(library.rd_kafka_conf_new())
    library.rd_kafka_conf_set(conf, b"bootstrap.servers", kafka.encode(), text, ctypes.c_size_t(len(text)))
    client = ctypes.c_void_p(library.rd_kafka_new(_PRODUCER, conf, text, ctypes.c_size_t(len(text))))
    assert client.value, text.value.decode()
    try:
        given: list[Any] = [_TOPIC, topic.encode(), _PARTITION, ctypes.c_int32(partition), _FLAGS, _COPY]
        given += [_VALUE, value, ctypes.c_size_t(len(value)), _KEY, key, ctypes.c_size_t(len(key))]
        for name, content in headers:
            given += [_HEADER, name, content, ctypes.c_ssize_t(len(content))]
        assert library.rd_kafka_producev(client, *given, _END) == 0
        assert library.rd_kafka_flush(client, _FLUSH_MS) == 0
    finally:
        library.rd_kafka_destroy(client)
