"""Requeues rejected messages for their consumer alone, or discards them: then they have no effect if they come again.

Receipt, record and outbox entry of a requeued message change in one transaction. The receipt is reopened by
compare-and-set, so of two requeues of a message one succeeds, and the message takes effect once however often it then
comes. The entry has the id of the receipt, and the relay publishes it as `ce_id`: the consumer knows the message again,
even if its id was derived from a foreign `ce_source` and `ce_id`.
"""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from ferryman import outbox
from ferryman.consumer.admin.messages import DISCARDED, REJECTED, REQUEUED, SelectedMessages
from ferryman.consumer.kafka.consumer_topics import retry_topic
from ferryman.consumer.store import rejected
from ferryman.consumer.store.rejected import RejectedRecord, written
from ferryman.consumer.wire import BAD_HEADER, CONFLICT, headers_from_base64, text_of
from ferryman.message import Stored
from ferryman.runtime.desk import Act, Connection, Desk, audit
from ferryman.runtime.errors import FerrymanError, Transient
from ferryman.schemas import headers as names

CHUNK = 500
"""The most messages in one transaction."""

_MOST_BYTES = 16 * 1024 * 1024
_SETTLED = "its receipt is not REJECTED any more: `ferryman inbox show` says what became of it"
# The relay sets these headers itself. The original's are kept under other names, for handlers that need them.
_SET_BY_RELAY = (names.ID, names.TYPE, names.SOURCE, names.SPECVERSION, names.TIME, names.CONTENT_TYPE)
_KEPT = (names.ID, names.SOURCE, names.TIME)

Judged = Stored | str
"""The entry that requeues a record, without its value; or why the record cannot be requeued."""
Requeued = tuple[RejectedRecord, Stored]
"""A record that can be requeued, and its entry."""


@dataclass(slots=True)
class RequeueCounts:
    """The messages of a requeue, planned or done, and the refused ones."""

    by_code: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    """The number of records that cannot be requeued, by reason."""
    topics: dict[str, str] = field(default_factory=dict)
    """The retry topics, each with the topic that its messages came from."""

    @property
    def messages(self) -> int:
        return self.by_code.total()


def named(desk: Desk, selection: SelectedMessages) -> list[RejectedRecord]:
    """Return all selected records, whatever became of them.

    Refuse ids and places that do not exist, and places that name several records.
    """
    meant = selection.parameters()
    with desk.acting() as connection:
        found = [each for waiting in (True, False) for each in rejected.records(connection, meant, waiting=waiting)]
    there = {name for each in found for name in (str(each.id), str(each))}
    asked = [*map(str, selection.ids), *map(written, selection.places)]
    if missing := [each for each in asked if each not in there]:
        whose = f"the consumer {selection.consumer} has not" if selection.consumer else "no consumer here has"
        raise FerrymanError(
            f"{whose} rejected {', '.join(missing)}",
            remedy="`ferryman inbox show` says what is known of it, `ferryman inbox list` what was rejected",
        )
    for place in selection.places:
        if len(here := [each for each in found if each.place == place]) > 1:
            said = ", ".join(f"{each.id} ({each.code}, {each.status})" for each in here)
            raise FerrymanError(
                f"{written(place)} is the place of {len(here)} rejected records, since its topic was made anew: {said}",
                remedy="name the one that you mean by its id; if they have one id, say its --code too",
            )
    return found


def judge(connection: Connection, records: Sequence[RejectedRecord]) -> list[Judged]:
    """Return each record as the outbox would take it, without its value, or why it cannot be requeued."""
    made = [requeued_message(record) for record in records]
    fit = [n for n, each in enumerate(made) if isinstance(each, Stored)]
    messages = [each for each in made if isinstance(each, Stored)]
    faults = rejected.faults(connection, messages, [records[n].value_bytes for n in fit])
    for n, fault in zip(fit, faults, strict=True):
        if fault is not None:
            made[n] = f"the outbox refuses it: {fault}"
    return made


def requeued_message(record: RejectedRecord) -> Judged:
    """Return a record as an outbox entry without its value. The outbox itself checks sizes and lengths."""
    if record.code == CONFLICT:
        return "another message has its id: it has no receipt of its own that could be reopened"
    if record.code == BAD_HEADER:
        return "its headers could not be read, so they are lost: it would not be the same message"
    if record.value_bytes is None:
        return "it has no value: a tombstone is not a message"
    key = text_of(record.key)
    if key is None:
        return "its key is not UTF-8 text, or holds a null byte: the outbox cannot hold it"
    texts = {name: text_of(raw) for name, raw in headers_from_base64(record.headers)}
    if unfit := sorted(name for name, text in texts.items() if text is None and name not in _SET_BY_RELAY):
        return f"its header {unfit[0]} is not UTF-8 text, or holds a null byte: the outbox cannot hold it"
    headers = json.dumps(_headers(record, {name: text for name, text in texts.items() if text is not None}))
    kind = texts.get(names.TYPE) or record.type  # a type that was cut is whole in its header
    content_type = next(
        (text_of(raw) for name, raw in headers_from_base64(record.headers) if name == names.CONTENT_TYPE), None
    )
    return Stored(retry_topic(record.topic, record.consumer), key, kind, b"", headers, record.id, None, content_type)


