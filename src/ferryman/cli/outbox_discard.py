"""`ferryman outbox discard`"""

from typing import Any

import click

from ferryman.cli.options import act_of, act_options
from ferryman.cli.outbox_options import Asked, asking, open_desk
from ferryman.cli.output import print_json, say
from ferryman.relay.operator import discard
from ferryman.relay.operator.discard import DISCARDABLE, Plan
from ferryman.relay.operator.selection import DISCARDED, PENDING, PUBLISHED, REPLAYING
from ferryman.runtime.errors import FerrymanError, Transient
from ferryman.runtime.exits import Exit


@click.command("discard", short_help="Give failed or waiting entries up.")
@asking(DISCARDABLE, default="all of these")
@act_options
@click.pass_context
def command(
    context: click.Context, /, *,
    reason: str | None, who: str | None, yes: bool, source: str | None, as_json: bool, **options: Any,
) -> int:  # fmt: skip
    """Give up entries that failed, are retried, or wait: they are not published, and their keys go on.

    \b
      ferryman outbox discard --id 4711                          what it would do
      ferryman outbox discard --id 4711 --yes --reason 'a test order'
      ferryman outbox discard --topic orders --key 17 --yes --reason 'the customer is gone'
      ferryman outbox discard --status FAILED --to 3d --yes --reason 'too late to matter'

    Without --yes nothing is changed. When the first of a parked key is discarded, the next one of the key is tried.
    What was discarded can be published after all, with `outbox replay --id`. A PENDING entry was not tried yet and
    cannot be discarded. It stands in the audit.
    """
    asked = Asked(**options)
    asked.check()
    act = act_of(who, reason, needed=yes)
    with open_desk(context, source) as desk:
        selection = asked.selection(desk)
        plan = discard.plan(desk, selection)
        _check(plan, named=bool(asked.references))
        if not yes or not plan.entries:
            _print_plan(plan, as_json=as_json, done=yes)
            return Exit.OK
        done = discard.Progress()
        try:
            discard.discard(desk, selection, act, last=plan.last, progress=done)
        except Transient:
            say(f"stopped with {done.entries:,} entries discarded; the same command goes on")
            raise
    if as_json:
        print_json({"dry_run": False, "entries": done.entries, "keys_released": done.keys_released})
    else:
        click.echo(f"{done.entries:,} entries discarded; {done.keys_released:,} parked keys go on")
    return Exit.OK


def _check(plan: Plan, *, named: bool) -> None:
    """Whoever names an entry wants to know that it cannot be."""
    if not named:
        return
    for status, why, remedy in _REFUSED:
        if plan.others.get(status):
            raise FerrymanError(why, remedy=remedy)


_REFUSED = (
    (
        PENDING,
        "a PENDING entry cannot be discarded: it has not been tried",
        "pause its topic first (`ferryman pause TOPIC`): the relay parks it, and what is PARKED can be discarded",
    ),
    (PUBLISHED, "a PUBLISHED entry cannot be discarded: Kafka has it", "append a message that takes it back"),
    (REPLAYING, "a REPLAYING entry cannot be discarded: it is being published once more", "let the replay end"),
)


def _print_plan(plan: Plan, *, as_json: bool, done: bool) -> None:
    if as_json:
        print_json({"dry_run": not done, "entries": plan.entries, "by_status": plan.by_status, "keys": plan.keys})
        return
    said = ", ".join(f"{count:,} {status}" for status, count in plan.by_status.items())
    click.echo(f"would discard {plan.entries:,} entries of {plan.keys:,} keys" + (f" ({said})" if said else ""))
    if plan.others.get(DISCARDED):
        click.echo(f"discarded already: {plan.others[DISCARDED]:,}")
    click.echo("nothing was changed" + (": add --yes and --reason to do it" if plan.entries else ""))
