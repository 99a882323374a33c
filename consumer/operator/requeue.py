"""Publishes rejected messages once more, to their consumer alone: receipt, record and entry change in one transaction.

The receipt is reopened by compare-and-set, so of two who requeue a message one does, and the message takes effect once
however often it then comes.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from ferryman import outbox
from ferryman.consumer.operator import again
from ferryman.consumer.operator.again import Refused
from ferryman.consumer.operator.selection import Selection
from ferryman.consumer.store import acts
from ferryman.consumer.store.acts import Rejected
from ferryman.message import Stored
from ferryman.runtime.desk import Act, Connection, Desk, audit
from ferryman.runtime.errors import Transient

REJECTED, REQUEUED, DISCARDED = "REJECTED", "REQUEUED", "DISCARDED"
CHUNK = 500
"""Messages of one transaction."""

_MOST_BYTES = 16 * 1024 * 1024

_SETTLED = "its receipt is not REJECTED any more: what became of it, `ferryman inbox show` says"


@dataclass(slots=True)
class Plan:
    """What a requeue would do."""

    by_code: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    """Why some cannot be, and how many."""
    topics: dict[str, str] = field(default_factory=dict)
    """Where they would go, and where they came from."""

    @property
    def messages(self) -> int:
        return self.by_code.total()


@dataclass(slots=True)
class Progress:
    """How far a requeue is."""

    messages: int = 0
    refused: Counter[str] = field(default_factory=Counter)


def named(desk: Desk, selection: Selection) -> list[Rejected]:
    """All that is named, whatever became of it."""
    meant = selection.parameters()
    with desk.acting() as connection:
        waiting = acts.waiting(connection, meant, acts.FIRST, most=10_000)
        return [*waiting, *acts.named(connection, meant)]


def judge(connection: Connection, records: Sequence[Rejected]) -> list[Stored | Refused]:
    """Each as the outbox would take it, still without its value; or why it does not."""
    made = [again.message(record, b"") for record in records]
    fit = [(n, each) for n, each in enumerate(made) if isinstance(each, Stored)]
    columns: dict[str, list[Any]] = {
        "topics": [each.topic for _, each in fit],
        "keys": [each.key for _, each in fit],
        "types": [each.type for _, each in fit],
        "sizes": [records[n].value_bytes for n, _ in fit],
        "headers": [each.headers for _, each in fit],
        "content_types": [each.content_type for _, each in fit],
    }
    for (n, _), fault in zip(fit, acts.faults(connection, columns) if fit else (), strict=True):
        if fault is not None:
            made[n] = Refused(f"the outbox refuses it: {fault}")
    return made


def plan(desk: Desk, selection: Selection) -> Plan:
    found = Plan()
    for records in _chunks(desk, selection):
        with desk.acting() as connection:
            judged = judge(connection, records)
        for record, made in zip(records, judged, strict=True):
            if isinstance(made, Refused):
                found.refused[made.why] += 1
            else:
                found.by_code[record.code] += 1
                found.topics[made.topic] = record.topic
    return found


def requeue(desk: Desk, selection: Selection, act: Act, progress: Progress) -> None:
    """All that is meant, in chunks that are whole; in the order of their offsets."""
    for records in _chunks(desk, selection):
        with desk.acting() as connection:
            done, refused = _requeue(connection, selection, act, records)
        progress.messages += done
        progress.refused.update(refused)


def _requeue(
    connection: Connection, selection: Selection, act: Act, records: Sequence[Rejected]
) -> tuple[int, Counter[str]]:
    judged = list(zip(records, judge(connection, records), strict=True))
    refused = Counter(made.why for _, made in judged if isinstance(made, Refused))
    fit = {record.id: (record, made) for record, made in judged if isinstance(made, Stored)}
    reopened = acts.reopen(connection, selection.consumer, list(fit))
    if closed := len(fit) - len(reopened):
        refused[_SETTLED] += closed
    chosen = [each for identity, each in fit.items() if identity in reopened]
    if not chosen:
        return 0, refused
    places = [record.place for record, _ in chosen]
    was = (REJECTED, DISCARDED)
    settled = acts.settle(connection, selection.consumer, places, REQUEUED, who=act.who, reason=act.reason, was=was)
    if settled < len(chosen):
        raise Transient("somebody else decided about some of them meanwhile", remedy="look again, and repeat it")
    values = acts.values(connection, selection.consumer, places)
    outbox.append_stored(connection, [made._replace(payload=values[record.place]) for record, made in chosen])
    audit(connection, "requeue", act, said=selection.as_json(), entries=len(chosen))
    return len(chosen), refused


def _chunks(desk: Desk, selection: Selection) -> Iterator[list[Rejected]]:
    """What waits; and of what is named, what was discarded too."""
    meant, after = selection.parameters(), acts.FIRST
    if selection.named:
        with desk.acting() as connection:
            discarded = [each for each in acts.named(connection, meant) if each.status == DISCARDED]
        if discarded:
            yield discarded
    while True:
        with desk.acting() as connection:
            records = acts.waiting(connection, meant, after, CHUNK)
        if not records:
            return
        chunk = _bounded(records)
        after = chunk[-1].place
        yield chunk


def _bounded(records: list[Rejected]) -> list[Rejected]:
    """As many of the first as fit in memory, and at least one."""
    sizes = accumulate(each.value_bytes or 0 for each in records)
    return records[: max(1, sum(size <= _MOST_BYTES for size in sizes))]
