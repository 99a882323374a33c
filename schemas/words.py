"""A schema in words: a row for each field, those of the records inside it too."""

import json
from collections.abc import Callable, Iterator
from typing import NamedTuple

from ferryman.schemas import avro
from ferryman.schemas.markdown import code

_PLAIN = {
    "null": "null",
    "boolean": "true or false",
    "int": "whole number, 32 bits",
    "long": "whole number, 64 bits",
    "float": "number, 32 bits",
    "double": "number, 64 bits",
    "bytes": "bytes",
    "string": "text",
}
_LOGICAL = {
    "uuid": "uuid",
    "date": "date",
    "timestamp-millis": "time, to the millisecond",
    "timestamp-micros": "time, to the microsecond",
}


class Row(NamedTuple):
    """A field: its path, its type in words (Markdown), its default as JSON, and its meaning."""

    path: str
    words: str
    default: str | None
    doc: str


def rows(schema: avro.Schema) -> Iterator[Row]:
    """Every field, each record inside where it is defined."""
    yield from _of_record(schema, "")


def words(node: avro.Node) -> str:
    """A type in words."""
    if isinstance(node, list):
        return _union(node)
    if isinstance(node, str):
        return _PLAIN.get(node) or f"{_name(node)}, as above"
    if isinstance(node["type"], dict | list):
        return words(node["type"])
    if logical := node.get("logicalType"):
        return _logical(node, logical)
    return _DEFINED[node["type"]](node) if node["type"] in _DEFINED else _PLAIN[node["type"]]


def _logical(node: avro.Schema, logical: str) -> str:
    if logical == "decimal":
        said = f"decimal number, {node['precision']} digits, {node.get('scale', 0)} of them behind the point"
    else:
        said = _LOGICAL.get(logical) or words({**node, "logicalType": None})
    return f"{said} ({code(logical)})" if said != logical else said


def _union(branches: list[avro.Node]) -> str:
    others = [words(branch) for branch in branches if avro.kind(branch) != "null"]
    return " or ".join(others) + (", or null" if len(others) < len(branches) else "")


def _each(node: avro.Node) -> str:
    return f"({words(node)})" if isinstance(node, list) else words(node)


def _symbol(enum: avro.Schema, symbol: str) -> str:
    return f"{code(symbol)} (the default)" if symbol == enum.get("default") else code(symbol)


def _name(full: str) -> str:
    return code(full.rpartition(".")[2])


_DEFINED: dict[str, Callable[[avro.Schema], str]] = {
    "record": lambda node: f"{_name(node['name'])}, its fields below",
    "enum": lambda node: f"one of {', '.join(_symbol(node, each) for each in node['symbols'])}",
    "fixed": lambda node: f"{node['size']} bytes",
    "array": lambda node: f"list of {_each(node['items'])}",
    "map": lambda node: f"map from text to {_each(node['values'])}",
}


def _of_record(record: avro.Schema, prefix: str) -> Iterator[Row]:
    for field in record["fields"]:
        path = f"{prefix}{field['name']}"
        default = json.dumps(field["default"], ensure_ascii=False) if "default" in field else None
        yield Row(path, words(field["type"]), default, _meaning(field))
        yield from _inside(field["type"], path)


def _inside(node: avro.Node, path: str) -> Iterator[Row]:
    if isinstance(node, list):
        records = [branch for branch in node if avro.kind(branch) == "record"]
        for branch in node:
            apart = len(records) > 1 and branch in records and isinstance(branch, dict)
            yield from _inside(branch, f"{path}({branch['name'].rpartition('.')[2]})" if apart else path)
    elif isinstance(node, dict):
        if isinstance(node["type"], dict | list):
            yield from _inside(node["type"], path)
        elif node["type"] == "record":
            yield from _of_record(node, f"{path}.")
        for inner in ("items", "values"):
            if inner in node:
                yield from _inside(node[inner], f"{path}[]")


def _meaning(field: avro.Schema) -> str:
    """The field's doc, and that of the type that it defines."""
    own = field.get("doc", "")
    inner = field["type"].get("doc", "") if isinstance(field["type"], dict) else ""
    return " ".join(dict.fromkeys(each for each in (own, inner) if each))
