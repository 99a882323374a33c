"""The facts of payments: read from both databases for a page of them at once, and what follows from the rows.

`reconcile` reads the last attempts. An audit reads one attempt at first, and at the second look every attempt.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import chain
from uuid import UUID

from ferryman.evidence import journal, messages
from ferryman.evidence.messages import InboxReceipt, OutboxEntry, RejectedMessage
from ferryman.evidence.sides import MAIN, Sides
from ferryman.services.payments.evidence import case
from ferryman.services.payments.evidence.case import COMMAND_OF, AskedBack, Booked, LedgerRow, PaymentRow, result_of
from ferryman.services.payments.rules import message_id

_FEW, _MANY = 1, 32
"""Attempts that are looked for at first, and when something was not found: at least."""
_AT_ONCE = 500 * _MANY
"""Attempts that are looked for at once, of all payments together: memory is bounded."""

FOUND, MISSING, EXPIRED = "found", "missing", "expired"
"""The journal's answer about a command. If its time is past the journal's retention, nobody can tell."""


@dataclass(frozen=True, slots=True)
class PaymentFacts(Booked):
    """Everything that is known of one payment: its ledger, and its commands and their results on their way."""

    request: PaymentRow
    ledger: tuple[LedgerRow, ...] = ()
    commands: tuple[UUID, ...] = ()
    """The commands that were looked for, the newest first."""
    receipts: tuple[InboxReceipt, ...] = ()
    """The wallet's receipts of these commands, in the same order."""
    applied: tuple[InboxReceipt, ...] = ()
    """The orchestrator's receipts of their results."""
    settled: bool = False
    """True if a person said that it was given back by hand."""
    back: AskedBack | None = None
    """When the amount that it took was last asked back, after it had FAILED; None in an audit if that was in vain."""

    command: OutboxEntry | None = None
    """The newest command, if it is not published; in an audit, only the last cancellation of what was asked back."""
    result: OutboxEntry | None = None
    """A result that is not published."""
    rejected: tuple[RejectedMessage, ...] = ()
    """The wallet's rejected records of these commands."""
    unread: tuple[RejectedMessage, ...] = ()
    """The orchestrator's rejected records of their results."""
    strays: tuple[str, ...] = ()
    """Why results were applied to nothing."""

    commanded: str = MISSING
    """The journal's answer about its commands, if neither the ledger nor the wallet's inbox knows one."""

    @property
    def outcome(self) -> LedgerRow | None:
        """The operation that it waits for; if it is STUCK or has FAILED, the refusal to give its amount back."""
        state = self.request.state
        if state in (case.STUCK, case.FAILED):
            return self.refusal
        return next((each for each in self.ledger if each.kind == case.KINDS.get(self.request.asked)), None)

    @property
    def handled(self) -> list[InboxReceipt]:
        """The receipts of commands that took effect."""
        return [each for each in self.receipts if each.status == "HANDLED"]

    @property
    def answered(self) -> bool:
        """True if a result was applied."""
        return any(each.status == "HANDLED" for each in self.applied)

    def unseen(self, overdue: datetime | None) -> bool:
        """Return True if it was asked for so long ago that a command must be somewhere, and the wallet knows none."""
        nowhere = not (self.ledger or self.receipts or self.request.literal)
        return self.request.status == case.PENDING and nowhere and before(self.request.created_at, overdue)

    @property
    def asked_since(self) -> bool:
        """True if it was asked for once more since the newest of the receipts."""
        return bool(self.commands) and self.commands[0] not in {each.id for each in self.receipts}


def before(at: datetime, moment: datetime | None) -> bool:
    """Return True if it was before this moment, if there is one."""
    return moment is not None and at < moment


def kinds_of(receipts: Iterable[InboxReceipt]) -> set[str]:
    """Return the operations that these commands asked for."""
    return {case.KINDS[each.type] for each in receipts if each.type in case.KINDS}


CommandsOf = Callable[[PaymentRow, Sequence[LedgerRow]], Iterable[UUID]]
"""Names the commands of a payment to look for, the newest first."""


def read(sides: Sides, requests: Sequence[PaymentRow], commands_of: CommandsOf) -> list[PaymentFacts]:
    """Read what was booked since the payments were read, then what was received, and then what was applied."""
    ledger = defaultdict[UUID, list[LedgerRow]](list)
    with sides[case.WALLET].looking() as db:
        for each in case.ledger(db, [request.uuid for request in requests]):
            ledger[each.request_id].append(each)
        commands = [tuple(commands_of(each, ledger[each.uuid])) for each in requests]
        every = list(chain.from_iterable(commands))
        receipts = messages.receipts(db, case.WALLET, every)
    results = {each: result_of(each) for each in every}
    applied = sides[MAIN].ask(messages.receipts, case.NAME, results.values())
    return [
        PaymentFacts(
            request, tuple(ledger[request.uuid]), mine,
            tuple(receipts[each] for each in mine if each in receipts),
            tuple(applied[results[each]] for each in mine if results[each] in applied),
        )
        for request, mine in zip(requests, commands, strict=True)
    ]  # fmt: skip


