"""Columns of many rows as PostgreSQL's arrays, encoded in one go: psycopg would inspect each element.

A list becomes a column by its class: `Texts(topics)`. None becomes NULL.
"""

import struct
from collections.abc import Sequence
from struct import Struct
from typing import ClassVar
from uuid import UUID

import psycopg
from psycopg.adapt import Dumper
from psycopg.pq import Format

_EMPTY, _HEAD, _SIZE = Struct("!iii").pack, Struct("!iiiii").pack, Struct("!i").pack
_NULL, _UUID, _BIGINT = _SIZE(-1), _SIZE(16), Struct("!iq").pack
_PERHAPS_NULLS, _FIRST = 1, 1


class Texts(list[str | None]):
    """A column of type text[]."""


class Payloads(list[bytes | None]):
    """A column of type bytea[]."""


class Uuids(list[UUID | None]):
    """A column of type uuid[]."""


class Bigints(list[int]):
    """A column of type bigint[]."""


class _ColumnDumper(Dumper):
    format = Format.BINARY
    element: ClassVar[int]

    def _array(self, elements: Sequence[bytes]) -> bytes:
        if not elements:
            return _EMPTY(0, 0, self.element)
        return b"".join((_HEAD(1, _PERHAPS_NULLS, self.element, len(elements), _FIRST), *elements))


class _TextsDumper(_ColumnDumper):
    element = psycopg.adapters.types["text"].oid
    oid = psycopg.adapters.types["text"].array_oid

    def dump(self, obj: Texts) -> bytes:
        """Encode each different text once if many are equal, as topics, types and statuses are."""
        encoding = self.connection.info.encoding if self.connection else "utf-8"
        if encoding == "ascii":  # a database with SQL_ASCII takes bytes as they are
            encoding = "utf-8"

        def sent(text: str | None) -> bytes:
            return _NULL if text is None else _SIZE(len(data := text.encode(encoding))) + data

        different = set(obj)
        if 2 * len(different) > len(obj):
            return self._array([sent(each) for each in obj])
        known = {each: sent(each) for each in different}
        return self._array([known[each] for each in obj])


class _PayloadsDumper(_ColumnDumper):
    element = psycopg.adapters.types["bytea"].oid
    oid = psycopg.adapters.types["bytea"].array_oid

    def dump(self, obj: Payloads) -> bytes:
        return self._array([_NULL if each is None else _SIZE(len(each)) + each for each in obj])


class _UuidsDumper(_ColumnDumper):
    element = psycopg.adapters.types["uuid"].oid
    oid = psycopg.adapters.types["uuid"].array_oid

    def dump(self, obj: Uuids) -> bytes:
        return self._array([_NULL if each is None else _UUID + each.int.to_bytes(16) for each in obj])


class _BigintsDumper(_ColumnDumper):
    element = psycopg.adapters.types["int8"].oid
    oid = psycopg.adapters.types["int8"].array_oid

    def dump(self, obj: Bigints) -> bytes:
        try:
            return self._array([_BIGINT(8, each) for each in obj])
        except struct.error as error:
            raise psycopg.DataError(f"not every one of these numbers is a bigint: {error}") from error


for _column, _dumper in (
    (Texts, _TextsDumper), (Payloads, _PayloadsDumper), (Uuids, _UuidsDumper), (Bigints, _BigintsDumper)
):  # fmt: skip
    psycopg.adapters.register_dumper(_column, _dumper)
