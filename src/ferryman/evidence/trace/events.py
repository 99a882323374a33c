"""What happened to a payment, in order of time: each message's way from outbox to verdict, merged. Pure.

A cause stands before its effect, whatever the clocks of the two databases say.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from ferryman.evidence.messages import (
    COMMANDS,
    EXHAUSTED,
    FULFILMENTS,
    KINDS,
    RESULTS,
    Said,
    messages_of,
    result_of,
)
from ferryman.evidence.trace.model import (
    KAFKA,
    ORCHESTRATOR,
    WALLET,
    Entry,
    Event,
    Known,
    Operation,
    Receipt,
    Rejection,
    Seen,
    Side,
    Where,
)  # fmt: skip
from ferryman.services.payments.literal import OUTBOX

Detail = Mapping[str, Any]
Moment = datetime | None

_UNPUBLISHED = {
    "PENDING": "not published yet", "RETRYING": "failed, and is tried again", "PARKED": "parked",
    "FAILED": "failed for good", "DISCARDED": "discarded by hand", "REPLAYING": "being published once more",
    EXHAUSTED: "failed, and is not tried again",
}  # fmt: skip
_ONE_TRANSACTION_SECONDS = 60
_ONE_BATCH_SECONDS = 1
_KAFKA_TICK_SECONDS = 0.001


def events(known: Known) -> list[Event]:
    telling = _Telling(known)
    begun: Moment = None
    if payment := known.payment:
        said = {"amount": payment.amount, "currency": payment.currency, "wallet_id": str(payment.wallet_id)}
        begun = telling.add(Event(payment.created_at, ORCHESTRATOR, "requested", said), None)
    messages = messages_of(known.id, payment.attempt if payment else 1)
    for identity in _ids(known):
        if said_ := messages.get(identity):
            telling.message(identity, said_, begun)
    for stray in known.strays:
        if known.orchestrator is None or known.orchestrator.receipt(stray.message_id) is None:
            telling.add(_stray(stray.came_at, stray.message_id, stray.type, stray.why), begun)
    telling.booked(begun)
    telling.ended()
    return telling.ordered()


def _ids(known: Known) -> list[UUID]:
    """Of which anybody knows: as they were appended, then as they were received."""
    ids: dict[UUID, None] = {}
    for side in (known.orchestrator, known.wallet):
        if side is not None:
            ids |= {each.id: None for each in side.entries}
            ids |= {each.id: None for each in side.receipts}
            ids |= {each.id: None for each in side.rejections}
    return list(ids)


@dataclass(slots=True)
class _Telling:
    """The events so far, each with the moment that it stands at: its own, or its cause's where that is later."""

    known: Known
    events: list[tuple[datetime, int, Event]] = field(default_factory=list)
    told: list[Operation] = field(default_factory=list)

    def add(self, event: Event, after: Moment) -> Moment:
        """The moment that its effects stand behind."""
        moments = [each for each in (event.at, after) if each is not None]
        if not moments:
            return None
        self.events.append((max(moments), len(self.events), event))
        return max(moments)

    def ordered(self) -> list[Event]:
        return [event for _, _, event in sorted(self.events, key=lambda each: each[:2])]

    def message(self, identity: UUID, said: Said, begun: Moment) -> None:
        """A message's way, and that of the result that answers it."""
        ours = self.known.orchestrator
        detail: dict[str, Any] = {"type": said.type, "id": str(identity)}
        if said.type in (*COMMANDS, *FULFILMENTS):
            detail["attempt"] = said.attempt
        after = self._appended(Event(None, ORCHESTRATOR, "appended", detail), ours, begun)
        if said.type not in COMMANDS:
            self._published(detail, ours, None, after)
            return
        receipt, after = self._crossed(detail, ours, self.known.wallet, WALLET, after)
        if receipt is not None:
            after = self._handled(receipt, said, detail, after)
        result = receipt.results[0] if receipt and receipt.results else result_of(identity)
        self._result(result, KINDS[said.type], after)
        for each in receipt.results[1:] if receipt else ():
            self._told(each, after)

    def _told(self, identity: UUID, after: Moment) -> None:
        """Beside its result, to everyone."""
        if (ours := self.known.wallet) and (entry := ours.entry(identity)):
            detail = {"type": entry.type, "id": str(identity)}
            self._published(detail, ours, None, self._appended(Event(None, WALLET, "appended", detail), ours, after))

    def _result(self, identity: UUID, answers: str, after: Moment) -> None:
        ours, theirs = self.known.wallet, self.known.orchestrator
        entry, taken = ours and ours.entry(identity), theirs and theirs.receipt(identity)
        kind = entry.type if entry else taken.type if taken else RESULTS[0]
        detail: dict[str, Any] = {"type": kind, "id": str(identity), "answers": answers}
        after = self._appended(Event(None, WALLET, "reported", detail), ours, after)
        if again := [each for each in ours.entries if each.id == identity][1:] if ours else []:
            answered = {"answered": "with the same result"}
            self.add(Event(again[-1].created_at, WALLET, "received again", answered, times=len(again)), after)
        receipt, after = self._crossed(detail, ours, theirs, ORCHESTRATOR, after)
        if receipt is None:
            return
        if receipt.outcome == "REFUSED":
            self.add(_stray(receipt.received_at, identity, receipt.type, receipt.reason or "", answers), after)
        elif receipt.status == "HANDLED":
            self.add(Event(_began(self.known, receipt, ORCHESTRATOR), ORCHESTRATOR, "applied", detail), after)
        else:
            self.add(_unusual(receipt, ORCHESTRATOR, detail), after)

    def _appended(self, event: Event, side: Side | None, after: Moment) -> Moment:
        entry = side.entry(UUID(event.detail["id"])) if side else None
        if entry is None:
            return after
        place = {"table": OUTBOX["table"]} if entry.position is None else {"position": entry.position}
        said = {**event.detail, **place}
        return self.add(Event(entry.created_at, event.where, event.what, said), after)

    def _crossed(
        self, detail: Detail, ours: Side | None, theirs: Side | None, where: Where, after: Moment
    ) -> tuple[Receipt | None, Moment]:  # fmt: skip
        """From one outbox through Kafka to the other side's inbox: the receipt, where it has one that tells more."""
        identity = UUID(detail["id"])
        receipt = theirs.receipt(identity) if theirs else None
        rejections = [each for each in theirs.rejections if each.id == identity] if theirs else []
        after = self._published(detail, ours, rejections[0] if rejections else receipt, after)
        for each in rejections:
            after = self._rejected(each, where, after)
        if receipt is None or receipt.status in ("REJECTED", "REOPENED"):
            return None, after
        at = _began(self.known, receipt, where)
        return receipt, self.add(Event(at, where, "received", {**detail, **_spot(receipt)}), after)

    def _published(self, detail: Detail, side: Side | None, place: Receipt | Rejection | None, after: Moment) -> Moment:
        """When, only Kafka knows; where, whoever received it. What was not published says why."""
        identity = UUID(detail["id"])
        entry = side.entry(identity) if side else None
        copies = (self.known.kafka or {}).get(identity, ())
        if place is None and not copies:
            if entry is None:
                return after
            if entry.status != "PUBLISHED":
                where = ORCHESTRATOR if side is self.known.orchestrator else WALLET
                return self.add(_waits(entry, where, detail), after)
        said: dict[str, Any] = {"topic": entry.topic} if entry else {}
        if copies:
            said |= {"partition": copies[0].partition, "offset": copies[0].offset}
        if place is not None:
            said = _spot(place)
        after = self.add(Event(_seen_at(copies, after), KAFKA, "published", {**detail, **said}), after)
        if len(copies) > 1:
            self.add(Event(copies[-1].at, KAFKA, "published again", detail, times=len(copies) - 1), after)
        return after

    def _handled(self, receipt: Receipt, said: Said, detail: Detail, after: Moment) -> Moment:
        if receipt.status != "HANDLED":
            return self.add(_unusual(receipt, WALLET, detail), after)
        untold = [each for each in self.known.ledger if each not in self.told and _by(receipt, each)]
        operation = next((each for each in untold if each.kind == KINDS[said.type]), None)
        if operation is None:
            return self.add(Event(receipt.received_at, WALLET, "handled", {**detail, **_answered(receipt)}), after)
        self.told.append(operation)
        done = _answered(receipt) if receipt.outcome == "REFUSED" else _done(operation)
        return self.add(Event(operation.decided_at, WALLET, "handled", {**detail, **done}), after)

    def booked(self, begun: Moment) -> None:
        """What the ledger has of it, and no receipt tells any more: it is kept for ever, and receipts are not."""
        kinds: dict[str, str] = {kind: each for each, kind in KINDS.items()}
        for each in self.known.ledger:
            if each not in self.told:
                self.add(Event(each.decided_at, WALLET, "handled", {"type": kinds[each.kind], **_done(each)}), begun)

    def _rejected(self, each: Rejection, where: Where, after: Moment) -> Moment:
        said: dict[str, Any] = {"type": each.type, "id": str(each.id), "code": each.code, "error": each.error}
        said |= _spot(each)
        after = self.add(Event(each.rejected_at, where, "rejected, to the dead letters", said, bad=True), after)
        if each.status == "REJECTED":
            return after
        said = {"by": each.who, "reason": each.why}
        return self.add(
            Event(each.changed_at, where, each.status.lower(), said, bad=each.status == "DISCARDED"), after
        )  # fmt: skip

    def ended(self) -> None:
        """Behind what was applied in its own transaction."""
        payment = self.known.payment
        if payment is None or payment.state == "DEDUCTING":
            return
        said = {} if payment.reason is None else {"reason": payment.reason}
        applied = [
            at for at, _, event in self.events if event.what == "applied" and event.at is not None
            and abs((event.at - payment.changed_at).total_seconds()) < _ONE_BATCH_SECONDS
        ]  # fmt: skip
        ended = Event(payment.changed_at, ORCHESTRATOR, payment.state, said, bad=payment.state == "STUCK")
        self.add(ended, max(applied, default=None))


