"""Payments between two databases without Kafka: the real relay's turns, the real consumers' batches, and what people
see of it by `trace`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from ferryman import Consumer
from ferryman.consumer.decoding import decode
from ferryman.consumer.face import Plain
from ferryman.consumer.model import Poison, Record
from ferryman.consumer.transaction import BatchTransaction, Tally
from ferryman.evidence.messages import result_of
from ferryman.evidence.trace.gathering import gather
from ferryman.evidence.trace.model import Known, Story
from ferryman.evidence.trace.opening import Desks
from ferryman.evidence.trace.story import tell
from ferryman.relay.model import Entry
from ferryman.relay.operator.desk import Desk as Looking
from ferryman.relay.record import headers
from ferryman.runtime.settings import Database as Limits
from ferryman.services.payments.rules import message_id
from ferryman.services.payments.store import Request
from support.paying import Desk, succeeded
from support.relay import Failing, lane_worker
from support.walleting import Books, Database, asked, transact

COMMANDS, RESULTS = "payments.commands", "wallet.results"


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

    def handled(self, db: Database, consumer: Consumer, *topics: str) -> Tally:
        """All that stands in these topics, in one batch: what was handled before is a duplicate."""
        records = [record for topic in topics for record in self.topics.get(topic, ())]
        items = [decode(each, dict(each.headers)["ce_type"].decode()) for each in records]  # type: ignore[union-attr]
        return BatchTransaction(consumer, db, Plain(db), items).run()

    def taken(self) -> Tally:
        """By the wallet."""
        return self.handled(self.books.db, self.books.consumer, COMMANDS)

    def applied(self) -> Tally:
        """By the orchestrator."""
        return self.handled(self.desk.db, self.desk.consumer, RESULTS)

    def rejected(self, db: Database, consumer: Consumer, topic: str, code: str = "BUG") -> None:
        """All that stands in the topic."""
        for each in self.topics[topic]:
            item = decode(each, dict(each.headers)["ce_type"].decode())  # type: ignore[union-attr]
            poison = Poison(each, item.id, item.type, item.hash, code, "it broke")
            BatchTransaction(consumer, db, Plain(db), [poison]).run()

    def through(self) -> None:
        """Commands there, results back."""
        self.publish(self.desk.db)
        self.taken()
        self.publish(self.books.db)
        self.applied()

    def done_beside(self, payment: Request) -> None:
        """The command is handled and its result applied, though neither relay has read its journal."""
        command = message_id(payment.uuid, "wallet.deduct")
        asking = asked("DEDUCT", payment.wallet_id, payment.uuid, amount=payment.amount, id=command)
        transact(self.books.db, [asking])
        self.desk.apply(succeeded(payment, id=result_of(command)))

    @property
    def desks(self) -> Desks:
        return Desks(Looking(self.desk.db, Limits()), Looking(self.books.db, Limits()))

    def known(self, identity: UUID) -> Known:
        return gather(self.desks, identity)

    def story(self, payment: Request) -> Story:
        return tell(self.known(payment.uuid))
