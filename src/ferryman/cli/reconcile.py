"""`ferryman reconcile`"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import timedelta
from uuid import UUID

import click
import structlog

from ferryman.cli import wiring
from ferryman.cli.options import DURATION, act_of, who_option, yes_option
from ferryman.cli.output import CommandResult, json_option, say, table
from ferryman.evidence.casefile import CaseFile, case_files
from ferryman.evidence.reconcile import CASES, Case, Repair, Repaired, repair_all
from ferryman.evidence.sides import open_sides
from ferryman.runtime.errors import Exit
from ferryman.runtime.times import span
from ferryman.services import systems

log = structlog.get_logger(__name__)


@click.group("reconcile")
def command() -> None:
    """Name why something is still pending, from evidence in every database, and mend what is safe to mend.

    \b
      ferryman reconcile payments                   what is pending for over 5 minutes, and why
    """


def _command(case: CaseFile) -> click.Command:
    """Return the command that reconciles what a case file knows."""

    @click.command(case.name, help=case.help, short_help=case.short)
    @click.option("--older", type=DURATION, default="5m", show_default=True, metavar="AGE",
                  help=f"Only {case.name} that have been pending for longer than this.")  # fmt: skip
    @click.option("--id", "ids", type=click.UUID, multiple=True, metavar="UUID",
                  help=f"This {case.noun}, whatever its age; may be given again.")  # fmt: skip
    @click.option("--settle", type=click.UUID, metavar="UUID",
                  help=f"Say that this STUCK {case.noun} was settled by hand: it becomes FAILED.")  # fmt: skip
    @click.option("--limit", type=click.IntRange(1, 1_000_000), default=1_000, show_default=True,
                  help=f"The most {case.name} that are listed; all are counted, and mended.")  # fmt: skip
    @click.option("--reason", help="Why, for the audit; needed with --yes.")
    @who_option
    @yes_option
    @json_option
    @click.pass_context
    def reconcile(
        context: click.Context, /, *,
        older: timedelta, ids: tuple[UUID, ...], settle: UUID | None, limit: int, reason: str | None, who: str | None,
        yes: bool, as_json: bool,
    ) -> int:  # fmt: skip
        if settle and ids:
            raise click.UsageError(f"--settle is for one {case.noun}: leave --id out")
        act = act_of(who, reason, needed=yes)
        settings = wiring.settings(context)
        wiring.use_catalogue(settings)
        role = case.mending_role if yes else None
        with open_sides(settings, case.databases, "reconcile", wiring.loaded(context).origins, role=role) as sides:
            reconciler = case.reconciler(sides)
            if settle:
                return _settled(settle, done=reconciler.settle(settle, act, yes=yes)).print(as_json=as_json)
            total = _Total(case, limit, yes=yes)
            for cases in reconciler.cases(older_seconds=older.total_seconds(), ids=ids):
                total.add(cases)
                if yes:
                    repair_all(reconciler, cases, act, total.repaired)
                if not as_json:
                    total.print_page()
                if total.seen % 10_000 < len(cases) < total.seen:
                    say(f"{total.seen:,} {case.name} looked at")
        return total.result().print(as_json=as_json)

    return reconcile


class _Total:
    """The findings: counted whole, listed up to a limit."""

    def __init__(self, case: CaseFile, limit: int, *, yes: bool) -> None:
        self.causes: Counter[str] = Counter()
        self.repairs: Counter[str] = Counter()
        self.repaired = Repaired()
        self.seen = self.persons = 0
        self._case, self._yes, self._limit = case, yes, limit
        self._listed, self._page = list[Case](), list[Case]()

    def add(self, cases: Sequence[Case]) -> None:
        """Count and log these cases, without amounts and references."""
        for each in cases:
            CASES.labels(each.cause).inc()
            log.info("still pending", uuid=str(each.uuid), cause=each.cause, state=each.state, repair=each.repair)
        self.causes.update(each.cause for each in cases)
        self.repairs.update(each.repair for each in cases if each.repair is not Repair.NONE)
        self.persons += sum(each.person and not (self._yes and each.repair is not Repair.NONE) for each in cases)
        self._page = list(cases[: max(0, self._limit - self.seen)])
        self._listed += self._page
        self.seen += len(cases)

    def print_page(self) -> None:
        if self._page:
            page = table(
                (self._case.noun, "pending for", "state", "cause", "repair"),
                [(str(each.uuid), span(each.age_seconds), f"{each.state} {each.attempt}", each.cause, each.repair)
                 for each in self._page],
            )  # fmt: skip
            click.echo(page)
            for each in self._page:
                click.echo(f"{each.uuid}: {each.evidence}\n  {each.next}")
        self._listed = []

    def result(self) -> CommandResult:
        data = {
            "dry_run": not self._yes, self._case.name: self.seen, "counts": dict(self.causes),
            "repairs": dict(self.repairs), "repaired": self.repaired.by_repair, "moved": self.repaired.moved,
            "persons": self.persons, "cases": [asdict(each) for each in self._listed],
        }  # fmt: skip
        mendable = Exit.FAILURE if self.repairs and not self._yes else Exit.OK
        return CommandResult(data, self._lines(), Exit.PARTIAL if self.persons else mendable)

    def _lines(self) -> Iterator[str]:
        if not self.seen:
            yield f"no {self._case.noun} is pending for so long"
            return
        said = ", ".join(f"{count:,} {cause}" for cause, count in sorted(self.causes.items()))
        yield f"{self.seen:,} {self._case.name}: {said}"
        if self._yes:
            done = ", ".join(f"{count:,} by {how}" for how, count in self.repaired.by_repair.items()) or "none"
            moved = f"; {self.repaired.moved:,} moved on meanwhile" if self.repaired.moved else ""
            yield f"mended: {done}{moved}"
        elif self.repairs:
            yield f"nothing was changed: --yes and --reason would mend {self.repairs.total():,}"
        if self.persons:
            yield f"{self.persons:,} need a person"


def _settled(uuid: UUID, *, done: bool) -> CommandResult:
    lines = [f"would make {uuid} FAILED: its amount was given back by hand", "nothing was changed: add --yes"]
    if done:
        lines = [f"{uuid} is FAILED now: its amount was given back by hand"]
    return CommandResult({"dry_run": not done, "settled": str(uuid), "state": "FAILED" if done else "STUCK"}, lines)


for _case in case_files(systems()):
    command.add_command(_command(_case))
