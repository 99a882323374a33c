"""The release gate: released versions stay readable, both ways, with the same values."""

import base64
import json
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from fastavro import schemaless_reader, schemaless_writer
from hypothesis import example, given
from hypothesis import strategies as st

from ferryman.runtime.errors import Misconfigured, Permanent
from ferryman.schemas import avro, compatibility, json_form, releases
from ferryman.schemas.catalogue import Catalogue, load
from support.catalogues import ORDER, PLACED, enum, field, made, record, write

FIELDS = PLACED["fields"]
TYPE = "order.placed"


def without(name: str) -> dict[str, Any]:
    return record(*(each for each in FIELDS if each["name"] != name))


def changed(name: str, /, **how: Any) -> dict[str, Any]:
    return record(*({**each, **how} if each["name"] == name else each for each in FIELDS))


def released(folder: Path) -> Catalogue:
    catalogue = made(folder)
    assert releases.gate(catalogue) == []
    assert releases.release(catalogue, catalogue.types[TYPE])
    return load(folder)


def problems(folder: Path, schema: Any, **said: Any) -> str:
    """Return the problems that the gate finds in a second version."""
    released(folder)
    return "\n".join(map(str, releases.gate(load(write(folder, schema, **{"version": 2, **said})))))


GOOD_CHANGES = {
    "a field with a default": record(*FIELDS, field("channel", "string", default="web")),
    "a nullable field": record(*FIELDS, field("channel", ["null", "string"], default=None)),
    "another doc": changed("amount", doc="In cents."),
    "another symbol": changed("kind", type=enum("UNKNOWN", "RETAIL", "TRADE", "GIFT", default="UNKNOWN")),
    "another order of symbols": changed("kind", type=enum("TRADE", "UNKNOWN", "RETAIL", default="UNKNOWN")),
    "another order of fields": record(*reversed(FIELDS)),
}


@pytest.mark.parametrize("change", GOOD_CHANGES)
def test_the_gate_accepts(tmp_path: Path, change: str) -> None:
    assert problems(tmp_path, GOOD_CHANGES[change]) == ""


BAD_CHANGES = {
    "a removed field": (without("amount"), "field amount was released and is gone"),
    "a removed field that had a default": (without("note"), "field note was released and is gone"),
    "a renamed field": (changed("amount", name="total"), "field total is not written, and has no default"),
    "a field without a default": (
        record(*FIELDS, field("channel", "string")),
        "channel is not written, and has no default",
    ),
    "a renamed symbol": (
        changed("kind", type=enum("UNKNOWN", "RETAIL", "WHOLESALE", default="UNKNOWN")),
        "symbol TRADE of field kind was released and is gone",
    ),
    "a changed type": (changed("amount", type="string"), "field amount was long and is string"),
    "a narrowed type": (changed("amount", type="int"), "field amount was long and is int"),
    "a widened type, which old readers cannot read": (
        changed("amount", type="double"),
        "field amount was double and is long",
    ),
    "a removed logical type": (changed("order", type="string"), "field order was uuid and is string"),
    "a field that may be null now": (changed("amount", type=["null", "long"]), "released readers cannot read it"),
    "a field that goes by an alias, where old readers would read their default": (
        changed("note", name="remark", aliases=["note"]),
        "field note was released and is gone",
    ),
    "text that is bytes now": (changed("note", type=["null", "bytes"]), "which the reader does not expect"),
    "another name of the record": (
        record(*FIELDS, name="shop.Ordered"),
        "the record was shop.Placed and is shop.Ordered",
    ),
}  # fmt: skip


@pytest.mark.parametrize("change", BAD_CHANGES)
def test_the_gate_refuses(tmp_path: Path, change: str) -> None:
    schema, said = BAD_CHANGES[change]
    fields = {each["name"] for each in schema["fields"]}
    symbols: list[str] = next((each["type"]["symbols"] for each in schema["fields"] if each["name"] == "kind"), [])
    sample = {name: value for name, value in ORDER.items() if name in fields}
    sample |= {"total": 5} if "total" in fields else {"channel": "x"} if "channel" in fields else {}
    sample |= {"kind": "RETAIL"} if "TRADE" not in symbols else {}
    sample |= {"amount": "5"} if change == "a changed type" else {}
    assert said in problems(tmp_path, schema, samples=[sample])


def test_a_released_type_may_not_be_removed(tmp_path: Path) -> None:
    released(tmp_path)
    catalogue = load(
        write(tmp_path, record(field("a", "long"), name="shop.Other"), name="order.other", samples=[{"a": 1}])
    )
    assert [str(each) for each in releases.gate(catalogue)] == [
        "order.placed: it was released and is gone: mark it deprecated"
    ]


def test_a_released_version_never_changes_and_the_next_has_the_next_number(tmp_path: Path) -> None:
    assert "it changed since its release: set version = 2" in problems(tmp_path, changed("amount", doc="x"), version=1)
    assert "version 3 comes before 2 was released" in problems(tmp_path / "b", PLACED, version=3)
    catalogue = load(write(tmp_path / "c", PLACED, version=2))
    assert "version 2 comes before 1 was released" in str(releases.gate(catalogue)[0])


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        (record(field("kind", enum("A", "B"))), "has no default: its readers would fail at the next symbol"),
        (record({"name": "a", "type": "long"}), "Placed.a has no doc"),
        ({**record(field("a", "long")), "doc": ""}, "Placed has no doc"),
        (record(field("a", {**record(field("b", "long")), "name": "In", "doc": ""})), "Placed.a has no doc"),
    ],
)
def test_a_schema_that_could_not_evolve_is_not_released(tmp_path: Path, schema: Any, said: str) -> None:
    samples = [{name: {"b": 1} if isinstance(each["type"], dict) and each["type"]["type"] == "record" else
                "A" if name == "kind" else 1 for each in schema["fields"] for name in [each["name"]]}]  # fmt: skip
    catalogue = made(tmp_path, schema, samples=samples)
    assert said in "\n".join(map(str, releases.gate(catalogue)))
    with pytest.raises(Permanent, match=r"no doc|no default"):
        releases.release(catalogue, catalogue.types[TYPE])


