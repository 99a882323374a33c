"""A message's place on its way from an outbox to a reader, the reason, and the command to run next. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from ferryman.evidence.journey import Event, Journey, Moment, Witness
from ferryman.evidence.kafka import SeenRecord
from ferryman.evidence.messages import InboxReceipt, OutboxEntry
from ferryman.runtime.desk import Story
from ferryman.runtime.times import moment, span

_STAYS = "nothing goes on by itself, and no command helps"
_AGAIN = f"{_STAYS}: its writer may send it again, under another id"
OVERDUE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Ending:
    """The subject's place now, the reason, and the exact command to run next: None if there is nothing to run."""

    now: str
    why: str
    next: str | None = None
    at: str = ""
    """The database that the command is for; empty is that of `database_url`."""
    rest: str = ""
    """The words in place of a command, if there is none and waiting does not help."""


@dataclass(frozen=True, slots=True)
class Traced:
    """A story, and whose it is: what the command prints."""

    id: UUID | int
    kind: str
    """The kind of subject: `payment`, `message`."""
    facts: Mapping[str, Any] | None
    """The subject itself, as `--json` prints it."""
    headline: Sequence[str]
    events: Sequence[Event]
    ending: Ending
    missing: Sequence[str] = ()
    over: bool = False
    """True if nothing is left to do."""


