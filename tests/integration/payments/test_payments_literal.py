"""The literal mode on a real database: a request and its outbox row, and no timeout."""

import threading
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from ferryman import Misconfigured, Permanent, use_schemas
from ferryman.cli.wiring import settings_class, with_outboxes
from ferryman.relay.described.service import DescribedOutbox
from ferryman.relay.described.table import open_table
from ferryman.relay.service import JournalRelay
from ferryman.schemas import active
from ferryman.services.payments.bodies import Result
from ferryman.services.payments.requests import AnotherRequest
from ferryman.services.payments.rules import Rules
from ferryman.services.payments.service import payments, rules_of, tell
from ferryman.services.payments.store import Request
from ferryman.testing import stack
from support.paying import Database, Desk

LITERAL = settings_class().model_validate({"payments": {"mode": "literal"}})


@pytest.fixture
def desk(ferryman_database_url: str, ferryman_db: Database) -> Iterator[Desk]:
    stack.migrate(ferryman_database_url)
    yield Desk(ferryman_db, use_schemas(), rules_of(LITERAL))
    active.forget()


def queued(desk: Desk) -> list[tuple[object, ...]]:
    return desk.db.execute("SELECT uuid, topic, key, type, status, try_count FROM payments.outbox").fetchall()


def test_the_request_and_the_outbox_row_are_one_transaction(desk: Desk) -> None:
    """Section 1: a uuid always has a request, and the outbox keeps the order."""
    asked = Request(uuid4(), uuid4(), 500, "EUR")
    [recorded] = desk.record(asked)
    assert recorded.status == "PENDING"
    wallet = str(asked.wallet_id)
    assert queued(desk) == [(asked.uuid, "payments.commands", wallet, "wallet.deduct", "PENDING", 0)]
    [(payload, content_type)] = desk.db.execute("SELECT payload, content_type FROM payments.outbox").fetchall()
    codec = desk.codecs.of("wallet.deduct")
    assert codec is not None
    assert codec.decode(payload)["request_id"] == asked.uuid
    assert content_type
    with desk.db.transaction(force_rollback=True):
        desk.request()
    assert len(queued(desk)) == 1
    assert desk.db.execute("SELECT count(*) FROM payments.requests").fetchone() == (1,)
    assert desk.db.execute("SELECT count(*) FROM ferryman.outbox").fetchone() == (0,)


def test_a_request_that_comes_again_is_queued_once(desk: Desk) -> None:
    asked = Request(uuid4(), uuid4(), 500, "EUR")
    desk.record(asked)
    desk.record(asked, asked)
    assert len(queued(desk)) == 1


def test_a_request_may_remain_pending_forever(desk: Desk) -> None:
    """Section 6: it has no timeout."""
    asked = desk.request()
    assert desk.db.execute("SELECT due_at = 'infinity' FROM payments.requests").fetchone() == (True,)
    with desk.db.transaction():
        assert desk.sagas.due(desk.db) == []
    assert desk.stands(asked) == ("DEDUCTING", "PENDING", None)


@pytest.mark.parametrize("status", ["SUCCEEDED", "FAILED"])
def test_the_literal_mode_publishes_no_results(desk: Desk, status: str) -> None:
    asked = desk.request()
    with desk.db.transaction():
        told = Result.model_validate({"status": status, "reason": "UNKNOWN"})
        tell(desk.db, asked.uuid, told, rules=desk.rules, headers={})
    assert desk.stands(asked)[0] == status
    assert desk.db.execute("SELECT count(*) FROM ferryman.outbox").fetchone() == (0,)


def test_in_the_saga_mode_a_payment_times_out_and_uses_the_journal(desk: Desk) -> None:
    desk.rules = Rules()
    asked = desk.request()
    assert queued(desk) == []
    assert desk.late(asked) == 1


def test_fulfilment_is_refused_and_nothing_is_recorded(desk: Desk) -> None:
    with pytest.raises(Permanent, match="literal mode does not do"):
        desk.request(fulfil=True)
    assert desk.db.execute("SELECT count(*) FROM payments.requests").fetchone() == (0,)


def test_a_repeated_payment_of_the_saga_mode_is_answered_with_its_state(desk: Desk) -> None:
    """Both modes may be in one database."""
    saga = Desk(desk.db, desk.codecs)
    asked = saga.request(fulfil=True)
    [found] = desk.record(asked)
    assert (found.status, found.request) == ("PENDING", asked)
    with pytest.raises(AnotherRequest):
        desk.record(asked._replace(amount=501))
    assert queued(desk) == []


def test_there_is_nothing_to_run_for_payments() -> None:
    with pytest.raises(Misconfigured, match="wallet-literal"):
        payments(LITERAL)


def test_the_relay_sends_the_literal_outbox_without_configuration(desk: Desk, ferryman_database_url: str) -> None:
    settings = with_outboxes(LITERAL)
    outbox = settings.outbox["payments"]
    with psycopg.connect(ferryman_database_url, autocommit=True) as relay:
        relay.execute("SET ROLE ferryman_relay")
        desk.request()
        [row] = open_table(relay, "payments", outbox, settings.database).claim(10)
    assert (row.attempts, row.type) == (1, "wallet.deduct")
    assert with_outboxes(settings) is settings
    assert "payments" not in with_outboxes(settings_class()()).outbox


def shipped(url: str, **more: Any) -> DescribedOutbox:
    """Return the relay's service of the literal outbox as it is shipped. Kafka is away."""
    kafka = {"bootstrap_servers": "127.0.0.1:9", "timeout_seconds": 0.5}
    given = {"payments": {"mode": "literal"}, "kafka": kafka, "relay": {"deadline_seconds": 2}, "database_url": url}
    settings = with_outboxes(settings_class().model_validate(given | more))
    [outbox] = JournalRelay(settings).described
    return outbox


def test_kafkas_absence_uses_up_the_five_attempts_of_a_message(desk: Desk, ferryman_database_url: str) -> None:
    """Section 2, with the description that is shipped: the row stays PENDING, and is never claimed again."""
    asked, outbox = desk.request(), shipped(ferryman_database_url)
    with outbox.opened() as table:
        for attempt in range(1, 6):
            desk.db.execute("UPDATE payments.outbox SET last_attempt_at = now() - interval '1 h'")
            outbox.lost_at = float("inf")
            assert outbox.run_once(table, threading.Event()).failed == 1
            assert queued(desk)[0][4:] == ("PENDING", attempt)
        desk.db.execute("UPDATE payments.outbox SET last_attempt_at = now() - interval '1 h'")
        assert outbox.run_once(table, threading.Event()).quiet
    assert desk.stands(asked)[1] == "PENDING"


@pytest.mark.parametrize("names", [["payments"], ["payments", "wallet"]])
def test_a_relay_source_may_be_called_payments(desk: Desk, ferryman_database_url: str, names: list[str]) -> None:
    """The outbox is in it, and the metrics of the journal and of the outbox stay apart."""
    sources = {name: {"database_url": ferryman_database_url} for name in names}
    outbox = shipped("", relay={"sources": sources}, database_url=None)
    assert (outbox.source.name, outbox.label) == ("payments", "payments.outbox")
    desk.request()
    with outbox.opened() as table:
        assert len(table.claim(10)) == 1
