"""What an audit asks of the servers: each thing once, by its index, in portions that fit into a statement's time."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from uuid import uuid4

import psycopg
from psycopg.types.json import Jsonb

from ferryman.evidence import store as shared
from ferryman.evidence.databases import Connection
from support.houses import ACT, Town

ACTS = "INSERT INTO ferryman.outbox_audit (who, act, reason, filter, entries) VALUES (%s, %s, %s, %s, 1)"


class Explaining(psycopg.Cursor[Any]):
    """Keeps the plan of each statement beside its answer."""

    plans: list[dict[str, Any]]

    def execute(self, query: Any, params: Any = None, **more: Any) -> "Explaining":
        explained = psycopg.Cursor(self.connection).execute("EXPLAIN (ANALYZE, FORMAT JSON) " + query, params)
        row = explained.fetchone()
        assert row is not None
        self.plans.append(row[0][0]["Plan"])
        super().execute(query, params, **more)
        return self


def plans_of(db: Connection) -> list[dict[str, Any]]:
    """From here on each statement of a cursor is explained."""
    plans = list[dict[str, Any]]()
    db.cursor_factory = type("Noting", (Explaining,), {"plans": plans})
    return plans


def scans(plan: Mapping[str, Any], table: str) -> Iterator[dict[str, Any]]:
    if plan.get("Relation Name") == table:
        yield dict(plan)
    for each in plan.get("Plans", ()):
        yield from scans(each, table)


def acts(db: Connection, what: str, each: Sequence[Mapping[str, Any]]) -> None:
    with db.cursor() as cursor:
        cursor.executemany(ACTS, [(ACT.who, what, ACT.reason, Jsonb(dict(said))) for said in each])


# --- what was done by hand


def test_what_was_asked_back_by_hand_is_counted_for_each_payment(town: Town) -> None:
    """Once for each act, whatever else was done about it."""
    one, two, none = uuid4(), uuid4(), uuid4()
    named = [[one, two], [one, uuid4()], [one, one]]
    acts(town.desk.db, "reconcile", [{"repair": "give_back", "payments": list(map(str, ids))} for ids in named])
    acts(town.desk.db, "reconcile", [{"repair": "republish", "payments": [str(two), str(none)]}, {"settle": str(two)}])
    found = shared.asked_back(town.desk.db, [one, two, none])
    assert {uuid: (each.attempt, each.by_itself) for uuid, each in found.items()} == {one: (4, False), two: (2, False)}
    rows = town.desk.db.execute("SELECT at FROM ferryman.outbox_audit ORDER BY id").fetchall()
    assert (found[one].at, found[two].at) == (rows[2][0], rows[0][0])
    assert shared.settled(town.desk.db, [one, two, none]) == {two}


def test_what_was_done_by_hand_is_read_once_for_a_page_and_by_its_index(town: Town) -> None:
    """However much was done, and however many payments an act names."""
    page = [uuid4() for _ in range(500)]
    acts(town.desk.db, "replay", [{"n": n} for n in range(3000)])
    acts(town.desk.db, "reconcile", [{"repair": "republish", "payments": [str(uuid4()) for _ in range(50)]}] * 2000)
    acts(town.desk.db, "reconcile", [{"repair": "give_back", "payments": [str(uuid4()) for _ in range(500)]}] * 200)
    acts(
        town.desk.db, "reconcile", [{"repair": "give_back", "payments": list(map(str, page))}, {"settle": str(page[0])}]
    )
    town.desk.db.execute("VACUUM ANALYZE ferryman.outbox_audit")
    plans = plans_of(town.desk.db)
    assert len(shared.asked_back(town.desk.db, page)) == 500
    assert shared.settled(town.desk.db, page) == {page[0]}
    assert len(plans) == 2
    for plan in plans:
        [scan] = scans(plan, "outbox_audit")
        assert (scan["Actual Loops"], scan["Node Type"] != "Seq Scan") == (1, True), plan
