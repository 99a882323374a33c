"""What a consumer refuses when it is written, before anything is lost by it."""

from typing import Any, cast

import psycopg
import pytest
from sqlalchemy.ext.asyncio import AsyncSession

from ferryman import Consumer, Done, Misconfigured, Outcome, Received
from ferryman.consumer.face import face_of


@pytest.mark.parametrize("name", ["zähler", "a b", "", "x" * 101, "a/b"])
def test_a_name_that_kafka_would_refuse_is_refused(name: str) -> None:
    with pytest.raises(Misconfigured, match="no name for a consumer"):
        Consumer(name, ["t"])


def test_an_async_handler_is_refused_because_nobody_would_wait_for_it() -> None:
    consumer = Consumer("orders", ["t"])

    async def place(_db: Any, _message: Received) -> Outcome:
        return Done()

    for register in (consumer.handles, consumer.handles_batch):
        with pytest.raises(Misconfigured, match="place, which is async"):
            register("t")(cast(Any, place))
    assert not consumer.handlers


@pytest.mark.parametrize("kind", [AsyncSession, psycopg.AsyncConnection])
def test_an_async_connection_cannot_be_had(kind: type[Any]) -> None:
    with pytest.raises(Misconfigured, match="cannot be given"):
        face_of(kind, cast(Any, None))
