"""Archived payments: their uuids are never free again, and the clients' own words are deleted."""

import threading
from collections.abc import Sequence
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from ferryman.services.payments import store
from ferryman.services.payments.store import Archived, RecordedPayment, Request
from support.paying import Desk, succeeded
from support.published import poll_until

Database = psycopg.Connection[tuple[Any, ...]]


@pytest.mark.parametrize("another", [{}, {"amount": 501}, {"reference": None}, {"wallet_id": uuid4()}])
@pytest.mark.parametrize("with_others", [False, True])
def test_a_repeated_archived_payment_is_refused(desk: Desk, another: dict[str, Any], with_others: bool) -> None:
    """N5: the wallet would answer for the first payment, and a timeout would give back its amount."""
    asked = desk.request(reference="Invoice 17")
    desk.apply(succeeded(asked))
    archive(desk.db)
    assert desk.db.execute("SELECT count(*) FROM payments.reference").fetchone() == (0,)
    others = [Request(uuid4(), uuid4(), 1, "EUR")] if with_others else []
    with pytest.raises(Archived, match=f"the payment {asked.uuid} is over: it SUCCEEDED, and was archived at 20"):
        desk.record(asked._replace(**another), *others)
    assert desk.db.execute("SELECT count(*) FROM payments.requests").fetchone() == (0,)
    assert desk.kinds(asked) == ["wallet.deduct", "payment.requested", "payment.succeeded"]


def test_a_payment_repeated_while_it_is_archived_is_refused(desk: Desk, ferryman_database_url: str) -> None:
    asked = desk.request()
    desk.apply(succeeded(asked))
    refused = list[Exception]()

    def again() -> None:
        with psycopg.connect(ferryman_database_url) as db:
            try:
                Desk(db, desk.codecs).record(asked)
            except Archived as error:
                refused.append(error)

    client = threading.Thread(target=again)
    with desk.db.transaction():
        archive(desk.db)
        client.start()
        poll_until(lambda: waiting(ferryman_database_url), "client that waits for the archive")
    client.join(10)
    assert len(refused) == 1
    assert desk.db.execute("SELECT count(*) FROM payments.requests").fetchone() == (0,)


@pytest.mark.parametrize("with_others", [False, True])
def test_a_payment_archived_between_two_reads_is_refused(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, ferryman_database_url: str, with_others: bool
) -> None:
    """The payment exists when it is to be recorded, but not when its state is read."""
    asked = desk.request()
    desk.apply(succeeded(asked))
    found = store.find

    def find(db: Database, uuids: Sequence[UUID]) -> dict[UUID, RecordedPayment]:
        with psycopg.connect(ferryman_database_url) as another:
            archive(another)
        return found(db, uuids)

    monkeypatch.setattr(store, "find", find)
    others = [Request(uuid4(), uuid4(), 1, "EUR")] if with_others else []
    with pytest.raises(Archived, match=str(asked.uuid)):
        desk.record(asked, *others)
    assert desk.db.execute("SELECT count(*) FROM payments.requests").fetchone() == (0,)


def archive(db: Database) -> None:
    assert len(db.execute("SELECT payments.archive(now() + '1 s', 'ada', 'kept elsewhere')").fetchall()) == 1


def waiting(url: str) -> bool:
    with psycopg.connect(url) as db:
        row = db.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        ).fetchone()
    return row == (1,)


@pytest.mark.parametrize("many", [1, 2])
def test_a_leftover_reference_does_not_prevent_recording(desk: Desk, many: int) -> None:
    asked = [Request(uuid4(), uuid4(), 500, "EUR", reference="Invoice 17") for _ in range(many)]
    for each in asked:
        desk.db.execute("INSERT INTO payments.reference VALUES (%s, 'of another')", (each.uuid,))
    desk.record(*asked)
    assert [each.request for each in desk.record(*asked)] == asked
