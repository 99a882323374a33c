"""An adopter's consumer as a process, and the topic that it reads."""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen
from uuid import UUID, uuid4

import psycopg
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from support.launch import KillAt, Launched, Launcher
from support.topics import create

Database = psycopg.Connection[tuple[Any, ...]]

WALLET = r"""
import os, time
import psycopg
from psycopg.rows import dict_row
from ferryman import Consumer, Done, Message, Outcome, Received, Refused, Retry, Transient, Unreachable

TOPIC = os.environ["SHOP_TOPIC"]
wallet = Consumer("wallet-" + TOPIC, topics=[TOPIC], connection=psycopg.Connection,
                  mode=os.environ.get("SHOP_MODE", "effectively_once"),
                  unknown=os.environ.get("SHOP_UNKNOWN", "ignore"))

@wallet.handles("payment.requested")
def deduct(db: psycopg.Connection, payment: Received) -> Outcome:
    misbehave(db, payment.data.get("do"))
    taken = db.execute("UPDATE wallet SET balance = balance - %(amount)s "
                       "WHERE id = %(wallet)s AND balance >= %(amount)s", payment.data)
    db.execute("INSERT INTO effect (payment) VALUES (%s)", (str(payment.id),))
    if "report" in payment.data:
        made = REPORTS[payment.data["report"]]
        return made() if callable(made) else made
    if not taken.rowcount:
        return Refused("INSUFFICIENT_FUNDS", Message("payment.failed", {}, key=payment.key, topic="results"))
    return Done(Message("payment.succeeded", {"of": str(payment.id)}, key=payment.key, topic="results"))

ENTERED = []
REPORTS = {
    "long key": Done(Message("t", {}, key="k" * 3000, topic="results")),
    "impossible topic": Done(Message("t", {}, key="k", topic="results/eu")),
    "large payload": Done(Message("t", b"x" * 1_000_001, key="k", topic="results")),
    "half a character": Done(Message("t", {}, key="\ud800", topic="results")),
    "null byte": Refused("a\0b"),
    "reason that is not a string": Refused(5),
    "id that is not a UUID": Done(Message("t", {}, key="k", topic="results", id="5")),
    "content type that is bytes": Done(Message("t", b"", key="k", topic="results", content_type=b"text/plain")),
    "report that is not a message": lambda: Done("payment.succeeded"),
    "retry without a time": Retry("later", None),
}

def misbehave(db, how):
    if how == "raise":
        raise ValueError("a bug")
    if how == "swallow":
        try:
            db.execute("SELECT 1/0")
        except psycopg.Error:
            pass
    if how == "forget to migrate":
        db.execute("SELECT FROM a_table_that_comes_with_the_next_version")
    if how == "forbidden":
        db.execute("DO $$ BEGIN RAISE insufficient_privilege USING MESSAGE = 'a row of another tenant'; END $$")
    if how == "commit":
        db.commit()
    if how == "rollback":
        db.rollback()
    if how == "COMMIT":
        db.execute("COMMIT")
    if how == "BEGIN AGAIN":
        db.execute("COMMIT")
        db.execute("BEGIN")
    if how == "cursor":
        db.cursor("left").execute("SELECT generate_series(1, 10)")
    if how == "exit":
        os._exit(9)
    if how == "deferred":
        db.execute("INSERT INTO balanced VALUES (1), (1)")
    if how == "savepoint":
        ENTERED.append(db.transaction())
        ENTERED[-1].__enter__()
    if how == "raise half a character":
        raise ValueError("\ud800")
    if how == "rows as dicts":
        db.row_factory = dict_row
    if how == "close":
        db.close()
    if how == "end its session":
        db.execute("SELECT pg_terminate_backend(pg_backend_pid())")
    if how == "unreachable":
        raise Unreachable("the rates service")
    if how == "another database":
        psycopg.connect("host=127.0.0.1 port=1")
    if how == "nap":
        time.sleep(2)
    if how == "slow":
        time.sleep(8)
    if how == "hang":
        time.sleep(600)
    if how == "sleep in sql":
        db.execute("SELECT pg_sleep(600)")
"""
TABLES = """
CREATE TABLE wallet (id text PRIMARY KEY, balance bigint NOT NULL CHECK (balance >= 0));
CREATE TABLE effect (payment text NOT NULL);
CREATE TABLE balanced (entry int UNIQUE DEFERRABLE INITIALLY DEFERRED);
INSERT INTO wallet SELECT 'w' || n, 1000000 FROM generate_series(0, 9) n;
"""


def asked(process: Launched, path: str) -> str:
    """Return what the health endpoint of a process answers."""
    address = json.loads(process.stderr.splitlines()[0])["health"]
    try:
        with urlopen(f"{address}{path}", timeout=5) as answer:
            text: str = answer.read().decode()
    except HTTPError as error:
        with error:
            text = error.read().decode()
    return text


