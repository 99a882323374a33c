"""`ferryman inbox discard`"""

from collections import Counter
from typing import Any

import click

from ferryman.cli.inbox_options import Asked, asking, open_desk, records_of
from ferryman.cli.options import act_of, act_options
from ferryman.cli.output import print_json
from ferryman.consumer.operator import discard
from ferryman.consumer.operator.requeue import REQUEUED
from ferryman.consumer.operator.selection import Selection
from ferryman.runtime.desk import Desk
from ferryman.runtime.errors import FerrymanError
from ferryman.runtime.exits import Exit
from ferryman.runtime.times import moment


@click.command("discard", short_help="Give rejected messages up.")
@asking
@act_options
@click.pass_context
def command(
    context: click.Context, /, *,
    reason: str | None, who: str | None, yes: bool, source: str | None, as_json: bool, **options: Any,
) -> int:  # fmt: skip
    """Give rejected messages up: they have no effect, also when they come again.

    \b
      ferryman inbox discard --id orders/2/4711                          what it would do
      ferryman inbox discard --id orders/2/4711 --yes --reason 'a test order'
      ferryman inbox discard --consumer wallet --code UNREADABLE --to 3d --yes --reason 'too late to matter'

    Without --yes nothing is changed. The record is kept, and the receipt stays REJECTED. What was discarded can be
    requeued after all, with `inbox requeue --id`. It stands in the audit.
    """
    asked = Asked(**options)
    asked.check()
    act = act_of(who, reason, needed=yes)
    with open_desk(context, source) as desk:
        selection = asked.selection(desk)
        if selection.named:
            _check(desk, selection)
        plan = discard.plan(desk, selection)
        if not yes or not plan:
            _print_plan(plan, selection, as_json=as_json, done=yes)
            return Exit.OK
        done = discard.discard(desk, selection, act)
    if as_json:
        print_json({"dry_run": False, "consumer": selection.consumer, "messages": done})
    else:
        click.echo(f"{done:,} messages of {selection.consumer} discarded")
    return Exit.OK


def _check(desk: Desk, selection: Selection) -> None:
    records = records_of(desk, selection)
    if all(each.status == REQUEUED for each in records):
        each = records[0]
        raise FerrymanError(
            f"{each} was requeued by {each.who} at {moment(each.changed_at)} ({each.reason}): it is to take effect",
            remedy=f"see what became of it: `ferryman inbox show {each.id}`",
        )


def _print_plan(plan: Counter[str], selection: Selection, *, as_json: bool, done: bool) -> None:
    total = plan.total()
    if as_json:
        by_code = dict(plan)
        print_json({"dry_run": not done, "consumer": selection.consumer or None, "messages": total, "by_code": by_code})
        return
    said = ", ".join(f"{count:,} {code}" for code, count in sorted(plan.items()))
    whose = f" of {selection.consumer}" if selection.consumer else ""
    click.echo(f"would discard {total:,} messages{whose}" + (f" ({said})" if said else ""))
    click.echo("nothing was changed" + (": add --yes and --reason to do it" if total else ""))
