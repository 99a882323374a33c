"""A message's journey: from an outbox through Kafka to its readers, and on with what they reported.

Everything here is decided from values: what is known is passed, and the time too.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from ferryman.evidence.kafka import SeenRecord, SoughtRecord
from ferryman.evidence.messages import InboxReceipt, OutboxEntry, RejectedMessage, StrayResult
from ferryman.runtime.desk import Story
from ferryman.runtime.settings import Settings

KAFKA = "kafka"
EXHAUSTED = "PENDING for good"
"""The status of a row of an outbox table whose attempts are used up."""

_UNPUBLISHED = {
    "PENDING": "not published yet", "RETRYING": "failed, and is tried again", "PARKED": "parked",
    "FAILED": "failed for good", "DISCARDED": "discarded by hand", "REPLAYING": "being published once more",
    EXHAUSTED: "failed, and is not tried again",
}  # fmt: skip
_GOES_ON = ("PENDING", "REPLAYING")
_KAFKA_TICK_SECONDS = 0.001
BY_HAND = " by hand"
"""The end of an event that is the act of a person."""
ONE_BATCH_SECONDS = 1
"""Moments of one transaction of a saga's consumer are not further apart."""

Detail = Mapping[str, Any]
Moment = datetime | None


@dataclass(frozen=True, slots=True)
class Times:
    """The time that an answer may take, and the times that evidence is kept."""

    answer_seconds: float
    receipts_seconds: float
    """0 is for ever."""
    outbox_seconds: float

    @classmethod
    def of(cls, settings: Settings, answer_seconds: float = 300.0) -> "Times":
        kept = settings.consumer.receipts_retention_seconds, settings.relay.ring.retention_seconds
        return cls(answer_seconds, *kept)


@dataclass(frozen=True, slots=True)
class Witness:
    """One party's knowledge of the messages: from its outbox, and from the inbox of its consumer."""

    entries: Sequence[OutboxEntry] = ()
    receipts: Sequence[InboxReceipt] = ()
    rejections: Sequence[RejectedMessage] = ()
    stories: Mapping[UUID, Story] = field(default_factory=dict)
    """The story that `ferryman inbox show` tells of each message that is not handled."""
    processes: int = 0
    """Processes of its consumer that are connected."""
    paused: str | None = None
    """The person who paused its consumer, since when and why."""
    whole: bool = True
    """True if its outbox was looked through for all that must be in it."""
    where: str = ""
    """The name that the story gives to its database."""
    consumer: str = ""
    reads: frozenset[str] = frozenset()
    """Topics that its consumer reads."""
    types: frozenset[str] | None = None
    """The types of its newest receipts: it has a handler for these. None if they were not asked for."""

    def entry(self, identity: UUID | None) -> OutboxEntry | None:
        """Return the first entry with this id. A result that was reported again has several."""
        return next((each for each in self.entries if each.id == identity), None)

    def receipt(self, identity: UUID | None) -> InboxReceipt | None:
        return next((each for each in self.receipts if each.id == identity), None)

    def rejected(self, identity: UUID) -> list[RejectedMessage]:
        return [each for each in self.rejections if each.id == identity]

    def spots(self, identity: UUID) -> list[InboxReceipt | RejectedMessage]:
        """Return what it has of a message: rejected records, and the receipt."""
        receipt = self.receipt(identity)
        return [*self.rejected(identity), *([receipt] if receipt else [])]


