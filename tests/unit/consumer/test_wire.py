"""Records are decoded into messages or poison, with stable ids, and dead letters always fit into the outbox."""

import json
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ferryman import Message, use_schemas
from ferryman.consumer.kafka.consumer_topics import dead_letter_topic, retry_topic
from ferryman.consumer.model import BY_SOURCE_AND_ID, Poison, Received, Record
from ferryman.consumer.wire import dead_letter, decode, identity, poison_of, prepared_reports, type_of
from ferryman.runtime.errors import Unreachable
from ferryman.schemas import active
from ferryman.schemas.codec import Codecs
from support import catalogues

ID = UUID("9f1c1a52-6f0e-4b7e-9d5a-3c1f0a7b2e10")
JSON = ("content-type", b"application/json; charset=utf-8")


def record(value: bytes | None = b"{}", key: bytes | None = b"k", **headers: bytes | None) -> Record:
    named = [("content-type" if name == "content_type" else name, each) for name, each in headers.items()]
    return Record("orders", 3, 4711, key, value, named, 1_767_225_600_000)


@pytest.mark.parametrize(
    ("given", "own", "reported"),
    [
        ({"ce_correlationid": b"a/2", "traceparent": b"0"}, {}, {"ce_correlationid": "a/2", "traceparent": "0"}),
        ({"ce_correlationid": b"a"}, {"ce_correlationid": "mine", "x": "y"}, {"ce_correlationid": "mine", "x": "y"}),
        ({"ce_correlationid": b"a\0b", "traceparent": b"\xff", "x-other": b"z"}, {}, None),
        ({"ce_correlationid": None}, {}, None),
    ],
)  # fmt: skip
def test_reports_hand_on_the_trace_and_the_correlation_of_their_message(
    given: dict[str, bytes | None], own: dict[str, str], reported: dict[str, str] | None
) -> None:
    message = decode(record(content_type=JSON[1], **given), "t")
    assert isinstance(message, Received)
    [made] = prepared_reports("store", message, [Message("done", {}, key="k", headers=own)])
    assert (made.headers and json.loads(made.headers)) == reported


@pytest.fixture
def codecs(tmp_path: Path) -> Iterator[Codecs]:
    yield use_schemas(catalogues.write(tmp_path))
    active.forget()


def test_json_is_parsed_other_data_stays_bytes_and_the_key_is_text() -> None:
    one = decode(record(b'{"a": 1}', ce_id=str(ID).encode(), content_type=JSON[1]), "t")
    assert isinstance(one, Received)
    assert (one.id, one.data, one.key, one.type) == (ID, {"a": 1}, "k", "t")
    raw = decode(record(b"\x00\xff", key=None), "t")
    assert isinstance(raw, Received)
    assert (raw.data, raw.key) == (b"\x00\xff", "")


@pytest.mark.parametrize(
    ("given", "code"),
    [
        (record(None), "NO_VALUE"),
        (record(b"{", content_type=JSON[1]), "UNREADABLE"),
        (record(b"[" * 100_000, content_type=JSON[1]), "UNREADABLE"),
        (record(b"\xff", content_type=JSON[1]), "UNREADABLE"),
        (record(key=b"a\0b"), "BAD_KEY"),
        (record(key=b"\xff"), "BAD_KEY"),
        (record()._replace(headers=[], no_headers="a name is not text"), "BAD_HEADER"),
    ],
)
def test_a_record_that_is_not_a_message_is_poison_with_a_code(given: Record, code: str) -> None:
    poison = decode(given, "t")
    assert isinstance(poison, Poison)
    assert poison.code == code
    assert "\0" not in poison.error


@pytest.mark.parametrize(
    ("payload", "said"),
    [
        (b"no magic", "does not begin with a zero byte"),
        (b"\0\0\0\0\x07abc", "no registry knows its schema 7"),
        (b"cut", "does not begin"),
    ],
)
@pytest.mark.usefixtures("codecs")
def test_the_error_of_unreadable_avro_says_why_and_where(payload: bytes, said: str) -> None:
    poison = decode(record(payload), "order.placed")
    assert isinstance(poison, Poison)
    assert said in poison.error
    assert "orders[3] at offset 4711" in poison.error


