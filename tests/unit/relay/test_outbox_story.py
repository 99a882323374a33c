"""Each status has a reason in words, and a command to run next."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest

from ferryman.relay.admin.entry_story import EntryFacts, concerning, explain
from ferryman.relay.store.entry_views import ListedEntry
from ferryman.runtime.times import span

NOON = datetime(2025, 11, 18, 12, tzinfo=UTC)
LATER = NOON + timedelta(minutes=2)


def entry(status: str, **changes: Any) -> ListedEntry:
    values: dict[str, Any] = {
        "position": 7, "id": uuid4(), "topic": "orders", "key": "k", "type": "t", "lane": 0, "segment": 0,
        "created_at": NOON, "payload_bytes": 3, "status": status, "attempts": 0, "next_attempt_at": None,
        "error": None, "replay": None, "changed_at": NOON,
    }  # fmt: skip
    return ListedEntry(**{**values, **changes})


def known(*, relays: int = 1, paused: str | None = None, replay: Any = None, **facts: Any) -> EntryFacts:
    defaults = {
        "in_target": False, "late": False, "ahead": 1, "topic_reason": None, "topic_since": None, "key_parked": False,
        "head_position": None, "head_attempts": None, "head_next_attempt_at": None, "head_error": None, "now": NOON,
    }  # fmt: skip
    stops = [{"topic": paused, "name": paused or "outbox", "who": "ann", "since": NOON, "reason": "moving"}]
    return EntryFacts({**defaults, **facts}, [] if paused is None else stops, replay, relays)


HEAD: dict[str, Any] = {
    "key_parked": True,
    "head_position": 3,
    "head_attempts": 2,
    "head_next_attempt_at": LATER,
    "head_error": "no",
}


@pytest.mark.parametrize(
    ("seen", "facts", "reason", "following"),
    [
        (entry("PENDING"), known(), "PENDING: its transaction committed after the last window", "outbox stats"),
        (entry("PENDING"), known(ahead=5), "up to 4 positions are before it", "outbox stats"),
        (entry("PENDING"), known(late=True), "it goes first when the relay reads next", "outbox stats"),
        (entry("PENDING"), known(in_target=True), "the relay is reading the window", "outbox stats"),
        (entry("PENDING"), known(relays=0), "no relay is connected", "ferryman run relay"),
        (entry("PENDING"), known(paused="orders"), "PENDING, and topic orders is paused by ann", "resume orders"),
        (entry("PENDING"), known(paused=""), "PENDING, and the whole outbox is paused by ann", "resume outbox"),
        (entry("PENDING"), known(paused="users"), "the relay has not read it yet", "outbox stats"),
        (
            entry("RETRYING", attempts=2, next_attempt_at=LATER, error="refused"), known(),
            "RETRYING: it failed 2 times, and is tried again at", "outbox discard --id",
        ),
        (entry("RETRYING", next_attempt_at=NOON), known(), "it waited, and was let go, and is tried again now", ""),
        (
            entry("PARKED"), known(**HEAD),
            "PARKED: entry 3 of the same key failed 2 times and is tried again at", "outbox show 3",
        ),
        (
            entry("PARKED"), known(topic_reason="unknown topic", topic_since=NOON),
            "PARKED: Kafka refuses topic orders since", "by itself",
        ),
        (entry("PARKED"), known(paused="orders"), "PARKED, and topic orders is paused", "ferryman resume orders"),
        (entry("PARKED"), known(topic_reason="it is paused"), "its topic was paused, and goes on", "outbox stats"),
        (entry("PARKED"), known(), "the relay releases it next", "outbox stats"),
        (entry("REPLAYING", replay=4), known(paused="orders"), "REPLAYING, and topic orders is paused", "resume"),
        (
            entry("FAILED", attempts=5, error="too large"), known(),
            "FAILED after 5 attempts: too large", "ferryman outbox replay --id 7   or   ferryman outbox discard --id 7",
        ),
        (entry("DISCARDED", error="no"), known(), "not published; it had failed with: no", "outbox replay --id 7"),
        (
            entry("REPLAYING", replay=4), known(replay={"id": 4, "who": "ann", "reason": "r", "finished_at": None}),
            "REPLAYING: in replay 4 by ann (r)", "outbox replay --resume 4",
        ),
        (
            entry("REPLAYING", replay=4),
            known(relays=0, replay={"id": 4, "who": "ann", "reason": "r", "finished_at": NOON}),
            "the relay publishes it once more", "ferryman run relay",
        ),
        (entry("PUBLISHED"), known(), "PUBLISHED: Kafka acknowledged it", ""),
    ],
)  # fmt: skip
def test_each_status_has_a_reason_and_a_next_command(
    seen: ListedEntry, facts: EntryFacts, reason: str, following: str
) -> None:
    story = explain(seen, facts)
    assert reason in story.reason
    assert following in (story.next or "")


def test_story_lists_only_acts_that_cover_the_entry() -> None:
    acts = [
        {"act": "pause", "filter": {"topic": "orders"}},
        {"act": "resume", "filter": {"topic": ""}},
        {"act": "pause", "filter": {"topic": "users"}},
        {"act": "discard", "filter": {"positions": [8]}},
        {"act": "replay", "filter": {"topic": "orders", "replay": 1, "last_position": 6}},
        {"act": "replay", "filter": {"topic": "orders", "replay": 2, "last_position": 7}},
        {"act": "rebase", "filter": {"from": "1"}},
    ]
    assert concerning(entry("PUBLISHED"), acts) == [acts[0], acts[1], acts[5], acts[6]]


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.2, "0 s"), (59, "59 s"), (60, "1 min"), (3725, "1 h 2 min"), (90061, "1 d 1 h")]
)
def test_span_has_its_two_largest_units(seconds: float, words: str) -> None:
    assert span(seconds) == words