def test_every_version_is_kept_and_each_is_compared(tmp_path: Path) -> None:
    """Compatibility is transitive: the third may not break the first, even if the second accepts it."""
    released(tmp_path)
    second = record(*FIELDS, field("channel", "string", default="web"))
    catalogue = load(write(tmp_path, second, version=2))
    assert releases.release(catalogue, catalogue.types[TYPE])
    assert not releases.release(catalogue, catalogue.types[TYPE])
    assert [each.version for each in releases.of(catalogue, TYPE)] == [1, 2]
    third = record(*FIELDS, field("channel", "string"))
    found = releases.gate(load(write(tmp_path, third, version=3, samples=[{**ORDER, "channel": "x"}])))
    assert {each.version for each in found} == {1}


def test_released_bytes_that_decode_to_other_values_are_found(tmp_path: Path) -> None:
    """Decoding finds what the rules do not: here the released sample itself was changed."""
    released(tmp_path)
    file = tmp_path / "released" / TYPE / "1.json"
    samples = json.loads(file.read_text())
    samples[0]["data"]["amount"] = 6
    file.write_text(json.dumps(samples))
    assert "field amount of sample 1 is not read as it was written" in str(releases.gate(load(tmp_path))[0])
    samples[0]["avro"] = base64.b64encode(b"x").decode()
    file.write_text(json.dumps(samples))
    assert "sample 1 cannot be read any more" in str(releases.gate(load(tmp_path))[0])


def test_a_damaged_release_says_how_to_restore_it(tmp_path: Path) -> None:
    released(tmp_path)
    (tmp_path / "released" / TYPE / "1.json").unlink()
    with pytest.raises(Misconfigured, match="a released version is never changed"):
        releases.gate(load(tmp_path))


def test_a_recursive_schema_is_compared_once() -> None:
    node = {"type": "record", "name": "Node", "fields": [{"name": "next", "type": ["null", "Node"], "default": None}]}
    tree = avro.parse(json.dumps(node))
    assert compatibility.both_ways(tree, tree) == []


def test_records_of_a_union_are_compared_each_with_itself() -> None:
    """Both have the path of the field; no field of the one counts as gone because the other lacks it."""
    card, cash = record(field("number", "string"), name="Card"), record(field("notes", "int"), name="Cash")
    either, less = (avro.parse(json.dumps(record(field("paid", [card, each])))) for each in (cash, record(name="Cash")))
    assert compatibility.both_ways(either, either) == []
    assert any("field paid(Cash).notes was released" in each for each in compatibility.both_ways(less, either))


SIMPLE = ["int", "long", "float", "double", "string", "bytes", "boolean", "null"]
KINDS = st.one_of(
    st.sampled_from(SIMPLE),
    st.lists(st.sampled_from(SIMPLE), min_size=1, max_size=3, unique=True),
    st.lists(st.sampled_from("ABC"), min_size=1, max_size=3, unique=True).map(lambda symbols: enum(*symbols)),
    st.lists(st.sampled_from("ABC"), min_size=1, max_size=3, unique=True).map(
        lambda symbols: enum(*symbols, default=symbols[0])
    ),
    st.sampled_from(SIMPLE).map(lambda items: {"type": "array", "items": items}),
    st.sampled_from(SIMPLE).map(lambda values: {"type": "map", "values": values}),
)
VALUES = {
    "int": 1, "long": 2**40, "float": 0.5, "double": 0.25, "string": "x", "bytes": b"\xff", "boolean": True,
    "null": None,
}  # fmt: skip


def values(kind: Any) -> list[Any]:
    """Return a value for each branch and symbol."""
    if isinstance(kind, str):
        return [VALUES[kind]]
    if isinstance(kind, list):
        return [value for branch in kind for value in values(branch)]
    if kind["type"] == "enum":
        return list(kind["symbols"])
    inner = values(kind.get("items", kind.get("values")))[0]
    return [[inner]] if kind["type"] == "array" else [{"k": inner}]


@example(["int", "long", "bytes"], ["string", "long", "bytes"])
@given(KINDS, KINDS)
def test_fastavro_reads_what_the_checker_calls_readable(wrote: Any, reads: Any) -> None:
    writer, reader = (avro.parse(json.dumps(record(field("v", kind)))) for kind in (wrote, reads))
    if compatibility.unreadable(writer=writer, reader=reader):
        return
    for value in values(wrote):
        stream = BytesIO()
        schemaless_writer(stream, writer, {"v": value})
        stream.seek(0)
        if isinstance(value, bytes) and "string" in str(reads) and "bytes" not in str(reads):
            continue  # bytes are promoted to text, where they are text
        schemaless_reader(stream, writer, reader)


def test_the_sample_of_a_release_is_the_json_form_of_the_catalogues(tmp_path: Path) -> None:
    catalogue = released(tmp_path)
    [first] = releases.of(catalogue, TYPE)
    kind = catalogue.types[TYPE]
    assert json_form.from_json(kind.schema, first.samples[0][0]) == json_form.from_json(kind.schema, ORDER)
