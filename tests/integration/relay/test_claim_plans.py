"""Claims read few pages, however many rows are done or wait (N10, N12): counted in buffers, not in time."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest
from pydantic import SecretStr

from ferryman import Courier
from ferryman.channels.outcome import Delivered
from ferryman.relay.described.couriers import courier
from ferryman.relay.described.rows import released, settling
from ferryman.relay.described.table import Table, claim_values, settle_values
from ferryman.relay.described.way_out import Room
from ferryman.runtime.postgres import Connection
from ferryman.runtime.settings import Settings
from ferryman.runtime.settings_email import Email
from ferryman.runtime.settings_outbox import Outbox
from ferryman.services.memos.memos_settings import MemosSettings
from ferryman.services.memos.memos_settings import described as mails
from ferryman.services.runner.runner_settings import RunnerSettings, described
from support.hooks import HookTable

MANY = pytest.mark.parametrize("many", [50_000, pytest.param(200_000, marks=pytest.mark.prove)])
VALUES = claim_values(Room(16, each=8))
OF_LOST_ROWS = ("claim_lost", "claim_twice_lost", "bury")

# The other rows: done; due; and waiting for their next attempt. Each has a status, and the hours until it is due.
OTHERS = {"done": ("DONE", -1), "due": ("DUE", -1), "waiting": ("DUE", 1)}
HOOKS = """
INSERT INTO shop.hooks (id, destination, payload, status, next_attempt_at, created_at)
SELECT gen_random_uuid(), %s, '{"n": 1}', %s, now() + make_interval(hours => %s), now() - make_interval(secs => n)
FROM generate_series(1, %s) n
"""
EVENTS = """
INSERT INTO runner.event_outbox
    (event_type, idempotency_key, payload, status, next_attempt_at, created_at, delivered_at)
SELECT 'file', gen_random_uuid(), '{"n": 1}', %(status)s, now() + make_interval(hours => %(hours)s),
       now() - make_interval(secs => n), CASE %(status)s WHEN 'DELIVERED' THEN now() END
FROM generate_series(1, %(count)s) n
"""

MAILS = """
WITH memo AS (
    INSERT INTO memos.memos (memo_number_prefix, department_code, title)
    SELECT 'HR', 'people', 'No. ' || n FROM generate_series(1, %s) n RETURNING id
)
INSERT INTO memos.email_outbox (memo_id, event_type, payload, recipient_email, notification_type)
SELECT id, 'memo.created', '{"subject": "x", "body": "y"}', 'ann@example.com', 'MEMO_CREATED' FROM memo
"""


ATTEMPTS = """
INSERT INTO ferryman.outbox_attempt (outbox, row_id, began_at, outcome)
SELECT 'memos', gen_random_uuid()::text, clock_timestamp(), 'delivered' FROM generate_series(1, 3000)
"""
MEMOS = Outbox.model_validate(mails(MemosSettings(), 15))


@contextmanager
def memos(url: str) -> Iterator[Table]:
    """Give the table of the memos' mails."""
    email = Email(provider="file", path="mails", sender="shop@example.com")
    settings = Settings(database_url=SecretStr(url), outbox={"memos": MEMOS}, email=email)
    with courier("memos", settings).opened() as table:
        yield table


READ_BY_INDEX = "SELECT idx_tup_fetch FROM pg_stat_xact_user_tables WHERE relid = 'shop.hooks'::regclass"


class Cost(NamedTuple):
    """The cost of a statement: its buffers, and the rows that it returned."""

    buffers: int
    rows: int
    scanned: list[str]
    """The relations that it read from end to end."""
    most_read: int
    """The most rows that one node of its plan read."""


def cost(db: Connection, table: Table, name: str, values: Mapping[str, Any] = VALUES) -> Cost:
    """Run a statement as EXPLAIN does, and undo it."""
    explain = b"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON)\n" + table.statements[name]
    with db.transaction(force_rollback=True):
        row = db.execute(explain, values).fetchone()
    assert row is not None
    plan = row[0][0]["Plan"]
    buffers = plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
    return Cost(buffers, plan["Actual Rows"], list(scanned(plan)), max(read(plan)))


def scanned(plan: Mapping[str, Any]) -> Iterator[str]:
    if plan["Node Type"] == "Seq Scan":
        yield plan["Relation Name"]
    for each in plan.get("Plans", []):
        yield from scanned(each)


def read(plan: Mapping[str, Any]) -> Iterator[int]:
    removed = sum(plan.get(f"Rows Removed by {what}", 0) for what in ("Filter", "Join Filter", "Index Recheck"))
    yield (plan["Actual Rows"] + removed) * plan["Actual Loops"]
    for each in plan.get("Plans", []):
        yield from read(each)


def assert_cheap(db: Connection, table: Table, claim: str, rows: int) -> None:
    found = cost(db, table, claim)
    assert (found.rows, found.scanned) == (rows, [])
    assert found.buffers < 30 * rows
    for name in OF_LOST_ROWS:
        found = cost(db, table, name)
        assert (found.rows, found.scanned) == (0, []), name
        assert found.buffers < 50, name


