"""The story of one message: everything that is known of it, what became of it in words, and the command to run next."""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from uuid import UUID

from ferryman.consumer.admin.messages import known_consumers
from ferryman.consumer.admin.requeue import judge
from ferryman.consumer.store import consumers as store
from ferryman.consumer.store import lookup, rejected
from ferryman.consumer.store.rejected import Place, RejectedRecord, written
from ferryman.runtime.desk import Connection, Desk, Row, Story, count_relays, paused_by, read_paused
from ferryman.runtime.times import moment

_STRIDE = 50_000


@dataclass(frozen=True, slots=True)
class KnownMessage:
    """Everything that one consumer's tables say of a message, and how the consumer is."""

    receipt: Row | None
    records: Sequence[Row] = ()
    """Its rejected records: those that wait first, then the newest."""
    unfit: str | None = None
    """The reason why the first record cannot be requeued."""
    paused: Row | None = None
    processes: int = 0
    relays: int = 0

    @property
    def record(self) -> Row | None:
        return self.records[0] if self.records else None

    @property
    def consumer(self) -> str:
        name: str = (self.receipt or self.records[0])["consumer"]
        return name

    @property
    def conflict(self) -> bool:
        """True if the first record is of another message than the receipt."""
        return self.record is not None and self.record["code"] == "CONFLICT"


@dataclass(frozen=True, slots=True)
class MessageView:
    """A message as one consumer knows it. `values` has the values of its records only if they were asked for."""

    known: KnownMessage
    story: Story
    values: Sequence[bytes | None]


@dataclass(frozen=True, slots=True)
class FoundMessages:
    """The views of the consumers that know a message. `complete` is False if not all receipts could be searched."""

    seen: Sequence[MessageView]
    complete: bool = True


def look(desk: Desk, reference: UUID | Place, consumer: str | None, *, payload: bool, seconds: float) -> FoundMessages:
    """Find a message by its id, or by its place in Kafka."""
    with desk.reading() as connection:
        consumers = known_consumers(connection, consumer)
    ids, complete = ([reference], True) if isinstance(reference, UUID) else _ids_at(desk, reference, consumers, seconds)
    with desk.acting() as connection:
        known = _known(connection, consumers, ids)
        values = [_values(connection, each) if payload else [] for each in known]
    return FoundMessages(
        [MessageView(each, tell(each), raw) for each, raw in zip(known, values, strict=True)], complete
    )


def _ids_at(desk: Desk, place: Place, consumers: Sequence[str], seconds: float) -> tuple[list[UUID], bool]:
    """Return the ids of the messages at a place. Rejected records are indexed by it; receipts are searched."""
    with desk.acting() as connection:
        if found := lookup.records(connection, consumers, [], place):
            return sorted({each["id"] for each in found}), True
    until = time.monotonic() + seconds
    ids: list[UUID] = []
    for name in consumers:
        found_ids, before = list[UUID](), None
        while not found_ids:
            if time.monotonic() > until:
                return ids, False
            with desk.reading() as connection:
                found_ids, before = lookup.at_place(connection, name, place, before, _STRIDE)
            if before is None:
                break
        ids += found_ids
    return sorted(set(ids)), True


def _known(connection: Connection, consumers: Sequence[str], ids: Sequence[UUID]) -> list[KnownMessage]:
    """Return what each consumer knows of these messages."""
    receipts = {(each["consumer"], each["id"]): each for each in lookup.receipts(connection, consumers, ids)}
    records: dict[tuple[str, UUID], list[Row]] = {}
    for each in lookup.records(connection, consumers, ids, None):
        records.setdefault((each["consumer"], each["id"]), []).append(each)
    known = [each for each in product(consumers, ids) if each in receipts or each in records]
    if not known:
        return []
    processes, relays = store.processes(connection, consumers), count_relays(connection)
    paused = {each["name"]: each for each in read_paused(connection, "consumer")}
    found = []
    for consumer, identity in known:
        mine = records.get((consumer, identity), [])
        mine.sort(key=lambda each: (each["status"] == "REJECTED", each["rejected_at"]), reverse=True)
        receipt, unfit = receipts.get((consumer, identity)), _unfit(connection, mine)
        found.append(KnownMessage(receipt, mine, unfit, paused.get(consumer), processes[consumer], relays))
    return found


