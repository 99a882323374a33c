"""`ferryman trace` of a payment: what both databases and Kafka know of it."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any
from uuid import UUID

from ferryman import FerrymanError
from ferryman.evidence.journal import find, with_reasons
from ferryman.evidence.journey import EXHAUSTED, Times, Witness
from ferryman.evidence.messages import InboxReceipt, OutboxEntry, RejectedMessage, has_table, relaying, strays_of
from ferryman.evidence.sides import MAIN, Side, Sides
from ferryman.evidence.trace import JOURNAL_SECONDS, AskKafka, Hint, Subject, passed, witness
from ferryman.evidence.way import Traced
from ferryman.services.payments.evidence import case
from ferryman.services.payments.evidence.case import ORCHESTRATOR, messages_of, result_of
from ferryman.services.payments.evidence.payment_story import KnownPayment, tell
from ferryman.services.payments.payments_settings import PaymentsSettings
from ferryman.services.payments.rules import message_id

_WALLETS = (*case.RESULTS, case.BALANCE)
_MOST_OF_A_WALLET = 10_000


class PaymentTracer:
    """Tells of payments."""

    machine = "payment"

    def tell(self, sides: Sides, identity: UUID | int | Subject, ask: AskKafka) -> Traced | None:
        if isinstance(identity, Subject) and identity.kind == self.machine:
            identity = identity.key
        if not isinstance(identity, UUID):
            return None
        known = gather(sides, identity)
        messages = known.messages.keys() - {identity}  # which a command of the literal mode has, too
        if not (known.payment or known.ledger or known.literal or messages.intersection(known.journey.ids())):
            return None
        copies = ask(known.journey)
        if passed(copies):
            known = gather(sides, identity)
        return tell(replace(known, kafka=copies, missing=list(dict.fromkeys([*known.missing, *sides.missing]))))

    def subject_of(self, sides: Sides, identity: UUID, hint: Hint) -> UUID | None:
        """Return the payment of a message. Its key is the payment; or the wallet, one of whose payments has it."""
        named, main = _uuid(hint.key), sides.get(MAIN)
        if named is None or hint.type in (*case.EVENTS, *case.FULFILMENTS, *case.RESULTS):
            return named
        if hint.type not in (*case.KINDS, case.BALANCE) or main is None:
            return None
        with main.reading() as db:
            candidates = case.payments_of_wallet(db, named, hint.at, _MOST_OF_A_WALLET)
        if hint.type == case.BALANCE:
            return next((each for each in candidates if identity in case.balances_of(each)), None)
        return next((each for each in candidates if identity in messages_of(each, types=[hint.type])), None)


def _uuid(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None


def gather(sides: Sides, identity: UUID) -> KnownPayment:
    """Ask each database for what it knows of a payment, one answer leading to the next question."""
    settings, missing = sides.settings, list(sides.missing)
    times = Times.of(settings, settings.section(PaymentsSettings).answer_seconds)
    known = KnownPayment(identity, sides.each[0].now(), times=times, missing=missing)
    main, books = _having(sides, MAIN, "payments.requests"), _having(sides, case.WALLET, "wallet.ledger")
    for side, read, what in ((main, _recorded, "the payments"), (books, _booked, "the wallet's ledger")):
        try:
            known = read(side, known, settings) if side else known
        except FerrymanError as error:  # a database that does not show its rows
            missing.append(f"{what}: {error}")
    commands = known.messages
    took = [each for each, said in commands.items() if said.type in case.COMMANDS]
    wallet = witness(books, case.WALLET, took, case.WALLET, [case.READS[case.WALLET]]) if books else None
    reported = [each for receipt in (wallet.receipts if wallet else ()) for each in receipt.results]
    answers = list(dict.fromkeys([*map(result_of, took), *reported]))
    strays = [each.message_id for each in known.strays]
    ours = witness(main, case.NAME, [*answers, *strays], ORCHESTRATOR, [case.READS[case.NAME]]) if main else None
    known = replace(known, orchestrator=ours, wallet=wallet)
    if not (known.payment or known.ledger or known.literal or any(each and each.receipts for each in (wallet, ours))):
        return known
    if main and ours:
        ours = _having_sent(main, ours, list(commands), *_commanded(known, wallet, ours))
        if known.literal:
            ours = replace(ours, entries=[known.literal, *ours.entries])
    if books and wallet:
        # each result was appended in the transaction of its command's receipt
        moments = [each.at for each in wallet.receipts or (ours.receipts if ours else ())]
        wallet = _having_sent(books, wallet, answers, moments, reported)
    elif not any("wallet" in each for each in missing):
        missing.append("the wallet's database: payments.wallet_database_url names none with its tables")
    late = f"what must be in it was not found within {JOURNAL_SECONDS:g} s of reading"
    missing += [f"all of the {each.where}'s outbox: {late}" for each in (ours, wallet) if each and not each.whole]
    return replace(known, orchestrator=ours, wallet=wallet)


def _having(sides: Sides, name: str, table: str) -> Side | None:
    """Return a database if it has the table: databases may have no payments."""
    side = sides.get(name)
    return side if side and side.ask(has_table, table) else None


def _booked(side: Side, known: KnownPayment, _settings: Any) -> KnownPayment:
    return replace(known, ledger=side.ask(case.ledger, [known.id]))


def _recorded(side: Side, known: KnownPayment, settings: Any) -> KnownPayment:
    with side.looking() as db:
        payment = next(iter(case.payments(db, [known.id])), None)
        entry = case.literal(db, [known.id], settings).get(known.id)
        if entry and entry.status in ("PENDING", EXHAUSTED):
            entry = _literal_waits(known, entry, case.literal_limit(settings), relays=relaying(db)[0])
        return replace(
            known, payment=payment, strays=strays_of(db, "payment", [known.id]), literal=entry,
            settled=known.id in case.settled(db, [known.id]),
        )  # fmt: skip


def _literal_waits(known: KnownPayment, entry: OutboxEntry, limit: int, *, relays: int) -> OutboxEntry:
    """Say why a row of the literal mode's outbox is not published, as `ferryman outbox show` does for the journal's."""
    if entry.status == EXHAUSTED:
        said = f"{EXHAUSTED} after {entry.attempts} attempts: nothing tries again"
        return entry._replace(reason=said, next=known.mend)
    status = "RETRYING" if entry.attempts else "PENDING"
    if not relays:
        said, command = f"{status}: no relay is connected to that database", "ferryman run relay"
        return entry._replace(status=status, reason=said, next=command)
    said = f"{status}: {entry.attempts} of {limit} attempts are made, and the relay tries it"
    return entry._replace(status=status, reason=said)


def _commanded(known: KnownPayment, wallet: Witness | None, ours: Witness) -> tuple[list[datetime], set[UUID]]:
    """Return when commands were appended, and which must have been: when the payment is recorded, when a result is
    applied, and when its time has come.
    """
    took: list[InboxReceipt | RejectedMessage] = [*wallet.receipts, *wallet.rejections] if wallet else []
    moments = [each.at for each in (*took, *ours.receipts)]
    moments += [each.came_at for each in known.strays] + [each.decided_at for each in known.ledger]
    must = {each.id for each in took}
    if payment := known.payment:
        moments += [payment.created_at, payment.changed_at]
        must |= {message_id(known.id, case.DEDUCT)}
        must |= {case.command_of(payment, payment.attempt)} if payment.state in case.ASKED else set()
    return moments, must - {known.id, message_id(known.id, case.DEDUCT)} if known.literal else must


def _having_sent(
    side: Side, of: Witness, ids: Collection[UUID], moments: Sequence[datetime], must: Collection[UUID]
) -> Witness:
    """Add the entries of its outbox; where one database is both, only those that are its own."""
    found, whole = find(side, ids, moments, must, JOURNAL_SECONDS)
    entries = [each for each in found if (each.type in _WALLETS) == (of.where == case.WALLET)]
    return replace(of, entries=with_reasons(side, entries), whole=whole)
