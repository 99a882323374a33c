"""`ferryman run wallet` between two databases: commands come from one outbox, results go to the other."""

import secrets
import signal
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from confluent_kafka.admin import AdminClient

from ferryman import Message, append_many, use_schemas
from ferryman.schemas import active
from ferryman.schemas.codec import Codecs
from ferryman.testing import stack
from support.launch import KillAt, Launched, Launcher
from support.published import read_topic
from support.topics import create
from support.walleting import TYPES, Books

# The topics and the group have the names that they have everywhere: one test at a time.
pytestmark = [pytest.mark.real_kafka, pytest.mark.serial]

KILLED = (
    KillAt("ferryman.services.wallet.store:book", "after", 2),  # before its batch is committed
    KillAt("ferryman.consumer.kafka.group:GroupMember.commit", "before", 2),  # after that, and before the offsets are
)
COMMANDS, RESULTS = "payments.commands", "wallet.results"


@dataclass
class Payments:
    """A sender of commands with its own database and outbox, and the wallet's database."""

    ferryman: Launcher
    kafka: str
    ours: str
    wallets: str
    books: Books
    codecs: Codecs

    def ask(self, kind: str, of: UUID, request: UUID, amount: int = 100, attempt: int = 1) -> Message:
        data: dict[str, Any] = {"request_id": request, "step": "deduct", "attempt": attempt, "wallet_id": of}
        if kind != "CANCEL":
            data |= {"amount": amount, "currency": "EUR"}
        return Message(TYPES[kind], data, key=of)

    def send(self, *messages: Message) -> None:
        with psycopg.connect(self.ours) as db:
            append_many(db, messages)
        self.drain(self.ours)

    def drain(self, url: str) -> None:
        drained = self.ferryman.run("drain", "relay", "--json", env=self.environment(url), seconds=30)
        assert drained.wait() == 0, drained.transcript()

    def start(self, kill_at: KillAt | None = None) -> Launched:
        return self.ferryman.start("run", "wallet", env=self.environment(self.wallets), kill_at=kill_at)

    def environment(self, url: str) -> dict[str, str]:
        return {
            "FERRYMAN_DATABASE_URL": url,
            "FERRYMAN_KAFKA__BOOTSTRAP_SERVERS": self.kafka,
            "FERRYMAN_KAFKA__SESSION_TIMEOUT_MS": "6000",
            "FERRYMAN_KAFKA__HEARTBEAT_INTERVAL_MS": "300",
        }

    def decided(self, requests: set[UUID]) -> dict[str, int]:
        rows = self.books.db.execute(
            "SELECT kind || CASE WHEN reason IS NULL THEN ' SUCCEEDED' ELSE ' FAILED' END, count(*) FROM wallet.ledger "
            "WHERE request_id = ANY (%s) GROUP BY 1",
            (list(requests),),
        )
        return dict(rows.fetchall())

    def results(self, requests: set[UUID]) -> list[dict[str, Any]]:
        """Return the events of these payments, as other teams read them."""
        self.drain(self.wallets)
        found = []
        for record in read_topic(self.kafka, RESULTS):
            if UUID(record.key) in requests:
                kind = dict(record.headers)["ce_type"].decode()
                codec = self.codecs.of(kind)
                assert codec is not None
                found.append({"id": record.id, "type": kind, **codec.decode(record.value)})
        return found


@pytest.fixture
def payments(
    ferryman: Launcher, ferryman_kafka: str, ferryman_postgres: str, ferryman_database_url: str
) -> Iterator[Payments]:
    topics_are_there(ferryman_kafka)
    name = f"ferryman_wallet_{secrets.token_hex(6)}"
    url = stack.new_database(ferryman_postgres, name)
    migrated = ferryman.run("migrate", "--for", "wallet", env={"FERRYMAN_DATABASE_URL": url})
    assert migrated.wait() == 0, migrated.transcript()
    with psycopg.connect(url, autocommit=True) as db:
        codecs = use_schemas()
        yield Payments(ferryman, ferryman_kafka, ferryman_database_url, url, Books(db, codecs), codecs)
        active.forget()
    stack.drop_database(ferryman_postgres, name)


def topics_are_there(kafka: str) -> None:
    known = AdminClient({"bootstrap.servers": kafka}).list_topics(timeout=10).topics
    for name in {COMMANDS, RESULTS} - set(known):
        create(kafka, name, partitions=3)