def _seen_at(copies: Sequence[Seen], after: Moment) -> Moment:
    """Kafka's clock has milliseconds: what it says may be a part of one early."""
    at = copies[0].at if copies else None
    if at is None or after is None:
        return at
    return max(at, after) if (after - at).total_seconds() < _KAFKA_TICK_SECONDS else at


def _waits(entry: Entry, where: Where, detail: Detail) -> Event:
    more: dict[str, Any] = {"status": entry.status}
    if entry.attempts:
        more["attempts"] = entry.attempts
    if entry.error:
        more["error"] = entry.error
    bad = entry.status in ("FAILED", "DISCARDED", "PARKED", "RETRYING", EXHAUSTED)
    return Event(entry.changed_at, where, _UNPUBLISHED.get(entry.status, entry.status), {**detail, **more}, bad=bad)


def _by(receipt: Receipt, operation: Operation) -> bool:
    """Whether it was this message that had it decided, and not one long before."""
    return 0 <= (receipt.received_at - operation.decided_at).total_seconds() < _ONE_TRANSACTION_SECONDS


def _began(known: Known, receipt: Receipt, where: Where) -> datetime:
    """A receipt is written last: what its transaction did before says when it had the message."""
    moments = [receipt.received_at]
    if where == WALLET and known.wallet is not None:
        kind = KINDS.get(receipt.type)
        moments += [each.decided_at for each in known.ledger if each.kind == kind and _by(receipt, each)]
        if receipt.results and (entry := known.wallet.entry(receipt.results[0])):
            moments.append(entry.created_at)
    if where == ORCHESTRATOR and receipt.outcome == "DONE" and known.payment is not None:
        moved = known.payment.changed_at
        if 0 <= (receipt.received_at - moved).total_seconds() < _ONE_BATCH_SECONDS:
            moments.append(moved)
    return min(moments)


def _done(operation: Operation) -> dict[str, Any]:
    if operation.reason:
        return {"outcome": "REFUSED", "reason": operation.reason}
    return {
        "outcome": "DONE", "moved": operation.amount, "currency": operation.currency, "balance": operation.balance,
    }  # fmt: skip


def _answered(receipt: Receipt) -> dict[str, Any]:
    """With what was decided, by it or long before."""
    return {"outcome": receipt.outcome, **({"reason": receipt.reason} if receipt.reason else {})}


def _unusual(receipt: Receipt, where: Where, detail: Detail) -> Event:
    more = {"status": receipt.status, **({"error": receipt.error} if receipt.error else {})}
    return Event(receipt.received_at, where, "had no effect", {**detail, **more}, bad=True)


def _stray(at: datetime, identity: UUID, kind: str, why: str, answers: str | None = None) -> Event:
    said = {"type": kind, "id": str(identity), **({"answers": answers} if answers else {})}
    return Event(at, ORCHESTRATOR, f"applied to nothing: {why}", said, bad=True)


def _spot(each: Receipt | Rejection) -> dict[str, Any]:
    return {"topic": each.topic, "partition": each.partition, "offset": each.offset}
