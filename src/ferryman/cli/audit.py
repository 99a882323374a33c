"""`ferryman audit`"""

import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import click

from ferryman.cli import wiring
from ferryman.cli.options import MomentType
from ferryman.cli.output import json_option, print_json, print_table, say
from ferryman.evidence.audit.model import Books
from ferryman.evidence.audit.unfinished import finishing
from ferryman.evidence.audit.walk import Audit, begin
from ferryman.evidence.databases import open_databases
from ferryman.runtime.errors import FerrymanError
from ferryman.runtime.exits import Exit
from ferryman.runtime.times import moment, span

_PROGRESS_SECONDS = 2.0


@click.command("audit")
@click.option("--since", "since", type=MomentType(),
              help="Only what was recorded from this time on (2025-11-18T14:00), or so long ago (2h).")  # fmt: skip
@click.option("--until", "until", type=MomentType(),
              help="Only what was recorded before: as --since. Default: up to some seconds ago.")  # fmt: skip
@json_option
@click.pass_context
def command(
    context: click.Context, since: datetime | timedelta | None, until: datetime | timedelta | None, as_json: bool
) -> int:
    """Prove that nothing was lost and nothing taken twice: payments against the wallet's ledger, in both databases.

    \b
      ferryman audit                                    everything, up to some seconds ago
      ferryman audit --since 24h --json | jq .verdict
      ferryman audit --since 2025-11-18T00:00 --until 2025-11-19T00:00

    Each payment that is over has its operations in the ledger, its receipts and its result; what SUCCEEDED is what was
    taken, what FAILED took nothing; the ledger has no payment that nobody recorded; each wallet holds the sum of its
    ledger, never less than nothing. Payments on their way are counted by themselves. It only reads, in short
    transactions, and may run while everything else does: what looks wrong is looked at a second time before it is
    called so. What is past its retention is said, and not called wrong. The wallet's database is named by
    payments.wallet_database_url. Exit code 1 when anything is wrong; 3, 4 or 5 when it could not finish, with what was
    found by then on standard error.
    """
    settings = wiring.settings(context)
    wiring.use_catalogue(settings)
    with open_databases(settings, "audit") as databases, finishing():
        audit = begin(databases, settings)
        window, now = audit.books.window, audit.books.window.until
        first, last = (now - each if isinstance(each, timedelta) else each for each in (since, until))
        audit.books.window = window._replace(since=first, until=min(last or now, now))
        audit.progress = _Progress()
        books = _run(audit)
    if as_json:
        print_json(books.as_json())
    else:
        _print(books)
    return Exit.FAILURE if books.wrongs else Exit.OK


def _run(audit: Audit) -> Books:
    """Where it cannot finish, what was found by then is said all the same."""
    try:
        return audit.run()
    except FerrymanError:
        for line in _wrong(audit.books):
            say(line)
        raise


class _Progress:
    """A line now and then, where it takes long."""

    def __init__(self) -> None:
        self._at = time.monotonic() + _PROGRESS_SECONDS

    def __call__(self, what: str, done: int, about: int) -> None:
        if time.monotonic() >= self._at:
            self._at = time.monotonic() + _PROGRESS_SECONDS
            say(f"{done:,} {what}" + (f" of about {about:,}" if about > done else ""))


def _print(books: Books) -> None:
    said: dict[str, Any] = books.as_json()
    since = moment(books.window.since) if books.window.since else "the first"
    click.echo(f"payments recorded from {since} to {moment(books.window.until)}")
    print_table(
        ("", "", "how many"),
        [(stage, kind, f"{count:,}") for stage, kinds in said["counts"].items() for kind, count in kinds.items()],
    )
    if books.oldest is not None:
        waits = span((books.window.until - books.oldest).total_seconds())
        click.echo(f"on their way: {said['in_flight']:,}, the oldest recorded {waits} before the end of the window")
    if books.sums:
        print_table(
            ("currency", "succeeded", "deducted for them", "taken of failed", "taken of pending", "wallets hold",
             "opened with", "failed: by hand", "failed: on its way"),
            [(currency, *(f"{each:,}" for each in sums.as_json().values())) for currency, sums in
             sorted(books.sums.items())],
        )  # fmt: skip
    for what, count in sorted(books.expired.items()):
        click.echo(f"cannot be told: {count:,} {what}")
    for line in _wrong(books):
        click.echo(line)
    click.echo(f"verdict: {books.verdict}" + (f", {books.wrongs:,} found" if books.wrongs else ""))


def _wrong(books: Books) -> Iterator[str]:
    for each in books.wrong:
        yield f"{each.what}: {f'{each.id}: ' if each.id else ''}{each.why}\n  {each.next}"
    if books.wrongs > len(books.wrong):
        yield f"and {books.wrongs - len(books.wrong):,} more"
