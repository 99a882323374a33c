"""The codec: data to bytes and back, as JSON or as Avro in Confluent's wire format.

The wire format is a zero byte, the schema's id in four bytes, and the record. Data that does not fit is refused with
the field's name before anything is written; an error about bytes that cannot be read says where the record is.
"""

import json
import math
from collections.abc import Callable, Mapping
from datetime import datetime
from io import BytesIO
from typing import Any, NamedTuple, TypeAlias
from uuid import UUID

from fastavro import schemaless_reader, schemaless_writer

from ferryman.runtime.errors import Misconfigured, Permanent, Transient
from ferryman.schemas import avro, json_form
from ferryman.schemas.catalogue import JSON, Catalogue, Type
from ferryman.schemas.registry import SchemaSource, UnknownSchema

Check: TypeAlias = Callable[[Any], bool]

_MAGIC = 0
_HEAD_BYTES = 5
_WRITING_FAILS = (TypeError, ValueError, OverflowError, KeyError, AttributeError)


class At(NamedTuple):
    """The place of a record in Kafka, for errors."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"the record {self.topic}[{self.partition}] at offset {self.offset}"


class Unfit(Permanent):
    """The data does not fit its type's schema; the error names the field."""


class Undecodable(Permanent):
    """The bytes are not a message of this type: trying again cannot help."""


class Codec:
    """The codec of one type. It reads with its own schema, and finds the writer's by the id in the bytes."""

    def __init__(self, kind: Type, registry: SchemaSource) -> None:
        self.type = kind
        self._registry = registry
        self._schema = kind.schema
        self._fits = quick_check(kind.schema)
        self._head: bytes | None = None
        self._pairs: dict[bytes, tuple[avro.Schema, avro.Schema | None]] = {}
        self._in_json = kind.content_type == JSON

    def encode(self, data: Mapping[str, Any]) -> bytes:
        """Return the payload in the type's format."""
        if self._in_json:
            text = json.dumps(self._as_json(data), separators=(",", ":"), ensure_ascii=False, allow_nan=False)
            return text.encode()
        try:
            fits = self._fits(data)
        except (KeyError, TypeError, AttributeError):
            fits = False
        if not fits:
            self._as_json(data)
        try:
            return self._write(data)
        except _WRITING_FAILS:
            # `_as_json` names the field. If all fit, a default was left out that fastavro does not write.
            full = json_form.from_json(self._schema, self._as_json(data))
        try:
            return self._write(full)
        except _WRITING_FAILS as error:
            raise Unfit(f"{self.type.name} cannot be written: {type(error).__name__}") from error

    def _write(self, data: Mapping[str, Any]) -> bytes:
        stream = BytesIO()
        stream.write(self._head or self._known())
        schemaless_writer(stream, self._schema, data, strict_allow_default=True)
        return stream.getvalue()

    def decode(self, payload: bytes, at: At | str = "a payload") -> dict[str, Any]:
        """Return the data as our schema has it, whichever version wrote it."""
        if self._in_json:
            return self._decode_json(payload, at)
        writer, reader = self._pairs.get(payload[:_HEAD_BYTES]) or self._pair(payload, at)
        stream = BytesIO(payload)
        stream.seek(_HEAD_BYTES)
        try:
            data = schemaless_reader(stream, writer, reader)
        except Exception as error:  # foreign bytes make fastavro raise anything
            words = str(error) if self.type.shows_values or isinstance(error, EOFError) else type(error).__name__
            raise self._undecodable(at, f"it cannot be read with schema {_number(payload)}: {words}") from error
        if stream.read(1):
            left = len(payload) - stream.tell() + 1
            raise self._undecodable(at, f"{left} bytes follow the record of schema {_number(payload)}")
        assert isinstance(data, dict)
        return data

    def _known(self) -> bytes:
        number = self._registry.lookup(self.type.subject, self.type.text)
        if number is None:
            raise Misconfigured(
                f"the registry does not have this schema of {self.type.name}", setting="registry_url",
                remedy="run `ferryman schemas publish`",
            )  # fmt: skip
        self._head = bytes([_MAGIC]) + number.to_bytes(_HEAD_BYTES - 1)
        return self._head

    def _as_json(self, data: Any) -> Any:
        try:
            return json_form.to_json(self._schema, data)
        except json_form.Misfit as error:
            raise Unfit(
                f"the data of {self.type.name} does not fit its schema: {error.told(show=self.type.shows_values)}",
                remedy=f"correct the data, or make a new version of {self.type.name}.avsc",
            ) from error

    def _pair(self, payload: bytes, at: At | str) -> tuple[avro.Schema, avro.Schema | None]:
        """Return the writer's schema, and ours if it is a different one."""
        if len(payload) < _HEAD_BYTES or payload[0] != _MAGIC:
            raise self._undecodable(at, "it does not begin with a zero byte and a schema's id")
        number = _number(payload)
        try:
            writer = avro.parse(self._registry.schema(number))
        except UnknownSchema as error:
            raise self._undecodable(at, f"no registry knows its schema {number}") from error
        except (Transient, Misconfigured) as error:
            raise type(error)(
                f"{at} waits for its schema {number}: {error.message}", setting=error.setting, remedy=error.remedy
            ) from error
        except avro.BadSchema as error:
            raise self._undecodable(at, f"its schema {number} is not valid: {error}") from error
        if writer["name"] != self.type.subject:
            raise self._undecodable(at, f"its schema {number} is that of {writer['name']}, not of {self.type.subject}")
        same = writer == self._schema
        pair = self._pairs[payload[:_HEAD_BYTES]] = (self._schema, None) if same else (writer, self._schema)
        return pair

    def _decode_json(self, payload: bytes, at: At | str) -> dict[str, Any]:
        try:
            data = json_form.from_json(self._schema, json.loads(payload), of_another_version=True)
        except (ValueError, RecursionError) as error:
            raise self._undecodable(at, "it is not JSON") from error
        except json_form.Misfit as error:
            raise self._undecodable(at, error.told(show=self.type.shows_values)) from error
        assert isinstance(data, dict)
        return data

    def _undecodable(self, at: At | str, what: str) -> Undecodable:
        return Undecodable(f"{at} is not a valid {self.type.name}: {what}")


