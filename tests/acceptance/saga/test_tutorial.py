"""The tutorial of docs/sagas.md, as it is written: its files, its tables and its processes, each killed."""

import importlib
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from ferryman.saga.ddl import table
from support.launch import Launched, Launcher
from support.sources import ROOT

Database = psycopg.Connection[tuple[Any, ...]]
pytestmark = pytest.mark.real_kafka

PAGE = (ROOT / "docs" / "sagas.md").read_text()
TOPICS = ("shop.commands", "stock.results", "bank.results")
GROUPS = ('"orders", Order', 'Consumer("store"', 'Consumer("bank"')
SERVICES = ("relay", "shop.orders:orders", "shop.store:store", "shop.bank:bank")
PAID, ORDERED, BOOKS = 20, 40, 30


def written(folder: Path, tag: str) -> None:
    """Write the files of the page, with names of topics and groups that no other test uses."""
    for name, text in re.findall(r"^```(?:python|sql)\n(?:#|--) (shop/\S+)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL):
        ours = text
        for topic in TOPICS:
            ours = ours.replace(f'"{topic}"', f'"{topic}-{tag}"')
        for group in GROUPS:
            ours = ours.replace(group, re.sub(r'"(\w+)"', rf'"\1_{tag}"', group))
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(ours)


class Shop:
    """The shop of the page, with a process for each service."""

    def __init__(self, folder: Path, ferryman: Launcher, kafka: str, url: str, db: Database) -> None:
        self.tag = uuid4().hex[:8]
        self.folder, self.ferryman, self.db = folder, ferryman, db
        self.settings = {
            "FERRYMAN_DATABASE_URL": url, "FERRYMAN_KAFKA__BOOTSTRAP_SERVERS": kafka,
            "FERRYMAN_KAFKA__SESSION_TIMEOUT_MS": "6000",
        }  # fmt: skip
        written(folder, self.tag)
        self.python("shop.topics")
        made = ferryman.run("saga", "sql", "shop.orders:orders", "--new", env=self.settings)
        assert made.wait() == 0, made.transcript()
        db.execute(made.stdout.encode())
        db.execute((folder / "shop" / "participants.sql").read_bytes())
        self.running: dict[str, Launched] = {}

    def start(self, service: str) -> None:
        self.running[service] = self.ferryman.start("run", service, env=self.settings)

    def order(self, many: int) -> list[str]:
        return self.python("shop.order", str(many))

    def python(self, module: str, *arguments: str) -> list[str]:
        """Run a module of the page, and return the lines that it prints."""
        command = [sys.executable, "-m", module, *arguments]
        env = {"PYTHONPATH": str(self.folder), **self.settings}
        done = subprocess.run(command, cwd=self.folder, env=env, capture_output=True, text=True, check=True)
        return done.stdout.splitlines()

    def ended(self) -> dict[str, int]:
        return dict(
            self.db.execute("SELECT state, count(*) FROM shop.orders WHERE due_at IS NULL GROUP BY 1").fetchall()
        )

    def one(self, query: str) -> Any:
        row = self.db.execute(query).fetchone()
        assert row is not None
        return row[0]

    def books_balance(self) -> None:
        """Check that nothing was reserved or charged twice, and nothing kept that was cancelled."""
        assert self.ended() == {"DONE": PAID, "CANCELLED": ORDERED - PAID}
        assert self.one("SELECT balance FROM shop.account") == 0
        assert self.one("SELECT pieces FROM shop.stock") == BOOKS - PAID
        kept = "SELECT count(*) FROM shop.reservations JOIN shop.orders ON id = order_id WHERE {}"
        assert self.one(kept.format("orders.state = 'DONE' AND reservations.state = 'RESERVED'")) == PAID
        assert self.one(kept.format("orders.state = 'CANCELLED' AND reservations.state = 'RESERVED'")) == 0
        assert self.one("SELECT count(*) FROM shop.orders WHERE state = 'DONE' AND reservation IS NULL") == 0


@pytest.fixture
def shop(
    tmp_path: Path, ferryman: Launcher, ferryman_kafka: str, ferryman_database_url: str, ferryman_db: Database
) -> Shop:
    return Shop(tmp_path, ferryman, ferryman_kafka, ferryman_database_url, ferryman_db)


def test_every_order_of_the_tutorial_ends_once_however_its_processes_are_killed(shop: Shop) -> None:
    """N1, N5, N7, N9, N11."""
    assert set(shop.order(ORDERED)) == {"RESERVING new"}
    for service in SERVICES:
        shop.start(service)
    chance, deadline = random.Random(20), time.monotonic() + 60
    for service in chance.sample(SERVICES * 2, 8):
        shop.running[service].until(lambda: True, service)
        seen = sum(shop.ended().values())
        while sum(shop.ended().values()) in (seen, 0) and time.monotonic() < deadline and seen < ORDERED // 2:
            time.sleep(0.02)
        shop.running[service].kill()
        shop.start(service)
    shop.running["relay"].until(lambda: sum(shop.ended().values()) == ORDERED, "end of every order", 120)
    shop.books_balance()
    assert set(shop.order(1)) & {"DONE known", "CANCELLED known"}
    for each in shop.running.values():
        each.send(signal.SIGTERM)
    assert [each.wait() for each in shop.running.values()] == [0] * len(SERVICES)


@pytest.mark.slow
def test_proof_of_the_page_holds(tmp_path: Path, ferryman_db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """N1, N11. This is slow because it proves three results, each crashed at each of its steps."""
    written(tmp_path, "proof")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for name in [each for each in sys.modules if each.partition(".")[0] == "shop"]:
        monkeypatch.delitem(sys.modules, name)
    orders = importlib.import_module("shop.orders").orders
    (tmp_path / "shop" / "orders.sql").write_text(table(orders))
    importlib.import_module("shop.test_orders").test_order_without_money_keeps_no_item(ferryman_db)
    for name in [each for each in sys.modules if each.partition(".")[0] == "shop"]:
        monkeypatch.delitem(sys.modules, name)


def test_person_sees_and_moves_an_order_that_waits(shop: Shop) -> None:
    """N14: what it would do, what it does, and who did it."""
    shop.order(1)
    identity = str(UUID(int=1))
    shop.db.execute("UPDATE shop.orders SET due_at = 'infinity'")
    shop.settings["FERRYMAN_SAGAS"] = '["shop.orders:orders"]'

    def asked(*arguments: str) -> Launched:
        return shop.ferryman.run("saga", *arguments, env=shop.settings)

    [waiting] = asked("list", f"orders_{shop.tag}", "--waiting", "--json").json["sagas"]
    assert (waiting["id"], waiting["state"], waiting["due_at"]) == (identity, "RESERVING", "infinity")
    shown = asked("show", "shop.orders:orders", identity)
    traced = shop.ferryman.run("trace", identity, "--no-kafka", env=shop.settings)
    assert traced.wait() == 0, traced.transcript()
    assert "ferryman run relay" in traced.stdout
    for said in (
        "The store is asked.",
        "stock.out leads to CANCELLED",
        "timeout leads to RELEASING",
        "waits for a person",
    ):
        assert said in shown.stdout
    move = ("move", "shop.orders:orders", "--id", identity, "--to")
    dry = asked(*move, "CANCELLED")
    assert "would move" in dry.stdout
    assert shop.one("SELECT state FROM shop.orders") == "RESERVING"
    done = asked(*move, "CANCELLED", "--yes", "--reason", "the customer called", "--who", "ada")
    assert done.wait() == 0, done.transcript()
    assert shop.one("SELECT state FROM shop.orders") == "CANCELLED"
    assert shop.db.execute("SELECT who, act, reason FROM ferryman.outbox_audit").fetchall() == [
        ("ada", "move", "the customer called")
    ]
    shop.db.execute(
        "INSERT INTO ferryman.saga_stray (machine, message_id, saga_id, why, type, data) "
        f"VALUES ('orders_{shop.tag}', gen_random_uuid(), '{identity}', 'LATE', 'stock.reserved', '{{}}')".encode()
    )
    ended = asked("show", "shop.orders:orders", identity)
    assert "it is over since" in ended.stdout
    assert "moved nothing" in ended.stdout
    over = asked(*move, "RELEASING", "--yes", "--reason", "no")
    assert over.wait() == 1
    assert "the saga is over: it is CANCELLED" in over.stderr


def test_person_sends_a_command_once_more_and_is_told_where_no_way_leads(shop: Shop) -> None:
    shop.order(1)
    move = ("saga", "move", "shop.orders:orders", "--id", str(UUID(int=1)), "--yes", "--reason", "try again")
    again = shop.ferryman.run(*move, env=shop.settings)
    assert again.wait() == 0, again.transcript()
    assert shop.one("SELECT attempt FROM shop.orders") == 2
    assert shop.one("SELECT count(DISTINCT id) FROM ferryman.outbox WHERE type = 'stock.reserve'") == 2
    wrong = shop.ferryman.run(*move, "--to", "DONE", env=shop.settings)
    assert wrong.wait() == 1
    assert "no way leads from RESERVING to DONE" in wrong.stderr


def test_sql_of_a_live_table_is_what_it_lacks(shop: Shop) -> None:
    def sql() -> Launched:
        return shop.ferryman.run("saga", "sql", "shop.orders:orders", env=shop.settings)

    assert (sql().wait(), sql().stdout) == (0, "")
    shop.db.execute(f"DROP TRIGGER orders_{shop.tag}_goes ON shop.orders")
    lacking = sql()
    assert lacking.wait() == 1
    shop.db.execute(lacking.stdout.encode())
    assert sql().wait() == 0
    for other in ("shop.store:store", "shop.orders:Order"):
        refused = shop.ferryman.run("saga", "draw", other, env=shop.settings)
        assert refused.wait() == 3
        assert f"{other} is not a saga" in refused.stderr
    shop.db.execute("DROP TABLE shop.orders")
    gone = shop.ferryman.run("saga", "list", "shop.orders:orders", env=shop.settings)
    assert gone.wait() == 3
    assert "the table shop.orders of the saga" in gone.stderr