def test_truncated_avro_is_poison(codecs: Codecs) -> None:
    codec = codecs.of("order.placed")
    assert codec is not None
    whole = codec.encode(catalogues.ORDER)
    assert isinstance(decode(record(whole), "order.placed"), Received)
    assert isinstance(decode(record(whole[:-1]), "order.placed"), Poison)


def test_a_record_waits_while_the_registry_is_away(codecs: Codecs, monkeypatch: pytest.MonkeyPatch) -> None:
    """N8, N11: it is neither a message nor poison."""

    def away(_: object, __: int) -> str:
        raise Unreachable("nobody answers")

    monkeypatch.setattr(type(codecs.registry), "schema", away)
    with pytest.raises(Unreachable, match="waits for its schema"):
        decode(record(b"\0\0\0\0\x07abc"), "order.placed")


def test_an_id_that_is_not_a_uuid_gives_the_same_uuid_each_time_for_its_source() -> None:
    first = identity(record(ce_id=b"17", ce_source=b"/shop"))
    assert first == identity(Record("elsewhere", 0, 0, None, None, [("ce_id", b"17"), ("ce_source", b"/shop")], 0))
    assert first != identity(record(ce_id=b"17", ce_source=b"/other"))
    assert first != identity(record(ce_id=b"18", ce_source=b"/shop"))


def test_ids_of_two_sources_are_apart_where_the_source_belongs_to_the_id() -> None:
    """N1: CloudEvents of two sources may have the same uuid. Renaming the source of our own ids changes nothing."""
    shop, other = (record(ce_id=str(ID).encode(), ce_source=source) for source in (b"/shop", b"/other"))
    assert identity(shop) == identity(other) == ID
    assert identity(shop, BY_SOURCE_AND_ID) == identity(shop._replace(offset=9), BY_SOURCE_AND_ID)
    assert len({identity(shop, BY_SOURCE_AND_ID), identity(other, BY_SOURCE_AND_ID), ID}) == 3
    assert decode(shop, "t", BY_SOURCE_AND_ID).id == poison_of(shop, "BUG", "", BY_SOURCE_AND_ID).id
    assert identity(record(), BY_SOURCE_AND_ID) == identity(record())


def test_a_record_without_an_id_is_identified_by_its_place() -> None:
    assert identity(record()) == identity(record(b"other"))
    assert identity(record()) != identity(record()._replace(offset=4712))


def test_a_record_without_an_id_is_another_message_in_a_topic_made_anew() -> None:
    """N1: the same place was taken for a duplicate or a conflict of the old topic's record."""
    assert identity(record()) != identity(record()._replace(timestamp_ms=1_767_225_600_001))


def test_another_type_or_key_under_an_id_is_not_the_same_message() -> None:
    """N1: two events with the id of their order, and without data, were taken for duplicates."""
    same = {"ce_id": str(ID).encode()}
    paid, shipped = (
        decode(record(ce_type=b"paid", **same), "paid"),
        decode(record(ce_type=b"shipped", **same), "shipped"),
    )
    other_key = decode(record(key=b"l", ce_type=b"paid", **same), "paid")
    again = decode(record(ce_type=b"paid", **same)._replace(offset=9), "paid")
    assert paid.id == shipped.id == other_key.id == again.id
    assert len({each.hash for each in (paid, shipped, other_key, again)}) == 3
    assert paid.hash == again.hash == poison_of(record(ce_type=b"paid", **same), "BUG", "").hash
    assert decode(record(key=None), "t").hash == decode(record(key=b""), "t").hash


def test_a_type_that_is_not_text_is_empty() -> None:
    assert type_of(record(ce_type=b"\xff")) == type_of(record(ce_type=None)) == type_of(record()) == ""


ANY = st.one_of(st.none(), st.binary(max_size=60))