@dataclass(frozen=True, slots=True)
class Journey:
    """Everything that is known of some messages. Kafka is None if it was not asked."""

    now: datetime
    witnesses: Sequence[Witness]
    kafka: Mapping[UUID, Sequence[SeenRecord]] | None = None
    times: Times = field(default_factory=lambda: Times.of(Settings()))
    groups_gone: frozenset[tuple[str, str]] = frozenset()
    """The groups that have no offsets of a topic in Kafka, or only some whose records were deleted: with the topic."""
    away: bool = False
    """True if a database did not answer: it may have another reader."""

    def sender(self, identity: UUID) -> Witness | None:
        return next((each for each in self.witnesses if each.entry(identity)), None)

    def entry(self, identity: UUID) -> OutboxEntry | None:
        return next((found for each in self.witnesses if (found := each.entry(identity))), None)

    def kind(self, identity: UUID) -> str:
        """Return the type of a message, as far as anybody knows it."""
        return next((each.type for each in (self.entry(identity), *self.spots(identity)) if each), "")

    def readers(self, identity: UUID) -> list[Witness]:
        """Return those who have the message, and those who read its topic and are still there."""
        return [
            each for each in self.witnesses
            if each.spots(identity) or (self._topics(identity, each) and not self._retired(identity, each))
        ]  # fmt: skip

    def retired(self, identity: UUID) -> list[Witness]:
        """Return those who once read its topic, and are gone."""
        return [each for each in self.witnesses if self._retired(identity, each)]

    def idle(self) -> set[tuple[str, str]]:
        """Return the consumers that may be gone, each with a topic: they have no process, and no verdict."""
        return {
            (each.consumer, topic) for identity in self.ids() for each in self.witnesses
            for topic in self._unattended(identity, each)
        }  # fmt: skip

    def _retired(self, identity: UUID, reader: Witness) -> bool:
        return any((reader.consumer, topic) in self.groups_gone for topic in self._unattended(identity, reader))

    def _unattended(self, identity: UUID, reader: Witness) -> frozenset[str]:
        """Return the topics of a message that a consumer reads, if nobody runs it and it knows nothing of it."""
        attended = reader.processes or reader.paused or reader.spots(identity)
        return frozenset() if attended else self._topics(identity, reader)

    def _topics(self, identity: UUID, reader: Witness) -> frozenset[str]:
        """Return the topics of a message that a consumer reads. If its entry is not known, its receipts tell them."""
        entry = self.entry(identity)
        return reader.reads & ({entry.topic} if entry else {each.topic for each in self.spots(identity)})

    def spots(self, identity: UUID) -> list[InboxReceipt | RejectedMessage]:
        """Return what its readers have of a message."""
        return [spot for each in self.witnesses for spot in each.spots(identity)]

    def ids(self) -> list[UUID]:
        """Return the messages that anybody knows: as they were appended, then as they were received."""
        found: dict[UUID, None] = {}
        for each in self.witnesses:
            found |= {one.id: None for kind in (each.entries, each.receipts, each.rejections) for one in kind}
        return list(found)

    def sought(self) -> list[SoughtRecord]:
        """Return the records to look for in Kafka: of messages that have readers and were published, it seems."""
        found: dict[UUID, SoughtRecord] = {}
        for identity in self.ids():
            entry, spots = self.entry(identity), self.spots(identity)
            undecided = tuple(each.consumer for each in self.readers(identity) if not each.spots(identity))
            if spots:
                since, place = entry.created_at if entry else spots[0].at, (spots[0].partition, spots[0].offset)
                found[identity] = SoughtRecord(identity, spots[0].topic, since, undecided, place)
            elif undecided and entry and entry.status == "PUBLISHED":
                found[identity] = SoughtRecord(identity, entry.topic, entry.created_at, undecided)
        return list(found.values())

    def age(self, at: datetime) -> float:
        return (self.now - at).total_seconds()

    def forgets(self, at: datetime) -> bool:
        """Return True if a receipt of this time may not be kept any more."""
        return 0 < self.times.receipts_seconds < self.age(at)


