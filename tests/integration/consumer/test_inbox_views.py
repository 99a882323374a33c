"""Lists, stories and statistics of messages, and the roles that may see them."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg import conninfo

from ferryman import Consumer
from ferryman.consumer.admin import messages
from ferryman.consumer.admin.message_story import look
from ferryman.consumer.admin.messages import STATUSES, MessageFilter, SelectedMessages
from ferryman.consumer.admin.requeue import discard, rehearse
from ferryman.consumer.wire import identity
from ferryman.runtime.desk import Desk, change_pause
from ferryman.runtime.errors import FerrymanError
from support.inboxes import ACT, ALL, Database, handled, one, opened, record, rejected, requeued, seen, wallet


@pytest.fixture
def desk(ferryman_database_url: str) -> Iterator[Desk]:
    made = opened(ferryman_database_url)
    yield made
    made.connection.close()


def statistics(desk: Desk, consumer: str | None) -> list[dict[str, Any]]:
    with desk.reading() as connection:
        return messages.statistics(connection, consumer)


def test_lists_are_newest_first_and_their_pages_have_no_gaps(ferryman_db: Database, desk: Desk) -> None:
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
        page = messages.page(desk, MessageFilter(), before=before, limit=2)
        found += [(each["consumer"], each["offset"]) for each in page.messages]
        before = page.next
        if before is None:
            break
    assert found == [
        ("once", 3), ("once", 2), ("once", 1),
        ("books", 5), ("wallet", 4), ("books", 3), ("wallet", 2), ("books", 1), ("wallet", 0),
    ]  # fmt: skip


def test_each_status_lists_the_messages_that_have_it(ferryman_db: Database, desk: Desk) -> None:
    rejected(ferryman_db, *(record(n) for n in range(4)))
    requeued(desk, SelectedMessages("wallet", places=(("payments", 0, 1),)))
    discard(desk, SelectedMessages("wallet", places=(("payments", 0, 2),)), ACT)

    def listed(*wanted: str) -> list[tuple[str, int, str | None]]:
        page = messages.page(desk, MessageFilter(statuses=wanted), before=None, limit=50)
        return [(each["status"], each["offset"], each["verdict"]) for each in page.messages]

    assert listed("REQUEUED") == [("REQUEUED", 1, "REOPENED")]
    assert listed("REOPENED") == [("REOPENED", 1, "REOPENED")]
    assert listed("DISCARDED") == [("DISCARDED", 2, "REJECTED")]
    assert listed("REJECTED") == [("REJECTED", 3, "REJECTED"), ("REJECTED", 0, "REJECTED")]
    assert listed("RECEIVED") == []
    assert len(listed(*STATUSES)) == 5


def test_pages_have_no_gaps_between_records_of_one_place_and_time(ferryman_db: Database, desk: Desk) -> None:
    """Several records have a place if its topic was made anew."""
    rejected(ferryman_db, record(0))
    rejected(ferryman_db, record(0))
    ferryman_db.execute("UPDATE ferryman.inbox_rejected SET rejected_at = '2026-01-01'")
    first = messages.page(desk, MessageFilter(), before=None, limit=1)
    second = messages.page(desk, MessageFilter(), before=first.next, limit=1)
    assert second.next is None
    assert len({each["id"] for each in (*first.messages, *second.messages)}) == 2


def test_a_list_has_only_what_the_filter_asks_for(ferryman_db: Database, desk: Desk) -> None:
    rejected(ferryman_db, record(1), record(2, ce_type=b"refund"))
    rejected(ferryman_db, record(3, topic="others"), code="KILLER")
    ferryman_db.execute("UPDATE ferryman.inbox_rejected SET rejected_at = now() - interval '2 h' WHERE \"offset\" = 1")
    hour_ago = desk.now() - timedelta(hours=1)

    def listed(**wanted: Any) -> list[int]:
        return [each["offset"] for each in messages.page(desk, MessageFilter(**wanted), before=None, limit=50).messages]

    assert listed(code="KILLER") == [3]
    assert listed(topic="payments") == [2, 1]
    assert listed(type="refund") == [2]
    assert listed(until=hour_ago) == [1]
    assert listed(since=hour_ago) == [3, 2]
    assert listed(consumer="wallet", code="BUG", since=hour_ago) == [2]
    with pytest.raises(FerrymanError, match="there is no consumer walet here"):
        listed(consumer="walet")


def test_a_handled_message_is_found_by_its_place_and_shows_its_reports(ferryman_db: Database, desk: Desk) -> None:
    done, refused = record(7), record(8, b'{"amount": 1000}')
    handled(ferryman_db, done, refused)
    by_id, by_place = seen(desk, identity(done)), seen(desk, ("payments", 0, 8))
    assert by_id.story.reason == "HANDLED: it took effect, and 1 message was reported"
    assert by_place.story.reason == "HANDLED: refused (INSUFFICIENT_FUNDS), and 1 message was reported"
    result = one(ferryman_db, "SELECT id FROM ferryman.outbox WHERE type = 'payment.failed'")
    assert by_place.story.next == f"ferryman outbox show {result}"
    assert look(desk, ("payments", 0, 9), None, payload=False, seconds=10).seen == []
    assert look(desk, uuid4(), None, payload=False, seconds=10).seen == []


def test_the_story_of_a_conflict_has_both_messages(ferryman_db: Database, desk: Desk) -> None:
    first = record(7)
    handled(ferryman_db, first)
    handled(ferryman_db, first._replace(offset=8, value=b'{"amount": 2}'))
    found = seen(desk, identity(first))
    assert found.known.receipt is not None
    assert found.known.receipt["outcome"] == "DONE"
    assert "REJECTED (CONFLICT)" in found.story.reason
    assert found.story.next == "ferryman inbox discard --id payments/0/8 --consumer wallet"
    assert seen(desk, ("payments", 0, 8)).story == found.story


def test_values_are_shown_only_if_asked_for(ferryman_db: Database, desk: Desk) -> None:
    """N14."""
    rejected(ferryman_db, record(7, b"secret"))
    assert seen(desk, ("payments", 0, 7)).values == []
    assert seen(desk, ("payments", 0, 7), payload=True).values == [b"secret"]
    assert "secret" not in str(messages.page(desk, MessageFilter(), before=None, limit=5))


def test_statistics_count_verdicts_and_rejected_messages(ferryman_db: Database, desk: Desk) -> None:
    """N13."""
    handled(ferryman_db, *(record(n) for n in range(5)), record(5, b'{"amount": 1000}'))
    rejected(ferryman_db, record(6), record(7))
    rejected(ferryman_db, record(8), code="KILLER")
    requeued(desk, SelectedMessages("wallet", places=(("payments", 0, 7),)))
    ferryman_db.execute(
        "INSERT INTO ferryman.inbox_start "
        "VALUES ('wallet', 'payments', 0, true, 9, 2), ('wallet', 'payments', 1, false, NULL, 0)"
    )
    change_pause(desk, "pause", "consumer", "wallet", ACT)
    [found] = statistics(desk, None)
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
        [found] = statistics(desk, "wallet")
    assert (found["processes"], found["partitions"]["owned"], found["partitions"]["unclean"]) == (1, 1, 0)


def test_the_number_of_many_receipts_is_marked_as_an_estimate(
    ferryman_db: Database, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    ferryman_db.execute(
        'INSERT INTO ferryman.inbox (consumer, id, status, outcome, hash, type, topic, partition, "offset") '
        "SELECT 'wallet', gen_random_uuid(), 'HANDLED', CASE n % 4 WHEN 0 THEN 'REFUSED' ELSE 'DONE' END, '', 't', "
        "'p', 0, n FROM generate_series(1, 10000) n"
    )
    ferryman_db.execute("ANALYZE ferryman.inbox")
    monkeypatch.setattr(messages, "COUNTED", 1000)
    [found] = statistics(desk, "wallet")
    assert found["estimated"]
    assert 9_000 < found["verdicts"]["DONE"] + found["verdicts"]["REFUSED"] < 11_000
    assert 0.2 < found["verdicts"]["REFUSED"] / 10_000 < 0.3


def test_every_act_works_with_the_rights_of_a_consumer(ferryman_db: Database, ferryman_database_url: str) -> None:
    rejected(ferryman_db, record(7), record(8))
    desk = opened(conninfo.make_conninfo(ferryman_database_url, options="-c role=ferryman_wallet"))
    assert change_pause(desk, "pause", "consumer", "wallet", ACT)
    assert not change_pause(desk, "pause", "consumer", "wallet", ACT)
    assert change_pause(desk, "resume", "consumer", "wallet", ACT)
    assert requeued(desk, SelectedMessages("wallet", places=(("payments", 0, 7),))).messages == 1
    assert discard(desk, ALL, ACT) == 1
    assert len(statistics(desk, None)) == 1
    assert seen(desk, ("payments", 0, 7), payload=True).values == [b'{"amount": 1}']
    desk.connection.close()


def test_reading_works_with_the_rights_of_a_monitor_and_acting_does_not(
    ferryman_db: Database, ferryman_database_url: str
) -> None:
    rejected(ferryman_db, record(7))
    desk = opened(conninfo.make_conninfo(ferryman_database_url, options="-c role=ferryman_monitor"))
    assert len(statistics(desk, None)) == 1
    assert len(messages.page(desk, MessageFilter(), before=None, limit=5).messages) == 1
    assert "REJECTED (BUG)" in seen(desk, ("payments", 0, 7)).story.reason
    with pytest.raises(FerrymanError, match="permission denied"):
        change_pause(desk, "pause", "consumer", "wallet", ACT)
    with pytest.raises(FerrymanError, match="permission denied"):
        requeued(desk, ALL)
    with pytest.raises(FerrymanError, match="permission denied"):
        rehearse(desk, ALL, ACT)
    desk.connection.close()
