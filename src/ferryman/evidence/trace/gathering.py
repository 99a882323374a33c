"""Asks each database for what it knows of a payment, in the order in which one answer leads to the next question."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import TypeVar
from uuid import UUID

from ferryman.consumer.operator import looking as messages
from ferryman.consumer.store import listing as inbox
from ferryman.consumer.store import standing
from ferryman.evidence import store as shared
from ferryman.evidence.messages import (
    ASKED,
    BALANCE,
    COMMANDS,
    DEDUCT,
    EVENTS,
    FULFILMENTS,
    KINDS,
    RESULTS,
    Said,
    balances_of,
    messages_of,
    results_of,
)  # fmt: skip
from ferryman.evidence.trace import journal, literal, store
from ferryman.evidence.trace.journal import Wanted
from ferryman.evidence.trace.model import Entry, Known, Operation, Receipt, Rejection, Side, Verdict
from ferryman.evidence.trace.opening import Desks
from ferryman.relay.operator import listing
from ferryman.relay.operator import looking as relayed
from ferryman.relay.operator.desk import Desk
from ferryman.relay.store.listing import Listed
from ferryman.runtime.errors import FerrymanError
from ferryman.runtime.times import moment
from ferryman.services.payments.rules import message_id

JOURNAL_SECONDS = 0.3
"""Of reading, for each journal, at most: what must be there takes a few milliseconds of it."""

_MOST_LOOKS = 8
T = TypeVar("T")


Took = tuple[Sequence[Receipt], Sequence[Rejection]]
"""What a consumer has a verdict on, and what it could not handle."""


def gather(desks: Desks, identity: UUID) -> Known:
    """All that is known of the payment with this id; nothing may be."""
    missing = list(desks.missing)
    begun = Known(identity, _now(desks), None, times=desks.times)
    if desks.orchestrator is not None:
        asked = _asked(missing, "the payments", desks.orchestrator, lambda desk: _payment(desk, begun, desks))
        begun = asked or begun
    payment, strays = begun.payment, begun.strays
    commands = messages_of(identity, payment.attempt if payment else 1)
    results = results_of(commands)
    ledger: Sequence[Operation] = ()
    if desks.wallet is not None:
        ledger = _asked(missing, "the wallet's ledger", desks.wallet, lambda desk: _ledger(desk, identity)) or ()
    took = _took(desks.wallet, "wallet", [each for each, said in commands.items() if said.type in COMMANDS])
    answers = {*results, *(each for receipt in took[0] for each in receipt.results)}
    applied = _took(desks.orchestrator, "payments", [*answers, *(each.message_id for each in strays)])
    orchestrator = wallet = None
    known = replace(begun, ledger=ledger, missing=missing)
    if desks.orchestrator is not None:
        orchestrator = _side(desks.orchestrator, "payments", applied, _commands(known, commands, took, applied))
        if known.literal is not None:
            orchestrator = replace(orchestrator, entries=[known.literal, *orchestrator.entries])
    if desks.wallet is not None:
        wallet = _side(desks.wallet, "wallet", took, _results(known, answers, took, applied))
    for name, side in (("orchestrator", orchestrator), ("wallet", wallet)):
        if side is not None and not side.whole:
            said = f"what must be in it was not found within {JOURNAL_SECONDS:g} s of reading"
            missing.append(f"all of the {name}'s outbox: {said}")
    return replace(known, orchestrator=orchestrator, wallet=wallet, missing=missing)


def _asked(missing: list[str], what: str, desk: Desk, ask: Callable[[Desk], T]) -> T | None:
    """Its answer; where the database has no such table, or does not show it, that is missing and not the end."""
    try:
        return ask(desk)
    except FerrymanError as error:
        missing.append(f"{what}: {error}")
        return None


def _payment(desk: Desk, begun: Known, desks: Desks) -> Known:
    identity = begun.id
    with desk.acting() as db:
        return replace(
            begun, payment=store.payment(db, identity), strays=store.strays(db, identity),
            literal=literal.entry(db, identity, desks.literal_limit),
            settled=identity in shared.settled(db, [identity]),
        )  # fmt: skip


def _ledger(desk: Desk, identity: UUID) -> list[Operation]:
    with desk.acting() as db:
        return store.ledger(db, identity)


def _now(desks: Desks) -> datetime:
    _, desk = desks.all[0]
    with desk.acting() as db:
        found: datetime = store.now(db)
    return found


def _took(desk: Desk | None, consumer: str, ids: Collection[UUID]) -> Took:
    if desk is None:
        return [], []
    with desk.reading() as db:
        receipts = store.receipts(db, consumer, ids)
        rows = inbox.records(db, [consumer], list(ids), None)
    names = (
        "id",
        "type",
        "topic",
        "partition",
        "offset",
        "code",
        "error",
        "status",
        "rejected_at",
        "changed_at",
        "who",
    )
    rejections = [Rejection(**{name: row[name] for name in names}, why=row["reason"]) for row in rows]
    return receipts, sorted(rejections, key=lambda each: each.rejected_at)


def _commands(known: Known, commands: Mapping[UUID, Said], took: Took, applied: Took) -> Wanted:
    """They are appended when the payment is recorded, when a result is applied, and when its time has come."""
    moments = [each.received_at for each in (*took[0], *applied[0])] + [each.rejected_at for each in took[1]]
    moments += [each.came_at for each in known.strays] + [each.decided_at for each in known.ledger]
    must = {each.id for each in took[0]} | {each.id for each in took[1]}
    if payment := known.payment:
        moments += [payment.created_at, payment.changed_at]
        must.add(message_id(known.id, DEDUCT))
        if asked := ASKED.get(payment.state):
            must.add(message_id(known.id, asked, payment.attempt))
    if known.literal is not None:
        must -= {known.id, message_id(known.id, DEDUCT)}
    return Wanted(list(commands), str(known.id), (*COMMANDS, *FULFILMENTS, *EVENTS), moments, frozenset(must))


def _results(known: Known, answers: Collection[UUID], took: Took, applied: Took) -> Wanted:
    """Each is appended in the transaction of its command's receipt."""
    moments = [each.received_at for each in took[0] or applied[0]]
    must = frozenset(each for receipt in took[0] for each in receipt.results)
    return Wanted(answers, str(known.id), (*RESULTS, BALANCE), moments, must)


