"""Described outboxes without a database: decisions on rows, and requirements on the table."""

import re
from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import ValidationError

from ferryman.channels.outcome import Delivered, Held, Rejected, Retry, Unavailable, Unknown
from ferryman.relay.described.layout import Layout, LiveColumn, LiveTable, fit, flaws
from ferryman.relay.described.rows import Claimed, RowEnd, released, settling
from ferryman.relay.described.statements import compiled
from ferryman.runtime.errors import Misconfigured
from ferryman.runtime.settings_outbox import Outbox

AT = datetime(2026, 1, 2, tzinfo=UTC)
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


def row(attempts: int, *, lost: bool = False, error: str | None = "before") -> Claimed:
    return Claimed("an-id", "t", "k", "kind", b"", None, None, 0, attempts, AT, error, "NEW", lost)


# --- what becomes of a row


@pytest.mark.parametrize(
    ("outcome", "attempts", "end"),
    [
        (Delivered(), 1, RowEnd.DONE),
        (Retry("r"), 4, RowEnd.FAILED),
        (Retry("r"), 5, RowEnd.GIVEN_UP),
        (Rejected("x"), 1, RowEnd.GIVEN_UP),
        (Unknown("away"), 5, RowEnd.RELEASED),
        (Unavailable("refused"), 5, RowEnd.RELEASED),
        (None, 5, RowEnd.RELEASED),
    ],
)
def test_only_a_rows_own_failures_count(outcome: Any, attempts: int, end: RowEnd) -> None:
    """N8: an outage does not count as an attempt, unless the description says so."""
    found = settling(outbox(), row(attempts), outcome, "hash", 0.5)
    assert (found.end, found.outcome, found.content, found.seconds) == (end, outcome, "hash", 0.5)


@pytest.mark.parametrize("outcome", [Unknown("away"), Unavailable("refused")])
def test_outages_count_where_the_description_says_so(outcome: Any) -> None:
    counting = outbox(retry={"count_outages": True})
    assert settling(counting, row(4), outcome).end is RowEnd.FAILED
    assert settling(counting, row(5), outcome).end is RowEnd.GIVEN_UP
    assert settling(counting, row(5), None).end is RowEnd.RELEASED


@pytest.mark.parametrize(("age", "end"), [(59, RowEnd.RELEASED), (61, RowEnd.FAILED)])
def test_outage_counts_for_mails_that_have_waited_too_long(age: float, end: RowEnd) -> None:
    """N8: rows wait, and nothing is burned, until `max_outage_seconds`, if it is set."""
    waiting = row(1)._replace(created_us=1_000_000)
    mails = outbox(channel="email", retry={"max_outage_seconds": 60})
    assert settling(mails, waiting, Unavailable("away"), now=1.0 + age).end is end
    assert settling(outbox(channel="email"), waiting, Unavailable("away"), now=1.0 + age).end is RowEnd.RELEASED
    assert settling(mails, waiting._replace(created_us=0), Unavailable("away"), now=1e9).end is RowEnd.RELEASED
    assert "created_at" in str(flaws(mails, LIVE))
    for channel in ("kafka", "http"):
        with pytest.raises(ValidationError, match="max_outage_seconds"):
            outbox(channel=channel, retry={"max_outage_seconds": 60})


@pytest.mark.parametrize("why", [Unknown("away"), Unavailable("away", in_doubt=True)])
def test_last_attempt_of_a_mail_that_leaves_doubt_is_left_to_a_person(why: Any) -> None:
    """N3: also where outages count."""
    mails = outbox(channel="email", words={**WORDS, "dead": "DEAD"}, retry={"count_outages": True})
    assert settling(mails, row(5), why)[1:4] == (RowEnd.GIVEN_UP, "DEAD", "in doubt: away")
    assert settling(mails, row(5), Retry("busy"))[1:4] == (RowEnd.GIVEN_UP, "DEAD", "busy")


@pytest.mark.parametrize("why", [Retry("no"), Rejected("no"), Unavailable("no")])
@pytest.mark.parametrize("known", [{"doubt_seconds": 0.0}, {"reference": "re-1"}])
def test_end_of_a_mail_says_that_an_earlier_attempt_may_have_arrived(why: Any, known: Any) -> None:
    """N3: else it would be replayed with the mails that were never sent."""
    mails = outbox(channel="email", words={**WORDS, "dead": "DEAD"}, retry={"count_outages": True})
    assert settling(mails, row(5)._replace(**known), why)[1:4] == (RowEnd.GIVEN_UP, "DEAD", "in doubt: no")
    hooks = outbox(channel="http", unsigned=True, retry={"limit": 5})
    assert settling(hooks, row(5)._replace(**known), why).error == "no", "a receiver finds duplicates by the id"
    assert settling(hooks, row(5), Held("no")).error == "in doubt: no", "unless a channel of the user's own says so"


