"""What people do to consumers by hand, on states that are made here: standings, lists, stories, requeues, discards."""

import json
from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg import conninfo

from ferryman import Consumer, Done, Message, Received, Refused
from ferryman.consumer.decoding import decode, identity, poison_of, type_of
from ferryman.consumer.face import Plain
from ferryman.consumer.model import Record
from ferryman.consumer.operator import again, discard, listing, pausing, requeue, standing
from ferryman.consumer.operator.listing import STATUSES, Filter
from ferryman.consumer.operator.looking import Seen, look
from ferryman.consumer.operator.selection import Selection
from ferryman.consumer.store import acts
from ferryman.consumer.store import listing as store
from ferryman.consumer.transaction import BatchTransaction, Item
from ferryman.relay.model import Entry
from ferryman.relay.record import headers as published_headers
from ferryman.runtime.desk import Act, Desk
from ferryman.runtime.errors import FerrymanError, Transient
from ferryman.runtime.settings import Database as Limits

Database = psycopg.Connection[tuple[Any, ...]]
ACT = Act("ann@desk", "because")
JSON = b"application/json"

wallet = Consumer("wallet", topics=["payments"])


@wallet.handles("payment")
def handle(_db: Database, payment: Received) -> Done | Refused:
    if payment.data["amount"] > 100:
        return Refused("INSUFFICIENT_FUNDS", Message("payment.failed", {}, key=payment.key, topic="results"))
    return Done(Message("payment.succeeded", {}, key=payment.key, topic="results"))


def record(
    offset: int, value: bytes | None = b'{"amount": 1}', *, topic: str = "payments", key: bytes | None = b"k",
    **headers: bytes | None,
) -> Record:  # fmt: skip
    given: dict[str, bytes | None] = {"ce_id": str(uuid4()).encode(), "ce_type": b"payment", "content-type": JSON}
    given |= {name.replace("__", "-"): text for name, text in headers.items()}
    return Record(topic, 0, offset, key, value, list(given.items()), 0)


def handled(db: Database, *records: Record, consumer: Consumer = wallet) -> None:
    """As the consumer's loop does it."""
    transact(db, *(decode(each, "payment") for each in records), consumer=consumer)


def rejected(db: Database, *records: Record, code: str = "BUG", consumer: Consumer = wallet) -> None:
    transact(db, *(poison_of(each, code, "a bug") for each in records), consumer=consumer)


def transact(db: Database, *items: Item, consumer: Consumer = wallet) -> None:
    BatchTransaction(consumer, db, Plain(db), items).run()


def one(db: Database, query: str, *parameters: Any) -> Any:
    row = db.execute(query, parameters).fetchone()
    assert row is not None
    return row[0]


def statuses(db: Database) -> list[tuple[str, str]]:
    """Of each message, its receipt's and its record's."""
    return db.execute(
        "SELECT i.status, r.status FROM ferryman.inbox_rejected r LEFT JOIN ferryman.inbox i USING (consumer, id) "
        'ORDER BY r.topic, r."offset"'
    ).fetchall()


def appended(db: Database) -> list[tuple[Any, ...]]:
    return db.execute(
        "SELECT id, topic, key, type, payload, headers, content_type FROM ferryman.outbox "
        "WHERE topic LIKE '%.retry.%' ORDER BY position"
    ).fetchall()


def requeued(desk: Desk, selection: Selection) -> requeue.Progress:
    done = requeue.Progress()
    requeue.requeue(desk, selection, ACT, done)
    return done


def seen(desk: Desk, reference: UUID | tuple[str, int, int], **how: Any) -> Seen:
    found = look(desk, reference, None, seconds=10, **{"payload": False, **how})
    assert found.complete
    [only] = found.seen
    return only


def opened(url: str) -> Desk:
    return Desk(psycopg.connect(url, autocommit=True, prepare_threshold=None), Limits())


@pytest.fixture
def desk(ferryman_database_url: str) -> Iterator[Desk]:
    made = opened(ferryman_database_url)
    yield made
    made.connection.close()


ALL = Selection("wallet")


def test_a_requeue_reopens_the_receipt_and_appends_the_same_message_for_its_consumer_alone(
    ferryman_db: Database, desk: Desk
) -> None:
    first = record(7, traceparent=b"00-1", x__own=b"mine", empty=None)
    rejected(ferryman_db, first)
    plan = requeue.plan(desk, ALL)
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


