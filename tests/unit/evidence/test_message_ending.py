"""A message is only waited for where a consumer should handle it, and nobody is told to wait in vain."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from ferryman.cli.trace import print_story
from ferryman.evidence.journey import Journey, StoryTeller, Witness
from ferryman.evidence.kafka import SeenRecord
from ferryman.evidence.messages import InboxReceipt, OutboxEntry, RejectedMessage
from ferryman.evidence.way import Ending, Traced, conclude
from ferryman.runtime.desk import Story

NOON = datetime(2025, 11, 18, 12, tzinfo=UTC)
ID, REPORT = UUID(int=1), UUID(int=2)
ENTRY = OutboxEntry(ID, 4711, "PUBLISHED", "order.seen", "orders", "o-7", NOON)
REPLAY = f"ferryman outbox replay --id 4711 --yes --reason 'trace {ID}'"
OUTBOX = Witness([ENTRY], where="main")
READS: dict[str, Any] = {"where": "main", "reads": frozenset(["orders"]), "processes": 1}
BILLING = Witness(consumer="billing", types=frozenset(["order.placed"]), **READS)
AMO = replace(BILLING, consumer="amo", processes=0)
AMO_GONE = frozenset([("amo", "orders")])


def receipt(at: float = 30, **changes: Any) -> InboxReceipt:
    given: dict[str, Any] = {
        "id": ID, "type": "order.seen", "topic": "orders", "partition": 0, "offset": 7, "status": "HANDLED",
        "outcome": "DONE", "reason": None, "error": None, "at": NOON + timedelta(milliseconds=at),
    }  # fmt: skip
    return InboxReceipt(**(given | changes))


def journey(*readers: Witness, kafka: Mapping[UUID, Sequence[SeenRecord]] | None = None, **more: Any) -> Journey:
    return Journey(NOON + timedelta(seconds=1), [OUTBOX, *readers], kafka, **more)


def behind(*past: str) -> dict[UUID, list[SeenRecord]]:
    """Return the record in Kafka, and the groups that are past it."""
    return {ID: [SeenRecord(0, 7, NOON, frozenset(past))]}


def ends(of: Journey) -> tuple[str, str | None]:
    ending = conclude(of, ID)
    return ending.now, ending.next


def printed(ending: Ending, capsys: pytest.CaptureFixture[str]) -> str:
    """Return what the command prints after `Next`."""
    print_story(Traced(ID, "message", None, [f"message {ID}"], (), ending))
    return capsys.readouterr().out.splitlines()[-1].removeprefix("Next  ")


@pytest.mark.parametrize("kafka", [behind("billing"), {ID: []}], ids=["past", "deleted"])
def test_type_that_its_consumer_never_handled_is_not_to_be_replayed(
    kafka: dict[UUID, list[SeenRecord]], capsys: pytest.CaptureFixture[str]
) -> None:
    """It is ignored, and would be ignored again. A type that the consumer handles was skipped."""
    ignored = journey(BILLING, kafka=kafka)
    assert ends(ignored) == ("PUBLISHED", None)
    assert "no handler" in conclude(ignored, ID).why
    assert printed(conclude(ignored, ID), capsys) == "nothing is left to do, unless billing should handle order.seen"
    handles = replace(BILLING, types=frozenset(["order.seen"]))
    assert ends(journey(handles, kafka=kafka)) == ("PUBLISHED", REPLAY)


def test_consumer_that_ignores_a_type_does_not_hide_the_others() -> None:
    """Neither one that handled the message, nor one that has yet to."""
    shipping = replace(BILLING, consumer="shipping", receipts=[receipt()])
    assert ends(journey(BILLING, shipping, kafka=behind("billing"))) == ("HANDLED", None)
    assert ends(journey(BILLING, replace(shipping, receipts=[], processes=0), kafka=behind("billing"))) == (
        "PUBLISHED", "ferryman run module:object",
    )  # fmt: skip


def test_group_that_is_past_a_message_says_nothing_about_another() -> None:
    both = [replace(BILLING, consumer=name, types=frozenset(["order.seen"])) for name in ("billing", "shipping")]
    billed = replace(both[0], receipts=[receipt()])
    assert ends(journey(billed, both[1], kafka=behind())) == ("PUBLISHED", "ferryman inbox stats")
    assert ends(journey(billed, both[1], kafka=behind("shipping"))) == ("PUBLISHED", REPLAY)
    [sought] = journey(billed, both[1]).sought()
    assert (sought.readers, sought.place) == (("shipping",), (0, 7))


def test_consumer_that_is_gone_is_not_waited_for() -> None:
    billed = replace(BILLING, receipts=[receipt()])
    assert ends(journey(billed, AMO)) == ("PUBLISHED", "ferryman run module:object")
    assert journey(billed, AMO).idle() == AMO_GONE
    gone = journey(billed, AMO, groups_gone=AMO_GONE)
    assert ends(gone) == ("HANDLED", None)
    assert not conclude(gone, ID).rest
    assert "amo is not waited for" in conclude(gone, ID).why
    alone = conclude(journey(AMO, groups_gone=AMO_GONE), ID)
    assert (alone.now, alone.next) == ("PUBLISHED", None)
    assert alone.rest == "nothing is left to do, unless amo is to run again"


@pytest.mark.parametrize("still", [{"processes": 1}, {"paused": "ann"}, {"receipts": [receipt(status="REOPENED")]}])
def test_consumer_that_runs_is_paused_or_has_the_message_is_not_gone(still: dict[str, Any]) -> None:
    held = journey(replace(AMO, **still), groups_gone=AMO_GONE)
    assert held.readers(ID)
    assert not held.retired(ID)
    assert not held.idle()


def test_reader_that_may_be_in_a_database_that_is_away_is_not_denied(capsys: pytest.CaptureFixture[str]) -> None:
    nobody, away = conclude(journey(), ID), conclude(journey(away=True), ID)
    assert (nobody.now, nobody.rest) == ("PUBLISHED", "")
    assert (away.now, away.next) == ("UNKNOWN", None)
    assert "databases that answered" in away.why
    assert printed(away, capsys) == "trace it again when every database answers"
    handled = conclude(journey(replace(BILLING, receipts=[receipt()]), away=True), ID)
    assert (handled.now, handled.rest) == ("HANDLED", away.rest)


def test_receipt_without_an_entry_names_the_topic_for_other_readers() -> None:
    """It does not depend on how long the outbox was searched whether the others are asked about."""
    billed, shipping = replace(BILLING, receipts=[receipt()]), replace(AMO, consumer="shipping")
    unseen = replace(journey(billed, shipping), witnesses=[billed, shipping])
    assert ends(unseen) == ends(journey(billed, shipping)) == ("PUBLISHED", "ferryman run module:object")


GONE = Story("REJECTED, and its record does not exist any more", None)
UNFIT = Story("DISCARDED by ann: it has no effect; it had been rejected with CONFLICT", None)


@pytest.mark.parametrize(
    ("status", "story", "rejections", "said"),
    [
        ("REJECTED", GONE, [], "its writer may send it again, under another id"),
        ("REJECTED", UNFIT, [RejectedMessage(ID, "CONFLICT", "no", "DISCARDED")], "nothing is left to do"),
        ("RECEIVED", Story("RECEIVED: it failed", None), [], "its writer may send it again, under another id"),
    ],
)
def test_nobody_is_told_to_wait_for_what_never_comes(
    status: str, story: Story, rejections: list[RejectedMessage], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    stopped = receipt(status=status, outcome=None, error="it broke")
    ending = conclude(journey(replace(BILLING, receipts=[stopped], rejections=rejections, stories={ID: story})), ID)
    assert (ending.now, ending.next) == (status, None)
    assert said in printed(ending, capsys)


def test_message_is_received_no_later_than_what_was_reported_with_it() -> None:
    """The receipt is written last, in the transaction of the report."""
    kept = json.dumps([["bills", "o-7", "order.billed", "", None, str(REPORT), ""]])
    reported = OutboxEntry(REPORT, 4712, "PUBLISHED", "order.billed", "bills", "o-7", NOON + timedelta(milliseconds=20))
    story = StoryTeller(replace(
        journey(), witnesses=[Witness([ENTRY, reported], where="main"),
                              replace(BILLING, receipts=[receipt(at=30, reports=kept)])]))  # fmt: skip
    story.message(ID, {}, None)
    moments = [each.at for each in story.events if each.at]
    assert [each.what for each in story.events] == [
        "appended", "published", "received", "handled", "reported", "published",
    ]  # fmt: skip
    assert moments == sorted(moments)
