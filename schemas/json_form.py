"""Values that fit a schema exactly, and their form in JSON.

fastavro alone would write 1 for 1.5 in a long, any text for a uuid, and a time without a zone: money is lost that way.
Here a value fits as it is, or a `Misfit` names the field and what is there instead. An error shows the value itself
only where the caller allows it.
"""

import base64
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, NamedTuple
from uuid import UUID

from ferryman.schemas import avro

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LIMITS = {"int": 2**31, "long": 2**63}
_LARGEST = sys.float_info.max


class Misfit(Exception):
    """A value that does not fit: its field, what was wanted, and what kind of value was there."""

    def __init__(self, path: str, wanted: str, found: Any = ...) -> None:
        super().__init__(path, wanted)
        self.path = path
        self.wanted = wanted
        self.found = found

    def __str__(self) -> str:
        return self.told(show=False)

    def told(self, *, show: bool) -> str:
        """Return the sentence for people, with the value itself only if it may be shown."""
        where = f"field {self.path}" if self.path else "the message"
        if self.found is ...:
            return f"{where} {self.wanted}"
        return f"{where} must be {self.wanted}, and is {_described(self.found)}{f' {self.found!r:.80}' if show else ''}"


def _described(value: Any) -> str:
    """Return what kind of value it is, without the value."""
    match value:
        case None:
            return "nothing"
        case float() if not math.isfinite(value):
            return "infinite or not a number"
        case str() if not _is_text(value):
            return "text with half a character (a lone surrogate)"
        case datetime(tzinfo=None):
            return "a time without its zone"
        case bytes():
            return f"{len(value)} bytes"
    name = type(value).__name__
    return f"{'an' if name[0].lower() in 'aeio' else 'a'} {name}"


def to_json(schema: avro.Schema, value: Any) -> Any:
    """Return a Python value's form in JSON, or raise `Misfit`. A field that was left out has its default."""
    return _Walk(avro.names(schema), _Leaf.as_json).go(schema, value, "")


def from_json(schema: avro.Schema, value: Any, *, of_another_version: bool = False) -> Any:
    """Return the Python value of a JSON form, or raise `Misfit`. A field that was left out has its default.

    A value of another version is read as Avro would resolve it: unknown fields are ignored, and an unknown symbol
    becomes its enum's default.
    """
    return _Walk(avro.names(schema), _Leaf.of_json, lenient=of_another_version).go(schema, value, "")


def is_uuid(value: Any) -> bool:
    """Return True for a uuid, and for the text of one."""
    if isinstance(value, UUID):
        return True
    try:
        return isinstance(value, str) and str(UUID(value)) == value.lower()
    except ValueError:
        return False


class _Leaf(NamedTuple):
    """A kind of single value: what it must be, and its form in JSON and in a schema's default."""

    wanted: str
    fits: Callable[[Any, avro.Schema], bool]
    to_json: Callable[[Any], Any] = lambda value: value
    python: type | None = None
    """The class of values that JSON has as text; `from_text` reads it, `spelling` shows how it looks."""
    from_text: Callable[[str], Any] = str
    spelling: str = ""
    from_default: Callable[[Any, avro.Schema], Any] = lambda value, _: value

    def checked(self, value: Any, path: str, definition: avro.Schema) -> Any:
        """Return the value, or raise `Misfit`."""
        if not self.fits(value, definition):
            words = {"scale": 0, **definition, "symbols": ", ".join(definition.get("symbols", ()))}
            raise Misfit(path, self.wanted.format_map(words), value)
        return value

    def as_json(self, value: Any, path: str, definition: avro.Schema) -> Any:
        return self.to_json(self.checked(value, path, definition))

    def of_json(self, value: Any, path: str, definition: avro.Schema) -> Any:
        if self.python and not isinstance(value, self.python):  # TOML has times and dates of its own
            _TEXT.checked(value, path, definition)
            try:
                value = self.from_text(value)
            except (ValueError, ArithmeticError):
                raise Misfit(path, self.spelling, value) from None
        return self.checked(value, path, definition)

    def of_default(self, value: Any, path: str, definition: avro.Schema) -> Any:
        try:
            value = self.from_default(value, definition)
        except (ValueError, TypeError, AttributeError, OverflowError):
            raise Misfit(path, "a default of its type", value) from None
        return self.checked(value, path, definition)


