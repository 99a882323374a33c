"""Bytes to data and back: Avro in Confluent's wire format (a zero byte, the schema's id in four, the record), or JSON.

What does not fit is refused with the field's name, before anything is written; what cannot be read says where it stood.
"""

import json
from collections.abc import Mapping
from io import BytesIO
from typing import Any, NamedTuple

from fastavro import schemaless_reader, schemaless_writer

from ferryman.runtime.errors import FerrymanError, Misconfigured, Permanent, Transient
from ferryman.schemas import avro, fitting, natural
from ferryman.schemas.catalogue import AVRO, JSON, Catalogue, Type
from ferryman.schemas.registry import Registry, UnknownSchema

_MAGIC = 0
_HEAD_BYTES = 5
_WRITING_FAILS = (TypeError, ValueError, OverflowError, KeyError, AttributeError)


class At(NamedTuple):
    """Where a record stands."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}] at offset {self.offset}"


class Unfit(Permanent):
    """The data does not fit its type's schema: its writer is told which field."""


class Undecodable(Permanent):
    """The bytes are not what they should be. Trying again cannot help."""


class Codec:
    """Of one type. Its own schema is the reader's; the writer's is found by the id in the bytes."""

    def __init__(self, kind: Type, registry: Registry) -> None:
        self.type = kind
        self._registry = registry
        self._schema = kind.schema
        self._fits = fitting.compiled(kind.schema)
        self._head: bytes | None = None
        self._pairs: dict[bytes, tuple[avro.Schema, avro.Schema | None]] = {}
        self._in_json = kind.content_type == JSON

    def encode(self, data: Mapping[str, Any]) -> bytes:
        """The payload, in the type's format."""
        if self._in_json:
            return _json(self._natural(data))
        try:
            if not self._fits(data):
                self._natural(data)
        except (KeyError, TypeError, AttributeError):
            self._natural(data)
        try:
            return self._write(data)
        except _WRITING_FAILS:
            # It names the field; or else it was a default whose form in the schema fastavro does not write.
            full = natural.read(self._schema, self._natural(data))
        try:
            return self._write(full)
        except _WRITING_FAILS as error:
            raise Unfit(f"{self.type.name} cannot be written: {type(error).__name__}") from error

    def _write(self, data: Mapping[str, Any]) -> bytes:
        stream = BytesIO()
        stream.write(self._head or self._known())
        schemaless_writer(stream, self._schema, data, strict_allow_default=True)
        return stream.getvalue()

    def decode(self, payload: bytes, at: At | None = None) -> dict[str, Any]:
        """The data, as our schema has it, whichever version wrote it."""
        if self._in_json:
            return self._decode_json(payload, at)
        writer, reader = self._pairs.get(payload[:_HEAD_BYTES]) or self._pair(payload, at)
        stream = BytesIO(payload)
        stream.seek(_HEAD_BYTES)
        try:
            data = schemaless_reader(stream, writer, reader)
        except Exception as error:  # fastavro reads foreign bytes with any error there is
            words = str(error) if self.type.shows_values or isinstance(error, EOFError) else type(error).__name__
            raise self._undecodable(at, f"it cannot be read with schema {_number(payload)}: {words}") from error
        if stream.read(1):
            left = len(payload) - stream.tell() + 1
            raise self._undecodable(at, f"behind the record of schema {_number(payload)} are {left} bytes")
        assert isinstance(data, dict)
        return data

    def _known(self) -> bytes:
        number = self._registry.lookup(self.type.subject, self.type.text)
        if number is None:
            raise Misconfigured(
                f"the registry has not this schema of {self.type.name}", setting="registry_url",
                remedy="run `ferryman schemas publish`",
            )  # fmt: skip
        self._head = bytes([_MAGIC]) + number.to_bytes(_HEAD_BYTES - 1)
        return self._head

    def _natural(self, data: Any) -> Any:
        try:
            return natural.write(self._schema, data)
        except natural.Misfit as error:
            raise Unfit(
                f"the data of {self.type.name} does not fit its schema: {error.told(show=self.type.shows_values)}",
                remedy=f"correct the data, or a new version of {self.type.name}.avsc",
            ) from error

    def _pair(self, payload: bytes, at: At | None) -> tuple[avro.Schema, avro.Schema | None]:
        """The writer's schema, and ours where it is another."""
        if len(payload) < _HEAD_BYTES or payload[0] != _MAGIC:
            raise self._undecodable(at, "it does not begin with a zero byte and a schema's id")
        number = _number(payload)
        try:
            text = self._registry.schema(number)
        except UnknownSchema as error:
            raise self._undecodable(at, f"no registry knows its schema {number}") from error
        except Transient as error:
            raise type(error)(f"{self._where(at)} waits for its schema {number}: {error.message}") from error
        try:
            writer = avro.parse(text)
        except avro.BadSchema as error:
            raise self._undecodable(at, f"its schema {number} is none: {error}") from error
        if writer["name"] != self._schema["name"]:
            raise self._undecodable(
                at, f"its schema {number} is of a {writer['name']}, not of a {self._schema['name']}"
            )
        same = writer == self._schema
        pair = self._pairs[payload[:_HEAD_BYTES]] = (self._schema, None) if same else (writer, self._schema)
        return pair

    def _decode_json(self, payload: bytes, at: At | None) -> dict[str, Any]:
        try:
            data = natural.read(self._schema, json.loads(payload), of_another_version=True)
        except (ValueError, RecursionError) as error:
            raise self._undecodable(at, "it is not JSON") from error
        except natural.Misfit as error:
            raise self._undecodable(at, error.told(show=self.type.shows_values)) from error
        assert isinstance(data, dict)
        return data

    def _undecodable(self, at: At | None, what: str) -> FerrymanError:
        return Undecodable(f"{self._where(at)} is not a {self.type.name}: {what}")

    @staticmethod
    def _where(at: At | None) -> str:
        return "a payload" if at is None else f"the record {at}"


