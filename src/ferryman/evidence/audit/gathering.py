"""Gathers what is known of payments: what was booked after they were read, then what was received, what was applied."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import groupby
from operator import attrgetter
from uuid import UUID

from ferryman.evidence import store as shared
from ferryman.evidence.audit import journal, policy, store
from ferryman.evidence.audit.model import Facts, Horizon, Operation, Receipt, Request
from ferryman.evidence.audit.policy import COMMANDS
from ferryman.evidence.databases import Connection, Databases
from ferryman.evidence.messages import ANSWER
from ferryman.runtime.desk import Desk
from ferryman.runtime.settings import Settings
from ferryman.runtime.uuids import derived
from ferryman.services.payments.rules import message_id

_FEW, _MANY = 1, 32
"""Attempts that are looked for at first, and when something was not found."""

_HANDLED, _IN_VAIN = "HANDLED", ("REJECTED", "RECEIVED")


@dataclass(frozen=True, slots=True)
class Reading:
    """Both databases, in short transactions that only read."""

    databases: Databases
    settings: Settings

    @contextmanager
    def orchestrator(self) -> Iterator[Connection]:
        with Desk(self.databases.orchestrator, self.settings.database).acting() as db:
            store.read_only(db)
            yield db

    @contextmanager
    def wallet(self) -> Iterator[Connection]:
        with Desk(self.databases.wallet, self.settings.database).acting() as db:
            store.read_only(db)
            yield db


def first(reading: Reading, page: Sequence[Request], horizon: Horizon) -> list[Facts]:
    """What most payments need no more than."""
    return _gather(reading, page, horizon, _FEW)


def again(reading: Reading, page: Sequence[Request], horizon: Horizon) -> list[Facts]:
    """With every attempt that there may have been, what the journal has of commands that nobody received, and what was
    done about those that had ended.
    """
    found = _gather(reading, page, horizon, _MANY)
    unseen = [each.request for each in found if policy.unseen(each, horizon)]
    commanded = journal.commanded(reading.databases.orchestrator, reading.settings, unseen)
    ids = [each.uuid for each in page]
    with reading.orchestrator() as db:
        settled, back = shared.settled(db, ids), shared.asked_back(db, ids)
    lost = _not_handled(reading, {uuid: message_id(uuid, COMMANDS["CANCEL"], of.attempt) for uuid, of in back.items()})
    return [
        replace(
            each,
            settled=each.request.uuid in settled,
            commanded=commanded.get(each.request.uuid, each.commanded),
            back_at=back[each.request.uuid].at if each.request.uuid in back.keys() - lost else None,
        )
        for each in found
    ]


def _gather(reading: Reading, page: Sequence[Request], horizon: Horizon, attempts: int) -> list[Facts]:
    ids = [each.uuid for each in page]
    with reading.wallet() as db:
        rows = sorted(store.operations(db, ids), key=attrgetter("request_id"))
        booked = {uuid: tuple(each) for uuid, each in groupby(rows, key=attrgetter("request_id"))}
        commands = [_commands(uuid, booked.get(uuid, ()), attempts) for uuid in ids]
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


def _not_handled(reading: Reading, commands: dict[UUID, UUID]) -> set[UUID]:
    """The payments whose last cancellation came to the wallet and had no effect."""
    with reading.wallet() as db:
        received = store.received(db, "wallet", commands.values())
    return {uuid for uuid, each in commands.items() if each in received and received[each].status in _IN_VAIN}


def _before(at: datetime, moment: datetime | None) -> bool:
    return moment is not None and at < moment