class _Walk:
    """A walk through a value and its schema together; `form` turns each single value into another form."""

    def __init__(self, known: dict[str, avro.Schema], form: Callable[..., Any], *, lenient: bool = False) -> None:
        self._known = known
        self._form = form
        self._lenient = lenient

    def go(self, node: avro.Node, value: Any, path: str) -> Any:
        definition = avro.resolved(node, self._known)
        if isinstance(definition, list):
            return self._union(definition, value, path)
        kind = definition["type"]
        if kind == "record":
            return self._record(definition, value, path)
        if kind == "array":
            return self._array(definition, value, path)
        if kind == "map":
            return self._map(definition, value, path)
        if kind == "enum" and self._lenient and value not in definition["symbols"]:
            value = definition.get("default", value)
        return self._form(_LEAVES.get(definition.get("logicalType", ""), _LEAVES[kind]), value, path, definition)

    def _record(self, definition: avro.Schema, value: Any, path: str) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise Misfit(path, f"a mapping ({definition['name']})", value)
        made = {}
        for field in definition["fields"]:
            name, below = field["name"], avro.below(path, field["name"])
            if name in value:
                made[name] = self.go(field["type"], value[name], below)
            elif "default" in field:
                made[name] = self._default(field, below)
            else:
                raise Misfit(below, "is missing")
        for name in () if self._lenient else value:
            if name not in made:
                raise Misfit(avro.below(path, str(name)), "is not in the schema")
        return made

    def _default(self, field: Mapping[str, Any], path: str) -> Any:
        """Convert a default, which a schema spells in its own way: bytes are text, times are numbers."""
        value = _Walk(self._known, _Leaf.of_default).go(field["type"], field["default"], path)
        return self.go(field["type"], value, path) if self._form is _Leaf.as_json else value

    def _union(self, branches: list[avro.Node], value: Any, path: str) -> Any:
        others = avro.besides_null(branches)
        if value is None and len(others) < len(branches):
            return None
        if len(others) == 1:  # the branch's own error says more than that the union does not fit
            return self.go(others[0], value, path)
        for branch in others:
            try:
                return self.go(branch, value, path)
            except Misfit:
                continue
        raise Misfit(path, " or ".join(avro.kind(branch) for branch in branches), value)

    def _array(self, definition: avro.Schema, value: Any, path: str) -> list[Any]:
        if not isinstance(value, Sequence) or isinstance(value, str | bytes):
            raise Misfit(path, "a list", value)
        return [self.go(definition["items"], each, f"{path}[{n}]") for n, each in enumerate(value)]

    def _map(self, definition: avro.Schema, value: Any, path: str) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise Misfit(path, "a mapping", value)
        for name in value:
            if not isinstance(name, str):
                raise Misfit(path, "a mapping with text for its keys", name)
        return {name: self.go(definition["values"], each, f"{path}[{name!r}]") for name, each in value.items()}


def _is_integer(value: Any, definition: avro.Schema) -> bool:
    limit = _LIMITS[definition["type"]]
    return isinstance(value, int) and not isinstance(value, bool) and -limit <= value < limit


def _is_number(value: Any, _: avro.Schema) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and -_LARGEST <= value <= _LARGEST


def _is_text(value: Any, _: avro.Schema | None = None) -> bool:
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_bytes(value: Any, definition: avro.Schema) -> bool:
    return isinstance(value, bytes) and len(value) == definition.get("size", len(value))


def _is_decimal(value: Any, definition: avro.Schema) -> bool:
    exponent = value.as_tuple().exponent if isinstance(value, Decimal) else None
    return isinstance(exponent, int) and -exponent <= definition.get("scale", 0)


def _uuid_from_text(text: str, _: avro.Schema | None = None) -> UUID:
    if not is_uuid(text):
        raise ValueError(text)
    return UUID(text)


def _time_to_json(value: datetime) -> str:
    return value.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _time_from_text(text: str) -> datetime:
    value = datetime.fromisoformat(text)
    return value.astimezone(UTC) if value.tzinfo else value


def _time_from_default(value: Any, definition: avro.Schema) -> datetime:
    unit = "microseconds" if definition["logicalType"] == "timestamp-micros" else "milliseconds"
    return _EPOCH + timedelta(**{unit: value})


def _decimal_from_default(value: Any, definition: avro.Schema) -> Decimal:
    unscaled = int.from_bytes(value.encode("latin-1"), signed=True)
    return Decimal(unscaled).scaleb(-definition.get("scale", 0))


_INTEGER = _Leaf("a whole number that fits {type}", _is_integer)
_NUMBER = _Leaf("a number", _is_number)
_TEXT = _Leaf("text", _is_text)
_BYTES = _Leaf(
    "bytes", _is_bytes, lambda value: base64.b64encode(value).decode(), bytes,
    lambda text: base64.b64decode(text, validate=True), "bytes in base64", lambda value, _: value.encode("latin-1"),
)  # fmt: skip
_TIME = _Leaf(
    "a time with its zone", lambda value, _: isinstance(value, datetime) and value.tzinfo is not None, _time_to_json,
    datetime, _time_from_text, "a time as 2026-01-31T12:00:00Z", _time_from_default,
)  # fmt: skip
_LEAVES = {
    "null": _Leaf("null", lambda value, _: value is None),
    "boolean": _Leaf("true or false", lambda value, _: value is True or value is False),
    "int": _INTEGER,
    "long": _INTEGER,
    "float": _NUMBER,
    "double": _NUMBER,
    "string": _TEXT,
    "enum": _Leaf("one of {symbols}", lambda value, definition: value in definition["symbols"]),
    "bytes": _BYTES,
    "fixed": _BYTES._replace(wanted="{size} bytes"),
    "uuid": _Leaf(
        "a uuid", lambda value, _: is_uuid(value), lambda value: str(UUID(str(value))), UUID, _uuid_from_text,
        "a uuid", _uuid_from_text,
    ),
    "timestamp-micros": _TIME,
    "timestamp-millis": _TIME,
    "date": _Leaf(
        "a date", lambda value, _: isinstance(value, date) and not isinstance(value, datetime), date.isoformat, date,
        date.fromisoformat, "a date as 2026-01-31", lambda value, _: _EPOCH.date() + timedelta(days=value),
    ),
    "decimal": _Leaf(
        "a Decimal with at most {scale} digits behind the point", _is_decimal, str, Decimal, Decimal,
        "a decimal number as text", _decimal_from_default,
    ),
}  # fmt: skip