def test_what_is_requeued_takes_effect_once_however_often_it_then_comes(ferryman_db: Database, desk: Desk) -> None:
    """N5, N6: at its own place and in the retry topic, it is one message."""
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
def test_what_the_relay_publishes_of_it_has_the_identity_of_its_receipt(
    ferryman_db: Database, desk: Desk, foreign: bool
) -> None:
    """Also of a foreign message, whose id followed from its ce_source and ce_id."""
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


def test_what_is_rejected_again_goes_to_the_same_retry_topic_and_tells_where_it_first_stood(
    ferryman_db: Database, desk: Desk
) -> None:
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


def test_a_message_is_requeued_once_by_whoever_comes_first(ferryman_db: Database, desk: Desk) -> None:
    rejected(ferryman_db, record(7))
    assert requeued(desk, ALL).messages == 1
    assert requeued(desk, ALL).messages == 0
    assert len(appended(ferryman_db)) == 1


def test_who_decides_in_between_leaves_nothing_half_done(
    ferryman_db: Database, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    rejected(ferryman_db, record(7))
    reopen = acts.reopen

    def late(connection: Database, consumer: str, ids: Any) -> set[UUID]:
        ferryman_db.execute("UPDATE ferryman.inbox_rejected SET status = 'REQUEUED'")
        return reopen(connection, consumer, ids)

    monkeypatch.setattr(acts, "reopen", late)
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
    "no text": (record(1, key=b"\xff"), "BAD_KEY", "its key is no text"),
    "null byte": (record(2, key=b"a\0b"), "BAD_KEY", "its key is no text"),
    "header's name": (record(10), "BAD_HEADER", "its headers could not be read"),
    "tombstone": (record(3, None), "NO_VALUE", "a tombstone is no message"),
    "conflict": (record(4), "CONFLICT", "another message has its id"),
    "header": (record(5, x__own=b"\xff"), "BUG", "its header x-own is no text"),
    "headers": (record(6, x__own=b"x" * 40_000), "BUG", "its headers have more than 30000 bytes"),
    "key": (record(7, key=b"k" * 3000), "BUG", "its key has 3000 bytes"),
    "value": (record(8, b"x" * 1_000_001), "BUG", "its payload has 1000001 bytes, and 1000000 is the most"),
    "long type": (record(11, ce_type=b"t" * 300), "UNKNOWN_TYPE", "its type must have 1 to 255 characters"),
    "type": (record(9, ce_type=b""), "UNKNOWN_TYPE", "its type must have 1 to 255 characters"),
}


@pytest.mark.parametrize("what", UNFIT)
def test_what_the_outbox_cannot_hold_is_not_requeued_and_is_told_why(
    ferryman_db: Database, desk: Desk, what: str
) -> None:
    bad, code, why = UNFIT[what]
    rejected(ferryman_db, bad, code=code)
    rejected(ferryman_db, record(100))
    plan = requeue.plan(desk, ALL)
    assert plan.messages == 1
    assert [why in each for each in plan.refused] == [True]
    assert requeued(desk, ALL).messages == 1
    story = seen(desk, ("payments", 0, bad.offset)).story
    assert why in story.reason
    assert story.next == f"ferryman inbox discard --id payments/0/{bad.offset} --consumer wallet"


def test_a_requeue_keeps_the_order_of_the_offsets_and_goes_in_chunks_that_are_whole(
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
        (Selection("wallet", codes=("BUG",)), [1, 2]),
        (Selection("wallet", codes=("BUG", "KILLER")), [1, 2, 3]),
        (Selection("wallet", topic="others"), [4]),
        (Selection("wallet", type="refund"), [5]),
        (Selection("wallet", places=(("payments", 0, 3), ("others", 0, 4))), [3, 4]),
        (Selection("wallet", ids=(uuid4(),)), []),
        (Selection("books"), []),
    ],
)
def test_only_what_is_meant_is_requeued(
    ferryman_db: Database, desk: Desk, asked: Selection, offsets: list[int]
) -> None:
    rejected(ferryman_db, record(1), record(2))
    rejected(ferryman_db, record(3), code="KILLER")
    rejected(ferryman_db, record(4, topic="others"), record(5, ce_type=b"refund"), code="UNREADABLE")
    assert requeue.plan(desk, asked).messages == len(offsets)
    requeued(desk, asked)
    assert sorted(int(each[5]["x-requeued-from"].rpartition("/")[2]) for each in appended(ferryman_db)) == offsets


