"""An audit asks for each thing once, by its index, in portions that fit into a statement's time."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg.types.json import Jsonb

from ferryman.evidence.audit import finishing
from ferryman.evidence.messages import tuples
from ferryman.evidence.sides import Connection
from ferryman.runtime.errors import Misconfigured
from ferryman.services.payments.evidence import audit_store, auditing, case
from ferryman.services.payments.evidence.audit_store import HeldBalance
from ferryman.services.payments.evidence.auditing import PaymentAudit, begin
from support.town import ACT, Town, damage, sides_of

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


def test_amounts_asked_back_by_hand_are_counted_for_each_payment(town: Town) -> None:
    """Once for each act, whatever else was done about it."""
    one, two, none = uuid4(), uuid4(), uuid4()
    named = [[one, two], [one, uuid4()], [one, one]]
    acts(town.desk.db, "reconcile", [{"repair": "give_back", "payments": list(map(str, ids))} for ids in named])
    acts(town.desk.db, "reconcile", [{"repair": "republish", "payments": [str(two), str(none)]}, {"settle": str(two)}])
    found = case.asked_back(town.desk.db, [one, two, none])
    assert {uuid: each.attempt for uuid, each in found.items()} == {one: 4, two: 2}
    rows = town.desk.db.execute("SELECT at FROM ferryman.outbox_audit ORDER BY id").fetchall()
    assert (found[one].at, found[two].at) == (rows[2][0], rows[0][0])
    assert case.settled(town.desk.db, [one, two, none]) == {two}
    assert case.by_hand(town.desk.db, [one, two, none]) == {one: 3, two: 2, none: 1}


def test_acts_by_hand_are_read_once_for_a_page_and_by_their_index(town: Town) -> None:
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
    assert len(case.asked_back(town.desk.db, page)) == 500
    assert case.settled(town.desk.db, page) == {page[0]}
    assert len(plans) == 2
    for plan in plans:
        [scan] = scans(plan, "outbox_audit")
        assert (scan["Actual Loops"], scan["Node Type"] != "Seq Scan") == (1, True), plan


# --- what wallets hold


def holds(town: Town, rows: int, wallets: int = 1) -> list[UUID]:
    """Wallets whose ledgers have so many rows each, all decided at few moments."""
    opened = [town.books.open(rows) for _ in range(wallets)]
    with damage(town.books.db):
        town.books.db.execute(
            "INSERT INTO wallet.ledger (request_id, step, kind, wallet_id, amount, currency, balance, decided_at) "
            "SELECT gen_random_uuid(), 'deduct', 'DEDUCT', w, -1, 'EUR', 0, "
            "now() - interval '1 day' + n / 7 * interval '1 s' FROM generate_series(1, %s) n, unnest(%s::uuid[]) w",
            (rows - 1, opened),
        )  # fmt: skip
        town.books.db.execute("UPDATE wallet.wallets SET balance = 1 WHERE id = ANY (%s)", (opened,))
    return opened


def test_ledgers_are_summed_from_the_index_in_one_statement_with_their_balances(town: Town) -> None:
    wallets = holds(town, 200, wallets=100)
    town.books.db.execute("VACUUM ANALYZE wallet.ledger, wallet.wallets")
    plans = plans_of(town.books.db)
    found = audit_store.held(town.books.db, wallets, 1_000)
    assert found == [HeldBalance(uuid, "EUR", 1, 1, 199, 200) for uuid in wallets]
    [summed, opened, future] = scans(plans[0], "ledger")
    assert (summed["Node Type"], summed["Heap Fetches"], summed["Actual Rows"]) == ("Index Only Scan", 0, 200)
    assert (opened["Node Type"], opened["Index Name"], opened["Actual Rows"]) == ("Index Scan", "ledger_opened", 1)
    assert (future["Node Type"], future["Index Name"], future["Actual Rows"]) == ("Index Scan", "ledger_of_wallet", 0)


def test_page_of_wallets_skips_through_the_ledger(town: Town) -> None:
    """N12: a wallet that is gone is found by its ledger, of which a page reads a row for each wallet."""
    holds(town, 200, wallets=20)
    gone = town.books.open(1)
    with damage(town.books.db):
        town.books.db.execute("DELETE FROM wallet.wallets WHERE id = %s", (gone,))
    town.books.db.execute("VACUUM ANALYZE wallet.ledger, wallet.wallets")
    expected, found = sorted(town.books.opened), list[UUID]()
    plans = plans_of(town.books.db)
    while page := tuples(town.books.db, audit_store.WALLETS_AFTER, {"after": found[-1] if found else None, "most": 5}):
        found += [uuid for (uuid,) in page]
    assert found == expected
    for plan in plans:
        read = [(each["Node Type"], each["Actual Rows"] * each["Actual Loops"]) for each in scans(plan, "ledger")]
        assert {node for node, _ in read} == {"Index Only Scan"}
        assert sum(rows for _, rows in read) <= 6


def test_long_ledger_is_summed_in_portions_of_one_snapshot(town: Town, monkeypatch: Any) -> None:
    """Whatever is booked between two of them, and however many of its rows were decided at the same moment."""
    monkeypatch.setattr(auditing, "_LEDGER_ROWS", 50)
    monkeypatch.setattr(auditing, "_MANY_LEDGER_ROWS", 10)
    [long], [short] = holds(town, 100), holds(town, 50)
    portions, really = list[tuple[int, int]](), audit_store.booked_after

    def meanwhile(db: Connection, wallet: UUID, moment: datetime | None, most: int) -> tuple[int, int, datetime | None]:
        found = really(db, wallet, moment, most)
        portions.append(found[:2])
        assert len(portions) < 50, "what is booked meanwhile is of another snapshot"
        with psycopg.connect(db.info.dsn, password=db.info.password, autocommit=True) as other, damage(other):
            other.execute("UPDATE wallet.wallets SET balance = balance + 1 WHERE id = %s", (wallet,))
            other.execute(
                "INSERT INTO wallet.ledger (request_id, step, kind, wallet_id, amount, currency, balance) "
                "VALUES (gen_random_uuid(), 'deduct', 'REFUND', %s, 1, 'EUR', 0)", (wallet,),
            )  # fmt: skip
        return found

    monkeypatch.setattr(audit_store, "booked_after", meanwhile)
    found = list(begin(town.sides).balances([long, short]))
    assert found == [HeldBalance(long, "EUR", 1, 1, 99, 100), HeldBalance(short, "EUR", 1, 1, 49, 50)]
    assert len(portions) > 5
    assert town.books.db.isolation_level is None
    booked = 1 + len(portions)
    assert next(begin(town.sides).balances([long])).booked == booked


def test_fewer_wallets_are_summed_at_once_if_a_statement_takes_too_long(town: Town) -> None:
    """A row of the ledger takes a hundredth of a second here, twice for each wallet: it is summed, and was opened."""
    wallets = [town.books.open(7) for _ in range(40)]
    town.books.db.execute("ALTER TABLE wallet.ledger ENABLE ROW LEVEL SECURITY")
    town.books.db.execute("CREATE POLICY slow ON wallet.ledger USING (pg_sleep(0.01) IS NOT NULL)")
    audit = limited(town, 0.5)
    slow = limited(town, 0.005)
    town.books.db.execute("SET ROLE ferryman_monitor")
    assert [(each.id, each.booked) for each in audit.balances(wallets)] == [(each, 7) for each in wallets]
    with (
        pytest.raises(Misconfigured, match=r"the audit did not finish.*database\.statement_timeout_seconds"),
        finishing(),
    ):
        list(slow.balances(wallets))


def limited(town: Town, seconds: float) -> PaymentAudit:
    """Return an audit of which no statement may take longer."""
    limits = town.settings.database.model_copy(update={"statement_timeout_seconds": seconds})
    settings = town.settings.model_copy(update={"database": limits})
    return begin(sides_of(town.desk.db, town.books.db, settings))