@dataclass(frozen=True, slots=True)
class Way:
    """The way of one message: from whose outbox to whose inbox."""

    journey: Journey
    identity: UUID
    sender: Witness | None
    receiver: Witness | None
    what: str
    """The name of the message in a sentence, as `the command`."""
    service: str
    """The name of its reader."""
    run: str
    """The command that starts the reader."""
    subject: UUID | int
    """The subject of the trace."""
    mend: str | None = None
    """The command that mends the subject, from the database of `database_url`."""
    since: Moment = None
    """When it must have been appended, if nobody knows its entry."""

    @property
    def entry(self) -> OutboxEntry | None:
        return self.sender.entry(self.identity) if self.sender else None

    @property
    def copies(self) -> Sequence[SeenRecord] | None:
        """The copies in Kafka; None if that is not known."""
        return None if self.journey.kafka is None else self.journey.kafka.get(self.identity)

    @property
    def forgotten(self) -> bool:
        """True if a receipt of it, had there been one, may not be kept any more. It is as old as its entry; or as the
        record in Kafka; or as old as it must be.
        """
        published = [each.at for each in self.copies or () if each.at]
        at = self.entry.created_at if self.entry else min(published, default=self.since)
        return at is not None and self.journey.forgets(at)

    @property
    def past(self) -> bool:
        """True if Kafka has copies, and its reader's group is past all of them."""
        reader = self.receiver.consumer if self.receiver else ""
        return bool(self.copies) and all(reader in each.past for each in self.copies or ())

    @property
    def ignored(self) -> bool:
        """True if the message is behind its reader, which has no receipt of any message of its type: it may have no
        handler for that type, and a replay would end like this.
        """
        reader, copies = self.receiver, self.copies
        if reader is None or reader.types is None or reader.spots(self.identity) or self.forgotten:
            return False
        behind = self.past if copies else copies is not None
        return behind and self.journey.kind(self.identity) not in reader.types

    def stopped(self) -> Ending | None:
        """Say why the message is not handled yet. Return None if it is."""
        receiver = self.receiver
        receipt = receiver.receipt(self.identity) if receiver else None
        if receipt and receipt.status == "HANDLED":
            return None
        if receiver and (story := receiver.stories.get(self.identity)):
            return self._not_handled(receiver, receipt, story)
        return self.unsent() or self._unread()

    def unsent(self) -> Ending | None:
        """Say why the message is not in Kafka. Return None if it is, or if nobody can say."""
        entry = self.entry
        if entry is None and self.sender and not self.sender.whole and not self.copies:
            return self._mended(f"there was no time to look for {self.what} in all that the outbox retains")
        if entry is None or entry.status == "PUBLISHED":
            return None
        return self._ending(f"{self.what} is not published ({entry.reason or entry.status})", entry.next, self.sender)

    def _not_handled(self, receiver: Witness, receipt: InboxReceipt | None, story: Story) -> Ending:
        if receipt and receipt.status == "RECEIVED":
            said = f"{self.service} took {self.what}: {story.reason}"
            if receipt.error or self.journey.age(receipt.at) > self.journey.times.answer_seconds:
                return self._mended(said, _AGAIN if receipt.error else _STAYS)
            return self._ending(said, story.next, receiver)
        if receipt and receipt.status == "REJECTED" and not story.next:
            given_up = any(each.status == "DISCARDED" for each in receiver.rejected(self.identity))
            ending = self._mended(f"{self.service} could not handle {self.what}: {story.reason}", _AGAIN)
            return replace(ending, rest="nothing is left to do: a person discarded it") if given_up else ending
        absent = receipt and receipt.status == "REOPENED" and not receiver.paused and not receiver.processes
        said = f"{self.service} could not handle {self.what}: {story.reason}"
        return self._ending(said, self.run if absent else story.next, receiver)

    def _unread(self) -> Ending:
        """Say what keeps its reader, which has no verdict on it. The message is published, as far as is known."""
        if lost := self._lost():
            return lost
        receiver, said = self.receiver, f"{self.what} is published"
        if receiver is None:
            return self._ending(f"{said}; whether it was received is not known", None, None)
        if receiver.paused:
            command = f"ferryman resume {self.service} --consumer"
            return self._ending(f"{said}; {self.service} is paused by {receiver.paused}", command, receiver)
        if not receiver.processes:
            said = f"{said}, and no process of {self.service} is connected to its database"
            return self._ending(said, self.run, receiver)
        return self._ending(f"{said}, and {self.service} has not come to it yet", "ferryman inbox stats", receiver)

    def _lost(self) -> Ending | None:
        """Say that nobody will come to it. Return None if its reader still may."""
        copies, receipts = self.copies, f"{self.service} has no receipt of it"
        if self.forgotten:
            kept = span(self.journey.times.receipts_seconds)
            receipts = f"receipts are kept for {kept}: whether {self.service} received it cannot be told"
        if self.entry is None and not copies and not self.journey.spots(self.identity):
            return self._mended(f"{self.what} is not among what the outbox retains, and {receipts}")
        if copies is not None and not copies:
            return self._once_more(f"{self.what} was published, and its topic does not have it any more")
        if self.past:
            said = f"{self.what} is in its topic, {self.service}'s group is past it, and {receipts}"
            return self._mended(said) if self.forgotten else self._once_more(f"{said}: it was skipped")
        return None

    def _once_more(self, why: str) -> Ending:
        """End with a replay, if the message stands in a journal."""
        if self.entry is None or self.entry.position is None:
            return self._mended(why)
        command = f"ferryman outbox replay --id {self.entry.position} --yes --reason 'trace {self.subject}'"
        return self._ending(why, command, self.sender)

    def _mended(self, why: str, rest: str = _STAYS) -> Ending:
        return Ending("", why, self.mend, rest=rest)

    def _ending(self, why: str, command: str | None, at: Witness | None) -> Ending:
        return Ending("", why, command, at.where if at and command else "")


def due(journey: Journey, at: datetime, happens: str, name: str, processes: int | None) -> tuple[str, str | None]:
    """Say what happens to a saga by itself, and when; and what a person runs if nothing looks at it. `processes` are
    those that handle its timeouts, None if nobody knows.
    """
    late = journey.age(at)
    if late <= OVERDUE_SECONDS:
        return f"If nothing comes by {moment(at)}, {happens}", None
    said = f"It was to be looked at {span(late)} ago"
    if processes == 0:
        return f"{said}, and no process of {name} is connected", f"ferryman run {name}"
    return said, None