def test_what_is_discarded_has_no_effect_and_can_be_requeued_by_name(ferryman_db: Database, desk: Desk) -> None:
    original = record(7)
    rejected(ferryman_db, original, record(8))
    this = Selection("wallet", ids=(identity(original),))
    assert discard.plan(desk, this) == {"BUG": 1}
    assert discard.discard(desk, this, ACT) == 1
    assert statuses(ferryman_db) == [("REJECTED", "DISCARDED"), ("REJECTED", "REJECTED")]
    handled(ferryman_db, original)
    assert one(ferryman_db, "SELECT count(*) FROM ferryman.inbox WHERE status = 'HANDLED'") == 0
    assert "DISCARDED by ann@desk" in seen(desk, identity(original)).story.reason
    assert discard.discard(desk, this, ACT) == 0
    assert requeued(desk, ALL).messages == 1
    assert requeued(desk, this).messages == 1
    assert [each for each, in ferryman_db.execute("SELECT act FROM ferryman.outbox_audit ORDER BY id")] == [
        "discard", "requeue", "requeue",
    ]  # fmt: skip


def test_a_list_is_newest_first_and_its_pages_follow_one_another_without_a_gap(
    ferryman_db: Database, desk: Desk
) -> None:
    books = Consumer("books", topics=["payments"])
    for number in range(6):
        rejected(ferryman_db, record(number), consumer=books if number % 2 else wallet)
    ferryman_db.execute(
        'INSERT INTO ferryman.inbox (consumer, id, status, hash, type, topic, partition, "offset", error) '
        "SELECT 'once', gen_random_uuid(), 'RECEIVED', '', 't', 'payments', 1, n, 'failed' FROM generate_series(1, 3) n"
    )
    found: list[tuple[str, int]] = []
    before = None
    while True:
        page = listing.page(desk, Filter(), before=before, limit=2)
        found += [(each.consumer, each.offset) for each in page.messages]
        before = page.next
        if before is None:
            break
    assert found == [
        ("once", 3), ("once", 2), ("once", 1),
        ("books", 5), ("wallet", 4), ("books", 3), ("wallet", 2), ("books", 1), ("wallet", 0),
    ]  # fmt: skip


def test_each_status_lists_what_has_it(ferryman_db: Database, desk: Desk) -> None:
    rejected(ferryman_db, *(record(n) for n in range(4)))
    requeued(desk, Selection("wallet", places=(("payments", 0, 1),)))
    discard.discard(desk, Selection("wallet", places=(("payments", 0, 2),)), ACT)

    def listed(*wanted: str) -> list[tuple[str, int, str | None]]:
        page = listing.page(desk, Filter(statuses=wanted), before=None, limit=50)
        return [(each.status, each.offset, each.verdict) for each in page.messages]

    assert listed("REQUEUED") == [("REQUEUED", 1, "REOPENED")]
    assert listed("REOPENED") == [("REOPENED", 1, "REOPENED")]
    assert listed("DISCARDED") == [("DISCARDED", 2, "REJECTED")]
    assert listed("REJECTED") == [("REJECTED", 3, "REJECTED"), ("REJECTED", 0, "REJECTED")]
    assert listed("RECEIVED") == []
    assert len(listed(*STATUSES)) == 5


def test_a_list_is_of_what_is_asked_for(ferryman_db: Database, desk: Desk) -> None:
    rejected(ferryman_db, record(1), record(2, ce_type=b"refund"))
    rejected(ferryman_db, record(3, topic="others"), code="KILLER")
    ferryman_db.execute("UPDATE ferryman.inbox_rejected SET rejected_at = now() - interval '2 h' WHERE \"offset\" = 1")
    with desk.acting() as connection:
        hour_ago = store.now(connection) - timedelta(hours=1)

    def listed(**wanted: Any) -> list[int]:
        return [each.offset for each in listing.page(desk, Filter(**wanted), before=None, limit=50).messages]

    assert listed(code="KILLER") == [3]
    assert listed(topic="payments") == [2, 1]
    assert listed(type="refund") == [2]
    assert listed(until=hour_ago) == [1]
    assert listed(since=hour_ago) == [3, 2]
    assert listed(consumer="wallet", code="BUG", since=hour_ago) == [2]
    with pytest.raises(FerrymanError, match="there is no consumer walet here"):
        listed(consumer="walet")


