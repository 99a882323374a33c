"""The codec: data to bytes and back, refusals that name the field, and errors that name the record."""

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferryman import Message, Permanent, use_schemas
from ferryman.message import stored
from ferryman.runtime.errors import Misconfigured, Unreachable
from ferryman.schemas import OURS, active, avro, json_form
from ferryman.schemas.catalogue import load
from ferryman.schemas.codec import At, Codec, Codecs, Undecodable, Unfit, quick_check
from ferryman.schemas.registry import UnknownSchema
from ferryman.schemas.registry.local import CatalogueRegistry, FolderRegistry
from support import catalogues
from support.catalogues import enum, field, made, record

ORDER = UUID("9f1c1a52-6f0e-4b7e-9d5a-3c1f0a7b2e10")
GOOD = {"order": ORDER, "amount": 5, "kind": "TRADE", "note": None}
JSON_TYPE = {"content_type": "application/json"}
NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)


def codec(folder: Path, schema: Any = catalogues.PLACED, **said: Any) -> Codec:
    catalogue = made(folder, schema, **said)
    return Codec(catalogue.types["order.placed"], CatalogueRegistry(catalogue))


@pytest.fixture(autouse=True)
def no_catalogue() -> Iterator[None]:
    yield
    active.forget()


OURS_LOADED = load(OURS)


@pytest.mark.parametrize("name", OURS_LOADED.types)
def test_every_sample_of_our_types_goes_to_bytes_and_back(name: str) -> None:
    kind = OURS_LOADED.types[name]
    ours = Codec(kind, CatalogueRegistry(OURS_LOADED))
    for sample in kind.samples:
        data = json_form.from_json(kind.schema, sample)
        assert ours.decode(ours.encode(data)) == data


def test_the_payload_begins_with_a_zero_byte_and_the_schemas_id(tmp_path: Path) -> None:
    one = codec(tmp_path)
    payload = one.encode(GOOD)
    number = CatalogueRegistry(load(tmp_path)).lookup("shop.Placed", one.type.text)
    assert payload[:5] == b"\0" + (number or 0).to_bytes(4)
    assert one.decode(payload) == GOOD


BENT: list[tuple[dict[str, Any], str]] = [
    ({"amount": 1.5}, "field amount must be a whole number that fits long, and is a float 1.5"),
    ({"amount": True}, "field amount must be a whole number that fits long, and is a bool"),
    ({"amount": 2**63}, "field amount must be a whole number that fits long"),
    ({"amount": None}, "field amount must be a whole number that fits long, and is nothing"),
    ({"amount": "5"}, "field amount must be a whole number that fits long, and is a str"),
    ({"order": "no uuid"}, "field order must be a uuid, and is a str"),
    ({"kind": "GIFT"}, "field kind must be one of UNKNOWN, RETAIL, TRADE"),
    ({"note": 5}, "field note must be text, and is an int"),
    ({"note": "\ud800"}, "half a character"),
    ({"more": 1}, "field more is not in the schema"),
]


@pytest.mark.parametrize(("changed", "said"), BENT)
def test_a_value_that_does_not_fit_is_refused_by_its_field(tmp_path: Path, changed: dict[str, Any], said: str) -> None:
    """fastavro alone would write 1 for 1.5, and any text for a uuid."""
    with pytest.raises(Unfit) as refused:
        codec(tmp_path).encode({**GOOD, **changed})
    assert said in str(refused.value)
    assert "order.placed" in str(refused.value)


def test_a_field_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(Unfit, match="field amount is missing"):
        codec(tmp_path).encode({"order": ORDER, "kind": "TRADE"})


def test_a_field_with_a_default_may_be_left_out(tmp_path: Path) -> None:
    one = codec(tmp_path)
    assert one.decode(one.encode({"order": str(ORDER), "amount": 5, "kind": "TRADE"})) == GOOD


@pytest.mark.parametrize("pii", ["personal", "secret"])
def test_an_error_does_not_show_personal_or_secret_values(tmp_path: Path, pii: str) -> None:
    with pytest.raises(Unfit) as refused:
        codec(tmp_path, pii=pii).encode({**GOOD, "order": "ada@example.org"})
    assert "field order must be a uuid, and is a str" in str(refused.value)
    assert "ada" not in str(refused.value)


