"""`ferryman pause` and `ferryman resume`."""

import re
from typing import Any

import click

from ferryman.cli import wiring
from ferryman.cli.options import NAME, act_of, decorated, open_desk, open_rows, source_option, who_option
from ferryman.cli.output import CommandResult, answering, paused_line, say, with_iso_times
from ferryman.consumer.store import consumers
from ferryman.migrations import rights
from ferryman.relay.admin.described_rows import RowDesk, check_destination
from ferryman.relay.described.table import check_log
from ferryman.runtime.desk import WHOLE_OUTBOX, Act, Desk, Kind, Row, Verb, change_pause, read_paused
from ferryman.runtime.errors import FerrymanError
from ferryman.runtime.postgres import translated

_WHOLE = ("outbox", "relay")

_name_options = decorated(
    click.argument("name", default="", metavar="[NAME]"),
    click.option("--topic", "is_topic", is_flag=True, help="NAME is a topic, whatever it is called."),
    click.option("--consumer", "is_consumer", is_flag=True, help="NAME is a consumer."),
    click.option("--outbox", metavar="NAME", type=NAME, help="A described outbox, in place of NAME."),
    click.option(
        "--destination", metavar="DESTINATION", type=NAME, help="With --outbox: only this destination, or topic."
    ),
)
_common_options = decorated(who_option, source_option)


@click.command("pause")
@_name_options
@click.option("--reason", help="Why: shown wherever the pause is, and kept in the audit.")
@_common_options
@answering
@click.pass_context
def command(context: click.Context, /, *, name: str, **options: Any) -> CommandResult:
    """Stop publishing a topic, or the whole outbox, or stop a consumer, until `ferryman resume`.

    \b
      ferryman pause orders --reason 'the topic is being moved'
      ferryman pause outbox --reason 'Kafka is being upgraded'
      ferryman pause wallet --consumer --reason 'its books are being repaired'
      ferryman pause --outbox hooks --destination https://shop.example/hook --reason 'the customer asked'

    NAME is `outbox` for the whole outbox, else a topic; with --consumer, a consumer. Writers append as before, and
    their entries wait in order; a consumer's processes stay in their group, and its messages wait in Kafka. Every
    relay and consumer follows within a second. The pause is kept in the database, so that restarts change nothing.
    Pausing twice changes nothing. With --outbox, the couriers or relays of a described table claim no rows, or none for
    that destination; rows that are being sent end as they would.
    """
    return _change(context, name, "pause", ("{} is paused", "{} was paused before"), **options)


@click.command("resume")
@_name_options
@click.option("--reason", help="Why, for the audit.")
@_common_options
@answering
@click.pass_context
def resume(context: click.Context, /, *, name: str, **options: Any) -> CommandResult:
    """Let a topic, the whole outbox or a consumer continue after `ferryman pause`.

    \b
      ferryman resume orders
      ferryman resume outbox --reason 'Kafka 4.1 is up'
      ferryman resume wallet --consumer
      ferryman resume --outbox hooks --destination https://shop.example/hook

    NAME is `outbox` for the whole outbox, else a topic; with --consumer, a consumer. Waiting entries are published, and
    waiting messages handled, in order. A topic that was paused by itself stays paused when the whole outbox continues.
    Resuming what is not paused changes nothing.
    """
    return _change(context, name, "resume", ("{} continues", "{} was not paused"), **options)


def _change(
    context: click.Context, name: str, verb: Verb, said: tuple[str, str], *,
    is_topic: bool, is_consumer: bool, outbox: str | None, destination: str | None, reason: str | None,
    who: str | None, source: str | None,
) -> CommandResult:  # fmt: skip
    """Pause or resume. Return what is paused now."""
    act = act_of(who, reason, needed=False)
    if bool(name) == bool(outbox) or (outbox and (is_topic or is_consumer)) or (destination and not outbox):
        raise click.UsageError("say NAME, with --topic or --consumer; or --outbox NAME, with --destination")
    if outbox:
        name = f"{outbox} to {destination}" if destination else outbox
        with open_rows(context, outbox, source) as rows:
            changed, paused = _change_described(rows, verb, destination, act)
    else:
        kind: Kind = "consumer" if is_consumer else "topic"
        with open_desk(context, source, "outbox") as desk:
            _check(desk, context, name, is_topic=is_topic, is_consumer=is_consumer)
            paused_name = name if is_consumer else _topic_of(name, is_topic=is_topic)
            changed = change_pause(desk, verb, kind, paused_name, act)
            with desk.acting() as connection:
                paused = [*read_paused(connection, "topic"), *read_paused(connection, "consumer")]
    shown = [with_iso_times({"topic": None, "consumer": None, **each}) for each in paused]
    lines = [said[0 if changed else 1].format(name), *(paused_line(_what(each), each) for each in paused)]
    return CommandResult({"changed": changed, "paused": shown}, lines if paused else [*lines, "nothing is paused"])


def _change_described(rows: RowDesk, verb: Verb, destination: str | None, act: Act) -> tuple[bool, list[Row]]:
    """Pause or resume a described outbox. Return whether that changed anything, and which of them are paused now."""
    if destination and not rows.names_destination:
        raise FerrymanError(f"all rows of {rows.called} go to one place", remedy="leave --destination out")
    with translated():
        check_log(rows.desk.connection, rows.name)
    if destination and verb == "pause":
        check_destination(rows, destination)
    changed = change_pause(rows.desk, verb, "outbox", rows.name, act, destination=destination or WHOLE_OUTBOX)
    with rows.desk.acting() as connection:
        return changed, read_paused(connection, "outbox")


def _check(desk: Desk, context: click.Context, name: str, *, is_topic: bool, is_consumer: bool) -> None:
    """Refuse an ambiguous name; warn of a consumer that has never run, since pausing it may do nothing."""
    if not (is_topic or is_consumer) and name in wiring.settings(context).outbox:
        raise click.UsageError(
            f"{name} is a described outbox here: say --outbox {name}, or --topic if it is a topic too"
        )
    if is_topic and is_consumer:
        raise click.UsageError("NAME is a topic or a consumer: say --topic or --consumer, not both")
    with desk.acting() as connection:
        if is_consumer:
            rights.check_name(connection, "consumer", name)
        has_run = consumers.has_run(connection, name)
    if has_run and not is_topic and not is_consumer:
        raise click.UsageError(f"{name} is a consumer here: say --consumer, or --topic if it is a topic too")
    if is_consumer and not has_run:
        say(f"no consumer {name} has run on this database yet: see that the name and the database are right")


def _topic_of(name: str, *, is_topic: bool) -> str:
    """Return the topic as the table has it. Refuse a name that cannot be a topic's: nobody would notice that pausing it
    does nothing.
    """
    if name in _WHOLE and not is_topic:
        return WHOLE_OUTBOX
    if not re.fullmatch(r"[a-zA-Z0-9._-]{1,249}", name):
        raise FerrymanError(
            f"{name!r} is not a valid topic: names have 1 to 249 letters, digits, dots, underscores or hyphens",
            remedy="name a topic, or `outbox` for all of them",
        )
    return name


def _what(paused: Row) -> str:
    if "outbox" in paused:
        return f"outbox {paused['outbox']}" + (f" to {paused['destination']}" if paused["destination"] else "")
    if "consumer" in paused:
        return f"consumer {paused['consumer']}"
    return f"topic {paused['topic']}" if paused["topic"] else "the whole outbox"
