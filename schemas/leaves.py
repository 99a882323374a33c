"""What a single value has to be, exactly, and its forms: in Python, in JSON, and as a schema says a default."""

import base64
import binascii
import math
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any
from uuid import UUID

Leaf = Callable[[Any, str, Mapping[str, Any]], Any]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LIMITS = {"int": 2**31, "long": 2**63}


class Misfit(Exception):
    """A value does not fit: where, what was wanted, and what class of thing was there."""

    def __init__(self, path: str, wanted: str, found: Any = ..., *, said: str = "") -> None:
        super().__init__(path, wanted)
        self.path = path
        self.wanted = wanted
        self.found = found
        self._said = said

    def __str__(self) -> str:
        return self.told(show=False)

    def told(self, *, show: bool) -> str:
        """In words, with the value itself only where it may be shown."""
        where = f"field {self.path}" if self.path else "the message"
        if self.found is ...:
            return f"{where} {self.wanted}"
        value = f" {self.found!r:.80}" if show else ""
        return f"{where} must be {self.wanted}, and is {self._said or _class(self.found)}{value}"


def is_uuid(value: Any) -> bool:
    """Whether it is a uuid, or is written as one is."""
    if isinstance(value, UUID):
        return True
    try:
        return isinstance(value, str) and str(UUID(value)) == value.lower()
    except ValueError:
        return False


def _class(value: Any) -> str:
    return "nothing" if value is None else f"a {type(value).__name__}"


def _null(value: Any, path: str, _: Mapping[str, Any]) -> None:
    if value is not None:
        raise Misfit(path, "null", value)


def _boolean(value: Any, path: str, _: Mapping[str, Any]) -> bool:
    if value is not True and value is not False:
        raise Misfit(path, "true or false", value)
    return value


def _integer(value: Any, path: str, definition: Mapping[str, Any]) -> int:
    limit = _LIMITS[definition["type"]]
    if isinstance(value, bool) or not isinstance(value, int):
        raise Misfit(path, "a whole number", value)
    if not -limit <= value < limit:
        raise Misfit(path, f"a whole number that fits {definition['type']}", value, said="a larger one")
    return value


def _number(value: Any, path: str, _: Mapping[str, Any]) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Misfit(path, "a number", value)
    if not math.isfinite(value):
        raise Misfit(path, "a number", value, said="infinite or none")
    return value


def _text(value: Any, path: str, _: Mapping[str, Any]) -> str:
    if not isinstance(value, str):
        raise Misfit(path, "text", value)
    try:
        value.encode()
    except UnicodeEncodeError:
        raise Misfit(path, "text", value, said="text with half a character (a lone surrogate)") from None
    return value


def _enum(value: Any, path: str, definition: Mapping[str, Any]) -> str:
    if not isinstance(value, str) or value not in definition["symbols"]:
        raise Misfit(path, f"one of {', '.join(definition['symbols'])}", value)
    return value


def _bytes(value: Any, path: str, definition: Mapping[str, Any]) -> bytes:
    if not isinstance(value, bytes):
        raise Misfit(path, "bytes", value)
    if len(value) != definition.get("size", len(value)):
        raise Misfit(path, f"{definition['size']} bytes", value, said=f"{len(value)} bytes")
    return value


def _bytes_to_json(value: Any, path: str, definition: Mapping[str, Any]) -> str:
    return base64.b64encode(_bytes(value, path, definition)).decode()


def _bytes_from_json(value: Any, path: str, definition: Mapping[str, Any]) -> bytes:
    try:
        return _bytes(base64.b64decode(_text(value, path, definition), validate=True), path, definition)
    except binascii.Error:
        raise Misfit(path, "bytes in base64", value) from None


def _uuid(value: Any, path: str, _: Mapping[str, Any]) -> UUID:
    if not is_uuid(value):
        raise Misfit(path, "a uuid", value)
    return value if isinstance(value, UUID) else UUID(value)


def _uuid_to_json(value: Any, path: str, definition: Mapping[str, Any]) -> str:
    return str(_uuid(value, path, definition))


