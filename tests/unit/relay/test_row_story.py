"""The story of a row: why it is where it is, and the command to run next."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from ferryman.relay.admin.row_story import RowFacts, explain

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
ROW: dict[str, Any] = {
    "id": "7", "destination": "https://one/", "status": "WORD", "state": "pending", "attempts": 0, "error": None,
    "claimed_at": None, "lease_until": None, "created_at": None,
    "next_attempt_at": None, "done_at": None, "lost_before": False, "now": NOW,
}  # fmt: skip
CLAIMED = {"claimed_at": NOW - timedelta(seconds=20), "lease_until": NOW + timedelta(seconds=40), "attempts": 1}
FAILED = {"attempts": 3, "error": "the answer was 500"}
HISTORY = [{"outcome": "lost", "code": None}, {"outcome": "failed", "code": "SERVER_FAILED"}]
PAUSED = {"who": "ann", "since": NOW, "reason": "moving"}
REPLAY, RUN = "ferryman outbox replay --outbox hooks 7", "ferryman run hooks"


def facts(row: dict[str, Any], **known: Any) -> RowFacts:
    return RowFacts(ROW | row, **{"couriers": 1, "called": "hooks", "history": HISTORY, **known})


@pytest.mark.parametrize(
    ("row", "said", "command"),
    [
        ({}, "due", "ferryman outbox stats --outbox hooks"),
        ({"next_attempt_at": NOW + timedelta(hours=1)}, "waits until", "ferryman outbox stats --outbox hooks"),
        ({"state": "retrying", **FAILED, "next_attempt_at": NOW + timedelta(hours=1)}, "in 1 h",
         f"wait, or send it now: {REPLAY}"),
        ({"state": "retrying", **FAILED}, "3 attempts (once its process was lost)", f"wait, or send it now: {REPLAY}"),
        ({"state": "sending", **CLAIMED}, "(20 s), and is being sent", None),
        ({"state": "sending", **CLAIMED, "lost_before": True}, "an earlier claim of it was lost", None),
        ({"state": "lost", **CLAIMED}, "its lease is over", None),
        ({"state": "failed", **FAILED}, "the answer was 500 (SERVER_FAILED)", REPLAY),
        ({"state": "discarded", "error": "discarded by hand: a test"}, "by hand: a test", REPLAY),
        ({"state": "delivered", "done_at": NOW}, "delivered at", None),
        ({"state": "other"}, "no such word", None),
    ],
)  # fmt: skip
def test_a_row_says_why_it_is_where_it_is_and_what_to_do(row: dict[str, Any], said: str, command: str | None) -> None:
    story = explain(facts(row))
    assert story.reason.startswith("WORD: ")
    assert said in story.reason
    assert story.next == command


@pytest.mark.parametrize("state", ["pending", "retrying", "lost"])
@pytest.mark.parametrize(
    ("known", "said", "command"),
    [
        ({"couriers": 0}, "no courier", RUN),
        ({"couriers": 0, "by_kafka": True}, "no relay", "ferryman run relay"),
        ({"paused": [{**PAUSED, "destination": ""}]}, "the outbox is paused by ann", "ferryman resume --outbox hooks"),
        ({"paused": [{**PAUSED, "destination": "https://one/"}], "couriers": 0}, "its destination is paused",
         "ferryman resume --outbox hooks --destination https://one/"),
    ],
)  # fmt: skip
def test_a_waiting_row_says_what_holds_it_up(state: str, known: dict[str, Any], said: str, command: str) -> None:
    story = explain(facts({"state": state, **CLAIMED}, **known))
    assert said in story.reason
    assert story.next == command


@pytest.mark.parametrize(("state", "held"), [("pending", True), ("retrying", True), ("lost", False)])
def test_overdue_row_may_be_held_by_the_couriers_function(state: str, held: bool) -> None:
    row = {"state": state, **CLAIMED, "created_at": NOW - timedelta(minutes=2)}
    assert ("`held`" in explain(facts(row)).reason) is held
    assert "`held`" not in explain(facts(row | {"next_attempt_at": NOW - timedelta(seconds=5)})).reason
    assert "`held`" not in explain(facts(row, by_kafka=True)).reason


def test_a_pause_of_another_destination_holds_nothing_up() -> None:
    assert "paused" not in explain(facts({}, paused=[{**PAUSED, "destination": "https://two/"}])).reason
