"""Mistakes that a consumer refuses when it is defined, before messages are lost by them."""

from typing import Any, cast

import psycopg
import pytest
from sqlalchemy.ext.asyncio import AsyncSession

from ferryman import Consumer, Done, Message, Misconfigured, Outcome, Received, Refused
from ferryman.consumer.connections import handler_connection


@pytest.mark.parametrize("name", ["zähler", "a b", "", "x" * 101, "a/b"])
def test_a_name_that_kafka_would_refuse_is_refused(name: str) -> None:
    with pytest.raises(Misconfigured, match="not a valid name for a consumer"):
        Consumer(name, ["t"])


def test_an_async_handler_is_refused_because_it_would_never_be_awaited() -> None:
    consumer = Consumer("orders", ["t"])

    async def place(_db: Any, _message: Received) -> Outcome:
        return Done()

    for register in (consumer.handles("t"), consumer.handles_batch("t"), consumer.after_commit):
        with pytest.raises(Misconfigured, match="place, which is async"):
            register(cast(Any, place))
    assert not consumer.handlers
    assert not consumer.callbacks


def place(_db: Any, _message: Received) -> Outcome:
    return Done()


@pytest.mark.parametrize("answer", [Done, lambda report: Refused("NO", report)])
def test_a_report_that_is_no_message_is_refused_where_it_is_made(answer: Any) -> None:
    """N10: the traceback then has the handler's line."""
    for wrong in ({"a": 1}, None, [Message("t", b"", key="k")]):
        with pytest.raises(TypeError, match=f"must be a ferryman.Message, not {type(wrong).__name__}"):
            answer(wrong)


@pytest.mark.parametrize("types", [(), (place,), ("",), (None,), (["a", "b"],), ("a", 5)])
def test_a_handler_without_types_is_refused_because_its_messages_would_be_skipped(types: Any) -> None:
    """N1: `@consumer.handles` without parentheses would register nothing, and offsets would move past its messages."""
    consumer = Consumer("orders", ["t"])
    for register in (consumer.handles, consumer.handles_batch):
        with pytest.raises(Misconfigured, match=r"needs the types of messages.*name the types: @consumer.handles"):
            register(*types)


def test_a_handler_that_is_not_a_function_is_refused() -> None:
    consumer = Consumer("orders", ["t"])
    for register in (consumer.handles("t"), consumer.handles_batch("t"), consumer.after_commit):
        with pytest.raises(Misconfigured, match="which is not a function"):
            register(cast(Any, "order.placed"))


@pytest.mark.parametrize(("setting", "given"), [("mode", "at-most-once"), ("mode", None), ("unknown", "refuse")])
def test_an_unknown_mode_is_refused_and_not_taken_for_the_default(setting: str, given: Any) -> None:
    with pytest.raises(Misconfigured, match=f"has {setting}={given!r}"):
        Consumer("orders", ["t"], **{setting: given})


@pytest.mark.parametrize("given", [("ce_source",), ("ce_id", "ce_source"), "ce_id", ()])
def test_headers_that_make_no_id_are_refused(given: Any) -> None:
    with pytest.raises(Misconfigured, match=r"id_from=.*one of \('ce_id',\), \('ce_source', 'ce_id'\)"):
        Consumer("orders", ["t"], id_from=given)


@pytest.mark.parametrize("kind", [AsyncSession, psycopg.AsyncConnection])
def test_an_async_connection_is_refused(kind: type[Any]) -> None:
    with pytest.raises(Misconfigured, match="cannot be given"):
        handler_connection(kind, cast(Any, None))