def test_payments_are_taken_once_given_back_once_and_answered(payments: Payments) -> None:
    """N1, N3, N5: batches of duplicated and reordered commands pass through both outboxes."""
    wallets = [payments.books.open(10_000) for _ in range(10)]
    taken, cancelled, stopped, poor = ([uuid4() for _ in range(20)] for _ in range(4))
    messages = []
    for n in range(20):
        of = wallets[n % 10]
        messages += [
            payments.ask("DEDUCT", of, taken[n]),
            payments.ask("DEDUCT", of, taken[n], attempt=2),
            payments.ask("DEDUCT", of, cancelled[n]),
            payments.ask("CANCEL", of, stopped[n]),
            payments.ask("DEDUCT", of, poor[n], amount=1_000_000),
            payments.ask("CANCEL", of, cancelled[n]),
            payments.ask("DEDUCT", of, stopped[n]),
        ]
    payments.send(*messages)
    wallet = payments.start()
    requests = {*taken, *cancelled, *stopped, *poor}
    expected = {"DEDUCT SUCCEEDED": 40, "DEDUCT FAILED": 40, "CANCEL SUCCEEDED": 40}
    wallet.until(lambda: payments.decided(requests) == expected, "outcomes")
    wallet.send(signal.SIGTERM)
    assert wallet.wait() == 0, wallet.transcript()
    assert set(payments.books.balances().values()) == {10_000 - 2 * 100}
    payments.books.balance_out()
    results = payments.results(requests)
    told = Counter((each["kind"], each.get("reason"), each.get("amount")) for each in results)
    assert told == {
        ("DEDUCT", None, 100): 60,
        ("DEDUCT", "INSUFFICIENT_FUNDS", None): 20,
        ("DEDUCT", "CANCELLED", None): 20,
        ("CANCEL", None, 100): 20,
        ("CANCEL", None, 0): 20,
    }
    assert {each["attempt"] for each in results if each["request_id"] in taken} == {1, 2}


def test_commands_that_cannot_be_decoded_are_rejected_and_others_take_effect(payments: Payments) -> None:
    """N10: they are in the middle of a batch, and are kept unchanged."""
    of = payments.books.open(1000)
    before, after = uuid4(), uuid4()
    codec = payments.codecs.of(TYPES["DEDUCT"])
    asked = payments.ask("DEDUCT", of, uuid4()).data
    assert codec is not None
    assert not isinstance(asked, bytes)
    good = codec.encode(asked)
    unreadable = {
        "another magic byte": b"\x01" + good[1:],
        "a schema that nobody knows": good[:1] + (99_999_999).to_bytes(4) + good[5:],
        "an end that is cut off": good[:-3],
        "something behind its end": good + b"\0",
        "nothing at all": b"",
    }
    poison = {uuid4(): value for value in unreadable.values()}
    payments.send(
        payments.ask("DEDUCT", of, before),
        *[Message(TYPES["DEDUCT"], value, key=of, topic=COMMANDS, id=each) for each, value in poison.items()],
        payments.ask("DEDUCT", of, after),
    )
    wallet = payments.start()
    wallet.until(lambda: payments.decided({before, after}) == {"DEDUCT SUCCEEDED": 2}, "the neighbours")
    rejected = payments.books.db.execute("SELECT id, value, code FROM ferryman.inbox_rejected").fetchall()
    assert {(each, bytes(value)) for each, value, _ in rejected} == set(poison.items())
    assert {code for _, _, code in rejected} == {"UNREADABLE"}
    letters = "SELECT count(*) FROM ferryman.outbox WHERE topic = %s"
    assert payments.books.one(letters, f"{COMMANDS}.dlt") == len(poison)
    assert payments.books.balance(of) == 1000 - 2 * 100
    wallet.send(signal.SIGTERM)
    assert wallet.wait() == 0, wallet.transcript()


@pytest.mark.slow
def test_a_killed_and_restarted_wallet_takes_nothing_twice(payments: Payments) -> None:
    """N5. Slow, because the group waits for the session of each killed member to expire."""
    of = payments.books.open(1_000_000)
    requests = [uuid4() for _ in range(3000)]
    payments.send(*[payments.ask("DEDUCT", of, each, amount=1) for each in requests])
    for killed in KILLED:
        assert payments.start(killed).wait(40) == -signal.SIGKILL
        payments.books.balance_out()
    wallet = payments.start()
    wallet.until(lambda: payments.books.balance(of) == 1_000_000 - 3000, "the last of them")
    wallet.send(signal.SIGTERM)
    assert wallet.wait() == 0, wallet.transcript()
    payments.books.balance_out()
    assert {each["request_id"] for each in payments.results(set(requests))} == set(requests)


def test_a_database_without_the_wallets_tables_is_refused_with_the_remedy(
    ferryman: Launcher, ferryman_kafka: str, ferryman_postgres: str
) -> None:
    name = f"ferryman_wallet_{secrets.token_hex(6)}"
    url = stack.new_database(ferryman_postgres, name)
    environment = {"FERRYMAN_DATABASE_URL": url, "FERRYMAN_KAFKA__BOOTSTRAP_SERVERS": ferryman_kafka}
    assert ferryman.run("migrate", env=environment).wait() == 0
    wallet = ferryman.run("run", "wallet", env=environment)
    assert wallet.wait() == 3, wallet.transcript()
    assert "ferryman migrate --for wallet" in wallet.stderr
    stack.drop_database(ferryman_postgres, name)
