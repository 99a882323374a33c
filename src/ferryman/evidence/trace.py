"""`ferryman trace`: find whatever an id stands for, and tell its story.

A case file tells what its service knows by the id, or by a message of it; a saga's follows from its declaration. Any
other message is told from its entry to its receipts and on, whoever's it is.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, NamedTuple, Protocol, TypeVar
from uuid import UUID

from ferryman.consumer.admin import message_story as inbox
from ferryman.consumer.admin.message_story import results
from ferryman.consumer.model import BY_SOURCE_AND_ID, Record
from ferryman.consumer.wire import identity as derived_identity
from ferryman.evidence import journal, kafka
from ferryman.evidence import messages as facts
from ferryman.evidence.journey import Journey, StoryTeller, Times, Witness
from ferryman.evidence.kafka import SeenRecord
from ferryman.evidence.messages import OutboxEntry
from ferryman.evidence.row_trace import row_told
from ferryman.evidence.sides import Side, Sides, database_of
from ferryman.evidence.way import Traced, conclude
from ferryman.relay.admin.entry_story import look
from ferryman.runtime.desk import Story
from ferryman.runtime.errors import FerrymanError
from ferryman.runtime.settings import Kafka
from ferryman.saga.answers import Key
from ferryman.schemas import headers

SEARCH_SECONDS = 10.0
JOURNAL_SECONDS = 0.3
"""The longest time to read each journal. What must be there takes a few milliseconds of it."""
LOOK_SECONDS = 0.1
_MOST_MESSAGES, _MOST_LOOKS = 40, 8

T = TypeVar("T")
Copies = Mapping[UUID, Sequence[SeenRecord]]
AskKafka = Callable[[Journey], Copies | None]
"""Asks Kafka for the messages of a journey."""
Place = tuple[str, int, int]


class Hint(NamedTuple):
    """A pointer to a message's subject: the type, the key, and a time when the message was there already."""

    type: str
    key: str
    at: datetime


class Subject(NamedTuple):
    """A subject by its kind, such as `event:7` or `orders:12`: numbers alone may be of several."""

    kind: str
    key: Key


class CaseTracer(Protocol):
    """The part of a case file that tells stories, from databases that may have none of its subjects."""

    @property
    def machine(self) -> str:
        """The machine whose strays are of its subjects."""

    def tell(self, sides: Sides, identity: Key | Subject, ask: AskKafka) -> Traced | None:
        """Tell the story of the subject with this id. Return None if there is none."""

    def subject_of(self, sides: Sides, identity: UUID, hint: Hint) -> Key | Subject | None:
        """Return the subject that a message is of."""


def unasked(_journey: Journey) -> None:
    """Ask nobody: the databases alone tell."""


def trace(
    sides: Sides, reference: Key | Place | Subject, tracers: Sequence[CaseTracer] = (), *, ask: AskKafka = unasked,
    is_key: bool = False,
) -> Traced:  # fmt: skip
    """Tell the story of whatever has this id, or of a message by its position in an outbox or its place in Kafka.

    A number may be the key of a saga too: with `is_key` that comes first. Raise an error if nobody knows it.
    """
    if isinstance(reference, Subject):
        return named(sides, reference, tracers, ask=ask)
    key = reference if isinstance(reference, int) else None
    told = subject_told(sides, key, tracers, ask=ask) if key is not None and is_key else None
    try:
        told = told or _of_id(sides, resolve(sides, reference), tracers, ask)
    except FerrymanError as error:
        told = subject_told(sides, key, tracers, ask=ask) if key is not None and not is_key else None
        if told is None and key is not None and is_key:
            raise FerrymanError(f"no saga here has the key {key}, and {error.message}", remedy=error.remedy) from None
        if told is None:
            raise
    return addressed(sides, told)


def _of_id(sides: Sides, identity: UUID, tracers: Sequence[CaseTracer], ask: AskKafka) -> Traced:
    looked: list[str] = []
    if told := subject_told(sides, identity, tracers, ask=ask) or row_told(sides, identity, looked):
        return told
    clues = clues_of(sides, identity, [each.machine for each in tracers])
    clues.looked.extend(looked)
    of_subjects = (subject_told(sides, each, tracers, ask=ask) for each in subjects_of(sides, identity, clues, tracers))
    return next((each for each in of_subjects if each), None) or _message(sides, identity, clues, ask)


def named(sides: Sides, subject: Subject, tracers: Sequence[CaseTracer], *, ask: AskKafka = unasked) -> Traced:
    """Tell the story of a subject that is named by its kind."""
    if told := subject_told(sides, subject, tracers, ask=ask):
        return addressed(sides, told)
    raise FerrymanError(
        f"nobody knows {subject.kind}:{subject.key}" + "".join(f". Not looked at: {each}" for each in sides.missing),
        remedy="kinds are those of docs/trace.md, and the names of sagas that the setting `sagas`, or --saga, names",
    )


