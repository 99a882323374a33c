"""`ferryman outbox replay`"""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from ferryman.cli.options import act_of, source_option, who_option, yes_option
from ferryman.cli.outbox_options import Asked, asking, open_desk
from ferryman.cli.output import json_option, print_json, say
from ferryman.relay.operator import replay
from ferryman.relay.operator.desk import Desk
from ferryman.relay.operator.listing import Count
from ferryman.relay.operator.replay import REPLAYABLE, Replay
from ferryman.relay.operator.selection import PENDING, Selection
from ferryman.runtime.desk import Act
from ferryman.runtime.errors import FerrymanError, Transient
from ferryman.runtime.exits import Exit
from ferryman.runtime.times import span

_COUNT_SECONDS = 20.0
_POLL_SECONDS = 0.5


@click.command("replay", short_help="Publish entries once more, with the same ids.")
@asking(REPLAYABLE, default="PUBLISHED and FAILED")
@click.option("--rate", type=click.FloatRange(min=0.01, max=1e9), help="The most entries a second. Default: no limit.")
@click.option("--reason", help="Why, for the audit; needed with --yes.")
@who_option
@yes_option
@click.option("--wait", is_flag=True, help="Wait until the relay has published them all.")
@click.option(
    "--resume", type=click.IntRange(1, 2**63 - 1), metavar="REPLAY", help="Go on with a replay that was stopped."
)
@source_option
@json_option
@click.pass_context
def command(
    context: click.Context, /, *,
    rate: float | None, reason: str | None, who: str | None, yes: bool, wait: bool, resume: int | None,
    source: str | None, as_json: bool, **options: Any,
) -> int:  # fmt: skip
    """Publish entries once more, with the same ids and bytes: failed ones, or published ones that are still retained.

    \b
      ferryman outbox replay --status FAILED                     what it would do
      ferryman outbox replay --status FAILED --yes --reason 'the topic exists now'
      ferryman outbox replay --topic orders --from 2h --to 1h --rate 500 --yes --reason 'a reader lost them' --wait
      ferryman outbox replay --id 4711 --yes --reason 'asked for by billing'
      ferryman outbox replay --resume 3

    Without --yes nothing is changed. Entries are queued, and the relay publishes them, per key in their order, with
    the header x-replay; readers that know ids they have seen skip them. PENDING entries are never replayed; RETRYING,
    PARKED and REPLAYING ones are left as they are. A replay that was stopped, even by kill -9, goes on with --resume,
    and neither doubles nor skips. It stands in the audit.
    """
    asked = Asked(**options)
    if resume is None:
        asked.check()
    elif asked.anything or yes or reason:
        raise click.UsageError("--resume goes on with what was asked for then: give only --rate, --wait and --json")
    act = act_of(who, reason, needed=yes)
    with open_desk(context, source) as desk:
        if resume is not None:
            return _resume(desk, resume, rate, wait=wait, as_json=as_json)
        selection = asked.selection(desk)
        return _replay(desk, selection, act, rate, yes=yes, wait=wait, as_json=as_json)


def _replay(
    desk: Desk, selection: Selection, act: Act, rate: float | None, *, yes: bool, wait: bool, as_json: bool
) -> int:
    count = replay.count(desk, selection, seconds=_COUNT_SECONDS)
    planned = _Plan(selection, count, rate)
    planned.check()
    if not yes or (count.complete and not planned.entries):
        planned.print(as_json=as_json, done=yes)
        return Exit.OK
    started = replay.start(desk, selection, act, rate=rate, expected=planned.entries)
    return _go_on(desk, started, planned.entries, planned.skipped, wait=wait, as_json=as_json)


def _resume(desk: Desk, number: int, rate: float | None, *, wait: bool, as_json: bool) -> int:
    found = replay.load(desk, number)
    found.rate = rate or found.rate
    return _go_on(desk, found, None, {}, wait=wait, as_json=as_json)


