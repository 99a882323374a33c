"""The columns of a saga's row: their types in SQL, their names, and their form in a command."""

import re
from base64 import b64encode
from collections.abc import Callable, Mapping
from datetime import date, datetime, timedelta
from decimal import Decimal
from types import UnionType
from typing import Any, Union, get_args, get_origin
from uuid import UUID

from ferryman.schemas import active

SQL_TYPES: Mapping[Any, str] = {
    UUID: "uuid", int: "bigint", str: "text", bool: "boolean", float: "double precision", Decimal: "numeric",
    bytes: "bytea", datetime: "timestamptz", date: "date", timedelta: "interval", dict: "jsonb", list: "jsonb",
}  # fmt: skip
"""The type of a column that `ferryman saga sql` writes, by the type of the field."""

_WHOLE = frozenset({"smallint", "integer", "bigint", "numeric"})
_FITTING: Mapping[Any, frozenset[str]] = {
    UUID: frozenset({"uuid"}), int: _WHOLE, bool: frozenset({"boolean"}), Decimal: _WHOLE, bytes: frozenset({"bytea"}),
    float: frozenset({"real", "double precision", "numeric"}), date: frozenset({"date"}),
    datetime: frozenset({"timestamp with time zone", "timestamp without time zone"}),
    timedelta: frozenset({"interval"}), dict: frozenset({"json", "jsonb"}), list: frozenset({"json", "jsonb"}),
}  # fmt: skip
_NO_TEXT = frozenset().union(*(_FITTING[each] for each in _FITTING if each is not UUID))

_PLAIN = re.compile(r"[a-z_][a-z0-9_]*")
_WORDS = (
    "all analyse analyze and any array as asc asymmetric authorization binary both case cast check collate "
    "collation column concurrently constraint create cross current_catalog current_date current_role current_schema "
    "current_time current_timestamp current_user default deferrable desc distinct do else end except false fetch "
    "for foreign freeze from full grant group having ilike in initially inner intersect into is isnull join lateral "
    "leading left like limit localtime localtimestamp natural not notnull null offset on only or order outer "
    "overlaps placing primary references returning right select session_user similar some symmetric system_user "
    "table tablesample then to trailing true union unique user using variadic verbose when where window with "
)
RESERVED = frozenset(_WORDS.split())
"""The words that PostgreSQL does not take as the name of a column without quotes."""


def quoted(name: str) -> str:
    """Return the name of a column as SQL: in quotes only if it needs them."""
    return name if _PLAIN.fullmatch(name) and name not in RESERVED else '"' + name.replace('"', '""') + '"'


def fits(kind: Any, live: str) -> bool:
    """Return True if a field of this type can be kept in a column of this type. A text can be kept as an enum too."""
    if kind is str:
        return live not in _NO_TEXT
    return kind not in _FITTING or live in _FITTING[kind] or (kind is list and live.endswith("[]"))


def command_data(kind: str, data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the data of a command. Its schema writes it if the catalogue has its type, else JSON must have a form."""
    codecs = active.codecs()
    if codecs is not None and kind in codecs.catalogue.types:
        return data
    return {name: in_json(value) for name, value in data.items()}


def in_json(value: Any) -> Any:
    """Return times as ISO 8601, numerics as text, intervals as seconds, and bytes in base64."""
    if isinstance(value, dict):
        return {name: in_json(each) for name, each in value.items()}
    if isinstance(value, list):
        return [in_json(each) for each in value]
    written = _WRITTEN.get(type(value))
    return value if written is None else written(value)


_WRITTEN: Mapping[Any, Callable[[Any], Any]] = {
    datetime: datetime.isoformat, date: date.isoformat, Decimal: str, timedelta: timedelta.total_seconds,
    bytes: lambda value: b64encode(value).decode(),
}  # fmt: skip


def without_none(annotation: Any) -> tuple[Any, bool]:
    """Return a type without None, and whether None was in it. Of list[str] it is list."""
    if isinstance(annotation, UnionType) or get_origin(annotation) is Union:
        kinds = [each for each in get_args(annotation) if each is not type(None)]
        if len(kinds) == 1:
            return get_origin(kinds[0]) or kinds[0], True
    return get_origin(annotation) or annotation, False