def subject_told(
    sides: Sides, subject: Key | Subject, tracers: Sequence[CaseTracer], *, ask: AskKafka = unasked
) -> Traced | None:
    """Tell the story of the subject with this id, if a case file knows it."""
    return next((told for each in tracers if (told := each.tell(sides, subject, ask))), None)


def addressed(sides: Sides, told: Traced) -> Traced:
    """Make the command of a story find the database that it is for."""
    at, command = sides.get(told.ending.at), told.ending.next
    return replace(told, ending=replace(told.ending, next=at.command(command))) if at and command else told


def asking(sides: Sides) -> AskKafka:
    """Return what asks the cluster of the settings."""
    return lambda journey: _asked(sides, lambda settings: kafka.look(settings, journey.sought()))


def _asked(sides: Sides, ask: Callable[[Kafka], T]) -> T | None:
    """Ask Kafka. That it does not answer is missing, and not the end."""
    try:
        return ask(sides.settings.kafka)
    except FerrymanError as error:
        sides.missing.append(f"Kafka: {error}")
        return None


def passed(copies: Copies | None) -> bool:
    """Return True if a group is past a record: its receipt may have been written since the databases were read."""
    return any(each.past for seen in (copies or {}).values() for each in seen)


def resolve(sides: Sides, reference: UUID | int | Place) -> UUID:
    """Return the id of the message at a position of an outbox, or at a place in Kafka."""
    if isinstance(reference, UUID):
        return reference
    found = dict[UUID, str]()
    for side in sides.each:
        if isinstance(reference, int):
            seen = look(side, reference)
            found |= {seen.entry.id: side.name} if seen else {}
        else:
            received = inbox.look(side, reference, None, payload=False, seconds=SEARCH_SECONDS).seen
            found |= {_id_of(each): side.name for each in received}
    for each in derived_ids(sides, list(found)):
        found.pop(each, None)
    if len(found) == 1:
        return next(iter(found))
    name = reference if isinstance(reference, int) else "/".join(map(str, reference))
    if not found:
        raise FerrymanError(f"no outbox and no inbox here knows {name}", remedy="name the message by its id")
    several = ", ".join(f"{identity} ({where})" for identity, where in found.items())
    raise FerrymanError(f"{name} is several messages: {several}", remedy="name one of them by its id")


def derived_ids(sides: Sides, ids: Iterable[UUID]) -> dict[UUID, UUID]:
    """Return the ids under which a consumer may have messages of these sides, by `Consumer(id_from=...)`: each with
    the id that the message has in its outbox.
    """
    relay = sides.settings.relay
    named = {relay.ce_source, *(each.ce_source for each in relay.sources.values())}
    named |= {f"/{each.connection.info.dbname}" for each in sides.each}
    return {_derived(name, each): each for each in ids for name in named if name}


def _derived(source: str, identity: UUID) -> UUID:
    given: list[tuple[str, bytes | None]] = [
        (headers.SOURCE, source.encode()), (headers.ID, str(identity).encode())
    ]  # fmt: skip
    return derived_identity(Record("", 0, 0, None, None, given, 0), BY_SOURCE_AND_ID)


# --- what an id may be

_STRAYS = """\
-- trace.saga_of_stray
SELECT machine, saga_id, saga_number FROM ferryman.saga_stray
WHERE machine = ANY (%(machines)s::text[]) AND message_id = %(id)s
"""


@dataclass(frozen=True, slots=True)
class Clues:
    """The databases' answers about an id: hints to its subject, and its entries, if the journals were searched."""

    hints: list[Hint | Subject] = field(default_factory=list)
    entries: dict[str, tuple[list[OutboxEntry], int]] = field(default_factory=dict)
    """By database; and the position down to which there was time to search its journal."""
    looked: list[str] = field(default_factory=list)
    """The places that were searched, in words."""