class _Plan:
    """What a replay would do."""

    def __init__(self, selection: Selection, count: Count, rate: float | None) -> None:
        statuses = replay.statuses(selection)
        self.by_status = {status: n for status, n in sorted(count.entries.items()) if status in statuses}
        self.skipped = {status: n for status, n in sorted(count.entries.items()) if status not in statuses}
        self.entries = sum(self.by_status.values())
        self.payload_bytes = sum(count.payload_bytes[status] for status in self.by_status)
        self.seconds = self.entries / rate if rate else None
        self.complete = count.complete
        self.named = selection.positions is not None

    def check(self) -> None:
        """Whoever names an entry wants to know that it cannot be."""
        if self.named and not self.entries and self.skipped.get(PENDING):
            raise FerrymanError(
                "it is PENDING: what was not published cannot be published once more",
                remedy="`ferryman outbox show` says why it waits",
            )

    def print(self, *, as_json: bool, done: bool) -> None:
        if as_json:
            print_json({
                "dry_run": not done, "replay": None, "entries": self.entries, "by_status": self.by_status,
                "skipped": self.skipped, "payload_bytes": self.payload_bytes, "seconds": self.seconds,
                "complete": self.complete,
            })  # fmt: skip
            return
        at_least = "" if self.complete else f"at least (counted for {_COUNT_SECONDS:.0f} s) "
        click.echo(f"would publish {at_least}{self.entries:,} entries once more{_listed(self.by_status)}")
        if self.payload_bytes:
            click.echo(f"their payloads have {self.payload_bytes:,} bytes")
        if self.skipped:
            click.echo(f"left as they are: {sum(self.skipped.values()):,}{_listed(self.skipped)}")
        if self.seconds is not None:
            click.echo(f"at this rate it takes {span(self.seconds)}")
        click.echo("nothing was changed" + (": add --yes and --reason to do it" if self.entries else ""))


def _listed(counts: dict[str, int]) -> str:
    said = ", ".join(f"{count:,} {status}" for status, count in counts.items())
    return f" ({said})" if said else ""


def _go_on(
    desk: Desk, current: Replay, expected: int | None, skipped: dict[str, int], *, wait: bool, as_json: bool
) -> int:
    """Queues what is left, with a bar on a terminal; says how to go on when it is stopped."""
    how = f"go on with: ferryman outbox replay --resume {current.id}"
    say(f"replay {current.id}; if it is stopped, {how}")
    try:
        if current.finished_at is None:
            with _bar("queueing", expected) as moved:
                replay.run(desk, current, lambda each: moved(each.entries))
        left, failed = replay.left(desk, current)
        if wait and left:
            left, failed = _wait(desk, current, left)
    except KeyboardInterrupt:
        say(f"stopped with {current.entries:,} entries queued; {how}")
        raise
    except Transient as error:
        say(f"stopped with {current.entries:,} entries queued; {how}")
        if not as_json:
            say(f"ferryman: {error}")
            return Exit.PARTIAL
        print_json({**_told(current, skipped), "finished": False, "error": error.message})
        return Exit.PARTIAL
    published = current.entries - left - failed if wait else None
    if as_json:
        print_json({**_told(current, skipped), "finished": True, "published": published, "failed": failed})
    elif wait:
        click.echo(f"{published:,} entries published once more; {failed:,} failed")
    else:
        click.echo(f"{current.entries:,} entries queued{_listed_skipped(skipped)}; the relay publishes them")
    return Exit.PARTIAL if wait and failed else Exit.OK


def _told(current: Replay, skipped: dict[str, int]) -> dict[str, Any]:
    return {"dry_run": False, "replay": current.id, "entries": current.entries, "skipped": skipped}


def _listed_skipped(skipped: dict[str, int]) -> str:
    return f"; left as they are: {sum(skipped.values()):,}{_listed(skipped)}" if skipped else ""


def _wait(desk: Desk, current: Replay, left: int) -> tuple[int, int]:
    """Until the relay has published all; how many are left, and how many failed."""
    total, failed = left, 0
    with _bar("publishing", total) as moved:
        while left:
            time.sleep(_POLL_SECONDS)
            left, failed = replay.left(desk, current)
            moved(total - left)
    return left, failed


@contextmanager
def _bar(what: str, total: int | None) -> Iterator[Any]:
    """Progress for people; in a pipe none."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=total)
        yield lambda done: progress.update(task, completed=done)
