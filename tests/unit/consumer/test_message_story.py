"""Each state of a message has a reason in words and a command to run next."""

import json
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from ferryman.consumer.admin.message_story import KnownMessage as Known
from ferryman.consumer.admin.message_story import results, tell
from ferryman.consumer.kafka.consumer_topics import retry_topic

NOON = datetime(2025, 11, 18, 12, tzinfo=UTC)
ID = UUID("0b8a2c9e-5a0f-4f3e-9d55-3a3b4f0f8a11")
RESULTS = json.dumps([["results", "k", "payment.failed", "e30=", None, str(ID), None]])


def receipt(status: str, **changes: Any) -> dict[str, Any]:
    values = {"consumer": "wallet", "id": ID, "outcome": None, "reason": None, "results": None, "error": None}
    return {**values, "status": status, **changes}


def rejected(status: str = "REJECTED", **changes: Any) -> dict[str, Any]:
    values = {
        "consumer": "wallet", "id": ID, "topic": "orders", "partition": 2, "offset": 7, "code": "BUG", "error": "no",
        "who": "ann", "changed_at": NOON, "reason": "mended", "shares_place": False,
    }  # fmt: skip
    return {**values, "status": status, **changes}


PAUSE = {"who": "ann", "since": NOON, "reason": "repairs"}
REOPENED, REQUEUED = receipt("REOPENED"), (rejected("REQUEUED"),)


@pytest.mark.parametrize(
    ("known", "reason", "following"),
    [
        (Known(receipt("HANDLED", outcome="DONE")), "HANDLED: it took effect, and nothing was reported", None),
        (
            Known(receipt("HANDLED", outcome="REFUSED", reason="EMPTY", results=RESULTS)),
            "HANDLED: refused (EMPTY), and 1 message was reported", f"ferryman outbox show {ID}",
        ),
        (
            Known(receipt("HANDLED", outcome="DONE"), REQUEUED),
            "it took effect, after it had been rejected and requeued", None,
        ),
        (Known(receipt("RECEIVED", error="it broke")), "it failed, had no effect and never will: it broke", None),
        (Known(receipt("RECEIVED")), "being handled at this moment, or its process died", "inbox show"),
        (Known(receipt("REJECTED"), (rejected(),)), "REJECTED (BUG): no", "inbox requeue --id orders/2/7 --consumer w"),
        (
            Known(receipt("REJECTED"), (rejected(shares_place=True),)),
            "REJECTED (BUG): no", f"inbox requeue --id {ID} --code BUG --consumer wallet",
        ),
        (
            Known(receipt("REJECTED"), (rejected(),), unfit="it has no value"),
            "It cannot be requeued: it has no value", "inbox discard --id orders/2/7",
        ),
        (
            Known(receipt("HANDLED", outcome="DONE"), (rejected(code="CONFLICT"),), unfit="no receipt"),
            "REJECTED (CONFLICT)", "inbox discard --id orders/2/7",
        ),
        (
            Known(receipt("REJECTED"), (rejected("DISCARDED"),)),
            "DISCARDED by ann at", "inbox requeue --id orders/2/7",
        ),
        (Known(receipt("REJECTED"), (rejected("DISCARDED"),), unfit="too large"), "DISCARDED by ann", None),
        (Known(REOPENED, REQUEUED, paused=PAUSE), "its consumer is paused by ann", "ferryman resume wallet --consumer"),
        (Known(REOPENED, REQUEUED), "no process of its consumer is connected", "ferryman run module:object"),
        (Known(REOPENED, REQUEUED, processes=1), "no relay is connected", "ferryman run relay"),
        (Known(REOPENED, REQUEUED, processes=1, relays=1), "takes it from its retry topic", "ferryman outbox stats"),
        (Known(None, (rejected(),)), "REJECTED (BUG): no", "inbox requeue"),
        (Known(None, REQUEUED), "REQUEUED by ann", "--status REOPENED"),
        (Known(receipt("REJECTED")), "its record does not exist any more", None),
    ],
)  # fmt: skip
def test_each_state_has_its_reason_and_the_command_to_run_next(
    known: Known, reason: str, following: str | None
) -> None:
    story = tell(known)
    assert reason in story.reason
    assert (following is None) == (story.next is None)
    assert (following or "") in (story.next or "")


def test_results_are_listed_without_their_payloads() -> None:
    told = results(receipt("HANDLED", results=RESULTS))
    assert told == [{"id": str(ID), "topic": "results", "type": "payment.failed", "key": "k"}]


def test_a_retry_topic_is_its_own_and_its_name_is_never_too_long() -> None:
    assert retry_topic("orders", "wallet") == "orders.retry.wallet"
    assert retry_topic("orders.retry.wallet", "wallet") == "orders.retry.wallet"
    first, second = (retry_topic("t" * 240 + end, "wallet") for end in "ab")
    assert len(first) == len(second) == 249
    assert first != second
    assert first.endswith(".retry.wallet")
