"""The version of a broker, by Kafka's own ApiVersions question: librdkafka asks it too, but does not pass it on.

A broker names the range of `metadata.version` it supports, and each release ends at a level of its own.
"""

import socket
import ssl
import struct

from ferryman.runtime.settings import Kafka

# The first level of each release; a broker whose newest level is past the last one is newer than this table.
_LEVELS = {
    1: (3, 0), 4: (3, 1), 5: (3, 2), 6: (3, 3), 8: (3, 4), 9: (3, 5), 12: (3, 6), 16: (3, 7), 20: (3, 8), 21: (3, 9),
    22: (4, 0), 26: (4, 1), 28: (4, 2), 30: (4, 3),
}  # fmt: skip
_API_VERSIONS, _REQUEST_VERSION = 18, 3
_SUPPORTED_FEATURES_TAG = 0


def broker_version(settings: Kafka, host: str, port: int) -> tuple[int, int] | None:
    """The broker's release; None when it names no level (older than 3.3, or not Apache Kafka)."""
    with _connect(settings, host, port) as connection:
        body = _ask(connection)
    newest = _newest_level(body)
    return None if newest is None else max(version for level, version in _LEVELS.items() if level <= newest)


def _connect(settings: Kafka, host: str, port: int) -> socket.socket:
    plain = socket.create_connection((host, port), timeout=settings.timeout_seconds)
    if not settings.properties.get("security.protocol", "plaintext").upper().endswith("SSL"):
        return plain
    context = ssl.create_default_context(cafile=settings.properties.get("ssl.ca.location"))
    if certificate := settings.properties.get("ssl.certificate.location"):
        context.load_cert_chain(
            certificate, settings.properties.get("ssl.key.location"), settings.properties.get("ssl.key.password")
        )
    return context.wrap_socket(plain, server_hostname=host)


def _ask(connection: socket.socket) -> bytes:
    client = b"ferryman-doctor"
    header = struct.pack(">hhih", _API_VERSIONS, _REQUEST_VERSION, 1, len(client)) + client + b"\0"
    words = b"".join(bytes([len(word) + 1]) + word for word in (client, b"1")) + b"\0"
    connection.sendall(struct.pack(">i", len(header + words)) + header + words)
    size = struct.unpack(">i", _exactly(connection, 4))[0]
    if not 0 < size < 1 << 20:
        raise ValueError("the answer is not Kafka's")
    return _exactly(connection, size)


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        if not (more := connection.recv(size - len(data))):
            raise ValueError("it closed the connection")
        data += more
    return data


class _Reader:
    """Kafka's compact types, as far as this one answer needs them."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, size: int) -> bytes:
        self._at += size
        if self._at > len(self._data):
            raise ValueError("the answer is cut short")
        return self._data[self._at - size : self._at]

    def int16(self) -> int:
        return int(struct.unpack(">h", self.take(2))[0])

    def varint(self) -> int:
        value = shift = 0
        while True:
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    def skip_tags(self) -> None:
        for _ in range(self.varint()):
            self.varint()
            self.take(self.varint())


def _newest_level(body: bytes) -> int | None:
    """The upper end of `metadata.version` among the supported features; the answer's first tag holds them."""
    answer = _Reader(body)
    answer.take(4)  # correlation id
    if error := answer.int16():
        raise ValueError(f"it answered with error code {error}")
    for _ in range(answer.varint() - 1):
        answer.take(6)  # an API's key and its range of versions
        answer.skip_tags()
    answer.take(4)  # throttle time
    for _ in range(answer.varint()):
        tag, content = answer.varint(), _Reader(answer.take(answer.varint()))
        if tag == _SUPPORTED_FEATURES_TAG:
            for _ in range(content.varint() - 1):
                name = content.take(content.varint() - 1)
                content.int16()
                newest = content.int16()
                content.skip_tags()
                if name == b"metadata.version":
                    return newest
    return None