def unpublished(sides: Sides, requests: Sequence[PaymentRow]) -> dict[UUID, OutboxEntry]:
    """Return those commands that these payments wait for that are not published."""
    commands = [case.command_of(each, each.attempt) for each in requests]
    return journal.unpublished(sides[MAIN], {case.place_of(each) for each in requests}, commands)


# --- what an audit adds


def first_look(sides: Sides, page: Sequence[PaymentRow]) -> list[PaymentFacts]:
    """Return what most payments need no more than."""
    return read(sides, page, lambda request, booked: _commands(request.uuid, booked, _FEW))


def second_look(sides: Sides, page: Sequence[PaymentRow], overdue: datetime | None) -> Iterator[PaymentFacts]:
    """Look with every attempt that there may have been: by the state in which a payment stands, or stood last, and by
    how often people asked. Add what the journal has of commands that nobody received, and what was done about payments
    that had ended.
    """
    by_hand = sides[MAIN].ask(case.by_hand, [each.uuid for each in page])
    attempts = {each.uuid: max(_MANY, each.attempt, _FEW + by_hand.get(each.uuid, 0)) for each in page}
    for portion in _portions(page, attempts):
        found = read(sides, portion, lambda request, booked: _commands(request.uuid, booked, attempts[request.uuid]))
        commanded = _in_journal(sides, [each.request for each in found if each.unseen(overdue)])
        failed = {each.uuid: each for each in portion if each.state == case.FAILED}
        settled, back = sides[MAIN].ask(case.settled, list(failed)), sides[MAIN].ask(case.asked_back, list(failed))
        cancellations = unpublished(sides, [failed[uuid].asked_back(of) for uuid, of in back.items()])
        for each in found:
            uuid = each.request.uuid
            known = replace(each, settled=uuid in settled, commanded=commanded.get(uuid, each.commanded))
            yield _asked_back(known, back[uuid], cancellations) if uuid in back else known


def _commands(uuid: UUID, booked: Sequence[LedgerRow], attempts: int) -> list[UUID]:
    """Return the ids that its commands may have: of each kind that was booked, or else of a deduction; and the
    payment's own id, which the command of the literal mode has.
    """
    kinds = {each.kind for each in booked} or {"DEDUCT"}
    if attempts > _FEW or any(each.reason == "CANCELLED" for each in booked):
        kinds = set(COMMAND_OF)
    return [uuid, *(message_id(uuid, COMMAND_OF[kind], n) for kind in kinds for n in range(1, attempts + 1))]


def _portions(page: Sequence[PaymentRow], attempts: Mapping[UUID, int]) -> Iterator[list[PaymentRow]]:
    """Yield few payments at once if they were asked for very often."""
    portion, many = list[PaymentRow](), 0
    for each in page:
        if portion and many + attempts[each.uuid] > _AT_ONCE:
            yield portion
            portion, many = [], 0
        portion.append(each)
        many += attempts[each.uuid]
    if portion:
        yield portion


def _in_journal(sides: Sides, requests: Sequence[PaymentRow]) -> dict[UUID, str]:
    """Say of each whether a command of it is in the journal, or whether the journal may have forgotten it."""
    if not requests:
        return {}
    side, wanted = sides[MAIN], dict[UUID, UUID]()
    for each in requests:  # what was asked first, and what was asked last
        kinds = ((case.DEDUCT, 1), (case.ASKED.get(each.state, case.DEDUCT), each.attempt))
        wanted |= {message_id(each.uuid, *said): each.uuid for said in kinds}
    moments = [at for each in requests for at in (each.created_at, each.changed_at)]
    there = {wanted[identity] for identity in journal.appended(side, wanted, moments)}
    kept_since = journal.kept_since(side, sides.settings.relay.ring.retention_seconds)
    return {
        each.uuid: FOUND if each.uuid in there else MISSING if each.created_at >= kept_since else EXPIRED
        for each in requests
    }


def _asked_back(known: PaymentFacts, back: AskedBack, waiting: Mapping[UUID, OutboxEntry]) -> PaymentFacts:
    """Add when its amount was asked back, unless that was in vain: the last cancellation failed in the outbox, was
    discarded there, or came to the wallet and had no effect.
    """
    last = message_id(known.request.uuid, case.CANCEL, back.attempt)
    entry, received = waiting.get(last), next((each.status for each in known.receipts if each.id == last), None)
    if (entry and entry.status in ("FAILED", "DISCARDED")) or received in ("REJECTED", "RECEIVED"):
        return known
    return replace(known, back=back, command=entry)