def test_wait_after_a_failure_doubles() -> None:
    waiting = outbox(retry={"base_seconds": 2, "cap_seconds": 5})
    assert [settling(waiting, row(n), Retry("r")).wait_seconds for n in (1, 2, 3)] == [2, 4, 5]


def test_jitter_shortens_a_wait_and_retry_after_lengthens_it() -> None:
    waiting = outbox(retry={"base_seconds": 10, "cap_seconds": 300, "jitter": 0.5})
    assert settling(waiting, row(1), Retry("r"), dice=0.5).wait_seconds == 7.5
    assert settling(waiting, row(1), Retry("r", after_seconds=60), dice=0.5).wait_seconds == 60
    assert settling(waiting, row(1), Retry("r", after_seconds=1)).wait_seconds == 10


def test_retry_after_is_kept_beyond_the_cap_of_retries_up_to_a_week() -> None:
    """The channel bounds what a receiver may ask for; a week bounds what a channel of a user's own may."""
    waiting = outbox(retry={"base_seconds": 10, "cap_seconds": 300})
    assert settling(waiting, row(1), Retry("r", after_seconds=3600)).wait_seconds == 3600
    assert settling(waiting, row(1), Retry("r", after_seconds=1e300)).wait_seconds == 604_800


def test_without_a_word_for_dead_rows_stay_pending_and_rejected_ones_are_retried() -> None:
    described = outbox(words={"pending": ["PENDING"], "done": "PUBLISHED"})
    assert settling(described, row(1), Rejected("x")).end is RowEnd.FAILED
    last = settling(described, row(5), Rejected("x"))
    assert (last.row.id, last.row.claimed_at) == ("an-id", AT)
    assert (last[1:5], last.counts) == ((RowEnd.GIVEN_UP, "PENDING", "x", None), True)


def test_settling_writes_the_expected_columns() -> None:
    """Successes and outages take their attempt back; a released row is unchanged, except for its error."""
    done, failed = settling(outbox(), row(2), Delivered()), settling(outbox(), row(2), Retry("why"))
    assert (done[1:5], done.counts) == ((RowEnd.DONE, "SENT", None, None), False)
    assert (failed[1:5], failed.counts) == ((RowEnd.FAILED, "AGAIN", "why", 2.0), True)
    dead, back = settling(outbox(), row(5), Retry("why")), settling(outbox(), row(2), None)
    assert (dead[1:5], dead.counts) == ((RowEnd.GIVEN_UP, "DEAD", "why", None), True)
    assert (back[1:5], back.counts) == ((RowEnd.RELEASED, "NEW", "before", None), False)
    assert back == released(row(2))
    assert settling(outbox(), row(2), Unknown("away"))[2:5] == ("NEW", "away", None)
    assert settling(outbox(), row(2, lost=True), Unknown("away"))[2:5] == ("NEW", "before", None)


# --- what its table must be like


def test_table_that_fits_gives_each_role_its_column() -> None:
    layout = fit("orders", outbox(), LIVE)
    assert layout.table == ("shop", "orders")
    assert layout.columns["lease"] == "claimed_at"
    assert not any(layout.has(role) for role in ("headers", "created_at", "done_at", "next_attempt_at"))


def test_named_columns_must_exist_and_unnamed_optional_ones_need_not() -> None:
    with pytest.raises(Misconfigured, match=r"ALTER TABLE shop\.orders ADD COLUMN sent_at timestamptz;"):
        fit("orders", outbox(columns={"done_at": "sent_at"}), LIVE)


def test_order_by_key_needs_to_know_what_came_first() -> None:
    with pytest.raises(Misconfigured, match="ADD COLUMN created_at timestamptz NOT NULL"):
        fit("orders", outbox(order="key"), LIVE)


def test_topic_for_all_rows_needs_no_column() -> None:
    columns = {name: column for name, column in LIVE.columns.items() if name not in ("topic", "type")}
    layout = fit("orders", outbox(topic="orders", type="order.placed"), LiveTable(columns, LIVE.unique))
    assert not layout.has("topic")
    with pytest.raises(Misconfigured, match=r"ADD COLUMN topic text; .*ADD COLUMN type text;"):
        fit("orders", outbox(), LiveTable(columns, LIVE.unique))


