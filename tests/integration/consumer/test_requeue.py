"""Requeues and discards of rejected messages."""

import json
from collections.abc import Iterator
from typing import Any
from uuid import UUID, uuid4

import pytest

from ferryman.consumer.admin import requeue
from ferryman.consumer.admin.message_story import look
from ferryman.consumer.admin.messages import SelectedMessages
from ferryman.consumer.model import Record
from ferryman.consumer.store import rejected as store
from ferryman.consumer.store.consumers import count_rejected
from ferryman.consumer.wire import headers_from_base64, identity, type_of
from ferryman.relay.kafka import record_headers as published_headers
from ferryman.relay.model import Entry
from ferryman.runtime.desk import Desk
from ferryman.runtime.errors import FerrymanError, Transient
from support.inboxes import (
    ACT,
    ALL,
    JSON,
    Database,
    appended,
    handled,
    one,
    opened,
    planned,
    record,
    rejected,
    requeued,
    seen,
    statuses,
)


@pytest.fixture
def desk(ferryman_database_url: str) -> Iterator[Desk]:
    made = opened(ferryman_database_url)
    yield made
    made.connection.close()


def test_a_requeue_reopens_the_receipt_and_appends_the_same_message(ferryman_db: Database, desk: Desk) -> None:
    first = record(7, traceparent=b"00-1", x__own=b"mine", empty=None)
    rejected(ferryman_db, first)
    plan = planned(desk, ALL)
    assert (plan.messages, plan.by_code, plan.topics) == (1, {"BUG": 1}, {"payments.retry.wallet": "payments"})
    assert statuses(ferryman_db) == [("REJECTED", "REJECTED")]
    assert requeued(desk, ALL).messages == 1
    assert statuses(ferryman_db) == [("REOPENED", "REQUEUED")]
    [(id_, topic, key, kind, payload, headers, content_type)] = appended(ferryman_db)
    assert (id_, topic, key, kind) == (identity(first), "payments.retry.wallet", "k", "payment")
    assert (bytes(payload), content_type) == (first.value, "application/json")
    assert headers == {"traceparent": "00-1", "x-own": "mine", "empty": "", "x-requeued-from": "payments/0/7"}
    rows = ferryman_db.execute("SELECT act, who, reason, filter, entries FROM ferryman.outbox_audit").fetchall()
    assert rows == [("requeue", "ann@desk", "because", {"consumer": "wallet"}, 1)]


def test_a_requeued_message_takes_effect_once_however_often_it_then_comes(ferryman_db: Database, desk: Desk) -> None:
    """N5, N6: it is one message at its own place and in the retry topic."""
    original = record(7)
    rejected(ferryman_db, original)
    requeued(desk, ALL)
    again_ = original._replace(topic="payments.retry.wallet", offset=0)
    handled(ferryman_db, again_)
    handled(ferryman_db, original, again_)
    assert one(ferryman_db, "SELECT outcome FROM ferryman.inbox") == "DONE"
    assert one(ferryman_db, "SELECT count(DISTINCT id) FROM ferryman.outbox WHERE topic = 'results'") == 1
    assert "it took effect, after it had been rejected and requeued" in seen(desk, identity(original)).story.reason


@pytest.mark.parametrize("foreign", [True, False])
def test_a_requeued_message_is_published_with_the_id_of_its_receipt(
    ferryman_db: Database, desk: Desk, foreign: bool
) -> None:
    """This holds for a foreign message too, whose id was derived from its ce_source and ce_id."""
    ids: dict[str, Any] = (
        {"ce_id": b"order-17", "ce_source": b"/shop", "ce_time": b"2026-01-01T00:00:00Z"} if foreign else {}
    )
    original = record(7, **ids)
    rejected(ferryman_db, original)
    requeued(desk, ALL)
    [(id_, topic, key, kind, payload, headers, content_type)] = appended(ferryman_db)
    entry = Entry(1, str(id_), topic, key, kind, bytes(payload), json.dumps(headers), content_type, 0, len(payload))
    sent = [(name, str(text).encode()) for name, text in published_headers(entry, "/wallet")]
    came = Record(topic, 0, 0, key.encode(), bytes(payload), list(sent), 0)
    assert identity(came) == identity(original)
    assert type_of(came) == "payment"
    if foreign:
        assert headers["x-original-ce_id"] == "order-17"
        assert headers["x-original-ce_source"] == "/shop"
    handled(ferryman_db, came)
    assert one(ferryman_db, "SELECT outcome FROM ferryman.inbox") == "DONE"