DEEP = record(
    field("times", {"type": "array", "items": {"type": "long", "logicalType": "timestamp-micros"}}),
    field(
        "lines", {"type": "array", "items": {**record(field("sku", "string"), field("count", "int")), "name": "Line"}}
    ),
    field("prices", {"type": "map", "values": "long"}),
    field("either", ["null", "long", "string"], default=None),
    field("share", "double", default=0.5),
    field("paid", "boolean", default=False),
    field("seal", {"type": "fixed", "name": "Seal", "size": 2}, default="\x00\x00"),
    field("raw", "bytes", default=""),
)
FULL = {
    "times": [NOW], "lines": [{"sku": "a", "count": 1}], "prices": {"EUR": 5}, "either": "x", "share": 0.25,
    "paid": True, "seal": b"ab", "raw": b"\x00\xff",
}  # fmt: skip
AS_JSON = json_form.to_json(avro.parse(json.dumps(DEEP)), FULL)


def test_every_kind_of_value_goes_to_bytes_and_back_and_to_json_and_back(tmp_path: Path) -> None:
    one = codec(tmp_path, DEEP, samples=[AS_JSON])
    assert one.decode(one.encode(FULL)) == FULL
    assert json_form.from_json(one.type.schema, AS_JSON) == FULL


def test_defaults_are_read_as_values_of_their_types(tmp_path: Path) -> None:
    moment = {"type": "long", "logicalType": "timestamp-micros"}
    schema = record(*DEEP["fields"], field("at", moment, default=1_000_000))
    for how in ({}, JSON_TYPE):
        one = codec(tmp_path, schema, samples=[AS_JSON], **how)
        data = {name: FULL[name] for name in ("times", "lines", "prices")}
        back = one.decode(one.encode(data))
        assert (back["seal"], back["raw"]) == (b"\0\0", b"")
        assert back["at"] == datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"times": [NOW, datetime(2026, 1, 1)]}, "field times[1] must be a time with its zone"),  # noqa: DTZ001
        ({"lines": [{"sku": "a", "count": 2**31}]}, "field lines[0].count must be a whole number that fits int"),
        ({"lines": [{"sku": "a"}]}, "field lines[0].count is missing"),
        ({"lines": "ab"}, "field lines must be a list"),
        ({"prices": {"EUR": 0.5}}, "field prices['EUR'] must be a whole number"),
        ({"prices": {1: 5}}, "field prices must be a mapping with text for its keys"),
        ({"either": 0.5}, "field either must be null or long or string"),
        ({"share": float("nan")}, "field share must be a number, and is infinite or not a number"),
        ({"share": 10**400}, "field share must be a number, and is an int"),
        ({"paid": 1}, "field paid must be true or false"),
        ({"seal": b"abc"}, "field seal must be 2 bytes, and is 3 bytes"),
        ({"raw": "text"}, "field raw must be bytes"),
    ],
)
def test_nested_values_are_checked_as_strictly(tmp_path: Path, changed: dict[str, Any], said: str) -> None:
    with pytest.raises(Unfit) as refused:
        codec(tmp_path, DEEP, samples=[AS_JSON]).encode({**FULL, **changed})
    assert said in str(refused.value)


ANYTHING = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**64), 2**64), st.floats(), st.text(max_size=3), st.binary(max_size=3),
    st.uuids(), st.datetimes(), st.datetimes(timezones=st.just(UTC)), st.sampled_from(["RETAIL", "TRADE", "x"]),
)  # fmt: skip
FIT_FIELDS = {
    "n": "long", "i": "int", "s": "string", "d": "double", "b": "boolean", "raw": "bytes",
    "id": {"type": "string", "logicalType": "uuid"}, "at": {"type": "long", "logicalType": "timestamp-micros"},
    "kind": enum("RETAIL", "TRADE"),
}  # fmt: skip


