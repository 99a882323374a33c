"""`ferryman drain`: sends what is pending, and exits."""

import threading
from dataclasses import asdict

import click

from ferryman.cli import wiring
from ferryman.cli.output import CommandResult, answering
from ferryman.runtime import signals
from ferryman.runtime.errors import Exit
from ferryman.runtime.service import collect_less


@click.command("drain")
@click.argument("name", default="relay", metavar="[NAME]")
@answering
@click.pass_context
def command(context: click.Context, name: str) -> CommandResult:
    """Send what is pending, then exit 0: for cron and for tests.

    NAME is `relay` for all that goes to Kafka (the default), or the NAME of an [outbox.NAME].

    Entries that fail are counted and stay in the outbox: the next drain, or `ferryman run`, tries them again when they
    are due. One that falls due while the drain still runs is tried again at once. Rows that may have been delivered are
    counted as held: a person decides on them by `ferryman outbox resolve`. None of these changes the exit code. Exit 4
    when a database or Kafka does not answer, or a channel does not while rows wait for it.

    \b
      ferryman drain
      ferryman drain relay --json
      ferryman drain hooks
    """
    settings = wiring.settings(context)
    stopping = threading.Event()
    collect_less()
    with signals.heard(stopping.set):
        drained = wiring.drain(name, settings, stopping)
    held = f"held {drained.held} for `ferryman outbox resolve`, " if drained.held else ""
    said = f"published {drained.published}, failed {drained.failed}, {held}waiting {drained.waiting}"
    exit_code = Exit.INTERRUPTED if stopping.is_set() else Exit.OK
    return CommandResult(asdict(drained), [f"{said}, in {drained.seconds:.1f} s"], exit_code)