class Codecs:
    """The codecs of a catalogue, each made when it is first used."""

    def __init__(self, catalogue: Catalogue, registry: SchemaSource) -> None:
        self.catalogue = catalogue
        self.registry = registry
        self._made: dict[str, Codec] = {}

    def topic_of(self, name: str, topic: str | None) -> str | None:
        """Return the topic of a message: the type's own, or the given one if the catalogue does not have the type."""
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
        """Return the payload and its content type, or None if neither the type nor the topic is in the catalogue."""
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
        """Return the codec of a type, or None if the catalogue does not have it: its bytes are carried as they are."""
        found = self._made.get(name)
        if found is None and (kind := self.catalogue.types.get(name)):
            found = self._made[name] = Codec(kind, self.registry)
        return found


def _number(payload: bytes) -> int:
    return int.from_bytes(payload[1:_HEAD_BYTES])


# A quick check of what fastavro would bend. It is Python source, compiled once for each schema: a walk through the
# schema for each message would take as long as encoding it. Data that does not pass is checked by `json_form`.

# The condition that a value must meet. fastavro checks the rest itself: text, symbols, the range of a long.
_CONDITIONS = {
    "boolean": "(value is True or value is False)",
    "int": "(value.__class__ is int and -2147483648 <= value <= 2147483647)",
    "long": "value.__class__ is int",
    "float": "(value.__class__ is float and isfinite(value))",
    "double": "(value.__class__ is float and isfinite(value))",
    "bytes": "value.__class__ is bytes",
    "uuid": "(value.__class__ is UUID or is_uuid(value))",
    "timestamp-micros": "(value.__class__ is datetime and value.tzinfo is not None)",
    "timestamp-millis": "(value.__class__ is datetime and value.tzinfo is not None)",
}
_NEVER = "value is ..."
_FREE = frozenset({"null", "string", "enum"})
_NAMES = {"UUID": UUID, "datetime": datetime, "isfinite": math.isfinite, "is_uuid": json_form.is_uuid}


def quick_check(schema: avro.Schema) -> Check:
    """Return a function that is True for data that fits. False may be too strict: `json_form.to_json` is exact."""
    conditions = []
    for field in schema["fields"]:
        if condition := _condition(field["type"], avro.names(schema)):
            name = repr(field["name"])
            bound = condition.replace("value", f"(value := data[{name}])", 1)
            conditions.append(f"({name} not in data or {bound})" if "default" in field else bound)
    source = f"lambda data: {' and '.join(conditions) or 'True'}"
    check: Check = eval(compile(source, f"<quick check of {schema['name']}>", "eval"), dict(_NAMES))  # noqa: S307 - ours
    return check


def _condition(node: avro.Node, known: dict[str, avro.Schema]) -> str | None:
    """Return a condition, None where fastavro is strict, or one that is never true where only `json_form` can tell."""
    definition = avro.resolved(node, known)
    if isinstance(definition, list):
        others = avro.besides_null(definition)
        if len(others) != 1 or len(definition) != 2:
            return _NEVER
        condition = _condition(others[0], known)
        return condition and f"(value is None or {condition})"
    if definition["type"] in _FREE and "logicalType" not in definition:
        return None
    return _CONDITIONS.get(str(definition.get("logicalType", definition["type"])), _NEVER)
