"""The way of one message, from an outbox through Kafka to a verdict: where it stops, why, and the command to run next.

Pure: what is known is passed, the time too.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from ferryman.evidence.trace.model import ORCHESTRATOR, WALLET, Ending, Entry, Known, Seen, Side, Where
from ferryman.runtime.times import span


def again(payment: UUID) -> str:
    """What looks at this payment alone, and mends what is safe to mend."""
    return f"ferryman reconcile payments --id {payment}"


def mended(known: Known, why: str, now: str = "") -> Ending:
    """By what reads both databases, from the orchestrator's: whatever is to be mended, and wherever it stands."""
    return Ending(now, why, again(known.id), ORCHESTRATOR)


@dataclass(frozen=True, slots=True)
class Way:
    """Of one message: from whose outbox to whose inbox, and which service takes it there."""

    known: Known
    identity: UUID
    sender: Side | None
    receiver: Side | None
    at: Where
    """The sender's."""
    service: str

    @property
    def what(self) -> str:
        return "the command" if self.at == ORCHESTRATOR else "its result"

    @property
    def run(self) -> str:
        """What starts the service; under the name of the wallet one of two reads."""
        literal = "-literal" if self.service == "wallet" and self.known.literal is not None else ""
        return f"ferryman run {self.service}{literal}"

    @property
    def entry(self) -> Entry | None:
        return self.sender.entry(self.identity) if self.sender else None

    @property
    def copies(self) -> Sequence[Seen] | None:
        """What Kafka has of it; None where that is not known."""
        return None if self.known.kafka is None else self.known.kafka.get(self.identity)

    @property
    def forgotten(self) -> bool:
        """Whether a receipt of it, had there been one, may not be kept any more."""
        moments = [self.entry.created_at] if self.entry else [each.at for each in self.copies or () if each.at]
        if not moments and self.known.payment:
            moments = [self.known.payment.changed_at]
        return bool(moments) and self.known.forgets(min(moments))


def stopped(way: Way) -> Ending | None:
    """Why it is not handled yet; None when it is."""
    receipt = way.receiver.receipt(way.identity) if way.receiver else None
    if receipt and receipt.status == "HANDLED":
        return None
    other: Where = WALLET if way.at == ORCHESTRATOR else ORCHESTRATOR
    if way.receiver and (verdict := way.receiver.verdicts.get(way.identity)):
        if receipt and receipt.status == "RECEIVED":
            said = f"{way.service} took {way.what}: {verdict.reason}"
            if receipt.error or way.known.age(receipt.received_at) > way.known.times.answer_seconds:
                return mended(way.known, said)
            return Ending("", said, verdict.next, other)
        absent = receipt and receipt.status == "REOPENED" and not way.receiver.paused and not way.receiver.consumers
        command = way.run if absent else verdict.next
        return Ending("", f"{way.service} could not handle {way.what}: {verdict.reason}", command, other)
    return sent(way) or _waiting(way, other)


def sent(way: Way) -> Ending | None:
    """Why it is not in Kafka; None when it is, or when nobody can say."""
    entry = way.entry
    if entry is None and way.sender and not way.sender.whole and not way.copies:
        said = f"{way.what} was not looked for through all that the outbox retains: there was no time"
        return mended(way.known, said)
    if entry is None or entry.status == "PUBLISHED":
        return None
    return Ending("", f"{way.what} is not published ({entry.reason or entry.status})", entry.next, way.at)


def _waiting(way: Way, other: Where) -> Ending:
    """It is published, as far as is known, and its reader has no verdict on it."""
    if lost := _lost(way):
        return lost
    receiver, service = way.receiver, way.service
    if receiver is None:
        return Ending("", f"{way.what} is published; whether it was received is not known")
    if receiver.paused:
        said = f"{way.what} is published; {service} is paused by {receiver.paused}"
        return Ending("", said, f"ferryman resume {service} --consumer", other)
    if not receiver.consumers:
        said = f"{way.what} is published, and no process of {service} is connected to its database"
        return Ending("", said, way.run, other)
    return Ending("", f"{way.what} is published, and {service} has not come to it yet", "ferryman inbox stats", other)


def _lost(way: Way) -> Ending | None:
    """Nobody will come to it."""
    copies, receipts = way.copies, f"{way.service} has no receipt of it"
    if way.forgotten:
        kept = span(way.known.times.receipts_seconds)
        receipts = f"receipts are kept for {kept}: whether {way.service} received it cannot be told"
    if way.entry is None and not copies:
        return mended(way.known, f"{way.what} is not among what the outbox retains, and {receipts}")
    if copies is not None and not copies:
        return _once_more(way, f"{way.what} was published, and its topic does not have it any more")
    if copies and all(each.read for each in copies):
        said = f"{way.what} is in its topic, {way.service}'s group is past it, and {receipts}"
        return mended(way.known, said) if way.forgotten else _once_more(way, f"{said}: it was skipped")
    return None


def _once_more(way: Way, why: str) -> Ending:
    """Published again from where it stands, if it stands in a journal."""
    if way.entry is None or way.entry.position is None:
        return mended(way.known, why)
    command = f"ferryman outbox replay --id {way.entry.position} --yes --reason 'trace {way.known.id}'"
    return Ending("", why, command, way.at)
