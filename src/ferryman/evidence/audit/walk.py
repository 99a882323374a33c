"""Goes through both databases in pages, while they change: what is upstream of a thing is read after it.

A result is applied after it was booked, so requests are read before their ledger: what is over must have its evidence
by then. A payment is booked after it was recorded, so the ledger is read before its requests. What looks wrong is
looked at again after a moment, whole, before it is called so.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import groupby
from uuid import UUID

from ferryman.evidence.audit import columns, gathering, policy, store, store_again, store_wallets
from ferryman.evidence.audit.balances import Balances
from ferryman.evidence.audit.columns import Uuids
from ferryman.evidence.audit.model import Books, Facts, Horizon, Page, Place, Request, Window
from ferryman.evidence.audit.policy import COMMANDS
from ferryman.evidence.audit.reading import Reading
from ferryman.evidence.databases import Databases
from ferryman.evidence.messages import ANSWER
from ferryman.runtime.settings import Settings

PAGE = 5_000
CUT_SECONDS = 5.0
_PATIENCE_SECONDS, _ANSWERS = 600.0, 3
"""What was asked for must have gone on after so long, or after so many times what an answer may take."""

_BLOCKS, _MOST_BLOCKS = 64, 1_024
_MOST_SUSPECTS = 5_000
_FORGETTING = timedelta(minutes=1)

Progress = Callable[[str, int, int], None]


@dataclass
class Audit:
    """One audit: how far it is, and what it has found."""

    reading: Reading
    books: Books
    horizon: Horizon
    progress: Progress = lambda _what, _done, _about: None
    moment_seconds: float = 1.0
    """How long what looks wrong is left alone before it is looked at again."""
    _suspects: list[UUID] = field(default_factory=list)
    _orphans: set[UUID] = field(default_factory=set)
    _balances: Balances = field(init=False)

    def __post_init__(self) -> None:
        self._balances = Balances(self.reading)

    def run(self) -> Books:
        self._requests()
        self._ledger()
        self._wallets()
        for currency, sums in sorted(self.books.sums.items()):
            for wrong in policy.unequal(currency, sums):
                self.books.find(wrong)
        return self.books

    def _requests(self) -> None:
        after: Place | None = None
        done = 0
        with self.reading.orchestrator() as db:
            about = store.about(db)
        while True:
            with self.reading.orchestrator() as db:
                page = store.page(db, self.books.window, after, PAGE)
            if page is None:
                break
            after = page.last
            if others := self._plain(page):
                with self.reading.orchestrator() as db:
                    requests = store.requests_of(db, others)
                self._judge(requests)
            done += page.many
            self.progress("requests", done, about)
        self._look_again()

    def _plain(self, page: Page) -> list[UUID]:
        """Counts what is plainly in order, which the servers tell by themselves; the rest is to be looked at."""
        commands = columns.derived(page.uuids, f"{COMMANDS['DEDUCT']}/1")
        with self.reading.orchestrator() as db:
            not_applied = store.not_applied(db, columns.derived(commands, ANSWER))
        with self.reading.wallet() as db:
            found, others = store.plain(db, page, commands, not_applied)
        for each in found:
            policy.add_plain(self.books.counts, self.books.sum_of(each.currency), each)
        return others

    def _judge(self, page: Sequence[Request]) -> None:
        """What is well is counted; what is not, is looked at again."""
        for known in gathering.first(self.reading, page, self.horizon):
            judged = policy.judge(known, self.horizon)
            if policy.plain_at_once(known, judged):
                self._count(known, judged.counts)
            else:
                self._suspects.append(known.request.uuid)
        if len(self._suspects) >= _MOST_SUSPECTS:
            self._look_again()

    def _look_again(self) -> None:
        if not self._suspects:
            return
        time.sleep(self.moment_seconds)
        with self.reading.orchestrator() as db:
            page = store.requests_of(db, self._suspects)
        for first in range(0, len(page), PAGE // 10):
            for known in gathering.again(self.reading, page[first : first + PAGE // 10], self.horizon):
                judged = policy.judge(known, self.horizon)
                self._count(known, judged.counts)
                for wrong in judged.wrong:
                    self.books.find(wrong)
        self._suspects.clear()

    def _count(self, known: Facts, counts: Sequence[str]) -> None:
        self.books.counts.update(counts)
        policy.add(self.books.sum_of, known, self.horizon)
        self.books.expired.update(gone for count, gone in policy.GONE.items() if count in counts)
        if "requests.PENDING" in counts:
            self.books.wait(known.request.created_at)

    def _ledger(self) -> None:
        """By its blocks: what was booked stays where it is, and what is booked meanwhile is past the window."""
        first, step = 0, _BLOCKS
        with self.reading.wallet() as db:
            end = store.blocks(db)
        while first < end:
            with self.reading.wallet() as db:
                ids, many = store.booked(db, self.books.window, first, first + step)
                lopsided = store.lopsided(db, ids) if ids else []
            for uuid, names in groupby(lopsided, key=lambda each: each[0]):
                self.books.find(policy.lopsided(uuid, ", ".join(kind for _, _, kind in names)))
            self._orphans |= self._unknown(ids)
            if len(self._orphans) >= _MOST_SUSPECTS:
                self._orphans_again()
            first += step
            step = min(2 * step, _MOST_BLOCKS) if many < PAGE // 2 else _BLOCKS
            self.progress("blocks of the ledger", min(first, end), end)
        self._orphans_again()

    def _unknown(self, ids: Uuids | Sequence[UUID] | None) -> set[UUID]:
        if not ids:
            return set()
        with self.reading.orchestrator() as db:
            return store.unknown(db, ids)

    def _orphans_again(self) -> None:
        """What was archived has left its uuid, and is not called lost; what is in neither place was never recorded."""
        if not self._orphans:
            return
        time.sleep(self.moment_seconds)
        missing = sorted(self._unknown(sorted(self._orphans)))
        with self.reading.orchestrator() as db:
            archived = store_again.archived(db, missing)
        self.books.expired.update([policy.ARCHIVED] * len(archived))
        for uuid in missing:
            if uuid not in archived:
                self.books.counts["ledger.orphans"] += 1
                self.books.find(policy.orphan(uuid))
        self._orphans.clear()

    def _wallets(self) -> None:
        """Each balance against its ledger, whatever the window: a sum has no beginning."""
        after: UUID | None = None
        while True:
            with self.reading.wallet() as db:
                page = store_wallets.after(db, after, PAGE // 10)
            if not page:
                return
            suspects = []
            for each in self._balances.of(page):
                sums = self.books.sum_of(each.currency)
                sums.wallets += each.balance
                sums.opened += each.opened
                if each.unbalanced:
                    suspects.append(each.id)
            self._unbalanced(suspects)
            after = page[-1]
            self.books.counts["wallets.looked_at"] += len(page)
            self.progress("wallets", self.books.counts["wallets.looked_at"], 0)

    def _unbalanced(self, suspects: Sequence[UUID]) -> None:
        if not suspects:
            return
        time.sleep(self.moment_seconds)
        for each in self._balances.of(suspects):
            if each.unbalanced:
                self.books.find(policy.unbalanced(each))


def begin(
    databases: Databases, settings: Settings, *, since: datetime | None = None, until: datetime | None = None
) -> Audit:
    """Of a window that is closed: what was recorded in it before this moment, with time for what is being recorded."""
    for each in (databases.orchestrator, databases.wallet):
        each.prepare_threshold = None  # ids are looked for in long arrays: no plan of them is kept
    reading = Reading(databases, settings)
    with reading.orchestrator() as db:
        now, heard = store.now(db), store_again.heard(db)
    with reading.wallet() as db:
        wallet_now = store.now(db)
    closed = now - timedelta(seconds=CUT_SECONDS)
    retention = settings.consumer.receipts_retention_seconds
    gone = timedelta(seconds=retention) - _FORGETTING
    patience = timedelta(seconds=max(_PATIENCE_SECONDS, _ANSWERS * settings.payments.answer_seconds))
    horizon = Horizon(
        wallet_now - gone if retention else None, now - gone if retention else None, now - patience,
        heard and heard - patience,
    )  # fmt: skip
    return Audit(reading, Books(Window(since, min(until or closed, closed))), horizon)