# --- what happened, in order of time


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened. `at` is None if nobody wrote down when; its place in the story is known all the same.

    `times` is how often, if several were folded into one; `bad` is what kept the subject from going on.
    """

    at: Moment
    where: str
    what: str
    detail: Detail = field(default_factory=dict)
    times: int = 1
    bad: bool = False


class StoryTeller:
    """Tells the events of messages. A cause stands before its effect, whatever the clocks of the databases say.

    A case file overrides what it knows more of: details, what a reader did, when it began.
    """

    def __init__(self, journey: Journey) -> None:
        self.journey = journey
        self._events: list[tuple[datetime, int, Event]] = []
        """Each with the moment that it stands at: its own, or its cause's if that is later."""

    def add(self, event: Event, after: Moment) -> Moment:
        """Add an event, and return the moment that its effects stand after."""
        moments = [each for each in (event.at, after) if each is not None]
        if not moments:
            return None
        self._events.append((max(moments), len(self._events), event))
        return max(moments)

    @property
    def events(self) -> list[Event]:
        """The events in their order."""
        return [event for _, _, event in sorted(self._events, key=lambda each: each[:2])]

    def message(self, identity: UUID, detail: Detail, after: Moment, what: str = "appended") -> None:
        """Tell a message's way, and that of everything that was reported with it."""
        sender, readers = self.journey.sender(identity), self.journey.readers(identity)
        entries = [each for each in sender.entries if each.id == identity] if sender else []
        known = [*entries, *self.journey.spots(identity)]
        detail = {"type": known[0].type if known else "", "id": str(identity), **detail}
        if sender and entries:
            position, table = entries[0].position, entries[0].table
            place = {"table": table} if position is None else {"position": position}
            after = self.add(Event(entries[0].created_at, sender.where, what, {**detail, **place}), after)
            if again := entries[1:]:
                self.add(self.repeated(sender, again, what), after)
        after = self._published(identity, detail, after)
        for reader in readers:
            self._read(reader, identity, detail, after)
        if not readers:
            self.followed(None, identity, after)

    def repeated(self, sender: Witness, again: Sequence[OutboxEntry], what: str) -> Event:
        """Tell that a message stands in its outbox more than once: its reader had the command again, and answered."""
        said = {"answered": "with the same result"} if what == "reported" else {}
        what = "received again" if what == "reported" else f"{what} again"
        return Event(again[-1].created_at, sender.where, what, said, times=len(again))

    def began(self, reader: Witness, receipt: InboxReceipt) -> datetime:
        """Return when the reader had the message."""
        return self._took(receipt)

    def _took(self, receipt: InboxReceipt) -> datetime:
        """Return when the message was handled. A receipt is written last; what it reported was written before."""
        reported = (self.journey.entry(each) for each in receipt.results)
        return min([receipt.at, *(each.created_at for each in reported if each)])

    def received(self, reader: Witness, receipt: InboxReceipt, detail: Detail) -> Detail:
        return {**detail, "consumer": reader.consumer, **_spot(receipt)}

    def handled(self, reader: Witness, receipt: InboxReceipt, detail: Detail, after: Moment) -> Moment:
        if receipt.status != "HANDLED":
            said = {"status": receipt.status, **({"error": receipt.error} if receipt.error else {})}
            unusual = Event(receipt.at, reader.where, "had no effect", {**detail, **said}, bad=True)
            return self.add(unusual, after)
        done = Event(self._took(receipt), reader.where, "handled", {**detail, **answered(receipt)})
        return self.add(done, after)

    def applied(self, reader: Witness, receipt: InboxReceipt, detail: Detail, after: Moment) -> Moment:
        """Tell that a saga's consumer applied a result, or that it fitted nothing."""
        if receipt.outcome == "REFUSED":
            more = {"answers": detail["answers"]} if "answers" in detail else {}
            stray = StrayResult(receipt.id, receipt.reason or "", receipt.type, receipt.at)
            return self.add(_applied_to_nothing(stray, reader.where, more), after)
        return self.add(Event(self.began(reader, receipt), reader.where, "applied", detail), after)

    def unkept(self, strays: Sequence[StrayResult], where: str, after: Moment) -> None:
        """Tell the results that fitted nothing and whose receipts are not kept any more."""
        for each in strays:
            if not any(by.receipt(each.message_id) for by in self.journey.witnesses):
                self.add(_applied_to_nothing(each, where), after)

    def stands(self, at: datetime, where: str, state: str, reason: str | None, *, bad: bool = False) -> None:
        """Tell the state of a saga, after what was applied or done by hand in its own transaction."""
        applied = [stands for stands, _, event in self._events if event.at is not None
                   and (event.what == "applied" or event.what.endswith(BY_HAND))
                   and abs((event.at - at).total_seconds()) < ONE_BATCH_SECONDS]  # fmt: skip
        said = {"reason": reason} if reason else {}
        self.add(Event(at, where, state, said, bad=bad), max(applied, default=None))

    def followed(self, receipt: InboxReceipt | None, identity: UUID, after: Moment) -> None:
        """Tell what was reported with the message."""
        for each in receipt.results if receipt else ():
            self.message(each, {}, after, "reported")

    def _published(self, identity: UUID, detail: Detail, after: Moment) -> Moment:
        """Tell when, which only Kafka knows, and where, which whoever received it knows; or why it is not published."""
        sender, entry = self.journey.sender(identity), self.journey.entry(identity)
        copies, spots = (self.journey.kafka or {}).get(identity, ()), self.journey.spots(identity)
        if not spots and not copies:
            if entry is None or sender is None:
                return after
            if entry.status != "PUBLISHED":
                return self.add(_waits(entry, sender.where, detail), after)
        said: dict[str, Any] = {"topic": entry.topic} if entry else {}
        if copies:
            said |= {"partition": copies[0].partition, "offset": copies[0].offset}
        if spots:
            said = _spot(spots[0])
        after = self.add(Event(_seen_at(copies, after), KAFKA, "published", {**detail, **said}), after)
        if len(copies) > 1:
            self.add(Event(copies[-1].at, KAFKA, "published again", detail, times=len(copies) - 1), after)
        return after

    def _read(self, reader: Witness, identity: UUID, detail: Detail, after: Moment) -> None:
        for each in reader.rejected(identity):
            after = self._rejected(reader, each, after)
        receipt = reader.receipt(identity)
        if receipt is None or receipt.status in ("REJECTED", "REOPENED"):
            self.followed(None, identity, after)
            return
        said = self.received(reader, receipt, detail)
        after = self.add(Event(self.began(reader, receipt), reader.where, "received", said), after)
        after = self.handled(reader, receipt, detail, after)
        self.followed(receipt, identity, after)

    def _rejected(self, reader: Witness, each: RejectedMessage, after: Moment) -> Moment:
        said: dict[str, Any] = {"type": each.type, "id": str(each.id), "code": each.code, "error": each.error}
        event = Event(each.at, reader.where, "rejected, to the dead letters", said | _spot(each), bad=True)
        after = self.add(event, after)
        if each.status == "REJECTED":
            return after
        acted, given_up = {"by": each.who, "reason": each.why}, each.status == "DISCARDED"
        return self.add(Event(each.changed_at, reader.where, each.status.lower(), acted, bad=given_up), after)