def test_a_message_rejected_again_keeps_its_retry_topic_and_first_place(ferryman_db: Database, desk: Desk) -> None:
    original = record(7, ce_id=b"order-17", ce_source=b"/shop")
    rejected(ferryman_db, original)
    requeued(desk, ALL)
    came = original._replace(
        topic="payments.retry.wallet", offset=3,
        headers=[("ce_id", str(identity(original)).encode()), ("ce_type", b"payment"), ("ce_source", b"/wallet"),
                 ("content-type", JSON), ("x-requeued-from", b"payments/0/7"), ("x-original-ce_source", b"/shop")],
    )  # fmt: skip
    rejected(ferryman_db, came)
    assert statuses(ferryman_db) == [("REJECTED", "REQUEUED"), ("REJECTED", "REJECTED")]
    requeued(desk, ALL)
    second = appended(ferryman_db)[-1]
    assert second[1] == "payments.retry.wallet"
    assert second[5] == {"x-requeued-from": "payments/0/7", "x-original-ce_source": "/shop"}


def test_a_rehearsal_of_a_requeue_changes_nothing(ferryman_db: Database, desk: Desk) -> None:
    rejected(ferryman_db, record(1, key=b"\xff"), code="BAD_KEY")
    rejected(ferryman_db, record(7))
    requeue.rehearse(desk, ALL, ACT)
    assert statuses(ferryman_db) == [("REJECTED", "REJECTED")] * 2
    assert appended(ferryman_db) == []
    assert one(ferryman_db, "SELECT count(*) FROM ferryman.outbox_audit") == 0


def test_of_two_requeues_of_a_message_the_first_wins(ferryman_db: Database, desk: Desk) -> None:
    rejected(ferryman_db, record(7))
    assert requeued(desk, ALL).messages == 1
    assert requeued(desk, ALL).messages == 0
    assert len(appended(ferryman_db)) == 1