@given(st.sampled_from(sorted(FIT_FIELDS)), ANYTHING, st.booleans())
def test_the_quick_check_never_passes_what_the_exact_one_refuses(name: str, value: Any, optional: bool) -> None:
    """fastavro refuses what the quick check leaves to it."""
    kind = ["null", FIT_FIELDS[name]] if optional else FIT_FIELDS[name]
    schema = avro.parse(json.dumps(record(field("v", kind))))
    try:
        json_form.to_json(schema, {"v": value})
    except json_form.Misfit:
        assert not takes(schema, {"v": value})


def takes(schema: avro.Schema, data: Any) -> bool:
    """Return True if the codec would write it without the exact check."""
    from io import BytesIO

    from fastavro import schemaless_writer

    try:
        if not quick_check(schema)(data):
            return False
        schemaless_writer(BytesIO(), schema, data, strict_allow_default=True)
    except (TypeError, ValueError, OverflowError, AttributeError, KeyError):
        return False
    return True


@pytest.mark.parametrize(
    ("payload", "said"),
    [
        (b"", "does not begin with a zero byte"),
        (b"{}", "does not begin with a zero byte"),
        (b'{"json": true}', "does not begin with a zero byte"),
        (b"\0\0\0\0\x07abc", "no registry knows its schema 7"),
    ],
)
def test_foreign_bytes_are_refused_with_their_place(tmp_path: Path, payload: bytes, said: str) -> None:
    with pytest.raises(Undecodable) as refused:
        codec(tmp_path).decode(payload, At("orders", 3, 4711))
    assert said in str(refused.value)
    assert "orders[3] at offset 4711 is not a valid order.placed" in str(refused.value)


def test_every_truncation_and_every_addition_is_found(tmp_path: Path) -> None:
    one = codec(tmp_path)
    payload = one.encode(GOOD)
    for end in range(5, len(payload)):
        with pytest.raises(Undecodable, match="cannot be read with schema"):
            one.decode(payload[:end], At("orders", 0, 1))
    with pytest.raises(Undecodable, match="1 bytes follow"):
        one.decode(payload + b"\0", At("orders", 0, 1))


@given(st.binary(max_size=200))
def test_arbitrary_bytes_raise_no_other_error(garbage: bytes) -> None:
    one = Codec(OURS_LOADED.types["wallet.deduct"], CatalogueRegistry(OURS_LOADED))
    head = one.encode(json_form.from_json(one.type.schema, one.type.samples[0]))[:5]
    with suppress(Undecodable):
        assert isinstance(one.decode(head + garbage), dict)


def test_a_record_of_another_type_is_refused_even_if_its_bytes_could_be_read(tmp_path: Path) -> None:
    registry = FolderRegistry(tmp_path / "registry")
    (tmp_path / "registry").mkdir()
    other = made(tmp_path / "other", record(*catalogues.PLACED["fields"], name="shop.Moved"))
    mine = made(tmp_path / "mine")
    for catalogue in (other, mine):
        kind = catalogue.types["order.placed"]
        registry.register(kind.subject, kind.text)
    payload = Codec(other.types["order.placed"], registry).encode(GOOD)
    with pytest.raises(Undecodable, match=r"is that of shop\.Moved, not of shop\.Placed"):
        Codec(mine.types["order.placed"], registry).decode(payload)


def test_data_of_an_older_and_a_newer_version_is_read_as_ours(tmp_path: Path) -> None:
    registry = FolderRegistry(tmp_path / "registry")
    (tmp_path / "registry").mkdir()
    older = made(tmp_path / "1")
    newer = made(tmp_path / "2", record(*catalogues.PLACED["fields"], field("channel", "string", default="web")))
    codecs = {}
    for n, catalogue in ((1, older), (2, newer)):
        kind = catalogue.types["order.placed"]
        registry.register(kind.subject, kind.text)
        codecs[n] = Codec(kind, registry)
    assert codecs[2].decode(codecs[1].encode(GOOD)) == {**GOOD, "channel": "web"}
    assert codecs[1].decode(codecs[2].encode({**GOOD, "channel": "shop"})) == GOOD