@dataclass
class Shop:
    """One topic, one database, and a consumer of the topic in any number of processes."""

    ferryman: Launcher
    kafka: str
    url: str
    db: Database
    topic: str = ""
    partitions: int = 3
    env: dict[str, str] = field(default_factory=dict)
    sent: dict[UUID, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.topic = create(self.kafka, partitions=self.partitions)
        (self.ferryman.folder / "shop.py").write_text(WALLET)
        self.db.execute(TABLES)
        self.env = {
            "SHOP_TOPIC": self.topic,
            "FERRYMAN_DATABASE_URL": self.url,
            "FERRYMAN_KAFKA__BOOTSTRAP_SERVERS": self.kafka,
            "FERRYMAN_HEALTH__PORT": "0",
            "FERRYMAN_CONSUMER__INSTANCE_ID": "one",
            "FERRYMAN_KAFKA__SESSION_TIMEOUT_MS": "6000",
            "FERRYMAN_KAFKA__HEARTBEAT_INTERVAL_MS": "300",
        }
        self._producer = Producer({"bootstrap.servers": self.kafka, "linger.ms": 2, "log_level": 0})

    @property
    def name(self) -> str:
        return f"wallet-{self.topic}"

    def start(self, *, kill_at: KillAt | None = None, **env: Any) -> Launched:
        return self.ferryman.start("run", "shop:wallet", env={**self.env, **env}, kill_at=kill_at)

    def send(self, amount: int = 1, wallet: int = 0, *, id: UUID | None = None, **more: Any) -> UUID:
        """Send a payment that the wallet's books must show once."""
        identity = id or uuid4()
        self.sent.setdefault(identity, amount)
        body = {"wallet": f"w{wallet}", "amount": amount, **more}
        self.raw(json.dumps(body).encode(), id=identity, key=f"w{wallet}".encode())
        return identity

    def send_amid(self, many: int, **bad: Any) -> UUID:
        """Send one message that misbehaves, with `many` good ones in front of it and behind it, in every partition."""
        for number in range(many):
            self.send(1, number % 10)
        identity = self.send(1, 3, **bad)
        for number in range(many):
            self.send(1, number % 10)
        self.flush()
        return identity

    def raw(
        self, value: bytes | None, *, id: Any = None, key: bytes | None = b"k", kind: str = "payment.requested",
        partition: int = -1, headers: Mapping[str, bytes] | None = None,
    ) -> None:  # fmt: skip
        given = {"ce_id": str(id or uuid4()).encode(), "ce_type": kind.encode(), "content-type": b"application/json"}
        self._producer.produce(
            self.topic, value, key, partition, None, None, 0, list({**given, **(headers or {})}.items())
        )

    def flush(self) -> None:
        assert self._producer.flush(20) == 0

    def reset_offsets(self, offset: int) -> None:
        """Set the group's offsets while it has no members."""
        admin = AdminClient({"bootstrap.servers": self.kafka})
        places = [TopicPartition(self.topic, number, offset) for number in range(self.partitions)]
        deadline = time.monotonic() + 20
        while True:
            [answer] = admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(self.name, places)]).values()
            try:
                if not any(place.error for place in answer.result(30).topic_partitions):
                    return
            except KafkaException:
                pass  # a member is still leaving
            assert time.monotonic() < deadline, "the group's offsets cannot be set"
            time.sleep(0.1)

    def one(self, query: str, *parameters: Any) -> Any:
        row = self.db.execute(query, parameters).fetchone()
        assert row is not None
        return row[0]

    def verdicts(self) -> dict[str, int]:
        rows = self.db.execute(
            "SELECT coalesce(outcome, status), count(*) FROM ferryman.inbox WHERE consumer = %s GROUP BY 1",
            (self.name,),
        )
        return dict(rows.fetchall())

    def settled(self, many: int) -> bool:
        return sum(self.verdicts().values()) >= many

    def books_balance(self) -> None:
        """Check that every payment took effect once (N5), at one moment: another may be under way."""
        with self.db.transaction():
            self.db.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            assert self.one("SELECT count(*) FROM effect") == self.one("SELECT count(DISTINCT payment) FROM effect")
            spent = 10_000_000 - self.one("SELECT sum(balance) FROM wallet")
            effects = {each for (each,) in self.db.execute("SELECT payment FROM effect").fetchall()}
            assert spent == sum(amount for identity, amount in self.sent.items() if str(identity) in effects)

    def reports(self) -> list[tuple[str, str]]:
        rows = self.db.execute("SELECT id::text, type FROM ferryman.outbox WHERE topic = 'results' ORDER BY position")
        return rows.fetchall()