@MANY
@pytest.mark.parametrize("others", OTHERS)
def test_fair_claim_reads_no_rows_of_a_destination_that_gives_none(
    ferryman_database_url: str, ferryman_db: Connection, others: str, many: int
) -> None:
    """N10, N12: 8 rows of each destination that has some."""
    hooks = HookTable(ferryman_database_url, ferryman_db)
    status, hours = OTHERS[others]
    ferryman_db.execute(HOOKS, ("http://dead", {"DONE": "SENT", "DUE": "PENDING"}[status], hours, many))
    ferryman_db.execute(HOOKS, ("http://well", "PENDING", -1, 50))
    ferryman_db.execute("VACUUM ANALYZE shop.hooks")
    with hooks.courier() as turns:
        assert_cheap(ferryman_db, turns.table, "claim_fair", 16 if others == "due" else 8)


def test_fair_claim_reads_no_rows_before_its_place_by_a_generic_plan(hooks: HookTable) -> None:
    """N10, N12: a prepared statement is soon planned for any place to go on from, the start among them."""
    hooks.db.execute(HOOKS, ("a", "PENDING", -1, 2000))
    hooks.db.execute(HOOKS, ("b", "PENDING", -1, 1))
    hooks.db.execute("ANALYZE shop.hooks")
    with hooks.courier() as turns:
        db = turns.table.connection
        db.prepare_threshold = 0
        db.execute("SET plan_cache_mode = force_generic_plan")
        for after, wanted in ((None, ["a", "b"]), ("a", ["b"])):
            with db.transaction(force_rollback=True):
                rows, _ = turns.table.claim_fair(Room(16, each=1), after)
                read = db.execute(READ_BY_INDEX).fetchone()
            assert [row.destination for row in rows] == wanted
            assert read is not None
            assert read[0] < 30


@MANY
@pytest.mark.parametrize("others", OTHERS)
def test_claim_of_events_reads_none_that_are_not_due(
    ferryman_database_url: str, ferryman_db: Connection, others: str, many: int
) -> None:
    """N10, N12: after a long outage of the runner, new events do not wait for those that failed."""
    status, hours = OTHERS[others]
    status = {"DONE": "DELIVERED", "DUE": "FAILED"}[status]
    ferryman_db.execute(EVENTS, {"status": status, "hours": hours, "count": many})
    ferryman_db.execute(EVENTS, {"status": "PENDING", "hours": 0, "count": 50})
    ferryman_db.execute("VACUUM ANALYZE runner.event_outbox")
    settings = Settings.model_validate(
        {
            "database_url": ferryman_database_url,
            "outbox": {"runner": {**described(RunnerSettings(url="http://runner"), 15), "unsigned": True}},
        }
    )
    with courier("runner", settings).opened() as table:
        assert_cheap(ferryman_db, table, "claim", 16)


@MANY
def test_claim_of_mails_reads_few_of_those_that_one_transaction_wrote(
    ferryman_database_url: str, ferryman_db: Connection, many: int
) -> None:
    """N12: all of them have the same time, so an order by their ids too would sort them all."""
    ferryman_db.execute(MAILS, (many,))
    ferryman_db.execute("VACUUM ANALYZE memos.email_outbox")
    with memos(ferryman_database_url) as table:
        assert_cheap(ferryman_db, table, "claim", 16)


def test_mails_are_claimed_and_settled_alike_under_a_log_without_statistics(
    ferryman_database_url: str, ferryman_db: Connection
) -> None:
    """N12: the planner takes 3,000 attempts for a few, until autovacuum has counted them."""
    ferryman_db.execute(MAILS, (3000,))
    ferryman_db.execute("VACUUM ANALYZE memos.email_outbox")
    ferryman_db.execute(ATTEMPTS)
    with memos(ferryman_database_url) as table:
        ended = [settling(MEMOS, row, Delivered(), row.edition) for row in table.claim(16)]
        not_tried = [released(row) for row in table.claim(16)]
        assert cost(ferryman_db, table, "claim").most_read <= 16
        for settled in (ended, not_tried):
            assert cost(ferryman_db, table, "settle", settle_values(settled)).most_read <= 16


@pytest.mark.parametrize("own", [False, True], ids=["bounded contents", "contents of any size"])
@pytest.mark.parametrize("name", ["claim", "claim_fair", *OF_LOST_ROWS])
def test_claim_converts_each_content_once(hooks: HookTable, name: str, own: bool) -> None:
    """Its size is compared with the bound, returned, and so is the content: a large jsonb takes long to convert."""
    with hooks.courier(Courier("worker", outbox="hooks") if own else None) as turns:
        plan = hooks.db.execute(b"EXPLAIN (VERBOSE)\n" + turns.table.statements[name], VALUES).fetchall()
    conversions = [line for (line,) in plan if "convert_to" in line]
    assert len(conversions) == 1
    assert conversions[0].count("convert_to") == 1
