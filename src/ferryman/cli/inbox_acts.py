"""`ferryman inbox requeue`, `discard` and `rebase`: acts by hand, which are dry runs without --yes."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any
from uuid import UUID

import click

from ferryman.cli import options
from ferryman.cli.options import Order
from ferryman.cli.output import CommandResult, counted, nothing_changed, say
from ferryman.consumer.admin import requeue as requeues
from ferryman.consumer.admin.messages import REQUEUED, SelectedMessages, known_consumers
from ferryman.consumer.admin.requeue import RequeueCounts
from ferryman.consumer.kafka.consumer_topics import RetryTopics
from ferryman.consumer.store import consumers, rejected
from ferryman.consumer.store.rejected import RejectedRecord
from ferryman.migrations import rights
from ferryman.runtime.desk import Desk, audit
from ferryman.runtime.errors import Exit, FerrymanError
from ferryman.runtime.settings import Kafka
from ferryman.runtime.times import moment

_WHICH = "messages: --id, --code, --consumer, --topic, --type, --from or --to"

message_options = options.decorated(
    click.option("--id", "references", multiple=True, type=options.MESSAGE_REFERENCE, metavar="ID|PLACE",
                 help="This message, by its id or topic/partition/offset; may be repeated."),
    click.option("--consumer", metavar="NAME",
                 help="Only messages of this consumer. Needed if several consumers have rejected such messages."),
    click.option("--code", "codes", multiple=True, metavar="CODE",
                 help="Only messages rejected with this code (BUG, UNREADABLE, ...); may be repeated."),
    click.option("--topic", metavar="TOPIC", help="Only messages of this topic."),
    click.option("--type", metavar="TYPE", help="Only messages of this type."),
    click.option("--from", "since", type=options.MOMENT,
                 help="Only messages rejected since this time (2025-11-18T14:00), or in the last (2h)."),
    click.option("--to", "until", type=options.MOMENT,
                 help="Only messages rejected before this time; as --from."),
)  # fmt: skip


def message_selection(desk: Desk, asked: Mapping[str, Any]) -> SelectedMessages:
    """Return the messages that were asked for, of exactly one consumer: codes are per consumer."""
    selection = SelectedMessages(
        ids=tuple(each for each in asked["references"] if isinstance(each, UUID)),
        places=tuple(each for each in asked["references"] if not isinstance(each, UUID)),
        codes=tuple(each.upper() for each in asked["codes"]) or None,
        topic=asked["topic"],
        type=asked["type"],
        **options.period(desk, asked),
    )
    with desk.acting() as connection:
        if asked["consumer"]:
            rights.check_name(connection, "consumer", asked["consumer"])
        owners = rejected.owners(connection, selection.parameters())
    if asked["consumer"] is None and len(owners) > 1:
        raise FerrymanError(
            f"several consumers have rejected such messages: {', '.join(owners)}", remedy="name one with --consumer"
        )
    return replace(selection, consumer=asked["consumer"] or (owners[0] if owners else ""))


def _planned(verb: str, by_code: Mapping[str, int], selection: SelectedMessages) -> str:
    whose = f" of {selection.consumer}" if selection.consumer else ""
    return f"would {verb} {sum(by_code.values()):,} messages{whose}{counted(by_code)}"


def _was_requeued(record: RejectedRecord, more: str = "") -> FerrymanError:
    return FerrymanError(
        f"{record} was requeued by {record.who} at {moment(record.changed_at)} ({record.reason}){more}",
        remedy=f"see what became of it: `ferryman inbox show {record.id}`",
    )


@click.command("requeue", short_help="Publish rejected messages again, for their consumer alone.")
@message_options
@options.act_options
def requeue(order: Order, **asked: Any) -> CommandResult:
    """Publish rejected messages again, for their consumer alone, once the cause is mended.

    \b
      ferryman inbox requeue --id 0b8a2c9e-5a0f-4f3e-9d55-3a3b4f0f8a11                 what it would do
      ferryman inbox requeue --id orders/2/4711 --yes --reason 'the handler is mended'
      ferryman inbox requeue --consumer wallet --code BUG --from 2h --yes --reason 'wallet 1.4.1 is out'

    Without --yes nothing is changed. In one transaction the receipt is reopened, the record is marked, and the message,
    with its id, key, bytes and headers, is appended to the outbox for the topic TOPIC.retry.CONSUMER, which no other
    consumer reads. The topic is created if it is missing. The relay of this database publishes the message. It takes
    effect once, however often it comes. Messages that the outbox cannot hold (a key that is not text, no value, too
    many bytes), and messages with the id of another message (CONFLICT), cannot be requeued: with --id that is an error,
    else they are left, and the exit code is 5. Discarded messages can be requeued with --id. If a topic was made anew,
    a place may name several rejected messages: then it is refused, and the ids are named.
    """
    options.refuse_everything(asked, _WHICH)
    kafka = options.database_of(order.context, order.source).kafka
    with order.desk("by hand") as desk:
        selection = message_selection(desk, asked)
        if selection.named:
            _check(desk, selection)
        plan = requeues.requeue(desk, selection, None, RequeueCounts())
        topics = sorted(plan.topics)
        if not order.yes or not plan.messages:
            missing = _missing_topics(kafka, plan)
            data = {
                "dry_run": not order.yes, "consumer": selection.consumer or None, "messages": plan.messages,
                "by_code": plan.by_code, "refused": plan.refused, "topics": topics, "missing_topics": missing,
            }  # fmt: skip
            partial = order.yes and plan.refused
            return CommandResult(data, _plan_lines(plan, selection, missing), Exit.PARTIAL if partial else Exit.OK)
        requeues.rehearse(desk, selection, order.act)
        created = _create_topics(kafka, plan)
        done = RequeueCounts()
        with options.resumable(lambda: f"{done.messages:,} messages requeued; the same command goes on"):
            requeues.requeue(desk, selection, order.act, done)
    data = {
        "dry_run": False, "consumer": selection.consumer, "messages": done.messages, "refused": done.refused,
        "topics": topics, "created": created,
    }  # fmt: skip
    said = f"{done.messages:,} messages of {selection.consumer} requeued, to {', '.join(topics)}"
    return CommandResult(data, [said, *_refused_lines(done)], Exit.PARTIAL if done.refused else Exit.OK)


def _check(desk: Desk, selection: SelectedMessages) -> None:
    """Refuse to requeue a message that is named and cannot be."""
    records = requeues.named(desk, selection)
    left = [each for each in records if each.status != REQUEUED]
    waiting = {each.id for each in left}
    for each in records:
        if each.id not in waiting:
            raise _was_requeued(each)
    with desk.acting() as connection:
        judged = requeues.judge(connection, left)
    for record, why in zip(left, judged, strict=True):
        if isinstance(why, str):
            raise FerrymanError(
                f"{record} cannot be requeued: {why}",
                remedy="`ferryman inbox discard` gives it up; its writer can send it anew, as a message of its own",
            )


def _create_topics(kafka: Kafka, plan: RequeueCounts) -> list[str]:
    """Create the missing retry topics. If no cluster is named, say that they must exist."""
    if not kafka.bootstrap_servers:
        say(f"no cluster is named (kafka.bootstrap_servers): see that {', '.join(sorted(plan.topics))} exists")
        return []
    created = RetryTopics(kafka, plan.topics).create()
    for name in created:
        say(f"topic {name} was created")
    return created


def _missing_topics(kafka: Kafka, plan: RequeueCounts) -> list[str] | None:
    """Return the missing retry topics, or None if no cluster is named."""
    if not kafka.bootstrap_servers:
        return None
    return RetryTopics(kafka, plan.topics).missing() if plan.topics else []


def _plan_lines(plan: RequeueCounts, selection: SelectedMessages, missing: list[str] | None) -> Iterator[str]:
    yield _planned("requeue", plan.by_code, selection)
    for name in sorted(plan.topics):
        if missing is None:
            yield f"to topic {name}, which exists if you created it: no cluster is named"
        else:
            yield f"to topic {name}, which {'would be created' if name in missing else 'exists'}"
    yield from _refused_lines(plan)
    yield nothing_changed(plan.messages)


def _refused_lines(counts: RequeueCounts) -> Iterator[str]:
    for why, count in counts.refused.items():
        yield f"not requeued: {count:,}: {why}"


@click.command("discard", short_help="Give rejected messages up.")
@message_options
@options.act_options
def discard(order: Order, **asked: Any) -> CommandResult:
    """Give rejected messages up: they have no effect, even if they come again.

    \b
      ferryman inbox discard --id orders/2/4711                          what it would do
      ferryman inbox discard --id orders/2/4711 --yes --reason 'a test order'
      ferryman inbox discard --consumer wallet --code UNREADABLE --to 3d --yes --reason 'too late to matter'

    Without --yes nothing is changed. The record is kept, and the receipt stays REJECTED. Discarded messages can still
    be requeued with `inbox requeue --id`. The act is written into the audit.
    """
    options.refuse_everything(asked, _WHICH)
    with order.desk("by hand") as desk:
        selection = message_selection(desk, asked)
        named = requeues.named(desk, selection) if selection.named else []
        if named and all(each.status == REQUEUED for each in named):
            raise _was_requeued(named[0], ": it is to take effect")
        plan = requeues.plan_discard(desk, selection)
        done = requeues.discard(desk, selection, order.act) if order.yes and plan else None
    data = {"dry_run": not order.yes, "consumer": selection.consumer or None}
    if done is not None:
        return CommandResult(data | {"messages": done}, [f"{done:,} messages of {selection.consumer} discarded"])
    lines = [_planned("discard", plan, selection), nothing_changed(plan.total())]
    return CommandResult(data | {"messages": plan.total(), "by_code": plan}, lines)


@click.command("rebase", short_help="Let a consumer begin at Kafka's offsets, whatever this database knows.")
@click.option("--consumer", required=True, metavar="NAME", help="The consumer. None of its processes may run.")
@click.option("--topic", metavar="TOPIC", help="Only the partitions of this topic.")
@options.act_options
def rebase(order: Order, *, consumer: str, topic: str | None) -> CommandResult:
    """Let a consumer begin at Kafka's offsets, whatever this database knows.

    \b
      kafka-consumer-groups --reset-offsets --group wallet --topic orders --to-earliest --execute
      ferryman inbox rebase --consumer wallet --topic orders                          what it would do
      ferryman inbox rebase --consumer wallet --topic orders --yes --reason 'skip what retention deleted'

    A consumer begins at the smaller of its group's offset in Kafka and the position in its database, so that a restored
    database skips nothing. To skip messages deliberately, stop its processes, set the group's offsets forwards, and
    forget the positions by this command. To have messages again, set the offsets backwards; that needs no rebase. The
    act is written into the audit.
    """
    with order.desk("by hand") as desk, desk.acting() as connection:
        rights.check_name(connection, "consumer", consumer)
        known_consumers(connection, consumer)
        if running := consumers.processes(connection, [consumer])[consumer]:
            raise FerrymanError(f"{running} processes of {consumer} run, and would write their positions again",
                                remedy="stop them first")  # fmt: skip
        if topic is not None and topic not in (read := consumers.topics(connection, consumer)):
            raise FerrymanError(
                f"{consumer} has no partition of a topic {topic} in this database",
                remedy=f"correct the topic; it has partitions of {', '.join(read) or 'none'}",
            )
        count = consumers.positions_known(connection, consumer, topic)
        if order.yes and count:
            consumers.forget_positions(connection, consumer, topic)
            audit(connection, "rebase", order.act, said={"consumer": consumer, "topic": topic}, entries=count)
    data = {"dry_run": not order.yes, "consumer": consumer, "topic": topic, "partitions": count}
    if order.yes:
        return CommandResult(data, [f"{consumer} begins at Kafka's offsets in {count:,} partitions"])
    lines = [f"would let {consumer} begin at Kafka's offsets in {count:,} partitions", nothing_changed(count)]
    return CommandResult(data, lines)
