"""`ferryman audit`"""

import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import click

from ferryman.cli import wiring
from ferryman.cli.options import MOMENT
from ferryman.cli.output import CommandResult, answering, say, table
from ferryman.evidence.audit import AuditBooks, finishing
from ferryman.evidence.casefile import case_files
from ferryman.evidence.sides import open_sides
from ferryman.runtime.errors import Exit, FerrymanError
from ferryman.runtime.times import moment, span
from ferryman.services import systems

_PROGRESS_SECONDS = 2.0
_SUMS = (
    {"succeeded": "succeeded", "deducted": "deducted for them", "failed_net": "taken of failed",
     "by_hand": "failed: by hand", "giving_back": "failed: on its way", "in_flight_net": "taken of pending"},
    {"wallets": "wallets hold", "ledger": "ledger sums to", "opened": "opened with", "taken": "taken ever",
     "given_back": "given back ever"},
)  # fmt: skip
"""The columns of both tables of sums: of the payments in the window, and of all wallets."""


@click.command("audit")
@click.option("--since", "since", type=MOMENT,
              help="Only what was recorded from this time on (2025-11-18T14:00), or so long ago (2h).")  # fmt: skip
@click.option("--until", "until", type=MOMENT,
              help="Only what was recorded before: as --since. Default: up to some seconds ago.")  # fmt: skip
@answering
@click.pass_context
def command(
    context: click.Context, since: datetime | timedelta | None, until: datetime | timedelta | None
) -> CommandResult:
    """Prove that nothing was lost and nothing taken twice: payments against the wallet's ledger, in both databases.

    \b
      ferryman audit                                    everything, up to some seconds ago
      ferryman audit --since 24h --json | jq .verdict
      ferryman audit --since 2025-11-18T00:00 --until 2025-11-19T00:00

    Every payment that is over has its operations in the ledger, its receipts and its result; the amounts of SUCCEEDED
    payments were taken, and FAILED ones took nothing; the ledger has no payment that nobody recorded; each wallet holds
    the sum of its ledger, never less than nothing, and all of them what was opened, less what was taken, with what was
    given back. It does not look at events. Payments on their way are counted separately. It only reads, in
    short transactions, and may run while everything else does: what looks wrong is looked at again before it is
    reported. Evidence that is past its retention is reported as such, and not as wrong. payments.wallet_database_url
    names the wallet's database. Exit code 1 if anything is wrong; 3, 4 or 5 if it could not finish, with what was found
    by then on standard error.
    """
    settings = wiring.settings(context)
    [case] = [each for each in case_files(systems()) if each.name == "payments"]
    with open_sides(settings, case.databases, "audit") as sides, finishing():
        audit = case.audit(sides, since=since, until=until, progress=_Progress())
        try:
            books = audit.run()
        except FerrymanError:
            for line in _wrong(audit.books):
                say(line)
            raise
    return CommandResult(books.as_json(), _lines(books), Exit.FAILURE if books.wrongs else Exit.OK)


class _Progress:
    """Prints a line now and then, if the audit takes long."""

    def __init__(self) -> None:
        self._at = time.monotonic() + _PROGRESS_SECONDS

    def __call__(self, what: str, done: int, about: int) -> None:
        if time.monotonic() >= self._at:
            self._at = time.monotonic() + _PROGRESS_SECONDS
            say(f"{done:,} {what}" + (f" of about {about:,}" if about > done else ""))


def _lines(books: AuditBooks) -> Iterator[str]:
    said: dict[str, Any] = books.as_json()
    since = moment(books.window.since) if books.window.since else "the first"
    yield f"payments recorded from {since} to {moment(books.window.until)}"
    yield table(
        ("", "", "how many"),
        [(stage, kind, f"{count:,}") for stage, kinds in said["counts"].items() for kind, count in kinds.items()],
    )
    if books.oldest is not None:
        waits = span((books.window.until - books.oldest).total_seconds())
        yield f"on their way: {said['in_flight']:,}, the oldest recorded {waits} before the end of the window"
    for columns in _SUMS if books.sums else ():
        yield table(
            ("currency", *columns.values()),
            [(currency, *(f"{sums[name]:,}" for name in columns)) for currency, sums in said["sums"].items()],
        )  # fmt: skip
    for what, count in sorted(books.expired.items()):
        yield f"unknown: {count:,} {what}"
    yield from _wrong(books)
    yield f"verdict: {books.verdict}" + (f", {books.wrongs:,} found" if books.wrongs else "")


def _wrong(books: AuditBooks) -> Iterator[str]:
    for each in books.wrong:
        yield f"{each.what}: {f'{each.id}: ' if each.id else ''}{each.why}\n  {each.next}"
    if books.wrongs > len(books.wrong):
        yield f"and {books.wrongs - len(books.wrong):,} more"