class Down:
    """A registry that raises the same error for every call."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def schema(self, number: int) -> str:
        raise self._error

    def lookup(self, subject: str, text: str) -> int | None:
        raise self._error

    def register(self, subject: str, text: str) -> int:
        raise self._error

    def objections(self, subject: str, text: str) -> list[str]:
        raise self._error

    def insist(self, subject: str, level: str) -> None:
        raise self._error


def test_an_unknown_id_waits_during_an_outage_and_is_refused_afterwards(tmp_path: Path) -> None:
    """No message is dead-lettered because of an outage (N9, N11)."""
    kind = made(tmp_path).types["order.placed"]
    with pytest.raises(Unreachable, match=r"orders\[0\] at offset 9 waits for its schema 7"):
        Codec(kind, Down(Unreachable("nobody answers"))).decode(b"\0\0\0\0\x07abc", At("orders", 0, 9))
    with pytest.raises(Undecodable, match="no registry knows its schema 7"):
        Codec(kind, Down(UnknownSchema("no"))).decode(b"\0\0\0\0\x07abc", At("orders", 0, 9))


def test_writing_with_an_unpublished_schema_names_the_command_that_publishes(tmp_path: Path) -> None:
    (tmp_path / "registry").mkdir()
    kind = made(tmp_path / "mine").types["order.placed"]
    with pytest.raises(Misconfigured, match="ferryman schemas publish"):
        Codec(kind, FolderRegistry(tmp_path / "registry")).encode(GOOD)


# JSON types


def test_a_type_in_json_is_checked_in_the_same_way(tmp_path: Path) -> None:
    one = codec(tmp_path, **JSON_TYPE)
    assert json.loads(one.encode(GOOD)) == {**GOOD, "order": str(ORDER)}
    assert one.decode(one.encode(GOOD)) == GOOD
    with pytest.raises(Unfit, match="field amount must be a whole number"):
        one.encode({**GOOD, "amount": 1.5})
    with pytest.raises(Undecodable, match="field amount is missing"):
        one.decode(b'{"order": "9f1c1a52-6f0e-4b7e-9d5a-3c1f0a7b2e10", "kind": "TRADE"}')


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"raw": "é"}, "field raw must be bytes in base64"),
        ({"raw": "AA"}, "field raw must be bytes in base64"),
        ({"seal": "AAAA"}, "field seal must be 2 bytes, and is 3 bytes"),
        ({"times": ["2026-01-31T12:00:00"]}, "field times[0] must be a time with its zone"),
        ({"times": ["soon"]}, "field times[0] must be a time as 2026-01-31T12:00:00Z"),
        ({"times": ["0001-01-01T00:00:00+05:00"]}, "field times[0] must be a time as 2026-01-31T12:00:00Z"),
        ({"times": [5]}, "field times[0] must be text"),
    ],
)
def test_json_that_does_not_fit_is_refused_by_its_field(tmp_path: Path, changed: dict[str, Any], said: str) -> None:
    one = codec(tmp_path, DEEP, samples=[AS_JSON], **JSON_TYPE)
    with pytest.raises(Undecodable) as refused:
        one.decode(json.dumps({**AS_JSON, **changed}).encode())
    assert said in str(refused.value)


def test_the_default_of_a_decimal_is_a_decimal(tmp_path: Path) -> None:
    """A schema spells it as the bytes of its unscaled value."""
    price = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
    schema = record(field("id", "string"), field("price", price, default="\u0000\u0096"))
    for how in ({}, JSON_TYPE):
        one = codec(tmp_path, schema, samples=[{"id": "a"}], **how)
        assert one.decode(one.encode({"id": "a"})) == {"id": "a", "price": Decimal("1.50")}


def test_json_of_another_version_is_read_as_avro_would_resolve_it(tmp_path: Path) -> None:
    payload = json.dumps({**GOOD, "order": str(ORDER), "kind": "GIFT", "channel": "web"}).encode()
    assert codec(tmp_path, **JSON_TYPE).decode(payload) == {**GOOD, "kind": "UNKNOWN"}


@pytest.mark.parametrize("payload", [b"", b"\0\0", b"[1", b"[" * 100_000, b"\xff\xfe", b"null", b"[]"])
def test_invalid_json_is_refused(tmp_path: Path, payload: bytes) -> None:
    with pytest.raises(Undecodable):
        codec(tmp_path, **JSON_TYPE).decode(payload, At("orders", 0, 1))


# Appending by a catalogue


@pytest.fixture
def codecs(tmp_path: Path) -> Codecs:
    return use_schemas(catalogues.write(tmp_path))


def test_a_message_of_the_catalogue_gets_its_topic_and_its_format_from_there(codecs: Codecs) -> None:
    one = stored(Message("order.placed", GOOD, key="k"))
    written = codecs.of("order.placed")
    assert written is not None
    assert (one.topic, one.content_type) == ("orders", "application/avro")
    assert written.decode(one.payload) == GOOD


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (Message("order.placed", {**GOOD, "amount": 1.5}, key="k"), "field amount must be a whole number"),
        (Message("order.placed", GOOD, key="k", topic="others"), "belongs to topic orders, not to others"),
        (Message("order.plced", GOOD, key="k", topic="orders"), "topic orders has no type order.plced"),
        (Message("order.plced", GOOD, key="k"), "it has no topic"),
    ],
)
@pytest.mark.usefixtures("codecs")
def test_a_message_that_does_not_fit_the_catalogue_fails_its_writer(message: Message, said: str) -> None:
    with pytest.raises(Permanent) as refused:
        stored(message)
    assert said in str(refused.value)


@pytest.mark.usefixtures("codecs")
def test_types_outside_the_catalogue_and_bytes_are_carried_as_they_are() -> None:
    assert json.loads(stored(Message("other", {"any": 1.5}, key="k", topic="elsewhere")).payload) == {"any": 1.5}
    raw = stored(Message("order.placed", b"\x00raw", key="k", content_type="x/y"))
    assert (raw.topic, raw.payload, raw.content_type) == ("orders", b"\x00raw", "x/y")


def test_without_a_catalogue_data_is_written_as_json() -> None:
    assert stored(Message("wallet.deduct", {"any": 1}, key="k", topic="t")).content_type == "application/json"


Change = Callable[[Path], None]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda folder: (folder / "catalogue.toml").unlink(), "it does not exist"),
        (lambda folder: (folder / "catalogue.toml").write_text("title = "), "it cannot be read"),
        (lambda folder: (folder / "catalogue.toml").write_text('title = "x"'), "text: Field required"),
        (lambda folder: (folder / "avro" / "order.placed.avsc").unlink(), "the schema of order.placed cannot be read"),
        (
            lambda folder: (folder / "avro" / "order.placed.avsc").write_text("{"),
            "it is not a valid Avro schema: it is not JSON",
        ),
        (lambda folder: (folder / "avro" / "order.placed.avsc").write_text('"long"'), "it is not a JSON object"),
        (
            lambda folder: (folder / "avro" / "order.placed.avsc").write_text(json.dumps(enum("A"))),
            "it is not a record",
        ),
        (
            lambda folder: (folder / "avro" / "order.placed.avsc").write_text(json.dumps(record(field("a b", "long")))),
            "'a b' is not a valid name",
        ),
        (
            lambda folder: (folder / "avro" / "order.placed.avsc").write_text(json.dumps(record(field("a", "lon")))),
            "names a type that it does not define",
        ),
        (lambda folder: catalogues.write(folder, topic="nowhere"), "which is not in the catalogue"),
        (lambda folder: catalogues.write(folder, samples=[{"order": "x"}]), "does not fit its schema: field order"),
        (lambda folder: catalogues.write(folder, name="Order Placed"), "'Order Placed' is not a valid name for a type"),
        (lambda folder: catalogues.write(folder, pii="some"), "types.order.placed.pii"),
        (lambda folder: catalogues.write(folder, colour="red"), "types.order.placed.colour"),
    ],
)
def test_a_wrong_catalogue_says_what_is_wrong_and_where(tmp_path: Path, change: Change, said: str) -> None:
    change(catalogues.write(tmp_path))
    with pytest.raises(Misconfigured) as refused:
        load(tmp_path)
    assert said in str(refused.value)
    assert str(tmp_path) in str(refused.value)
    assert refused.value.setting == "schemas.path"
