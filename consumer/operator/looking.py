"""One message with all that is known of it, by its id or by where it stood in Kafka."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from ferryman.consumer.operator.again import Refused
from ferryman.consumer.operator.listing import known
from ferryman.consumer.operator.requeue import judge
from ferryman.consumer.operator.selection import Place
from ferryman.consumer.operator.story import Known, Row, Story, tell
from ferryman.consumer.store import listing, standing
from ferryman.consumer.store.acts import Rejected
from ferryman.consumer.store.receipts import Connection
from ferryman.runtime.desk import Desk

_STRIDE = 50_000


@dataclass(frozen=True, slots=True)
class Seen:
    """What one consumer knows of a message; values of records only when they were asked for."""

    known: Known
    story: Story
    values: Sequence[bytes | None]


@dataclass(frozen=True, slots=True)
class Found:
    """By each consumer that knows it; not complete when the time was not enough to look through all receipts."""

    seen: Sequence[Seen]
    complete: bool = True


def look(desk: Desk, reference: UUID | Place, consumer: str | None, *, payload: bool, seconds: float) -> Found:
    with desk.acting() as connection:
        standing.prepare(connection)
        consumers = known(standing.consumers(connection), consumer)
    ids, complete = ([reference], True) if isinstance(reference, UUID) else _at(desk, reference, consumers, seconds)
    with desk.acting() as connection:
        place = None if isinstance(reference, UUID) else reference
        records = listing.records(connection, consumers, ids, place)
        wanted = {*ids, *(each["id"] for each in records)}
        receipts = listing.receipts(connection, consumers, sorted(wanted))
        records += [
            each for each in listing.records(connection, consumers, sorted(wanted), None) if each not in records
        ]
        seen = [
            _seen(connection, name, identity, receipts, records, payload=payload)
            for name in consumers
            for identity in sorted(wanted)
            if any((each["consumer"], each["id"]) == (name, identity) for each in [*receipts, *records])
        ]
    return Found(seen, complete)


def _at(desk: Desk, place: Place, consumers: Sequence[str], seconds: float) -> tuple[list[UUID], bool]:
    """Ids of the receipts of what stood there. A rejected record is found by its place, at once."""
    with desk.acting() as connection:
        if found := listing.records(connection, consumers, [], place):
            return sorted({each["id"] for each in found}), True
    until = time.monotonic() + seconds
    ids: list[UUID] = []
    for name in consumers:
        before = None
        while True:
            if time.monotonic() > until:
                return ids, False
            with desk.acting() as connection:
                standing.prepare(connection)
                found_ids, before = listing.at_place(connection, name, place, before, _STRIDE)
            ids += found_ids
            if found_ids or before is None:
                break
    return ids, True


def _seen(
    connection: Connection, consumer: str, identity: UUID, receipts: Sequence[Row], records: Sequence[Row], *,
    payload: bool,
) -> Seen:  # fmt: skip
    mine = [each for each in records if (each["consumer"], each["id"]) == (consumer, identity)]
    chosen = sorted(mine, key=lambda each: (each["status"] == "REJECTED", each["rejected_at"]), reverse=True)
    paused = {each["consumer"]: each for each in standing.paused(connection)}
    what = Known(
        receipt=next((each for each in receipts if (each["consumer"], each["id"]) == (consumer, identity)), None),
        records=chosen,
        unfit=_unfit(connection, chosen),
        paused=paused.get(consumer),
        processes=standing.processes(connection, [consumer])[consumer],
        relays=standing.relays(connection),
    )
    values = [listing.value(connection, each) for each in what.records] if payload else []
    return Seen(what, tell(what), values)


def _unfit(connection: Connection, records: Sequence[Row]) -> str | None:
    if not records:
        return None
    fields: dict[str, Any] = {name: records[0][name] for name in Rejected._fields}
    judged = judge(connection, [Rejected(**fields)])[0]
    return judged.why if isinstance(judged, Refused) else None