@pytest.mark.parametrize(
    ("described", "why"),
    [
        ({"retry": {"jitter": 0.2}}, "next_attempt_at: retry.jitter needs it"),
        ({"order": "key"}, 'created_at: order = "key" needs it'),
        (
            {"columns": {"reference": "their_id"}, "channel": "http", "url": "http://h/", "unsigned": True},
            "their_id: columns.reference",
        ),
        ({"channel": "http", "unsigned": True}, "destination: columns.destination can name another, or url"),
        ({"lease": {"column": "leased_at"}}, "leased_at: lease.column"),
        ({"columns": {"error": "why"}}, "why: columns.error names it"),
    ],
)
def test_missing_column_is_told_with_the_setting_that_needs_it(described: dict[str, Any], why: str) -> None:
    [flaw] = flaws(outbox(**described), LIVE)
    assert flaw.why.startswith(f"there is no column {why}")
    with pytest.raises(Misconfigured) as refused:
        fit("orders", outbox(**described), LIVE)
    assert why in refused.value.message


def test_missing_columns_are_added_so_that_rows_that_are_there_can_have_them() -> None:
    """PostgreSQL refuses a new column that is NOT NULL and has no default, if there are rows."""
    mends = [flaw.ddl for flaw in flaws(outbox(order="key"), LiveTable({"nr": LiveColumn("integer")}))]
    assert any("ADD COLUMN id uuid NOT NULL UNIQUE DEFAULT" in mend for mend in mends)
    assert all("DEFAULT" in mend for mend in mends if "NOT NULL" in mend)


def test_new_table_for_http_has_no_column_that_http_does_not_need() -> None:
    [flaw] = flaws(outbox(channel="http", unsigned=True), None)
    names = re.findall(r"[(,] ?(\w+) ", flaw.ddl)
    assert set(names) == {
        "id", "destination", "payload", "status", "attempts", "error", "claimed_at", "created_at", "next_attempt_at",
        "done_at",
    }  # fmt: skip
    [flaw] = flaws(outbox(channel="http", unsigned=True, columns={"type": "kind"}), None, has_schema=False)
    assert flaw.ddl.startswith("CREATE SCHEMA shop; CREATE TABLE shop.orders (")
    assert "kind text NOT NULL" in flaw.ddl


def test_column_with_the_usual_name_of_another_role_keeps_its_own_role_alone() -> None:
    """Else the answer of a mail provider would be written over the key."""
    columns = {**LIVE.columns, "reference": LiveColumn("text"), "destination": LiveColumn("text", nullable=False)}
    table = LiveTable(columns, LIVE.unique)
    assert fit("orders", outbox(channel="http"), table).columns["reference"] == "reference"
    layout = fit("orders", outbox(channel="http", columns={"key": "reference"}), table)
    assert layout.columns["key"] == "reference"
    assert not layout.has("reference")


def test_lease_may_be_the_time_of_the_next_attempt() -> None:
    outbox(lease={"column": "next_attempt_at"}, columns={"next_attempt_at": "next_attempt_at"})


def test_rights_that_lack_are_one_grant_each() -> None:
    columns = {name: each._replace(readable=False, changeable=False) for name, each in LIVE.columns.items()}
    found = flaws(outbox(), LiveTable(columns, LIVE.unique, "hooks_login"))
    assert [flaw.ddl for flaw in found] == [
        "GRANT SELECT ON shop.orders TO hooks_login;",
        "GRANT UPDATE (status, attempts, error, claimed_at) ON shop.orders TO hooks_login;",
    ]


def test_names_that_need_quotes_have_them() -> None:
    with pytest.raises(Misconfigured, match=r'CREATE TABLE shop\."Orders" \("Nr 1" uuid PRIMARY KEY'):
        fit("orders", outbox(table="shop.Orders", columns={"id": "Nr 1"}), None)
    layout = Layout(("shop", "Orders"), fit("orders", outbox(), LIVE).columns, fit("orders", outbox(), LIVE).types)
    statements = compiled("orders", outbox(), layout)
    assert '"shop"."Orders"' in statements["claim"].as_string(None)
    assert statements.keys() == {"claim", "claim_lost", "claim_twice_lost", "settle", "bury", "backlog"}
    assert all(each.as_string(None).startswith("-- outbox.") for each in statements.values())


@pytest.mark.parametrize(
    "wrong",
    [
        {"table": 'a"; DROP TABLE x; --'},
        {"table": "a.b.c"},
        {"columns": {"id": "%s"}},
        {"words": {"pending": [], "done": "DONE"}},
        {"words": {"pending": ["DONE"], "done": "DONE"}},
        {"channel": "pigeon"},
        {"columns": {"payload": "status"}},
        {"columns": {"done_at": "attempts"}},
        {"columns": {"key": "claimed_at"}},
        {"columns": {"reference": "key", "key": "key"}},
        {"lease": {"seconds": 1}},
    ],
)
def test_invalid_description_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        outbox(**wrong)
