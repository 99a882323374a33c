"""Columns that go from one server to the other as they came, in PostgreSQL's binary form of arrays.

Most payments are plainly in order, and the servers can tell: to make an object of each value on the way takes longer
than all else together.
"""

from hashlib import sha1
from typing import Any

import psycopg
from psycopg.adapt import Buffer, Dumper, Loader
from psycopg.pq import Format

_HEADER_BYTES, _LENGTH = 20, (16).to_bytes(4)
_STRIDE = len(_LENGTH) + 16


class Column(bytes):
    """An array, as the server sent it."""

    __slots__ = ()


class Uuids(Column):
    """An array of uuids."""

    __slots__ = ()


class Numbers(Column):
    """An array of bigints."""

    __slots__ = ()


class Texts(Column):
    """An array of texts."""

    __slots__ = ()


_OIDS: dict[type[Column], int] = {Uuids: 2951, Numbers: 1016, Texts: 1009}


def giving(cursor: psycopg.Cursor[tuple[Any, ...]]) -> None:
    """From now on this cursor gives arrays as columns."""
    for kind, oid in _OIDS.items():
        cursor.adapters.register_loader(oid, _loader(kind))


def taking(cursor: psycopg.Cursor[tuple[Any, ...]]) -> None:
    """From now on this cursor takes columns."""
    for kind, oid in _OIDS.items():
        cursor.adapters.register_dumper(kind, _dumper(oid))


def derived(namespaces: Uuids, name: str) -> Uuids:
    """Of each, `uuid5(namespace, name)`, in their order."""
    made = [namespaces[:_HEADER_BYTES]]
    ending = name.encode()
    for at in range(_HEADER_BYTES + len(_LENGTH), len(namespaces), _STRIDE):
        digest = bytearray(sha1(namespaces[at : at + 16] + ending, usedforsecurity=False).digest()[:16])
        digest[6] = digest[6] & 0x0F | 0x50
        digest[8] = digest[8] & 0x3F | 0x80
        made += _LENGTH, bytes(digest)
    return Uuids(b"".join(made))


def _loader(kind: type[Column]) -> type[Loader]:
    class Opaque(Loader):
        format = Format.BINARY

        def load(self, data: Buffer) -> Column:
            return kind(bytes(data))

    return Opaque


def _dumper(number: int) -> type[Dumper]:
    class Opaque(Dumper):
        format = Format.BINARY
        oid = number

        def dump(self, obj: Column) -> Buffer:
            return bytes(obj)

    return Opaque
