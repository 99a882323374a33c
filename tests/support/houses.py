"""Both databases of payments without Kafka: what one appended is handed to the other's handlers by its own id."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import psycopg
from psycopg import conninfo

from ferryman import Received, use_schemas
from ferryman.consumer.decoding import hash_of
from ferryman.consumer.model import Poison, Record
from ferryman.consumer.store import rejected
from ferryman.consumer.store.receipts import Verdict, record
from ferryman.evidence.databases import Databases
from ferryman.evidence.reconcile import repair as repairing
from ferryman.evidence.reconcile import walk
from ferryman.evidence.reconcile.model import Case
from ferryman.evidence.reconcile.repair import Repaired
from ferryman.evidence.reconcile.walk import House
from ferryman.runtime.desk import Act
from ferryman.runtime.settings import Settings
from ferryman.schemas import active
from ferryman.schemas.codec import Codecs
from ferryman.services.payments.rules import Rules
from ferryman.services.payments.store import Request
from ferryman.testing import house as real
from support.paying import Desk
from support.walleting import Books, transact

Database = psycopg.Connection[tuple[Any, ...]]
ACT = Act("ann@desk", "because")
COMMANDS, RESULTS = "payments.commands", "wallet.results"

_PUBLISH_ALL = """
WITH w AS (
    INSERT INTO ferryman.outbox_window (snapshot, position_at, horizon)
    SELECT pg_current_snapshot(), coalesce((SELECT max(position) FROM ferryman.outbox), 0), pg_current_xact_id()
    RETURNING id
)
INSERT INTO ferryman.outbox_cursor (lane, generation, done, position, settled)
SELECT l.lane, l.generation + 1, w.id, 0, l.settled FROM ferryman.outbox_lanes l, w
"""


@dataclass
class Town:
    """An orchestrator and a wallet, each on a database of its own, and what travels between them by hand."""

    desk: Desk
    books: Books
    settings: Settings
    codecs: Codecs
    processes: tuple[Database, ...] = ()
    """Sessions under the names of both consumers, as they have while they run."""

    @property
    def house(self) -> House:
        return House.of(self.databases, self.settings)

    @property
    def databases(self) -> Databases:
        return Databases(self.desk.db, self.books.db)

    # --- what happens

    def asks(self, amount: int = 500, balance: int = 10_000, **more: Any) -> Request:
        """A payment of a wallet that is there, recorded; its command is in the outbox."""
        return self.desk.request(wallet_id=self.books.open(balance), amount=amount, **more)

    def commands(self, *payments: Request) -> list[Received]:
        """Those that the orchestrator appended for the wallet, in order."""
        return self._appended(self.desk.db, COMMANDS, payments)

    def results(self, *payments: Request) -> list[Received]:
        return self._appended(self.books.db, RESULTS, payments)

    def consume(self, *payments: Request) -> None:
        """The wallet handles what it has not, as its loop would."""
        if messages := self.commands(*payments):
            transact(self.books.db, messages)

    def answer(self, *payments: Request) -> None:
        """The orchestrator applies what it has not."""
        if messages := self.results(*payments):
            self.desk.apply(*messages)

    def published(self, db: Database) -> None:
        """As a relay would: everything is read up to now."""
        db.execute(_PUBLISH_ALL)

    def excepted(self, db: Database, type_: str, status: str, error: str | None = "MSG_SIZE_TOO_LARGE") -> None:
        """What stands there of this type failed, or waits."""
        db.execute(
            "INSERT INTO ferryman.outbox_exception (position, lane, topic, key, status, attempts, error, "
            "next_attempt_at) SELECT position, lane, topic, key, %(status)s, 5, %(error)s, "
            "CASE WHEN %(status)s IN ('RETRYING', 'REPLAYING') THEN now() END FROM ferryman.outbox "
            "WHERE type = %(type)s ON CONFLICT (position) DO UPDATE SET status = excluded.status, "
            "changed_at = clock_timestamp(), next_attempt_at = excluded.next_attempt_at",
            {"status": status, "error": error, "type": type_},
        )

    def rejects(self, db: Database, consumer: str, message: Received, code: str, error: str) -> None:
        where = Record(message.record.topic, 0, abs(hash(message.id)) % 10**6, b"k", b"v", [], 0)
        with db.transaction():
            rejected.keep(db, consumer, Poison(where, message.id, message.type, b"h", code, error))
            record(db, consumer, [Verdict(message.id, "REJECTED", None, None, b"h", message.type, where, None, error)])

    def receives(self, message: Received, error: str | None = None) -> None:
        """At most once: the receipt is there, and what it was for never took effect."""
        with self.books.db.transaction():
            record(self.books.db, "wallet", [Verdict(message.id, "RECEIVED", None, None, b"h", message.type,
                                                     message.record, None, error)])  # fmt: skip

    def ages(self, *payments: Request, seconds: float = 3600.0) -> None:
        """It is as if all of it had happened so long ago, and all that was published or received."""
        ids = [each.uuid for each in payments]
        with damage(self.desk.db):
            self.desk.db.execute(
                "UPDATE payments.requests SET created_at = created_at - make_interval(secs => %(s)s), changed_at = "
                "changed_at - make_interval(secs => %(s)s), due_at = CASE WHEN due_at < 'infinity' THEN due_at - "
                "make_interval(secs => %(s)s) ELSE due_at END WHERE uuid = ANY (%(ids)s)",
                {"s": seconds, "ids": ids},
            )
        for db in (self.desk.db, self.books.db):
            db.execute("UPDATE ferryman.outbox SET created_at = created_at - make_interval(secs => %s)", (seconds,))
            db.execute("UPDATE ferryman.inbox SET received_at = received_at - make_interval(secs => %s)", (seconds,))
        self.desk.db.execute(
            "UPDATE ferryman.saga_stray SET came_at = came_at - make_interval(secs => %s) WHERE saga_id = ANY (%s)",
            (seconds, ids),
        )
        with damage(self.books.db):
            self.books.db.execute(
                "UPDATE wallet.ledger SET decided_at = decided_at - make_interval(secs => %s) "
                "WHERE request_id = ANY (%s)",
                (seconds, ids),
            )

    # --- what is found

    def cases(self, *payments: Request, older: float = 300.0) -> list[Case]:
        ids = [each.uuid for each in payments]
        return [case for page in walk.cases(self.house, older_seconds=older, ids=ids) for case in page]

    def case(self, payment: Request) -> Case:
        [found] = self.cases(payment)
        return found

    def repair(self, *payments: Request) -> dict[str, int]:
        """As --yes does."""
        done = Repaired()
        house = self.house
        for page in walk.cases(house, older_seconds=300, ids=[each.uuid for each in payments]):
            repairing.repair(house, page, ACT, done)
        return {how: count for how, count in done.by_repair.items() if count}

    def acts(self) -> list[tuple[str, str, int]]:
        return self.desk.db.execute(
            "SELECT act, coalesce(filter ->> 'repair', ''), entries FROM ferryman.outbox_audit ORDER BY id"
        ).fetchall()

    def _appended(self, db: Database, topic: str, payments: Sequence[Request]) -> list[Received]:
        keys = [str(key) for each in payments for key in (each.uuid, each.wallet_id)]
        rows = db.execute(
            "SELECT id, type, key, payload FROM ferryman.outbox "
            "WHERE topic = %s AND (cardinality(%s::text[]) = 0 OR key = ANY (%s)) ORDER BY position",
            (topic, keys, keys),
        ).fetchall()
        made = []
        meant = {each.uuid for each in payments}
        for identity, kind, key, payload in rows:
            codec = self.codecs.of(kind)
            assert codec is not None
            data = dict(codec.decode(payload))
            if not payments or data["request_id"] in meant:
                record = Record(topic, 0, 0, key.encode(), payload, [], 0)
                made.append(Received(identity, kind, data, key, record, hash_of(payload)))
        return made


@contextmanager
def damage(db: Database) -> Iterator[None]:
    """What no trigger refuses."""
    db.execute("SET session_replication_role = replica")
    try:
        yield
    finally:
        db.execute("SET session_replication_role = origin")


@contextmanager
def two_databases(server: str, orchestrator: str) -> Iterator[Town]:
    name = f"ferryman_wallet_{uuid4().hex[:12]}"
    url = real.new_database(server, name, str(conninfo.conninfo_to_dict(orchestrator)["dbname"]))
    settings = Settings.model_validate(
        {"database_url": orchestrator, "payments": {"wallet_database_url": url}, "log": {"format": "json"}}
    )
    codecs = use_schemas()
    with (
        psycopg.connect(orchestrator, autocommit=True) as ours,
        psycopg.connect(url, autocommit=True) as theirs,
        psycopg.connect(orchestrator, application_name="ferryman payments") as payments,
        psycopg.connect(url, application_name="ferryman wallet") as wallet,
    ):
        rules = Rules(answer_seconds=settings.payments.answer_seconds)
        yield Town(Desk(ours, codecs, rules), Books(theirs, codecs), settings, codecs, (payments, wallet))
    active.forget()
    real.drop_database(server, name)