def clues_of(sides: Sides, identity: UUID, machines: Sequence[str]) -> Clues:
    """Ask the inboxes, and the results that sagas did not apply. If they do not tell the key of the message, look for
    its entry: before it was received; or else among the newest of each journal.
    """
    clues = Clues()
    for side in sides.each:
        for seen in _seen(sides, side, identity):
            clues.hints.extend(_hints(seen))
        strays = side.ask(facts.tuples, _STRAYS, {"machines": list(machines), "id": identity})
        clues.hints.extend(Subject(kind, number if saga is None else saga) for kind, saga, number in strays)
        clues.looked.append(f"the receipts and rejected records of {database_of(side.name)}")
    received = [each.at for each in clues.hints if isinstance(each, Hint)]
    for side in sides.each if all(isinstance(each, Hint) and not each.key for each in clues.hints) else ():
        longest = JOURNAL_SECONDS if received else SEARCH_SECONDS
        entries, unseen = journal.backwards(side, identity, min(received, default=None), longest)
        depth = f", down to position {unseen}, which took {longest:g} s" if unseen else ""
        clues.looked.append(f"the {side.name}'s outbox{depth}")
        clues.hints.extend(Hint(each.type, each.key, each.created_at) for each in entries)
        clues.entries[side.name] = entries, unseen
    return clues


def _seen(sides: Sides, side: Side, identity: UUID) -> Iterator[inbox.MessageView]:
    """Yield what the consumers of a database know of a message, by each id that it may have there."""
    for each in (identity, *derived_ids(sides, [identity])):
        yield from inbox.look(side, each, None, payload=False, seconds=LOOK_SECONDS).seen


def subjects_of(sides: Sides, identity: UUID, clues: Clues, tracers: Sequence[CaseTracer]) -> Iterator[Key | Subject]:
    """Yield the subjects that a message may be of."""
    for hint in clues.hints:
        if isinstance(hint, Hint):
            found = (each.subject_of(sides, identity, hint) for each in tracers)
            yield from (each for each in found if each is not None)
        else:
            yield hint


def _hints(seen: inbox.MessageView) -> Iterator[Hint]:
    if receipt := seen.known.receipt:
        yield from (Hint(each["type"], each["key"], receipt["received_at"]) for each in results(receipt))
        yield Hint(receipt["type"], "", receipt["received_at"])
    for each in seen.known.records:
        yield Hint(each["type"], (each["key"] or b"").decode("utf-8", "replace"), each["rejected_at"])


def _id_of(seen: inbox.MessageView) -> UUID:
    found: UUID = (seen.known.receipt or seen.known.records[0])["id"]
    return found


def _message(sides: Sides, identity: UUID, clues: Clues, ask: AskKafka) -> Traced:
    if not clues.hints:
        raise FerrymanError(
            f"nobody knows {identity}: no saga, no other subject and nothing has it in {'; '.join(clues.looked)}"
            + "".join(f". Not looked at: {each}" for each in sides.missing),
            remedy="its transaction may not have committed; what is older than the retention is gone for good; sagas "
            "of yours are known if the setting `sagas`, or --saga, names them",
        )
    away = bool(sides.missing)
    journey = follow(sides, identity, clues)
    copies = ask(journey)
    idle = journey.idle() if copies is not None else set()
    gone = _asked(sides, lambda settings: kafka.groups_gone(settings, idle)) if idle else None
    if passed(copies):
        journey = follow(sides, identity, clues)
    journey = replace(journey, kafka=copies, groups_gone=gone or frozenset(), away=away)
    late = f"what may be in it was not found within {JOURNAL_SECONDS:g} s of reading"
    sides.missing.extend(f"all of the {each.where}'s outbox: {late}" for each in journey.witnesses if not each.whole)
    telling, ending = StoryTeller(journey), conclude(journey, identity)
    telling.message(identity, {}, None)
    known: dict[str, Any] = {}
    if entry := journey.entry(identity):
        known = {"type": entry.type, "topic": entry.topic, "key": entry.key, "position": entry.position}
    elif spots := journey.spots(identity):
        known = {"type": spots[0].type, "topic": spots[0].topic}
    said = f"{known.get('type', '')} to {known.get('topic', '')}" + (f", key {known['key']}" if "key" in known else "")
    over = ending.now in ("HANDLED", "PUBLISHED") and not (ending.next or ending.rest)
    headline = [f"message {identity}", said]
    return Traced(identity, "message", known, headline, telling.events, ending, sides.missing, over)


# --- following a message of any service

_SUBSCRIPTIONS = """\
-- evidence.subscriptions
SELECT DISTINCT consumer, topic FROM ferryman.inbox_start ORDER BY consumer, topic
"""

_TYPES = """\
-- evidence.types
SELECT DISTINCT n.type FROM (
    SELECT i.type FROM ferryman.inbox_receipts i WHERE i.consumer = %(consumer)s ORDER BY i.received_at DESC LIMIT 10000
) n
"""


