"""`ferryman pause`"""

from typing import Any

import click

from ferryman.cli.options import Command, act_of, source_option, who_option
from ferryman.cli.outbox_options import open_desk
from ferryman.cli.output import json_option, print_json, say
from ferryman.consumer.operator import pausing as consumers
from ferryman.consumer.store import standing as inbox
from ferryman.relay.operator import pausing
from ferryman.relay.operator.desk import Desk
from ferryman.relay.store import standing
from ferryman.runtime.times import moment

_WHOLE = ("outbox", "relay")


def naming(command: Command) -> Command:
    """NAME, and what it is the name of."""
    for option in (
        click.option("--consumer", "is_consumer", is_flag=True, help="NAME is a consumer."),
        click.option("--topic", "is_topic", is_flag=True, help="NAME is a topic, whatever it is called."),
        click.argument("name"),
    ):
        command = option(command)
    return command


@click.command("pause")
@naming
@click.option("--reason", help="Why: shown wherever the pause is, and kept in the audit.")
@who_option
@source_option
@json_option
@click.pass_context
def command(
    context: click.Context, *, name: str, is_topic: bool, is_consumer: bool, reason: str | None, who: str | None,
    source: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Stop publishing a topic, or the whole outbox, or stop a consumer, until `ferryman resume`.

    \b
      ferryman pause orders --reason 'the topic is being moved'
      ferryman pause outbox --reason 'Kafka is being upgraded'
      ferryman pause wallet --consumer --reason 'its books are being repaired'

    NAME is `outbox` for all of it, else a topic; with --consumer, a consumer. Writers append as before, and what they
    append waits in its order; a consumer's processes stay in their group, and what comes waits in Kafka. Every relay
    and consumer minds it within a second; it is kept in the database, so that restarts change nothing. Pausing what is
    paused changes nothing.
    """
    act = act_of(who, reason, needed=False)
    with open_desk(context, source) as desk:
        check(desk, name, is_topic=is_topic, is_consumer=is_consumer)
        if is_consumer:
            changed = consumers.pause(desk, name, act)
        else:
            changed = pausing.pause(desk, topic_of(name, is_topic=is_topic), act)
        print_paused(desk, changed, f"{name} is paused", f"{name} was paused before", as_json=as_json)


def check(desk: Desk, name: str, *, is_topic: bool, is_consumer: bool) -> None:
    """A pause of what is not there would pause nothing, and nobody would notice."""
    if is_topic and is_consumer:
        raise click.UsageError("NAME is a topic or a consumer: say --topic or --consumer, not both")
    with desk.acting() as connection:
        has_run = inbox.has_run(connection, name)
    if has_run and not is_topic and not is_consumer:
        raise click.UsageError(f"{name} is a consumer here: say --consumer, or --topic if it is a topic too")
    if is_consumer and not has_run:
        say(f"no consumer {name} has run on this database yet: see that the name and the database are right")


def topic_of(name: str, *, is_topic: bool) -> str:
    """As the table has it."""
    if name in _WHOLE and not is_topic:
        return pausing.EVERYTHING
    pausing.check(name)
    return name


def print_paused(desk: Desk, changed: bool, did: str, was: str, *, as_json: bool) -> None:
    """What was done, and what is paused now."""
    with desk.acting() as connection:
        paused: list[dict[str, Any]] = [
            *({**each, "consumer": None} for each in standing.paused(connection)),
            *({"name": each["consumer"], "topic": None, **each} for each in inbox.paused(connection)),
        ]
    if as_json:
        print_json({"changed": changed, "paused": [{**each, "since": each["since"].isoformat()} for each in paused]})
        return
    click.echo(did if changed else was)
    for each in paused:
        click.echo(f"paused: {_what(each)}, since {moment(each['since'])} by {each['who']}: {each['reason']}")
    if not paused:
        click.echo("nothing is paused")


def _what(paused: dict[str, Any]) -> str:
    if paused["consumer"]:
        return f"consumer {paused['consumer']}"
    return f"topic {paused['topic']}" if paused["topic"] else "the whole outbox"