class Codecs:
    """Of a whole catalogue, each made when it is first asked for."""

    def __init__(self, catalogue: Catalogue, registry: Registry) -> None:
        self.catalogue = catalogue
        self.registry = registry
        self._made: dict[str, Codec] = {}

    def topic_of(self, name: str, topic: str | None) -> str | None:
        """Where a message of this type goes: to the topic that was named, or else to its own."""
        kind = self.catalogue.types.get(name)
        if kind is None:
            return topic
        if topic not in {None, kind.topic}:
            raise Unfit(
                f"{name} belongs to topic {kind.topic}, not to {topic}",
                remedy="leave the topic out, or give the message a type of its own",
            )
        return kind.topic

    def encode(self, name: str, topic: str, data: Mapping[str, Any]) -> tuple[bytes, str] | None:
        """The payload and its content type; None where neither the type nor the topic is in the catalogue."""
        codec = self.of(name)
        if codec is not None:
            return codec.encode(data), codec.type.content_type
        if topic in self.catalogue.topics:
            known = ", ".join(each.name for each in self.catalogue.of_topic(topic))
            raise Unfit(
                f"topic {topic} has no type {name}", remedy=f"its types are {known}; add this one to the catalogue"
            )
        return None

    def of(self, name: str) -> Codec | None:
        """None where the type is not in the catalogue: its bytes are foreign, and left alone."""
        found = self._made.get(name)
        if found is None and (kind := self.catalogue.types.get(name)):
            found = self._made[name] = Codec(kind, self.registry)
        return found


def _number(payload: bytes) -> int:
    return int.from_bytes(payload[1:_HEAD_BYTES])


def _json(data: Any) -> bytes:
    return json.dumps(data, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


__all__ = ["AVRO", "JSON", "At", "Codec", "Codecs", "Undecodable", "Unfit"]
