"""`ferryman drain`: publishes what is pending, and exits."""

import threading
from dataclasses import asdict

import click

from ferryman.cli import wiring
from ferryman.cli.output import json_option, print_json
from ferryman.runtime import signals
from ferryman.runtime.errors import Exit
from ferryman.runtime.service import collect_less


@click.command("drain")
@click.argument("name", type=click.Choice(["relay"]), default="relay", metavar="[NAME]")
@json_option
@click.pass_context
def command(context: click.Context, name: str, as_json: bool) -> int:  # noqa: ARG001 - there is one so far
    """Publish what is pending, then exit 0: for cron and for tests.

    Entries that fail are counted and stay in the outbox: the next drain, or `ferryman run relay`, tries them again when
    they are due. Exit 4 when a database or Kafka does not answer.

    \b
      ferryman drain
      ferryman drain relay --json
    """
    from ferryman.relay.service import drain

    settings = wiring.settings(context)
    stopping = threading.Event()
    collect_less()
    with signals.heard(stopping.set):
        drained = drain(settings, stopping)
    if as_json:
        print_json(asdict(drained))
    else:
        click.echo(f"published {drained.published}, failed {drained.failed}, waiting {drained.waiting}, "
                   f"in {drained.seconds:.1f} s")  # fmt: skip
    return Exit.INTERRUPTED if stopping.is_set() else Exit.OK