def test_a_handled_message_tells_what_was_reported_and_is_found_by_its_place(ferryman_db: Database, desk: Desk) -> None:
    done, refused = record(7), record(8, b'{"amount": 1000}')
    handled(ferryman_db, done, refused)
    by_id, by_place = seen(desk, identity(done)), seen(desk, ("payments", 0, 8))
    assert by_id.story.reason == "HANDLED: it took effect, and 1 message was reported"
    assert by_place.story.reason == "HANDLED: refused (INSUFFICIENT_FUNDS), and 1 message was reported"
    result = one(ferryman_db, "SELECT id FROM ferryman.outbox WHERE type = 'payment.failed'")
    assert by_place.story.next == f"ferryman outbox show {result}"
    assert look(desk, ("payments", 0, 9), None, payload=False, seconds=10).seen == []
    assert look(desk, uuid4(), None, payload=False, seconds=10).seen == []


def test_a_conflict_tells_of_both_messages(ferryman_db: Database, desk: Desk) -> None:
    first = record(7)
    handled(ferryman_db, first)
    handled(ferryman_db, first._replace(offset=8, value=b'{"amount": 2}'))
    found = seen(desk, identity(first))
    assert found.known.receipt is not None
    assert found.known.receipt["outcome"] == "DONE"
    assert "REJECTED (CONFLICT)" in found.story.reason
    assert found.story.next == "ferryman inbox discard --id payments/0/8 --consumer wallet"
    assert seen(desk, ("payments", 0, 8)).story == found.story


def test_values_are_given_only_when_they_are_asked_for(ferryman_db: Database, desk: Desk) -> None:
    """N14"""
    rejected(ferryman_db, record(7, b"secret"))
    assert seen(desk, ("payments", 0, 7)).values == []
    assert seen(desk, ("payments", 0, 7), payload=True).values == [b"secret"]
    assert "secret" not in str(listing.page(desk, Filter(), before=None, limit=5))


def test_standings_count_verdicts_and_what_waits_for_a_person(ferryman_db: Database, desk: Desk) -> None:
    """N13"""
    handled(ferryman_db, *(record(n) for n in range(5)), record(5, b'{"amount": 1000}'))
    rejected(ferryman_db, record(6), record(7))
    rejected(ferryman_db, record(8), code="KILLER")
    requeued(desk, Selection("wallet", places=(("payments", 0, 7),)))
    ferryman_db.execute(
        "INSERT INTO ferryman.inbox_start "
        "VALUES ('wallet', 'payments', 0, true, 9, 2), ('wallet', 'payments', 1, false, NULL, 0)"
    )
    pausing.pause(desk, "wallet", ACT)
    [found] = standing.gather(desk, None)
    assert found["verdicts"] == {"DONE": 5, "REFUSED": 1, "REJECTED": 2, "RECEIVED": 0, "REOPENED": 1}
    assert not found["estimated"]
    assert found["rejected_waiting"]["by_code"] == {"BUG": 1, "KILLER": 1}
    assert 0 <= found["rejected_waiting"]["oldest_age_seconds"] < 60
    assert found["partitions"] == {
        "owned": 0, "unclean": 1, "released": 1,
        "begun_again": [{"topic": "payments", "partition": 0, "offset": 9, "starts": 2}],
    }  # fmt: skip
    assert found["paused"]["who"] == "ann@desk"


def test_a_partition_is_owned_while_a_process_of_its_consumer_is_connected(
    ferryman_db: Database, ferryman_database_url: str, desk: Desk
) -> None:
    ferryman_db.execute("INSERT INTO ferryman.inbox_start VALUES ('wallet', 'payments', 0, true)")
    with psycopg.connect(ferryman_database_url, application_name="ferryman wallet"):
        [found] = standing.gather(desk, "wallet")
    assert (found["processes"], found["partitions"]["owned"], found["partitions"]["unclean"]) == (1, 1, 0)