def test_a_decision_made_in_between_leaves_no_requeue_half_done(
    ferryman_db: Database, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    rejected(ferryman_db, record(7))
    reopen = store.reopen

    def late(connection: Database, consumer: str, ids: Any) -> set[UUID]:
        ferryman_db.execute("UPDATE ferryman.inbox_rejected SET status = 'REQUEUED'")
        return reopen(connection, consumer, ids)

    monkeypatch.setattr(store, "reopen", late)
    with pytest.raises(Transient, match="somebody else decided"):
        requeued(desk, ALL)
    assert statuses(ferryman_db) == [("REJECTED", "REQUEUED")]
    assert appended(ferryman_db) == []


def test_a_receipt_that_is_handled_is_not_reopened(ferryman_db: Database, desk: Desk) -> None:
    rejected(ferryman_db, record(7))
    ferryman_db.execute("UPDATE ferryman.inbox SET status = 'HANDLED', outcome = 'DONE'")
    done = requeued(desk, ALL)
    assert done.messages == 0
    assert "its receipt is not REJECTED any more" in str(done.refused)
    assert statuses(ferryman_db) == [("HANDLED", "REJECTED")]


UNFIT = {
    "no text": (record(1, key=b"\xff"), "BAD_KEY", "its key is not UTF-8 text"),
    "null byte": (record(2, key=b"a\0b"), "BAD_KEY", "its key is not UTF-8 text"),
    "header's name": (record(10), "BAD_HEADER", "its headers could not be read"),
    "tombstone": (record(3, None), "NO_VALUE", "a tombstone is not a message"),
    "conflict": (record(4), "CONFLICT", "another message has its id"),
    "header": (record(5, x__own=b"\xff"), "BUG", "its header x-own is not UTF-8 text"),
    "headers": (record(6, x__own=b"x" * 40_000), "BUG", "its headers have more than 30000 bytes"),
    "key": (record(7, key=b"k" * 3000), "BUG", "its key has 3000 bytes"),
    "value": (record(8, b"x" * 1_000_001), "BUG", "its payload has 1000001 bytes, and 1000000 is the most"),
    "long type": (record(11, ce_type=b"t" * 300), "UNKNOWN_TYPE", "its type must have 1 to 255 characters"),
    "type": (record(9, ce_type=b""), "UNKNOWN_TYPE", "its type must have 1 to 255 characters"),
}


@pytest.mark.parametrize("what", UNFIT)
def test_a_message_that_the_outbox_cannot_hold_is_refused_with_the_reason(
    ferryman_db: Database, desk: Desk, what: str
) -> None:
    bad, code, why = UNFIT[what]
    rejected(ferryman_db, bad, code=code)
    rejected(ferryman_db, record(100))
    plan = planned(desk, ALL)
    assert plan.messages == 1
    assert [why in each for each in plan.refused] == [True]
    assert requeued(desk, ALL).messages == 1
    story = seen(desk, ("payments", 0, bad.offset)).story
    assert why in story.reason
    assert story.next == f"ferryman inbox discard --id payments/0/{bad.offset} --consumer wallet"


def test_a_requeue_keeps_the_order_of_offsets_and_commits_whole_chunks(
    ferryman_db: Database, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requeue, "CHUNK", 3)
    rejected(ferryman_db, *(record(n) for n in (5, 3, 8, 1, 9, 2, 7)))
    assert requeued(desk, ALL).messages == 7
    places = [each[5]["x-requeued-from"] for each in appended(ferryman_db)]
    assert places == [f"payments/0/{n}" for n in (1, 2, 3, 5, 7, 8, 9)]
    assert one(ferryman_db, "SELECT array_agg(entries::integer ORDER BY id) FROM ferryman.outbox_audit") == [3, 3, 1]


def test_large_values_make_smaller_chunks(ferryman_db: Database, desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requeue, "_MOST_BYTES", 250)
    rejected(ferryman_db, *(record(n, b"x" * 100) for n in range(5)))
    assert requeued(desk, ALL).messages == 5
    assert one(ferryman_db, "SELECT array_agg(entries::integer ORDER BY id) FROM ferryman.outbox_audit") == [2, 2, 1]


@pytest.mark.parametrize(
    ("asked", "offsets"),
    [
        (SelectedMessages("wallet", codes=("BUG",)), [1, 2]),
        (SelectedMessages("wallet", codes=("BUG", "KILLER")), [1, 2, 3]),
        (SelectedMessages("wallet", topic="others"), [4]),
        (SelectedMessages("wallet", type="refund"), [5]),
        (SelectedMessages("wallet", places=(("payments", 0, 3), ("others", 0, 4))), [3, 4]),
        (SelectedMessages("wallet", ids=(uuid4(),)), []),
        (SelectedMessages("books"), []),
    ],
)
def test_only_selected_messages_are_requeued(
    ferryman_db: Database, desk: Desk, asked: SelectedMessages, offsets: list[int]
) -> None:
    rejected(ferryman_db, record(1), record(2))
    rejected(ferryman_db, record(3), code="KILLER")
    rejected(ferryman_db, record(4, topic="others"), record(5, ce_type=b"refund"), code="UNREADABLE")
    assert planned(desk, asked).messages == len(offsets)
    requeued(desk, asked)
    assert sorted(int(each[5]["x-requeued-from"].rpartition("/")[2]) for each in appended(ferryman_db)) == offsets


def test_a_discarded_message_has_no_effect_and_can_be_requeued_by_id(ferryman_db: Database, desk: Desk) -> None:
    original = record(7)
    rejected(ferryman_db, original, record(8))
    this = SelectedMessages("wallet", ids=(identity(original),))
    assert requeue.plan_discard(desk, this) == {"BUG": 1}
    assert requeue.discard(desk, this, ACT) == 1
    assert statuses(ferryman_db) == [("REJECTED", "DISCARDED"), ("REJECTED", "REJECTED")]
    handled(ferryman_db, original)
    assert one(ferryman_db, "SELECT count(*) FROM ferryman.inbox WHERE status = 'HANDLED'") == 0
    assert "DISCARDED by ann@desk" in seen(desk, identity(original)).story.reason
    assert requeue.discard(desk, this, ACT) == 0
    assert requeued(desk, ALL).messages == 1
    assert requeued(desk, this).messages == 1
    assert [each for each, in ferryman_db.execute("SELECT act FROM ferryman.outbox_audit ORDER BY id")] == [
        "discard", "requeue", "requeue",
    ]  # fmt: skip


def test_a_rejected_record_keeps_its_headers_as_kafka_had_them(ferryman_db: Database, desk: Desk) -> None:
    rejected(ferryman_db, record(7, x__own=b"\xff", empty=None))
    [only] = requeue.named(desk, ALL)
    assert dict(headers_from_base64(only.headers))["x-own"] == b"\xff"
    assert dict(headers_from_base64(only.headers))["empty"] is None


@pytest.mark.parametrize("most", [1000, 10_000, 1_000_000])
def test_rejecting_never_fails_whatever_the_outbox_takes(ferryman_db: Database, desk: Desk, most: int) -> None:
    """N9, N10: each process that read such a record ended, and its successors too."""
    ferryman_db.execute("UPDATE ferryman.outbox_state SET max_payload_bytes = %s", (most,))
    rejected(ferryman_db, record(1, ce_type="\u5b57".encode() * 200_000), code="UNKNOWN_TYPE")
    long: dict[str, Any] = {"\u5b57" * 70_000: b"x"}
    rejected(ferryman_db, record(2, b"x" * 490_000, **long))
    rejected(ferryman_db, record(3, b"x" * 900_000))
    assert len(requeue.named(desk, ALL)) == 3
    letters = ferryman_db.execute("SELECT octet_length(payload), type FROM ferryman.outbox").fetchall()
    assert [kind for size, kind in letters if size <= most] == ["ferryman.dead-letter"] * 3


def test_a_discarded_conflict_stays_discarded_when_it_comes_again(ferryman_db: Database, desk: Desk) -> None:
    first = record(7)
    other = first._replace(offset=8, value=b'{"amount": 2}')
    handled(ferryman_db, first, other)
    assert requeue.discard(desk, ALL, ACT) == 1
    handled(ferryman_db, other)
    assert statuses(ferryman_db) == [("HANDLED", "DISCARDED")]


def test_a_message_rejected_again_at_its_place_waits_again(ferryman_db: Database, desk: Desk) -> None:
    original = record(7)
    rejected(ferryman_db, original)
    requeued(desk, ALL)
    rejected(ferryman_db, original)
    assert statuses(ferryman_db) == [("REJECTED", "REJECTED")]
    assert one(ferryman_db, "SELECT who FROM ferryman.inbox_rejected") is None
    assert requeued(desk, ALL).messages == 1


def test_messages_of_a_topic_made_anew_wait_beside_those_of_the_old_one(
    ferryman_db: Database, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old ones were overwritten: they waited no more, and nobody was told."""
    monkeypatch.setattr(requeue, "CHUNK", 1)
    old = [record(n, f'{{"amount": {n}}}'.encode()) for n in range(3)]
    new = [record(n, f'{{"amount": 1{n}}}'.encode()) for n in range(2)]
    rejected(ferryman_db, *old)
    rejected(ferryman_db, *new)
    assert count_rejected(ferryman_db, "wallet") == 5
    assert requeued(desk, ALL).messages == 5
    sent = {each[0]: bytes(each[4]) for each in appended(ferryman_db)}
    assert sent == {identity(each): each.value for each in (*old, *new)}


def test_a_place_that_several_records_had_is_refused_with_their_ids(ferryman_db: Database, desk: Desk) -> None:
    old, new = record(0), record(0)
    rejected(ferryman_db, old)
    rejected(ferryman_db, new, record(1))
    there = SelectedMessages("wallet", places=(("payments", 0, 0), ("payments", 0, 1)))
    with pytest.raises(FerrymanError, match="payments/0/0 is the place of 2 rejected records") as refused:
        requeue.named(desk, there)
    assert all(f"{identity(each)} (BUG, REJECTED)" in str(refused.value) for each in (old, new))
    this = SelectedMessages("wallet", ids=(identity(old),))
    assert seen(desk, identity(old)).story.next == (
        f"mend the cause, then ferryman inbox requeue --id {identity(old)} --code BUG --consumer wallet   or   "
        f"ferryman inbox discard --id {identity(old)} --code BUG --consumer wallet"
    )
    assert requeue.discard(desk, this, ACT) == 1
    with pytest.raises(FerrymanError, match=rf"{identity(old)} \(BUG, DISCARDED\)"):
        requeue.named(desk, there)
    assert [each.id for each in requeue.named(desk, this)] == [identity(old)]
    found = look(desk, ("payments", 0, 0), None, payload=True, seconds=10).seen
    assert {each.known.records[0]["id"]: each.values for each in found} == {
        identity(old): [old.value], identity(new): [new.value],
    }  # fmt: skip


def test_a_conflict_at_the_place_of_its_own_message_is_kept_beside_it(ferryman_db: Database, desk: Desk) -> None:
    """A topic is made anew, and its writer sends the mended message again: with the same id, to the same place."""
    first = record(0)
    rejected(ferryman_db, first)
    handled(ferryman_db, first._replace(value=b'{"amount": 2}'))
    assert sorted(each.code for each in requeue.named(desk, ALL)) == ["BUG", "CONFLICT"]
    story = seen(desk, identity(first)).story
    assert story.next == f"ferryman inbox discard --id {identity(first)} --code CONFLICT --consumer wallet"
    conflict = SelectedMessages("wallet", ids=(identity(first),), codes=("CONFLICT",))
    assert requeue.discard(desk, conflict, ACT) == 1
    assert requeued(desk, ALL).messages == 1
    assert bytes(appended(ferryman_db)[0][4]) == first.value
