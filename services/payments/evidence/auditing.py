"""`ferryman audit` of payments: nothing was lost, and nothing taken twice.

It goes through both databases in pages, while they change: what is upstream of a thing is read after it. A result is
applied after it was booked, so requests are read before their ledger: what is over must have its evidence by then. A
payment is booked after it was recorded, so the ledger is read before its requests.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby
from typing import Any, LiteralString
from uuid import UUID

from ferryman import FerrymanError
from ferryman.evidence import audit
from ferryman.evidence.audit import AuditBooks, AuditWindow, Progress, Suspects, Wrong
from ferryman.evidence.messages import rows, tuples
from ferryman.evidence.sides import MAIN, Sides
from ferryman.services.payments.evidence import audit_store as store
from ferryman.services.payments.evidence import case, invariants
from ferryman.services.payments.evidence.case import PaymentRow
from ferryman.services.payments.evidence.facts import PaymentFacts, first_look, second_look
from ferryman.services.payments.evidence.invariants import Horizon, judge, sums_of
from ferryman.services.payments.payments_settings import PaymentsSettings

PAGE = 5_000
_WALLETS = 500
_BLOCKS, _MOST_BLOCKS = 64, 1_024
_LEDGER_ROWS, _MANY_LEDGER_ROWS = 10_000, 50_000
"""Rows of a ledger that are summed beside other wallets; and at once, of one that is longer."""

_PATIENCE_SECONDS, _ANSWERS = 600.0, 3
"""A payment must have gone on after so long, or after so many times what an answer may take."""
_FORGETTING = timedelta(minutes=1)


@dataclass
class PaymentAudit:
    """One audit: how far it is, and what it has found."""

    sides: Sides
    books: AuditBooks
    horizon: Horizon
    standstill_before: datetime
    """If a payment was requested before this moment and none has ended, the system stands still."""
    progress: Progress = lambda _what, _done, _about: None
    moment_seconds: float = 1.0
    """The time that suspects are left alone before they are looked at again."""

    def __post_init__(self) -> None:
        self._at_once = _WALLETS
        self._suspects = Suspects(self._look_again, self.moment_seconds)
        self._orphans = Suspects(self._missed, self.moment_seconds)

    def run(self) -> AuditBooks:
        self._requests()
        self._ledger()
        self._wallets()
        for currency, sums in sorted(self.books.sums.items()):
            self.books.find(*invariants.unequal(currency, sums))
        if self.books.window.since is None:  # in a short window nothing needs to end
            self.books.find(*invariants.standstill(self.books, self.standstill_before))
        return self.books

    def _read(self, name: str, statement: LiteralString, **given: Any) -> list[tuple[Any, ...]]:
        return self.sides[name].ask(tuples, statement, given)

    def _requests(self) -> None:
        [(about,)], done = self._read(MAIN, store.ABOUT), 0
        page: dict[str, Any] = {"at": None, "uuid": None}
        while (page := self._page(page["at"], page["uuid"]))["many"]:
            if others := self._plain(page):
                self._judge(self.sides[MAIN].ask(case.payments, others))
            done += page["many"]
            self.progress("requests", done, about)
        self._suspects.settle()

    def _page(self, at: datetime | None, uuid: UUID | None) -> dict[str, Any]:
        """Return the columns of the payments that were recorded after a place; `at` and `uuid` are the next place."""
        given = {**self.books.window._asdict(), "at": at, "uuid": uuid, "most": PAGE}
        [page] = self.sides[MAIN].ask(rows, dict[str, Any], store.PAGE, given)
        return page

    def _plain(self, page: Mapping[str, Any]) -> list[UUID]:
        """Count what is plainly in order, which the servers tell by themselves. Return the rest, to be looked at."""
        commands = audit.derived_ids(page["uuids"], f"{case.DEDUCT}/1")
        [(not_applied,)] = self._read(MAIN, store.NOT_APPLIED, ids=audit.derived_ids(commands, case.ANSWER))
        given = {**page, "commands": commands, "not_applied": not_applied}
        others: list[UUID] = []
        for plain, status, currency, many, amount, taken, uuids in self._read(case.WALLET, store.PLAIN, **given):
            if not plain:
                others += uuids
                continue
            ledger = "deducted" if status == case.SUCCEEDED else "refused"
            for name in (f"requests.{status}", f"ledger.{ledger}", f"outcomes.{status}", "commands.received",
                         "receipts.found", "results.applied"):  # fmt: skip
                self.books.counts[name] += many
            if status == case.SUCCEEDED:
                sums = sums_of(self.books.sums, currency)
                sums.succeeded += amount
                sums.deducted += taken
        return others

    def _judge(self, requests: Sequence[PaymentRow]) -> None:
        """Count what is well, and look again at what is not, or may be told otherwise by another attempt."""
        suspects = []
        for known in first_look(self.sides, requests):
            judged = judge(known, self.horizon)
            doubts = invariants.DOUBTS - {"results.told"} if known.request.literal else invariants.DOUBTS
            if judged.wrong or not doubts.isdisjoint(judged.counts):
                suspects.append(known.request.uuid)
            else:
                self._count(known, judged.counts)
        self._suspects.add(suspects)

    def _look_again(self, ids: list[UUID]) -> None:
        page = self.sides[MAIN].ask(case.payments, ids)
        for known in second_look(self.sides, page, self.horizon.overdue):
            judged = judge(known, self.horizon)
            self._count(known, judged.counts)
            self.books.find(*judged.wrong)

    def _count(self, known: PaymentFacts, counts: Sequence[str]) -> None:
        self.books.counts.update(counts)
        invariants.add(self.books.sums, known, self.horizon)
        self.books.expired.update(gone for count, gone in invariants.GONE.items() if count in counts)
        if known.request.status == case.PENDING:
            self.books.wait(known.request.created_at)

    def _ledger(self) -> None:
        """Go through the ledger by its blocks: what was booked stays where it is, and what is booked meanwhile is past
        the window.
        """
        [(end,)], first, step = self._read(case.WALLET, store.LEDGER_BLOCKS), 0, _BLOCKS
        while first < end:
            given = {**self.books.window._asdict(), "first": first, "end": first + step}
            [(ids, many)] = self._read(case.WALLET, store.BOOKED, **given)
            lopsided = self._read(case.WALLET, store.LOPSIDED, ids=ids) if ids else []
            for uuid, found in groupby(lopsided, key=lambda each: each[0]):
                said = f"the two sides of {', '.join(kind for _, _, kind in found)} do not sum to zero"
                self.books.find(Wrong("lopsided", uuid, said, f"ferryman trace {uuid}"))
            self._orphans.add(list(self._unknown(ids)) if ids else [])
            first += step
            step = min(2 * step, _MOST_BLOCKS) if many < PAGE // 2 else _BLOCKS
            self.progress("blocks of the ledger", min(first, end), end)
        self._orphans.settle()

    def _unknown(self, ids: str | Sequence[UUID]) -> dict[UUID, bool]:
        """Return those that are not recorded, each with whether it was archived."""
        return dict(self._read(MAIN, store.UNKNOWN, ids=ids))

    def _missed(self, ids: list[UUID]) -> None:
        """Count what was archived, which has left its uuid, and call the rest lost."""
        unknown = self._unknown(sorted(ids))
        booked = self.sides[case.WALLET].ask(case.ledger, [uuid for uuid, archived in unknown.items() if archived])
        kept = Counter[UUID]()
        for each in booked:
            kept[each.request_id] -= each.amount
        for uuid, archived in sorted(unknown.items()):
            if archived:
                self.books.expired[invariants.ARCHIVED] += 1
                if kept[uuid] < 0:
                    self.books.find(invariants.given_too_much(uuid))
                continue
            self.books.counts["ledger.orphans"] += 1
            said = "the ledger has operations of a payment that was never recorded"
            command = f"ferryman trace {uuid}   and give back what was taken for it"
            self.books.find(Wrong("no_request", uuid, said, command))

    def _wallets(self) -> None:
        """Compare each balance with its ledger, whatever the window: a sum has no beginning. Each wallet is read at one
        moment, so the sums of all agree, whatever moves meanwhile. A wallet that is gone has left its ledger.
        """
        suspects = Suspects(self._unsound, self.moment_seconds)
        page: list[UUID] = []
        while True:
            after = page[-1] if page else None
            page = [uuid for (uuid,) in self._read(case.WALLET, store.WALLETS_AFTER, after=after, most=_WALLETS)]
            if not page:
                return
            for each in self.balances(page):
                invariants.add_wallet(self.books.sums, each)
                suspects.add([each.id] if any(invariants.unsound(each)) else [])
                self.books.counts["wallets.looked_at"] += each.balance is not None
            suspects.settle()
            self.progress("wallets", self.books.counts["wallets.looked_at"], 0)

    def _unsound(self, ids: list[UUID]) -> None:
        for each in self.balances(ids):
            self.books.find(*invariants.unsound(each))

    # --- what wallets hold, in statements that end in their time: no ledger is ever pruned

    def balances(self, wallets: Sequence[UUID]) -> Iterator[store.HeldBalance]:
        """Yield what each wallet holds, in their order, each of one moment. Where a statement takes too long, fewer are
        asked for from then on.
        """
        self._at_once, first = min(_WALLETS, 2 * self._at_once), 0
        while first < len(wallets):
            portion = wallets[first : first + self._at_once]
            try:
                found = self.sides[case.WALLET].ask(store.held, portion, _LEDGER_ROWS)
            except FerrymanError as error:
                if not audit.cancelled(error) or len(portion) == 1:
                    raise
                self._at_once = len(portion) // 2
                continue
            yield from (each if each.booked is not None else self._long(each.id) for each in found)
            first += len(portion)

    def _long(self, wallet: UUID) -> store.HeldBalance:
        """Sum a ledger that is long in as many statements as that takes, of one snapshot."""
        booked, taken, moment = 0, 0, None
        with self.sides[case.WALLET].looking(one_snapshot=True) as db:
            [found] = store.held(db, [wallet], 0)
            while True:
                some, less, moment = store.booked_after(db, wallet, moment, _MANY_LEDGER_ROWS)
                if moment is None:
                    return found._replace(booked=booked, taken=taken)
                booked, taken = booked + some, taken + less


def begin(
    sides: Sides, *, since: datetime | timedelta | None = None, until: datetime | timedelta | None = None,
    cut_seconds: float = audit.CUT_SECONDS, standstill_seconds: float | None = None, **more: Any,
) -> PaymentAudit:  # fmt: skip
    """Prepare an audit of a closed window: of what was recorded in it, some seconds ago at the latest."""
    settings, now, wallet_now = sides.settings, sides[MAIN].now(), sides[case.WALLET].now()
    heard = next((at for (at,) in sides[MAIN].ask(tuples, store.HEARD, {})), None)
    closed = now - timedelta(seconds=cut_seconds)
    first, last = (closed - each if isinstance(each, timedelta) else each for each in (since, until))
    retention = settings.consumer.receipts_retention_seconds
    gone = timedelta(seconds=retention) - _FORGETTING
    patience = timedelta(seconds=max(_PATIENCE_SECONDS, _ANSWERS * settings.section(PaymentsSettings).answer_seconds))
    horizon = Horizon(
        wallet_now - gone if retention else None, now - gone if retention else None, now - patience,
        heard and heard - patience,
    )  # fmt: skip
    books = AuditBooks(AuditWindow(first, min(last or closed, closed)))
    standstill = patience if standstill_seconds is None else timedelta(seconds=standstill_seconds)
    return PaymentAudit(sides, books, horizon, now - standstill, **more)
