"""A described outbox without a database: what is decided of a row, and what its table must be like."""

from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import ValidationError

from ferryman.relay.described.fitting import fit
from ferryman.relay.described.model import Layout, LiveColumn, LiveTable, Row
from ferryman.relay.described.policy import End, Verdict, judge_of
from ferryman.relay.described.statements import compiled
from ferryman.relay.model import Entry
from ferryman.relay.policy import Rejected, Retry, TopicUnavailable, Unknown, Waits
from ferryman.runtime.errors import Misconfigured
from ferryman.runtime.settings_outbox import Outbox

AT = datetime(2026, 1, 2, tzinfo=UTC)
ENTRY = Entry(0, "an-id", "t", "k", "kind", b"", None, None, 0, 0)
WORDS = {"pending": ["NEW", "AGAIN"], "claimed": "SENDING", "done": "SENT", "dead": "DEAD"}
LIVE = LiveTable(
    {
        **{name: LiveColumn("text") for name in ("key", "topic", "type", "status", "error")},
        "id": LiveColumn("uuid"),
        "payload": LiveColumn("bytea"),
        "attempts": LiveColumn("integer"),
        "claimed_at": LiveColumn("timestamp(3) with time zone"),
    },
    frozenset({"id"}),
)


def outbox(**more: Any) -> Outbox:
    return Outbox.model_validate({"table": "shop.orders", "words": WORDS, **more})


def row(attempts: int, *, alone: bool = False, error: str | None = "before") -> Row:
    return Row(ENTRY, attempts, AT, error, "NEW", alone)


# --- what becomes of a row


@pytest.mark.parametrize(
    ("outcome", "attempts", "end"),
    [
        (None, 1, End.DONE),
        (Retry("r"), 4, End.FAILED),
        (Retry("r"), 5, End.GIVEN_UP),
        (Rejected("x"), 1, End.GIVEN_UP),
        (Unknown("away"), 5, End.RELEASED),
        (TopicUnavailable("refused"), 5, End.RELEASED),
        (Waits(), 5, End.RELEASED),
    ],
)
def test_only_failures_of_its_own_count(outcome: Any, attempts: int, end: End) -> None:
    """N8: an outage burns no attempt, unless that is asked for."""
    assert judge_of(outbox()).of(row(attempts), outcome).end is end


@pytest.mark.parametrize("outcome", [Unknown("away"), TopicUnavailable("refused")])
def test_outages_count_where_that_is_asked_for(outcome: Any) -> None:
    judge = judge_of(outbox(retry={"count_outages": True}))
    assert judge.of(row(4), outcome).end is End.FAILED
    assert judge.of(row(5), outcome).end is End.GIVEN_UP
    assert judge.of(row(5), Waits()).end is End.RELEASED


def test_the_wait_after_a_failure_doubles() -> None:
    judge = judge_of(outbox(retry={"base_seconds": 2, "cap_seconds": 5}))
    assert [judge.of(row(n), Retry("r")).wait_seconds for n in (1, 2, 3)] == [2, 4, 5]


def test_without_a_word_for_dead_a_row_keeps_its_pending_word_and_what_is_rejected_is_tried_again() -> None:
    judge = judge_of(outbox(words={"pending": ["PENDING"], "done": "PUBLISHED"}))
    assert judge.of(row(1), Rejected("x")).end is End.FAILED
    last = judge.of(row(5), Rejected("x"))
    assert last.end is End.GIVEN_UP
    assert judge.settling(row(5), last)[:5] == ("an-id", AT, "PENDING", 0, "x")


def test_what_is_written_of_a_row() -> None:
    """A success and what does not count take their attempt back; a released row is as it was, but for the reason."""
    judge = judge_of(outbox())
    assert judge.settling(row(2), Verdict(End.DONE))[2:6] == ("SENT", 1, None, True)
    assert judge.settling(row(2), Verdict(End.FAILED, "why", 3.0))[2:] == ("AGAIN", 0, "why", False, 3.0)
    assert judge.settling(row(5), Verdict(End.GIVEN_UP, "why"))[2:6] == ("DEAD", 0, "why", False)
    assert judge.settling(row(2), Verdict(End.RELEASED))[2:6] == ("NEW", 1, "before", False)
    assert judge.settling(row(2), Verdict(End.RELEASED, "away"))[2:6] == ("NEW", 1, "away", False)
    assert judge.settling(row(2, alone=True), Verdict(End.RELEASED, "away"))[2:6] == ("NEW", 1, "before", False)


# --- what its table must be like


def test_a_table_that_fits_gives_each_role_its_column() -> None:
    layout = fit("orders", outbox(), LIVE)
    assert layout.table == ("shop", "orders")
    assert layout.columns["lease"] == "claimed_at"
    assert not any(layout.has(role) for role in ("headers", "created_at", "done_at", "next_attempt_at"))


def test_a_column_that_was_named_must_be_there_and_one_that_was_not_need_not() -> None:
    with pytest.raises(Misconfigured, match=r"ALTER TABLE shop\.orders ADD COLUMN sent_at timestamptz;"):
        fit("orders", outbox(columns={"done_at": "sent_at"}), LIVE)


def test_order_by_key_needs_to_know_what_came_first() -> None:
    with pytest.raises(Misconfigured, match="ADD COLUMN created_at timestamptz NOT NULL"):
        fit("orders", outbox(order="key"), LIVE)


def test_a_topic_for_all_rows_needs_no_column() -> None:
    columns = {name: column for name, column in LIVE.columns.items() if name not in ("topic", "type")}
    layout = fit("orders", outbox(topic="orders", type="order.placed"), LiveTable(columns, LIVE.unique))
    assert not layout.has("topic")
    with pytest.raises(Misconfigured, match=r"ADD COLUMN topic text NOT NULL; .*ADD COLUMN type text NOT NULL;"):
        fit("orders", outbox(), LiveTable(columns, LIVE.unique))


def test_names_that_need_quotes_have_them() -> None:
    with pytest.raises(Misconfigured, match=r'CREATE TABLE shop\."Orders" \("Nr 1" uuid PRIMARY KEY'):
        fit("orders", outbox(table="shop.Orders", columns={"id": "Nr 1"}), None)
    layout = Layout(("shop", "Orders"), fit("orders", outbox(), LIVE).columns, fit("orders", outbox(), LIVE).types)
    statements = compiled(outbox(), layout)
    assert '"shop"."Orders"' in statements.claim.as_string(None)
    assert all(
        each.as_string(None).startswith("-- outbox.")
        for each in (statements.claim, statements.claim_lost, statements.settle, statements.bury, statements.backlog)
    )


@pytest.mark.parametrize(
    "wrong",
    [
        {"table": 'a"; DROP TABLE x; --'},
        {"table": "a.b.c"},
        {"columns": {"id": "%s"}},
        {"words": {"pending": [], "done": "DONE"}},
        {"words": {"pending": ["DONE"], "done": "DONE"}},
        {"channel": "email"},
        {"lease": {"seconds": 1}},
    ],
)
def test_a_description_that_cannot_be_right_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        outbox(**wrong)
