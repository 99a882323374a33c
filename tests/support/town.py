"""Payments in two databases without Kafka, and what `trace`, `reconcile` and `audit` find of them.

A `Town` hands what one database appended to the other's handlers; a `Crossing` does so by the real relay's turns and
the real consumers' batches.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid4

import psycopg

from ferryman import Consumer, Received, use_schemas
from ferryman.cli.wiring import settings_class
from ferryman.consumer.connections import HandlerConnection
from ferryman.consumer.model import Poison, Record
from ferryman.consumer.store import rejected
from ferryman.consumer.store.receipts import InboxVerdict, record
from ferryman.consumer.transaction import BatchTransaction
from ferryman.consumer.wire import decode, hash_of
from ferryman.evidence.audit import AuditBooks
from ferryman.evidence.reconcile import Case, Repaired, repair_all
from ferryman.evidence.sides import MAIN, DatabaseAddress, Side, Sides
from ferryman.evidence.way import Traced
from ferryman.migrations import chains
from ferryman.relay.kafka import record_headers as headers
from ferryman.relay.model import Entry
from ferryman.runtime.desk import Act
from ferryman.runtime.settings import Settings
from ferryman.schemas import active
from ferryman.schemas.codec import Codecs
from ferryman.services.payments.evidence.auditing import begin
from ferryman.services.payments.evidence.case import WALLET, result_of
from ferryman.services.payments.evidence.payment_story import KnownPayment, tell
from ferryman.services.payments.evidence.reconciling import PaymentReconciler
from ferryman.services.payments.evidence.tracing import gather
from ferryman.services.payments.payments_settings import PaymentsSettings
from ferryman.services.payments.rules import Rules, message_id
from ferryman.services.payments.store import Request
from ferryman.testing import stack
from support.paying import Desk, succeeded
from support.relay import Failing, lane_worker
from support.walleting import Books, Database, asked, transact

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
    def sides(self) -> Sides:
        return sides_of(self.desk.db, self.books.db, self.settings)

    @property
    def reconciler(self) -> PaymentReconciler:
        return PaymentReconciler(self.sides)

    # --- what happens

    def asks(self, amount: int = 500, balance: int = 10_000, **more: Any) -> Request:
        """Record a payment of a wallet that exists; its command is in the outbox."""
        return self.desk.request(wallet_id=self.books.open(balance), amount=amount, **more)

    def commands(self, *payments: Request) -> list[Received]:
        """Return the commands that the orchestrator appended for the wallet, in order."""
        return self._appended(self.desk.db, COMMANDS, payments)

    def results(self, *payments: Request) -> list[Received]:
        return self._appended(self.books.db, RESULTS, payments)

    def consume(self, *payments: Request) -> None:
        """Have the wallet handle new messages, as its loop would."""
        if messages := self.commands(*payments):
            transact(self.books.db, messages)

    def answer(self, *payments: Request) -> None:
        """Have the orchestrator apply new results."""
        if messages := self.results(*payments):
            self.desk.apply(*messages)

    def published(self, db: Database) -> None:
        """Publish everything up to now, as a relay would."""
        db.execute(_PUBLISH_ALL)

    def excepted(self, db: Database, type_: str, status: str, error: str | None = "MSG_SIZE_TOO_LARGE") -> None:
        """Make the entries of this type fail or wait."""
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
            record(
                db, consumer, [InboxVerdict(message.id, "REJECTED", None, None, b"h", message.type, where, None, error)]
            )

    def receives(self, message: Received, error: str | None = None) -> None:
        """At most once: the receipt is there, and what it was for never took effect."""
        with self.books.db.transaction():
            record(self.books.db, "wallet", [InboxVerdict(message.id, "RECEIVED", None, None, b"h", message.type,
                                                     message.record, None, error)])  # fmt: skip

    def ages(self, *payments: Request, seconds: float = 3600.0) -> None:
        """Move everything that happened, was published or was received into the past."""
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
        return [case for page in self.reconciler.cases(older_seconds=older, ids=ids) for case in page]

    def case(self, payment: Request) -> Case:
        [found] = self.cases(payment)
        return found

    def repair(self, *payments: Request) -> dict[str, int]:
        """Mend as --yes does. Return how many, by repair."""
        done, reconciler = Repaired(), self.reconciler
        for page in reconciler.cases(older_seconds=300, ids=[each.uuid for each in payments]):
            repair_all(reconciler, page, ACT, done)
        return {how: count for how, count in done.by_repair.items() if count}

    def audited(self, **window: Any) -> AuditBooks:
        """Audit everything up to this moment, unless `until` says less."""
        return begin(self.sides, **{"cut_seconds": -3600, "moment_seconds": 0.01, **window}).run()

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


def whats(books: AuditBooks) -> list[tuple[str, UUID | None]]:
    return [(each.what, each.id) for each in books.wrong]


def over(town: Town, *payments: Request) -> None:
    """Handle payments and apply their results: they are over."""
    town.consume(*payments)
    town.answer(*payments)


def sides_of(orchestrator: Database, wallet: Database, settings: Settings) -> Sides:
    """Both databases, or one that is both."""
    for each in (orchestrator, wallet):
        each.prepare_threshold = None
    main = Side(orchestrator, settings.database, MAIN)
    books = Side(wallet, settings.database, WALLET, DatabaseAddress("<the wallet's URL>"))
    return Sides({MAIN: main, WALLET: main if orchestrator is wallet else books}, settings)


@dataclass
class Crossing:
    """An orchestrator, a wallet, and the topics between them."""

    desk: Desk
    books: Books
    topics: dict[str, list[Record]] = field(default_factory=dict)

    def request(self, balance: int = 900, **more: Any) -> Request:
        return self.desk.request(**{"wallet_id": more.get("wallet_id") or self.books.open(balance), **more})

    def publish(self, db: Database, failing: Failing = lambda _entry: None) -> None:
        worker = lane_worker(db, self._published, failing=failing)
        quiet = 0
        while quiet < 8:  # a turn has half of the lanes
            quiet = quiet + 1 if worker.run_once().quiet else 0

    def _published(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            topic = self.topics.setdefault(entry[2], [])
            named = [(name, value if isinstance(value, bytes | None) else value.encode())
                     for name, value in headers(Entry(*entry), "/here")]  # fmt: skip
            topic.append(Record(entry[2], 0, len(topic), entry[3].encode(), entry[5], named, 0))

    def handled(self, db: Database, consumer: Consumer, *topics: str) -> Counter[str]:
        """Handle the records of these topics in one batch. Those that were handled before are duplicates."""
        records = [record for topic in topics for record in self.topics.get(topic, ())]
        items = [decode(each, dict(each.headers)["ce_type"].decode()) for each in records]  # type: ignore[union-attr]
        return BatchTransaction(consumer, HandlerConnection(db), items).run()

    def taken(self) -> Counter[str]:
        """Handle the commands by the wallet."""
        return self.handled(self.books.db, self.books.consumer, COMMANDS)

    def applied(self) -> Counter[str]:
        """Apply the results by the orchestrator."""
        return self.handled(self.desk.db, self.desk.consumer, RESULTS)

    def rejected(self, db: Database, consumer: Consumer, topic: str, code: str = "BUG") -> None:
        """Reject every record of the topic."""
        for each in self.topics[topic]:
            item = decode(each, dict(each.headers)["ce_type"].decode())  # type: ignore[union-attr]
            poison = Poison(each, item.id, item.type, item.hash, code, "it broke")
            BatchTransaction(consumer, HandlerConnection(db), [poison]).run()

    def through(self) -> None:
        """Commands there, results back."""
        self.publish(self.desk.db)
        self.taken()
        self.publish(self.books.db)
        self.applied()

    def done_beside(self, payment: Request) -> None:
        """Handle the command and apply its result, though neither relay has read its journal."""
        command = message_id(payment.uuid, "wallet.deduct")
        asking = asked("DEDUCT", payment.wallet_id, payment.uuid, amount=payment.amount, id=command)
        transact(self.books.db, [asking])
        self.desk.apply(succeeded(payment, id=result_of(command)))

    @property
    def sides(self) -> Sides:
        return sides_of(self.desk.db, self.books.db, settings_class()())

    def known(self, identity: UUID) -> KnownPayment:
        return gather(self.sides, identity)

    def story(self, payment: Request) -> Traced:
        return tell(self.known(payment.uuid))


@contextmanager
def crossing_of(*urls: str) -> Iterator[Crossing]:
    """Give the two databases in the hands of an orchestrator and a wallet."""
    codecs = use_schemas()
    with psycopg.connect(urls[0], autocommit=True) as ours, psycopg.connect(urls[1], autocommit=True) as theirs:
        yield Crossing(Desk(ours, codecs), Books(theirs, codecs))
    active.forget()


@contextmanager
def bare_crossing(server: str) -> Iterator[Crossing]:
    """Give two databases in which none of our services stand."""
    with ExitStack() as databases:
        names = [f"ferryman_bare_{uuid4().hex}" for _ in range(2)]
        urls = [databases.enter_context(stack.temporary_database(server, name)) for name in names]
        for url in urls:
            stack.migrate(url, [chains.ENGINE])
        yield databases.enter_context(crossing_of(*urls))


@contextmanager
def damage(db: Database) -> Iterator[None]:
    """Change rows that triggers would protect."""
    db.execute("SET session_replication_role = replica")
    try:
        yield
    finally:
        db.execute("SET session_replication_role = origin")


@contextmanager
def two_databases(orchestrator: str, url: str) -> Iterator[Town]:
    settings = settings_class().model_validate(
        {"database_url": orchestrator, "payments": {"wallet_database_url": url}, "log": {"format": "json"}}
    )
    codecs = use_schemas()
    with (
        psycopg.connect(orchestrator, autocommit=True) as ours,
        psycopg.connect(url, autocommit=True) as theirs,
        psycopg.connect(orchestrator, application_name="ferryman payments") as payments,
        psycopg.connect(url, application_name="ferryman wallet") as wallet,
    ):
        rules = Rules(settings.section(PaymentsSettings))
        yield Town(Desk(ours, codecs, rules), Books(theirs, codecs), settings, codecs, (payments, wallet))
    active.forget()
