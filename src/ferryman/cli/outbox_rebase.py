"""`ferryman outbox rebase`"""

import click

from ferryman.cli.options import act_of, act_options
from ferryman.cli.outbox_options import open_desk
from ferryman.cli.output import print_json
from ferryman.relay.rebase import Rebased, rebase
from ferryman.runtime.exits import Exit


@click.command("rebase", short_help="After a restore: this server's numbers.")
@click.option("--kept-xids", is_flag=True, help="After pg_upgrade, which keeps transaction numbers: renumber nothing.")
@click.option("--force", is_flag=True, help="Do it although this is the server that the numbers are of.")
@click.option("--wait", "wait_seconds", type=click.FloatRange(0.1, 3600), default=30.0, show_default=True,
              metavar="SECONDS", help="How long to wait for writers and relays to end their transactions.")  # fmt: skip
@act_options
@click.pass_context
def command(
    context: click.Context, /, *, kept_xids: bool, force: bool, wait_seconds: float, reason: str | None,
    who: str | None, yes: bool, source: str | None, as_json: bool,
) -> int:  # fmt: skip
    """After a restore into another server: give the outbox this server's transaction numbers.

    \b
      ferryman outbox rebase                                    what still waits, by the old numbers
      ferryman outbox rebase --yes --reason 'restored from the dump of 2 a.m.'
      ferryman outbox rebase --kept-xids --yes --reason 'pg_upgrade to 18'

    A copy by pg_dump, by logical replication or into a new server has other transaction numbers, and the relay refuses
    to publish from it. What was published by the old numbers stays published; the rest is published by new ones. It
    runs in one transaction, as the owner of the schema; writers wait for it. Without --yes nothing is changed.
    """
    act = act_of(who, reason, needed=yes)
    with open_desk(context, source) as desk:
        done = rebase(
            desk.connection, who=act.who, reason=act.reason, dry_run=not yes, kept_xids=kept_xids, force=force,
            wait_seconds=wait_seconds,
        )  # fmt: skip
    if as_json:
        print_json({
            "dry_run": done.dry_run, "pending": done.pending, "settled": done.settled, "renumbered": done.renumbered,
            "corrected": list(done.corrected), "mended_sequences": list(done.mended_sequences),
        })  # fmt: skip
    else:
        _print(done)
    return Exit.OK


def _print(done: Rebased) -> None:
    click.echo(f"{done.pending:,} entries wait to be published; {done.settled:,} were published")
    if done.dry_run:
        click.echo("nothing was changed: add --yes and --reason to do it")
        return
    click.echo(f"{done.renumbered:,} have new numbers; the relay can go on")
    if any(done.corrected):
        click.echo(
            f"what the cursors had counted was corrected by {', '.join(map(str, done.corrected))} in the segments"
        )
    for sequence in done.mended_sequences:
        click.echo(f"the sequence {sequence} stood behind its table and was moved on")
