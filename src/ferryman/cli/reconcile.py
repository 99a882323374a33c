"""`ferryman reconcile`"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from datetime import timedelta
from typing import Any
from uuid import UUID

import click
import structlog

from ferryman.cli import wiring
from ferryman.cli.options import DurationType, act_of, who_option, yes_option
from ferryman.cli.output import json_option, print_json, print_table, say
from ferryman.evidence import addressing
from ferryman.evidence.databases import WALLETS, open_databases
from ferryman.evidence.reconcile import metrics, repair, walk
from ferryman.evidence.reconcile.model import Case, Lag, Repair
from ferryman.evidence.reconcile.repair import Repaired
from ferryman.evidence.reconcile.walk import House
from ferryman.runtime.exits import Exit
from ferryman.runtime.settings import Settings
from ferryman.runtime.times import span

log = structlog.get_logger(__name__)


@click.group("reconcile")
def command() -> None:
    """Name why something is still pending, from evidence in every database, and mend what is safe to mend.

    \b
      ferryman reconcile payments                   what is pending for over 5 minutes, and why
    """


@command.command("payments", short_help="Why payments are still PENDING; with --yes, mends what is safe.")
@click.option("--older", type=DurationType(), default="5m", show_default=True, metavar="AGE",
              help="Only payments that have been pending for longer than this.")  # fmt: skip
@click.option("--id", "ids", type=click.UUID, multiple=True, metavar="UUID",
              help="This payment, whatever its age; may be given again.")  # fmt: skip
@click.option("--settle", type=click.UUID, metavar="UUID",
              help="Say that this STUCK payment was settled by hand: it becomes FAILED.")  # fmt: skip
@click.option("--limit", type=click.IntRange(1, 1_000_000), default=1_000, show_default=True,
              help="The most payments that are listed; all are counted, and mended.")  # fmt: skip
@click.option("--reason", help="Why, for the audit; needed with --yes.")
@who_option
@yes_option
@json_option
@click.pass_context
def payments(
    context: click.Context, /, *,
    older: timedelta, ids: tuple[UUID, ...], settle: UUID | None, limit: int, reason: str | None, who: str | None,
    yes: bool, as_json: bool,
) -> int:  # fmt: skip
    """Name why payments are still PENDING: from the ledger first, then from both outboxes and inboxes, and Kafka.

    \b
      ferryman reconcile payments                                     pending for over 5 minutes, and why
      ferryman reconcile payments --older 1h --json | jq .counts
      ferryman reconcile payments --id 9f1c1a52-6f0e-4b7e-9d5a-3c1f0a7b2e10
      ferryman reconcile payments --yes --reason 'the wallet is mended'
      ferryman reconcile payments --settle 9f1c1a52-6f0e-4b7e-9d5a-3c1f0a7b2e10 --yes --reason 'given back: TX 4711'

    Without --yes nothing is changed. With it, what is lost is asked for again through the machine, and FAILED entries
    are replayed: an operation happens once, and whoever asks again is answered with its outcome. A payment that was
    asked for less than payments.answer_seconds ago is left alone, and so is one whose reader is away, paused or far
    behind, so that the same command may run as often as one likes. What has FAILED and keeps what it took is found by
    the results that came too late, or by --id, and asked back. The wallet's database is named by
    payments.wallet_database_url.

    Causes: never_published, not_consumed, consumer_failed, result_lost, waits_downstream, needs_person,
    evidence_expired, not_given_back. Exit code 5 when some need a person, else 1 when --yes would mend some, else 0.
    """
    if settle and ids:
        raise click.UsageError("--settle is of one payment: leave --id out")
    act = act_of(who, reason, needed=yes)
    settings = wiring.settings(context)
    with _house(settings, wiring.loaded(context).origins) as house:
        if settle:
            done = repair.settle(house, settle, act, yes=yes)
            return _print_settled(settle, done=done, as_json=as_json)
        total = _Total(limit, yes=yes)
        for cases in walk.cases(house, older_seconds=older.total_seconds(), ids=ids):
            total.add(cases)
            if yes:
                repair.repair(house, cases, act, total.repaired)
            if not as_json:
                total.print_page()
            if total.seen % 10_000 < len(cases) and total.seen > len(cases):
                say(f"{total.seen:,} payments looked at")
    total.end(as_json=as_json)
    return total.exit_code()


@contextmanager
def _house(settings: Settings, origins: Mapping[str, str]) -> Iterator[House]:
    wiring.use_catalogue(settings)
    with open_databases(settings, "reconcile") as databases:
        wallets = addressing.wallet_address(settings, origins.get(WALLETS))
        yield House.of(databases, settings, _lags(settings), wallets)


def _lags(settings: Settings) -> Callable[[], dict[str, Lag]]:
    if not settings.kafka.bootstrap_servers:
        return dict
    from ferryman.evidence.reconcile.kafka import lags

    return lambda: lags(settings.kafka, settings.payments.answer_seconds)


class _Total:
    """All that was found: counted whole, listed up to a limit."""

    def __init__(self, limit: int, *, yes: bool) -> None:
        self.causes: Counter[str] = Counter()
        self.repairs: Counter[str] = Counter()
        self.repaired = Repaired()
        self.seen = self.persons = 0
        self._yes = yes
        self._limit, self._listed, self._page = limit, list[Case](), list[Case]()

    def add(self, cases: list[Case]) -> None:
        """N14: logged without amounts and references."""
        for each in cases:
            metrics.CASES.labels(each.cause).inc()
            log.info("still pending", uuid=str(each.uuid), cause=each.cause, state=each.state, repair=each.repair)
        self.causes.update(each.cause for each in cases)
        self.repairs.update(each.repair for each in cases if each.repair is not Repair.NONE)
        self.persons += sum(each.person and not (self._yes and each.repair is not Repair.NONE) for each in cases)
        self._page = cases[: max(0, self._limit - self.seen)]
        self._listed += self._page
        self.seen += len(cases)

    def print_page(self) -> None:
        if self._page:
            print_table(
                ("payment", "pending for", "state", "cause", "repair"),
                [(str(each.uuid), span(each.age_seconds), f"{each.state} {each.attempt}", each.cause, each.repair)
                 for each in self._page],
            )  # fmt: skip
            for each in self._page:
                click.echo(f"{each.uuid}: {each.evidence}\n  {each.next}")
        self._listed = []

    def end(self, *, as_json: bool) -> None:
        if as_json:
            print_json({
                "dry_run": not self._yes, "payments": self.seen, "counts": dict(self.causes),
                "repairs": dict(self.repairs), "repaired": self.repaired.by_repair, "moved": self.repaired.moved,
                "persons": self.persons, "cases": [_as_json(each) for each in self._listed],
            })  # fmt: skip
            return
        if not self.seen:
            click.echo("no payment is pending for so long")
            return
        said = ", ".join(f"{count:,} {cause}" for cause, count in sorted(self.causes.items()))
        click.echo(f"{self.seen:,} payments: {said}")
        if self._yes:
            done = ", ".join(f"{count:,} by {how}" for how, count in self.repaired.by_repair.items())
            click.echo(f"mended: {done or 'none'}" + (f"; {self.repaired.moved:,} moved on meanwhile"
                                                      if self.repaired.moved else ""))  # fmt: skip
        elif self.repairs:
            click.echo(f"nothing was changed: --yes and --reason would mend {self.repairs.total():,}")
        if self.persons:
            click.echo(f"{self.persons:,} need a person")

    def exit_code(self) -> int:
        if self.persons:
            return Exit.PARTIAL
        return Exit.FAILURE if self.repairs and not self._yes else Exit.OK


def _as_json(case: Case) -> dict[str, Any]:
    said = asdict(case)
    return {**said, "cause": str(case.cause), "repair": str(case.repair)}


def _print_settled(uuid: UUID, *, done: bool, as_json: bool) -> int:
    if as_json:
        print_json({"dry_run": not done, "settled": str(uuid), "state": "FAILED" if done else "STUCK"})
    elif done:
        click.echo(f"{uuid} is FAILED now: its amount was given back by hand")
    else:
        click.echo(f"would make {uuid} FAILED: its amount was given back by hand\nnothing was changed: add --yes")
    return Exit.OK
