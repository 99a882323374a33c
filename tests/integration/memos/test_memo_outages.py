"""An outage of the mail server uses up no attempt of a mail, unless a setting says so."""

import threading
from contextlib import suppress
from typing import Any

import pytest

from ferryman import Courier
from ferryman.relay.described.couriers import courier_service
from ferryman.runtime.errors import Unreachable
from ferryman.runtime.postgres import Connection
from ferryman.runtime.settings import Settings
from ferryman.services.memos.memos import MemoInput, create_memo
from ferryman.services.memos.memos_settings import MemosSettings, described
from ferryman.testing.mail import ACCEPTED, MailServer
from support.mailing import by_smtp

LIMIT = 5
BURNED = [("PENDING", n) for n in range(1, LIMIT)] + [("FAILED", LIMIT)] * 2
EXPIRE = "UPDATE memos.email_outbox SET last_attempt_at = last_attempt_at - interval '2 h'"


def mail(db: Connection) -> tuple[str, int]:
    row = db.execute("SELECT status, retry_count FROM memos.email_outbox").fetchone()
    assert row is not None
    return row


@pytest.mark.parametrize(
    ("set_to", "during", "after"),
    [
        ({}, [("PENDING", 0)] * 6, ("SENT", 0)),
        ({"max_outage_seconds": 3600}, [("PENDING", 0)] * 6, ("SENT", 0)),
        ({"count_outages": True}, BURNED, ("FAILED", LIMIT)),
        ({"max_outage_seconds": 0.001}, BURNED, ("FAILED", LIMIT)),
    ],
)
def test_attempts_in_an_outage_count_only_if_that_is_set(
    ferryman_db: Connection, ferryman_database_url: str, set_to: dict[str, Any], during: list[tuple[str, int]],
    after: tuple[str, int],
) -> None:  # fmt: skip
    """N8. Six sweeps by a timer: the server refuses them all for a reason of its own, then is well again."""
    create_memo(ferryman_db, MemoInput("HR", "people", "Party", "ann@example.com", "You are invited."))
    own = Courier("memos", outbox=described(MemosSettings(**set_to), 10))

    def swept() -> tuple[str, int]:
        settings = Settings(database_url=ferryman_database_url, email=by_smtp(server))
        service = courier_service(own, settings)
        with suppress(Unreachable):
            service.drain(threading.Event(), lambda _: None)
        state = mail(ferryman_db)
        ferryman_db.execute(EXPIRE)
        return state

    with MailServer(lambda _: "421 4.3.2 shutting down") as server:
        assert [swept() for _ in during] == during
        server.answer = lambda _: ACCEPTED
        assert swept() == after
    assert server.commands.count("DATA") == (LIMIT if during == BURNED else len(during) + 1)