def merged(*stories: Iterable[Event]) -> list[Event]:
    """Return the events of several stories as one. An event without a moment stays behind the one before it."""
    moments = list[tuple[datetime, Event]]()
    for story in stories:
        after = datetime.min.replace(tzinfo=UTC)
        for event in story:
            after = max(after, event.at or after)
            moments.append((after, event))
    return [event for _, event in sorted(moments, key=lambda each: each[0])]


def _applied_to_nothing(stray: StrayResult, where: str, more: Detail | None = None) -> Event:
    said = {"type": stray.type, "id": str(stray.message_id), **(more or {})}
    return Event(stray.came_at, where, f"applied to nothing: {stray.why}", said, bad=True)


def answered(receipt: InboxReceipt) -> Detail:
    return {"outcome": receipt.outcome, **({"reason": receipt.reason} if receipt.reason else {})}


def _waits(entry: OutboxEntry, where: str, detail: Detail) -> Event:
    more: dict[str, Any] = {"status": entry.status}
    more |= {name: value for name in ("attempts", "error") if (value := getattr(entry, name))}
    what = _UNPUBLISHED.get(entry.status, entry.status)
    return Event(entry.changed_at, where, what, {**detail, **more}, bad=entry.status not in _GOES_ON)


def _seen_at(copies: Sequence[SeenRecord], after: Moment) -> Moment:
    """Return when the first copy was published. Kafka counts milliseconds, so its time may be a part of one early."""
    at = copies[0].at if copies else None
    if at is None or after is None:
        return at
    return max(at, after) if (after - at).total_seconds() < _KAFKA_TICK_SECONDS else at


def _spot(each: InboxReceipt | RejectedMessage) -> dict[str, Any]:
    return {"topic": each.topic, "partition": each.partition, "offset": each.offset}
