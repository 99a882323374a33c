"""A consumer's inbox: records handled and rejected as the loop does it, and acts on them."""

from typing import Any
from uuid import UUID, uuid4

import psycopg

from ferryman import Consumer, Done, Message, Received, Refused
from ferryman.consumer.admin import requeue
from ferryman.consumer.admin.message_story import MessageView, look
from ferryman.consumer.admin.messages import SelectedMessages
from ferryman.consumer.admin.requeue import RequeueCounts
from ferryman.consumer.connections import HandlerConnection
from ferryman.consumer.model import Item, Record
from ferryman.consumer.transaction import BatchTransaction
from ferryman.consumer.wire import decode, poison_of
from ferryman.runtime.desk import Act, Desk
from ferryman.runtime.settings import Database as Limits

Database = psycopg.Connection[tuple[Any, ...]]
ACT = Act("ann@desk", "because")
JSON = b"application/json"

wallet = Consumer("wallet", topics=["payments"])


@wallet.handles("payment")
def handle(_db: Database, payment: Received) -> Done | Refused:
    if payment.data["amount"] > 100:
        return Refused("INSUFFICIENT_FUNDS", Message("payment.failed", {}, key=payment.key, topic="results"))
    return Done(Message("payment.succeeded", {}, key=payment.key, topic="results"))


def record(
    offset: int, value: bytes | None = b'{"amount": 1}', *, topic: str = "payments", key: bytes | None = b"k",
    **headers: bytes | None,
) -> Record:  # fmt: skip
    given: dict[str, bytes | None] = {"ce_id": str(uuid4()).encode(), "ce_type": b"payment", "content-type": JSON}
    given |= {name.replace("__", "-"): text for name, text in headers.items()}
    return Record(topic, 0, offset, key, value, list(given.items()), 0)


def handled(db: Database, *records: Record, consumer: Consumer = wallet) -> None:
    """Handle records as the consumer's loop does."""
    transact(db, *(decode(each, "payment") for each in records), consumer=consumer)


def rejected(db: Database, *records: Record, code: str = "BUG", consumer: Consumer = wallet) -> None:
    transact(db, *(poison_of(each, code, "a bug") for each in records), consumer=consumer)


def transact(db: Database, *items: Item, consumer: Consumer = wallet) -> None:
    BatchTransaction(consumer, HandlerConnection(db), items).run()


def one(db: Database, query: str, *parameters: Any) -> Any:
    row = db.execute(query, parameters).fetchone()
    assert row is not None
    return row[0]


def statuses(db: Database) -> list[tuple[str, str]]:
    """Return the statuses of each message's receipt and record."""
    return db.execute(
        "SELECT i.status, r.status FROM ferryman.inbox_rejected r LEFT JOIN ferryman.inbox i USING (consumer, id) "
        'ORDER BY r.topic, r."offset"'
    ).fetchall()


def appended(db: Database) -> list[tuple[Any, ...]]:
    return db.execute(
        "SELECT id, topic, key, type, payload, headers, content_type FROM ferryman.outbox "
        "WHERE topic LIKE '%.retry.%' ORDER BY position"
    ).fetchall()


def requeued(desk: Desk, selection: SelectedMessages) -> RequeueCounts:
    return requeue.requeue(desk, selection, ACT, RequeueCounts())


def planned(desk: Desk, selection: SelectedMessages) -> RequeueCounts:
    """Return what a requeue would do."""
    return requeue.requeue(desk, selection, None, RequeueCounts())


def seen(desk: Desk, reference: UUID | tuple[str, int, int], **how: Any) -> MessageView:
    found = look(desk, reference, None, seconds=10, **{"payload": False, **how})
    assert found.complete
    [only] = found.seen
    return only


def opened(url: str) -> Desk:
    return Desk(psycopg.connect(url, autocommit=True, prepare_threshold=None), Limits())


ALL = SelectedMessages("wallet")