def _time(value: Any, path: str, _: Mapping[str, Any]) -> datetime:
    if not isinstance(value, datetime):
        raise Misfit(path, "a time with its zone", value)
    if value.tzinfo is None:
        raise Misfit(path, "a time with its zone", value, said="a time without one")
    return value


def _time_to_json(value: Any, path: str, definition: Mapping[str, Any]) -> str:
    return _time(value, path, definition).astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _time_from_json(value: Any, path: str, definition: Mapping[str, Any]) -> datetime:
    if isinstance(value, datetime):  # TOML has times of its own
        return _time(value, path, definition)
    try:
        return _time(datetime.fromisoformat(_text(value, path, definition)), path, definition).astimezone(UTC)
    except ValueError:
        raise Misfit(path, "a time as 2026-01-31T12:00:00Z", value) from None


def _date(value: Any, path: str, _: Mapping[str, Any]) -> date:
    if not isinstance(value, date) or isinstance(value, datetime):
        raise Misfit(path, "a date", value)
    return value


def _date_from_json(value: Any, path: str, definition: Mapping[str, Any]) -> date:
    if isinstance(value, date):
        return _date(value, path, definition)
    try:
        return date.fromisoformat(_text(value, path, definition))
    except ValueError:
        raise Misfit(path, "a date as 2026-01-31", value) from None


def _decimal(value: Any, path: str, definition: Mapping[str, Any]) -> Decimal:
    if not isinstance(value, Decimal) or not value.is_finite():
        raise Misfit(path, "a Decimal", value)
    exponent = value.as_tuple().exponent
    if isinstance(exponent, int) and -exponent > definition.get("scale", 0):
        raise Misfit(path, f"a Decimal with {definition.get('scale', 0)} digits behind the point", value)
    return value


def _decimal_from_json(value: Any, path: str, definition: Mapping[str, Any]) -> Decimal:
    try:
        return _decimal(Decimal(_text(value, path, definition)), path, definition)
    except InvalidOperation:
        raise Misfit(path, "a decimal number as text", value) from None


def _bytes_of_a_schema(value: Any, path: str, definition: Mapping[str, Any]) -> bytes:
    return _bytes(_text(value, path, definition).encode("latin-1"), path, definition)


def _time_of_a_schema(value: Any, path: str, definition: Mapping[str, Any]) -> datetime:
    unit = "microseconds" if definition["logicalType"] == "timestamp-micros" else "milliseconds"
    return _EPOCH + timedelta(**{unit: _integer(value, path, definition)})


_SAME: dict[str, Leaf] = {
    "null": _null, "boolean": _boolean, "int": _integer, "long": _integer, "float": _number, "double": _number,
    "string": _text, "enum": _enum,
}  # fmt: skip
TO_JSON: dict[str, Leaf] = {
    **_SAME,
    "bytes": _bytes_to_json,
    "fixed": _bytes_to_json,
    "uuid": _uuid_to_json,
    "timestamp-micros": _time_to_json,
    "timestamp-millis": _time_to_json,
    "date": lambda value, path, definition: _date(value, path, definition).isoformat(),
    "decimal": lambda value, path, definition: str(_decimal(value, path, definition)),
}
FROM_JSON: dict[str, Leaf] = {
    **_SAME,
    "bytes": _bytes_from_json,
    "fixed": _bytes_from_json,
    "uuid": _uuid,
    "timestamp-micros": _time_from_json,
    "timestamp-millis": _time_from_json,
    "date": _date_from_json,
    "decimal": _decimal_from_json,
}
OF_A_SCHEMA: dict[str, Leaf] = {
    **_SAME,
    "bytes": _bytes_of_a_schema,
    "fixed": _bytes_of_a_schema,
    "uuid": _uuid,
    "timestamp-micros": _time_of_a_schema,
    "timestamp-millis": _time_of_a_schema,
    "date": lambda value, path, definition: _EPOCH.date() + timedelta(days=_integer(value, path, definition)),
}
