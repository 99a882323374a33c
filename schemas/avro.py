"""Avro schemas: parsed once, with full names, or refused with a reason."""

import json
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, TypeAlias

Schema: TypeAlias = dict[str, Any]
"""A parsed record schema. Inside it a name may stand for a type that was defined before it."""

Node: TypeAlias = str | list[Any] | dict[str, Any]
"""Any schema: a name, a union or a definition."""

PRIMITIVES = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})


class BadSchema(Exception):
    """The text is not a valid Avro schema of a message."""


_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@lru_cache(maxsize=1024)
def parse(text: str) -> Schema:
    """Return the schema of a message, which is a record."""
    parsed = _parsed(text)
    if not isinstance(parsed, dict) or parsed["type"] != "record":
        raise BadSchema("it is not a record")
    for _, definition in walk(parsed):
        own = definition["name"].split(".") if "name" in definition else []
        inside = [field["name"] for field in definition.get("fields", ())]
        for name in (*own, *definition.get("symbols", ()), *inside):
            if not _NAME.fullmatch(name):
                raise BadSchema(f"{name!r} is not a valid name: use letters, digits and underscores, no digit first")
    return parsed


def _parsed(text: str) -> Any:
    from fastavro.schema import SchemaParseException, UnknownType, parse_schema

    try:
        read = json.loads(text)
        if not isinstance(read, dict):
            raise BadSchema("it is not a JSON object")
        return parse_schema(read)
    except json.JSONDecodeError as error:
        raise BadSchema(f"it is not JSON: {error}") from error
    except UnknownType as error:
        raise BadSchema(f"it names a type that it does not define: {error.name}") from error
    except SchemaParseException as error:
        raise BadSchema(str(error)) from error
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadSchema(f"it lacks what a schema needs: {type(error).__name__} {error}") from error


def canonical(text: str) -> str:
    """Return the schema in one form, whatever its spaces and the order of its attributes."""
    return json.dumps(json.loads(text), separators=(",", ":"), sort_keys=True, ensure_ascii=False)


def same(one: str, other: str) -> bool:
    """Return True if two texts are the same schema."""
    return canonical(one) == canonical(other)


def names(schema: Schema) -> dict[str, Schema]:
    """Return the named types that the schema defines, by full name."""
    found: dict[str, Schema] = schema.get("__named_schemas", {})
    return found


def kind(node: Node) -> str:
    """Return `record`, `enum`, `union`, `long`, ...; the name of a named type that is defined elsewhere."""
    if isinstance(node, list):
        return "union"
    return node if isinstance(node, str) else kind(node["type"])


def besides_null(union: list[Node]) -> list[Node]:
    """Return the branches of a union that are not null."""
    return [branch for branch in union if kind(branch) != "null"]


def resolved(node: Node, known: dict[str, Schema]) -> list[Node] | Schema:
    """Return the union or the definition that a name, a primitive or a nested type stands for."""
    while True:
        if isinstance(node, list):
            return node
        if isinstance(node, str):
            node = {"type": node} if node in PRIMITIVES else known[node]
        elif isinstance(node["type"], dict | list):
            node = node["type"]
        else:
            return node


def below(path: str, name: str) -> str:
    """Return the path of a field in the record at `path`; the path of a message is empty."""
    return f"{path}.{name}" if path else name


def walk(node: Node, path: str = "") -> Iterator[tuple[str, Schema]]:
    """Yield every definition with its path, a record before the types of its fields."""
    for at, definition in _defined(node, path):
        yield at, definition
        for field in definition.get("fields", ()):
            yield from walk(field["type"], below(at, field["name"]))


def fields(record: Schema, path: str = "") -> Iterator[tuple[str, Schema]]:
    """Yield every field with its path, those of an inner record after the field that defines it."""
    for field in record["fields"]:
        at = below(path, field["name"])
        yield at, field
        for inner, definition in _defined(field["type"], at):
            if "fields" in definition:
                yield from fields(definition, inner)


def _defined(node: Node, path: str) -> Iterator[tuple[str, Schema]]:
    """Yield the definitions in a type, without those in fields. Several records in a union are told apart by name."""
    if isinstance(node, list):
        several = sum(kind(branch) == "record" for branch in node) > 1
        for branch in node:
            named = several and isinstance(branch, dict) and kind(branch) == "record"
            yield from _defined(branch, f"{path}({branch['name'].rpartition('.')[2]})" if named else path)
    elif isinstance(node, dict) and isinstance(node["type"], dict | list):
        yield from _defined(node["type"], path)
    elif isinstance(node, dict):
        yield path, node
        for inner in {"items", "values"} & node.keys():
            yield from _defined(node[inner], f"{path}[]")