def _side(desk: Desk, consumer: str, took: Took, wanted: Wanted) -> Side:
    receipts, rejections = took
    found = journal.find(desk, wanted, JOURNAL_SECONDS)
    asked = [each.position for each in found.entries if each.status != "PUBLISHED"][:_MOST_LOOKS]
    entries = [_told(desk, each) if each.position in asked else _entry(each) for each in found.entries]
    unhandled = {each.id for each in receipts if each.status != "HANDLED"} | {each.id for each in rejections}
    verdicts = {each: verdict for each in list(unhandled)[:_MOST_LOOKS] if (verdict := _verdict(desk, each, consumer))}
    with desk.acting() as db:
        paused = {row["consumer"]: row for row in standing.paused(db)}.get(consumer)
        processes = standing.processes(db, [consumer])[consumer]
    said = None if paused is None else f"{paused['who']} since {moment(paused['since'])} ({paused['reason']})"
    return Side(entries, receipts, rejections, verdicts, processes, said, whole=found.whole)


def _entry(listed: Listed) -> Entry:
    return Entry(
        listed.id, listed.position, listed.type, listed.topic, listed.status, listed.created_at, listed.attempts,
        listed.error, listed.changed_at,
    )  # fmt: skip


def _told(desk: Desk, listed: Listed) -> Entry:
    """With the relay's story of what is not published."""
    entry, seen = _entry(listed), relayed.look(desk, listed.position)
    if seen is None:
        return entry
    return replace(
        entry, status=seen.entry.status, attempts=seen.entry.attempts, error=seen.entry.error,
        changed_at=seen.entry.changed_at, reason=seen.story.reason, next=seen.story.next,
    )  # fmt: skip


def _verdict(desk: Desk, message: UUID, consumer: str) -> Verdict | None:
    found = messages.look(desk, message, consumer, payload=False, seconds=0.1).seen
    return Verdict(found[0].story.reason, found[0].story.next) if found else None


# --- from the id of a message to its payment


def payment_of(desks: Desks, identity: UUID, seconds: float) -> tuple[UUID | None, list[str]]:
    """The payment that a message is of; and where was looked, in words."""
    looked: list[str] = []
    for where, desk in desks.all:
        with desk.reading() as db:
            found = _by_receipt(db, identity) or _by_record(desks, desk, identity)
        looked.append(f"the receipts and rejected records of the {where}'s database")
        if found := found or _by_stray(desk, identity):
            return found, looked
    for where, desk in desks.all:
        positions, unseen = listing.find(desk, [identity], since=None, seconds=seconds)
        depth = f", down to position {unseen}, which took {seconds:g} s" if unseen else ""
        looked.append(f"the {where}'s outbox{depth}")
        for position in positions:
            seen = relayed.look(desk, position)
            if seen and (found := _by_key(desks, identity, seen.entry.type, seen.entry.key, seen.entry.created_at)):
                return found, looked
    return None, looked


def _by_receipt(db: store.Connection, identity: UUID) -> UUID | None:
    """A command's receipt has the results, whose key is the payment."""
    for receipt in inbox.receipts(db, ["wallet"], [identity]):
        for each in store.reported(receipt):
            return _uuid(each[1])
    return None


def _by_record(desks: Desks, desk: Desk, identity: UUID) -> UUID | None:
    with desk.acting() as db:
        rows = inbox.records(db, ["wallet", "payments"], [identity], None)
    for row in rows:
        key = (row["key"] or b"").decode("utf-8", "replace")
        if found := _by_key(desks, identity, row["type"], key, row["rejected_at"]):
            return found
    return None


def _by_stray(desk: Desk, identity: UUID) -> UUID | None:
    with desk.acting() as db:
        return store.saga_of_stray(db, identity)


def _by_key(desks: Desks, identity: UUID, kind: str, key: str, at: datetime) -> UUID | None:
    """Its key is the payment, or for what has a wallet's as its key one of its payments has such a message."""
    named = _uuid(key)
    if named is None:
        return None
    if kind not in (*KINDS, BALANCE):
        return named if kind in (*EVENTS, *FULFILMENTS, *RESULTS) else None
    if desks.orchestrator is None:
        return None
    with desks.orchestrator.reading() as db:
        candidates = store.payments_of_wallet(db, named, at, 10_000)
    known = balances_of if kind == BALANCE else partial(messages_of, types=[kind])
    return next((each for each in candidates if identity in known(each)), None)


def _uuid(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None