def follow(
    sides: Sides, identity: UUID, clues: Clues | None = None, *, others: Iterable[UUID] = (),
    moments: Sequence[datetime] = (), reads: Mapping[tuple[Side, str], set[str]] = {},
) -> Journey:  # fmt: skip
    """Gather what every database knows of a message, and of the messages that were reported with it, and on. So it does
    with `others` of its subject, whose entries are looked for around their receipts and around these moments. `reads`
    has the topics of consumers that are known of, whether they ever ran or not.
    """
    ids, readers, clues = list(dict.fromkeys([identity, *others])), list[Witness](), clues or Clues()
    most = len(ids) - 1 + _MOST_MESSAGES
    found = {(side, name): topics for side in sides.each for name, topics in _consumers(sides, side, identity).items()}
    consumers = [(*each, found.get(each, set()) | reads.get(each, set())) for each in {**found, **reads}]
    types = [frozenset(kind for (kind,) in side.ask(facts.tuples, _TYPES, {"consumer": name}))
             for side, name, _ in consumers]  # fmt: skip
    new = ids
    while new:
        known_as = derived_ids(sides, ids)
        readers = [witness(side, name, ids, side.name, topics, known_as=known_as) for side, name, topics in consumers]
        reported = (each for reader in readers for receipt in reader.receipts for each in receipt.results)
        new = [each for each in dict.fromkeys(reported) if each not in ids][: most - len(ids)]
        ids += new
    readers = [replace(reader, types=known) for reader, known in zip(readers, types, strict=True)]
    searched = [_outbox(side, ids, readers, clues, moments) for side in sides.each]
    there = any(each.entry(identity) for each, _ in searched)
    outboxes = [replace(each, whole=each.whole and (there or not cut)) for each, cut in searched]
    return Journey(sides.each[0].now(), [*outboxes, *readers], times=Times.of(sides.settings))


def _consumers(sides: Sides, side: Side, identity: UUID) -> dict[str, set[str]]:
    """Return the consumers that know the message, or own partitions: each with the topics that it reads."""
    found = {each.known.consumer: set[str]() for each in _seen(sides, side, identity)}
    for consumer, topic in side.ask(facts.tuples, _SUBSCRIPTIONS, {}):
        found.setdefault(consumer, set()).add(topic)
    return found


def witness(
    side: Side, consumer: str, ids: Sequence[UUID], where: str, reads: Iterable[str], *,
    known_as: Mapping[UUID, UUID] = {},
) -> Witness:  # fmt: skip
    """Return what a consumer knows of these messages, whatever their number; not yet what its outbox knows.

    It may have them under other ids, `known_as`; what is returned has the ids that the messages have in their outboxes.
    """
    with side.reading() as db:
        found = facts.receipts(db, consumer, [*ids, *known_as])
        records = facts.rejected(db, consumer, [*ids, *known_as])
        processes, paused = facts.reader(db, consumer)
    unhandled = {each.id for each in found.values() if each.status != "HANDLED"} | {each.id for each in records}
    stories = dict[UUID, Story]()
    for each in list(unhandled)[:_MOST_LOOKS]:
        for seen in inbox.look(side, each, consumer, payload=False, seconds=LOOK_SECONDS).seen[:1]:
            stories[known_as.get(each, each)] = seen.story
    verdicts = [each._replace(id=known_as.get(each.id, each.id)) for each in found.values()]
    receipts = sorted(verdicts, key=lambda each: each.at)
    rejections = [each._replace(id=known_as.get(each.id, each.id)) for each in records]
    return Witness((), receipts, rejections, stories, processes, paused, True, where, consumer, frozenset(reads))


def _outbox(
    side: Side, ids: Sequence[UUID], readers: Sequence[Witness], clues: Clues, moments: Sequence[datetime]
) -> tuple[Witness, bool]:
    """Look for the entries. What was reported stands in the journal of the receipt, at its time; the message itself
    before whoever received it first. Return also whether there was no time to look for it in the whole journal.
    """
    known, unseen = clues.entries.get(side.name, (None, 0))
    ours = [each for reader in readers if reader.where == side.name for each in reader.receipts]
    first = [spot.at for reader in readers for spot in reader.spots(ids[0])]
    must = [each for receipt in ours for each in receipt.results]
    around, whole = journal.find(side, ids, [*moments, *(each.at for each in ours)], must, JOURNAL_SECONDS)
    entries = {each.position: each for each in [*(known or ()), *around]}
    if first and known is None and not any(each.id == ids[0] for each in entries.values()):
        before, unseen = journal.backwards(side, ids[0], min(first), JOURNAL_SECONDS)
        entries |= {each.position: each for each in before}
    ordered = [each for _, each in sorted(entries.items(), key=lambda item: item[0] or 0)]
    return Witness(journal.with_reasons(side, ordered), whole=whole, where=side.name), bool(unseen)
