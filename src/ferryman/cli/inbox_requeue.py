"""`ferryman inbox requeue`"""

from collections import Counter
from typing import Any

import click

from ferryman.cli.inbox_options import Asked, asking, open_desk, records_of
from ferryman.cli.options import act_of, act_options, database_of
from ferryman.cli.output import print_json, say
from ferryman.consumer.operator import requeue
from ferryman.consumer.operator.again import Refused
from ferryman.consumer.operator.requeue import REQUEUED, Plan, Progress
from ferryman.consumer.operator.selection import Selection
from ferryman.runtime.desk import Desk
from ferryman.runtime.errors import FerrymanError, Transient
from ferryman.runtime.exits import Exit
from ferryman.runtime.settings import Kafka
from ferryman.runtime.times import moment


@click.command("requeue", short_help="Publish rejected messages once more, to their consumer alone.")
@asking
@act_options
@click.pass_context
def command(
    context: click.Context, /, *,
    reason: str | None, who: str | None, yes: bool, source: str | None, as_json: bool, **options: Any,
) -> int:  # fmt: skip
    """Publish rejected messages once more, to their consumer alone: for when the cause is mended.

    \b
      ferryman inbox requeue --id 0b8a2c9e-5a0f-4f3e-9d55-3a3b4f0f8a11                 what it would do
      ferryman inbox requeue --id orders/2/4711 --yes --reason 'the handler is mended'
      ferryman inbox requeue --consumer wallet --code BUG --from 2h --yes --reason 'wallet 1.4.1 is out'

    Without --yes nothing is changed. In one transaction the receipt is reopened, the record marked, and the message,
    with its id, key, bytes and headers, appended to the outbox for the topic TOPIC.retry.CONSUMER, which no other
    consumer reads; the topic is created where it is missing. The relay of this database publishes it. It takes effect
    once, however often it comes. What the outbox cannot hold (a key that is no text, no value, too many bytes), and
    what has the id of another message (CONFLICT), cannot be requeued: with --id that is an error, else it is left, and
    the exit code is 5. What was discarded can be requeued by --id.
    """
    asked = Asked(**options)
    asked.check()
    act = act_of(who, reason, needed=yes)
    kafka = database_of(context, source).kafka
    with open_desk(context, source) as desk:
        selection = asked.selection(desk)
        if selection.named:
            _check(desk, selection)
        plan = requeue.plan(desk, selection)
        if not yes or not plan.messages:
            return _print_plan(plan, selection, kafka, as_json=as_json, done=yes)
        created = _create(kafka, plan)
        done = Progress()
        try:
            requeue.requeue(desk, selection, act, done)
        except Transient:
            say(f"stopped with {done.messages:,} messages requeued; the same command goes on")
            raise
    if as_json:
        print_json(
            {"dry_run": False, "consumer": selection.consumer, "messages": done.messages,
             "refused": dict(done.refused), "topics": sorted(plan.topics), "created": created}
        )  # fmt: skip
    else:
        click.echo(f"{done.messages:,} messages of {selection.consumer} requeued, to {', '.join(sorted(plan.topics))}")
        _print_refused(done.refused)
    return Exit.PARTIAL if done.refused else Exit.OK


def _check(desk: Desk, selection: Selection) -> None:
    """Whoever names a message wants to know that it cannot be."""
    records = records_of(desk, selection)
    waiting = {each.id for each in records if each.status != REQUEUED}
    for each in records:
        if each.status == REQUEUED and each.id not in waiting:
            raise FerrymanError(
                f"{each} was requeued by {each.who} at {moment(each.changed_at)} ({each.reason})",
                remedy=f"see what became of it: `ferryman inbox show {each.id}`",
            )
    with desk.acting() as connection:
        judged = requeue.judge(connection, [each for each in records if each.status != REQUEUED])
    for record, made in zip((each for each in records if each.status != REQUEUED), judged, strict=True):
        if isinstance(made, Refused):
            raise FerrymanError(
                f"{record} cannot be requeued: {made.why}",
                remedy="`ferryman inbox discard` gives it up; its writer can send it anew, as a message of its own",
            )


def _create(kafka: Kafka, plan: Plan) -> list[str]:
    """The retry topics that were missing; where no cluster is named, that they must be there."""
    if not kafka.bootstrap_servers:
        say(f"no cluster is named (kafka.bootstrap_servers): see that {', '.join(sorted(plan.topics))} exists")
        return []
    from ferryman.consumer.operator.topics import RetryTopics

    created = RetryTopics(kafka, plan.topics).create()
    for name in created:
        say(f"topic {name} was created")
    return created


def _missing(kafka: Kafka, plan: Plan) -> list[str] | None:
    """None where no cluster is named."""
    if not kafka.bootstrap_servers:
        return None
    from ferryman.consumer.operator.topics import RetryTopics

    return RetryTopics(kafka, plan.topics).missing() if plan.topics else []


def _print_plan(plan: Plan, selection: Selection, kafka: Kafka, *, as_json: bool, done: bool) -> int:
    missing = _missing(kafka, plan)
    if as_json:
        print_json(
            {"dry_run": not done, "consumer": selection.consumer or None, "messages": plan.messages,
             "by_code": dict(plan.by_code), "refused": dict(plan.refused), "topics": sorted(plan.topics),
             "missing_topics": missing}
        )  # fmt: skip
    else:
        said = ", ".join(f"{count:,} {code}" for code, count in sorted(plan.by_code.items()))
        whose = f" of {selection.consumer}" if selection.consumer else ""
        click.echo(f"would requeue {plan.messages:,} messages{whose}" + (f" ({said})" if said else ""))
        for name in sorted(plan.topics):
            state = "which exists if you made it: no cluster is named" if missing is None else (
                "which would be created" if name in missing else "which exists"
            )  # fmt: skip
            click.echo(f"to topic {name}, {state}")
        _print_refused(plan.refused)
        click.echo("nothing was changed" + (": add --yes and --reason to do it" if plan.messages else ""))
    return Exit.PARTIAL if done and plan.refused else Exit.OK


def _print_refused(refused: Counter[str]) -> None:
    for why, count in refused.items():
        click.echo(f"not requeued: {count:,}: {why}")
