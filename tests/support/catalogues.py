"""Small catalogues, written to a folder as an adopter writes them."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ferryman.schemas.catalogue import Catalogue, load

TOPIC = {"owner": "shop", "text": "What became of orders.", "key": "The order's id."}


def field(name: str, kind: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, "doc": f"The {name}.", **more}


def enum(*symbols: str, **more: Any) -> dict[str, Any]:
    return {"type": "enum", "name": "Kind", "doc": "Which.", "symbols": list(symbols), **more}


def record(*fields: Mapping[str, Any], name: str = "shop.Placed") -> dict[str, Any]:
    return {"type": "record", "name": name, "doc": "An order.", "fields": list(fields)}


PLACED = record(
    field("order", {"type": "string", "logicalType": "uuid"}),
    field("amount", "long"),
    field("kind", enum("UNKNOWN", "RETAIL", "TRADE", default="UNKNOWN")),
    field("note", ["null", "string"], default=None),
)
ORDER = {"order": "9f1c1a52-6f0e-4b7e-9d5a-3c1f0a7b2e10", "amount": 5, "kind": "TRADE"}


def write(
    folder: Path, schema: Any = PLACED, *, samples: Sequence[Any] = (ORDER,), name: str = "order.placed", **said: Any
) -> Path:
    """Write a catalogue of one topic and one type; `said` changes the entry of the type."""
    (folder / "avro").mkdir(parents=True, exist_ok=True)
    (folder / "avro" / f"{name}.avsc").write_text(schema if isinstance(schema, str) else json.dumps(schema))
    about = {"topic": "orders", "kind": "event", **said}
    lines = [
        'title = "The shop"', 'text = "What the shop says."', "[topics.orders]", *_toml(TOPIC),
        f'[types."{name}"]', *_toml(about), "samples = [", *(f"  {_inline(each)}," for each in samples), "]",
    ]  # fmt: skip
    (folder / "catalogue.toml").write_text("\n".join(lines) + "\n")
    return folder


def made(folder: Path, schema: Any = PLACED, **said: Any) -> Catalogue:
    return load(write(folder, schema, **said))


def _toml(values: Mapping[str, Any]) -> list[str]:
    return [f"{name} = {_inline(value)}" for name, value in values.items()]


def _inline(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{json.dumps(name)} = {_inline(each)}" for name, each in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(_inline, value)) + "]"
    return json.dumps(value)