def test_of_many_receipts_the_number_is_an_estimate_and_said_to_be_one(
    ferryman_db: Database, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    ferryman_db.execute(
        'INSERT INTO ferryman.inbox (consumer, id, status, outcome, hash, type, topic, partition, "offset") '
        "SELECT 'wallet', gen_random_uuid(), 'HANDLED', CASE n % 4 WHEN 0 THEN 'REFUSED' ELSE 'DONE' END, '', 't', "
        "'p', 0, n FROM generate_series(1, 10000) n"
    )
    ferryman_db.execute("ANALYZE ferryman.inbox")
    monkeypatch.setattr(standing, "COUNTED", 1000)
    [found] = standing.gather(desk, "wallet")
    assert found["estimated"]
    assert 9_000 < found["verdicts"]["DONE"] + found["verdicts"]["REFUSED"] < 11_000
    assert 0.2 < found["verdicts"]["REFUSED"] / 10_000 < 0.3


def test_every_act_works_with_the_rights_of_a_consumer(ferryman_db: Database, ferryman_database_url: str) -> None:
    rejected(ferryman_db, record(7), record(8))
    desk = opened(conninfo.make_conninfo(ferryman_database_url, options="-c role=ferryman_consumer"))
    assert pausing.pause(desk, "wallet", ACT)
    assert not pausing.pause(desk, "wallet", ACT)
    assert pausing.resume(desk, "wallet", ACT)
    assert requeued(desk, Selection("wallet", places=(("payments", 0, 7),))).messages == 1
    assert discard.discard(desk, ALL, ACT) == 1
    assert len(standing.gather(desk, None)) == 1
    assert seen(desk, ("payments", 0, 7), payload=True).values == [b'{"amount": 1}']
    desk.connection.close()


def test_looking_works_with_the_rights_of_a_monitor_which_changes_nothing(
    ferryman_db: Database, ferryman_database_url: str
) -> None:
    rejected(ferryman_db, record(7))
    desk = opened(conninfo.make_conninfo(ferryman_database_url, options="-c role=ferryman_monitor"))
    assert len(standing.gather(desk, None)) == 1
    assert len(listing.page(desk, Filter(), before=None, limit=5).messages) == 1
    assert "REJECTED (BUG)" in seen(desk, ("payments", 0, 7)).story.reason
    with pytest.raises(FerrymanError, match="permission denied"):
        pausing.pause(desk, "wallet", ACT)
    with pytest.raises(FerrymanError, match="permission denied"):
        requeued(desk, ALL)
    desk.connection.close()


def test_a_rejected_record_keeps_its_headers_as_kafka_had_them(ferryman_db: Database, desk: Desk) -> None:
    rejected(ferryman_db, record(7, x__own=b"\xff", empty=None))
    [only] = requeue.named(desk, ALL)
    assert dict(again.decoded(only.headers))["x-own"] == b"\xff"
    assert dict(again.decoded(only.headers))["empty"] is None


@pytest.mark.parametrize("most", [1000, 10_000, 1_000_000])
def test_rejecting_never_fails_whatever_the_outbox_takes(ferryman_db: Database, desk: Desk, most: int) -> None:
    """N9, N10: each process that came to such a record ended, and the next one too."""
    ferryman_db.execute("UPDATE ferryman.outbox_state SET max_payload_bytes = %s", (most,))
    rejected(ferryman_db, record(1, ce_type="\u5b57".encode() * 200_000), code="UNKNOWN_TYPE")
    long: dict[str, Any] = {"\u5b57" * 70_000: b"x"}
    rejected(ferryman_db, record(2, b"x" * 490_000, **long))
    rejected(ferryman_db, record(3, b"x" * 900_000))
    assert len(requeue.named(desk, ALL)) == 3
    letters = ferryman_db.execute("SELECT octet_length(payload), type FROM ferryman.outbox").fetchall()
    assert [kind for size, kind in letters if size <= most] == ["ferryman.dead-letter"] * 3


def test_a_conflict_that_was_discarded_stays_so_when_it_comes_again(ferryman_db: Database, desk: Desk) -> None:
    first = record(7)
    other = first._replace(offset=8, value=b'{"amount": 2}')
    handled(ferryman_db, first, other)
    assert discard.discard(desk, ALL, ACT) == 1
    handled(ferryman_db, other)
    assert statuses(ferryman_db) == [("HANDLED", "DISCARDED")]


def test_what_is_rejected_anew_at_its_old_place_waits_anew(ferryman_db: Database, desk: Desk) -> None:
    original = record(7)
    rejected(ferryman_db, original)
    requeued(desk, ALL)
    rejected(ferryman_db, original)
    assert statuses(ferryman_db) == [("REJECTED", "REJECTED")]
    assert one(ferryman_db, "SELECT who FROM ferryman.inbox_rejected") is None
    assert requeued(desk, ALL).messages == 1
