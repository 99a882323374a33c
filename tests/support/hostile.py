"""A catalogue with every kind of type, and with texts that may break a page or a document."""

import json
from pathlib import Path
from typing import Any

from ferryman.schemas.catalogue import Catalogue, load
from support.catalogues import enum, field, record

WORDS = "a|b `c` <script>x</script> *d* _e_ __f_ [g](h) \\| &lt; $1 ~~i~~ snake_case"
"""Text full of characters with a meaning in Markdown, HTML and tables."""

CARD = record(field("number", "string"), name="Card")
CASH = record(field("notes", {"type": "array", "items": "int"}), name="Cash")
LINE = record(
    field("sku", "string"),
    field("price", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}),
    name="Line",
)
ORDER = record(
    field("order", {"type": "string", "logicalType": "uuid"}),
    {"name": "note", "type": "string", "doc": WORDS, "default": "`x` | `y`"},
    field("kind", enum("UNKNOWN", "TRADE", default="UNKNOWN")),
    field("lines", {"type": "array", "items": LINE}),
    field("first", ["null", "Line"], default=None),
    field("labels", {"type": "map", "values": ["null", "long"]}),
    field("paid", [CARD, CASH]),
    field("digest", {"type": "fixed", "name": "other.Digest", "size": 4}),
    field("placed", {"type": "long", "logicalType": "timestamp-millis"}),
    field("due", {"type": "int", "logicalType": "date"}),
    field("waited", {"type": "int", "logicalType": "time-millis"}),
    field("weight", ["null", "double"], default=None),
    name="shop.Placed",
)
SAMPLE = """{ order = "9f1c1a52-6f0e-4b7e-9d5a-3c1f0a7b2e10", note = "```", kind = "TRADE",
  lines = [{ sku = "a", price = "1.50" }], labels = { b = 1 }, paid = { notes = [5] }, digest = "AAECAw==",
  placed = 2026-01-31T12:00:00Z, due = 2026-02-28, waited = 5 }""".replace("\n", "")
CANCELLED = record(
    field("order", {"type": "string", "logicalType": "uuid"}), field("by", "string"), name="shop.Cancelled"
)

CATALOGUE = f"""
title = {json.dumps(WORDS)}
text = "1. What the shop says."

[topics.orders]
owner = {json.dumps(WORDS)}
text = {json.dumps(f"# {WORDS}")}
key = {json.dumps(WORDS)}
order = "none"
retention_hours = 1.5

[topics.old_orders]
owner = "shop"
text = "What the shop said."
key = "The order's id."
retention_hours = 72
deprecated = {json.dumps(f"See orders. {WORDS}")}

[types."order.placed"]
topic = "orders"
kind = "event"
pii = "personal"
samples = [{SAMPLE}]

[types."order.cancelled"]
topic = "orders"
kind = "command"
content_type = "application/json"
pii = "secret"
deprecated = "Nobody cancels."
samples = [{{ order = "9f1c1a52-6f0e-4b7e-9d5a-3c1f0a7b2e10", by = "Grüße" }}]
"""


def write(folder: Path) -> Path:
    (folder / "avro").mkdir(parents=True)
    (folder / "catalogue.toml").write_text(CATALOGUE)
    for name, schema in {"order.placed": ORDER, "order.cancelled": CANCELLED}.items():
        put(folder, name, schema)
    return folder


def put(folder: Path, name: str, schema: Any) -> None:
    (folder / "avro" / f"{name}.avsc").write_text(json.dumps(schema))


def made(folder: Path) -> Catalogue:
    return load(write(folder))
