"""A record becomes a message, or is poison with a code; and its id follows from what its writer said."""

import json
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ferryman import use_schemas
from ferryman.consumer.deadletters import letter, topic_of
from ferryman.consumer.decoding import decode, identity, poison_of, type_of
from ferryman.consumer.model import Poison, Received, Record
from ferryman.consumer.retries import retry_topic
from ferryman.runtime.errors import Unreachable
from ferryman.schemas import active
from ferryman.schemas.codec import Codecs
from support import catalogues

ID = UUID("9f1c1a52-6f0e-4b7e-9d5a-3c1f0a7b2e10")
JSON = ("content-type", b"application/json; charset=utf-8")


def record(value: bytes | None = b"{}", key: bytes | None = b"k", **headers: bytes | None) -> Record:
    named = [("content-type" if name == "content_type" else name, each) for name, each in headers.items()]
    return Record("orders", 3, 4711, key, value, named, 1_767_225_600_000)


@pytest.fixture
def codecs(tmp_path: Path) -> Iterator[Codecs]:
    yield use_schemas(catalogues.write(tmp_path))
    active.forget()


def test_json_is_data_bytes_are_bytes_and_the_key_is_text() -> None:
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
        (record()._replace(headers=[], no_headers="a name is no text"), "BAD_HEADER"),
    ],
)
def test_what_is_no_message_is_poison_with_a_code(given: Record, code: str) -> None:
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
def test_avro_that_cannot_be_read_says_why_and_where(payload: bytes, said: str) -> None:
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


def test_while_the_registry_is_away_it_is_neither(codecs: Codecs, monkeypatch: pytest.MonkeyPatch) -> None:
    """N8, N11: it waits."""

    def away(_: object, __: int) -> str:
        raise Unreachable("nobody answers")

    monkeypatch.setattr(type(codecs.registry), "schema", away)
    with pytest.raises(Unreachable, match="waits for its schema"):
        decode(record(b"\0\0\0\0\x07abc"), "order.placed")


def test_an_id_that_is_no_uuid_gives_the_same_one_each_time_for_its_source() -> None:
    first = identity(record(ce_id=b"17", ce_source=b"/shop"))
    assert first == identity(Record("elsewhere", 0, 0, None, None, [("ce_id", b"17"), ("ce_source", b"/shop")], 0))
    assert first != identity(record(ce_id=b"17", ce_source=b"/other"))
    assert first != identity(record(ce_id=b"18", ce_source=b"/shop"))


def test_a_record_without_an_id_is_known_by_where_it_stands() -> None:
    assert identity(record()) == identity(record(b"other"))
    assert identity(record()) != identity(record()._replace(offset=4712))


def test_a_type_that_is_no_text_is_none() -> None:
    assert type_of(record(ce_type=b"\xff")) == type_of(record(ce_type=None)) == type_of(record()) == ""


ANY = st.one_of(st.none(), st.binary(max_size=60))


@given(ANY, ANY, st.lists(st.tuples(st.text(max_size=9), ANY), max_size=4), st.text(max_size=300))
def test_a_letter_can_be_made_of_whatever_a_record_is(
    value: bytes | None, key: bytes | None, headers: list[tuple[str, bytes | None]], error: str
) -> None:
    bad = Record("t" * 249, 0, 1, key, value, headers, 0)
    made = letter("wallet", poison_of(bad, "BUG", error), MOST)
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
def test_a_letter_fits_into_the_outbox_however_large_what_it_tells_of_is(
    sizes: tuple[int, int, int, int, int], letters: str, most: int
) -> None:
    """N9, N10: one that is refused would end each process that comes to its record."""
    value, key, name, kind, error = sizes
    headers: list[tuple[str, bytes | None]] = [("ce_type", (letters * kind).encode()), (letters * name, b"x")]
    bad = Record("t" * 249, 2**31 - 1, 2**63 - 1, b"k" * key, b"v" * value, headers, 0)
    made = letter("w" * 100, poison_of(bad, "UNKNOWN_TYPE", letters * error), most)
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
def test_of_a_letter_no_more_is_left_out_than_it_takes(value: int, header: int, left_out: set[str]) -> None:
    bad = Record("t", 0, 1, b"k", b"v" * value, [("h", b"x" * header)], 0)
    said = json.loads(letter("wallet", poison_of(bad, "BUG", "a bug"), MOST).payload)
    assert {name for name, each in said.items() if each is None} == left_out


def test_of_headers_that_could_not_be_read_a_letter_does_not_say_that_there_were_none() -> None:
    bad = record()._replace(headers=[], no_headers="a name is no text")
    assert json.loads(letter("wallet", poison_of(bad, "BAD_HEADER", ""), MOST).payload)["headers_base64"] is None


def test_a_type_is_kept_no_longer_than_the_outbox_has_one() -> None:
    assert poison_of(record(ce_type=b"t" * 300), "UNKNOWN_TYPE", "").type == "t" * 255


def test_the_letters_of_long_topics_do_not_meet() -> None:
    names = {topic_of("t" * 245 + end) for end in ("a", "b", "ab", "")}
    assert len(names) == 4
    assert topic_of("orders") == "orders.dlt"


def test_what_is_rejected_again_from_its_retry_topic_goes_to_the_same_letters() -> None:
    bad = Record(retry_topic("orders", "wallet"), 0, 1, b"k", b"v", [], 0)
    assert letter("wallet", poison_of(bad, "BUG", "again"), MOST).topic == "orders.dlt"