def conclude(journey: Journey, identity: UUID) -> Ending:
    """Say where the message is, or what was reported with it: the first that is not handled."""
    entry = journey.entry(identity)
    ignoring, readers = _divided(journey, identity, identity)
    receipts = [each.receipt(identity) for each in readers]
    open_ = [each for each in receipts if each is None or each.status != "HANDLED"]
    now = entry.status if entry else "PUBLISHED"
    if now == "PUBLISHED" and readers:
        rejected = any(one.status == "REJECTED" for each in readers for one in each.rejected(identity))
        waits = next((each.status for each in open_ if each), "REJECTED" if rejected else now)
        now = waits if open_ else "HANDLED"
    if stopped := stop(journey, identity, identity, set()):
        return replace(stopped, now=now)
    took = [f"{each.consumer} refused it" if one.outcome == "REFUSED" else f"{each.consumer} handled it"
            for each, one in zip(readers, receipts, strict=True) if one]  # fmt: skip
    return _concluded(journey, identity, Ending(now, ", and ".join(took)), ignoring)


def _concluded(journey: Journey, identity: UUID, ending: Ending, ignoring: Sequence[Witness]) -> Ending:
    """Name the readers that are not waited for, and what is not known of others."""
    entry, kind, gone = journey.entry(identity), journey.kind(identity), journey.retired(identity)
    there = f"it is published{f' in {entry.topic}' if entry else ''}"
    where = "the databases that answered" if journey.away else "these databases"
    nobody = there if ignoring or gone else f"{there}, and no consumer of {where} reads that topic"
    said = [ending.why or nobody]
    said += [f"{each.consumer} has no receipt of it, nor of another {kind} among its newest: it has no handler for "
             "that type, or the message was skipped" for each in ignoring]  # fmt: skip
    said += [f"{each.consumer} is not waited for: no process of it is connected, and its group has no offsets there"
             for each in gone]  # fmt: skip
    now, rest = ending.now, ""
    if journey.away:
        now, rest = now if ending.why else "UNKNOWN", "trace it again when every database answers"
    elif ignoring:
        rest = f"nothing is left to do, unless {_names(ignoring)} should handle {kind}"
    elif gone and not ending.why:
        rest = f"nothing is left to do, unless {_names(gone)} is to run again"
    return Ending(now, "; ".join(said), rest=rest)


def _names(readers: Sequence[Witness]) -> str:
    return " or ".join(each.consumer for each in readers)


def _divided(journey: Journey, identity: UUID, subject: UUID | int) -> tuple[list[Witness], list[Witness]]:
    """Return the readers that seem to ignore a message, and the others."""
    ignoring, others = list[Witness](), list[Witness]()
    for each in journey.readers(identity):
        way = Way(journey, identity, journey.sender(identity), each, "", "", "", subject)
        (ignoring if way.ignored else others).append(each)
    return ignoring, others


def stop(
    journey: Journey, identity: UUID, subject: UUID | int, met: set[UUID], runs: Mapping[str, str] = {}
) -> Ending | None:
    """Say what keeps a message, or what was reported with it, from going on; None if nothing does. `runs` has the
    commands that run consumers.
    """
    met.add(identity)
    sender, entry = journey.sender(identity), journey.entry(identity)
    _, readers = _divided(journey, identity, subject)
    what = entry.type if entry else "the message"
    if entry and entry.status != "PUBLISHED" and not any(each.receipt(identity) for each in readers):
        return Way(journey, identity, sender, None, what, "", "", subject).unsent()
    for reader in readers:
        run = runs.get(reader.consumer, "ferryman run module:object")
        if stopped := Way(journey, identity, sender, reader, what, reader.consumer, run, subject).stopped():
            return stopped
        receipt = reader.receipt(identity)
        for each in receipt.results if receipt else ():
            if each not in met and (stopped := stop(journey, each, subject, met, runs)):
                return replace(stopped, why=f"{reader.consumer} handled {what}; {stopped.why}")
    return None
