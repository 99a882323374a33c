"""ChancePay to the letter, on a real database: a request and its outbox row, and nothing that asks again."""

from collections.abc import Iterator
from uuid import uuid4

import psycopg
import pytest

from ferryman import Misconfigured, Permanent, use_schemas
from ferryman.cli.wiring import with_literal_outbox
from ferryman.relay.described.store import open_table
from ferryman.runtime.settings import Settings
from ferryman.schemas import active
from ferryman.services.payments.requests import AnotherRequest
from ferryman.services.payments.rules import Rules
from ferryman.services.payments.service import payments, rules_of
from ferryman.services.payments.store import Request
from ferryman.services.payments.telling import Told, tell
from ferryman.testing import house
from support.paying import Database, Desk

LITERAL = Settings.model_validate({"payments": {"mode": "literal"}})


@pytest.fixture
def desk(ferryman_database_url: str, ferryman_db: Database) -> Iterator[Desk]:
    house.migrate(ferryman_database_url)
    yield Desk(ferryman_db, use_schemas(), rules_of(LITERAL))
    active.forget()


def queued(desk: Desk) -> list[tuple[object, ...]]:
    return desk.db.execute("SELECT uuid, topic, key, type, status, try_count FROM payments.outbox").fetchall()


def test_the_request_and_the_outbox_row_are_one_transaction(desk: Desk) -> None:
    """Section 1: as long as you hold the uuid, there is a request, and the outbox retains the order."""
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
    """Section 6: no timeout ever looks at it."""
    asked = desk.request()
    assert desk.db.execute("SELECT due_at = 'infinity' FROM payments.requests").fetchone() == (True,)
    with desk.db.transaction():
        assert desk.sagas.due(desk.db) == []
    assert desk.stands(asked) == ("DEDUCTING", "PENDING", None)


@pytest.mark.parametrize("status", ["SUCCEEDED", "FAILED"])
def test_what_became_of_a_payment_is_told_to_nobody_by_kafka(desk: Desk, status: str) -> None:
    asked = desk.request()
    with desk.db.transaction():
        tell(desk.db, asked.uuid, Told(status, "UNKNOWN"), sagas=desk.sagas, rules=desk.rules, headers={})
    assert desk.stands(asked)[0] == status
    assert desk.db.execute("SELECT count(*) FROM ferryman.outbox").fetchone() == (0,)


def test_in_the_saga_mode_a_timeout_looks_at_it_and_the_journal_has_the_message(desk: Desk) -> None:
    desk.rules = Rules()
    asked = desk.request()
    assert queued(desk) == []
    assert desk.late(asked) == 1


def test_what_must_be_fulfilled_is_refused_and_nothing_is_recorded(desk: Desk) -> None:
    with pytest.raises(Permanent, match="literal mode does not do"):
        desk.request(fulfil=True)
    assert desk.db.execute("SELECT count(*) FROM payments.requests").fetchone() == (0,)


def test_a_payment_of_the_saga_mode_that_is_asked_for_again_is_answered_as_it_stands(desk: Desk) -> None:
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


def test_the_relay_sends_the_outbox_without_another_word_of_configuration(
    desk: Desk, ferryman_database_url: str
) -> None:
    settings = with_literal_outbox(LITERAL)
    outbox = settings.outbox["payments"]
    with psycopg.connect(ferryman_database_url, autocommit=True) as relay:
        relay.execute("SET ROLE ferryman_relay")
        desk.request()
        [row] = open_table(relay, "payments", outbox, settings.database).claim(relay, 10)
    assert (row.attempts, row.entry.type) == (1, "wallet.deduct")
    assert with_literal_outbox(settings) is settings
    assert with_literal_outbox(Settings()).outbox == {}