def _unfit(connection: Connection, records: Sequence[Row]) -> str | None:
    """Return why the first record cannot be requeued."""
    if not records:
        return None
    judged = judge(connection, [RejectedRecord(**{name: records[0][name] for name in RejectedRecord._fields})])[0]
    return judged if isinstance(judged, str) else None


def _values(connection: Connection, known: KnownMessage) -> list[bytes | None]:
    numbers = [each["number"] for each in known.records]
    values = rejected.values(connection, known.consumer, numbers)
    return [values.get(each) for each in numbers]


def tell(known: KnownMessage) -> Story:
    """Tell the story of a message. It is pure: everything known is passed."""
    if known.record and known.record["status"] == "REJECTED":
        return _rejected(known, known.record)
    if known.receipt is None or (known.receipt["status"] == "REJECTED" and known.record):
        assert known.record is not None
        return _settled(known, known.record)
    match known.receipt["status"]:
        case "HANDLED":
            return _handled(known, known.receipt)
        case "RECEIVED":
            return _received(known.receipt)
        case "REOPENED":
            return _reopened(known)
    return Story("REJECTED, and its record does not exist any more: only its writer can send it anew", None)


def results(receipt: Row) -> list[dict[str, str]]:
    """Return what was reported: ids, topics and types, without payloads."""
    return [
        {"id": each[5], "topic": each[0], "type": each[2], "key": each[1]}
        for each in json.loads(receipt["results"] or "[]")
    ]


def place_of(row: Row) -> str:
    """Return where a receipt or a record was, as a person writes it: orders/2/4711."""
    return written((row["topic"], row["partition"], row["offset"]))


def _reference(record: Row) -> str:
    """Return what names this record alone for `--id`. Records at one place may even have the same id: a conflict."""
    return f"{record['id']} --code {record['code']}" if record["shares_place"] else place_of(record)


def _rejected(known: KnownMessage, record: Row) -> Story:
    said = f"REJECTED ({record['code']}): {record['error']}"
    discard = f"ferryman inbox discard --id {_reference(record)} --consumer {known.consumer}"
    if known.unfit is not None:
        return Story(f"{said}. It cannot be requeued: {known.unfit}", discard)
    requeue = f"ferryman inbox requeue --id {_reference(record)} --consumer {known.consumer}"
    return Story(said, f"mend the cause, then {requeue}   or   {discard}")


def _settled(known: KnownMessage, record: Row) -> Story:
    by = f"by {record['who']} at {moment(record['changed_at'])} ({record['reason']})"
    was = f"it had been rejected with {record['code']}: {record['error']}"
    if record["status"] == "DISCARDED":
        again = None if known.unfit else f"ferryman inbox requeue --id {_reference(record)} --consumer {known.consumer}"
        return Story(f"DISCARDED {by}: it has no effect; {was}", again)
    return Story(f"REQUEUED {by}; {was}", f"ferryman inbox list --consumer {known.consumer} --status REOPENED")


def _received(receipt: Row) -> Story:
    if receipt["error"]:
        return Story(f"RECEIVED, at most once: it failed, had no effect and never will: {receipt['error']}", None)
    said = "RECEIVED, at most once: it is being handled at this moment, or its process died; then it had no effect"
    return Story(said, f"ferryman inbox show {receipt['id']}")


def _reopened(known: KnownMessage) -> Story:
    record = known.record
    by = f" by {record['who']} at {moment(record['changed_at'])} ({record['reason']})" if record else ""
    if known.paused:
        waits = f"its consumer is paused by {paused_by(known.paused)}"
        following = f"ferryman resume {known.consumer} --consumer"
    elif not known.processes:
        waits, following = "no process of its consumer is connected", "ferryman run module:object"
    elif not known.relays:
        waits = "no relay is connected to this database, which would publish it"
        following = "ferryman run relay"
    else:
        waits = "the relay publishes it, and its consumer takes it from its retry topic"
        following = "ferryman outbox stats"
    return Story(f"REOPENED: requeued{by}; {waits}", following)


def _handled(known: KnownMessage, receipt: Row) -> Story:
    reported = results(receipt)
    many = {0: "nothing was reported", 1: "1 message was reported"}.get(
        len(reported), f"{len(reported)} messages were reported"
    )
    what = f"refused ({receipt['reason']})" if receipt["outcome"] == "REFUSED" else "it took effect"
    before = ", after it had been rejected and requeued" if known.records and not known.conflict else ""
    look = f"ferryman outbox show {reported[0]['id']}" if reported else None
    return Story(f"HANDLED: {what}{before}, and {many}", look)