@given(ANY, ANY, st.lists(st.tuples(st.text(max_size=9), ANY), max_size=4), st.text(max_size=300))
def test_any_record_has_a_dead_letter(
    value: bytes | None, key: bytes | None, headers: list[tuple[str, bytes | None]], error: str
) -> None:
    bad = Record("t" * 249, 0, 1, key, value, headers, 0)
    made = dead_letter("wallet", poison_of(bad, "BUG", error), MOST)
    assert len(made.topic) <= 249
    assert len(made.key.encode()) <= 2000
    said = json.loads(made.payload)
    assert said["code"] == "BUG"
    assert [said[each] is None for each in ("key_base64", "value_base64")] == [key is None, value is None]
    assert len(said["headers_base64"]) == len(headers)


MOST = 1_000_000
LARGE = st.sampled_from([0, 1, 1_000, 100_000, 490_000, 600_000, 740_000, 1_000_000])
LETTERS = st.sampled_from(["a", "é", "\u5b57", "\U0001f600", '"', "\n"])


@settings(deadline=None, max_examples=60)
@given(st.tuples(LARGE, LARGE, LARGE, LARGE, LARGE), LETTERS, st.one_of(st.integers(1000, MOST), st.just(MOST)))
def test_a_dead_letter_fits_into_the_outbox_however_large_its_record_is(
    sizes: tuple[int, int, int, int, int], letters: str, most: int
) -> None:
    """N9, N10: a letter that is refused would end each process that reads its record."""
    value, key, name, kind, error = sizes
    headers: list[tuple[str, bytes | None]] = [("ce_type", (letters * kind).encode()), (letters * name, b"x")]
    bad = Record("t" * 249, 2**31 - 1, 2**63 - 1, b"k" * key, b"v" * value, headers, 0)
    made = dead_letter("w" * 100, poison_of(bad, "UNKNOWN_TYPE", letters * error), most)
    assert len(made.payload) <= most
    assert json.loads(made.payload)["value_bytes"] == value


@pytest.mark.parametrize(
    ("value", "header", "left_out"),
    [
        (700_000, 10, set()),
        (500_000, 500_000, {"headers_base64"}),
        (800_000, 10, {"value_base64"}),
        (800_000, 800_000, {"headers_base64", "value_base64"}),
    ],
)
def test_a_dead_letter_leaves_out_as_little_as_possible(value: int, header: int, left_out: set[str]) -> None:
    bad = Record("t", 0, 1, b"k", b"v" * value, [("h", b"x" * header)], 0)
    said = json.loads(dead_letter("wallet", poison_of(bad, "BUG", "a bug"), MOST).payload)
    assert {name for name, each in said.items() if each is None} == left_out


def test_each_record_of_a_place_has_a_dead_letter_of_its_own() -> None:
    """In a topic that was made anew, a message may even have the place and the id of an older one."""
    first = record()
    others = [first, first._replace(value=b"mended"), first._replace(headers=[("ce_id", str(uuid4()).encode())])]
    letters = [dead_letter("wallet", poison_of(each, "BUG", ""), MOST) for each in (*others, first)]
    assert len({each.id for each in letters}) == 3
    assert letters[0].id == letters[-1].id


def test_unreadable_headers_are_null_in_a_dead_letter_and_not_empty() -> None:
    bad = record()._replace(headers=[], no_headers="a name is not text")
    assert json.loads(dead_letter("wallet", poison_of(bad, "BAD_HEADER", ""), MOST).payload)["headers_base64"] is None


def test_a_type_is_cut_to_the_length_that_the_outbox_takes() -> None:
    assert poison_of(record(ce_type=b"t" * 300), "UNKNOWN_TYPE", "").type == "t" * 255


def test_long_topics_have_dead_letter_topics_of_their_own() -> None:
    names = {dead_letter_topic("t" * 245 + end, "wallet") for end in ("a", "b", "ab", "")}
    assert len(names) == 4
    assert dead_letter_topic("orders", "wallet") == "orders.dlt"


def test_dead_letters_of_a_retry_topic_go_where_the_originals_go() -> None:
    bad = Record(retry_topic("orders", "wallet"), 0, 1, b"k", b"v", [], 0)
    assert dead_letter("wallet", poison_of(bad, "BUG", "again"), MOST).topic == "orders.dlt"
