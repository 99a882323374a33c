"""A message is encoded, or refused with a reason, before it reaches the database."""

import json
from typing import Any, cast
from uuid import UUID

import pytest

from ferryman import Message, Permanent
from ferryman.message import stored

ID = UUID("12345678-1234-5678-1234-567812345678")


def test_data_is_written_as_json() -> None:
    one = stored(Message("order.placed", {"id": ID, "naïve": [1, None]}, key=ID, topic="orders"))
    assert json.loads(one.payload) == {"id": str(ID), "naïve": [1, None]}
    assert (one.key, one.content_type) == (str(ID), "application/json")


def test_bytes_are_carried_unchanged() -> None:
    one = stored(Message("order.placed", b"\x00\xff", key="k", topic="orders"))
    assert (one.payload, one.content_type) == (b"\x00\xff", None)


def test_writer_may_say_what_the_bytes_are() -> None:
    assert stored(Message("t", b"x", key="k", topic="o", content_type="text/plain")).content_type == "text/plain"


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"topic": None}, "it has no topic"),
        ({"key": "a\0b"}, "its key holds a null byte"),
        ({"topic": "a\0b"}, "its topic holds a null byte"),
        ({"type": "a\0b"}, "its type holds a null byte"),
        ({"key": None}, "its key is not text but a NoneType"),
        ({"key": 7}, "its key is not text but a int"),
        ({"headers": {"a": 1}}, "its header 'a' is not text but a int"),
        ({"headers": {"a": "\0"}}, "its header 'a' holds a null byte"),
        ({"headers": {1: "a"}}, "its header 1 is not text but a int"),
        ({"content_type": b"text/plain"}, "its content_type is not text but a bytes"),
        ({"content_type": "a\0b"}, "its content_type holds a null byte"),
        ({"idempotency_key": 7}, "its idempotency_key is not text but a int"),
        ({"idempotency_key": "a\0b"}, "its idempotency_key holds a null byte"),
        ({"id": "5"}, "its id is not a uuid: badly formed"),
        ({"id": 5}, "its id is not a uuid: a int"),
        ({"id": b"x" * 16}, "its id is not a uuid: a bytes"),
        ({"data": {"when": object()}}, "its data is not JSON"),
        ({"data": {"amount": float("nan")}}, "its data is not JSON"),
    ],
)
def test_unappendable_message_is_refused_with_the_reason(changed: dict[str, Any], said: str) -> None:
    good: dict[str, Any] = {"type": "order.placed", "data": {}, "key": "k", "topic": "orders"}
    with pytest.raises(Permanent, match=said):
        stored(Message(**(good | changed)))


def test_ids_and_keys_may_be_uuids_or_their_text() -> None:
    one = stored(Message("t", b"", key=ID, topic="o", id=cast(Any, str(ID)), idempotency_key=ID))
    assert (one.key, one.id, one.idempotency_key) == (str(ID), ID, str(ID))


def test_headers_that_are_not_there_are_not_written() -> None:
    assert stored(Message("t", b"", key="k", topic="o")).headers is None
    assert stored(Message("t", b"", key="k", topic="o", headers={"a": "b"})).headers == '{"a": "b"}'


def test_message_is_a_value() -> None:
    assert Message("t", {}, key="k") == Message("t", {}, key="k")
