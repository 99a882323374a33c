"""A quick test, made once for each schema, of what fastavro would bend; `natural` names what is wrong with the rest.

It is Python text, compiled: a walk through the schema for each message would take as long as encoding it.
"""

import math
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any
from uuid import UUID

from ferryman.schemas import avro, natural

Fits = Callable[[Any], bool]

# What `v` must be. What is not here, fastavro checks itself: text, symbols, the range of a long.
_LEAVES = {
    "boolean": "({v} is True or {v} is False)",
    "int": "({v}.__class__ is int and -2147483648 <= {v} <= 2147483647)",
    "long": "{v}.__class__ is int",
    "float": "({v}.__class__ is float and isfinite({v}))",
    "double": "({v}.__class__ is float and isfinite({v}))",
    "bytes": "{v}.__class__ is bytes",
    "uuid": "({v}.__class__ is UUID or is_uuid({v}))",
    "timestamp-micros": "({v}.__class__ is datetime and {v}.tzinfo is not None)",
    "timestamp-millis": "({v}.__class__ is datetime and {v}.tzinfo is not None)",
}
_NEVER = "{v} is ..."
_FREE = frozenset({"null", "string", "enum"})
_NAMES = {"UUID": UUID, "datetime": datetime, "isfinite": math.isfinite, "is_uuid": natural.is_uuid}


def compiled(schema: avro.Schema) -> Fits:
    """False may be too strict: ask `natural.write` then, which is exact."""
    known = avro.names(schema)
    conditions = list(_record(schema, "d", known, 0))
    source = f"lambda d: {' and '.join(conditions) or 'True'}"
    fits: Fits = eval(compile(source, f"<fitting {schema['name']}>", "eval"), dict(_NAMES))  # noqa: S307 - our own text
    return fits


def _record(schema: avro.Schema, value: str, known: dict[str, avro.Schema], depth: int) -> Iterator[str]:
    for field in schema["fields"]:
        at = f"{value}[{field['name']!r}]"
        name = f"v{depth}"
        test = _test(field["type"], name, known, depth + 1)
        if test is None:
            continue
        bound = test.replace(name, f"({name} := {at})", 1)
        yield bound if "default" not in field else f"({field['name']!r} not in {value} or {bound})"


def _test(node: avro.Node, value: str, known: dict[str, avro.Schema], depth: int) -> str | None:
    """None where fastavro is strict; never true where only `natural` can tell."""
    node = avro.resolved(node, known)
    if isinstance(node, list):
        return _union(node, value, known, depth)
    definition = node if isinstance(node, dict) else {"type": node}
    kind = definition["type"]
    if kind in _FREE and "logicalType" not in definition:
        return None
    return _LEAVES.get(str(definition.get("logicalType", kind)), _NEVER).format(v=value)


def _union(branches: list[avro.Node], value: str, known: dict[str, avro.Schema], depth: int) -> str | None:
    others = [branch for branch in branches if avro.kind(branch) != "null"]
    if len(others) != 1 or len(branches) != 2:
        return _NEVER.format(v=value)
    test = _test(others[0], value, known, depth)
    return None if test is None else f"({value} is None or {test})"
