"""Gathers what is known of payments: what was booked after they were read, then what was received, what was applied."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import groupby
from operator import attrgetter
from uuid import UUID

from ferryman.evidence import store as shared
from ferryman.evidence.audit import journal, policy, store
from ferryman.evidence.audit.model import Facts, Horizon, Operation, Receipt, Request
from ferryman.evidence.audit.policy import COMMANDS
from ferryman.evidence.audit.reading import Reading
from ferryman.evidence.messages import ANSWER
from ferryman.evidence.reconcile.outbox import topic_of, unpublished
from ferryman.evidence.store import AskedBack
from ferryman.relay.operator.desk import Desk as OutboxDesk
from ferryman.runtime.uuids import derived
from ferryman.services.payments.rules import message_id

_FEW, _MANY = 1, 32
"""Attempts that are looked for at first, and when something was not found: at least."""
_AT_ONCE = 500 * _MANY
"""Attempts that are looked for in one go, of all payments together."""

_HANDLED, _IN_VAIN, _GIVEN_UP = "HANDLED", ("REJECTED", "RECEIVED"), ("FAILED", "DISCARDED")
_BEFORE, _AFTER = timedelta(minutes=1), timedelta(minutes=15)
"""What clocks and long transactions may put between a result and what was appended with it."""


def first(reading: Reading, page: Sequence[Request], horizon: Horizon) -> list[Facts]:
    """What most payments need no more than."""
    return _gather(reading, page, horizon, dict.fromkeys((each.uuid for each in page), _FEW))


def again(reading: Reading, page: Sequence[Request], horizon: Horizon) -> list[Facts]:
    """With every attempt that there may have been: of the state in which it stands, or stood last; and where something
    is missing even so, with as many as people may have made.
    """
    attempts = {each.uuid: max(_MANY, each.attempt) for each in page}
    found = _explained(reading, page, horizon, attempts)
    if not (missed := [each.request for each in found if policy.misses(each, horizon)]):
        return found
    with reading.orchestrator() as db:
        by_hand = shared.by_hand(db, [each.uuid for each in missed])
    made = {each.uuid: _FEW + by_hand.get(each.uuid, 0) for each in missed}
    wider = [each for each in missed if made[each.uuid] > attempts[each.uuid]]
    widely = {each.request.uuid: each for each in _explained(reading, wider, horizon, made)} if wider else {}
    return [widely.get(each.request.uuid, each) for each in found]


def _explained(
    reading: Reading, page: Sequence[Request], horizon: Horizon, attempts: Mapping[UUID, int]
) -> list[Facts]:  # fmt: skip
    """With what the journal has of commands that nobody received, and what was done about those that had ended."""
    found = [each for few in _portions(page, attempts) for each in _gather(reading, few, horizon, attempts)]
    unseen = [each.request for each in found if policy.unseen(each, horizon)]
    commanded = journal.commanded(reading.databases.orchestrator, reading.settings, unseen)
    ids = [each.uuid for each in page]
    with reading.orchestrator() as db:
        settled, back = shared.settled(db, ids), shared.asked_back(db, ids)
    waiting, in_vain = _cancellations(reading, page, back)
    return [
        replace(
            each,
            settled=each.request.uuid in settled,
            commanded=commanded.get(each.request.uuid, each.commanded),
            back_at=back[each.request.uuid].at if each.request.uuid in back.keys() - in_vain else None,
            back_waits=each.request.uuid in waiting,
        )
        for each in found
    ]


def _portions(page: Sequence[Request], attempts: Mapping[UUID, int]) -> Iterator[list[Request]]:
    """N12: of payments that were asked for very often, few at once."""
    portion, many = list[Request](), 0
    for each in page:
        if portion and many + attempts[each.uuid] > _AT_ONCE:
            yield portion
            portion, many = [], 0
        portion.append(each)
        many += attempts[each.uuid]
    if portion:
        yield portion


def _gather(
    reading: Reading, page: Sequence[Request], horizon: Horizon, attempts: Mapping[UUID, int]
) -> list[Facts]:  # fmt: skip
    ids = [each.uuid for each in page]
    with reading.wallet() as db:
        rows = sorted(store.operations(db, ids), key=attrgetter("request_id"))
        booked = {uuid: tuple(each) for uuid, each in groupby(rows, key=attrgetter("request_id"))}
        commands = [_commands(uuid, booked.get(uuid, ()), attempts[uuid]) for uuid in ids]
        received = store.received(db, "wallet", [each for mine in commands for _, each in mine])
    results = [[derived(each, ANSWER) for _, each in mine] for mine in commands]
    with reading.orchestrator() as db:
        applied = store.received(db, "payments", [each for mine in results for each in mine])
        literal = store.literal(db, ids)
    handled = {each for each, of in applied.items() if of.status == _HANDLED}
    return [
        _facts(
            request, booked.get(request.uuid, ()), [(kind, received[each]) for kind, each in mine if each in received],
            horizon, applied=not handled.isdisjoint(answers), literal=request.uuid in literal,
        )
        for request, mine, answers in zip(page, commands, results, strict=True)
    ]  # fmt: skip


def _facts(
    request: Request, booked: tuple[Operation, ...], receipts: Sequence[tuple[str, Receipt]], horizon: Horizon, *,
    applied: bool, literal: bool,
) -> Facts:  # fmt: skip
    handled = [(kind, each) for kind, each in receipts if each.status == _HANDLED]
    return Facts(
        request, booked, frozenset(kind for kind, _ in handled), applied, literal=literal, seen=bool(receipts),
        stale=frozenset(kind for kind, each in handled if _before(each.at, horizon.overdue)),
        reported=any(each.reported for _, each in handled),
    )  # fmt: skip


def _commands(uuid: UUID, booked: tuple[Operation, ...], attempts: int) -> list[tuple[str, UUID]]:
    """The ids that its commands may have: of each kind that was booked, or of a deduction; that of the literal mode,
    whose command has the payment's own, always.
    """
    kinds = {each.kind for each in booked} or {"DEDUCT"}
    if attempts > _FEW or any(each.reason == "CANCELLED" for each in booked):
        kinds = set(COMMANDS)
    derived_ids = [(kind, message_id(uuid, COMMANDS[kind], n)) for kind in kinds for n in range(1, attempts + 1)]
    return [("DEDUCT", uuid), *derived_ids]


def _cancellations(
    reading: Reading, page: Sequence[Request], back: Mapping[UUID, AskedBack]
) -> tuple[set[UUID], set[UUID]]:  # fmt: skip
    """Of what was asked back: whose last cancellation is yet to be published, and whose was in vain: it failed in the
    outbox, was discarded there, or came to the wallet and had no effect.
    """
    if not back:
        return set(), set()
    commands = {message_id(uuid, COMMANDS["CANCEL"], of.attempt): uuid for uuid, of in back.items()}
    keys = {(topic_of(COMMANDS["CANCEL"]), str(each.wallet_id)) for each in page if each.uuid in back}
    times = [each.at for each in back.values()]
    desk = OutboxDesk(reading.databases.orchestrator, reading.settings.database)
    entries = unpublished(desk, keys, list(commands), min(times) - _BEFORE, max(times) + _AFTER)
    with reading.wallet() as db:
        received = store.received(db, "wallet", commands)
    failed = {commands[each] for each, entry in entries.items() if entry.status in _GIVEN_UP}
    refused = {commands[each] for each, receipt in received.items() if receipt.status in _IN_VAIN}
    in_vain = failed | refused
    return {commands[each] for each in entries} - in_vain, in_vain


def _before(at: datetime, moment: datetime | None) -> bool:
    return moment is not None and at < moment
