"""Avro schemas as they are read: parsed once, with full names, or refused with a reason."""

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
    """It is no Avro schema: its words say why."""


_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@lru_cache(maxsize=1024)
def parse(text: str) -> Schema:
    """The schema of a message, a record, that a text says."""
    parsed = _parsed(text)
    if not isinstance(parsed, dict) or parsed["type"] != "record":
        raise BadSchema("it is not a record")
    for name in _all_names(parsed):
        if not _NAME.fullmatch(name):
            raise BadSchema(f"{name!r} is no name: letters, digits and underscores, and no digit first")
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


def plain(text: str) -> str:
    """The schema in one form, whatever its spaces and the order of its attributes: to tell whether two are the same."""
    return json.dumps(json.loads(text), separators=(",", ":"), sort_keys=True, ensure_ascii=False)


def names(schema: Schema) -> dict[str, Schema]:
    """The types it defines, by full name."""
    found: dict[str, Schema] = schema.get("__named_schemas", {})
    return found


def kind(node: Node) -> str:
    """`record`, `enum`, `union`, `long`, ...; of a named type that is defined elsewhere, its name."""
    if isinstance(node, list):
        return "union"
    return node if isinstance(node, str) else kind(node["type"]) if isinstance(node["type"], dict) else node["type"]


def resolved(node: Node, known: dict[str, Schema]) -> Node:
    """The definition behind a name."""
    while True:
        if isinstance(node, dict) and isinstance(node["type"], (dict, list)):
            node = node["type"]
        elif isinstance(node, str) and node not in PRIMITIVES:
            node = known[node]
        else:
            return node


def walk(schema: Schema) -> Iterator[tuple[str, Schema]]:
    """Every definition in it with its path, itself first."""
    yield from _walk(schema, schema["name"].rpartition(".")[2])


def _all_names(schema: Schema) -> Iterator[str]:
    for _, definition in walk(schema):
        if "name" in definition:
            yield from definition["name"].split(".")
        yield from definition.get("symbols", ())
        yield from (field["name"] for field in definition.get("fields", ()))


def _walk(node: Node, path: str) -> Iterator[tuple[str, Schema]]:
    if isinstance(node, list):
        for branch in node:
            yield from _walk(branch, path)
    elif isinstance(node, dict):
        if isinstance(node["type"], (dict, list)):
            yield from _walk(node["type"], path)
            return
        yield path, node
        for field in node.get("fields", ()):
            yield from _walk(field["type"], f"{path}.{field['name']}")
        for inner in ("items", "values"):
            if inner in node:
                yield from _walk(node[inner], f"{path}[]")