def _headers(record: RejectedRecord, texts: dict[str, str]) -> dict[str, str]:
    """Return the entry's headers. One without a value becomes an empty one, which a handler cannot tell from it."""
    own = {name: text for name, text in texts.items() if name not in _SET_BY_RELAY}
    kept = {names.ORIGINAL + name: texts[name] for name in _KEPT if texts.get(name)}
    if kept.get(names.ORIGINAL + names.ID) == str(record.id):
        del kept[names.ORIGINAL + names.ID]
    if names.REQUEUED_FROM in own:  # it was requeued before, and has the original's headers already
        kept = {}
    return {**kept, names.REQUEUED_FROM: str(record), **own}


def requeue(desk: Desk, selection: SelectedMessages, act: Act | None, done: RequeueCounts) -> RequeueCounts:
    """Requeue the selected messages in the order of their offsets, one transaction per chunk; count them in `done`.

    Without an act nothing is changed: count what would be done.
    """
    for records in _chunks(desk, selection):
        with desk.acting() as connection:
            judged = list(zip(records, judge(connection, records), strict=True))
            refused = Counter(why for _, why in judged if isinstance(why, str))
            fit = [(record, made) for record, made in judged if isinstance(made, Stored)]
            chosen = _requeue_chunk(connection, selection, act, fit) if act and fit else fit
        if closed := len(fit) - len(chosen):
            refused[_SETTLED] += closed
        done.refused.update(refused)
        done.by_code.update(record.code for record, _ in chosen)
        done.topics |= {made.topic: record.topic for record, made in chosen}
    return done


def rehearse(desk: Desk, selection: SelectedMessages, act: Act) -> None:
    """Requeue the first messages and roll it back. Raise whatever would prevent the requeue, as a missing right."""
    for records in _chunks(desk, selection):
        with desk.acting() as connection, connection.transaction(force_rollback=True):
            judged = zip(records, judge(connection, records), strict=True)
            if fit := [(record, made) for record, made in judged if isinstance(made, Stored)]:
                _requeue_chunk(connection, selection, act, fit)
                return


def _requeue_chunk(
    connection: Connection, selection: SelectedMessages, act: Act, fit: Sequence[Requeued]
) -> list[Requeued]:
    """Requeue the messages whose receipts are still REJECTED, and return them."""
    by_id = {record.id: (record, made) for record, made in fit}
    reopened = rejected.reopen(connection, selection.consumer, list(by_id))
    chosen = [each for identity, each in by_id.items() if identity in reopened]
    if not chosen:
        return []
    records = [record for record, _ in chosen]
    if rejected.settle(connection, records, REQUEUED, act, was=(REJECTED, DISCARDED)) < len(chosen):
        raise Transient("somebody else decided about some of them meanwhile", remedy="look again, and repeat it")
    values = rejected.values(connection, selection.consumer, [record.number for record in records])
    outbox.append_stored(connection, [made._replace(payload=values[record.number]) for record, made in chosen])
    audit(connection, "requeue", act, said=selection.as_json(), entries=len(chosen))
    return chosen


def _chunks(desk: Desk, selection: SelectedMessages) -> Iterator[list[RejectedRecord]]:
    """Yield the records that wait; if they are selected by id or place, the discarded ones too."""
    if selection.named:
        with desk.acting() as connection:
            settled = rejected.records(connection, selection.parameters(), waiting=False)
        if discarded := [each for each in settled if each.status == DISCARDED]:
            yield discarded
    yield from _waiting_chunks(desk, selection)


def _waiting_chunks(desk: Desk, selection: SelectedMessages) -> Iterator[list[RejectedRecord]]:
    """Yield the records that wait for a person, in the order of their places, as many at once as fit in memory."""
    after = rejected.FIRST
    while True:
        with desk.acting() as connection:
            records = rejected.records(connection, selection.parameters(), waiting=True, after=after, most=CHUNK)
        if not records:
            return
        sizes = accumulate(each.value_bytes or 0 for each in records)
        chunk = records[: max(1, sum(size <= _MOST_BYTES for size in sizes))]
        after = chunk[-1].place, chunk[-1].number
        yield chunk


def plan_discard(desk: Desk, selection: SelectedMessages) -> Counter[str]:
    """Return how many messages a discard would give up, by code."""
    return Counter(each.code for records in _waiting_chunks(desk, selection) for each in records)


def discard(desk: Desk, selection: SelectedMessages, act: Act) -> int:
    """Discard the selected messages, one transaction per chunk, each with its audit. Return how many."""
    total = 0
    for records in _waiting_chunks(desk, selection):
        with desk.acting() as connection:
            done = rejected.settle(connection, records, DISCARDED, act, was=(REJECTED,))
            if done:
                audit(connection, "discard", act, said=selection.as_json(), entries=done)
        total += done
    return total
