"""Rows are settled together with the courier's report of them: the hook `settled` runs in the same transaction."""

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import structlog

from ferryman.channels.outcome import Code, Rejected
from ferryman.relay.described.hooks import MOST_PASSING, Hooks, SettledFailed
from ferryman.relay.described.rows import Claimed, RowEnd, Settling
from ferryman.relay.described.statements import given_up_words
from ferryman.relay.described.table import Table
from ferryman.runtime.backoff import Backoff
from ferryman.runtime.errors import FerrymanError, Transient
from ferryman.runtime.life import Before
from ferryman.runtime.settings_outbox import Outbox

log = structlog.get_logger(__name__)

_AGAIN = Backoff(base_seconds=0.1, cap_seconds=5)
_REST = 3.0
"""Reports that wait for a lock are tried again after so many times as long, so that they delay other rows little."""


class _NotBuried(Exception):
    """Reports of rows that were to be given up failed for a reason that may pass: the transaction is rolled back."""


@dataclass(slots=True)
class Reports:
    """The settling of rows, and what became of their reports.

    A bug in the hook costs the report of its row: the row was sent, so it is settled. An error that may pass (a lock, a
    missing right) costs nothing: the row stays unsettled, in `unreported`, and is tried again, while it keeps its slot.
    While no report succeeds, no rows are claimed, except for one at a time that finds out whether it passed.
    """

    outbox_name: str
    outbox: Outbox
    hooks: Hooks
    before: Before
    unreported: list[Settling] = field(default_factory=list)
    problem: FerrymanError | None = None
    """Why no report succeeds now."""
    last: FerrymanError | None = None
    """Why the unreported rows are not settled."""
    again_at: float = 0.0
    """The time of the next attempt to report."""
    _failures: int = 0
    _probes: int = 0

    def settle(self, table: Table, settlings: Sequence[Settling], *, again: bool = False) -> set[str]:
        """Settle the rows, each with its report. Return the ids of those that were settled and still ours.

        If rows fail `again`, that says nothing about the reports of other rows.
        """
        began = time.monotonic()
        try:
            ours = self._together(table, settlings)
        except SettledFailed as failed:
            ours, passing, later, reported = self._settle_each(table, settlings, failed)
            if passing:
                self._failed(passing, later, time.monotonic() - began, shared=not (again or reported))
            if reported:
                self._succeeded()
            return ours
        if any(_is_told(each) for each in settlings):
            self._succeeded()
        return ours

    @property
    def ids(self) -> set[str]:
        """The ids of the unreported rows."""
        return {each.row.id for each in self.unreported}

    def again(self) -> list[Settling]:
        """Take the unreported rows, if it is time to try them again."""
        if not self.unreported or time.monotonic() < self.again_at:
            return []
        return self.take()

    def take(self) -> list[Settling]:
        """Take the unreported rows."""
        rows, self.unreported = self.unreported, []
        return rows

    def room(self, most: int) -> int:
        """Return how many of so many rows may be claimed: unreported rows keep their slots."""
        if self.problem is None:
            return max(0, most - len(self.unreported))
        if not isinstance(self.problem, Transient) or not self._probes:
            return 0
        self._probes = 0
        return min(1, most)

    def bury(self, table: Table, begun: Collection[str]) -> list[Claimed]:
        """Give up rows that were lost too often, and report them. Spare those whose report may succeed later."""
        spared: list[str] = []
        while True:
            try:
                return table.bury(lambda rows: self._report_buried(table, rows, spared), [*begun, *spared])
            except _NotBuried:
                continue

    # --- one report, or several in one call

    def _together(self, table: Table, settlings: Sequence[Settling]) -> set[str]:
        return table.settle(settlings, lambda ours: self._tell(table, settlings, ours))

    def _tell(self, table: Table, settlings: Sequence[Settling], ours: Collection[str]) -> None:
        """Call the hook with the rows that were still ours."""
        if ours:
            self.before("commit rows")
            self.hooks.tell(table, [each for each in settlings if each.row.id in ours])

    def _settle_each(
        self, table: Table, settlings: Sequence[Settling], first: SettledFailed
    ) -> tuple[set[str], SettledFailed | None, list[Settling], bool]:
        """Settle each row alone, as the hook failed for them together.

        Return the ids of those that were settled, a failure that may pass and the rows to report later, and whether a
        report succeeded.
        """
        others = [each for each in settlings if not _is_told(each)]  # the hook is not told of these
        ours = table.settle(others) if others else set()
        later: list[Settling] = []
        passing: list[SettledFailed] = []
        reported = False
        ends = [each for each in settlings if _is_told(each)]
        for each in ends:
            if len(passing) == MOST_PASSING:
                later.append(each)
                continue
            failed = first if len(settlings) == 1 else None
            if failed is None:
                try:
                    ours |= self._together(table, [each])
                    reported = True
                    continue
                except SettledFailed as error:
                    failed = error
            if failed.passing:
                passing.append(failed)
                later.append(each)
            else:
                self._log(failed, "settled failed: the row is settled without its report")
                ours |= table.settle([each])
        return ours, passing[0] if passing else None, later, reported

    def _report_buried(self, table: Table, rows: Sequence[Claimed], spared: list[str]) -> None:
        """Call the hook with rows that are given up, or with each alone if it fails, in savepoints."""
        error = given_up_words(self.outbox)
        why, status = Rejected(error, Code.WORKER_LOST), self.outbox.words.dead or self.outbox.words.pending[-1]
        ends = [Settling(row, RowEnd.GIVEN_UP, status, error, outcome=why) for row in rows]
        if not ends or (failed := self._told(table, ends)) is None:
            return
        passing: list[SettledFailed] = []
        for each in ends:
            failed = failed if len(ends) == 1 else self._told(table, [each])
            if failed is None:
                continue
            if not failed.passing:
                self._log(failed, "settled failed: the row is given up without its report")
                continue
            passing.append(failed)
            spared.append(each.row.id)
            if len(passing) == MOST_PASSING:
                spared.extend(row.id for row in rows)
                break
        if passing:
            self._failed(passing[0], [], 0.0, shared=False)
            raise _NotBuried

    def _told(self, table: Table, ends: Sequence[Settling]) -> SettledFailed | None:
        """Call the hook in a savepoint. Return its failure, if it fails."""
        try:
            with table.connection.transaction():
                self._tell(table, ends, [each.row.id for each in ends])
        except SettledFailed as failed:
            return failed
        return None

    def _succeeded(self) -> None:
        if self.problem:
            log.info("settled works again", outbox=self.outbox_name)
        self.problem, self._probes = None, 0
        if not self.unreported:
            self._failures = 0

    def _failed(self, failed: SettledFailed, later: Sequence[Settling], took: float, *, shared: bool) -> None:
        """Keep rows to report them later; rest in proportion to what the attempt took."""
        self._failures += 1
        self._probes = 1
        seconds = _AGAIN.delay_seconds(self._failures) + _REST * took
        self.again_at, self.last = time.monotonic() + seconds, failed.passing
        # Those that failed go behind those that were not tried.
        self.unreported += [*later[MOST_PASSING:], *later[:MOST_PASSING]]
        if shared or self.problem:
            self.problem = failed.passing
        self._log(failed, "settled failed: its rows are tried again", again_in_seconds=round(seconds, 1))

    def _log(self, failed: SettledFailed, event: str, **more: object) -> None:
        log.error(event, outbox=self.outbox_name, row=failed.row, error=str(failed), where=failed.where, **more)


def _is_told(settling: Settling) -> bool:
    """Return True if the row has ended, or is refused with reports of its own: then the hook is told."""
    return settling.end in (RowEnd.DONE, RowEnd.GIVEN_UP) or bool(getattr(settling.outcome, "reports", ()))
